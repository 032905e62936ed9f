"""Loader of the neighbourhoods of nodes.

``NeighborLoader`` checks what the user asks for against the graph, and puts together what does the work. No batch is
made before the first iteration.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

from numpy.typing import ArrayLike

from hopstream.errors import SettingsError
from hopstream.load.load_settings import LoadSettings, SampledGraph
from hopstream.load.loader_arguments import takes
from hopstream.load.nodes import NodeInputs, NodeMaker
from hopstream.load.place import Facts
from hopstream.load.setup import LoaderSetup, SubgraphLoader
from hopstream.load.times import read_seed_times
from hopstream.sample.hops import PlanRunner
from hopstream.sample.plan import SamplePlan
from hopstream.sample.sampling import Sampling
from hopstream.sample.sampling_settings import SamplingSettings
from hopstream.sample.seeds import SeedsLike, read_seeds
from hopstream.store.contract import MAX_TREES


@dataclass(frozen=True, kw_only=True, eq=False)
class SampledNodes(SampledGraph):
    """Nodes whose neighbourhoods are sampled.

    Attributes:
        seeds: Nodes to start from: None (all), a split, integer[n] keys or a bool[num_nodes] mask; in a graph of
            several node types with the type in front, as in ``("paper", "train")``. A node type alone means all of its
            nodes.
    """

    seeds: SeedsLike = field(default=None, kw_only=False)


@dataclass(frozen=True, kw_only=True, eq=False)
class NeighborArguments(LoadSettings, SamplingSettings, SampledNodes):
    """Arguments of ``NeighborLoader``.

    Attributes:
        input_time: integer[num_seeds], the time of each seed in the order of ``seeds``. None means the seeds' own
            ``time_attr``, which nodes of their type must have then. Batches carry it as ``seed_time``.
    """

    batch_size: int = field(default=1, kw_only=False)
    input_time: ArrayLike | None = None

    def __post_init__(self) -> None:
        """Refuse reverse edge types where nothing is reversed."""
        super().__post_init__()
        if self.reverse_types is not None and self.subgraph_type != "bidirectional":
            raise SettingsError("reverse_types is an option of subgraph_type='bidirectional'; leave it out")


class NeighborLoader(SubgraphLoader):
    """Mini-batches of sampled neighbourhoods, as PyG's ``Data`` or ``HeteroData``.

    One iteration is one epoch, and the next iteration is the next epoch. Equal settings give bit-equal batches,
    whatever the number of threads, parts or servers, and after a resume.
    """

    attached_names: ClassVar[frozenset[str]] = frozenset()

    @takes(NeighborArguments)
    def __init__(self, arguments: NeighborArguments) -> None:
        """Open the source and check every setting against it.

        Raises:
            SettingsError: A setting that cannot be met; the message says which, and what can be done.
            UnknownNameError: A node type, edge type, split or feature that the graph does not have.
            IdRangeError: A seed outside 0..n-1 of its node type.
            MissingDependencyError: ``collate="pyg"`` without torch and torch_geometric.
            FormatError: ``source`` is no dataset and no cluster file, or ``verify`` found damage.
            ChecksumError: ``verify`` found a file that is not the one that was written.
            StoreError: A server cannot be reached, or refused to answer.
        """
        setup = self._open(arguments.source, arguments.direction, arguments)
        self._fingerprints: dict[str, str | None] | None = None
        try:
            self._inputs = _read_inputs(setup, arguments)
            node_type = self._inputs.seeds.node_type
            self._plan = self._inputs.sampling.plan(arguments.num_neighbors, (node_type,), setup.wants_edge_ids)
            self._begin(self._inputs.order.num_steps, partial(_new_maker, setup, self._plan, self._inputs))
        except BaseException:
            self._closer()
            raise

    def facts(self) -> Facts:
        """What decides over the batches: a saved state is refused where one of them differs."""
        if self._fingerprints is None:
            times = self._inputs.times
            given = None if times is None else times.fingerprint()
            self._fingerprints = {"seeds": self._inputs.seeds.fingerprint(), "input_time": given}
        return {
            **self._setup.facts(),
            **self._inputs.sampling.facts(),
            **self._fingerprints,
            "num_neighbors": {op.name: op.count for op in self._plan.ops},
        }

    def __repr__(self) -> str:
        """The loader in one line."""
        order, seeds = self._inputs.order, self._inputs.seeds
        return (
            f"NeighborLoader({seeds.num_seeds} seeds ({seeds.name}), batch_size={order.settings.batch_size}, "
            f"{len(self)} batches on {order.settings.rank_text})"
        )


def _read_inputs(setup: LoaderSetup, arguments: NeighborArguments) -> NodeInputs:
    """Check against the open store what the loader starts from and how it draws."""
    sampling = Sampling.of(setup.store, arguments)
    batch_size = arguments.batch_size
    if sampling.settings.is_disjoint and batch_size > MAX_TREES:
        raise SettingsError(f"batch_size is {batch_size}; with a tree per seed it may be {MAX_TREES} at most")
    found = read_seeds(setup.store, arguments.seeds)
    return NodeInputs(
        seeds=found,
        order=setup.order(found.num_seeds),
        sampling=sampling,
        times=read_seed_times(setup.store, sampling, found, arguments.input_time),
    )


def _new_maker(setup: LoaderSetup, plan: SamplePlan, inputs: NodeInputs) -> NodeMaker:
    return NodeMaker(PlanRunner(setup.store, plan), setup.reader(), inputs, setup.convert)
