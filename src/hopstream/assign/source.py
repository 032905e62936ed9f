"""What does assignment need to know of a graph, in memory or not?

Counts, how many bytes a row has, splits, and the edges block by block: nothing else, so a graph in memory, a chunked
folder and a dataset (``assign_dataset``) are the same to what follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np

from hopstream.arrays import Column, IntArray, RaggedArray
from hopstream.graph.graph import EdgeTable, Graph
from hopstream.ingest.chunked import ChunkedGraph, FeatureSource, RaggedSource, fixed_features, ragged_features
from hopstream.ingest.chunked.sources import keys_of_mask
from hopstream.schema import EdgeType, GraphSchema

BLOCK_EDGES = 1 << 20
OFFSET_BYTES = 8

EdgeBlocks = Iterator[tuple[int, IntArray, IntArray]]
"""The place of the first edge among all of its type, then int64 source and destination keys."""
EdgePieces = Iterator[Callable[[], EdgeBlocks]]
"""What reads the edges of a type, one run of them after the other; runs may be read in any thread, and at once."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EdgeRows:
    """The edges of one type.

    Attributes:
        num_edges: How many.
        row_bytes: Bytes of the features of one edge, apart from ragged ones.
        ragged_bytes: ``(first, stop)`` to int64[stop - first], bytes of the ragged features of some edges, by place;
            None where there are none.
        pieces: The runs that all edges are read in, of some blocks each.
    """

    num_edges: int
    row_bytes: int
    ragged_bytes: Callable[[int, int], IntArray] | None
    pieces: Callable[[], EdgePieces]

    def blocks(self) -> EdgeBlocks:
        """Read all edges, in an order of their own that is always the same."""
        for read in self.pieces():
            yield from read()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AssignSource:
    """A graph as assignment sees it.

    Attributes:
        num_nodes: Node type to its number of nodes.
        node_bytes: Says the bytes of the features of one node of a type, or int64[num_nodes] where they differ.
        edges: Edge type to its edges.
        split: Reads the int64 keys of a split, by node type and name, in blocks.
        schema: The types and features.
        feature: Reads the whole of a node feature, by type and name.
        folder: Where it is read from; None for a graph in memory.
    """

    num_nodes: Mapping[str, int]
    node_bytes: Callable[[str], int | IntArray]
    edges: Mapping[EdgeType, EdgeRows]
    split: Callable[[str, str], Iterator[IntArray]]
    schema: GraphSchema
    feature: Callable[[str, str], Column]
    folder: Path | None = None

    @property
    def num_edges(self) -> int:
        """Edges of all types."""
        return sum(edges.num_edges for edges in self.edges.values())


def source_of(graph: Graph | ChunkedGraph | AssignSource) -> AssignSource:
    """A graph in memory, or a chunked folder, as assignment sees it."""
    if isinstance(graph, AssignSource):
        return graph
    return _source_of_graph(graph) if isinstance(graph, Graph) else _source_of_chunked(graph)


def folder_of(graph: Graph | ChunkedGraph | AssignSource) -> Path | None:
    """Where a graph is read from; None for one in memory."""
    if isinstance(graph, Graph):
        return None
    if isinstance(graph, AssignSource):
        return graph.folder
    return graph.root if (graph.root / graph.metadata_filename).is_file() else None


def _source_of_graph(graph: Graph) -> AssignSource:
    def split(node_type: str, name: str) -> Iterator[IntArray]:
        keys = graph.splits[node_type][name]
        return (keys[start : start + BLOCK_EDGES] for start in range(0, len(keys), BLOCK_EDGES))

    return AssignSource(
        num_nodes={t: table.num_nodes for t, table in graph.nodes.items()},
        node_bytes=lambda node_type: _sum_bytes([*graph.nodes[node_type].features.values()]),
        edges={t: _rows_of_table(edges) for t, edges in graph.edges.items()},
        split=split,
        schema=graph.schema,
        feature=lambda node_type, name: graph.nodes[node_type].features[name],
    )


def _rows_of_table(edges: EdgeTable) -> EdgeRows:
    def block(start: int) -> EdgeBlocks:
        yield start, edges.src_keys[start : start + BLOCK_EDGES], edges.dst_keys[start : start + BLOCK_EDGES]

    def pieces() -> EdgePieces:
        return (partial(block, start) for start in range(0, edges.num_edges, BLOCK_EDGES))

    ragged = tuple(column for column in edges.features.values() if isinstance(column, RaggedArray))
    fixed = [column for column in edges.features.values() if not isinstance(column, RaggedArray)]

    def ragged_bytes(first: int, stop: int) -> IntArray:
        return cast(IntArray, sum(column_row_bytes(column, first, stop) for column in ragged))

    return EdgeRows(
        num_edges=edges.num_edges, row_bytes=cast(int, _sum_bytes(fixed)),
        ragged_bytes=ragged_bytes if ragged else None, pieces=pieces,
    )  # fmt: skip


def _source_of_chunked(graph: ChunkedGraph) -> AssignSource:
    def rows(edge_type: EdgeType) -> EdgeRows:
        edges = graph.edges[edge_type]

        def pieces() -> EdgePieces:
            return (partial(edges.ends.read, piece) for piece in edges.ends.pieces(BLOCK_EDGES))

        fixed = fixed_features(edges.features).values()
        ragged = ragged_features(edges.features).values()

        def ragged_bytes(first: int, stop: int) -> IntArray:
            return cast(IntArray, sum(_source_row_bytes(source, first, stop) for source in ragged))

        return EdgeRows(
            num_edges=edges.num_edges, row_bytes=sum(source.row_bytes for source in fixed),
            ragged_bytes=ragged_bytes if ragged else None, pieces=pieces,
        )  # fmt: skip

    def node_bytes(node_type: str) -> int | IntArray:
        nodes = graph.nodes[node_type]
        return sum(_source_row_bytes(source, 0, nodes.num_nodes) for source in nodes.features.values())

    def feature(node_type: str, name: str) -> Column:
        source = graph.nodes[node_type].features[name]
        return source.read(0, source.num_rows)

    return AssignSource(
        num_nodes={t: nodes.num_nodes for t, nodes in graph.nodes.items()},
        node_bytes=node_bytes,
        edges={t: rows(t) for t in graph.edges},
        split=lambda node_type, name: keys_of_mask(graph.nodes[node_type].masks[name]),
        schema=graph.schema,
        feature=feature,
    )


def _source_row_bytes(source: FeatureSource, first: int, stop: int) -> IntArray | int:
    """Bytes of one row of a feature in files, as ``column_row_bytes`` says it; ragged ones are read."""
    if isinstance(source, RaggedSource):
        return source.lengths(first, stop) * source.element_bytes + OFFSET_BYTES
    return source.row_bytes


def column_row_bytes(column: Column, start: int = 0, stop: int | None = None) -> IntArray | int:
    """Bytes of one row where all rows are alike, else int64[rows] bytes of each row in ``[start, stop)``."""
    if isinstance(column, RaggedArray):
        element_bytes = _row_bytes(column.values.shape[1:], column.values.dtype)
        offsets = column.offsets[start : None if stop is None else stop + 1]
        return np.diff(offsets) * element_bytes + OFFSET_BYTES
    return _row_bytes(column.shape[1:], column.dtype)


def _sum_bytes(columns: Sequence[Column]) -> IntArray | int:
    total: IntArray | int = 0
    for column in columns:
        total = total + column_row_bytes(column)
    return total


def _row_bytes(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> int:
    return int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
