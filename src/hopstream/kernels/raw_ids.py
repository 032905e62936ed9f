"""Deals raw ids out to buckets, and brings rows together by bucket.

[Algorithm] FNV-1a over the bytes of a string, and SplitMix64's finalizer, because FNV's high bits are poor in short
    strings. Ranges of strings are found by binary search among the strings that separate them. Rows are grouped by a
    stable counting sort.
    Source: Fowler, Noll, Vo, "The FNV non-cryptographic hash algorithm", draft-eastlake-fnv.
[Cost] A multiplication per byte: 45 million strings of 12 bytes a second.
[Not chosen] Eight bytes at a time: tails need a loop of their own, and reading the file takes twenty times as long.
"""

from __future__ import annotations

import numpy as np

from hopstream.kernels.compiling import kernel
from hopstream.kernels.hashing import mix64

FNV_START = np.uint64(0xCBF29CE484222325)
FNV_PRIME = np.uint64(0x100000001B3)


@kernel
def hash_strings(values: np.ndarray, offsets: np.ndarray, out: np.ndarray) -> None:
    """Hash strings.

    Args:
        values: uint8[num_bytes], their bytes.
        offsets: int64[n + 1], string ``i`` has the bytes ``values[offsets[i]:offsets[i + 1]]``.
        out: uint64[n], out.
    """
    for i in range(len(out)):
        value = FNV_START
        for place in range(offsets[i], offsets[i + 1]):
            value = (value ^ np.uint64(values[np.uint64(place)])) * FNV_PRIME
        out[i] = mix64(value)


@kernel
def find_ranges(
    values: np.ndarray, offsets: np.ndarray, bound_values: np.ndarray, bound_offsets: np.ndarray, out: np.ndarray
) -> None:
    """Write how many bounds are not above each string, compared byte by byte.

    Args:
        values: uint8[num_bytes], bytes of the strings.
        offsets: int64[n + 1].
        bound_values: uint8[num_bound_bytes], bytes of the bounds, which ascend.
        bound_offsets: int64[m + 1].
        out: uint32[n], out.
    """
    for i in range(len(out)):
        low, high = 0, len(bound_offsets) - 1
        start, length = offsets[i], offsets[i + 1] - offsets[i]
        while low < high:
            middle = (low + high) // 2
            first, other_length = bound_offsets[middle], bound_offsets[middle + 1] - bound_offsets[middle]
            shorter = min(length, other_length)
            place = 0
            while place < shorter and values[start + place] == bound_values[first + place]:
                place += 1
            is_above = other_length > length
            if place < shorter:
                is_above = bound_values[first + place] > values[start + place]
            if is_above:
                high = middle
            else:
                low = middle + 1
        out[i] = low


@kernel
def group_rows(buckets: np.ndarray, next_places: np.ndarray, order: np.ndarray) -> None:
    """Write the rows of each bucket, one bucket after the other, in their own order inside a bucket.

    Args:
        buckets: uint32[n], the bucket of each row.
        next_places: int64[num_buckets], the first place of each bucket; overwritten.
        order: uint32[n], out.
    """
    for i in range(len(buckets)):
        bucket = np.uint64(buckets[i])
        order[np.uint64(next_places[bucket])] = i
        next_places[bucket] += 1
