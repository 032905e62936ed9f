"""What is a dataset compared with, and how is that read a stretch at a time?"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from hopstream.arrays import Column, IntArray, RaggedArray
from hopstream.dataset.paths import MANIFEST
from hopstream.dataset.read_back import read_dataset
from hopstream.errors import FormatError
from hopstream.graph.graph import Graph
from hopstream.ingest import read_graph
from hopstream.ingest.chunked import ChunkedGraph, Piece, is_chunked, open_chunked
from hopstream.schema import EdgeType, GraphSchema
from hopstream.uris import local_path

BLOCK_EDGES = 1 << 20

Ends = tuple[int, IntArray, IntArray]
"""The key of the first edge, then the keys of sources and destinations."""

Against = str | os.PathLike[str] | Graph | ChunkedGraph
"""What a dataset can be compared with: a graph, in memory or in chunks, or a path that has one, or a dataset."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reference:
    """A graph that a dataset is compared with.

    Attributes:
        schema: Its types, features and splits.
        num_nodes: Node type to its number of nodes.
        num_edges: Edge type to its number of edges.
        splits: Node type to split name to keys, ascending.
        edge_splits: Edge type to split name to edge keys, ascending.
        rows: Reads rows ``[start, stop)`` of a feature, by type and name.
        ends: Reads the ends of the edges ``[start, stop)`` of a type in blocks, in order.
    """

    schema: GraphSchema
    num_nodes: Mapping[str, int]
    num_edges: Mapping[EdgeType, int]
    splits: Mapping[str, Mapping[str, IntArray]]
    edge_splits: Mapping[EdgeType, Mapping[str, IntArray]]
    rows: Callable[[str | EdgeType, str, int, int], Column]
    ends: Callable[[EdgeType, int, int], Iterator[Ends]]


def open_reference(against: Against) -> Reference:
    """A graph that a dataset is to be compared with; a chunked graph is not loaded.

    Raises:
        FormatError: There is nothing that can be read, or it is damaged.
        SchemaError: What is there makes no graph.
    """
    if isinstance(against, ChunkedGraph):
        return _of_chunked(against)
    if isinstance(against, Graph):
        return _of_graph(against)
    path = local_path(against)
    if not path.exists():
        raise FormatError(f"{path} is missing; give what the dataset was written from")
    if (path / MANIFEST).exists():
        return _of_graph(read_dataset(path))
    metadata = path / "metadata.json" if path.is_dir() else path
    if metadata.suffix == ".json" and metadata.exists() and is_chunked(metadata):
        return _of_chunked(open_chunked(metadata))
    return _of_graph(read_graph(path))


def take_slice(column: Column, start: int, stop: int) -> Column:
    """Rows ``[start, stop)``."""
    return column.take(np.arange(start, stop)) if isinstance(column, RaggedArray) else column[start:stop]


def _of_graph(graph: Graph) -> Reference:
    def rows(owner: str | EdgeType, name: str, start: int, stop: int) -> Column:
        table = graph.nodes[owner] if isinstance(owner, str) else graph.edges[owner]
        return take_slice(table.features[name], start, stop)

    def ends(edge_type: EdgeType, start: int, stop: int) -> Iterator[Ends]:
        table = graph.edges[edge_type]
        for first in range(start, stop, BLOCK_EDGES):
            block = slice(first, min(first + BLOCK_EDGES, stop))
            yield first, table.src_keys[block], table.dst_keys[block]

    return Reference(
        schema=graph.schema,
        num_nodes={t: table.num_nodes for t, table in graph.nodes.items()},
        num_edges={t: table.num_edges for t, table in graph.edges.items()},
        splits=graph.splits,
        edge_splits=graph.edge_splits,
        rows=rows,
        ends=ends,
    )


def _of_chunked(graph: ChunkedGraph) -> Reference:
    pieces: dict[EdgeType, list[Piece]] = {}

    def rows(owner: str | EdgeType, name: str, start: int, stop: int) -> Column:
        table = graph.nodes[owner] if isinstance(owner, str) else graph.edges[owner]
        return table.features[name].read(start, stop)

    def ends(edge_type: EdgeType, start: int, stop: int) -> Iterator[Ends]:
        source = graph.edges[edge_type].ends
        if edge_type not in pieces:
            pieces[edge_type] = source.pieces(BLOCK_EDGES)
        for piece in pieces[edge_type]:
            if piece.first < stop and piece.stop > start:
                for first, src_keys, dst_keys in source.read(piece):
                    begin, end = max(start - first, 0), min(stop - first, len(src_keys))
                    if begin < end:
                        yield first + begin, src_keys[begin:end], dst_keys[begin:end]

    return Reference(
        schema=graph.schema,
        num_nodes={t: nodes.num_nodes for t, nodes in graph.nodes.items()},
        num_edges={t: edges.num_edges for t, edges in graph.edges.items()},
        splits=graph.splits,
        edge_splits={},
        rows=rows,
        ends=ends,
    )
