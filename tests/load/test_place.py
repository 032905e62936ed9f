"""Checks that a saved place brings a loader back to it, and is refused by any other loader."""

from __future__ import annotations

import json

import pytest

from hopstream.errors import StateError
from hopstream.load.epochs import EpochPosition

FACTS = {"graph_id": "abc", "batch_size": 4, "shuffle": True, "num_neighbors": {"hop1": 5}}


def test_a_place_survives_json():
    state = json.loads(json.dumps(EpochPosition(3, 7).to_json(FACTS)))
    place = EpochPosition.from_json(state, FACTS, 10)
    assert (place.epoch, place.next_batch, place.is_resuming) == (3, 7, True)


def test_options_missing_from_a_state_count_as_off():
    state = EpochPosition(3, 7).to_json(FACTS)
    assert EpochPosition.from_json(state, {**FACTS, "new": False}, 10).next_batch == 7
    with pytest.raises(StateError, match="of a loader with new None; this loader has True"):
        EpochPosition.from_json(state, {**FACTS, "new": True}, 10)
    with pytest.raises(StateError, match="of a loader with new False; this loader has None"):
        EpochPosition.from_json(EpochPosition(3, 7).to_json({**FACTS, "new": False}), FACTS, 10)


def test_an_iteration_after_one_left_early_is_the_next_epoch():
    place = EpochPosition(3, 7)
    place.begin()
    assert (place.epoch, place.next_batch) == (4, 0)
    place.begin()
    assert (place.epoch, place.next_batch) == (4, 0)


def test_a_restored_position_is_used_once():
    place = EpochPosition.from_json(EpochPosition(3, 7).to_json(FACTS), FACTS, 10)
    place.begin()
    assert (place.epoch, place.next_batch) == (3, 7)
    place.begin()
    assert (place.epoch, place.next_batch) == (4, 0)


def test_the_position_of_a_failed_iteration_is_used_once():
    place = EpochPosition(3, 7)
    place.resume()
    place.set_epoch(3)
    place.begin()
    assert (place.epoch, place.next_batch) == (3, 7)
    place.begin()
    assert (place.epoch, place.next_batch) == (4, 0)


@pytest.mark.parametrize(("epoch", "wanted"), [(3, (3, 7)), (4, (4, 0)), (0, (0, 0))])
def test_set_epoch_keeps_the_restored_place_of_that_epoch(epoch, wanted):
    place = EpochPosition.from_json(EpochPosition(3, 7).to_json(FACTS), FACTS, 10)
    place.set_epoch(epoch)
    place.begin()
    assert (place.epoch, place.next_batch) == wanted


def test_set_epoch_moves_to_the_start_of_an_epoch():
    place = EpochPosition(3, 7)
    place.set_epoch(3)
    place.begin()
    assert (place.epoch, place.next_batch) == (3, 0)


@pytest.mark.parametrize("epoch", [-1, 1.0, "1", True, None, 1 << 63])
def test_invalid_epochs_are_refused(epoch):
    with pytest.raises(StateError, match="epochs are 0, 1"):
        EpochPosition().set_epoch(epoch)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 8}, "of a loader with batch_size 4; this loader has 8"),
        ({"num_neighbors": {"hop1": 6}}, "num_neighbors {'hop1': 5}; this loader has {'hop1': 6}"),
        (
            {"graph_id": "abz"},
            "^the state is of a loader over another graph; make this loader from the same inputs",
        ),
        ({"more": 1}, "more None; this loader has 1"),
    ],
)
def test_another_loader_is_refused_by_name(change, message):
    with pytest.raises(StateError, match=message):
        EpochPosition.from_json(EpochPosition(3, 7).to_json(FACTS), {**FACTS, **change}, 10)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (None, r"the loader state is a NoneType; it must be what state_dict\(\) returned"),
        ([], "the loader state is a list"),
        ({}, "has no format and no epoch and no next_batch and no loader; it must be"),
        ({"format": 1, "epoch": 0, "next_batch": 0}, r"has no loader; it must be .*\"loader\": .* got {'format': 1, "),
        ({**EpochPosition(3, 7).to_json(FACTS), "format": 2}, "format 2; this version reads 1"),
        (EpochPosition(3, 11).to_json(FACTS), "next_batch is 11; it must be from 0 to 10"),
        (EpochPosition(3, -1).to_json(FACTS), "next_batch is -1"),
        ({**EpochPosition(3, 7).to_json(FACTS), "epoch": "x"}, "epoch is 'x'"),
        (
            {**EpochPosition(3, 7).to_json(FACTS), "epoch": 1 << 63},
            "epoch is 9223372036854775808; it must be from 0 to",
        ),
        ({**EpochPosition(3, 7).to_json(FACTS), "loader": 5}, "the loader state's loader is '5'; it must be an object"),
    ],
)
def test_invalid_states_are_refused(state, message):
    with pytest.raises(StateError, match=message):
        EpochPosition.from_json(state, FACTS, 10)
