"""Interface of assignment to a graph or a dataset: counts, bytes of rows, splits, and blocks of edges.

A graph in memory, a chunked folder and a dataset (``open_dataset_source``) all become an ``AssignSource``.

Edges come part by part, in the order in which they are stored. Keys of edges are not needed. Methods that read edges
group them by node first, so their result does not depend on the order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hopstream.arrays import Array, Column, IntArray
from hopstream.dataset.book import EdgeEntity, Entity, ends_of
from hopstream.dataset.read_back import neighbors_of, node_column
from hopstream.dataset.rows import INDICES, DatasetRows, RowBlock, open_rows
from hopstream.graph.graph import Graph
from hopstream.ingest.chunked import (
    ChunkedGraph,
    FeatureSource,
    RaggedSource,
    chunked_of_graph,
    fixed_features,
    ragged_features,
)
from hopstream.ingest.chunked.sources import keys_of_mask
from hopstream.schema import EdgeType, GraphSchema

BLOCK_EDGES = 1 << 20
OFFSET_BYTES = 8

EdgeBlocks = Iterator[tuple[Any, IntArray, IntArray]]
"""Blocks of edges: the place of a block for ``EdgeRows.ragged_bytes``, then int64 source and destination keys."""
EdgePieces = Iterator[Callable[[], EdgeBlocks]]
"""Functions that each read one run of blocks of edges of a type; threads may call them in parallel."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EdgeRows:
    """The edges of one type.

    Attributes:
        num_edges: Number of edges.
        row_bytes: Bytes of the fixed-width features of one edge.
        ragged_bytes: Maps a block's place and its number n of edges to int64[n], the bytes of the ragged features of
            each edge; None if there are no ragged features.
        pieces: Returns the runs that cover all edges; each run is some blocks.
    """

    num_edges: int
    row_bytes: int
    ragged_bytes: Callable[[Any, int], IntArray] | None
    pieces: Callable[[], EdgePieces]

    def blocks(self) -> EdgeBlocks:
        """Read all edges, always in the same order."""
        for read in self.pieces():
            yield from read()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AssignSource:
    """Graph as assignment sees it.

    Attributes:
        num_nodes: Node type to its number of nodes.
        node_bytes: Returns the bytes of the features of one node of a type, or int64[num_nodes] if they differ.
        edges: Edge type to its edges.
        split: Reads the int64 keys of a split, by node type and name, in blocks.
        schema: The types and features.
        feature: Reads a whole node feature, by type and name.
        folder: Folder of the source; None for a graph in memory.
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
        """Number of edges of all types."""
        return sum(edges.num_edges for edges in self.edges.values())


def source_of(graph: Graph | ChunkedGraph | AssignSource) -> AssignSource:
    """Wrap a graph in memory (checking it) or a chunked folder for assignment."""
    if isinstance(graph, AssignSource):
        return graph
    chunked = chunked_of_graph(graph) if isinstance(graph, Graph) else graph

    def node_bytes(node_type: str) -> int | IntArray:
        nodes = chunked.nodes[node_type]
        return sum(_row_bytes(source, 0, nodes.num_nodes) for source in nodes.features.values())

    def feature(node_type: str, name: str) -> Column:
        source = chunked.nodes[node_type].features[name]
        return source.read(0, source.num_rows)

    return AssignSource(
        num_nodes={t: nodes.num_nodes for t, nodes in chunked.nodes.items()},
        node_bytes=node_bytes,
        edges={t: _edge_rows(chunked, t) for t in chunked.edges},
        split=lambda node_type, name: keys_of_mask(chunked.nodes[node_type].masks[name]),
        schema=chunked.schema,
        feature=feature,
    )


def folder_of(graph: Graph | ChunkedGraph | AssignSource) -> Path | None:
    """Return the folder of a graph; None for a graph in memory."""
    if isinstance(graph, Graph):
        return None
    if isinstance(graph, AssignSource):
        return graph.folder
    return graph.root if (graph.root / graph.metadata_filename).is_file() else None


def _edge_rows(graph: ChunkedGraph, edge_type: EdgeType) -> EdgeRows:
    edges = graph.edges[edge_type]
    ragged = ragged_features(edges.features).values()

    def ragged_bytes(first: int, num_edges: int) -> IntArray:
        total = np.zeros(num_edges, np.int64)
        for source in ragged:
            total += _row_bytes(source, first, first + num_edges)
        return total

    return EdgeRows(
        num_edges=edges.num_edges,
        row_bytes=sum(source.row_bytes for source in fixed_features(edges.features).values()),
        ragged_bytes=ragged_bytes if ragged else None,
        pieces=lambda: (partial(edges.ends.read, piece) for piece in edges.ends.pieces(BLOCK_EDGES)),
    )


def _row_bytes(source: FeatureSource, first: int, stop: int) -> IntArray | int:
    """Return the bytes of one row of a feature, or int64[stop - first] for ragged features."""
    if isinstance(source, RaggedSource):
        return source.lengths(first, stop) * source.element_bytes + OFFSET_BYTES
    return source.row_bytes


def open_dataset_source(root: str | Path) -> AssignSource:
    """Open a dataset of any number of parts for assignment.

    Raises:
        FormatError: The folder is no dataset of a format that this version reads, or a file is missing.
        ChecksumError: A file that assignment needs to find nodes or edges does not match its checksum.
    """
    rows = open_rows(root)
    rows.check_files(rows.leading_files)
    first = rows.contents.directions[0]
    for edge_type in rows.contents.schema.edges:
        rows.check_files(str(folder / INDICES) for folder in rows.folders((edge_type, first)))
    return source_of_rows(rows)


def source_of_rows(rows: DatasetRows) -> AssignSource:
    """Wrap a dataset for assignment.

    [Cost] Memory for the keys of all ids, 4 bytes each, and for the sizes of nodes' rows if they differ.
    """
    source, schema = _Source(rows), rows.contents.schema
    return AssignSource(
        num_nodes={t: rows.book.num_ids(t) for t in schema.nodes},
        node_bytes=source.node_bytes,
        edges={t: source.edge_rows(t) for t in schema.edges},
        split=lambda node_type, name: rows.splits(node_type, name, BLOCK_EDGES),
        schema=schema,
        feature=source.feature,
        folder=rows.root,
    )


class _Source:
    """Rows of a dataset, and the keys of its ids, which are read on first use."""

    def __init__(self, rows: DatasetRows) -> None:
        self._rows = rows
        self._keys: dict[str, Array] = {}

    def _keys_of(self, node_type: str) -> Array:
        if node_type not in self._keys:
            self._keys[node_type] = self._rows.keys_of_ids(node_type)
        return self._keys[node_type]

    def node_bytes(self, node_type: str) -> int | IntArray:
        columns = self._rows.columns(node_type)
        num_bytes = sum(column.item_bytes for column in columns.fixed)
        if not columns.ragged:
            return num_bytes
        by_key = np.full(self._rows.book.num_ids(node_type), num_bytes, np.int64)
        for block in self._rows.blocks(node_type, BLOCK_EDGES):
            by_key[self._keys_of(node_type)[block.row_ids]] += self._ragged_bytes(node_type, block)
        return by_key

    def feature(self, node_type: str, name: str) -> Column:
        return node_column(self._rows, node_type, name, self._keys_of(node_type))

    def edge_rows(self, edge_type: EdgeType) -> EdgeRows:
        entity = (edge_type, self._rows.contents.directions[0])
        fixed = (f for f in self._rows.contents.schema.edges[edge_type].values() if f.is_fixed_width)
        has_ragged = bool(self._rows.columns(entity).ragged)
        return EdgeRows(
            num_edges=self._rows.book.num_edges(edge_type),
            row_bytes=sum(feature.row_bytes for feature in fixed),
            ragged_bytes=(lambda block, _: self._ragged_bytes(entity, block)) if has_ragged else None,
            # One thread reads the files of a dataset.
            pieces=lambda: (partial(iter, (block,)) for block in self._blocks(entity)),
        )

    def _blocks(self, entity: EdgeEntity) -> EdgeBlocks:
        own_type, other_type = ends_of(*entity)
        for block in self._rows.blocks(entity, BLOCK_EDGES):
            own = np.repeat(self._keys_of(own_type)[block.row_ids], block.counts).astype(np.int64)
            other = self._keys_of(other_type)[neighbors_of(self._rows, entity, block)].astype(np.int64)
            yield (block, other, own) if entity[1] == "in" else (block, own, other)

    def _ragged_bytes(self, entity: Entity, block: RowBlock) -> IntArray:
        """Return int64[items], the bytes of the ragged features of a block's items."""
        found = np.zeros(int(block.counts.sum()), np.int64)
        for column in self._rows.columns(entity).ragged:
            _, lengths = self._rows.element_spans(entity, column, block.piece, block.starts, block.counts)
            found += lengths * column.values.item_bytes + OFFSET_BYTES
        return found
