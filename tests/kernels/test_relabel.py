"""Do ids get slots in order of first occurrence, whatever the table's size and history?"""

from __future__ import annotations

import numpy as np
import pytest

from hopstream.kernels.relabel import assign_slots, repeat_slots
from tests import naive


def _assign(ids: np.ndarray, table: np.ndarray, generation: int, node_ids: np.ndarray) -> tuple[list[int], list[int]]:
    slots = np.empty(len(ids), np.int64)
    shift = np.uint64(64 - (len(table).bit_length() - 1))
    done, num_nodes = assign_slots(ids, 0, table, shift, generation, node_ids, 0, slots)
    assert done == len(ids)
    return slots.tolist(), node_ids[:num_nodes].tolist()


@pytest.mark.parametrize("dtype", [np.uint32, np.int64])
@pytest.mark.parametrize("num_distinct", [1, 7, 100])
def test_slots_equal_the_naive_reference(rng: np.random.Generator, dtype: type, num_distinct: int) -> None:
    table, node_ids = np.zeros((256, 2), np.int64), np.empty(128, np.int64)
    for generation in range(1, 6):
        pool = rng.choice(1 << 32, num_distinct, replace=False)
        ids = rng.choice(pool, 500).astype(dtype)
        assert _assign(ids, table, generation, node_ids) == naive.assign_slots(ids.tolist())


def test_colliding_ids_are_told_apart() -> None:
    """Ids whose hashes share their upper bits probe past each other, around the table's end as well."""
    table, node_ids = np.zeros((16, 2), np.int64), np.empty(8, np.int64)
    inverse = pow(0x9E3779B97F4A7C15, -1, 1 << 64)
    last = [(((15 << 60) + k) * inverse) % (1 << 64) for k in range(8)]
    ids = np.array(last, np.uint64).view(np.int64)
    slots, found = _assign(np.concatenate([ids, ids[::-1]]), table, 1, node_ids)
    assert slots == [*range(8), *reversed(range(8))]
    assert found == ids.tolist()


def test_a_half_full_table_says_where_it_stopped() -> None:
    table, node_ids = np.zeros((16, 2), np.int64), np.empty(8, np.int64)
    slots = np.full(12, -1, np.int64)
    done, num_nodes = assign_slots(np.arange(12), 0, table, np.uint64(60), 1, node_ids, 0, slots)
    assert (done, num_nodes) == (8, 8)
    assert slots.tolist() == [*range(8), -1, -1, -1, -1]


def test_repeat_slots() -> None:
    out = np.full(8, -1, np.int64)
    assert repeat_slots(5, np.array([2, 0, 3], np.int32), out, 1) == 6
    assert out.tolist() == [-1, 5, 5, 7, 7, 7, -1, -1]
