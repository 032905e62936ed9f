"""Maps raw ids to keys, and finds missing and repeated raw ids.

A node's key is its row in its type's table. Raw ids are Arrow arrays of one of three types: ``int64`` for integers,
``large_string`` for strings, and ``string`` for cells of a CSV file, which are integers if all raw ids of the node type
are.

Every lookup makes Arrow build a hash table of all raw ids of the type, so edges are looked up many at a time. For 3 M
ids and 10 M lookups this takes 0.9 s for integers and 2 s for strings; numpy's sort and binary search take 5 s for
integers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hopstream.arrays import Array, Column, IntArray, RaggedArray, offsets_of
from hopstream.errors import SchemaError
from hopstream.schema import STRING

MAX_IDS = 2**31 - 1
"""Arrow's lookups return int32."""

TEXT = pa.string()
INTEGER = pa.int64()
NAME = pa.large_string()

_INTEGER_CELL = re.compile(r"-?[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class RawIds:
    """The raw ids of one node type in key order.

    Attributes:
        values: Arrow ``int64`` or ``large_string`` array of num_nodes raw ids; None if raw ids are row numbers.
        num_nodes: Number of nodes.
    """

    values: pa.ChunkedArray | None
    num_nodes: int

    def keys_of(self, chunks: Sequence[pa.Array]) -> IntArray:
        """Return int64[n], the key of each raw id; -1 for raw ids that are null, unknown or of another type."""
        wanted = INTEGER if self.values is None else self.values.type
        raw = pa.chunked_array([raw_as(chunk, wanted) for chunk in chunks], wanted)
        if self.values is None:
            numbers: IntArray = raw.fill_null(-1).to_numpy()
            return np.where((numbers >= 0) & (numbers < self.num_nodes), numbers, -1)
        keys: IntArray = pc.index_in(raw, value_set=self.values).fill_null(-1).to_numpy().astype(np.int64)
        return keys

    def first_repeated(self) -> int | None:
        """Return the first row whose raw id an earlier row has, or None."""
        if self.values is None or not self.num_nodes:
            return None
        firsts = pc.index_in(self.values, value_set=self.values).to_numpy()
        is_repeated = firsts != np.arange(len(firsts), dtype=firsts.dtype)
        return int(np.argmax(is_repeated)) if is_repeated.any() else None

    def first_rows(self) -> IntArray | None:
        """Return int64[n], the rows whose raw id no earlier row has, ascending; None if these are all rows."""
        if self.first_repeated() is None:
            return None
        firsts = pc.index_in(self.values, value_set=self.values).to_numpy()
        return np.flatnonzero(firsts == np.arange(len(firsts), dtype=firsts.dtype))

    def take(self, rows: IntArray) -> RawIds:
        """Return the raw ids of the given rows."""
        return self if self.values is None else RawIds(self.values.take(pa.array(rows)), len(rows))

    def as_column(self) -> Column:
        """Return the raw ids as a feature: int64[num_nodes] or strings."""
        if self.values is None:
            return np.arange(self.num_nodes, dtype=np.int64)
        if self.values.type == INTEGER:
            return np.ascontiguousarray(self.values.to_numpy())
        return strings_column(self.values.chunks)


def collect_raw_ids(chunks: Sequence[pa.Array], dtype: str | None) -> RawIds:
    """Join the raw ids of a node type, in the order given.

    Args:
        chunks: Raw ids without nulls.
        dtype: ``int64`` if ``first_non_integer`` is None for all chunks; ``string``; or None to detect it.

    Raises:
        SchemaError: There are more than ``MAX_IDS`` raw ids.
    """
    num_nodes = sum(map(len, chunks))
    if num_nodes > MAX_IDS:
        raise SchemaError(f"a node type has {num_nodes} raw ids; at most {MAX_IDS} can be read at once")
    are_integers = dtype != STRING and all(first_non_integer(chunk) is None for chunk in chunks)
    wanted = INTEGER if are_integers else NAME
    return RawIds(pa.chunked_array([chunk.cast(wanted) for chunk in chunks], wanted), num_nodes)


def sorted_raw_ids(chunks: Sequence[pa.Array], dtype: str | None) -> RawIds:
    """Return the distinct raw ids without nulls, ascending: integers by value, strings by UTF-8 bytes."""
    values = pc.unique(collect_raw_ids([chunk.drop_null() for chunk in chunks], dtype).values)
    values = values.take(pc.sort_indices(values))
    return RawIds(pa.chunked_array([values]), len(values))


def first_non_integer(chunk: pa.Array) -> int | None:
    """Return the first row that is not an int64, or None.

    Strings of Parquet files are not integers, and neither is the cell ``0x10``.
    """
    if chunk.type == INTEGER:
        return None
    if chunk.type == TEXT and holds_integers(chunk):
        return None
    if chunk.type == TEXT:
        return next((row for row, cell in enumerate(chunk.to_pylist()) if _integer(cell) is None), None)
    return 0 if len(chunk) else None


def holds_integers(text: pa.Array) -> bool:
    """Return whether Arrow can read all cells as int64, and none is hexadecimal."""
    try:
        text.cast(INTEGER)
    except pa.ArrowInvalid:
        return False
    return not any(pc.any(pc.match_substring(text, mark)).as_py() for mark in "xX")


def text_of(strings: pa.Array) -> tuple[Array, IntArray]:
    """Return the bytes and the offsets of ``large_string`` or ``large_binary`` values; nulls are empty.

    Returns:
        uint8[num_bytes] and int64[n + 1]; the first offset may be above 0.
    """
    if not len(strings):
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    _, offsets, values = strings.buffers()
    filled = np.frombuffer(values, np.uint8) if values is not None else np.empty(0, np.uint8)
    return filled, np.frombuffer(offsets, np.int64)[strings.offset : strings.offset + len(strings) + 1]


def strings_column(chunks: Sequence[pa.Array]) -> RaggedArray:
    """Join Arrow strings without nulls into one column."""
    values, lengths = [np.empty(0, np.uint8)], [np.empty(0, np.int64)]
    for chunk in chunks:
        filled, offsets = text_of(chunk.cast(NAME))
        values.append(filled[offsets[0] : offsets[-1]])
        lengths.append(np.diff(offsets))
    return RaggedArray(np.concatenate(values), offsets_of(np.concatenate(lengths)), is_string=True)


def raw_as(chunk: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Convert raw ids at the ends of edges to their node type's Arrow type; null if that is impossible."""
    if wanted == INTEGER and chunk.type != INTEGER:
        is_whole = chunk.null_count == 0 and holds_integers(chunk)
        return chunk.cast(INTEGER) if is_whole else pa.array(map(_integer, chunk.to_pylist()), INTEGER)
    return chunk.cast(wanted)


def _integer(cell: str | None) -> int | None:
    number = int(cell) if cell is not None and _INTEGER_CELL.fullmatch(cell) else None
    return number if number is not None and -(2**63) <= number < 2**63 else None
