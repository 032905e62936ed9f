"""Checks that requests for neighbours survive their frames, and are cut without loss."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopstream.errors import SettingsError
from hopstream.store.contract import MAX_TREES, TREE_SHIFT, LaborSeeds, SampleRequest
from hopstream.store.sample_frames import (
    FIELDS,
    as_int64,
    num_others,
    read_sample,
    sample_calls,
    take_rows,
    write_samples,
)
from hopstream.transport.messages import Frame
from tests.store.cases import BUYS, KNOWS, Case
from tests.transport.peer import carried

IDS = np.array([3, 0, 3, 7])
FULL = SampleRequest(
    edge_type=BUYS, direction="out", ids=IDS, count=5, is_replacing=True, rng_seed=2**64 - 1, wants_edge_ids=True,
    trees=np.array([0, MAX_TREES - 1, 2, 3]), times=np.array([-(2**63), 2**63 - 1, 0, 5]), is_inclusive=False,
    excluded=np.array([[3, 0, 9], [1, 2, 3]]), candidates=np.array([2, 5, (MAX_TREES - 1) << TREE_SHIFT | 19]),
)  # fmt: skip
LABOR = SampleRequest(
    edge_type=BUYS, direction="in", ids=IDS, count=-1, strategy="labor", wants_edge_keys=True,
    labor=LaborSeeds(first=2**64 - 1, second=3, share=0.1),
)  # fmt: skip
PLAIN = SampleRequest(edge_type=KNOWS, direction="in", ids=IDS, count=2)


def as_values(request: SampleRequest) -> dict[str, Any]:
    """Fields as values that can be compared."""
    given = {f.name: getattr(request, f.name) for f in fields(request)}
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in given.items()}


def test_every_field_survives_a_round_trip(timed_case: Case) -> None:
    requests = [FULL, LABOR, PLAIN]
    records, arrays = write_samples(requests, timed_case.shared().book)
    frame = carried(Frame({"requests": records}, arrays))
    got = [read_sample(frame, record) for record in frame.records("requests")]
    assert [as_values(request) for request in got] == [as_values(request) for request in requests]
    assert [num_others(request) for request in got] == [6, 0, 0]
    assert {name for record in records for name in record} == FIELDS
    assert {f.name for f in fields(SampleRequest)} - FIELDS == {"edge_type", "direction"}


def test_nothing_is_copied_before_a_request_is_checked(timed_case: Case) -> None:
    records, arrays = write_samples([FULL], timed_case.shared().book)
    frame = carried(Frame({"requests": records}, arrays))
    request = read_sample(frame, records[0])
    for name in ("ids", "trees", "times", "excluded", "candidates"):
        assert getattr(request, name) is frame.arrays[records[0][name]]
        own = getattr(as_int64(request), name)
        assert own.dtype == np.int64 and own.flags.aligned and own.flags.owndata
        assert own.tolist() == getattr(FULL, name).tolist()


def test_shared_arrays_are_sent_once(timed_case: Case) -> None:
    requests = [replace(FULL, excluded=None), replace(FULL, excluded=None, count=2), replace(FULL, excluded=None)]
    records, arrays = write_samples(requests, timed_case.shared().book)
    assert len(arrays) == 4
    assert records[0]["candidates"] == records[2]["candidates"]
    assert sorted(array.dtype.name for array in arrays) == ["int64", "int64", "uint32", "uint32"]


def test_candidates_without_trees_are_as_narrow_as_ids(timed_case: Case) -> None:
    request = replace(FULL, trees=None, candidates=np.array([2, 5, 19]))
    records, arrays = write_samples([request], timed_case.shared().book)
    assert arrays[records[0]["candidates"]].dtype == np.uint32


def test_rows_are_selected_with_their_trees_and_times() -> None:
    for rows in (slice(1, 3), np.array([1, 2])):
        some = take_rows(FULL, rows)
        assert some.trees is not None
        assert some.times is not None
        assert (some.ids.tolist(), some.trees.tolist()) == ([0, 3], [MAX_TREES - 1, 2])
        assert some.times.tolist() == [2**63 - 1, 0]
        assert some.candidates is FULL.candidates


@given(st.integers(3, 40), st.integers(0, 2**32))
def test_calls_cover_every_row_once_within_the_limit(max_ids: int, rng_seed: int) -> None:
    rng = np.random.default_rng(rng_seed)
    requests = [
        replace(
            PLAIN, ids=rng.integers(0, 9, int(n)), trees=np.arange(n),
            excluded=rng.integers(0, 9, (2, int(rng.integers(0, max_ids // 3 + 1)))) if rng.random() < 0.5 else None,
            candidates=np.arange(rng.integers(0, 2 * max_ids // 3 + 1)) if rng.random() < 0.5 else None,
        )
        for n in rng.integers(0, 60, 4)
    ]  # fmt: skip
    rows = []
    for pieces, cut in sample_calls(requests, max_ids):
        assert pieces
        assert sum(len(request.ids) for request in cut) <= max_ids
        assert sum(num_others(request) for request in cut) <= max_ids
        for piece, request in zip(pieces, cut, strict=True):
            whole = requests[piece.request]
            assert request.trees is not None
            assert request.trees.tolist() == list(range(piece.start, piece.start + piece.num_rows))
            assert request.ids.tolist() == whole.ids[request.trees].tolist()
            assert request.candidates is whole.candidates
            assert pairs_of(whole, request.ids) == pairs_of(request, request.ids)
            rows += [(piece.request, row) for row in request.trees.tolist()]
    assert rows == [(i, row) for i, request in enumerate(requests) for row in range(len(request.ids))]


def pairs_of(request: SampleRequest, ids: np.ndarray) -> list[list[int]]:
    return [] if request.excluded is None else [p for p in request.excluded.T.tolist() if p[0] in ids.tolist()]


def test_pairs_and_candidates_that_no_call_can_hold_are_refused_with_a_remedy() -> None:
    request = replace(PLAIN, candidates=np.arange(8), excluded=np.zeros((2, 3), np.int64) + 3)
    with pytest.raises(
        SettingsError, match=r"11 excluded pairs and candidates; the server takes at most 10; expand fewer nod"
    ):
        list(sample_calls([request], 10))
    assert len(list(sample_calls([request], 11))) == 1
