"""Reads stretches of rows of Parquet files of strings, or of lists of any length, and checks whether lists are of one.

[Memory] A batch holds as many rows as take ``BATCH_BYTES`` on the average of their row group, and never more than
    ``MAX_BATCH_ROWS``: only long rows that lie side by side take more. A footer does not tell how long the strings are
    that a file has in dictionaries, so these are read as dictionaries, and put together a block at a time. Where the
    file gave its dictionary up, which Arrow would collect for a whole row group, strings are read as they are.
[Cost] Parquet has no lengths apart from values, so values are decoded to see whether lists are of one length: 0.4 s for
    400 MB. A footer counts the values of a row group, and an empty list as one, so lists of other lengths may even out.
    All lists of a feature are looked at up to ``CHECK_BYTES``. Of larger features, that many bytes are, spread over the
    row groups, and in full those row groups whose statistics count empty lists or nulls; the rest is checked when it is
    read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa

from hopstream.arrays import Array, IntArray, RaggedArray, offsets_of
from hopstream.errors import SchemaError
from hopstream.ingest.arrow_checks import is_list_type
from hopstream.ingest.chunked.parquet import BATCH_BYTES, NO_NULLS, ParquetColumn
from hopstream.ingest.chunked.sources import RaggedSource, cut_rows

MAX_BATCH_ROWS = 1 << 12
CHECK_BYTES = 512 << 20
MAX_GROUPS = 1 << 10
"""The most row groups of a feature that are looked at, where not all are; each costs some milliseconds."""
MAX_DICTIONARY_ROWS, MAX_DICTIONARY_BYTES = 1 << 8, 2 << 20
"""Of a batch that is read as a dictionary, and of the dictionary beyond which rows are read as they are. Arrow keeps
more than it counts while it collects one: 110 MB of strings took 271 MB with batches of 8 MiB, and 119 with these."""


class ParquetRagged(RaggedSource):
    """A feature of strings, or of lists of any length, in Parquet files."""

    def __init__(self, names: Sequence[str], files: Sequence[ParquetColumn], offsets: IntArray) -> None:
        """Compare the files.

        Args:
            names: What the metadata calls the files.
            files: At least one.
            offsets: int64[num_files + 1], the first row of each.

        Raises:
            SchemaError: One is of another dtype or shape than those before.
        """
        self._files, self._offsets, self.num_rows = files, offsets, int(offsets[-1])
        which = next((i for i, file in enumerate(files) if file.is_ragged), 0)
        first = files[which]
        self.dtype, self.shape, self.is_string = first.dtype, first.element_shape or (), first.is_string
        for file in files:
            if (file.dtype, file.element_shape, file.is_string) != (self.dtype, self.shape, self.is_string):
                got = f"{file.shown} is {_shown(file)}; {names[which]} is {_shown(first)}"
                raise SchemaError(f"{got}: write all files of a feature alike")
        self.num_elements = sum(_num_elements(file) for file in files)
        groups = [first + file.file.group_offsets for first, file in zip(offsets[:-1], files, strict=True)]
        self._starts = np.unique(np.concatenate(groups))

    def _next_start(self, row: int) -> int:
        """Rows of a row group are decoded from its first one on."""
        place = int(np.searchsorted(self._starts, row))
        return int(self._starts[place]) if place < len(self._starts) else self.num_rows

    def pieces(self, start: int, stop: int) -> Iterator[RaggedArray]:
        """As ``RaggedSource.pieces``."""
        file, row = int(np.searchsorted(self._offsets, start, side="right")) - 1, start
        while row < stop:
            last = min(stop, int(self._offsets[file + 1]))
            if row < last:
                first = int(self._offsets[file])
                for file_row, array in _arrays(self._files[file], row - first, last - first):
                    yield from self._rows(self._files[file], file_row, array)
            row, file = last, file + 1

    def _rows(self, file: ParquetColumn, row: int, array: pa.Array) -> Iterator[RaggedArray]:
        """The rows of an Arrow array; ``row`` is the first one's in the file."""
        _check_values(file, row, array)
        if isinstance(array, pa.DictionaryArray):
            _check_text(file, row, array.dictionary)
            words, codes = _text_rows(array.dictionary, self.is_string), array.indices.to_numpy().astype(np.int64)
            offsets = offsets_of(np.diff(words.offsets)[codes])
            for first, last in cut_rows(offsets, self.element_bytes):
                yield words.take(codes[first:last])
        elif file.is_list:
            yield self._lists(file, row, array)
        else:
            _check_text(file, row, array)
            yield _text_rows(array, self.is_string)

    def _lists(self, file: ParquetColumn, row: int, array: pa.Array) -> RaggedArray:
        offsets = array.offsets.to_numpy().astype(np.int64)
        offsets, elements = offsets - offsets[0], array.flatten()
        count = 1
        while is_list_type(elements.type):
            _check_elements(file, row, offsets, elements, count)
            count *= elements.type.list_size
            elements = elements.flatten()
        _check_elements(file, row, offsets, elements, count)
        values = cast(Array, elements.to_numpy(zero_copy_only=False))
        return RaggedArray(values.reshape(int(offsets[-1]), *self.shape), offsets)


def _arrays(column: ParquetColumn, start: int, stop: int) -> Iterator[tuple[int, pa.Array]]:
    """Rows of a file by batches, each with its first row."""
    file, row = column.file, start
    while row < stop:
        group = file.group_of(row)
        end = min(stop, int(file.group_offsets[group + 1]))
        is_dictionary = not column.is_list and all(record.has_dictionary_page for _, record in file.records([group]))
        batch_rows = max(
            1, min(MAX_BATCH_ROWS, BATCH_BYTES * _group_rows(column, group) // _group_bytes(column, group))
        )
        first_rows = min(batch_rows, MAX_DICTIONARY_ROWS) if is_dictionary else batch_rows
        # Rows before the first are decoded too, and what Arrow collects of them counts.
        begin = int(file.group_offsets[group]) if is_dictionary else row
        for first, (array,) in file.batches(begin, end, first_rows, as_dictionaries=is_dictionary):
            last = first + len(array)
            if last > row:
                yield row, array.slice(max(0, row - first))
                row = last
            if isinstance(array, pa.DictionaryArray) and array.dictionary.nbytes > MAX_DICTIONARY_BYTES:
                break
        for first, (array,) in file.batches(row, end, batch_rows):
            yield first, array
        row = end


def _group_rows(column: ParquetColumn, group: int) -> int:
    return int(column.file.group_offsets[group + 1] - column.file.group_offsets[group])


def _group_bytes(column: ParquetColumn, group: int) -> int:
    """Bytes of the elements of a row group, as the footer tells them; strings in dictionaries may take more."""
    if column.is_list:
        return max(1, int(column.file.list_sizes[0][group]) * column.dtype.itemsize)
    return column.file.num_bytes(group)


def _num_elements(column: ParquetColumn) -> int:
    """Elements of all rows, about, as the footer tells them."""
    num_bytes = sum(_group_bytes(column, group) for group in range(column.file.num_groups))
    item = column.dtype.itemsize * int(np.prod(column.element_shape or (), dtype=np.int64))
    return num_bytes // max(1, item)


def _shown(column: ParquetColumn) -> str:
    """What a file's rows are, as messages say it."""
    if column.is_string:
        return "of strings"
    if column.element_shape is None:
        return f"{column.dtype.name} with rows of shape {column.shape}"
    of = f" of elements of shape {column.element_shape}" if column.element_shape else ""
    return f"{column.dtype.name} with rows of any length{of}"


def _check_values(column: ParquetColumn, row: int, array: pa.Array) -> None:
    if array.null_count:
        bad_row = row + int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))
        raise SchemaError(f"{column.file.place(bad_row)} has no value: {NO_NULLS}")


def _check_elements(column: ParquetColumn, row: int, offsets: IntArray, elements: pa.Array, count: int) -> None:
    """Refuse elements, or parts of which an element has ``count``, that are null."""
    if elements.null_count:
        place = int(np.argmax(elements.is_null().to_numpy(zero_copy_only=False))) // max(1, count)
        bad_row = row + int(np.searchsorted(offsets, place, side="right")) - 1
        raise SchemaError(f"{column.file.place(bad_row)} has no value inside its list: {NO_NULLS}")


def _check_text(column: ParquetColumn, row: int, array: pa.Array) -> None:
    """Refuse strings that are no UTF-8."""
    if not column.is_string:
        return
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise SchemaError(f"{column.file.place(row)}, or one after it, is no UTF-8 ({error})") from error


def _text_rows(array: pa.Array, is_string: bool) -> RaggedArray:
    """Strings, or bytes, without nulls as rows."""
    wide = array.cast(pa.large_string() if is_string else pa.large_binary())
    if not len(wide):
        return RaggedArray(np.empty(0, np.uint8), np.zeros(1, np.int64), is_string)
    _, offsets_buffer, text = cast(Any, wide.buffers())
    offsets = np.frombuffer(offsets_buffer, np.int64)[wide.offset : wide.offset + len(wide) + 1]
    values = np.frombuffer(text, np.uint8) if text is not None else np.empty(0, np.uint8)
    return RaggedArray(values[offsets[0] : offsets[-1]], offsets - offsets[0], is_string)


def are_of_one_length(files: Sequence[ParquetColumn]) -> bool:
    """Whether lists have the length that the footer of their file allows; null lists have any.

    Args:
        files: Files of one feature; of those whose lists may be of any length, rows have a shape.

    Raises:
        FormatError: A file is damaged.
    """
    open_files = [file for file in files if file.element_shape is not None and file.num_rows]
    return all(_has_length(file, start, stop) for file, start, stop in _stretches(open_files))


def _stretches(files: Sequence[ParquetColumn]) -> Iterator[tuple[ParquetColumn, int, int]]:
    """First row and end of what is looked at in each file."""
    groups = [(file, group) for file in files for group in range(file.file.num_groups)]
    is_small = sum(file.num_rows * _row_bytes(file) for file in files) <= CHECK_BYTES
    step = -(-len(groups) // MAX_GROUPS)
    for place, (file, group) in enumerate(groups):
        start, stop = map(int, file.file.group_offsets[group : group + 2])
        if is_small or _has_empty(file, group):
            yield file, start, stop
        elif place % step == 0:
            num_rows = CHECK_BYTES // min(len(groups), MAX_GROUPS) // _row_bytes(file)
            yield file, start, min(stop, start + max(1, num_rows))


def _has_empty(file: ParquetColumn, group: int) -> bool:
    """Whether statistics tell that a row group has empty lists or nulls, which they count alike."""
    return bool(file.file.list_sizes[1][group])


def _has_length(file: ParquetColumn, start: int, stop: int) -> bool:
    wanted = (file.shape or (0,))[0]
    batch_rows = max(1, min(MAX_BATCH_ROWS, BATCH_BYTES // _row_bytes(file)))
    for _, (lists,) in file.file.batches(start, stop, batch_rows):
        lengths = np.diff(lists.offsets.to_numpy())
        if lists.null_count:
            lengths = lengths[lists.is_valid().to_numpy(zero_copy_only=False)]
        if (lengths != wanted).any():
            return False
    return True


def _row_bytes(file: ParquetColumn) -> int:
    return max(1, math.prod(file.shape or ()) * file.dtype.itemsize)
