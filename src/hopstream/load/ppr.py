"""Loader of seeds' neighbourhoods by personalised PageRank.

A batch has the seeds, the nodes with the highest scores for each seed, and an edge with the score from every seed to
every node of its neighbourhood.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, TypeVar

from hopstream.errors import SettingsError
from hopstream.load.batch import BatchMaker, SeedBatch
from hopstream.load.epochs import Facts
from hopstream.load.load_settings import GraphSource, LoadSettings
from hopstream.load.loader_arguments import PYG_OPTIONS, takes
from hopstream.load.order import SeedOrder
from hopstream.load.setup import LoaderSetup, SubgraphLoader
from hopstream.sample.plan import SeedNodes
from hopstream.sample.ppr_settings import PPRPlan, PPRSettings, plan_ppr
from hopstream.sample.sampling_settings import SamplingSettings
from hopstream.sample.seeds import Seeds, SeedsLike, read_seeds
from hopstream.schema import NODE, PPR_ATTRIBUTES, type_label

L = TypeVar("L", bound=LoadSettings)
HOW = "neighbourhoods are the nodes of largest score, as PPRSettings defines them; leave it out"
OTHER_OPTIONS: Mapping[str, str] = {
    **PYG_OPTIONS,
    **dict.fromkeys(SamplingSettings.field_names(), HOW),
    "num_neighbors": "give settings=PPRSettings(max_ppr_nodes=…, num_neighbors_per_hop=…)",
    "time_attr": "PageRank ignores times; use NeighborLoader",
    "input_time": "PageRank ignores times; use NeighborLoader",
    "disjoint": "each seed has a neighbourhood of its own already; leave it out",
    "weight_attr": "PageRank ignores weights; use NeighborLoader",
    **{name: f"it is a field of settings: settings=PPRSettings({name}=…)" for name in PPRSettings.field_names()},
}
"""Refused options of other loaders to remedies."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PPRArguments(LoadSettings, GraphSource):
    """Arguments of ``PPRLoader``; ``edge_features`` and ``edge_keys`` need ``include_sampled_edges``.

    Attributes:
        seeds: The nodes to start from, in the forms of ``NeighborLoader``'s seeds.
        settings: Settings of the PageRank; None means ``PPRSettings()``.
    """

    seeds: SeedsLike = field(default=None, kw_only=False)
    settings: PPRSettings | None = field(default=None, kw_only=False)

    def __post_init__(self) -> None:
        """Check every field."""
        super().__post_init__()
        if self.settings is not None and not isinstance(self.settings, PPRSettings):
            raise SettingsError(f"settings is {self.settings!r}; give PPRSettings(alpha=…, eps=…), or None")


class PPRLoader(SubgraphLoader):
    """Mini-batches of neighbourhoods by personalised PageRank, as PyG's ``Data`` or ``HeteroData``.

    The seeds are the first nodes of their type. Every node type that can be reached has edges
    ``(seed type, "ppr", node type)``, grouped by seed and by falling score:
    ``edge_index`` int64[2, n], slots of seeds and of their neighbours;
    ``edge_attr`` float32[n, 2 or 2 + 3 * channels], the score, ``1 / (1 + hop)``, and for each channel its score, its
    ``1 / (1 + hop)`` and whether it reached the node.

    A ``Data`` has them as its ``edge_index`` and ``edge_attr``, or as ``ppr_edge_index`` and ``ppr_edge_attr`` with
    ``include_sampled_edges``.
    """

    attached_names: ClassVar[frozenset[str]] = PPR_ATTRIBUTES

    @takes(PPRArguments, OTHER_OPTIONS)
    def __init__(self, arguments: PPRArguments) -> None:
        """Open the source and check every setting against it.

        Raises:
            SettingsError: A setting cannot be met.
            UnknownNameError: The graph has no such node type, edge type, split or feature.
            IdRangeError: A seed is outside 0..n-1 of its node type.
        """
        settings = PPRSettings() if arguments.settings is None else arguments.settings
        setup = self._open(arguments.source, settings.direction, without_edges(settings, arguments))
        self._seeds = read_seeds(setup.store, arguments.seeds)
        self._plan = plan_ppr(setup.store, settings, self._seeds.node_type)
        check_edge_attr(setup, settings)
        self._order = setup.order(self._seeds.num_seeds)
        self._begin(self._order, partial(setup.maker, PPRMaker, self._plan, (self._seeds, self._order)))

    def facts(self) -> Facts:
        """Return settings and inputs that determine the batches; a saved state with other facts is refused."""
        return {**self._setup.facts(), "seeds": self._seeds.fingerprint(), **plan_facts(self._plan)}

    def __repr__(self) -> str:
        """Return a description of the loader in one line."""
        settings = self._plan.settings
        return (
            f"PPRLoader({self._seeds.num_seeds} seeds ({self._seeds.name}), alpha={settings.alpha:g}, "
            f"eps={settings.eps:g}, max_ppr_nodes={settings.max_ppr_nodes}, "
            f"batch_size={self._order.settings.batch_size}, {len(self)} batches on {self._order.settings.rank_text})"
        )


class PPRMaker(BatchMaker[tuple[Seeds, SeedOrder]]):
    """Maker of batches of neighbourhoods by personalised PageRank."""

    def _start(self, epoch: int, step: int) -> SeedBatch:
        seeds, order = self._inputs
        span = order.span(step)
        positions = order.positions(epoch, span)
        self.stage = "looking up seeds"
        ids = self._reader.ids_of(seeds.node_type, seeds.keys_at(positions))
        return SeedBatch(
            index=span.index, seeds=SeedNodes(ids={seeds.node_type: ids}, rng_seed=order.batch_seed(epoch, span)),
            seed_type=seeds.node_type, input_ids=seeds.input_ids_at(positions),
        )  # fmt: skip


def plan_facts(plan: PPRPlan) -> dict[str, Any]:
    """Return the settings and edge types of a plan, which determine batches."""
    return {**plan.settings.facts(), "edge_types": [type_label(edge_type) for edge_type in plan.edge_types]}


def check_edge_attr(setup: LoaderSetup, settings: PPRSettings) -> None:
    """Refuse a node feature ``edge_attr`` if a ``Data`` would need the name for scores.

    Raises:
        SettingsError: The nodes have a feature of that name.
    """
    if setup.settings.collate != "pyg" or settings.include_sampled_edges:
        return
    if setup.store.schema.is_homogeneous and "edge_attr" in setup.columns.nodes[NODE]:
        raise SettingsError(
            "feature 'edge_attr' of the nodes would hide the batch's own 'edge_attr'; leave it out with "
            "node_features, or use collate='numpy'"
        )


def without_edges(settings: PPRSettings, loading: L) -> L:
    """Turn off edge features and edge keys if batches have no edges of the graph.

    Raises:
        SettingsError: The user requests edge features or edge keys.
    """
    if settings.include_sampled_edges:
        return loading
    for name, given in (("edge_features", loading.edge_features), ("edge_keys", loading.edge_keys)):
        if given:
            raise SettingsError(
                f"{name} is {given!r}, but a PPR batch has no edges of the graph; use "
                f"PPRSettings(include_sampled_edges=True), or leave {name} out"
            )
    return replace(loading, edge_features=[], edge_keys=False)
