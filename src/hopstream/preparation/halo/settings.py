"""Settings of the halo of a dataset's parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict

from hopstream.checks import Settings, check_int, known_names
from hopstream.engine.settings import read_bytes
from hopstream.errors import SettingsError, UnknownNameError
from hopstream.schema import EdgeType, GraphSchema, type_label

MAX_HOPS = 64
MAX_FANOUT = (1 << 31) - 1
FeatureChoice = Literal["none", "all"] | str | Sequence[str]
"""``none``, ``all``, or ``type:feature`` (``type:*`` for all of a type); several joined by commas or in a list.

An edge type is written ``source__relation__destination``.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HaloSettings(Settings):
    """Settings of what each part keeps copies of. The constructor checks every field.

    Attributes:
        hops: Edges are copied of nodes at a distance of 1 to ``hops`` hops from nodes that the part owns, along the
            stored directions of edges, unless ``edge_budget`` is given. 0 copies none.
        features: Which features are copied: ``none``, ``all``, or ``type:feature``, where ``type:*`` is all of a type;
            several are joined by commas or in a list. An edge type is written ``source__relation__destination``; its
            features come with the copied edges, and ``all`` with a budget copies only those of nodes. None is
            ``none``, or ``all`` with a budget.
        budget: Bytes of features of nodes per part, for example ``2GiB``, copied of the nodes that are most likely
            sampled, at any distance; None copies those of all nodes within ``hops``.
        edge_budget: Bytes of edges per part, for example ``1GiB``, copied of the nodes for which the most requests
            are expected per byte, at any distance; None copies those of all nodes within ``hops``. Features of edges
            are not copied.
        fanouts: Neighbours per hop and edge type that training draws, -1 for all. They only decide the order in which
            nodes are taken within a budget, and the reported savings.
        batch_size: Seeds per batch of training, which decides the same as ``fanouts``.

    Raises:
        SettingsError: A field has an invalid value.
    """

    hops: int = 1
    features: FeatureChoice | None = None
    budget: str | int | None = None
    edge_budget: str | int | None = None
    fanouts: Sequence[int] = (15, 10, 5)
    batch_size: int = 1024

    def __post_init__(self) -> None:
        """Check every field."""
        check_int("hops", self.hops, 0, MAX_HOPS)
        check_int("batch_size", self.batch_size, 1, 1 << 40)
        fanouts: object = self.fanouts
        if not isinstance(fanouts, list | tuple) or not 1 <= len(fanouts) <= MAX_HOPS:
            raise SettingsError(f"fanouts is {fanouts!r}; it must be one integer for each hop of training")
        for fanout in fanouts:
            check_int("fanouts", fanout, -1, MAX_FANOUT)
        object.__setattr__(self, "fanouts", tuple(fanouts))
        _ = self.budget_bytes, self.edge_budget_bytes, self.feature_names
        if self.budget is not None and not self.feature_names:
            raise SettingsError(
                "budget is given, but features is 'none'; a budget is for features: leave one of them out"
            )
        if self.hops == 0 and self.feature_names and self.budget is None:
            raise SettingsError(
                "hops is 0, so there are no nodes whose features to copy; give hops above 0, or a budget of features"
            )

    @property
    def budget_bytes(self) -> int | None:
        """The budget of features as a number of bytes."""
        return None if self.budget is None else read_bytes("budget", self.budget)

    @property
    def edge_budget_bytes(self) -> int | None:
        """The budget of edges as a number of bytes."""
        return None if self.edge_budget is None else read_bytes("edge_budget", self.edge_budget)

    @property
    def copies_edges(self) -> bool:
        """Whether edges are copied."""
        return self.hops > 0 or self.edge_budget is not None

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Features to copy, each ``type:feature`` or ``all``; empty for none."""
        chosen: object = ("all" if self.budget is not None else "none") if self.features is None else self.features
        names = chosen.split(",") if isinstance(chosen, str) else chosen
        if not isinstance(names, list | tuple) or not all(isinstance(name, str) and name.strip() for name in names):
            raise SettingsError(
                f"features is {chosen!r}; it must be 'none', 'all' or names such as 'paper:feat,author:*'"
            )
        names = tuple(name.strip() for name in names)
        if names in {(), ("none",)}:
            return ()
        if names != ("all",) and not all(":" in name for name in names):
            raise SettingsError(f"features is {chosen!r}; each must be type:feature, or type:* for all of a type")
        return names

    @property
    def is_nothing(self) -> bool:
        """Whether nothing is copied, so that an existing halo is removed."""
        return not self.copies_edges and not self.feature_names

    def choose(self, schema: GraphSchema) -> HaloFeatures:
        """Return the features to copy.

        Raises:
            UnknownNameError: The graph has no such type or feature.
            SettingsError: Features of edges are named, and ``hops`` is 0 or ``edge_budget`` is given.
        """
        if self.feature_names == ("all",):
            nodes = {t: tuple(features) for t, features in schema.nodes.items()}
            is_of_edges = self.hops > 0 and self.budget is None and self.edge_budget is None
            edges = {t: tuple(features) for t, features in schema.edges.items() if features and is_of_edges}
            return HaloFeatures(nodes=nodes, edges=edges)
        chosen: dict[str | EdgeType, dict[str, None]] = {}
        for text in self.feature_names:
            label, _, name = text.partition(":")
            of = label if label in schema.nodes else schema.find_edge_type(label)
            if of is None:
                known_types = [*schema.nodes, *map(type_label, schema.edges)]
                raise UnknownNameError(
                    f"features names {label!r}, which is not a type of the graph; {known_names(label, known_types)}"
                )
            if not isinstance(of, str) and (not self.hops or self.edge_budget is not None):
                why = "edge_budget is given" if self.hops else "hops is 0"
                raise SettingsError(
                    f"features names {text!r} and {why}; features of edges are copied with the edges of all nodes "
                    "within hops: give hops above 0, without edge_budget"
                )
            known = schema.nodes[of] if isinstance(of, str) else schema.edges[of]
            if name != "*":
                schema.feature(of, name)
            chosen.setdefault(of, {}).update(dict.fromkeys(known if name == "*" else [name]))
        return HaloFeatures(
            nodes={t: tuple(f for f in schema.nodes[t] if f in chosen[t]) for t in schema.nodes if t in chosen},
            edges={t: tuple(f for f in schema.edges[t] if f in chosen[t]) for t in schema.edges if chosen.get(t)},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HaloFeatures:
    """Features that parts keep copies of.

    Attributes:
        nodes: Node type to names of features, without unnamed types; a type may have no name.
        edges: Edge type to names of features, without types that have none.
    """

    nodes: Mapping[str, tuple[str, ...]]
    edges: Mapping[EdgeType, tuple[str, ...]]


class HaloOptions(TypedDict, total=False):
    """The fields of ``HaloSettings`` as keyword arguments of ``add_halo``."""

    hops: int
    features: FeatureChoice | None
    budget: str | int | None
    edge_budget: str | int | None
    fanouts: Sequence[int]
    batch_size: int
