"""How is a plan run, hop by hop, over a store?

Each level of a plan is one call of the store; its replies are relabelled in plan order, so the result does not depend
on where the parts are or who answered first.
"""

from __future__ import annotations

import numpy as np

from hopstream.arrays import IntArray
from hopstream.errors import SettingsError
from hopstream.graph.subgraph import SampledEdges, Subgraph
from hopstream.kernels.relabel import assign_slots, repeat_slots
from hopstream.sample.plan import SEEDS, SampleOp, SamplePlan
from hopstream.schema import EdgeType
from hopstream.store.contract import SampleReply, SampleRequest, Store

FIRST_CAPACITY = 1 << 12
SlotRange = tuple[int, int]


class _SlotMap:
    """Ids to slots of one node type, reused from batch to batch."""

    def __init__(self) -> None:
        self._allocate(FIRST_CAPACITY)
        self.num_nodes = 0

    def reset(self) -> None:
        """Forget all ids, at no cost."""
        self._generation += 1
        self.num_nodes = 0

    def assign(self, ids: IntArray, slots: IntArray) -> SlotRange:
        """Write the slot of each id; return the range of slots that are new."""
        first = self.num_nodes
        done = 0
        while True:
            done, self.num_nodes = assign_slots(
                ids, done, self._table, self._shift, self._generation, self.node_ids, self.num_nodes, slots
            )
            if done == len(ids):
                return first, self.num_nodes
            self._grow()

    def _allocate(self, capacity: int) -> None:
        self._table = np.zeros((capacity, 2), np.int64)
        self._shift = np.uint64(64 - (capacity.bit_length() - 1))
        self._generation = 1
        self.node_ids: IntArray = np.empty(capacity // 2, np.int64)

    def _grow(self) -> None:
        known = self.node_ids[: self.num_nodes]
        self._allocate(2 * len(self._table))
        scratch = np.empty(len(known), np.int64)
        assign_slots(known, 0, self._table, self._shift, self._generation, self.node_ids, 0, scratch)


class _EdgeBuffer:
    """Edges of one type while a plan runs, reused from batch to batch."""

    def __init__(self) -> None:
        self.slots: IntArray = np.empty((2, 0), np.int64)
        self.edge_ids: IntArray = np.empty(0, np.int64)
        self.num_edges = 0

    def reserve(self, num_edges: int) -> None:
        """Make room for more edges."""
        wanted = self.num_edges + num_edges
        if wanted > self.slots.shape[1]:
            slots = np.empty((2, max(wanted, 2 * self.slots.shape[1])), np.int64)
            slots[:, : self.num_edges] = self.slots[:, : self.num_edges]
            edge_ids = np.empty(slots.shape[1], np.int64)
            edge_ids[: self.num_edges] = self.edge_ids[: self.num_edges]
            self.slots, self.edge_ids = slots, edge_ids


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
        self._slots = {node_type: _SlotMap() for node_type in store.schema.nodes}
        self._edges = {edge_type: _EdgeBuffer() for edge_type in store.schema.edges}

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
        found: dict[str, SlotRange] = {SEEDS: seeds.assign(seed_ids, np.empty(len(seed_ids), np.int64))}
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
        replies = self._store.sample(requests) if requests else []
        for op in level:
            end = self._slots[op.found_type].num_nodes
            found[op.name] = (end, end)
        for (op, ranges), reply in zip(active, replies, strict=True):
            found[op.name] = self._add_edges(op, ranges, reply)

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

    def _add_edges(self, op: SampleOp, ranges: list[SlotRange], reply: SampleReply) -> SlotRange:
        buffer = self._edges[op.edge_type]
        num_edges = len(reply.neighbor_ids)
        buffer.reserve(num_edges)
        first, last = buffer.num_edges, buffer.num_edges + num_edges
        found_row, expanded_row = (0, 1) if op.direction == "in" else (1, 0)
        new = self._slots[op.found_type].assign(reply.neighbor_ids, buffer.slots[found_row, first:last])
        done = 0
        written = first
        for start, end in ranges:
            counts = reply.counts[done : done + end - start]
            written = repeat_slots(start, counts, buffer.slots[expanded_row], written)
            done += end - start
        if reply.edge_ids is not None:
            buffer.edge_ids[first:last] = reply.edge_ids
        buffer.num_edges = last
        return new

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
