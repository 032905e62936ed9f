"""Loader of random nodes beside the batches of another loader, as negatives that have nothing to do with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from hopstream.arrays import IntArray
from hopstream.errors import SettingsError
from hopstream.kernels.hashing import derive_seed
from hopstream.kernels.permute import permute_range
from hopstream.load.load_settings import LoadSettings
from hopstream.load.loader import SampledNodes
from hopstream.load.loader_arguments import PYG_OPTIONS, takes
from hopstream.load.nodes import NodeInputs, NodeMaker
from hopstream.load.order import BatchSpan, SeedOrder
from hopstream.load.place import Facts
from hopstream.load.setup import LoaderSetup, SubgraphLoader
from hopstream.sample.hops import PlanRunner
from hopstream.sample.plan import SamplePlan
from hopstream.sample.sampling import Sampling
from hopstream.sample.sampling_settings import SamplingSettings
from hopstream.sample.seeds import read_seeds

MAX_BATCHES = 1 << 40
OTHER_OPTIONS: Mapping[str, str] = {
    **PYG_OPTIONS,
    **dict.fromkeys(("shuffle", "drop_last", "remainder"), "every batch is full and random"),
}
"""Options of other loaders that are not options here, and what to do instead."""


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
        num_batches: Batches of one epoch and rank, for example ``len(loader)``.
    """

    num_batches: int

    def __post_init__(self) -> None:
        """Check the number of batches, and refuse times."""
        self._read_integer("num_batches", 1, MAX_BATCHES)
        super().__post_init__()
        if self.time_attr is not None:
            raise SettingsError("time_attr is not an option of RandomNodeLoader: random nodes have no seed time")


class RandomNodeLoader(SubgraphLoader):
    """Batches of the neighbourhoods of random nodes, as many as are asked for.

    Run it beside another loader, ``zip(loader, negatives)``: its nodes serve as negatives for that loader's batches.
    All nodes come once before any comes again, so no node is preferred.
    """

    @takes(RandomNodeArguments, OTHER_OPTIONS)
    def __init__(self, arguments: RandomNodeArguments) -> None:
        """Open the source and check every setting against it.

        Raises:
            SettingsError: A setting that cannot be met.
            UnknownNameError: The graph has no such node type, edge type or feature.
        """
        setup = self._open(arguments.source, arguments.direction, arguments)
        self._fingerprint: str | None = None
        try:
            found = read_seeds(setup.store, arguments.seeds)
            order = EndlessOrder(
                num_seeds=arguments.num_batches * arguments.batch_size * arguments.world_size,
                settings=setup.settings, num_nodes=found.num_seeds,
            )  # fmt: skip
            sampling = Sampling.of(setup.store, arguments)
            drawn = replace(found, may_repeat=True)
            self._inputs = NodeInputs(seeds=drawn, order=order, sampling=sampling, times=None)
            self._plan = sampling.plan(arguments.num_neighbors, (found.node_type,), setup.wants_edge_ids)
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
        size, seeds = self._inputs.order.settings.batch_size, self._inputs.seeds
        return f"RandomNodeLoader({len(self)} batches of {size} of {seeds.num_seeds} nodes ({seeds.name}))"


def _node_maker(setup: LoaderSetup, plan: SamplePlan, inputs: NodeInputs) -> NodeMaker:
    return NodeMaker(PlanRunner(setup.store, plan), setup.reader(), inputs, setup.convert)
