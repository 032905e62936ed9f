"""Computes the fingerprint that names a graph, also of a graph that has more rows than one whose sums are kept.

A graph's fingerprint is made of CRC-32Cs of whole columns. CRCs of stretches that follow each other can be combined, so
with those of a graph the fingerprint of the graph with more rows is known without reading the old ones.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hopstream.arrays import CHUNK_BYTES, Array, Column, RaggedArray, combine_checksums, extend_checksum
from hopstream.errors import FormatError
from hopstream.schema import GraphSchema

CHUNK_ROWS = 1 << 20

ByteSum = tuple[int, int]
"""Number of bytes, and their CRC-32C."""


@dataclass(frozen=True, slots=True)
class ColumnSums:
    """The sums of a column.

    Attributes:
        sums: That of its values, and that of its offsets where it is ragged.
        num_elements: The elements of all rows of a ragged column; 0 where rows are of fixed width.
    """

    sums: tuple[ByteSum, ...]
    num_elements: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphChecksums:
    """What a graph's fingerprint is made of.

    Attributes:
        num_rows: Type label to its number of nodes or edges.
        columns: Type label to the sums of each column, for edges those of sources and destinations first.
        splits: Node type to split to the sum of its keys.
        edge_splits: The same by the labels of edge types; those without splits are left out.
    """

    num_rows: Mapping[str, int]
    columns: Mapping[str, tuple[ColumnSums, ...]]
    splits: Mapping[str, Mapping[str, ByteSum]] = field(default_factory=dict)
    edge_splits: Mapping[str, Mapping[str, ByteSum]] = field(default_factory=dict)

    def fingerprint(self, schema: GraphSchema) -> str:
        """32 hexadecimal digits that name the graph of this schema; see ``Graph.fingerprint``."""
        tables = {
            label: [self.num_rows[label], *(join_sums(*column.sums)[1] for column in columns)]
            for label, columns in self.columns.items()
        }
        splits, edge_splits = (
            {label: {name: crc32c for name, (_, crc32c) in of.items()} for label, of in named.items()}
            for named in (self.splits, self.edge_splits)
        )
        return fingerprint_of(schema, tables, splits, edge_splits)

    def to_json(self) -> dict[str, Any]:
        """A JSON value that ``from_json`` reads back."""
        return {
            "rows": dict(self.num_rows),
            "columns": {
                t: [[c.num_elements, *(list(s) for s in c.sums)] for c in of] for t, of in self.columns.items()
            },
            "splits": {t: {name: list(s) for name, s in of.items()} for t, of in self.splits.items()},
            "edge_splits": {t: {name: list(s) for name, s in of.items()} for t, of in self.edge_splits.items()},
        }

    @classmethod
    def from_json(cls, value: Any) -> GraphChecksums:
        """Read what ``to_json`` wrote.

        Raises:
            FormatError: The value is something else.
        """
        try:
            return cls(
                num_rows={str(t): int(n) for t, n in value["rows"].items()},
                columns={
                    str(t): tuple(ColumnSums(tuple(map(_byte_sum, sums)), int(count)) for count, *sums in of)
                    for t, of in value["columns"].items()
                },
                splits={str(t): {str(n): _byte_sum(s) for n, s in of.items()} for t, of in value["splits"].items()},
                edge_splits={
                    str(t): {str(n): _byte_sum(s) for n, s in of.items()} for t, of in value["edge_splits"].items()
                },
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FormatError(f"not the checksums of a graph ({error!r}): {str(value)[:200]}") from error


def hex_digest(data: bytes | memoryview) -> str:
    """32 hexadecimal digits, the 128-bit BLAKE2b hash of bytes."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def fingerprint_of(
    schema: GraphSchema,
    tables: Mapping[str, list[int]],
    splits: Mapping[str, Mapping[str, int]],
    edge_splits: Mapping[str, Mapping[str, int]],
) -> str:
    """32 hexadecimal digits that name a graph, of which checksums are known.

    Args:
        schema: Its schema.
        tables: Type label to the number of rows and the CRC-32C of each column, for edges those of the ends first.
        splits: Node type to split to the CRC-32C of its keys.
        edge_splits: The same by the labels of edge types; those without splits are left out.
    """
    text = json.dumps([schema.to_json(), tables, splits, edge_splits], sort_keys=True)
    return hex_digest(text.encode())


def _byte_sum(value: Any) -> ByteSum:
    num_bytes, crc32c = value
    if not 0 <= int(num_bytes) < 1 << 63 or not 0 <= int(crc32c) < 1 << 32:
        raise ValueError(f"{value!r} is no number of bytes and CRC-32C")
    return int(num_bytes), int(crc32c)


def join_sums(*sums: ByteSum) -> ByteSum:
    """The sum of stretches of bytes that follow each other."""
    num_bytes = checksum = 0
    for more, crc32c in sums:
        num_bytes, checksum = num_bytes + more, combine_checksums(checksum, crc32c, more)
    return num_bytes, checksum


def array_sum(array: Array) -> ByteSum:
    """The sum of an array's bytes in C order; a map is read a stretch at a time."""
    checksum = 0
    step = max(1, CHUNK_BYTES * len(array) // max(1, array.nbytes))
    for start in range(0, len(array), step):
        checksum = extend_checksum(checksum, array[start : start + step])
    return int(array.nbytes), checksum


def column_sums(column: Column) -> ColumnSums:
    """The sums of a column."""
    if isinstance(column, RaggedArray):
        return ColumnSums((array_sum(column.values), array_sum(column.offsets)), int(column.offsets[-1]))
    return ColumnSums((array_sum(column),))


def appended_sums(before: ColumnSums, column: Column) -> ColumnSums:
    """The sums of a column with more rows at its end.

    Args:
        before: Those of the column.
        column: The new rows, of the same dtype and shape.
    """
    if not isinstance(column, RaggedArray):
        return ColumnSums((join_sums(before.sums[0], array_sum(column)),))
    checksum, offsets = 0, column.offsets[1:]
    for start in range(0, len(offsets), CHUNK_ROWS):
        checksum = extend_checksum(checksum, offsets[start : start + CHUNK_ROWS] + before.num_elements)
    values, of_offsets = before.sums
    return ColumnSums(
        (join_sums(values, array_sum(column.values)), join_sums(of_offsets, (int(offsets.nbytes), checksum))),
        before.num_elements + int(column.offsets[-1]),
    )
