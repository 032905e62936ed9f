"""Checks that a client learns the facts of a server, and refuses impossible ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopstream.errors import FormatError
from hopstream.store.facts import StoreFacts
from hopstream.transport.messages import Frame
from tests.store.cases import Case
from tests.transport.peer import carried


def test_facts_survive_a_round_trip(typed_case: Case) -> None:
    facts = replace(StoreFacts.of(typed_case.shared([0, 2]), max_ids=9), path=Path("/data/mag"))
    got = StoreFacts.from_frame(carried(facts.to_frame()))
    assert (got.schema, got.directions) == (facts.schema, facts.directions)
    assert (got.dataset_id, got.graph_id) == (facts.dataset_id, facts.graph_id)
    assert (got.parts, got.max_ids, got.path) == ((0, 2), 9, Path("/data/mag"))
    assert (got.time_attr, got.weight_attr, got.has_neighbor_keys) == (None, None, False)
    assert list(got.book.edge_offsets) == list(facts.book.edge_offsets)
    for owner in (*facts.book.node_offsets, *facts.book.edge_offsets):
        assert got.book.offsets(owner).tolist() == facts.book.offsets(owner).tolist()


def test_time_weight_and_neighbour_key_facts_survive_a_round_trip(typed_case: Case) -> None:
    facts = replace(
        StoreFacts.of(typed_case.shared(), max_ids=9), time_attr="year", time_unit="D", weight_attr="weight",
        has_neighbor_keys=True,
    )  # fmt: skip
    frame = carried(facts.to_frame())
    got = StoreFacts.from_frame(frame)
    assert (got.time_attr, got.time_unit, got.weight_attr, got.has_neighbor_keys) == ("year", "D", "weight", True)
    with pytest.raises(
        FormatError, match="time_unit is 'fortnight'; it must be one of D, h, m, s, ms, us, ns, or null"
    ):
        StoreFacts.from_frame(Frame({**frame.header, "time_unit": "fortnight"}, frame.arrays))


def test_facts_without_time_fields_are_refused(typed_case: Case) -> None:
    frame = carried(StoreFacts.of(typed_case.shared(), max_ids=9).to_frame())
    for name in ("time_attr", "weight_attr", "has_neighbor_keys"):
        with pytest.raises(FormatError, match=name):
            StoreFacts.from_frame(Frame({n: v for n, v in frame.header.items() if n != name}, frame.arrays))


def change(name: str, value: object) -> Callable[[dict[str, Any], list[np.ndarray]], None]:
    def do(header: dict[str, Any], arrays: list[np.ndarray]) -> None:
        header[name] = value

    do.__name__ = f"{name}={value}"
    return do


def drop_array(header: dict[str, Any], arrays: list[np.ndarray]) -> None:
    arrays.pop()


def descend(header: dict[str, Any], arrays: list[np.ndarray]) -> None:
    arrays[0] = arrays[0][::-1].copy()


def shorten(header: dict[str, Any], arrays: list[np.ndarray]) -> None:
    arrays[0] = arrays[0][:1]


def flatten(header: dict[str, Any], arrays: list[np.ndarray]) -> None:
    arrays[0] = arrays[0].astype(np.float32)


@pytest.mark.parametrize(
    "change",
    [
        drop_array, descend, shorten, flatten,
        change("schema", {}), change("schema", None), change("schema", {"nodes": {"other": {}}, "edges": []}),
        change("owners", []), change("owners", 3), change("owners", [["a", "b"]]),
        change("directions", ["in"]), change("directions", ["up"]), change("directions", None),
        change("parts", []), change("parts", [3]), change("parts", [1, 0]), change("parts", [-1]),
        change("parts", ["x"]), change("num_parts", 0), change("num_parts", 1 << 40), change("num_parts", None),
        change("max_ids", 0), change("dataset", 7), change("graph", None),
        change("time_attr", "ghost"), change("time_attr", 3), change("time_attr", ["year"]), change("time_attr", {}),
        change("time_attr", "feat"), change("time_attr", "title"), change("time_attr", "tags"),
        change("weight_attr", "ghost"), change("weight_attr", "year"), change("weight_attr", False),
        change("has_neighbor_keys", None), change("has_neighbor_keys", 1), change("has_neighbor_keys", "yes"),
    ],
)  # fmt: skip
def test_invalid_facts_are_refused(
    typed_case: Case, change: Callable[[dict[str, Any], list[np.ndarray]], None]
) -> None:
    frame = carried(StoreFacts.of(typed_case.shared(), max_ids=9).to_frame())
    header, arrays = dict(frame.header), list(frame.arrays)
    change(header, arrays)
    with pytest.raises(FormatError):
        StoreFacts.from_frame(Frame(header, arrays))
