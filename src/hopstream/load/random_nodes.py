"""How does a training script get random nodes beside its batches, as negatives that have nothing to do with them?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Unpack

import numpy as np

from hopstream.arrays import IntArray
from hopstream.errors import SettingsError
from hopstream.kernels.hashing import derive_seed
from hopstream.kernels.permute import permute_range
from hopstream.load.ablp import ABLPOptions
from hopstream.load.nodes import NodeInputs, NodeMaker
from hopstream.load.options import read_integer
from hopstream.load.order import BatchSpan, SeedOrder
from hopstream.load.place import Facts
from hopstream.load.service import BatchService, remembers_recipe
from hopstream.load.setup import LoaderSetup, SubgraphLoader, split_options
from hopstream.sample.hops import PlanRunner
from hopstream.sample.options import Sampling
from hopstream.sample.plan import NumNeighbors, SamplePlan
from hopstream.sample.seeds import SeedsLike, read_seeds
from hopstream.store import Source

MAX_BATCHES = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class EndlessOrder(SeedOrder):
    """Batches cut from one shuffled pass over the nodes after the other, without an end; ``num_seeds`` are of an epoch.

    Attributes:
        num_nodes: Nodes of one pass.
    """

    num_nodes: int

    def positions(self, epoch: int, span: BatchSpan) -> IntArray:
        """int64[stop - start], positions of the nodes of one batch; a node may be there twice where a pass ends."""
        first, last = epoch * self.num_seeds + span.start, epoch * self.num_seeds + span.stop
        pieces: list[IntArray] = []
        while first < last:
            turn, start = divmod(first, self.num_nodes)
            piece = np.empty(min(last - first, self.num_nodes - start), np.int64)
            permute_range(start, self.num_nodes, np.uint64(derive_seed("random nodes", self.rng_seed, turn)), piece)
            pieces.append(piece)
            first += len(piece)
        return np.concatenate(pieces)


class RandomNodeLoader(SubgraphLoader):
    """Batches of the neighbourhoods of random nodes, as many as are asked for.

    Run it beside another loader, ``zip(loader, negatives)``: its nodes serve as negatives for that loader's batches.
    All nodes come once before any comes again, so no node is preferred.
    """

    @remembers_recipe
    def __init__(
        self,
        source: Source | BatchService,
        num_neighbors: NumNeighbors,
        seeds: SeedsLike = None,
        *,
        num_batches: int,
        **options: Unpack[ABLPOptions],
    ) -> None:
        """Open the source and check every setting against it.

        Args:
            source: A dataset folder, a ``cluster.json``, addresses of servers, or an open store.
            num_neighbors: Neighbours per hop, as for ``NeighborLoader``.
            seeds: The nodes to draw from, as for ``NeighborLoader``: all nodes, a node type, a split, keys or a mask.
            num_batches: Batches of one epoch and rank, for example ``len(loader)``.
            **options: The other settings of ``NeighborLoader``, but for ``shuffle``, ``drop_last`` and ``remainder``,
                which mean nothing here, and those of time.

        Raises:
            SettingsError: A setting that cannot be met.
            UnknownNameError: The graph has no such node type, edge type or feature.
        """
        for name in ("shuffle", "drop_last", "remainder"):
            if name in options:
                raise SettingsError(f"{name} is not an option of RandomNodeLoader: every batch is full and random")
        num_batches = read_integer("num_batches", num_batches, 1, MAX_BATCHES)
        loading, sampling_options = split_options(RandomNodeLoader, options)
        if sampling_options["time_attr"] is not None:
            raise SettingsError("time_attr is not an option of RandomNodeLoader: random nodes have no seed time")
        setup = self._open(source, sampling_options["direction"], loading)
        self._fingerprint: str | None = None
        try:
            found = read_seeds(setup.store, seeds)
            order = EndlessOrder(
                num_seeds=num_batches * setup.batch_size * setup.world_size, batch_size=setup.batch_size,
                rng_seed=setup.rng_seed, rank=setup.rank, world_size=setup.world_size, num_nodes=found.num_seeds,
            )  # fmt: skip
            sampling = Sampling.of(setup.store, sampling_options)
            drawn = replace(found, may_repeat=True)
            self._inputs = NodeInputs(seeds=drawn, order=order, sampling=sampling, times=None)
            self._plan = sampling.plan(num_neighbors, (found.node_type,), setup.wants_edge_ids)
            self._begin(order.num_steps, partial(_node_maker, setup, self._plan, self._inputs))
        except BaseException:
            self._closer()
            raise

    def facts(self) -> Facts:
        """What decides over the batches: a saved state is refused where one of them differs."""
        if self._fingerprint is None:
            self._fingerprint = self._inputs.seeds.fingerprint()
        return {
            **self._setup.facts(),
            **self._inputs.sampling.facts(),
            "seeds": self._fingerprint,
            "num_batches": self._inputs.order.num_steps,
            "num_neighbors": {op.name: op.count for op in self._plan.ops},
        }

    def __repr__(self) -> str:
        """The loader in one line."""
        order, seeds = self._inputs.order, self._inputs.seeds
        return f"RandomNodeLoader({len(self)} batches of {order.batch_size} of {seeds.num_seeds} nodes ({seeds.name}))"


def _node_maker(setup: LoaderSetup, plan: SamplePlan, inputs: NodeInputs) -> NodeMaker:
    return NodeMaker(PlanRunner(setup.store, plan), setup.reader(), inputs, setup.convert)
