"""Options of sampling neighbourhoods, with GiGL's names."""

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
    """Options of sampling hop by hop.

    Attributes:
        num_neighbors: Neighbours per hop, for all edge types or by edge type; equal to the loader's.
    """

    num_neighbors: FanOut


@dataclass(frozen=True)
class PPRSamplerOptions:
    """Options of personalised PageRank: the nodes with the highest scores are the neighbours.

    Attributes:
        alpha: Probability that a walk ends at a node.
        eps: Tolerance of scores; a smaller value is more exact.
        max_ppr_nodes: Limit of nodes per seed, including the seed.
        enable_residual_topup: Fill the rest of ``max_ppr_nodes`` with nodes that were reached but not pushed.
        num_neighbors_per_hop: Limit of neighbours to which a node pushes along one edge type.
        max_fetch_iterations: Limit of rounds in which a seed pushes from nodes that it has not pushed from before; None
            for no limit.
        typed_channel_ratios: Edge type, or a tuple of several, to its share of ``max_ppr_nodes``; the order is that of
            the columns of scores.
        include_sampled_edges: Include the edges that walks read in batches.

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
        """Convert the options to the settings of ``PPRLoader``.

        Args:
            direction: ``in`` walks from destinations to sources, ``out`` the other way.
            edge_types: Edge types to follow; None for all except those of labels.

        Raises:
            SettingsError: An argument is outside what ``PPRSettings`` accepts.
        """
        return PPRSettings(**self.__dict__, direction=direction, edge_types=edge_types)


SamplerOptions = KHopNeighborSamplerOptions | PPRSamplerOptions


def resolve_sampler_options(num_neighbors: FanOut, sampler_options: SamplerOptions | None) -> SamplerOptions:
    """Return the options of a loader; None means sampling hop by hop.

    Args:
        num_neighbors: The loader's argument.
        sampler_options: The user's options, or None.

    Raises:
        SettingsError: The options have another class, or other numbers of neighbours than the loader.
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
            f"num_neighbors is {num_neighbors}, but sampler_options has {sampler_options.num_neighbors}; give both the "
            "same, or leave sampler_options out"
        )
    return sampler_options


def ppr_settings_of(options: SamplerOptions, edge_dir: Direction, facts: GraphFacts) -> PPRSettings | None:
    """Return the settings of PageRank along message-passing edges; None for sampling hop by hop."""
    return options.ppr_settings(edge_dir, facts.message_types) if isinstance(options, PPRSamplerOptions) else None
