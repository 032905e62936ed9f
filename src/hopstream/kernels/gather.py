"""Collects rows of columns from the parts that hold them, and moves rows between sets of parts.

[Algorithm] Rows are copied as words (8, 4, 2 or 1 bytes, the largest that divides a row), so one kernel serves every
    dtype and shape. Every cache line of a row is prefetched ``ROWS_AHEAD`` rows ahead: 8 are
    enough for rows of 400 bytes, but keys of 8 bytes took 1.6 times as long with 8 as with 32.
[Cost] The bytes of the rows, read once and written once; near the machine's copy bandwidth for rows of 400 bytes.
[Not chosen] ``numpy.take``: no prefetch, one part only, and it holds the interpreter lock for small items.

[Algorithm] Rows are copied word by word, in the order in which they were read, to places that are known ahead.
[Cost] Each row is read once and written once, wherever it goes.

[Algorithm] Rows are copied as words, in the order in which they are written, from wherever they lie in what was read.
[Cost] Each item is read once and written once. Rows of one part ascend in what was read, so reads are as many
    sequential streams as there are old parts.
[Not chosen] Sorting items by their new place: it needs a place for each item, and the order of rows says the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hopstream.kernels.compiling import kernel
from hopstream.kernels.memory import array_at, find_part, prefetch_address


@kernel
def scatter_rows(
    offsets: np.ndarray, starts: np.ndarray, begin: int, end: int, width: int, values: np.ndarray, out: np.ndarray
) -> None:
    """Copy the rows that belong into a stretch of elements; others are passed over.

    Args:
        offsets: int64[num_rows + 1], where the elements of each row begin in ``values``.
        starts: int64[num_rows], where they belong.
        begin: The first element of the stretch, where a row begins.
        end: One past its last, where a row ends.
        width: Words per element.
        values: words[offsets[-1] * width], what was read.
        out: words[(end - begin) * width], out: the stretch.
    """
    for i in range(len(starts)):
        if starts[i] < begin or starts[i] >= end:
            continue
        first = np.uint64(offsets[i] * width)
        place = np.uint64((starts[i] - begin) * width)
        for word in range(np.uint64((offsets[i + 1] - offsets[i]) * width)):
            out[place + np.uint64(word)] = values[first + np.uint64(word)]


@kernel
def move_rows(
    order: np.ndarray, starts: np.ndarray, counts: np.ndarray, width: int, values: np.ndarray, out: np.ndarray
) -> None:
    """Copy rows one after the other.

    Args:
        order: int64[n], which row comes when.
        starts: int64[n], the first item of each row.
        counts: int64[n], the items of each row.
        width: Words per item.
        values: words[m], what was read.
        out: words[sum(counts) * width], out.
    """
    place = np.uint64(0)
    for i in range(len(order)):
        row = np.uint64(order[i])
        first = np.uint64(starts[row] * width)
        num_words = np.uint64(counts[row] * width)
        for word in range(num_words):
            out[place + np.uint64(word)] = values[first + np.uint64(word)]
        place += num_words


@kernel
def count_parts(ids: np.ndarray, offsets: np.ndarray, counts: np.ndarray) -> None:
    """Count the ids of each part.

    Args:
        ids: integer[n], in range.
        offsets: int64[num_parts + 1], the ids of each part.
        counts: int64[num_parts], added to.
    """
    for i in range(len(ids)):
        counts[np.uint64(find_part(offsets, np.int64(ids[i])))] += 1


ROWS_AHEAD = 32
LINE_BYTES = 64


def word_dtype(row_bytes: int) -> np.dtype[Any]:
    """The widest unsigned integer whose size divides a row, so that kernels copy rows of any dtype."""
    return np.dtype(f"uint{8 * next(size for size in (8, 4, 2, 1) if row_bytes % size == 0)}")


@kernel
def gather_rows(
    ids: np.ndarray, offsets: np.ndarray, columns: np.ndarray, out: np.ndarray, positions: np.ndarray
) -> None:
    """Copy row ``ids[i]`` to ``out[positions[i]]``, or to ``out[i]`` where ``positions`` is empty.

    Args:
        ids: int64[n].
        offsets: int64[num_parts + 1], id ranges.
        columns: int64[num_parts, 2], address table of the parts' columns as flat arrays of words.
        out: words[m, row words].
        positions: int64[n] or int64[0].
    """
    num_ids = len(ids)
    width = out.shape[1]
    row_bytes = width * out.itemsize
    has_positions = len(positions) > 0
    for i in range(num_ids + ROWS_AHEAD):
        if i < num_ids:
            part = find_part(offsets, ids[i])
            address = columns[part, 0] + (ids[i] - offsets[part]) * row_bytes
            for line in range(0, row_bytes, LINE_BYTES):
                prefetch_address(address + line)
        j = i - ROWS_AHEAD
        if j >= 0:
            part = find_part(offsets, ids[j])
            column = array_at(columns[part, 0], columns[part, 1], out.dtype)
            first = (ids[j] - offsets[part]) * width
            target = j
            if has_positions:
                target = positions[j]
            row = out[np.uint64(target)]
            for word in range(width):
                row[np.uint64(word)] = column[np.uint64(first + word)]


@kernel
def gather_ranges(
    ids: np.ndarray, offsets: np.ndarray, row_offsets: np.ndarray, values: np.ndarray, width: int,
    parts: np.ndarray, starts: np.ndarray, lengths: np.ndarray,
) -> int:  # fmt: skip
    """Find where each ragged row lies.

    Args:
        ids: int64[n].
        offsets: int64[num_parts + 1], id ranges.
        row_offsets: int64[num_parts, 2], address table of the parts' ragged offsets.
        values: int64[num_parts, 2], address table of the parts' values; only the lengths, in words, are used.
        width: Words per element.
        parts: int32[n], out.
        starts: int64[n], out: first element in the part's values.
        lengths: int64[n], out: number of elements.

    Returns:
        The sum of ``lengths``; or ``-1 - i`` where row ``ids[i]`` lies outside its part's values, as it does in a
        damaged file.
    """
    total = 0
    for i in range(len(ids)):
        part = find_part(offsets, ids[i])
        part_offsets = array_at(row_offsets[part, 0], row_offsets[part, 1], np.int64)
        row = np.uint64(ids[i] - offsets[part])
        parts[i] = part
        starts[i] = part_offsets[row]
        lengths[i] = part_offsets[row + np.uint64(1)] - part_offsets[row]
        if starts[i] < 0 or lengths[i] < 0 or (starts[i] + lengths[i]) * width > values[part, 1]:
            return -1 - i
        total += lengths[i]
    return total


@kernel
def gather_elements(
    values: np.ndarray, parts: np.ndarray, starts: np.ndarray, lengths: np.ndarray, out: np.ndarray
) -> None:
    """Copy the elements of ragged rows one after the other; the ranges come from ``gather_ranges``.

    Args:
        values: int64[num_parts, 2], address table of the parts' values as flat arrays of words.
        parts: int32[n].
        starts: int64[n], in elements.
        lengths: int64[n], in elements.
        out: words[sum(lengths), element words].
    """
    width = out.shape[1]
    written = 0
    for i in range(len(parts)):
        part = np.int64(parts[i])
        part_values = array_at(values[part, 0], values[part, 1], out.dtype)
        for element in range(lengths[i]):
            first = (starts[i] + element) * width
            for word in range(width):
                out[np.uint64(written), np.uint64(word)] = part_values[np.uint64(first + word)]
            written += 1
