"""Gives raw ids their keys, and finds raw ids that are missing or repeated.

A node's key is its row in its type's table. Raw ids are Arrow arrays of one of three types: ``int64``;
``large_string``, which stays what it is; and ``string``, the cells of a CSV file, which are integers if all of a node
type's are.

Arrow hashes the raw ids of a whole type in one pass per lookup (3 M ids and 10 M lookups: 0.9 s for integers, 2 s for
strings; numpy's sort and binary search take 5 s for the integers), so lookups are made for many edges at a time. The
hash table lives only while a lookup runs.
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
"""Arrow's lookups answer in 32 bits."""

TEXT = pa.string()
INTEGER = pa.int64()
NAME = pa.large_string()

_INTEGER_CELL = re.compile(r"-?[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class RawIds:
    """The raw ids of one node type in key order.

    Attributes:
        values: Arrow ``int64`` or ``large_string`` array of num_nodes raw ids; None where a raw id is the row number.
        num_nodes: Number of ids.
    """

    values: pa.ChunkedArray | None
    num_nodes: int

    def keys_of(self, chunks: Sequence[pa.Array]) -> IntArray:
        """int64[n], the key of each raw id, and -1 for those that are null, of another kind, or not there."""
        wanted = INTEGER if self.values is None else self.values.type
        raw = pa.chunked_array([raw_as(chunk, wanted) for chunk in chunks], wanted)
        if self.values is None:
            numbers: IntArray = raw.fill_null(-1).to_numpy()
            return np.where((numbers >= 0) & (numbers < self.num_nodes), numbers, -1)
        keys: IntArray = pc.index_in(raw, value_set=self.values).fill_null(-1).to_numpy().astype(np.int64)
        return keys

    def first_repeated(self) -> int | None:
        """The first row whose raw id an earlier row has, or None."""
        if self.values is None or not self.num_nodes:
            return None
        firsts = pc.index_in(self.values, value_set=self.values).to_numpy()
        is_repeated = firsts != np.arange(len(firsts), dtype=firsts.dtype)
        return int(np.argmax(is_repeated)) if is_repeated.any() else None

    def first_rows(self) -> IntArray | None:
        """int64[n], the rows whose raw id no earlier row has, ascending; None for all."""
        if self.first_repeated() is None:
            return None
        firsts = pc.index_in(self.values, value_set=self.values).to_numpy()
        return np.flatnonzero(firsts == np.arange(len(firsts), dtype=firsts.dtype))

    def take(self, rows: IntArray) -> RawIds:
        """The raw ids of some rows."""
        return self if self.values is None else RawIds(self.values.take(pa.array(rows)), len(rows))

    def as_column(self) -> Column:
        """The raw ids as a feature: int64[num_nodes], or strings."""
        if self.values is None:
            return np.arange(self.num_nodes, dtype=np.int64)
        if self.values.type == INTEGER:
            return np.ascontiguousarray(self.values.to_numpy())
        return strings_column(self.values.chunks)


def collect_raw_ids(chunks: Sequence[pa.Array], dtype: str | None) -> RawIds:
    """Join the raw ids of a node type, in the order given.

    Args:
        chunks: Raw ids without nulls.
        dtype: ``int64``, where ``first_non_integer`` found none in any chunk; ``string``; or None to look.

    Raises:
        SchemaError: There are more ids than Arrow can look up.
    """
    num_nodes = sum(map(len, chunks))
    if num_nodes > MAX_IDS:
        raise SchemaError(f"{num_nodes} raw ids of one node type; no more than {MAX_IDS} can be read at once")
    are_integers = dtype != STRING and all(first_non_integer(chunk) is None for chunk in chunks)
    wanted = INTEGER if are_integers else NAME
    return RawIds(pa.chunked_array([chunk.cast(wanted) for chunk in chunks], wanted), num_nodes)


def sorted_raw_ids(chunks: Sequence[pa.Array], dtype: str | None) -> RawIds:
    """The distinct raw ids without nulls, ascending: integers by value, strings by their UTF-8 bytes."""
    values = pc.unique(collect_raw_ids([chunk.drop_null() for chunk in chunks], dtype).values)
    values = values.take(pc.sort_indices(values))
    return RawIds(pa.chunked_array([values]), len(values))


def first_non_integer(chunk: pa.Array) -> int | None:
    """The first row that is no integer below 2**63, or None; a string of Parquet is never one, nor is ``0x10``."""
    if chunk.type == INTEGER:
        return None
    if chunk.type == TEXT and holds_integers(chunk):
        return None
    if chunk.type == TEXT:
        return next((row for row, cell in enumerate(chunk.to_pylist()) if _integer(cell) is None), None)
    return 0 if len(chunk) else None


def holds_integers(text: pa.Array) -> bool:
    """Arrow can read all cells as int64, and none is hexadecimal."""
    try:
        text.cast(INTEGER)
    except pa.ArrowInvalid:
        return False
    return not any(pc.any(pc.match_substring(text, mark)).as_py() for mark in "xX")


def text_of(strings: pa.Array) -> tuple[Array, IntArray]:
    """The bytes of ``large_string`` or ``large_binary`` values, and where each begins; nulls are empty.

    Returns:
        uint8[num_bytes] and int64[n + 1].
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
    """Raw ids at the ends of edges as their node type has them; null where they cannot be."""
    if wanted == INTEGER and chunk.type != INTEGER:
        is_whole = chunk.null_count == 0 and holds_integers(chunk)
        return chunk.cast(INTEGER) if is_whole else pa.array(map(_integer, chunk.to_pylist()), INTEGER)
    return chunk.cast(wanted)


def _integer(cell: str | None) -> int | None:
    number = int(cell) if cell is not None and _INTEGER_CELL.fullmatch(cell) else None
    return number if number is not None and -(2**63) <= number < 2**63 else None
