"""Settings of personalised PageRank, and the plan that they make on a graph."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import IntArray
from hopstream.checks import Settings, check_choice, is_number
from hopstream.dataset.book import ends_of
from hopstream.errors import SettingsError
from hopstream.schema import Direction, EdgeType, GraphSchema, is_edge_type, type_label
from hopstream.store.contract import MAX_COUNT, Store

PPR = "ppr"
"""Relation of the edges from seeds to their neighbourhoods: ``(seed type, "ppr", node type)``."""
Channel = EdgeType | tuple[EdgeType, ...]
RATIO_TOLERANCE = 1e-6
MAX_NODES_TOUCHED = (1 << 31) - 1
NO_FACTS = frozenset({"typed_channel_ratios", "direction", "edge_types", "max_rounds", "max_nodes_touched"})
"""Fields that are limits, or that facts hold in another form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PPRSettings(Settings):
    """Settings of neighbourhoods by personalised PageRank, by forward push.

    Attributes:
        alpha: Probability that a walk ends at each node, between 0 and 1; larger values stay closer to the seed.
        eps: Precision: a node is pushed while its residual is at least ``alpha * eps * degree``.
        max_ppr_nodes: Most nodes per seed, including the seed.
        enable_residual_topup: Fill up to ``max_ppr_nodes`` with nodes that were reached but not pushed, and add
            residuals to all scores.
        num_neighbors_per_hop: Most neighbours that a node is pushed to along one edge type, drawn at random; -1 means
            all.
        max_fetch_iterations: Rounds in which nodes may be pushed for the first time. Later, such a node keeps its
            residual as score and does not push it to neighbours. None means no limit.
        typed_channel_ratios: Edge type, or a tuple of edge types, to its share of ``max_ppr_nodes``. Each is a channel
            with its own walks along its edge types; shares add up to 1. None: one walk along all edge types.
        include_sampled_edges: Include the edges that walks fetched, if both ends are in the batch.
        limit_per_type: Apply ``max_ppr_nodes`` to each node type instead of all together.
        direction: ``in`` walks from destinations to sources, ``out`` from sources to destinations.
        edge_types: Edge types to follow. None: those of the channels, or all without channels.
        max_rounds: Most rounds of pushing; a walk that needs more is an error.
        max_nodes_touched: Most nodes that one walk may reach; more are an error.
    """

    alpha: float = 0.5
    eps: float = 1e-4
    max_ppr_nodes: int = 50
    enable_residual_topup: bool = True
    num_neighbors_per_hop: int = 1000
    max_fetch_iterations: int | None = None
    typed_channel_ratios: Mapping[Channel, float] | None = None
    include_sampled_edges: bool = False
    limit_per_type: bool = False
    direction: Direction = "in"
    edge_types: Sequence[EdgeType | str] | None = None
    max_rounds: int = 10_000
    max_nodes_touched: int = 1_000_000

    def __post_init__(self) -> None:
        """Check every field, and convert numbers of numpy or torch to plain ones."""
        for name, value, high in (("alpha", self.alpha, 1.0), ("eps", self.eps, math.inf)):
            if not is_number(value) or not 0 < value < high:
                wanted = "between 0 and 1" if high == 1.0 else "above 0"
                raise SettingsError(f"{name} is {value!r}; it must be a number {wanted}, ends excluded")
            self._keep(name, float(value))
        self._read_integer("max_ppr_nodes", 1, MAX_NODES_TOUCHED)
        self._read_integer("num_neighbors_per_hop", -1, MAX_COUNT)
        if self.num_neighbors_per_hop == 0:
            raise SettingsError("num_neighbors_per_hop is 0; give 1 or above, or -1 for all neighbours")
        if self.max_fetch_iterations is not None:
            self._read_integer("max_fetch_iterations", 1)
        self._read_integer("max_rounds", 1)
        self._read_integer("max_nodes_touched", 1, MAX_NODES_TOUCHED)
        self._read_flags(PPRSettings)
        check_choice("direction", self.direction, get_args(Direction))
        if isinstance(self.edge_types, str) or not isinstance(self.edge_types, Sequence | None):
            raise SettingsError(f"edge_types is {self.edge_types!r}; give a list of edge types, or None for all")
        if self.edge_types is not None and not len(self.edge_types):
            raise SettingsError("edge_types is empty, so no edge would be followed; give one or more, or None for all")
        if self.typed_channel_ratios is not None:
            _check_ratios(self.typed_channel_ratios)

    def channels(self) -> list[tuple[EdgeType, ...]] | None:
        """Return the edge types of each channel, in the given order, or None without channels."""
        if self.typed_channel_ratios is None:
            return None
        return [_edge_types_of(channel) for channel in self.typed_channel_ratios]

    def facts(self) -> dict[str, Any]:
        """Return the settings that determine neighbourhoods, without direction and edge types, as JSON."""
        channels = self.channels()
        ratios = list((self.typed_channel_ratios or {}).values())
        shares: Any = channels and [
            [[type_label(t) for t in channel], float(ratio)] for channel, ratio in zip(channels, ratios, strict=True)
        ]
        plain = {name: getattr(self, name) for name in self.field_names() if name not in NO_FACTS}
        return {**plain, "channels": shares}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PPRPlan:
    """Plan on one graph: the edge types that each channel follows from each node type.

    Attributes:
        settings: The user's settings.
        seed_types: Node types of the seeds.
        node_types: All node types of the schema; a type's number is its index here.
        followed: Per node type, the edge types followed from it; an edge type's column is its index there.
        follows: bool[num_channels, num_types, num_columns], whether a channel follows an edge type from a node type.
        targets: int64[num_channels], number of nodes that each channel should get.
        is_homogeneous: Whether the graph has no types.
        found_types: Seed type to the node types that a walk from it can reach, its own first.
    """

    settings: PPRSettings
    seed_types: tuple[str, ...]
    node_types: tuple[str, ...]
    followed: tuple[tuple[EdgeType, ...], ...]
    follows: NDArray[np.bool_]
    targets: IntArray
    is_homogeneous: bool
    found_types: Mapping[str, tuple[str, ...]]

    @property
    def num_channels(self) -> int:
        """Number of walks per seed."""
        return len(self.targets)

    @property
    def own_types(self) -> tuple[EdgeType, ...]:
        """Edge types from seeds to their neighbourhoods."""
        return tuple((seed, PPR, found) for seed, found_types in self.found_types.items() for found in found_types)

    @property
    def edge_types(self) -> tuple[EdgeType, ...]:
        """All followed edge types."""
        return tuple(edge_type for of_type in self.followed for edge_type in of_type)


def plan_ppr(
    store: Store, settings: PPRSettings, *seed_types: str, hidden: Collection[EdgeType] = frozenset()
) -> PPRPlan:
    """Check settings against a graph and make a plan.

    Args:
        store: The graph's store.
        settings: The user's settings.
        *seed_types: Node types of the seeds.
        hidden: Edge types that hold labels or their reverses; they are not followed.

    Raises:
        UnknownNameError: The graph has no such node type or edge type.
        SettingsError: The dataset does not hold the direction, an edge type is named twice, a channel follows an edge
            type that ``edge_types`` leaves out, the settings name a hidden edge type, no edge type is left to follow,
            or the graph already has edges of the relation ``ppr``.
    """
    schema, direction = store.schema, settings.direction
    for seed_type in seed_types:
        schema.check_node_type(seed_type)
    if direction not in store.directions:
        raise SettingsError(
            f"direction is {direction!r}; the dataset holds {'|'.join(store.directions)}; write the parts again with "
            f"direction {direction!r} or 'both'"
        )
    channels = settings.channels()
    chosen = _chosen_edge_types(schema, settings, channels)
    if hidden:
        chosen = _without_hidden(chosen, hidden, is_named=channels is not None or settings.edge_types is not None)
    node_types = tuple(schema.nodes)
    followed = tuple(tuple(t for t in chosen if ends_of(t, direction)[0] == node_type) for node_type in node_types)
    num_columns = max(map(len, followed), default=0)
    uses = [set(chosen)] if channels is None else [set(channel) for channel in channels]
    follows = np.zeros((len(uses), len(node_types), num_columns), np.bool_)
    for channel, used in enumerate(uses):
        for number, edge_types in enumerate(followed):
            follows[channel, number, : len(edge_types)] = [t in used for t in edge_types]
    plan = PPRPlan(
        settings=settings, seed_types=seed_types, node_types=node_types, followed=followed, follows=follows,
        targets=_targets(settings), is_homogeneous=schema.is_homogeneous,
        found_types={t: _found_types(t, chosen, direction) for t in seed_types},
    )  # fmt: skip
    for own_type in plan.own_types:
        if own_type in schema.edges:
            raise SettingsError(
                f"the graph already has the edge type {own_type}, which a PPR batch adds itself; "
                "rename this relation when you make the graph"
            )
    return plan


def _without_hidden(
    chosen: Sequence[EdgeType], hidden: Collection[EdgeType], *, is_named: bool
) -> tuple[EdgeType, ...]:
    """Remove hidden edge types; raise ``SettingsError`` if one was named or none is left."""
    leaking = ", ".join(type_label(t) for t in chosen if t in hidden)
    if leaking and is_named:
        raise SettingsError(f"PPRSettings follows {leaking}, which holds labels or their reverses; leave it out")
    left = tuple(t for t in chosen if t not in hidden)
    if leaking and not left:
        raise SettingsError(
            f"no edge type is left to follow: {leaking} hold labels or their reverses; keep labels in an edge type of "
            "their own (hold_out_links makes one)"
        )
    return left


def _chosen_edge_types(
    schema: GraphSchema, settings: PPRSettings, channels: list[tuple[EdgeType, ...]] | None
) -> tuple[EdgeType, ...]:
    """Return the edge types to follow, in the order of the schema."""
    named = None if channels is None else {t for channel in channels for t in channel}
    for edge_type in named or ():
        schema.check_edge_type(edge_type)
    if settings.edge_types is None:
        return schema.message_types if named is None else tuple(t for t in schema.edges if t in named)
    given = [schema.edge_type_of(edge_type) for edge_type in settings.edge_types]
    for edge_type in given:
        if given.count(edge_type) > 1:
            raise SettingsError(f"edge_types names {edge_type!r} twice")
    left_out = [t for t in schema.edges if t in (named or ()) and t not in given]
    if left_out:
        raise SettingsError(
            f"typed_channel_ratios uses {left_out}, which edge_types lacks; add them there, or leave edge_types out"
        )
    return tuple(t for t in schema.edges if t in given)


def _found_types(seed_type: str, edge_types: Sequence[EdgeType], direction: Direction) -> tuple[str, ...]:
    """Return the seeds' type and every type that walks can reach from it, in order of distance."""
    found = [seed_type]
    for node_type in found:
        for edge_type in edge_types:
            expanded, neighbor = ends_of(edge_type, direction)
            if expanded == node_type and neighbor not in found:
                found.append(neighbor)
    return tuple(found)


def _targets(settings: PPRSettings) -> IntArray:
    """Return int64[num_channels], shares of ``max_ppr_nodes`` by largest remainder; ties go to the first."""
    limit = settings.max_ppr_nodes
    ratios = [1.0] if settings.typed_channel_ratios is None else list(settings.typed_channel_ratios.values())
    # Rounded, because a share such as 0.29 of 100 is 28.999999999999996 in floating point.
    shares = [round(float(ratio) * limit, 9) for ratio in ratios]
    targets = [math.floor(share) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda channel: targets[channel] - shares[channel])
    for channel in by_remainder[: limit - sum(targets)]:
        targets[channel] += 1
    return np.array(targets, np.int64)


def _check_ratios(ratios: Mapping[Channel, float]) -> None:
    if not isinstance(ratios, Mapping) or not ratios:
        raise SettingsError(f"typed_channel_ratios is {ratios!r}; give a dict of edge types to ratios, or None")
    for channel, ratio in ratios.items():
        edge_types = _edge_types_of(channel)
        if len(set(edge_types)) < len(edge_types):
            raise SettingsError(f"typed_channel_ratios: channel {channel!r} names an edge type twice")
        if not is_number(ratio) or not 0 < ratio < math.inf:
            raise SettingsError(f"typed_channel_ratios[{channel!r}] is {ratio!r}; ratios must be numbers above 0")
    total = math.fsum(map(float, ratios.values()))
    if abs(total - 1.0) > RATIO_TOLERANCE:
        raise SettingsError(f"typed_channel_ratios add up to {total:g}; they must add up to 1")


def _edge_types_of(channel: object) -> tuple[EdgeType, ...]:
    """Return a channel's edge types: the channel itself, or its items."""
    if isinstance(channel, tuple) and channel:
        edge_types = (channel,) if isinstance(channel[0], str) else channel
        if all(map(is_edge_type, edge_types)):
            return edge_types
    raise SettingsError(
        f"typed_channel_ratios: channel {channel!r} must be a (source, relation, destination) or a tuple of these"
    )
