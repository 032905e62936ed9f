"""Records of a raw graph and of a sampled one, with the order, ids and fingerprint of nodes and edges.

Everything is columnar and frozen. Nodes of a type are numbered by `key`: 0..n-1 in table order. Edges of a type are
numbered by edge key: their position in ``src_keys`` and ``dst_keys``. Arrays may be memory maps.

A graph's fingerprint is built from the CRC-32Cs of whole columns. CRCs of consecutive ranges can be combined. So after
an append the new fingerprint follows from the old CRCs and the new rows, without reading the old rows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hopstream.arrays import (
    CHUNK_BYTES,
    Array,
    Column,
    IntArray,
    RaggedArray,
    column_schema,
    combine_checksums,
    extend_checksum,
)
from hopstream.checks import known_names
from hopstream.errors import FormatError, IdRangeError, SchemaError, UnknownNameError
from hopstream.schema import Direction, EdgeType, GraphSchema, type_label

CHUNK_ROWS = 1 << 20

ByteSum = tuple[int, int]
"""Number of bytes, and their CRC-32C."""


@dataclass(frozen=True, slots=True)
class ColumnSums:
    """Checksums of a column.

    Attributes:
        sums: The checksum of the values, and of the offsets if the column is ragged.
        num_elements: Elements of all rows of a ragged column; 0 for rows of fixed width.
    """

    sums: tuple[ByteSum, ...]
    num_elements: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphChecksums:
    """Checksums that a graph's fingerprint is built from.

    Attributes:
        num_rows: Type label to its number of nodes or edges.
        columns: Type label to the checksums of each column; for edges, those of sources and destinations come first.
        splits: Node type to split to the checksum of its keys.
        edge_splits: The same by the labels of edge types; types without splits are left out.
    """

    num_rows: Mapping[str, int]
    columns: Mapping[str, tuple[ColumnSums, ...]]
    splits: Mapping[str, Mapping[str, ByteSum]] = field(default_factory=dict)
    edge_splits: Mapping[str, Mapping[str, ByteSum]] = field(default_factory=dict)

    def fingerprint(self, schema: GraphSchema) -> str:
        """Return the fingerprint of the graph with this schema; see ``Graph.fingerprint``."""
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
        """Return a JSON value that ``from_json`` reads."""
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
    """Return the 128-bit BLAKE2b hash of bytes, 32 hexadecimal digits."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def fingerprint_of(
    schema: GraphSchema,
    tables: Mapping[str, list[int]],
    splits: Mapping[str, Mapping[str, int]],
    edge_splits: Mapping[str, Mapping[str, int]],
) -> str:
    """Return the fingerprint of a graph with known checksums, 32 hexadecimal digits.

    Args:
        schema: Schema of the graph.
        tables: Type label to the number of rows and the CRC-32C of each column; for edges, those of the ends come
            first.
        splits: Node type to split to the CRC-32C of its keys.
        edge_splits: The same by the labels of edge types; types without splits are left out.
    """
    text = json.dumps([schema.to_json(), tables, splits, edge_splits], sort_keys=True)
    return hex_digest(text.encode())


def _byte_sum(value: Any) -> ByteSum:
    num_bytes, crc32c = value
    if not 0 <= int(num_bytes) < 1 << 63 or not 0 <= int(crc32c) < 1 << 32:
        raise ValueError(f"{value!r} is not a number of bytes and a CRC-32C")
    return int(num_bytes), int(crc32c)


def join_sums(*sums: ByteSum) -> ByteSum:
    """Combine the checksums of consecutive ranges of bytes."""
    num_bytes = checksum = 0
    for more, crc32c in sums:
        num_bytes, checksum = num_bytes + more, combine_checksums(checksum, crc32c, more)
    return num_bytes, checksum


def array_sum(array: Array) -> ByteSum:
    """Return the checksum of an array's bytes in C order; a map is read in chunks."""
    checksum = 0
    step = max(1, CHUNK_BYTES * len(array) // max(1, array.nbytes))
    for start in range(0, len(array), step):
        checksum = extend_checksum(checksum, array[start : start + step])
    return int(array.nbytes), checksum


def column_sums(column: Column) -> ColumnSums:
    """Return the checksums of a column."""
    if isinstance(column, RaggedArray):
        return ColumnSums((array_sum(column.values), array_sum(column.offsets)), int(column.offsets[-1]))
    return ColumnSums((array_sum(column),))


def appended_sums(before: ColumnSums, column: Column) -> ColumnSums:
    """Return the checksums of a column after an append.

    Args:
        before: Checksums of the column before.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledEdges:
    """Edges of one type in a subgraph, in the order in which they were drawn.

    Attributes:
        src_slots: int64[num_edges], positions in the source type's nodes.
        dst_slots: int64[num_edges], positions in the destination type's nodes.
        edge_ids: int64[num_edges], ids of the edges, or None if the plan did not ask for them.
        direction: The direction whose ids ``edge_ids`` are.
        edge_keys: int64[num_edges], original keys of the edges, or None if the plan did not ask for them.
    """

    src_slots: IntArray
    dst_slots: IntArray
    edge_ids: IntArray | None
    direction: Direction
    edge_keys: IntArray | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Subgraph:
    """Nodes and edges that a plan found; the seeds come first, then each hop in order of first occurrence.

    Every node type and edge type of the schema is present; it may have empty arrays.

    Attributes:
        node_ids: Node type to int64[num_nodes] ids; the position in this array is the node's `slot`.
        edges: Edge type to its edges.
        num_sampled_nodes: Node type to [seeds, new in hop 1, …], ``num_hops + 1`` entries.
        num_sampled_edges: Edge type to [drawn in hop 1, …], ``num_hops`` entries; None if edges are not in the order of
            hops, as in bidirectional and induced subgraphs.
        trees: Node type to int64[num_nodes], the tree of each slot, if every seed grows its own tree; else None.
        attributes: Further results: edge type to name to array, as batches show them.
    """

    node_ids: Mapping[str, IntArray]
    edges: Mapping[EdgeType, SampledEdges]
    num_sampled_nodes: Mapping[str, list[int]]
    num_sampled_edges: Mapping[EdgeType, list[int]] | None
    trees: Mapping[str, IntArray] | None = None
    attributes: Mapping[EdgeType, Mapping[str, Array]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeTable:
    """All nodes of one type; row ``i`` is the node with key ``i``."""

    num_nodes: int
    features: Mapping[str, Column] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EdgeTable:
    """All edges of one type, in original order; row ``i`` is the edge with edge key ``i``.

    Attributes:
        src_keys: int64[num_edges], keys of the source type.
        dst_keys: int64[num_edges], keys of the destination type.
        features: Feature name to column of num_edges rows.
    """

    src_keys: IntArray
    dst_keys: IntArray
    features: Mapping[str, Column] = field(default_factory=dict)

    @property
    def num_edges(self) -> int:
        """Number of edges, including duplicates and self loops."""
        return len(self.src_keys)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Graph:
    """Typed graph with features and splits. ``check()`` has passed on every graph that a reader returns.

    Attributes:
        nodes: Node type to its table.
        edges: Edge type to its table.
        splits: Node type to split name to int64 keys, ascending and distinct.
        edge_splits: Edge type to split name to int64 edge keys, ascending and distinct.
        label_types: Supervision edge type to the edge types that its links were taken from; see ``GraphSchema``.
        transforms: JSON value of the fitted transforms of the tables that the graph was read from, by type and feature;
            datasets keep it. It is no part of the fingerprint.
    """

    nodes: Mapping[str, NodeTable]
    edges: Mapping[EdgeType, EdgeTable] = field(default_factory=dict)
    splits: Mapping[str, Mapping[str, IntArray]] = field(default_factory=dict)
    edge_splits: Mapping[EdgeType, Mapping[str, IntArray]] = field(default_factory=dict)
    label_types: Mapping[EdgeType, tuple[EdgeType, ...]] = field(default_factory=dict)
    transforms: Mapping[str, Any] = field(default_factory=dict)

    @property
    def schema(self) -> GraphSchema:
        """The schema of these arrays."""
        return GraphSchema(
            nodes={t: {n: column_schema(c) for n, c in table.features.items()} for t, table in self.nodes.items()},
            edges={t: {n: column_schema(c) for n, c in table.features.items()} for t, table in self.edges.items()},
            splits={t: tuple(names) for t, names in self.splits.items()},
            edge_splits={t: tuple(self.edge_splits[t]) for t in self.edges if self.edge_splits.get(t)},
            label_types=self.label_types,
        )

    def __repr__(self) -> str:
        """Format types, counts and columns, one line per type."""
        lines = []
        for node_type, nodes in self.nodes.items():
            lines.append(f"  nodes {node_type!r}: {nodes.num_nodes:,}{_columns_text(nodes.features)}")
        for edge_type, edges in self.edges.items():
            lines.append(f"  edges {edge_type!r}: {edges.num_edges:,}{_columns_text(edges.features)}")
        for of_type, splits in (*self.splits.items(), *self.edge_splits.items()):
            if splits:
                counts = ", ".join(f"{name} {len(keys):,}" for name, keys in splits.items())
                lines.append(f"  splits of {of_type!r}: {counts}")
        return "\n".join(["Graph(", *lines, ")"])

    def fingerprint(self) -> str:
        """Return 32 hexadecimal digits, the fingerprint of the graph's content, whatever its partitioning.

        Equal graphs have equal fingerprints: types, features, splits, and the keys and order of nodes and edges count.
        """
        return self.checksums().fingerprint(self.schema)

    def checksums(self) -> GraphChecksums:
        """Return the checksums that the fingerprint is built from."""
        num_rows: dict[str, int] = {}
        columns: dict[str, tuple[ColumnSums, ...]] = {}
        for node_type, nodes in self.nodes.items():
            num_rows[node_type] = nodes.num_nodes
            columns[node_type] = tuple(map(column_sums, nodes.features.values()))
        for edge_type, edges in self.edges.items():
            label = type_label(edge_type)
            num_rows[label] = edges.num_edges
            columns[label] = tuple(map(column_sums, (edges.src_keys, edges.dst_keys, *edges.features.values())))
        return GraphChecksums(
            num_rows=num_rows,
            columns=columns,
            splits={t: {name: array_sum(keys) for name, keys in of.items()} for t, of in self.splits.items()},
            edge_splits={
                type_label(t): {name: array_sum(keys) for name, keys in of.items()}
                for t, of in self.edge_splits.items()
                if of
            },
        )

    def check(self) -> Graph:
        """Check lengths, dtypes and id ranges; return the graph itself.

        Raises:
            SchemaError: A column or id array has the wrong length, dtype or rank, or a split is not ascending.
            IdRangeError: An edge or split names a key outside its node type.
            UnknownNameError: A split is given for a node or edge type the graph does not have.
        """
        _ = self.schema
        for node_type, nodes in self.nodes.items():
            if nodes.num_nodes < 0:
                raise SchemaError(f"node type {node_type!r} has {nodes.num_nodes} nodes")
            _check_lengths(f"node type {node_type!r}", nodes.features, nodes.num_nodes)
        for edge_type, edges in self.edges.items():
            where = f"edge type {type_label(edge_type)}"
            _check_keys(f"{where}: src_keys", edges.src_keys, self.nodes[edge_type[0]].num_nodes)
            _check_keys(f"{where}: dst_keys", edges.dst_keys, self.nodes[edge_type[2]].num_nodes)
            if len(edges.src_keys) != len(edges.dst_keys):
                raise SchemaError(f"{where} has {len(edges.src_keys)} sources and {len(edges.dst_keys)} destinations")
            _check_lengths(where, edges.features, edges.num_edges)
        self._check_splits()
        return self

    def _check_splits(self) -> None:
        for node_type, splits in self.splits.items():
            if node_type not in self.nodes:
                raise UnknownNameError(f"splits name node type {node_type!r}; {known_names(node_type, self.nodes)}")
            for name, keys in splits.items():
                _check_split(f"split {name!r} of {node_type!r}", keys, self.nodes[node_type].num_nodes, "node")
        for edge_type, splits in self.edge_splits.items():
            if edge_type not in self.edges:
                raise UnknownNameError(
                    f"edge_splits name edge type {edge_type!r}; {known_names(edge_type, self.edges)}"
                )
            for name, keys in splits.items():
                where = f"split {name!r} of {type_label(edge_type)}"
                _check_split(where, keys, self.edges[edge_type].num_edges, "edge")


def _check_lengths(where: str, features: Mapping[str, Column], num_rows: int) -> None:
    for name, column in features.items():
        if len(column) != num_rows:
            raise SchemaError(f"{where}: feature {name!r} has {len(column)} rows; the type has {num_rows}")
        if isinstance(column, RaggedArray):
            column.check(f"{where}: feature {name!r}")


def _check_split(where: str, keys: IntArray, num_rows: int, what: str) -> None:
    _check_keys(where, keys, num_rows, what)
    if len(keys) > 1 and not bool(np.all(keys[1:] > keys[:-1])):
        raise SchemaError(f"{where} must be ascending and distinct keys")


def _check_keys(where: str, keys: IntArray, num_rows: int, what: str = "node") -> None:
    if keys.ndim != 1 or keys.dtype != np.int64:
        raise SchemaError(f"{where} must be int64[n], got {keys.dtype}{list(keys.shape)}")
    if len(keys) and (int(keys.min()) < 0 or int(keys.max()) >= num_rows):
        row = int(np.flatnonzero((keys < 0) | (keys >= num_rows))[0])
        wanted = f"keys are 0..{num_rows - 1}" if num_rows else f"the {what} type has no {what}s"
        raise IdRangeError(f"{where}[{row}] is {int(keys[row])}; {wanted}")


def _columns_text(columns: Mapping[str, Column]) -> str:
    return "".join(f", {name} {column_schema(column)}" for name, column in columns.items())
