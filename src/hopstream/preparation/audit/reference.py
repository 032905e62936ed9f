"""Opens the graph that a dataset is compared with, to be read a stretch at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from hopstream.arrays import Column, IntArray
from hopstream.dataset.paths import MANIFEST
from hopstream.dataset.read_back import read_dataset
from hopstream.errors import FormatError
from hopstream.graph.graph import Graph
from hopstream.ingest import read_graph
from hopstream.ingest.chunked import ChunkedGraph, Piece, chunked_of_graph, is_chunked, open_chunked
from hopstream.ingest.chunked.sources import Ends
from hopstream.schema import EdgeType, GraphSchema
from hopstream.uris import local_path

BLOCK_EDGES = 1 << 20

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
        graph: What features and edges are read from.
    """

    schema: GraphSchema
    num_nodes: Mapping[str, int]
    num_edges: Mapping[EdgeType, int]
    splits: Mapping[str, Mapping[str, IntArray]]
    edge_splits: Mapping[EdgeType, Mapping[str, IntArray]]
    graph: ChunkedGraph
    _pieces: dict[EdgeType, list[Piece]] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: Graph | ChunkedGraph) -> Reference:
        """A graph as a reference; nothing of it is copied."""
        chunked = chunked_of_graph(graph) if isinstance(graph, Graph) else graph
        return cls(
            schema=graph.schema,
            num_nodes={t: nodes.num_nodes for t, nodes in chunked.nodes.items()},
            num_edges={t: edges.num_edges for t, edges in chunked.edges.items()},
            splits=graph.splits,
            edge_splits=graph.edge_splits if isinstance(graph, Graph) else {},
            graph=chunked,
        )

    def rows(self, owner: str | EdgeType, name: str, start: int, stop: int) -> Column:
        """Rows ``[start, stop)`` of a feature."""
        table = self.graph.nodes[owner] if isinstance(owner, str) else self.graph.edges[owner]
        return table.features[name].read(start, stop)

    def ends(self, edge_type: EdgeType, start: int, stop: int) -> Iterator[Ends]:
        """The ends of the edges ``[start, stop)`` of a type in blocks, in order."""
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
    """A graph that a dataset is to be compared with; a chunked graph is not loaded.

    Raises:
        FormatError: There is nothing that can be read, or it is damaged.
        SchemaError: What is there makes no graph.
    """
    if isinstance(against, Graph | ChunkedGraph):
        return Reference.of(against)
    path = local_path(against)
    if not path.exists():
        raise FormatError(f"{path} is missing; give what the dataset was written from")
    if (path / MANIFEST).exists():
        return Reference.of(read_dataset(path))
    metadata = path / "metadata.json" if path.is_dir() else path
    if metadata.suffix == ".json" and metadata.exists() and is_chunked(metadata):
        return Reference.of(open_chunked(metadata))
    return Reference.of(read_graph(path))
