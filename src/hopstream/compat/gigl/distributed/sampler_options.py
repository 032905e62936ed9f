"""How a loader finds the neighbourhoods of its seeds, in GiGL's words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hopstream.compat.glt.distributed.graph_facts import GraphFacts
from hopstream.errors import SettingsError
from hopstream.sample.ppr_settings import Channel, PPRSettings
from hopstream.schema import Direction, EdgeType

__all__ = ["KHopNeighborSamplerOptions", "PPRSamplerOptions", "SamplerOptions", "resolve_sampler_options"]

FanOut = Sequence[int] | Mapping[EdgeType, Sequence[int]]


@dataclass(frozen=True)
class KHopNeighborSamplerOptions:
    """Neighbours are drawn hop by hop.

    Attributes:
        num_neighbors: How many per hop, for all edge types or per edge type; that of the loader.
    """

    num_neighbors: FanOut


@dataclass(frozen=True)
class PPRSamplerOptions:
    """Neighbours are those with the highest scores of personalised PageRank.

    Attributes:
        alpha: The chance that a walk ends at each node it comes to.
        eps: How exact scores are; the smaller, the more.
        max_ppr_nodes: Nodes per seed at most, the seed among them.
        enable_residual_topup: Nodes that were reached and not pushed fill what is left of ``max_ppr_nodes``.
        num_neighbors_per_hop: Neighbours that a node passes on to along one edge type.
        max_fetch_iterations: Rounds in which a seed may pass along nodes that it has not passed along before; None
            for no limit.
        typed_channel_ratios: Edge type, or a tuple of several, to its share of ``max_ppr_nodes``; their order is that
            of the columns of scores.
        include_sampled_edges: Batches also have the edges that walks read.

    Raises:
        SettingsError: A field is outside what ``PPRSettings`` accepts.
    """

    alpha: float = 0.5
    eps: float = 1e-4
    max_ppr_nodes: int = 50
    enable_residual_topup: bool = True
    num_neighbors_per_hop: int = 1_000
    max_fetch_iterations: int | None = None
    typed_channel_ratios: Mapping[Channel, float] | None = None
    include_sampled_edges: bool = False

    def __post_init__(self) -> None:
        """Check every field."""
        self.ppr_settings()

    def ppr_settings(
        self, direction: Direction = "in", edge_types: Sequence[EdgeType | str] | None = None
    ) -> PPRSettings:
        """The same as the settings of ``PPRLoader``.

        Args:
            direction: ``in`` walks from destinations to sources, ``out`` the other way.
            edge_types: Edge types to follow; None for all but those of labels.

        Raises:
            SettingsError: An argument is outside what ``PPRSettings`` accepts.
        """
        return PPRSettings(**self.__dict__, direction=direction, edge_types=edge_types)


SamplerOptions = KHopNeighborSamplerOptions | PPRSamplerOptions


def resolve_sampler_options(num_neighbors: FanOut, sampler_options: SamplerOptions | None) -> SamplerOptions:
    """The options of a loader: what was given, or drawing hop by hop.

    Args:
        num_neighbors: The loader's.
        sampler_options: What was given.

    Raises:
        SettingsError: The options are of another class, or name other numbers of neighbours.
    """
    if sampler_options is None:
        return KHopNeighborSamplerOptions(num_neighbors)
    if not isinstance(sampler_options, KHopNeighborSamplerOptions | PPRSamplerOptions):
        raise SettingsError(
            f"sampler_options is a {type(sampler_options).__name__}; give KHopNeighborSamplerOptions, "
            "PPRSamplerOptions or None"
        )
    if isinstance(sampler_options, KHopNeighborSamplerOptions) and sampler_options.num_neighbors != num_neighbors:
        raise SettingsError(
            f"num_neighbors is {num_neighbors} and sampler_options say {sampler_options.num_neighbors}; give both the "
            "same, or leave sampler_options out"
        )
    return sampler_options


def ppr_settings_of(options: SamplerOptions, edge_dir: Direction, facts: GraphFacts) -> PPRSettings | None:
    """How PageRank walks along the edges that are followed; None where neighbours are drawn hop by hop."""
    return options.ppr_settings(edge_dir, facts.message_types) if isinstance(options, PPRSamplerOptions) else None
