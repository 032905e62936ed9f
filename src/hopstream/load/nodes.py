"""Makes batches of nodes' neighbourhoods, from seed keys to columns.

A batch belongs to one thread from its first to its last step: look up the seeds and their times, run the plan, fetch
all columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from hopstream.arrays import IntArray
from hopstream.graph.subgraph import SampledEdges, Subgraph
from hopstream.load.batch import BatchMaker, Convert, Runner, SeedBatch, SubgraphReader
from hopstream.load.order import SeedOrder
from hopstream.load.times import SeedTimes
from hopstream.sample.plan import SeedNodes
from hopstream.sample.sampling import Sampling
from hopstream.sample.seeds import Seeds
from hopstream.sample.slots import SlotMap


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeInputs:
    """What a loader of nodes starts from.

    Attributes:
        seeds: The nodes.
        order: Which of them make which batch.
        sampling: How their neighbourhoods are drawn.
        times: The time of each, or None where the sampling is not temporal.
    """

    seeds: Seeds
    order: SeedOrder
    sampling: Sampling
    times: SeedTimes | None


class NodeMaker(BatchMaker):
    """Makes batches of neighbourhoods of nodes. One thread uses one maker."""

    def __init__(self, runner: Runner, reader: SubgraphReader, inputs: NodeInputs, convert: Convert) -> None:
        """Bring together what makes a batch."""
        super().__init__(runner, reader, convert)
        self._inputs = inputs
        self._slot_map = SlotMap()

    def _start(self, epoch: int, step: int) -> SeedBatch:
        """Seeds that share the nodes that they find, or that grow trees of their own, repeated ones as well."""
        seeds, order, sampling = self._inputs.seeds, self._inputs.order, self._inputs.sampling
        span = order.span(step)
        positions = order.positions(epoch, span)
        self.stage = "looking up seeds"
        seed_keys = keys = seeds.keys_at(positions)
        arrange = trees = times = None
        if sampling.settings.is_disjoint:
            trees = {seeds.node_type: np.arange(len(keys), dtype=np.int64)}
        elif seeds.may_repeat:
            keys, slots = self._slot_map.number(keys)
            if len(slots) > len(keys):
                arrange = partial(repeat_seeds, seed_type=seeds.node_type, slots=slots)
        ids = self._reader.ids_of(seeds.node_type, keys)
        if trees is not None and self._inputs.times is not None:
            self.stage = "fetching the times of seeds"
            times = self._inputs.times.of(positions, ids)
        return SeedBatch(
            index=span.index,
            seeds=SeedNodes(
                ids={seeds.node_type: ids}, rng_seed=order.batch_seed(epoch, span), trees=trees, times=times,
                labor=sampling.labor_seeds(order.settings.rng_seed, epoch, span.index),
            ),
            seed_type=seeds.node_type,
            input_ids=seeds.input_ids_at(positions),
            attributes={} if times is None else {seeds.node_type: {"seed_time": times}},
            seed_keys=seed_keys,
            arrange=arrange,
        )  # fmt: skip


def repeat_seeds(subgraph: Subgraph, seed_type: str, slots: IntArray) -> Subgraph:
    """Give every seed of a batch its own slot, with its own copy of the edges drawn for it in the first hop.

    That is what a model needs to see a seed twice: row ``i`` of its output is seed ``i``. A repeated seed that another
    node reaches is reached in its first slot. Where edges are not in the order of hops, all of the seed's are copied.

    Args:
        subgraph: The subgraph of the distinct seeds.
        seed_type: Node type of the seeds.
        slots: int64[num_seeds], place of each seed among the distinct ones, which are numbered by first occurrence.

    Returns:
        A subgraph of new arrays whose first ``num_seeds`` slots of the seed type are the seeds, repetitions included.
    """
    num_distinct = subgraph.num_sampled_nodes[seed_type][0]
    num_repeats = len(slots) - num_distinct
    node_ids = subgraph.node_ids[seed_type]
    _, first = np.unique(slots, return_index=True)
    moved = np.concatenate([first, np.arange(num_distinct, len(node_ids)) + num_repeats])
    is_repeat = np.ones(len(slots), np.bool_)
    is_repeat[first] = False
    repeats = np.flatnonzero(is_repeat)
    edges = {
        edge_type: _repeat_edges(edges, (seed_type == edge_type[0], seed_type == edge_type[2]), moved)
        for edge_type, edges in subgraph.edges.items()
    }
    counts_of = subgraph.num_sampled_edges
    num_edges = None if counts_of is None else {t: list(counts) for t, counts in counts_of.items()}
    for edge_type, sampled in edges.items():
        if seed_type != (edge_type[2] if sampled.direction == "in" else edge_type[0]):
            continue
        num_first = len(sampled.src_slots) if num_edges is None else sum(num_edges[edge_type][:1])
        edges[edge_type], num_added = _copy_edges(sampled, num_first, first[slots[repeats]], repeats)
        if num_edges is not None and num_added:
            num_edges[edge_type][0] += num_added
    num_nodes = {t: list(counts) for t, counts in subgraph.num_sampled_nodes.items()}
    num_nodes[seed_type][0] = len(slots)
    seed_ids = node_ids[:num_distinct][slots]
    return Subgraph(
        node_ids={**subgraph.node_ids, seed_type: np.concatenate([seed_ids, node_ids[num_distinct:]])},
        edges=edges,
        num_sampled_nodes=num_nodes,
        num_sampled_edges=num_edges,
    )


def _repeat_edges(edges: SampledEdges, is_seed_type: tuple[bool, bool], moved: IntArray) -> SampledEdges:
    """The edges with slots of the seed type moved to make room for repeated seeds."""
    return replace(
        edges,
        src_slots=moved[edges.src_slots] if is_seed_type[0] else edges.src_slots,
        dst_slots=moved[edges.dst_slots] if is_seed_type[1] else edges.dst_slots,
    )


def _copy_edges(
    edges: SampledEdges, num_first: int, originals: IntArray, repeats: IntArray
) -> tuple[SampledEdges, int]:
    """Add, after the first ``num_first`` edges, a copy of each of them at ``originals[i]``, for ``repeats[i]``."""
    anchors = (edges.dst_slots if edges.direction == "in" else edges.src_slots)[:num_first]
    order = np.argsort(anchors, kind="stable")
    starts = np.searchsorted(anchors[order], originals, side="left")
    counts = np.searchsorted(anchors[order], originals, side="right") - starts
    ends = np.cumsum(counts)
    copied = order[np.arange(counts.sum()) + np.repeat(starts - (ends - counts), counts)]
    taken = np.concatenate([np.arange(num_first), copied, np.arange(num_first, len(edges.src_slots))])
    src_slots, dst_slots = edges.src_slots[taken], edges.dst_slots[taken]
    anchor_slots = dst_slots if edges.direction == "in" else src_slots
    anchor_slots[num_first : num_first + len(copied)] = np.repeat(repeats, counts)
    edge_ids = None if edges.edge_ids is None else edges.edge_ids[taken]
    return replace(edges, src_slots=src_slots, dst_slots=dst_slots, edge_ids=edge_ids), len(copied)
