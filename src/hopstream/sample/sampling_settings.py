"""Settings of sampling, shared by loaders of nodes and of links."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from hopstream.checks import Settings, check_choice
from hopstream.errors import SettingsError
from hopstream.schema import Direction, EdgeType

SubgraphType = Literal["directional", "bidirectional", "induced"]
TemporalStrategy = Literal["uniform", "last"]
Drawing = Literal["uniform", "weighted", "top_k", "labor"]
ReverseTypes = Mapping[EdgeType, EdgeType] | Mapping[str, str]
MAX_BATCH_DEPENDENCY = 1 << 31


@dataclass(frozen=True, kw_only=True)
class SamplingSettings(Settings):
    """Settings of neighbour sampling. The record checks every field, but does not know the graph.

    Attributes:
        replace: Draw neighbours with replacement; with ``sampling`` ``uniform`` or ``weighted`` only.
        direction: ``in`` follows edges from destination to source, as message passing needs; ``out`` from source to
            destination.
        disjoint: Every seed grows a tree of its own, repeated seeds as well. Trees share no nodes, and ``batch``
            int64[num_nodes] holds the tree of each node.
        time_attr: The feature that holds times; the dataset must have been written with it. An edge's time is its own
            or its neighbour's, or the later one if both exist; edges without a time are always followed. Only edges up
            to a seed's time are followed, and trees are disjoint. None ignores times.
        temporal_strategy: ``uniform`` draws among the edges up to the seed's time, ``last`` takes the latest.
        time_inclusive: Follow edges at exactly the seed's time too.
        weight_attr: The edge feature that holds weights; the dataset must have been written with it. Edge types
            without it are drawn uniformly. None ignores weights.
        sampling: How neighbours are drawn. ``uniform`` is the default. ``weighted``, the default with ``weight_attr``,
            draws one after the other in proportion to weight. ``top_k`` takes the largest weights. ``labor`` draws as
            ``uniform`` for each node, but prefers neighbours that the batch's nodes have in common. It draws parallel
            edges together, and any of them if there are too many.
        layer_dependency: With ``labor``: use the same random order of nodes in all hops.
        batch_dependency: With ``labor``: number of batches over which that order changes; 1 means a new order per
            batch.
        subgraph_type: Edges of a batch: ``directional`` (the drawn edges), ``bidirectional`` (the drawn edges and their
            reverses), or ``induced`` (all edges between the sampled nodes, also of edge types that are not followed).
            Only ``directional`` has ``num_sampled_edges``.
        reverse_types: With ``bidirectional``: edge type to the edge type of its reverses. Not needed for
            ``("a", "r", "b")`` with ``("b", "rev_r", "a")``, nor for edge types between nodes of one type, which hold
            their own reverses.

    Raises:
        SettingsError: A field has a wrong type, or two fields contradict each other.
    """

    replace: bool = False
    direction: Direction = "in"
    disjoint: bool = False
    time_attr: str | None = None
    temporal_strategy: TemporalStrategy = "uniform"
    time_inclusive: bool = True
    weight_attr: str | None = None
    sampling: Drawing | None = None
    layer_dependency: bool = False
    batch_dependency: int = 1
    subgraph_type: SubgraphType = "directional"
    reverse_types: ReverseTypes | None = None

    def __post_init__(self) -> None:
        """Check every field, and that no two contradict each other."""
        super().__post_init__()
        self._read_flags(SamplingSettings)
        self._read_integer("batch_dependency", 1, MAX_BATCH_DEPENDENCY)
        # PyG's ``SubgraphType`` is an enumeration with these strings as values.
        self._keep("subgraph_type", getattr(self.subgraph_type, "value", self.subgraph_type))
        check_choice("direction", self.direction, get_args(Direction))
        check_choice("temporal_strategy", self.temporal_strategy, get_args(TemporalStrategy))
        check_choice("subgraph_type", self.subgraph_type, get_args(SubgraphType))
        if self.sampling is not None:
            check_choice("sampling", self.sampling, get_args(Drawing))
        for name, value in (("time_attr", self.time_attr), ("weight_attr", self.weight_attr)):
            if value is not None and not isinstance(value, str):
                raise SettingsError(f"{name} is {value!r}; it must be the name of a feature, or None")
        if self.reverse_types is not None and not isinstance(self.reverse_types, Mapping):
            raise SettingsError(
                f"reverse_types is {self.reverse_types!r}; give edge type to reverse edge type, or None"
            )
        self._refuse_contradictions()

    def _refuse_contradictions(self) -> None:
        is_last = self.temporal_strategy == "last"
        if self.time_attr is None and (is_last or not self.time_inclusive):
            name = "temporal_strategy='last'" if is_last else "time_inclusive=False"
            raise SettingsError(f"{name} needs time_attr=, the feature that holds times")
        if self.weight_attr is None and self.sampling in ("weighted", "top_k"):
            raise SettingsError(f"sampling={self.sampling!r} needs weight_attr=, the edge feature that holds weights")
        if self.weight_attr is not None and self.sampling in ("uniform", "labor"):
            raise SettingsError(
                f"weight_attr={self.weight_attr!r} has no effect with sampling={self.sampling!r}; use "
                "sampling='weighted' or 'top_k', or leave weight_attr out"
            )
        if is_last and (self.weight_attr is not None or self.sampling == "labor"):
            other = f"weight_attr={self.weight_attr!r}" if self.weight_attr is not None else "sampling='labor'"
            raise SettingsError(f"temporal_strategy='last' and {other} contradict each other; give only one of them")
        if self.replace and (is_last or self.sampling in ("top_k", "labor")):
            name = "temporal_strategy='last'" if is_last else f"sampling={self.sampling!r}"
            raise SettingsError(f"{name} takes each neighbour once; leave replace=True out")
        for name, is_given in (
            ("layer_dependency", self.layer_dependency),
            ("batch_dependency", self.batch_dependency != 1),
        ):
            if is_given and self.sampling != "labor":
                raise SettingsError(f"{name} is an option of sampling='labor'; leave it out")

    @property
    def drawing(self) -> Drawing:
        """``sampling`` with its default; edge types without weights are drawn uniformly."""
        return self.sampling or ("uniform" if self.weight_attr is None else "weighted")

    @property
    def is_temporal(self) -> bool:
        """Whether every tree has a time and follows no later edges."""
        return self.time_attr is not None

    @property
    def is_disjoint(self) -> bool:
        """Whether every seed grows a tree of its own; always with ``time_attr``."""
        return self.disjoint or self.is_temporal
