"""Checks settings of sampling against a store, and makes plans from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hopstream.checks import known_names
from hopstream.errors import SettingsError, UnknownNameError
from hopstream.kernels.hashing import derive_seed
from hopstream.sample.plan import NumNeighbors, SamplePlan, plan_from_num_neighbors
from hopstream.sample.sampling_settings import ReverseTypes, SamplingSettings
from hopstream.schema import EdgeType, GraphSchema, reverse_by_name, timed_edge_types, type_label
from hopstream.store.contract import LaborSeeds, Store, Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Settings of sampling on one store.

    Attributes:
        settings: The user's settings.
        schema: The graph's types.
        reverse_types: Edge type to the edge type that holds its reverses, in both directions. Edge types without a
            known reverse are left out.
    """

    settings: SamplingSettings
    schema: GraphSchema
    reverse_types: Mapping[EdgeType, EdgeType]

    @classmethod
    def of(cls, store: Store, settings: SamplingSettings) -> Sampling:
        """Check settings against a store.

        Raises:
            SettingsError: The dataset was not written for these settings; the message has a remedy.
            UnknownNameError: No type has a feature of that name, or there is no such edge type.
        """
        _check_feature("time_attr", settings.time_attr, store.time_attr, store.schema)
        _check_feature("weight_attr", settings.weight_attr, store.weight_attr, store.schema)
        if settings.sampling == "labor" and not store.has_neighbor_keys:
            raise SettingsError(
                "sampling='labor' needs the keys of neighbours, which this dataset does not keep; "
                "write the parts again with neighbor_keys=True"
            )
        return cls(
            settings=SamplingSettings.within(settings),
            schema=store.schema,
            reverse_types=find_reverse_types(store.schema, settings.reverse_types),
        )

    def plan(self, num_neighbors: NumNeighbors, seed_types: tuple[str, ...], wants_edge_ids: bool) -> SamplePlan:
        """Make a plan with these settings.

        Args:
            num_neighbors: Neighbours per hop; see ``plan_from_num_neighbors``.
            seed_types: Node types of the seeds.
            wants_edge_ids: Also find the ids of the drawn edges.

        Raises:
            SettingsError: The counts are invalid, or an option applies to no edge type that the plan follows.
            UnknownNameError: The schema has no such seed type or edge type.
        """
        is_bidirectional = self.settings.subgraph_type == "bidirectional"
        plan = plan_from_num_neighbors(
            self.schema,
            num_neighbors,
            seed_types,
            self.settings,
            strategies=self._strategies(),
            wants_edge_ids=wants_edge_ids,
        )
        self._check_followed({op.edge_type for op in plan.ops})
        return replace(plan, reverse_types=self.reverse_types) if is_bidirectional else plan

    def labor_seeds(self, rng_seed: int, epoch: int, batch_index: int) -> LaborSeeds | None:
        """Return the seeds of the random variates of one batch, or None without ``labor`` sampling.

        With a batch dependency of ``n``, batches ``kn`` to ``kn + n - 1`` move from one rng seed to the next in steps
        of ``1 / n``, so that consecutive batches share most of their neighbours.
        """
        if self.settings.drawing != "labor":
            return None
        turn, step = divmod(batch_index, self.settings.batch_dependency)
        return LaborSeeds(
            first=derive_seed("labor", rng_seed, epoch, turn),
            second=derive_seed("labor", rng_seed, epoch, turn + 1),
            share=step / self.settings.batch_dependency,
        )

    def places_of_links(self, edge_type: EdgeType) -> tuple[tuple[EdgeType, bool], ...]:
        """Return the edge types that hold links or their reverses (True): own type, its reverse, then others."""
        found = [(edge_type, False), *self.schema.holders_of(edge_type)]
        reverses = [(self._reverse_of(t), not is_back) for t, is_back in found]
        found[1:1] = [(t, is_back) for t, is_back in reverses if t is not None]
        return tuple(dict.fromkeys(found))

    def _reverse_of(self, edge_type: EdgeType) -> EdgeType | None:
        """Return the edge type that holds reverses; found by name if the graph lacks the given edge type."""
        is_known = edge_type in self.schema.edges
        return self.reverse_types.get(edge_type) if is_known else reverse_by_name(edge_type, self.schema.edges)

    def facts(self) -> dict[str, Any]:
        """Return the settings that determine batches, as JSON values by option; without the direction.

        Every loader adds the direction itself.
        """
        settings = self.settings
        reverse_types = {type_label(t): type_label(reverse) for t, reverse in self.reverse_types.items()}
        return {
            **{name: getattr(settings, name) for name in settings.field_names() if name != "direction"},
            "disjoint": settings.is_disjoint,
            "sampling": settings.drawing,
            "reverse_types": reverse_types if settings.subgraph_type == "bidirectional" else None,
        }

    def _timed_types(self) -> tuple[EdgeType, ...]:
        return timed_edge_types(self.schema, self.settings.time_attr, self.settings.direction)

    def _weighted_types(self) -> tuple[EdgeType, ...]:
        return tuple(t for t, features in self.schema.edges.items() if self.settings.weight_attr in features)

    def _strategies(self) -> dict[EdgeType, Strategy]:
        """Return the edge types that are not drawn uniformly, to their strategies."""
        settings = self.settings
        if settings.drawing == "labor":
            return dict.fromkeys(self.schema.edges, "labor")
        if settings.drawing != "uniform":
            return dict.fromkeys(self._weighted_types(), settings.drawing)
        if settings.temporal_strategy == "last":
            return dict.fromkeys(self._timed_types(), "last")
        return {}

    def _check_followed(self, followed: set[EdgeType]) -> None:
        """Refuse options that apply to no edge type of a plan."""
        settings = self.settings
        shown = ", ".join(sorted(map(type_label, followed))) or "none"
        if settings.is_temporal and not followed.intersection(self._timed_types()):
            neighbors = "source" if settings.direction == "in" else "destination"
            raise SettingsError(
                f"time_attr is {settings.time_attr!r}; none of the followed edge types ({shown}) and none of their "
                f"{neighbors} types has this feature; follow an edge type that has it, or leave time_attr out"
            )
        if settings.weight_attr is not None and not followed.intersection(self._weighted_types()):
            raise SettingsError(
                f"weight_attr is {settings.weight_attr!r}; none of the followed edge types ({shown}) has this feature; "
                "follow an edge type that has it, or leave weight_attr out"
            )
        if settings.subgraph_type == "bidirectional" and followed and not followed.intersection(self.reverse_types):
            raise SettingsError(
                f"subgraph_type is 'bidirectional', but none of the followed edge types ({shown}) has a known reverse; "
                "name it: reverse_types={edge type: reverse edge type}"
            )


def find_reverse_types(schema: GraphSchema, given: ReverseTypes | None) -> dict[EdgeType, EdgeType]:
    """Find the edge types that hold the reverses of edge types.

    Args:
        schema: The graph's types.
        given: Edge type to its reverse, as tuples or ``src__rel__dst``; one entry per pair is enough. Other edge types
            are matched by name: ``("a", "r", "b")`` and ``("b", "rev_r", "a")`` are each other's reverses, and an edge
            type between nodes of one type without such a partner is its own.

    Returns:
        Edge type to reverse, both ways, in the order of the schema.

    Raises:
        SettingsError: A reverse joins other node types, or an edge type is given two reverses.
        UnknownNameError: The schema has no such edge type.
    """
    found: dict[EdgeType, EdgeType] = {}
    for edge_type, reverse in (given or {}).items():
        pair = (schema.edge_type_of(edge_type), schema.edge_type_of(reverse))
        for one, other in (pair, pair[::-1]):
            if found.setdefault(one, other) != other:
                raise SettingsError(f"reverse_types gives {one!r} two reverses: {found[one]!r} and {other!r}")
            if (one[0], one[2]) != (other[2], other[0]):
                raise SettingsError(f"reverse_types pairs {one!r} with {other!r}, which does not lead back")
    for edge_type in schema.edges:
        if edge_type not in found:
            partner = reverse_by_name(edge_type, schema.edges.keys() - found.keys())
            if partner is not None:
                found[edge_type], found[partner] = partner, edge_type
    return {edge_type: found[edge_type] for edge_type in schema.edges if edge_type in found}


def _check_feature(option: str, given: str | None, written: str | None, schema: GraphSchema) -> None:
    """Refuse a ``time_attr`` or ``weight_attr`` that the dataset was not written with."""
    if given is None or given == written:
        return
    nodes = schema.nodes.values() if option == "time_attr" else ()
    was = f"with {option}={written!r}" if written is not None else f"without {option}"
    names = sorted({name for features in (*nodes, *schema.edges.values()) for name in features})
    if given not in names:
        where = "node type and no edge type" if option == "time_attr" else "edge type"
        was = "" if written is None else f"the dataset was written {was}; "
        raise UnknownNameError(
            f"{option} is {given!r}; no {where} has such a feature; {was}{known_names(given, names)}"
        )
    raise SettingsError(
        f"{option} is {given!r}; the dataset was written {was}; write the parts again with {option}={given!r}"
    )
