"""Loaders of nodes' neighbourhoods: of given seed nodes, or of random nodes.

``NeighborLoader`` checks its arguments against the graph. It makes no batch before the first iteration.

One thread makes a whole batch: it looks up the seeds and their times, runs the plan and fetches all columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from hopstream.arrays import IntArray
from hopstream.errors import SettingsError
from hopstream.graph.graph import SampledEdges, Subgraph
from hopstream.kernels.hashing import derive_seed, permute_range
from hopstream.load.batch import BatchMaker, SeedBatch
from hopstream.load.epochs import Facts
from hopstream.load.link_inputs import SeedTimes, read_seed_times
from hopstream.load.load_settings import LoadSettings, SampledGraph
from hopstream.load.loader_arguments import PYG_OPTIONS, takes
from hopstream.load.order import BatchSpan, SeedOrder, SeedWeights
from hopstream.load.setup import LoaderSetup, SubgraphLoader
from hopstream.sample.plan import SeedNodes
from hopstream.sample.sampling import Sampling
from hopstream.sample.sampling_settings import SamplingSettings
from hopstream.sample.seeds import Seeds, SeedsLike, read_seeds
from hopstream.store.contract import MAX_TREES


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeInputs:
    """Inputs of a loader of nodes.

    Attributes:
        seeds: The seed nodes.
        order: Assigns seeds to batches.
        sampling: How their neighbourhoods are sampled.
        times: The time of each seed, or None if the sampling is not temporal.
    """

    seeds: Seeds
    order: SeedOrder
    sampling: Sampling
    times: SeedTimes | None


class NodeMaker(BatchMaker[NodeInputs]):
    """Maker of batches of neighbourhoods of nodes."""

    def _start(self, epoch: int, step: int) -> SeedBatch:
        """Look up a batch's seeds; they get trees if sampling is disjoint, else repeats are merged."""
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

    def _seed_keys(self, epoch: int, step: int) -> tuple[str, IntArray]:
        """Return the node type and the keys of a batch's seeds."""
        seeds, order = self._inputs.seeds, self._inputs.order
        return seeds.node_type, seeds.keys_at(order.positions(epoch, order.span(step)))


def repeat_seeds(subgraph: Subgraph, seed_type: str, slots: IntArray) -> Subgraph:
    """Give every seed of a batch its own slot and its own copy of its first hop's edges.

    Row ``i`` of a model's output then belongs to seed ``i``, even if seeds repeat. Edges that lead to a repeated seed
    use its first slot. If edges are not in the order of hops, all of the seed's edges are copied.

    Args:
        subgraph: The subgraph of the distinct seeds.
        seed_type: Node type of the seeds.
        slots: int64[num_seeds], index of each seed among the distinct seeds, which are numbered by first occurrence.

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
    """Move the edges' slots of the seed type, to make room for repeated seeds."""
    return replace(
        edges,
        src_slots=moved[edges.src_slots] if is_seed_type[0] else edges.src_slots,
        dst_slots=moved[edges.dst_slots] if is_seed_type[1] else edges.dst_slots,
    )


def _copy_edges(
    edges: SampledEdges, num_first: int, originals: IntArray, repeats: IntArray
) -> tuple[SampledEdges, int]:
    """Copy the edges at slots ``originals`` to slots ``repeats``, behind the first ``num_first`` edges.

    Returns:
        The edges, and the number of copies. Only the first ``num_first`` edges are copied.
    """
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
    edge_ids, edge_keys = (None if of is None else of[taken] for of in (edges.edge_ids, edges.edge_keys))
    edges = replace(edges, src_slots=src_slots, dst_slots=dst_slots, edge_ids=edge_ids, edge_keys=edge_keys)
    return edges, len(copied)


@dataclass(frozen=True, kw_only=True, eq=False)
class SampledNodes(SampledGraph):
    """Nodes whose neighbourhoods are sampled.

    Attributes:
        seeds: Nodes to start from: None (all), the name of a split, integer[n] keys or a bool[num_nodes] mask. In a
            graph of several node types, put the type in front, as in ``("paper", "train")``. A node type alone means
            all of its nodes. Also called ``input_nodes``.
    """

    seeds: SeedsLike = field(default=None, kw_only=False)


@dataclass(frozen=True, kw_only=True, eq=False)
class NeighborArguments(LoadSettings, SamplingSettings, SampledNodes):
    """Arguments of ``NeighborLoader``.

    Attributes:
        input_time: integer[num_seeds], the time of each seed in the order of ``seeds``; or datetime64[num_seeds] if
            the dataset states its ``time_unit``. None means the seeds' own ``time_attr``, which their node type must
            then have. Batches carry the times as ``seed_time``, in the dataset's unit.
        seed_weights: real[num_seeds], 0 or more, one per seed. Each epoch then draws as many seeds as there are, in
            proportion to their weights and with replacement. Also a torch ``WeightedRandomSampler`` such as PyG's
            ``ImbalancedSampler``, whose weights are used. None takes every seed once.
    """

    batch_size: int = field(default=1, kw_only=False)
    input_time: ArrayLike | None = None
    seed_weights: SeedWeights = None

    def __post_init__(self) -> None:
        """Refuse ``reverse_types`` without ``subgraph_type="bidirectional"``."""
        super().__post_init__()
        if self.reverse_types is not None and self.subgraph_type != "bidirectional":
            raise SettingsError("reverse_types is an option of subgraph_type='bidirectional'; leave it out")


class NeighborLoader(SubgraphLoader):
    """Mini-batches of sampled neighbourhoods, as PyG's ``Data`` or ``HeteroData``.

    One iteration is one epoch, and the next iteration is the next epoch. Equal settings give bit-equal batches, for any
    number of threads, parts and servers, and after a resume.
    """

    attached_names: ClassVar[frozenset[str]] = frozenset()

    @takes(NeighborArguments)
    def __init__(self, arguments: NeighborArguments) -> None:
        """Open the source and check every setting against it.

        Raises:
            SettingsError: A setting cannot be met; the message names the setting and a remedy.
            UnknownNameError: The graph has no such node type, edge type, split or feature.
            IdRangeError: A seed is outside 0..n-1 of its node type.
            MissingDependencyError: ``collate="pyg"`` without torch and torch_geometric.
            FormatError: ``source`` is no dataset and no cluster file, or ``verify`` found damage.
            ChecksumError: ``verify`` found a file whose content has changed since it was written.
            StoreError: A server cannot be reached, or refused to answer.
        """
        setup = self._open(arguments.source, arguments.direction, arguments)
        self._inputs = _read_inputs(setup, arguments)
        node_type = self._inputs.seeds.node_type
        self._plan = self._inputs.sampling.plan(arguments.num_neighbors, (node_type,), setup.wants_edge_ids)
        self._begin(self._inputs.order, partial(setup.maker, NodeMaker, self._plan, self._inputs))

    def facts(self) -> Facts:
        """Return settings and inputs that determine the batches; a saved state with other facts is refused."""
        times = self._inputs.times
        return {
            **self._setup.facts(),
            **self._inputs.sampling.facts(),
            "seeds": self._inputs.seeds.fingerprint(),
            "input_time": None if times is None else times.fingerprint(),
            "seed_weights": self._inputs.order.fingerprint(),
            "num_neighbors": {op.name: op.count for op in self._plan.ops},
        }

    def __call__(self, index: ArrayLike) -> Any:
        """Make one batch of chosen seeds, in the caller's thread.

        Equal seeds give equal batches within one epoch; ``set_epoch``, or an iteration that ends, changes it. The
        position of the loader does not change. Safe to call from several threads.

        Args:
            index: integer[n], positions of the seeds in ``seeds``; with ``seeds=None``, their keys. As in PyG.

        Returns:
            A batch as the iteration gives it, after ``transform``.

        Raises:
            IdRangeError: A position is outside 0..num_seeds-1.
            SettingsError: ``index`` is empty, or no list of integers.
        """
        return self._batch_of(index)

    def _inputs_of(self, order: SeedOrder) -> NodeInputs:
        return replace(self._inputs, order=order, seeds=replace(self._inputs.seeds, may_repeat=True))

    def __repr__(self) -> str:
        """Return a description of the loader in one line."""
        order, seeds = self._inputs.order, self._inputs.seeds
        return (
            f"{type(self).__name__}({seeds.num_seeds} seeds ({seeds.name}), batch_size={order.settings.batch_size}, "
            f"{len(self)} batches on {order.settings.rank_text})"
        )


def _read_inputs(setup: LoaderSetup, arguments: NeighborArguments) -> NodeInputs:
    """Check seeds, times and sampling against the open store."""
    sampling = Sampling.of(setup.store, arguments)
    batch_size = arguments.batch_size
    if sampling.settings.is_disjoint and batch_size > MAX_TREES:
        raise SettingsError(f"batch_size is {batch_size}; with a tree per seed it may be {MAX_TREES} at most")
    found = read_seeds(setup.store, arguments.seeds)
    is_drawn = arguments.seed_weights is not None
    return NodeInputs(
        seeds=replace(found, may_repeat=True) if is_drawn else found,
        order=setup.order(found.num_seeds, arguments.seed_weights),
        sampling=sampling,
        times=read_seed_times(setup.store, sampling, found, arguments.input_time),
    )


MAX_BATCHES = 1 << 40
OTHER_OPTIONS: Mapping[str, str] = {
    **PYG_OPTIONS,
    **dict.fromkeys(("shuffle", "drop_last", "remainder"), "every batch is full and random"),
}
"""Refused options of other loaders to remedies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndlessOrder(SeedOrder):
    """Batches from an endless series of shuffled passes over the nodes, ``num_seeds`` per epoch.

    Attributes:
        num_nodes: Nodes of one pass.
    """

    num_nodes: int

    def positions(self, epoch: int, span: BatchSpan) -> IntArray:
        """Return int64[stop - start], positions of a batch's nodes; one may repeat if a pass ends in it."""
        first, last = epoch * self.num_seeds + span.start, epoch * self.num_seeds + span.stop
        pieces: list[IntArray] = []
        while first < last:
            turn, start = divmod(first, self.num_nodes)
            piece = np.empty(min(last - first, self.num_nodes - start), np.int64)
            permute_range(
                start, self.num_nodes, np.uint64(derive_seed("random nodes", self.settings.rng_seed, turn)), piece
            )
            pieces.append(piece)
            first += len(piece)
        return np.concatenate(pieces)


@dataclass(frozen=True, kw_only=True, eq=False)
class RandomNodeArguments(LoadSettings, SamplingSettings, SampledNodes):
    """Arguments of ``RandomNodeLoader``.

    Attributes:
        num_batches: Batches of one epoch and rank, for example ``len(loader)`` of the loader beside it.
    """

    num_batches: int

    def __post_init__(self) -> None:
        """Check the number of batches, and refuse ``time_attr``."""
        self._read_integer("num_batches", 1, MAX_BATCHES)
        super().__post_init__()
        if self.time_attr is not None:
            raise SettingsError("time_attr is not an option of RandomNodeLoader: random nodes have no seed time")


class RandomNodeLoader(SubgraphLoader):
    """A given number of batches of random nodes' neighbourhoods.

    Iterate it together with another loader, ``zip(loader, negatives)``: its nodes serve as negatives for the other
    loader's batches. Every node comes once before any node comes again.
    """

    @takes(RandomNodeArguments, OTHER_OPTIONS)
    def __init__(self, arguments: RandomNodeArguments) -> None:
        """Open the source and check every setting against it.

        Raises:
            SettingsError: A setting cannot be met.
            UnknownNameError: The graph has no such node type, edge type or feature.
        """
        setup = self._open(arguments.source, arguments.direction, arguments)
        found = read_seeds(setup.store, arguments.seeds)
        if not found.num_seeds:
            raise SettingsError(f"seeds ({found.name}) are empty; random nodes need at least one")
        order = EndlessOrder(
            num_seeds=arguments.num_batches * arguments.batch_size * arguments.world_size,
            settings=setup.settings, num_nodes=found.num_seeds,
        )  # fmt: skip
        sampling = Sampling.of(setup.store, arguments)
        drawn = replace(found, may_repeat=True)
        self._inputs = NodeInputs(seeds=drawn, order=order, sampling=sampling, times=None)
        self._plan = sampling.plan(arguments.num_neighbors, (found.node_type,), setup.wants_edge_ids)
        self._begin(order, partial(setup.maker, NodeMaker, self._plan, self._inputs))

    def facts(self) -> Facts:
        """Return settings and inputs that determine the batches; a saved state with other facts is refused."""
        return {
            **self._setup.facts(),
            **self._inputs.sampling.facts(),
            "seeds": self._inputs.seeds.fingerprint(),
            "num_batches": self._inputs.order.num_steps,
            "num_neighbors": {op.name: op.count for op in self._plan.ops},
        }

    def __repr__(self) -> str:
        """Return a description of the loader in one line."""
        size, seeds = self._inputs.order.settings.batch_size, self._inputs.seeds
        return f"RandomNodeLoader({len(self)} batches of {size} of {seeds.num_seeds} nodes ({seeds.name}))"
