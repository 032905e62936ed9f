"""Checks that ids get slots in order of first occurrence, whatever the table's size and history."""

from __future__ import annotations

import numpy as np
import pytest

from hopstream.kernels.relabel import SlotTable, assign_slots, look_up_slots, repeat_slots
from tests import naive


def _assign(ids: np.ndarray, table: np.ndarray, generation: int, node_ids: np.ndarray) -> tuple[list[int], list[int]]:
    slots = np.empty(len(ids), np.int64)
    shift = np.uint64(64 - (len(table).bit_length() - 1))
    done, num_nodes = assign_slots(ids, 0, SlotTable(table, shift, generation, node_ids, 0, slots))
    assert done == len(ids)
    return slots.tolist(), node_ids[:num_nodes].tolist()


@pytest.mark.parametrize("dtype", [np.uint32, np.int64])
@pytest.mark.parametrize("num_distinct", [1, 7, 100])
def test_slots_equal_the_naive_reference(rng: np.random.Generator, dtype: type, num_distinct: int) -> None:
    table, node_ids = np.zeros((512, 2), np.int64), np.empty(128, np.int64)
    for generation in range(1, 6):
        pool = rng.choice(1 << 32, num_distinct, replace=False)
        ids = rng.choice(pool, 500).astype(dtype)
        assert _assign(ids, table, generation, node_ids) == naive.assign_slots(ids.tolist())


def test_colliding_ids_get_separate_slots() -> None:
    """Ids whose hashes share their upper bits probe past each other, around the table's end as well."""
    table, node_ids = np.zeros((32, 2), np.int64), np.empty(8, np.int64)
    inverse = pow(0x9E3779B97F4A7C15, -1, 1 << 64)
    last = [(((31 << 59) + k) * inverse) % (1 << 64) for k in range(8)]
    ids = np.array(last, np.uint64).view(np.int64)
    slots, found = _assign(np.concatenate([ids, ids[::-1]]), table, 1, node_ids)
    assert slots == [*range(8), *reversed(range(8))]
    assert found == ids.tolist()


def test_a_full_table_returns_where_it_stopped() -> None:
    table, node_ids = np.zeros((32, 2), np.int64), np.empty(8, np.int64)
    slots = np.full(12, -1, np.int64)
    done, num_nodes = assign_slots(np.arange(12), 0, SlotTable(table, np.uint64(59), 1, node_ids, 0, slots))
    assert (done, num_nodes) == (8, 8)
    assert slots.tolist() == [*range(8), -1, -1, -1, -1]


def test_slots_are_repeated_by_count() -> None:
    out = np.full(8, -1, np.int64)
    assert repeat_slots(5, np.array([2, 0, 3], np.int32), out, 1) == 6
    assert out.tolist() == [-1, 5, 5, 7, 7, 7, -1, -1]


@pytest.mark.parametrize("dtype", [np.uint32, np.int64])
def test_slots_are_looked_up_without_being_assigned(rng: np.random.Generator, dtype: type) -> None:
    """Ids of an earlier generation are unknown, and a lookup changes nothing."""
    table, node_ids = np.zeros((512, 2), np.int64), np.empty(128, np.int64)
    shift = np.uint64(64 - 9)
    for generation in (1, 2):
        known = rng.choice(1 << 31, 100, replace=False)
        slots, _ = _assign(known.astype(dtype), table, generation, node_ids)
        before = table.copy()
        asked = rng.permutation(np.concatenate([known, rng.choice(1 << 31, 100, replace=False) + (1 << 31)]))
        found = np.empty(200, np.int64)
        look_up_slots(asked.astype(dtype), table, shift, generation, found)
        slot_of = dict(zip(known.tolist(), slots, strict=True))
        assert found.tolist() == [slot_of.get(identifier, -1) for identifier in asked.tolist()]
        assert np.array_equal(table, before)
