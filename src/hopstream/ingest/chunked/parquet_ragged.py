"""Reads ranges of ragged rows from Parquet files, and checks whether lists have one length.

[Memory] The size of a batch is ``BATCH_BYTES`` at the average row size of its row group, and at most
    ``MAX_BATCH_ROWS`` rows. Only adjacent rows far above the average make a batch larger. The footer does not give the
    length of dictionary-encoded strings, so these are read as dictionaries and expanded block by block. A large
    dictionary would grow over the whole row group, so beyond ``MAX_DICTIONARY_BYTES`` strings are read expanded.
[Cost] Parquet does not store lengths apart from values, so checking whether lists have one length means decoding the
    values: 0.4 s for 400 MB. The footer is not enough: it only has the number of values of a row group, in which an
    empty list counts as one. For features up to ``CHECK_BYTES``, all lists are checked. For larger ones, a sample of
    ``CHECK_BYTES`` spread over the row groups is checked, and all of a row group whose statistics count empty lists or
    nulls. The other lists are checked when they are read.
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
"""Most row groups in the sample of a large feature; each takes some milliseconds."""
MAX_DICTIONARY_ROWS, MAX_DICTIONARY_BYTES = 1 << 8, 2 << 20
"""Rows of a batch that is read as a dictionary, and size of the dictionary beyond which strings are read expanded.
Arrow takes more memory than it reports while it builds a dictionary: 110 MB of strings took 271 MB with batches of
8 MiB, and 119 MB with these limits."""


class ParquetRagged(RaggedSource):
    """A feature of strings, or of lists of any length, in Parquet files."""

    def __init__(self, names: Sequence[str], files: Sequence[ParquetColumn], offsets: IntArray) -> None:
        """Check that all files have one dtype and one shape of elements.

        Args:
            names: File names as in the metadata.
            files: The opened files, at least one.
            offsets: int64[num_files + 1], the first row of each file.

        Raises:
            SchemaError: The files differ in dtype or shape.
        """
        self._files, self._offsets, self.num_rows = files, offsets, int(offsets[-1])
        which = next((i for i, file in enumerate(files) if file.is_ragged), 0)
        first = files[which]
        self.dtype, self.shape, self.is_string = first.dtype, first.element_shape or (), first.is_string
        for file in files:
            if (file.dtype, file.element_shape, file.is_string) != (self.dtype, self.shape, self.is_string):
                got = f"{file.shown} is {_shown(file)}; {names[which]} is {_shown(first)}"
                raise SchemaError(f"{got}: write all files of a feature with one dtype and row shape")
        self.num_elements = sum(_num_elements(file) for file in files)
        groups = [first + file.file.group_offsets for first, file in zip(offsets[:-1], files, strict=True)]
        self._starts = np.unique(np.concatenate(groups))

    def _next_start(self, row: int) -> int:
        """Return the first start of a row group at or after a row; decoding always begins at such a start."""
        place = int(np.searchsorted(self._starts, row))
        return int(self._starts[place]) if place < len(self._starts) else self.num_rows

    def pieces(self, start: int, stop: int) -> Iterator[RaggedArray]:
        """Read some rows in pieces, one row group after the other."""
        file, row = int(np.searchsorted(self._offsets, start, side="right")) - 1, start
        while row < stop:
            last = min(stop, int(self._offsets[file + 1]))
            if row < last:
                first = int(self._offsets[file])
                for file_row, array in _arrays(self._files[file], row - first, last - first):
                    yield from self._rows(self._files[file], file_row, array)
            row, file = last, file + 1

    def _rows(self, file: ParquetColumn, row: int, array: pa.Array) -> Iterator[RaggedArray]:
        """Convert an Arrow array to rows; ``row`` is its first row in the file."""
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
    """Yield rows of a file in batches, each with its first row."""
    file, row = column.file, start
    while row < stop:
        group = file.group_of(row)
        end = min(stop, int(file.group_offsets[group + 1]))
        is_dictionary = not column.is_list and all(record.has_dictionary_page for _, record in file.records([group]))
        batch_rows = max(
            1, min(MAX_BATCH_ROWS, BATCH_BYTES * _group_rows(column, group) // _group_bytes(column, group))
        )
        first_rows = min(batch_rows, MAX_DICTIONARY_ROWS) if is_dictionary else batch_rows
        # Arrow also decodes the rows before the first one, and their strings count towards the dictionary's size.
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
    """Return the bytes of a row group's elements from the footer.

    Dictionary-encoded strings may take more.
    """
    if column.is_list:
        return max(1, int(column.file.list_sizes[0][group]) * column.dtype.itemsize)
    return column.file.num_bytes(group)


def _num_elements(column: ParquetColumn) -> int:
    """Estimate the number of elements of all rows from the footer."""
    num_bytes = sum(_group_bytes(column, group) for group in range(column.file.num_groups))
    item = column.dtype.itemsize * int(np.prod(column.element_shape or (), dtype=np.int64))
    return num_bytes // max(1, item)


def _shown(column: ParquetColumn) -> str:
    """Return a description of a file's rows for messages."""
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
    """Refuse null values inside lists; each element has ``count`` values."""
    if elements.null_count:
        place = int(np.argmax(elements.is_null().to_numpy(zero_copy_only=False))) // max(1, count)
        bad_row = row + int(np.searchsorted(offsets, place, side="right")) - 1
        raise SchemaError(f"{column.file.place(bad_row)} has no value inside its list: {NO_NULLS}")


def _check_text(column: ParquetColumn, row: int, array: pa.Array) -> None:
    """Refuse strings that are not UTF-8."""
    if not column.is_string:
        return
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise SchemaError(f"{column.file.place(row)}, or one after it, is not UTF-8 ({error})") from error


def _text_rows(array: pa.Array, is_string: bool) -> RaggedArray:
    """Convert strings or bytes without nulls to rows."""
    wide = array.cast(pa.large_string() if is_string else pa.large_binary())
    if not len(wide):
        return RaggedArray(np.empty(0, np.uint8), np.zeros(1, np.int64), is_string)
    _, offsets_buffer, text = cast(Any, wide.buffers())
    offsets = np.frombuffer(offsets_buffer, np.int64)[wide.offset : wide.offset + len(wide) + 1]
    values = np.frombuffer(text, np.uint8) if text is not None else np.empty(0, np.uint8)
    return RaggedArray(values[offsets[0] : offsets[-1]], offsets - offsets[0], is_string)


def are_of_one_length(files: Sequence[ParquetColumn]) -> bool:
    """Return whether lists have the one length that their file's footer allows; null lists are ignored.

    Args:
        files: Files of one feature. Files with an ``element_shape`` also have a ``shape``, unless they have no rows.

    Raises:
        FormatError: A file is damaged.
    """
    open_files = [file for file in files if file.element_shape is not None and file.num_rows]
    return all(_has_length(file, start, stop) for file, start, stop in _stretches(open_files))


def _stretches(files: Sequence[ParquetColumn]) -> Iterator[tuple[ParquetColumn, int, int]]:
    """Yield the ranges ``[start, stop)`` of rows to check, with their file."""
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
    """Return whether the statistics of a row group count empty lists or nulls."""
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
