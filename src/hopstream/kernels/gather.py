"""Gathers rows of columns from parts, and moves rows between sets of parts.

[Algorithm] ``gather_rows`` finds the addresses of a block of rows, prefetches the first cache lines of each, and
    copies it by ``memcpy`` some rows later; the hardware prefetches the rest. Rows shorter than a cache line are copied
    as words (8, 4, 2 or 1 bytes, the largest that divides a row), which costs less than a call. For a dataset of one
    part, ids are checked first, by vector instructions. If rows come from several sources, ``locate_rows`` finds the
    addresses of each source's rows, and ``copy_located`` copies all rows in the order of the output. A pass per source
    took twice as long, because each pass moved most of the output's cache lines.
[Cost] The bytes of the rows, read once and written once: 0.6 to 1.1 times the time of ``numpy.take`` from one part.
    Uncached words cost a third less if Linux caches their file in large pages, which saves address translation.
[Not chosen] ``numpy.take``: one part only, and it holds the GIL for small items. Files of edge keys in 32 bits: a
    quarter less time for keys, which is 2 to 4 % of a batch with features, for a second format.

[Algorithm] ``scatter_rows`` copies rows word by word, in the order of the input, to known destinations.
[Cost] Each row is read once and written once.

[Algorithm] ``move_rows`` copies rows as words, in the order of the output.
[Cost] Each item is read once and written once. Rows of one old part ascend in the input, so there is one sequential
    stream of reads per old part.
[Not chosen] Sorting items by destination: it needs a destination per item, where the order of rows is enough.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hopstream.kernels.compiling import inlined, kernel
from hopstream.kernels.memory import array_at, copy_bytes, find_part, prefetch_address


@kernel
def scatter_rows(
    offsets: np.ndarray, starts: np.ndarray, begin: int, end: int, width: int, values: np.ndarray, out: np.ndarray
) -> None:
    """Copy the rows with destinations in a range of elements; skip other rows.

    Args:
        offsets: int64[num_rows + 1], position of each row's first element in ``values``.
        starts: int64[num_rows], destination of each row's first element.
        begin: First element of the range, where a row begins.
        end: One past its last element, where a row ends.
        width: Words per element.
        values: words[offsets[-1] * width], the input.
        out: words[(end - begin) * width], out: the range.
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
    """Copy rows in a given order, one after the other.

    Args:
        order: int64[n], row numbers in output order.
        starts: int64[n], the first item of each row.
        counts: int64[n], the number of items of each row.
        width: Words per item.
        values: words[m], the input.
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


LINES_AHEAD = 8
WORDS_AHEAD = 32
ROWS_AT_ONCE = 1024
LINE_BYTES = 64
WORD_BYTES = 8


def word_dtype(row_bytes: int) -> np.dtype[Any]:
    """Return the widest unsigned integer whose size divides a row; kernels copy rows as such words."""
    return np.dtype(f"uint{8 * next(size for size in (8, 4, 2, 1) if row_bytes % size == 0)}")


@inlined
def _check_rows(ids: np.ndarray, offsets: np.ndarray, num_rows: int) -> None:
    """Raise ``IndexError`` for ids outside the only part; the loop has no exit and is vectorised."""
    highest = np.uint64(0)
    for i in range(len(ids)):
        row = np.uint64(ids[np.uint64(i)] - offsets[0])  # a negative row is a high one
        highest = row if row > highest else highest
    if len(ids) and highest >= np.uint64(num_rows):
        raise IndexError("a row lies outside its part")


@inlined
def _locate(
    ids: np.ndarray, first: int, num_rows: int, offsets: np.ndarray, columns: np.ndarray, width: int, row_bytes: int,
    sources: np.ndarray,
) -> None:  # fmt: skip
    """Write the addresses of ``num_rows`` rows from id ``first`` on; with one part, ids are checked."""
    if len(offsets) == 2:
        for i in range(num_rows):
            sources[np.uint64(i)] = columns[0, 0] + (ids[np.uint64(first + i)] - offsets[0]) * row_bytes
        return
    for i in range(num_rows):
        part = np.uint64(find_part(offsets, ids[np.uint64(first + i)]))
        row = ids[np.uint64(first + i)] - offsets[part]
        if row < 0 or row > columns[part, 1] or (row + 1) * width > columns[part, 1]:  # without overflow
            raise IndexError("a row lies outside its part")
        sources[np.uint64(i)] = columns[part, 0] + row * row_bytes


@kernel
def gather_rows(ids: np.ndarray, offsets: np.ndarray, columns: np.ndarray, out: np.ndarray) -> None:
    """Copy row ``ids[i]`` to ``out[i]``.

    Args:
        ids: int64[n].
        offsets: int64[num_parts + 1], id ranges.
        columns: int64[num_parts, 2], address table of the parts' columns as flat arrays of words.
        out: words[n or more, row words], with contiguous rows.

    Raises:
        IndexError: A row lies outside its part, or shapes do not match. Earlier rows may be written.
    """
    num_ids, width = len(ids), out.shape[1]
    if width == 0:
        return
    row_bytes = width * out.itemsize
    out_address, out_bytes = np.int64(out.ctypes.data), np.int64(out.strides[0])
    if num_ids > len(out):
        raise IndexError("the output has fewer rows than there are ids")
    if width > 1 and out.strides[1] != out.itemsize:
        raise IndexError("the rows of the output are not contiguous")
    if len(offsets) == 2:
        _check_rows(ids, offsets, columns[0, 1] // width)
    sources = np.empty(ROWS_AT_ONCE + WORDS_AHEAD, np.int64)  # any address behind the last row may be prefetched
    for first in range(0, num_ids, ROWS_AT_ONCE):
        num_rows = min(num_ids - first, ROWS_AT_ONCE)
        _locate(ids, first, num_rows, offsets, columns, width, row_bytes, sources)
        for i in range(min(num_rows, LINES_AHEAD if row_bytes >= LINE_BYTES else WORDS_AHEAD)):
            prefetch_address(sources[np.uint64(i)])
        if row_bytes >= LINE_BYTES:
            for i in range(num_rows):
                prefetch_address(sources[np.uint64(i + LINES_AHEAD)])
                prefetch_address(sources[np.uint64(i + LINES_AHEAD)] + LINE_BYTES)
                copy_bytes(out_address + (first + i) * out_bytes, sources[np.uint64(i)], row_bytes)
        elif width == 1:
            for i in range(num_rows):
                prefetch_address(sources[np.uint64(i + WORDS_AHEAD)])
                out[np.uint64(first + i), 0] = array_at(sources[np.uint64(i)], 1, out.dtype)[0]
        else:
            for i in range(num_rows):
                prefetch_address(sources[np.uint64(i + WORDS_AHEAD)])
                words = array_at(sources[np.uint64(i)], width, out.dtype)
                for word in range(width):
                    out[np.uint64(first + i), np.uint64(word)] = words[np.uint64(word)]


@kernel
def gather_numbers(
    ids: np.ndarray, offsets: np.ndarray, columns: np.ndarray, item: np.ndarray, out: np.ndarray
) -> None:
    """Copy number ``ids[i]`` of a column to ``out[i]``, which may have a wider dtype.

    Args:
        ids: int64[n].
        offsets: int64[num_parts + 1], id ranges.
        columns: int64[num_parts, 2], address table of the parts' columns.
        item: Array with the dtype of the columns.
        out: integer[n or more].

    Raises:
        IndexError: A row lies outside its part, or shapes do not match. Earlier numbers may be written.
    """
    num_ids = len(ids)
    if num_ids > len(out):
        raise IndexError("the output has fewer rows than there are ids")
    if len(offsets) == 2:
        _check_rows(ids, offsets, columns[0, 1])
    sources = np.empty(ROWS_AT_ONCE + WORDS_AHEAD, np.int64)  # any address behind the last row may be prefetched
    for first in range(0, num_ids, ROWS_AT_ONCE):
        num_rows = min(num_ids - first, ROWS_AT_ONCE)
        _locate(ids, first, num_rows, offsets, columns, 1, item.itemsize, sources)
        for i in range(min(num_rows, WORDS_AHEAD)):
            prefetch_address(sources[np.uint64(i)])
        for i in range(num_rows):
            prefetch_address(sources[np.uint64(i + WORDS_AHEAD)])
            out[np.uint64(first + i)] = array_at(sources[np.uint64(i)], 1, item.dtype)[0]


@kernel
def locate_rows(
    ids: np.ndarray, offsets: np.ndarray, columns: np.ndarray, width: int, word_bytes: int,
    positions: np.ndarray, addresses: np.ndarray,
) -> None:  # fmt: skip
    """Find the address of row ``ids[i]``, and write it to ``addresses[positions[i]]``.

    Args:
        ids: int64[n].
        offsets: int64[num_parts + 1], id ranges.
        columns: int64[num_parts, 2], address table of the parts' columns as flat arrays of words.
        width: Words per row.
        word_bytes: Bytes per word.
        positions: int64[n].
        addresses: int64[m], out.

    Raises:
        IndexError: A row lies outside its part, or a position outside ``addresses``.
    """
    for i in range(len(ids)):
        part = find_part(offsets, ids[i])
        row, target = ids[i] - offsets[part], positions[i]
        if row < 0 or row > columns[part, 1] or (row + 1) * width > columns[part, 1]:  # without overflow
            raise IndexError("a row lies outside its part")
        if target < 0 or target >= len(addresses):
            raise IndexError("a position lies outside the addresses")
        addresses[target] = columns[part, 0] + row * width * word_bytes


@kernel
def copy_located(addresses: np.ndarray, sizes: np.ndarray, targets: np.ndarray, out: np.ndarray) -> None:
    """Copy the rows at ``addresses[:, i]`` to row ``targets[i]`` of each column's destination.

    Args:
        addresses: int64[num_columns, n]; 0 for rows to leave out.
        sizes: int64[num_columns], bytes of a row.
        targets: int64[n]; or int64[0] for rows 0 to n - 1.
        out: int64[num_columns, 3]: address, bytes from one row to the next, and number of rows of the destination.

    Raises:
        IndexError: A target lies outside its column, or shapes do not match. Earlier rows may be written.
    """
    num_columns, num_rows = addresses.shape
    if len(sizes) != num_columns or len(out) != num_columns or (len(targets) and len(targets) != num_rows):
        raise IndexError("the numbers of columns or of rows do not match")
    for i in range(num_rows):
        ahead = np.uint64(min(i + LINES_AHEAD, num_rows - 1))
        target = targets[np.uint64(i)] if len(targets) else np.int64(i)
        for column in range(num_columns):
            prefetch_address(addresses[column, ahead])
            if sizes[column] > LINE_BYTES:
                prefetch_address(addresses[column, ahead] + LINE_BYTES)
            source = addresses[column, np.uint64(i)]
            if source == 0:
                continue
            if target < 0 or target >= out[column, 2]:
                raise IndexError("a target lies outside its column")
            place = out[column, 0] + target * out[column, 1]
            if sizes[column] == WORD_BYTES:
                copy_bytes(place, source, WORD_BYTES)  # a constant size: no call
            else:
                copy_bytes(place, source, sizes[column])


@kernel
def gather_ranges(
    ids: np.ndarray, offsets: np.ndarray, row_offsets: np.ndarray, values: np.ndarray, width: int,
    parts: np.ndarray, starts: np.ndarray, lengths: np.ndarray,
) -> int:  # fmt: skip
    """Find the part and the range of each ragged row.

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
        The sum of ``lengths``; or ``-1 - i`` if row ``ids[i]`` lies outside its part's values, as in a damaged file.
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
    """Copy the elements of ragged rows one after the other, by the ranges of ``gather_ranges``.

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
