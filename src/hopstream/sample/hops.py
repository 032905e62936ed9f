"""How is a plan run, hop by hop, over a store?

Each level of a plan is one call of the store; its replies are relabelled in plan order, so the result does not depend
on where the parts are or who answered first. Where all parts are mapped here, each op is one fused kernel instead.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import IntArray
from hopstream.errors import SettingsError
from hopstream.graph.subgraph import SampledEdges, Subgraph
from hopstream.kernels.relabel import repeat_slots
from hopstream.sample.fused import FusedSampler
from hopstream.sample.plan import SEEDS, SampleOp, SamplePlan
from hopstream.sample.slots import EdgeBuffer, SlotMap, SlotRange
from hopstream.schema import EdgeType
from hopstream.store.contract import SampleReply, SampleRequest, Store
from hopstream.store.local import LocalStore


class PlanRunner:
    """Runs one plan over one store, again and again, in reused memory. One thread uses one runner."""

    def __init__(self, store: Store, plan: SamplePlan) -> None:
        """Check the plan against the store.

        Raises:
            UnknownNameError: The store's graph has no such node type or edge type.
            SettingsError: The dataset does not hold a direction that the plan follows.
        """
        store.schema.check_node_type(plan.seed_type)
        for op in plan.ops:
            store.schema.check_edge_type(op.edge_type)
            if op.direction not in store.directions:
                raise SettingsError(
                    f"op {op.name!r} follows direction {op.direction!r}; the dataset holds "
                    f"{'|'.join(store.directions)}; write the parts with direction {op.direction!r} or 'both'"
                )
        self._store = store
        self._plan = plan
        self._levels = plan.levels()
        self._salts = {op.name: op.rng_salt for op in plan.ops}
        self._directions = {op.edge_type: op.direction for op in plan.ops}
        self._fused = FusedSampler(store) if isinstance(store, LocalStore) and store.is_whole else None
        self._slots = {node_type: SlotMap() for node_type in store.schema.nodes}
        self._edges = {edge_type: EdgeBuffer() for edge_type in store.schema.edges}

    def run(self, seed_ids: IntArray, rng_seed: int) -> Subgraph:
        """Sample the subgraph of some seeds.

        Args:
            seed_ids: int64[n], distinct ids of the plan's seed type.
            rng_seed: 64 bits; the draws are a function of it and of the nodes' keys.

        Returns:
            A subgraph whose arrays are valid until the next call: copy what must outlive it.

        Raises:
            SettingsError: A seed is given twice.
        """
        plan = self._plan
        for slot_map in self._slots.values():
            slot_map.reset()
        for buffer in self._edges.values():
            buffer.num_edges = 0
        seeds = self._slots[plan.seed_type]
        seeds.assign(seed_ids, np.empty(len(seed_ids), np.int64))
        found: dict[str, SlotRange] = {SEEDS: (0, seeds.num_nodes)}
        if seeds.num_nodes != len(seed_ids):
            raise SettingsError(f"{len(seed_ids)} seeds hold {seeds.num_nodes} distinct nodes; give each node once")
        num_nodes = {t: [m.num_nodes] for t, m in self._slots.items()}
        num_edges: dict[EdgeType, list[int]] = {t: [] for t in self._edges}
        for level in self._levels:
            self._run_level(level, found, rng_seed)
            self._count(num_nodes, num_edges)
        for _ in range(plan.num_hops - len(self._levels)):
            self._count(num_nodes, num_edges)
        return self._subgraph(num_nodes, num_edges)

    def _run_level(self, level: list[SampleOp], found: dict[str, SlotRange], rng_seed: int) -> None:
        frontiers = [_merge([found[name] for name in op.inputs]) for op in level]
        active = [(op, ranges) for op, ranges in zip(level, frontiers, strict=True) if ranges]
        requests = [self._request(op, ranges, rng_seed) for op, ranges in active]
        replies = self._store.sample(requests) if requests and self._fused is None else []
        for op in level:
            end = self._slots[op.found_type].num_nodes
            found[op.name] = (end, end)
        for index, (op, ranges) in enumerate(active):
            neighbors, edges = self._slots[op.found_type], self._edges[op.edge_type]
            first_new, first_edge = neighbors.num_nodes, edges.num_edges
            found_row, expanded_row = (0, 1) if op.direction == "in" else (1, 0)
            if self._fused is not None:
                counts = self._fused.sample(requests[index], neighbors, edges, found_row)
            else:
                counts = _add_reply(replies[index], neighbors, edges, found_row)
            _repeat_frontier(ranges, counts, edges.slots[expanded_row], first_edge)
            found[op.name] = (first_new, neighbors.num_nodes)

    def _request(self, op: SampleOp, ranges: list[SlotRange], rng_seed: int) -> SampleRequest:
        node_ids = self._slots[op.expanded_type].node_ids
        pieces = [node_ids[start:end] for start, end in ranges]
        return SampleRequest(
            edge_type=op.edge_type,
            direction=op.direction,
            ids=pieces[0] if len(pieces) == 1 else np.concatenate(pieces),
            count=op.count,
            is_replacing=self._plan.is_replacing,
            rng_seed=rng_seed ^ self._salts[op.name],
            wants_edge_ids=self._plan.wants_edge_ids,
        )

    def _count(self, num_nodes: dict[str, list[int]], num_edges: dict[EdgeType, list[int]]) -> None:
        for node_type, slot_map in self._slots.items():
            num_nodes[node_type].append(slot_map.num_nodes - sum(num_nodes[node_type]))
        for edge_type, buffer in self._edges.items():
            num_edges[edge_type].append(buffer.num_edges - sum(num_edges[edge_type]))

    def _subgraph(self, num_nodes: dict[str, list[int]], num_edges: dict[EdgeType, list[int]]) -> Subgraph:
        default = self._store.directions[0]
        edges = {
            edge_type: SampledEdges(
                src_slots=buffer.slots[0, : buffer.num_edges],
                dst_slots=buffer.slots[1, : buffer.num_edges],
                edge_ids=buffer.edge_ids[: buffer.num_edges] if self._plan.wants_edge_ids else None,
                direction=self._directions.get(edge_type, default),
            )
            for edge_type, buffer in self._edges.items()
        }
        return Subgraph(
            node_ids={t: m.node_ids[: m.num_nodes] for t, m in self._slots.items()},
            edges=edges,
            num_sampled_nodes=num_nodes,
            num_sampled_edges=num_edges,
        )


def _add_reply(reply: SampleReply, neighbors: SlotMap, edges: EdgeBuffer, found_row: int) -> NDArray[np.int32]:
    num_edges = len(reply.neighbor_ids)
    edges.reserve(num_edges)
    first, last = edges.num_edges, edges.num_edges + num_edges
    neighbors.assign(reply.neighbor_ids, edges.slots[found_row, first:last])
    if reply.edge_ids is not None:
        edges.edge_ids[first:last] = reply.edge_ids
    edges.num_edges = last
    return reply.counts


def _repeat_frontier(ranges: list[SlotRange], counts: NDArray[np.int32], slots: IntArray, written: int) -> None:
    done = 0
    for start, end in ranges:
        written = repeat_slots(start, counts[done : done + end - start], slots, written)
        done += end - start


def _merge(ranges: list[SlotRange]) -> list[SlotRange]:
    """Sorted, distinct, non-empty ranges of slots, neighbours joined, so that each slot is expanded once."""
    merged: list[SlotRange] = []
    for start, end in sorted(set(ranges)):
        if start == end:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
