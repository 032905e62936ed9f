"""Checks that slots and edges survive growth and resets."""

from __future__ import annotations

import numpy as np

from hopstream.sample.slots import FIRST_CAPACITY, EdgeBuffer, SlotMap, TreeSlotMap
from hopstream.store.contract import TREE_SHIFT


def test_a_map_grows_with_its_ids() -> None:
    slot_map = SlotMap()
    for num_nodes in (10, 3 * FIRST_CAPACITY, 5):
        slot_map.reset()
        ids = np.arange(num_nodes)[::-1] * 3
        slot_map.assign(ids, np.empty(num_nodes, np.int64))
        assert slot_map.ids().tolist() == ids.tolist()
        assert slot_map.find(np.array([0, 1, 3])).tolist() == [num_nodes - 1, -1, num_nodes - 2]
        assert slot_map.trees() is None


def test_ids_are_numbered_by_first_occurrence() -> None:
    slot_map = SlotMap()
    for _ in range(2):
        distinct, slots = slot_map.number(np.array([7, 3, 7, 0, 3, 9]))
        assert (distinct.tolist(), slots.tolist()) == ([7, 3, 0, 9], [0, 1, 0, 2, 1, 3])
    assert [array.tolist() for array in slot_map.number(np.empty(0, np.int64))] == [[], []]
    assert distinct.tolist() == [7, 3, 0, 9], "what was given out stays"


def test_a_map_of_trees_returns_ids_and_trees() -> None:
    """Also after growth between two look-ups, and after a reset."""
    slot_map = TreeSlotMap()
    for num_nodes in (10, 3 * FIRST_CAPACITY, 5):
        slot_map.reset()
        ids, trees = np.arange(num_nodes) % 7, np.arange(num_nodes) // 7
        for part in (slice(0, 4), slice(4, num_nodes)):
            pairs = (trees[part] << TREE_SHIFT) | ids[part]
            slot_map.assign(pairs, np.empty(len(pairs), np.int64))
            assert slot_map.ids().tolist() == ids[: part.stop].tolist()
            assert slot_map.trees().tolist() == trees[: part.stop].tolist()


def test_edges_are_kept_when_the_buffer_grows() -> None:
    buffer = EdgeBuffer()
    buffer.append(np.array([1, 2]), np.array([3, 4]), np.array([5, 6]))
    buffer.append(np.arange(1000), np.arange(1000) + 1, np.arange(1000) + 2)
    buffer.append(np.array([9]), np.array([8]), None)
    assert buffer.num_edges == 1003
    assert buffer.slots[:, :3].tolist() == [[1, 2, 0], [3, 4, 1]]
    assert buffer.slots[:, 1002].tolist() == [9, 8]
    assert buffer.edge_ids[:3].tolist() == [5, 6, 2]
