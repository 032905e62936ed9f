"""Columns of the parts of a partitioned graph, computed one after the other.

The writer of a folder writes each column to a file; a dataset in memory keeps it. Edges are grouped one edge type and
direction at a time, so the largest of these determines the peak memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import PurePosixPath

import numpy as np

from hopstream.arrays import IntArray
from hopstream.dataset.balance import Owners
from hopstream.dataset.book import PartitionBook, ends_of
from hopstream.dataset.paths import edge_folder, link_folder, node_folder, split_path
from hopstream.dataset.settings import PartitionSettings, Progress
from hopstream.dataset.split import NodeSplit, split_edges, split_nodes
from hopstream.dataset.stored_columns import (
    EdgeRun,
    StoredColumn,
    edge_columns,
    edge_times,
    feature_columns,
    integers,
    sort_by_time,
    weights_of,
)
from hopstream.graph.graph import Graph
from hopstream.schema import Direction, EdgeType, GraphSchema


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _GroupedEdges:
    """All edges of one type and direction in stored order.

    Attributes:
        offsets: int64[num_parts + 1], the range of edge ids that each part owns.
        row_offsets: int64[num_parts + 1], the range of rows of ``run.indptr`` that each part owns.
        run: The edges of all parts.
    """

    offsets: IntArray
    row_offsets: IntArray
    run: EdgeRun


@dataclass(frozen=True, slots=True)
class PartColumns:
    """Columns of a graph's parts.

    Attributes:
        graph: The graph, already checked.
        schema: Its schema, with the edge types whose links are stored.
        settings: How it is partitioned, and what parts store.
        keep: Called with each column, whose blocks it reads before it returns.
        progress: Called as ``progress("write", done, total)``, a table of one part at a time.
    """

    graph: Graph
    schema: GraphSchema
    settings: PartitionSettings
    keep: Callable[[StoredColumn], None]
    progress: Progress

    def store(self, owners: Owners) -> PartitionBook:
        """Store all nodes, then all edges, then all links; return the ranges of ids."""
        num_parts = self.settings.num_parts
        owners_of_edges = [(t, d) for t in self.graph.edges for d in self.settings.directions]
        advance = self._advance(
            num_parts * (len(self.graph.nodes) + len(owners_of_edges) + len(self.schema.edge_splits))
        )
        nodes: dict[str, NodeSplit] = {}
        for node_type in self.graph.nodes:
            nodes[node_type] = split_nodes(owners[node_type], num_parts)
            for part in range(num_parts):
                self._store_nodes(part, node_type, nodes[node_type])
                advance()
        edge_offsets: dict[tuple[EdgeType, Direction], IntArray] = {}
        for edge_type, direction in owners_of_edges:
            edges = self._grouped(edge_type, direction, nodes)
            edge_offsets[edge_type, direction] = edges.offsets
            for part in range(num_parts):
                self._store_edges(edge_folder(part, edge_type, direction), edges, part)
                advance()
        for edge_type in self.schema.edge_splits:
            for part in range(num_parts):
                self._store_links(part, edge_type)
                advance()
        return PartitionBook(
            num_parts=num_parts,
            node_offsets={t: split.offsets for t, split in nodes.items()},
            edge_offsets=edge_offsets,
        )

    def _advance(self, total: int) -> Callable[[], None]:
        """Make a function that reports one more written table per call."""
        done = count(1)
        self.progress("write", 0, total)
        return lambda: self.progress("write", next(done), total)

    def _grouped(self, edge_type: EdgeType, direction: Direction, nodes: Mapping[str, NodeSplit]) -> _GroupedEdges:
        """Return the edges of one type and direction in stored order."""
        table = self.graph.edges[edge_type]
        own_type, other_type = ends_of(edge_type, direction)
        split = split_edges(table, edge_type, direction, nodes)
        times = edge_times(self.graph, edge_type, direction, nodes, self.settings.time_attr)
        if times is not None:
            sort_by_time(split, times)
        run = EdgeRun(
            indptr=split.indptr,
            indices=split.indices,
            keys=split.keys,
            places=split.keys,
            neighbor_keys=nodes[other_type].keys,
            times=times,
            weights=weights_of(table.features, self.settings.weight_attr),
            features=table.features,
        )
        return _GroupedEdges(offsets=split.offsets, row_offsets=nodes[own_type].offsets, run=run)

    def _store_nodes(self, part: int, node_type: str, split: NodeSplit) -> None:
        folder = node_folder(part, node_type)
        keys = split.keys[split.offsets[part] : split.offsets[part + 1]]
        num_nodes, num_parts = len(split.keys), self.settings.num_parts
        first, stop = part * num_nodes // num_parts, (part + 1) * num_nodes // num_parts
        self.keep(integers(folder / "key.npy", keys))
        self.keep(integers(folder / "id_of_key.npy", split.ids_of_keys[first:stop]))
        self._store_splits(folder, self.graph.splits.get(node_type, {}), first, stop)
        for column in feature_columns(folder, self.graph.nodes[node_type].features, keys):
            self.keep(column)

    def _store_edges(self, folder: PurePosixPath, edges: _GroupedEdges, part: int) -> None:
        run = edges.run.rows(int(edges.row_offsets[part]), int(edges.row_offsets[part + 1]))
        self.keep(integers(folder / "indptr.npy", run.indptr))
        for column in edge_columns(folder, run, self.settings):
            self.keep(column)

    def _store_links(self, part: int, edge_type: EdgeType) -> None:
        """Store the ends, times and splits of the edges whose keys the part keeps."""
        folder, edges = link_folder(part, edge_type), self.graph.edges[edge_type]
        first, stop = (edges.num_edges * p // self.settings.num_parts for p in (part, part + 1))
        self.keep(integers(folder / "src_key.npy", edges.src_keys[first:stop]))
        self.keep(integers(folder / "dst_key.npy", edges.dst_keys[first:stop]))
        times = edges.features.get(self.settings.time_attr) if self.settings.time_attr is not None else None
        if isinstance(times, np.ndarray):
            self.keep(integers(folder / "time.npy", times[first:stop]))
        self._store_splits(folder, self.graph.edge_splits.get(edge_type, {}), first, stop)

    def _store_splits(self, folder: PurePosixPath, splits: Mapping[str, IntArray], first: int, stop: int) -> None:
        """Store the keys of each split that lie in ``[first, stop)``."""
        for name, keys in splits.items():
            begin, end = np.searchsorted(keys, (first, stop))
            self.keep(integers(split_path(folder, name), keys[begin:end]))
