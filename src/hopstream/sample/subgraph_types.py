"""Bidirectional and induced subgraphs: adds reverse edges, or replaces the drawn edges.

*Bidirectional*: adds the reverse of every drawn edge. For an edge type that is its own reverse, drawn edges are
mirrored, and a mirrored edge keeps the id of its original. Parallel edges are mirrored one by one. An edge is not
mirrored if an edge in the other direction was drawn between the same nodes. If another edge type holds the reverses,
each drawn pair of nodes without a drawn reverse gets the first stored edge of that type between them, if there is one.

*Induced*: all edges between the sampled nodes, of the edge types in ``SamplePlan.directions_over``. They are grouped by
the node that an op of their direction expands, in the order of slots. PyG includes edge types without a fan-out too,
and so does TF-GNN with ``edge_aggregation_method="node"``.

Source: ``hetero_sample`` in pytorch_sparse's ``neighbor_sample_cpu.cpp``; ``find_connecting_edges`` in TF-GNN's
``sampler/unsupported/sampling_lib.py``.

Neither kind adds edges between excluded nodes, edges after a tree's time, or edges between trees.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import IntArray
from hopstream.kernels.relabel import pack_neighbors, repeat_slots
from hopstream.sample.plan import SamplePlan
from hopstream.sample.slots import EdgeBuffer, OpRequests, SlotMap, pairs_of_slots, slots_of_pairs
from hopstream.schema import Direction, EdgeType
from hopstream.store.contract import TREE_SHIFT, FetchRequest, SampleReply, Store

Nodes = Mapping[str, SlotMap]
Edges = Mapping[EdgeType, EdgeBuffer]


class Mirror:
    """Converter of subgraphs to bidirectional ones."""

    def __init__(self, store: Store, plan: SamplePlan, requests: OpRequests) -> None:
        """Find the reverse of each edge type that a plan follows."""
        self._store = store
        self._requests = requests
        self._is_inclusive = plan.settings.time_inclusive
        self._directions, self._direction = plan.directions, plan.direction_over(store)
        self._own: list[EdgeType] = []
        self._reversed_by: dict[EdgeType, list[EdgeType]] = {}
        for edge_type in plan.directions:
            reverse = plan.reverse_of(edge_type)
            if reverse == edge_type:
                self._own.append(edge_type)
            elif reverse is not None:
                self._reversed_by.setdefault(reverse, []).append(edge_type)
        self._pairs = SlotMap()

    def complete(self, nodes: Nodes, edges: Edges, times: IntArray | None) -> None:
        """Append the reverses of the drawn edges to the buffers.

        Args:
            nodes: Slots of each node type.
            edges: Edges of each edge type; changed in place.
            times: int64[num_trees], the time of each tree; None if the plan is not temporal.
        """
        num_drawn = {t: buffer.num_edges for t, buffer in edges.items()}
        for edge_type in self._own:
            self._mirror(edge_type, nodes[edge_type[0]], edges[edge_type])
        for reverse, edge_types in self._reversed_by.items():
            drawn = [edges[t].slots[:, : num_drawn[t]] for t in edge_types]
            pairs = self._missing_pairs(edges[reverse], np.concatenate(drawn, axis=1))
            if len(pairs):
                self._add_true_edges(reverse, nodes, edges[reverse], pairs, times)

    def _mirror(self, edge_type: EdgeType, nodes: SlotMap, edges: EdgeBuffer) -> None:
        src_slots, dst_slots = edges.slots[:, : edges.num_edges]
        pairs = self._pairs
        pairs.reset()
        pairs.assign(pairs_of_slots(src_slots, dst_slots), np.empty(edges.num_edges, np.int64))
        is_missing = pairs.find(pairs_of_slots(dst_slots, src_slots)) < 0
        if edge_type in self._requests.excluded:
            excluded, ids = self._requests.excluded[edge_type], nodes.ids()
            is_missing &= ~excluded.join(ids[dst_slots], ids[src_slots])
        edges.append(dst_slots[is_missing], src_slots[is_missing], edges.edge_ids[: edges.num_edges][is_missing])

    def _missing_pairs(self, edges: EdgeBuffer, drawn: IntArray) -> IntArray:
        """Return the reversed pairs of the drawn edges that ``edges`` lacks, in order of first occurrence."""
        pairs = self._pairs
        pairs.reset()
        pairs.assign(pairs_of_slots(*edges.slots[:, : edges.num_edges]), np.empty(edges.num_edges, np.int64))
        num_known = pairs.num_nodes
        pairs.assign(pairs_of_slots(drawn[1], drawn[0]), np.empty(drawn.shape[1], np.int64))
        return pairs.ids()[num_known:]

    def _add_true_edges(
        self, edge_type: EdgeType, nodes: Nodes, edges: EdgeBuffer, pairs: IntArray, times: IntArray | None
    ) -> None:
        slots = slots_of_pairs(pairs)
        ids = nodes[edge_type[0]].ids()[slots[0]], nodes[edge_type[2]].ids()[slots[1]]
        direction = self._directions.get(edge_type, self._direction)
        expanded, neighbor = (1, 0) if direction == "in" else (0, 1)
        edge_ids = self._store.find_edges(edge_type, direction, ids[expanded], ids[neighbor])
        kept = np.flatnonzero(edge_ids >= 0)
        if edge_type in self._requests.excluded:
            kept = kept[~self._requests.excluded[edge_type].join(ids[0][kept], ids[1][kept])]
        trees = nodes[edge_type[0]].trees()
        if times is not None and trees is not None:
            limits = times[trees[slots[0][kept]]]
            kept = kept[self._is_visible((edge_type, direction), edge_ids[kept], ids[neighbor][kept], limits)]
        edges.append(slots[0][kept], slots[1][kept], edge_ids[kept])

    def _is_visible(
        self, entity: tuple[EdgeType, Direction], edge_ids: IntArray, neighbor_ids: IntArray, limits: IntArray
    ) -> NDArray[np.bool_]:
        """Return bool[n], whether edges are within the time limits; the first parallel edge is the earliest."""
        store, time_attr = self._store, self._store.time_attr
        if time_attr is None or not len(edge_ids):
            return np.ones(len(edge_ids), np.bool_)
        neighbor_type = entity[0][0] if entity[1] == "in" else entity[0][2]
        requests = []
        if time_attr in store.schema.edges[entity[0]]:
            requests.append(FetchRequest(entity=entity, names=(time_attr,), ids=edge_ids))
        if time_attr in store.schema.nodes[neighbor_type]:
            requests.append(FetchRequest(entity=neighbor_type, names=(time_attr,), ids=neighbor_ids))
        is_visible = np.ones(len(edge_ids), np.bool_)
        for columns in store.fetch(requests) if requests else []:
            times = cast(IntArray, columns[time_attr]).astype(np.int64)
            is_visible &= times <= limits if self._is_inclusive else times < limits
        return is_visible


class Inducer:
    """Converter of subgraphs to induced ones."""

    def __init__(self, store: Store, plan: SamplePlan, requests: OpRequests) -> None:
        """Take the edge types of a plan over a store."""
        self._store = store
        self._requests = requests
        self._directions = plan.directions_over(store)

    def complete(self, nodes: Nodes, edges: Edges) -> None:
        """Replace the drawn edges by all edges between the sampled nodes, with one call of the store.

        Args:
            nodes: Slots of each node type.
            edges: Edges of each edge type; overwritten.
        """
        asked = []
        for edge_type, direction in self._directions.items():
            edges[edge_type].num_edges = 0
            ends = nodes[edge_type[2]], nodes[edge_type[0]]
            expanded, found = ends if direction == "in" else ends[::-1]
            if expanded.num_nodes and found.num_nodes:
                asked.append((edge_type, direction, expanded, found))
        # Ids, or pairs of tree and id; distinct, because each node has one slot. Edge types share them.
        members = {found: np.sort(found.node_ids[: found.num_nodes]) for _, _, _, found in asked}
        requests = [
            self._requests.between(edge_type, direction, expanded.ids(), expanded.trees(), members[found])
            for edge_type, direction, expanded, found in asked
        ]
        replies = self._store.sample(requests) if requests else []
        for (edge_type, direction, expanded, found), reply in zip(asked, replies, strict=True):
            expanded_slots, found_slots, edge_ids = _slots_of_reply(reply, expanded, found)
            if direction == "in":
                edges[edge_type].append(found_slots, expanded_slots, edge_ids)
            else:
                edges[edge_type].append(expanded_slots, found_slots, edge_ids)


def _slots_of_reply(
    reply: SampleReply, expanded: SlotMap, found: SlotMap
) -> tuple[IntArray, IntArray, IntArray | None]:
    """Return the slots of expanded nodes and of neighbours, and edge ids, int64[n] each."""
    expanded_slots = np.empty(len(reply.neighbor_ids), np.int64)
    repeat_slots(0, reply.counts, expanded_slots, 0)
    trees = expanded.trees()
    if trees is None:
        return expanded_slots, found.find(reply.neighbor_ids), reply.edge_ids
    pairs = np.empty(len(reply.neighbor_ids), np.int64)
    pack_neighbors(reply.neighbor_ids, reply.counts, trees, TREE_SHIFT, pairs)
    return expanded_slots, found.find(pairs), reply.edge_ids
