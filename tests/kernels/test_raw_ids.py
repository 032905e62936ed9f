"""Checks that the kernels of raw ids agree with slow, obvious code."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from hopstream.arrays import RaggedArray, offsets_of
from hopstream.kernels.spill import find_ranges, group_rows, hash_strings

MASK = (1 << 64) - 1


def slow_hash(text: bytes) -> int:
    """FNV-1a, then the finalizer of SplitMix64."""
    value = 0xCBF29CE484222325
    for byte in text:
        value = (value ^ byte) * 0x100000001B3 & MASK
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & MASK
    return value ^ (value >> 31)


def strings_of(rng: np.random.Generator, count: int) -> list[str]:
    """Strings of few letters, so that many begin alike."""
    return ["".join(rng.choice(list("abé\0"), rng.integers(0, 6))) for _ in range(count)]


def test_hashes_of_strings_equal_slow_ones(rng):
    strings = strings_of(rng, 50)
    column = RaggedArray.from_strings(strings)
    hashes = np.empty(50, np.uint64)
    hash_strings(column.values, column.offsets, hashes)
    assert hashes.tolist() == [slow_hash(text.encode()) for text in strings]
    hash_strings(column.values, column.offsets[20:], hashes[:30])
    assert hashes[:30].tolist() == [slow_hash(text.encode()) for text in strings[20:]]


@pytest.mark.parametrize("num_bounds", [0, 1, 7])
def test_strings_are_found_in_ranges_of_bounds(rng, num_bounds):
    strings, bounds = strings_of(rng, 80), sorted({*strings_of(rng, num_bounds)}, key=str.encode)
    column, bound_column = RaggedArray.from_strings(strings), RaggedArray.from_strings(bounds)
    found = np.empty(80, np.uint32)
    find_ranges(column.values, column.offsets, bound_column.values, bound_column.offsets, found)
    assert found.tolist() == [sum(bound.encode() <= text.encode() for bound in bounds) for text in strings]


@pytest.mark.parametrize("num_rows", [0, 1, 100])
def test_rows_are_grouped_in_their_order(rng, num_rows):
    buckets = rng.integers(0, 5, num_rows).astype(np.uint32)
    starts = offsets_of(np.bincount(buckets, minlength=5))
    order = np.empty(num_rows, np.uint32)
    group_rows(buckets, starts[:-1].copy(), order)
    for bucket, (start, stop) in enumerate(pairwise(starts.tolist())):
        assert order[start:stop].tolist() == np.flatnonzero(buckets == bucket).tolist()
