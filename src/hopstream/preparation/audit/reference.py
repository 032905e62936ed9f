"""Opens the graph to compare a dataset with, and reads, compares and sums rows of columns."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hopstream.arrays import (
    CHUNK_BYTES,
    Array,
    Column,
    IntArray,
    RaggedArray,
)
from hopstream.dataset.copying.local_copy import source_path
from hopstream.dataset.paths import MANIFEST
from hopstream.dataset.read_back import read_dataset
from hopstream.errors import FormatError
from hopstream.graph.graph import Graph
from hopstream.ingest import read_graph
from hopstream.ingest.chunked import ChunkedGraph, EdgeRange, chunked_of_graph, is_chunked, open_chunked
from hopstream.ingest.chunked.sources import Ends
from hopstream.schema import EdgeType, FeatureSchema, GraphSchema

MAX_BLOCK_ROWS = 1 << 18
RAGGED_BLOCK_ROWS = 1 << 14


def block_rows(feature: FeatureSchema) -> int:
    """Return the number of rows that are compared at a time."""
    if not feature.is_fixed_width:
        return RAGGED_BLOCK_ROWS
    return min(MAX_BLOCK_ROWS, max(1, CHUNK_BYTES // max(1, feature.row_bytes)))


def differing_rows(got: Column, want: Column) -> IntArray:
    """Return int64[n], the rows in which the bytes of two columns of equal length differ."""
    if isinstance(got, RaggedArray) and isinstance(want, RaggedArray):
        differs = np.diff(got.offsets) != np.diff(want.offsets)
        alike = np.flatnonzero(~differs)
        left, right = got.take(alike), want.take(alike)
        items = differing_items(left.values, right.values)
        differs[alike[np.searchsorted(left.offsets, items, side="right") - 1]] = True
        return np.flatnonzero(differs)
    if isinstance(got, np.ndarray) and isinstance(want, np.ndarray):
        return differing_items(got, want)
    return np.arange(len(got))


def differing_items(got: Array, want: Array) -> IntArray:
    """Return int64[n], the rows in which the bytes of two arrays of one dtype and shape differ."""
    if not got.size:
        return np.empty(0, np.int64)
    left, right = (np.ascontiguousarray(a).view(np.uint8).reshape(len(a), -1) for a in (got, want))
    return np.flatnonzero((left != right).any(axis=1))


BLOCK_EDGES = 1 << 20

Against = str | os.PathLike[str] | Graph | ChunkedGraph
"""Source of a comparison: a graph in memory or in chunks, or the path of a graph or a dataset."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reference:
    """Graph that a dataset is compared with.

    Attributes:
        schema: Types, features and splits.
        num_nodes: Node type to its number of nodes.
        num_edges: Edge type to its number of edges.
        splits: Node type to split name to keys, ascending.
        edge_splits: Edge type to split name to edge keys, ascending.
        graph: Chunked graph that features and edges are read from.
    """

    schema: GraphSchema
    num_nodes: Mapping[str, int]
    num_edges: Mapping[EdgeType, int]
    splits: Mapping[str, Mapping[str, IntArray]]
    edge_splits: Mapping[EdgeType, Mapping[str, IntArray]]
    graph: ChunkedGraph
    _pieces: dict[EdgeType, list[EdgeRange]] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: Graph | ChunkedGraph) -> Reference:
        """Wrap a graph without copying it."""
        chunked = chunked_of_graph(graph) if isinstance(graph, Graph) else graph
        return cls(
            schema=graph.schema,
            num_nodes={t: nodes.num_nodes for t, nodes in chunked.nodes.items()},
            num_edges={t: edges.num_edges for t, edges in chunked.edges.items()},
            splits=graph.splits,
            edge_splits=graph.edge_splits if isinstance(graph, Graph) else {},
            graph=chunked,
        )

    def rows(self, entity: str | EdgeType, name: str, start: int, stop: int) -> Column:
        """Return rows ``[start, stop)`` of a feature."""
        table = self.graph.nodes[entity] if isinstance(entity, str) else self.graph.edges[entity]
        return table.features[name].read(start, stop)

    def ends(self, edge_type: EdgeType, start: int, stop: int) -> Iterator[Ends]:
        """Yield the ends of the edges ``[start, stop)`` of a type in blocks, in order."""
        source = self.graph.edges[edge_type].ends
        if edge_type not in self._pieces:
            self._pieces[edge_type] = source.pieces(BLOCK_EDGES)
        for piece in self._pieces[edge_type]:
            if piece.first < stop and piece.stop > start:
                for first, src_keys, dst_keys in source.read(piece):
                    begin, end = max(start - first, 0), min(stop - first, len(src_keys))
                    if begin < end:
                        yield first + begin, src_keys[begin:end], dst_keys[begin:end]


def open_reference(against: Against) -> Reference:
    """Open the graph to compare a dataset with; a chunked graph is not loaded.

    Raises:
        FormatError: There is nothing readable, or it is damaged.
        SchemaError: The source does not form a graph.
    """
    if isinstance(against, Graph | ChunkedGraph):
        return Reference.of(against)
    path = source_path(against)
    if not path.exists():
        raise FormatError(f"{path} is missing; give what the dataset was written from")
    if isinstance(path, Path) and (path / MANIFEST).exists():
        return Reference.of(read_dataset(path))
    metadata = path / "metadata.json" if path.is_dir() else path
    if metadata.suffix == ".json" and metadata.exists() and is_chunked(metadata):
        return Reference.of(open_chunked(metadata))
    return Reference.of(read_graph(path))
