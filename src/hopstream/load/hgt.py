"""Loader of HGT sampling: a number of nodes per node type and layer, and all edges between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from hopstream.load.epochs import Facts
from hopstream.load.load_settings import GraphSource, LoadSettings
from hopstream.load.loader import NeighborLoader, NodeInputs, NodeMaker
from hopstream.load.loader_arguments import PYG_OPTIONS, takes
from hopstream.sample.hgt import HGTPlan, NumSamples, plan_hgt
from hopstream.sample.sampling import Sampling
from hopstream.sample.sampling_settings import SamplingSettings
from hopstream.sample.seeds import SeedsLike, read_seeds
from hopstream.schema import Direction

OTHER_OPTIONS: Mapping[str, str] = {
    **PYG_OPTIONS,
    **{
        name: "HGT sampling draws nodes by their number of edges to sampled nodes, and takes all edges between them; "
        "use NeighborLoader"
        for name in (*SamplingSettings.field_names(), "input_time", "seed_weights")
        if name != "direction"
    },
    "num_neighbors": "give num_samples=, the nodes per layer, for each node type or by node type",
}
"""Refused options of other loaders to remedies."""


@dataclass(frozen=True, kw_only=True, eq=False)
class HGTNodes(GraphSource):
    """Nodes that layers of nodes are sampled around.

    Attributes:
        num_samples: Nodes per layer, for each node type, or by node type; types that a mapping leaves out get no
            nodes. -1 means all neighbours.
        seeds: The nodes to start from, in the forms of ``NeighborLoader``'s seeds.
    """

    num_samples: NumSamples = field(kw_only=False)
    seeds: SeedsLike = field(default=None, kw_only=False)


@dataclass(frozen=True, kw_only=True, eq=False)
class HGTArguments(LoadSettings, HGTNodes):
    """Arguments of ``HGTLoader``.

    Attributes:
        direction: ``in`` follows edges from destination to source, as message passing needs; ``out`` from source to
            destination.
    """

    batch_size: int = field(default=1, kw_only=False)
    direction: Direction = "in"


class HGTLoader(NeighborLoader):
    """Mini-batches of nodes by HGT sampling, with all edges between them, as PyG's data objects.

    All seeds of a batch share its nodes. Equal settings give bit-equal batches, for any number of threads, parts and
    servers, and after a resume.
    """

    _plan: HGTPlan

    @takes(HGTArguments, OTHER_OPTIONS)
    def __init__(self, arguments: HGTArguments) -> None:
        """Open the source and check every setting against it.

        Raises:
            SettingsError: A setting cannot be met.
            UnknownNameError: The graph has no such node type, split or feature.
            IdRangeError: A seed is outside 0..n-1 of its node type.
        """
        setup = self._open(arguments.source, arguments.direction, arguments)
        seeds, direction = read_seeds(setup.store, arguments.seeds), arguments.direction
        self._plan = plan_hgt(
            setup.store.schema, arguments.num_samples, seeds.node_type, direction, setup.wants_edge_ids
        )
        sampling = Sampling.of(setup.store, self._plan.settings)
        self._inputs = NodeInputs(seeds=seeds, order=setup.order(seeds.num_seeds), sampling=sampling, times=None)
        self._begin(self._inputs.order, partial(setup.maker, NodeMaker, self._plan, self._inputs))

    def facts(self) -> Facts:
        """Return settings and inputs that determine the batches; a saved state with other facts is refused."""
        return {**super().facts(), "num_samples": {t: str(list(of)) for t, of in self._plan.num_samples.items()}}
