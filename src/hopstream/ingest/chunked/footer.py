"""What does the footer of a Parquet file tell of its first column, row group by row group?

pyarrow ends the process where a footer's record of a column contradicts itself, since it calls what throws as if it
could not. So these few numbers are read here, from the footer's own bytes: Thrift's compact protocol, of which all but
what is wanted is passed over. Field numbers are those of the format's ``parquet.thrift``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hopstream.arrays import Array, IntArray
from hopstream.errors import FormatError

TAIL_BYTES = 8
"""Length of the footer as uint32, and four letters."""
MAX_DEPTH = 32
"""Structs and lists in one another; the format has six."""
TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, _, STRUCT = range(1, 13)
ROW_GROUPS, COLUMNS, META_DATA = 4, 1, 3
NUM_VALUES, NUM_BYTES, DICTIONARY_AT, STATISTICS, NULL_COUNT = 5, 6, 11, 12, 3
WANTED = {
    ROW_GROUPS: [{COLUMNS: [{META_DATA: {
        NUM_VALUES: None, NUM_BYTES: None, DICTIONARY_AT: None, STATISTICS: {NULL_COUNT: None},
    }}]}],
}  # fmt: skip
"""Fields of the footer: a struct by the numbers of its fields, a list by its item; None is an integer."""
NO_COLUMN: dict[int, dict[int, Any]] = {META_DATA: {NUM_VALUES: 0, NUM_BYTES: 0}}


@dataclass(frozen=True, slots=True, eq=False)
class GroupSizes:
    """What a footer tells of one column.

    Attributes:
        num_values: int64[num_groups], values and nulls; an empty list counts as one.
        num_bytes: int64[num_groups], bytes of the pages before compression.
        num_nulls: int64[num_groups], nulls and empty lists; 0 where nothing is told.
        has_dictionary: bool[num_groups], whether values are in a dictionary.
    """

    num_values: IntArray
    num_bytes: IntArray
    num_nulls: IntArray
    has_dictionary: Array


def read_group_sizes(path: Path, shown: str, num_groups: int) -> GroupSizes:
    """Read what the footer tells of the first column of each row group.

    Args:
        path: A file whose footer Arrow could read.
        shown: What messages call it.
        num_groups: Row groups that Arrow found in it.

    Raises:
        FormatError: The footer is damaged.
    """
    try:
        footer = _Compact(_footer_bytes(path)).struct(WANTED)
        columns = [(group[COLUMNS] or [NO_COLUMN])[0][META_DATA] for group in footer.get(ROW_GROUPS, [])]
        told = [(c[NUM_VALUES], c[NUM_BYTES], c.get(STATISTICS, {}).get(NULL_COUNT, 0)) for c in columns]
    except (LookupError, ValueError) as error:
        raise FormatError(f"{shown} has a footer that cannot be read ({error}); it may be damaged") from error
    sizes = np.array(told, np.int64).reshape(-1, 3)
    if len(sizes) != num_groups or sizes.min(initial=0) < 0:
        raise FormatError(f"{shown} has a footer whose row groups contradict each other; it may be damaged")
    num_values, num_bytes, num_nulls = sizes.T
    has_dictionary = np.array([DICTIONARY_AT in column for column in columns], np.bool_)
    return GroupSizes(num_values, num_bytes, num_nulls, has_dictionary)


def _footer_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        end = file.seek(0, 2) - TAIL_BYTES
        file.seek(max(0, end))
        length = int.from_bytes(file.read(4), "little")
        if length > end:
            raise ValueError(f"{length} bytes, and {end} in the file")
        file.seek(end - length)
        return file.read(length)


class _Compact:
    """Reads Thrift's compact protocol. LookupError or ValueError where bytes are not that."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at, self._depth = data, 0, 0

    def struct(self, wanted: dict[int, Any]) -> dict[int, Any]:
        """The wanted fields that a struct has."""
        found: dict[int, Any] = {}
        field = 0
        while head := self._byte():
            field = field + (head >> 4) if head >> 4 else self._signed()
            kind = head & 15
            if field in wanted:
                found[field] = self._value(kind, wanted[field])
            elif kind not in (TRUE, FALSE):  # a field's truth is in its kind
                self._skip(kind)
        return found

    def _value(self, kind: int, wanted: Any) -> Any:
        wanted_kinds = (STRUCT,) if isinstance(wanted, dict) else (LIST,) if isinstance(wanted, list) else (I32, I64)
        if kind not in wanted_kinds:
            raise ValueError(f"kind {kind} where {wanted_kinds[-1]} is wanted")
        if kind == STRUCT:
            return self.struct(wanted)
        if kind == LIST:
            count, kind = self._list()
            return [self._value(kind, wanted[0]) for _ in range(count)]
        return self._signed()

    def _skip(self, kind: int) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ValueError("too many structs in one another")
        if kind in (TRUE, FALSE, BYTE):
            self._at += 1
        elif kind in (I16, I32, I64):
            self._unsigned()
        elif kind == DOUBLE:
            self._at += 8
        elif kind == BINARY:
            length = self._unsigned()
            self._at += length
        elif kind in (LIST, SET):
            count, kind = self._list()
            for _ in range(count):
                self._skip(kind)
        elif kind == STRUCT:
            self.struct({})
        else:  # the format has no maps
            raise ValueError(f"kind {kind}")
        self._depth -= 1

    def _list(self) -> tuple[int, int]:
        head = self._byte()
        count = head >> 4 if head >> 4 < 15 else self._unsigned()
        if count > len(self._data) - self._at:  # an item takes a byte at least
            raise ValueError(f"a list of {count}")
        return count, head & 15

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _unsigned(self) -> int:
        value = shift = 0
        while (byte := self._byte()) > 127:
            value |= (byte & 127) << shift
            shift += 7
            if shift > 63:
                raise ValueError("an integer of more than 64 bits")
        return value | byte << shift

    def _signed(self) -> int:
        value = self._unsigned()
        value = (value >> 1) ^ -(value & 1)
        if not -(1 << 63) <= value < 1 << 63:
            raise ValueError("an integer of more than 64 bits")
        return value
