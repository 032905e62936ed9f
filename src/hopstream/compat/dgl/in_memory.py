"""Parts of a graph in memory with their halos, by DGL's count of hops.

An edge belongs to the part of its destination. The halo of a part has the sources of its edges, their sources, and so
on, with the edges between them. It also has the destinations of edges that leave the part, at one hop only.

[Cost] One pass over all edges per hop that finds nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import Array, IntArray
from hopstream.compat.dgl.binary import OrderedRows
from hopstream.compat.dgl.dataset_parts import number_by_owner
from hopstream.compat.dgl.part_files import TRAINER_ID, LocalEdges, LocalNodes, PartSource, mask_name, mask_of
from hopstream.dataset.balance import Owners
from hopstream.graph.graph import Graph
from hopstream.schema import EdgeType

OUTSIDE = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Around:
    """A part with its halo.

    Attributes:
        hops: Node type to int64[num_nodes]: 0 for nodes of the part, the hop of each node of the halo, the number of
            hops plus 1 for nodes that only edges out of the part reach, -1 for all others.
        edge_keys: Edge type to int64[n], ascending keys of the edges within.
    """

    hops: Mapping[str, IntArray]
    edge_keys: Mapping[EdgeType, IntArray]


def around_part(graph: Graph, owners: Owners, part: int, num_hops: int) -> Around:
    """Find the nodes and edges within some hops of a part.

    With 0 hops, only edges between nodes of the part are included. Otherwise all edges into the part are. Each further
    hop adds the edges into nodes of the hop before whose sources the part does not own. Last come all edges out of the
    part.

    Args:
        graph: The graph, checked.
        owners: Node type to integer[num_nodes], the part of each node.
        part: The part.
        num_hops: 0 or more.
    """
    is_inner = {t: owners[t] == part for t in graph.nodes}
    hops: dict[str, IntArray] = {t: np.where(inner, 0, OUTSIDE).astype(np.int64) for t, inner in is_inner.items()}
    is_within: dict[EdgeType, NDArray[np.bool_]] = {}
    for t, edges in graph.edges.items():
        is_within[t] = is_inner[t[2]][edges.dst_keys]
        if not num_hops:
            is_within[t] &= is_inner[t[0]][edges.src_keys]
    for hop in range(1, num_hops + 1):
        found: list[tuple[str, IntArray]] = []
        for t, edges in graph.edges.items():
            leads = hops[t[2]][edges.dst_keys] == hop - 1
            if hop > 1:
                leads &= ~is_inner[t[0]][edges.src_keys]
                is_within[t] |= leads
            found.append((t[0], edges.src_keys[leads]))
        if not _mark(hops, found, hop):
            break
    if num_hops:
        leaving = []
        for t, edges in graph.edges.items():
            leaves = is_inner[t[0]][edges.src_keys] & ~is_inner[t[2]][edges.dst_keys]
            is_within[t] |= leaves
            leaving.append((t[2], edges.dst_keys[leaves]))
        _mark(hops, leaving, num_hops + 1)
    return Around(hops=hops, edge_keys={t: np.flatnonzero(within) for t, within in is_within.items()})


def _mark(hops: Mapping[str, IntArray], found: list[tuple[str, IntArray]], hop: int) -> bool:
    """Set the hop of nodes without one, in place; return whether there were any."""
    any_new = False
    for node_type, keys in found:
        new = keys[hops[node_type][keys] == OUTSIDE]
        hops[node_type][new] = hop
        any_new |= bool(len(new))
    return any_new


class Partitioned(PartSource):
    """A graph in memory, with the part of each node and edge.

    Attributes:
        graph: The graph.
        owners: Node type to int32[num_nodes], the part of each node.
        trainers: Node type to int64[num_nodes], the trainer of each node; empty if each part has one trainer.
        nodes: The new numbers of nodes.
        edges: The new numbers of edges.
    """

    def __init__(
        self, graph: Graph, owners: Owners, trainers: Mapping[str, IntArray], *, num_parts: int, num_hops: int
    ) -> None:
        """Number the nodes and edges of a graph; an edge belongs to the part of its destination."""
        self.graph, self.owners, self.trainers = graph, owners, trainers
        self.schema, self.num_parts, self.num_hops = graph.schema, num_parts, num_hops
        self.has_trainers = bool(trainers)
        edge_owners = {t: owners[t[2]][edges.dst_keys] for t, edges in graph.edges.items()}
        self.nodes, self.edges = number_by_owner(owners, num_parts), number_by_owner(edge_owners, num_parts)
        self.node_ranges, self.edge_ranges = self.nodes.ranges, self.edges.ranges

    def around(self, part: int) -> tuple[LocalNodes, LocalEdges]:
        """Return the nodes and edges within ``num_hops`` of a part; see ``around_part``."""
        around = around_part(self.graph, self.owners, part, self.num_hops)
        return self._local_nodes(around), self._local_edges(around, part)

    def _local_nodes(self, around: Around) -> LocalNodes:
        found: list[tuple[Array, ...]] = []
        for row, (node_type, hops) in enumerate(around.hops.items()):
            keys = np.flatnonzero(hops >= 0)
            owners, number = self.owners[node_type][keys], self.nodes.numbers[node_type][keys]
            found.append((keys, number, hops[keys], owners, np.full(len(keys), row)))
        keys, numbers, hops, parts, types = (np.concatenate(of).astype(np.int64) for of in zip(*found, strict=True))
        return LocalNodes(keys=keys, numbers=numbers, hops=hops, parts=parts, types=types)

    def _local_edges(self, around: Around, part: int) -> LocalEdges:
        none, of_nodes = np.empty(0, np.int64), self.nodes.numbers
        found: list[tuple[Array, ...]] = [(none, none, none, none, none, none.astype(np.bool_))]
        for row, (edge_type, keys) in enumerate(around.edge_keys.items()):
            table = self.graph.edges[edge_type]
            src, dst = of_nodes[edge_type[0]][table.src_keys[keys]], of_nodes[edge_type[2]][table.dst_keys[keys]]
            is_inner = self.owners[edge_type[2]][table.dst_keys[keys]] == part
            found.append((keys, self.edges.numbers[edge_type][keys], src, dst, np.full(len(keys), row), is_inner))
        keys, numbers, src, dst, types, is_inner = map(np.concatenate, zip(*found, strict=True))
        return LocalEdges(keys=keys, numbers=numbers, src_numbers=src, dst_numbers=dst, types=types, is_inner=is_inner)

    def node_columns(self, part: int, node_type: str) -> Iterator[tuple[str, OrderedRows]]:
        """Yield features, trainers and masks of a part's nodes of a type."""
        table, keys = self.graph.nodes[node_type], self.nodes.keys_of_part(node_type, part)
        columns = cast(Mapping[str, Array], table.features)  # check_schema has refused ragged ones
        trainers = {TRAINER_ID: self.trainers[node_type]} if self.trainers else {}
        for name, column in {**columns, **trainers}.items():
            yield name, OrderedRows(array=column, places=keys)
        for split, members in self.graph.splits.get(node_type, {}).items():
            yield mask_name(split), OrderedRows(array=mask_of(keys, [members]))

    def edge_columns(self, part: int, edge_type: EdgeType) -> Iterator[tuple[str, OrderedRows]]:
        """Yield features, trainers and masks of a part's edges; an edge's trainer is its destination's."""
        table, keys = self.graph.edges[edge_type], self.edges.keys_of_part(edge_type, part)
        for name, column in cast(Mapping[str, Array], table.features).items():
            yield name, OrderedRows(array=column, places=keys)
        if self.trainers:
            yield TRAINER_ID, OrderedRows(array=self.trainers[edge_type[2]][table.dst_keys[keys]])
        for split, members in self.graph.edge_splits.get(edge_type, {}).items():
            yield mask_name(split), OrderedRows(array=mask_of(keys, [members]))
