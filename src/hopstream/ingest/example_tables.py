"""Reads examples exported as Parquet: one row per example, one column of lists per feature name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hopstream.arrays import IntArray, RaggedArray, offsets_of
from hopstream.errors import FormatError, IdRangeError
from hopstream.ingest.arrow_checks import ValueCounts, check_codes
from hopstream.ingest.chunked.parquet import PARQUET_ERRORS
from hopstream.ingest.raw_tables.raw_ids import text_of
from hopstream.tfgnn.example import ValueLists, Values
from hopstream.tfgnn.record_files import RowCache

_MAGIC = b"PAR1"


def is_parquet(path: Path) -> bool:
    """Return whether a file starts with Parquet's magic bytes."""
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


class ExampleTables:
    """Random access to the rows of Parquet files by their number across all files. Thread-safe."""

    def __init__(self, paths: Sequence[Path], names: Sequence[str] | None, *, window: int = 1024) -> None:
        """Read the footers of all files.

        Args:
            paths: Parquet files with a column per name; the values of a row are lists or single values.
            names: The columns to read, None for all; a column that a file lacks gives empty lists.
            window: Rows that callers read at about the same time. The cache holds about four times as many rows, and
                at least one row group.

        Raises:
            FormatError: A file is not valid Parquet.
            OSError: A file is missing or cannot be opened.
        """
        self.paths = tuple(paths)
        self._names = None if names is None else list(names)
        sizes, groups, starts = [], [], []
        for file, path in enumerate(self.paths):
            group_rows = _group_rows(path)
            sizes.append(sum(group_rows))
            groups += [(file, group) for group in range(len(group_rows))]
            starts += group_rows
        self.sizes = tuple(sizes)
        """Number of rows of each file."""
        self._offsets = offsets_of(np.array(self.sizes, np.int64))
        self._groups, self._group_offsets = groups, offsets_of(np.array(starts, np.int64))
        self._cache: RowCache[pa.Table] = RowCache(4 * window)

    def __len__(self) -> int:
        """Return the number of rows of all files."""
        return int(self._offsets[-1])

    def place(self, number: int) -> tuple[Path, int]:
        """Return the file of a row, and the row's number in the file."""
        file = int(np.searchsorted(self._offsets, number, side="right")) - 1
        return self.paths[file], number - int(self._offsets[file])

    def read(self, numbers: IntArray) -> dict[str, ValueLists]:
        """Read rows as lists by column name, in the order of ``numbers``.

        Raises:
            IdRangeError: A number is out of range.
            FormatError: A file is damaged, or a column holds neither numbers nor strings, nor lists of them.
        """
        if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < len(self):
            raise IdRangeError(f"rows {int(numbers.min())}..{int(numbers.max())} of files that have {len(self)}")
        groups = np.searchsorted(self._group_offsets, numbers, side="right") - 1
        pieces, places = [], []
        for group in np.unique(groups).tolist():
            at = np.flatnonzero(groups == group)
            pieces.append(self._table(group).take(pa.array(numbers[at] - self._group_offsets[group])))
            places.append(at)
        if not pieces:
            return {}
        table = pa.concat_tables(pieces, promote_options="permissive")
        table = table.take(pa.array(np.argsort(np.concatenate(places)))).combine_chunks()
        return {name: _lists(table.column(name), name, self.paths[0]) for name in table.column_names}

    def _table(self, group: int) -> pa.Table:
        def load() -> tuple[pa.Table, int]:
            file, number = self._groups[group]
            num_rows = int(self._group_offsets[group + 1] - self._group_offsets[group])
            with _reading(self.paths[file]):
                opened = pq.ParquetFile(self.paths[file], page_checksum_verification=True)
                there = opened.schema_arrow.names
                wanted = there if self._names is None else [name for name in self._names if name in set(there)]
                table = opened.read_row_group(number, columns=wanted)
                counts = ValueCounts(opened.metadata, opened.schema_arrow, wanted)
                counts.add(table)
                check_codes(table)
            counts.check(str(self.paths[file]), [number])
            if wanted and table.num_rows != num_rows:
                got = f"{self.paths[file]} has {table.num_rows} rows in row group {number}"
                raise FormatError(f"{got}; its footer says {num_rows}")
            return table, num_rows

        return self._cache.get(group, load)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn Arrow's errors about damaged files into a ``FormatError`` of one line with the file's name."""
    try:
        yield
    except PARQUET_ERRORS as error:
        if isinstance(error, OSError) and error.errno:  # missing file or no permission: not damage
            raise
        what = " ".join(str(error).split())
        raise FormatError(f"{path} cannot be read as Parquet; it may be damaged or truncated ({what})") from error


def _group_rows(path: Path) -> list[int]:
    """Return the number of rows of each row group from the footer."""
    with _reading(path):
        footer = pq.read_metadata(path)
    # Only the number of rows of a row group is read: Arrow aborts the process for a damaged record of a column.
    group_rows = [footer.row_group(group).num_rows for group in range(footer.num_row_groups)]
    if min(group_rows, default=0) < 0 or sum(group_rows) != footer.num_rows:
        raise FormatError(f"{path} has row groups of {sum(group_rows)} rows; its footer says {footer.num_rows}")
    return group_rows


def _lists(column: pa.ChunkedArray, name: str, path: Path) -> ValueLists:
    """Convert a column to lists of float32, int64 or strings; null is an empty list."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.array([], array.type)
    if pa.types.is_fixed_size_list(array.type):
        array = array.cast(pa.list_(array.type.value_type))
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        lengths = np.nan_to_num(array.value_lengths().to_numpy(zero_copy_only=False)).astype(np.int64)
        return ValueLists(_values(array.flatten(), name, path), offsets_of(lengths))
    is_there = np.asarray(array.is_valid()).astype(np.int64)
    return ValueLists(_values(array.drop_null(), name, path), offsets_of(is_there))


def _values(array: pa.Array, name: str, path: Path) -> Values:
    kind = array.type
    if array.null_count:
        raise FormatError(f"{path}: column {name!r} has a null inside a list")
    if pa.types.is_floating(kind):
        return np.array(array.to_numpy(zero_copy_only=False), np.float32)
    if kind == pa.uint64():
        return np.array(array.to_numpy(), np.uint64).view(np.int64)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return np.array(array.to_numpy(zero_copy_only=False), np.int64)
    if any(
        of(kind) for of in (pa.types.is_string, pa.types.is_binary, pa.types.is_large_string, pa.types.is_large_binary)
    ):
        held, ends = text_of(array.cast(pa.large_binary()))
        return RaggedArray(held[ends[0] : ends[-1]], ends - ends[0], is_string=True)
    raise FormatError(f"{path}: column {name!r} holds {kind}; wanted numbers or strings, or lists of them")
