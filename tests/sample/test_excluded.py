"""Checks that exactly the given pairs of nodes are excluded."""

from __future__ import annotations

import numpy as np
import pytest

from hopstream.sample.slots import ExcludedPairs, pairs_of_slots, slots_of_pairs

PAIRS = np.array([[4, 9, 4, 4], [7, 7, 1, 7]])
"""Sources and destinations; one pair is given twice."""


@pytest.mark.parametrize(
    "direction,ids,wanted",
    [
        ("out", [9, 5], [[9], [7]]),
        ("out", [4, 4, 8], [[4, 4, 4], [7, 1, 7]]),
        ("in", [1], [[1], [4]]),
        ("in", [7], [[7, 7, 7], [4, 9, 4]]),
        ("in", [4, 9], None),
        ("in", [], None),
    ],
)
def test_a_frontier_gets_the_pairs_of_its_nodes(direction: str, ids: list[int], wanted: list | None) -> None:
    found = ExcludedPairs(PAIRS).of_frontier(direction, np.array(ids, np.int64))
    assert (None if found is None else found.tolist()) == wanted


def test_pairs_are_known_by_both_ends(rng: np.random.Generator) -> None:
    src_ids, dst_ids = rng.integers(0, 12, (2, 300))
    given = rng.integers(0, 10, (2, 30))
    known = set(map(tuple, given.T.tolist()))
    wanted = [pair in known for pair in zip(src_ids.tolist(), dst_ids.tolist(), strict=True)]
    assert ExcludedPairs(given).join(src_ids, dst_ids).tolist() == wanted
    assert any(wanted)


def test_packed_slots_are_unpacked() -> None:
    first, second = np.array([0, 5, (1 << 31) - 1]), np.array([3, 0, (1 << 31) - 1])
    pairs = pairs_of_slots(first, second)
    assert len(set(pairs.tolist())) == 3
    assert [slots.tolist() for slots in slots_of_pairs(pairs)] == [first.tolist(), second.tolist()]
