"""Records of a raw graph in memory, with the order and the ids of its nodes and edges.

Everything is columnar and frozen. Nodes of a type are numbered by `key`: 0..n-1 in table order. Edges of a type are
numbered by edge key: their position in ``src_keys`` and ``dst_keys``. Arrays may be memory maps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from hopstream.arrays import Column, IntArray, RaggedArray, column_schema
from hopstream.checks import known_names
from hopstream.errors import IdRangeError, SchemaError, UnknownNameError
from hopstream.graph.checksums import ColumnSums, GraphChecksums, array_sum, column_sums
from hopstream.schema import EdgeType, GraphSchema, type_label


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
        """Edges in the table, duplicates and self loops included."""
        return len(self.src_keys)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Graph:
    """A typed graph with features and splits. ``check()`` has passed on every graph that a reader returns.

    Attributes:
        nodes: Node type to its table.
        edges: Edge type to its table.
        splits: Node type to split name to int64 keys, ascending and distinct.
        edge_splits: Edge type to split name to int64 edge keys, ascending and distinct.
        label_types: Edge type of links to predict to the edge types that they were taken from; see ``GraphSchema``.
    """

    nodes: Mapping[str, NodeTable]
    edges: Mapping[EdgeType, EdgeTable] = field(default_factory=dict)
    splits: Mapping[str, Mapping[str, IntArray]] = field(default_factory=dict)
    edge_splits: Mapping[EdgeType, Mapping[str, IntArray]] = field(default_factory=dict)
    label_types: Mapping[EdgeType, tuple[EdgeType, ...]] = field(default_factory=dict)

    @property
    def schema(self) -> GraphSchema:
        """The schema that these arrays have."""
        return GraphSchema(
            nodes={t: {n: column_schema(c) for n, c in table.features.items()} for t, table in self.nodes.items()},
            edges={t: {n: column_schema(c) for n, c in table.features.items()} for t, table in self.edges.items()},
            splits={t: tuple(names) for t, names in self.splits.items()},
            edge_splits={t: tuple(self.edge_splits[t]) for t in self.edges if self.edge_splits.get(t)},
            label_types=self.label_types,
        )

    def __repr__(self) -> str:
        """Types, counts and columns, a line per type."""
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
        """32 hexadecimal digits that name the graph's content, however it is cut into parts later.

        Equal graphs have equal fingerprints: types, features, splits, and the keys and order of nodes and edges count.
        """
        return self.checksums().fingerprint(self.schema)

    def checksums(self) -> GraphChecksums:
        """What the fingerprint is made of."""
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
