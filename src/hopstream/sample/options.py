"""How is a neighbourhood to be sampled, and can this dataset be sampled so?

Loaders of nodes and of links share these options. They are checked twice: by themselves before anything is opened, and
against the store once it is open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypedDict, cast, get_args

from hopstream.checks import check_choice, known_names, read_flag, read_integer
from hopstream.errors import SettingsError, UnknownNameError
from hopstream.kernels.hashing import derive_seed
from hopstream.sample.plan import NumNeighbors, SamplePlan, SubgraphType, plan_from_num_neighbors
from hopstream.schema import Direction, EdgeType, GraphSchema, reverse_by_name, timed_edge_types, type_label
from hopstream.store.contract import LaborSeeds, Store, Strategy

TemporalStrategy = Literal["uniform", "last"]
Drawing = Literal["uniform", "weighted", "top_k", "labor"]
ReverseTypes = Mapping[EdgeType, EdgeType] | Mapping[str, str]
MAX_BATCH_DEPENDENCY = 1 << 31


class SamplingOptions(TypedDict, total=False):
    """Options of sampling that loaders of nodes and of links share; ``NeighborLoader`` says what each means."""

    replace: bool
    direction: Direction
    disjoint: bool
    time_attr: str | None
    temporal_strategy: TemporalStrategy
    time_inclusive: bool
    weight_attr: str | None
    sampling: Drawing | None
    layer_dependency: bool
    batch_dependency: int
    subgraph_type: SubgraphType
    reverse_types: ReverseTypes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Options of sampling, checked against a store.

    Attributes:
        schema: The graph's types.
        direction: The direction that is followed.
        is_replacing: Draw with replacement.
        is_disjoint: Every seed grows a tree of its own; always so with ``time_attr``.
        time_attr: The feature that holds times, or None where the sampling is not temporal.
        temporal_strategy: Draw among the edges that a tree may see, or take the latest of them.
        is_inclusive: Edges at exactly a tree's time are seen.
        weight_attr: The edge feature that edges are drawn by, or None.
        drawing: How neighbours are chosen in edge types that have what it needs.
        is_layer_dependent: With ``labor``: one variate per node in all hops.
        batch_dependency: With ``labor``: variates move to new ones over so many batches.
        subgraph_type: Which edges a subgraph has.
        reverse_types: Edge type to the edge type that holds its reverses, both ways; edge types between two types of
            nodes without a known reverse are not there.
    """

    schema: GraphSchema
    direction: Direction
    is_replacing: bool
    is_disjoint: bool
    time_attr: str | None
    temporal_strategy: TemporalStrategy
    is_inclusive: bool
    weight_attr: str | None
    drawing: Drawing
    is_layer_dependent: bool
    batch_dependency: int
    subgraph_type: SubgraphType
    reverse_types: Mapping[EdgeType, EdgeType]

    @classmethod
    def of(cls, store: Store, options: SamplingOptions) -> Sampling:
        """Check options by themselves and against a store.

        Raises:
            SettingsError: An option is of the wrong kind, two contradict each other, or the dataset was not written for
                what is asked; the message says what can be done.
            UnknownNameError: No type has a feature of that name, or there is no such edge type.
        """
        checked = check_options(options)
        time_attr, weight_attr = checked.get("time_attr"), checked.get("weight_attr")
        drawing: Drawing = checked.get("sampling") or ("uniform" if weight_attr is None else "weighted")
        _check_feature("time_attr", time_attr, store.time_attr, store.schema)
        _check_feature("weight_attr", weight_attr, store.weight_attr, store.schema)
        if drawing == "labor" and not store.has_neighbor_keys:
            raise SettingsError(
                "sampling='labor' needs the keys of neighbours beside the edges, which this dataset does not keep; "
                "write the parts again with neighbor_keys=True"
            )
        return cls(
            schema=store.schema,
            direction=checked.get("direction", "in"),
            is_replacing=checked.get("replace", False),
            is_disjoint=checked.get("disjoint", False) or time_attr is not None,
            time_attr=time_attr,
            temporal_strategy=checked.get("temporal_strategy", "uniform"),
            is_inclusive=checked.get("time_inclusive", True),
            weight_attr=weight_attr,
            drawing=drawing,
            is_layer_dependent=checked.get("layer_dependency", False),
            batch_dependency=checked.get("batch_dependency", 1),
            subgraph_type=checked.get("subgraph_type", "directional"),
            reverse_types=find_reverse_types(store.schema, checked.get("reverse_types")),
        )

    @property
    def is_temporal(self) -> bool:
        """Every tree has a time, and edges after it are not seen."""
        return self.time_attr is not None

    def plan(self, num_neighbors: NumNeighbors, seed_types: tuple[str, ...], wants_edge_ids: bool) -> SamplePlan:
        """The plan that draws as these options say.

        Args:
            num_neighbors: Neighbours per hop; see ``plan_from_num_neighbors``.
            seed_types: Node types of the seeds.
            wants_edge_ids: Also find the ids of the edges drawn.

        Raises:
            SettingsError: The counts are wrong, or the plan follows no edge type that an option could apply to.
            UnknownNameError: A seed type or an edge type is not in the schema.
        """
        is_bidirectional = self.subgraph_type == "bidirectional"
        plan = plan_from_num_neighbors(
            self.schema,
            num_neighbors,
            seed_types,
            direction=self.direction,
            strategies=self._strategies(),
            is_replacing=self.is_replacing,
            wants_edge_ids=wants_edge_ids,
            is_disjoint=self.is_disjoint,
            is_temporal=self.is_temporal,
            is_inclusive=self.is_inclusive,
            subgraph_type=self.subgraph_type,
            reverse_types=self.reverse_types if is_bidirectional else {},
            is_layer_dependent=self.is_layer_dependent,
        )
        self._check_followed({op.edge_type for op in plan.ops})
        return plan

    def labor_seeds(self, rng_seed: int, epoch: int, batch_index: int) -> LaborSeeds | None:
        """Where the variates of one batch come from, or None where the drawing needs none.

        With a batch dependency of ``n``, batches ``kn`` to ``kn + n - 1`` move from one seed to the next in steps of
        ``1 / n``, so that batches near each other find much the same neighbours.
        """
        if self.drawing != "labor":
            return None
        turn, step = divmod(batch_index, self.batch_dependency)
        return LaborSeeds(
            first=derive_seed("labor", rng_seed, epoch, turn),
            second=derive_seed("labor", rng_seed, epoch, turn + 1),
            share=step / self.batch_dependency,
        )

    def places_of_links(self, edge_type: EdgeType) -> tuple[tuple[EdgeType, bool], ...]:
        """Where links and their reverses (True) are: their own type first, its reverse, what ``label_types`` says."""
        found = [(edge_type, False), *self.schema.holders_of(edge_type)]
        reverses = [(self._reverse_of(t), not is_back) for t, is_back in found]
        found[1:1] = [(t, is_back) for t, is_back in reverses if t is not None]
        return tuple(dict.fromkeys(found))

    def _reverse_of(self, edge_type: EdgeType) -> EdgeType | None:
        """The edge type that holds reverses; of links that no edge type of the graph holds, names decide."""
        is_known = edge_type in self.schema.edges
        return self.reverse_types.get(edge_type) if is_known else reverse_by_name(edge_type, self.schema.edges)

    def facts(self) -> dict[str, str | int | bool | dict[str, str] | None]:
        """What decides over batches, by the name of its option; JSON values only."""
        is_bidirectional = self.subgraph_type == "bidirectional"
        reverse_types = {type_label(t): type_label(reverse) for t, reverse in self.reverse_types.items()}
        return {
            "replace": self.is_replacing,
            "disjoint": self.is_disjoint,
            "time_attr": self.time_attr,
            "temporal_strategy": self.temporal_strategy,
            "time_inclusive": self.is_inclusive,
            "weight_attr": self.weight_attr,
            "sampling": self.drawing,
            "layer_dependency": self.is_layer_dependent,
            "batch_dependency": self.batch_dependency,
            "subgraph_type": self.subgraph_type,
            "reverse_types": reverse_types if is_bidirectional else None,
        }

    def _timed_types(self) -> tuple[EdgeType, ...]:
        return timed_edge_types(self.schema, self.time_attr, self.direction)

    def _weighted_types(self) -> tuple[EdgeType, ...]:
        return tuple(t for t, features in self.schema.edges.items() if self.weight_attr in features)

    def _strategies(self) -> dict[EdgeType, Strategy]:
        """Edge types that are not drawn uniformly."""
        if self.drawing == "labor":
            return dict.fromkeys(self.schema.edges, "labor")
        if self.drawing != "uniform":
            return dict.fromkeys(self._weighted_types(), self.drawing)
        if self.temporal_strategy == "last":
            return dict.fromkeys(self._timed_types(), "last")
        return {}

    def _check_followed(self, followed: set[EdgeType]) -> None:
        """Refuse options that no edge type of a plan can heed."""
        shown = ", ".join(sorted(map(type_label, followed))) or "none"
        if self.is_temporal and not followed.intersection(self._timed_types()):
            neighbors = "source" if self.direction == "in" else "destination"
            raise SettingsError(
                f"time_attr is {self.time_attr!r}, and no edge type that is followed ({shown}) has it, nor has its "
                f"{neighbors} type; follow one that has, or leave time_attr out"
            )
        if self.weight_attr is not None and not followed.intersection(self._weighted_types()):
            raise SettingsError(
                f"weight_attr is {self.weight_attr!r}, and no edge type that is followed ({shown}) has it; follow one "
                "that has, or leave weight_attr out"
            )
        if self.subgraph_type == "bidirectional" and followed and not followed.intersection(self.reverse_types):
            raise SettingsError(
                f"subgraph_type is 'bidirectional', and no edge type that is followed ({shown}) has a known reverse; "
                "name it: reverse_types={edge type: reverse edge type}"
            )


def check_options(options: SamplingOptions) -> SamplingOptions:
    """The options in Python's own types, checked as far as can be done without a store.

    Raises:
        SettingsError: An option is of the wrong kind, or two contradict each other.
    """
    checked = SamplingOptions(
        replace=read_flag("replace", options.get("replace", False)),
        direction=options.get("direction", "in"),
        disjoint=read_flag("disjoint", options.get("disjoint", False)),
        time_attr=options.get("time_attr"),
        temporal_strategy=options.get("temporal_strategy", "uniform"),
        time_inclusive=read_flag("time_inclusive", options.get("time_inclusive", True)),
        weight_attr=options.get("weight_attr"),
        sampling=options.get("sampling"),
        layer_dependency=read_flag("layer_dependency", options.get("layer_dependency", False)),
        batch_dependency=read_integer("batch_dependency", options.get("batch_dependency", 1), 1, MAX_BATCH_DEPENDENCY),
        subgraph_type=_subgraph_type(options.get("subgraph_type", "directional")),
        reverse_types=options.get("reverse_types"),
    )
    check_choice("direction", checked["direction"], get_args(Direction))
    check_choice("temporal_strategy", checked["temporal_strategy"], get_args(TemporalStrategy))
    if checked["sampling"] is not None:
        check_choice("sampling", checked["sampling"], get_args(Drawing))
    for name, value in (("time_attr", checked["time_attr"]), ("weight_attr", checked["weight_attr"])):
        if value is not None and not isinstance(value, str):
            raise SettingsError(f"{name} is {value!r}; it must be the name of a feature, or None")
    _refuse_contradictions(checked)
    return checked


def find_reverse_types(schema: GraphSchema, given: ReverseTypes | None) -> dict[EdgeType, EdgeType]:
    """Which edge type holds an edge type's reverses.

    Args:
        schema: The graph's types.
        given: Edge type to its reverse, as tuples or ``src__rel__dst``; one way is enough. For edge types that are not
            named names decide: ``("a", "r", "b")`` and ``("b", "rev_r", "a")`` are each other's reverses, and an edge
            type between nodes of one type without such a partner is its own.

    Returns:
        Both ways, in the order of the schema.

    Raises:
        SettingsError: ``given`` is no mapping, a reverse leads between other node types, or an edge type is given two.
        UnknownNameError: The schema has no such edge type.
    """
    if given is not None and not isinstance(given, Mapping):
        raise SettingsError(f"reverse_types is {given!r}; give edge type to reverse edge type, or None")
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


def _subgraph_type(given: object) -> SubgraphType:
    """PyG's ``SubgraphType`` is an enumeration whose values are these words."""
    value = getattr(given, "value", given)
    check_choice("subgraph_type", value, get_args(SubgraphType))
    return cast(SubgraphType, value)


def _refuse_contradictions(options: SamplingOptions) -> None:
    is_last = options["temporal_strategy"] == "last"
    drawing, weight_attr = options["sampling"], options["weight_attr"]
    if options["time_attr"] is None and (is_last or not options["time_inclusive"]):
        name = "temporal_strategy='last'" if is_last else "time_inclusive=False"
        raise SettingsError(f"{name} needs time_attr=, the feature that holds times")
    if weight_attr is None and drawing in ("weighted", "top_k"):
        raise SettingsError(f"sampling={drawing!r} needs weight_attr=, the edge feature that holds weights")
    if weight_attr is not None and drawing in ("uniform", "labor"):
        raise SettingsError(
            f"weight_attr={weight_attr!r} is not heeded by sampling={drawing!r}; use sampling='weighted' or 'top_k', "
            "or leave weight_attr out"
        )
    if is_last and (weight_attr is not None or drawing == "labor"):
        other = f"weight_attr={weight_attr!r}" if weight_attr is not None else "sampling='labor'"
        raise SettingsError(
            f"temporal_strategy='last' takes the latest neighbours and {other} chooses others; give one"
        )
    if options["replace"] and (is_last or drawing in ("top_k", "labor")):
        name = "temporal_strategy='last'" if is_last else f"sampling={drawing!r}"
        raise SettingsError(f"{name} takes each neighbour once; leave replace=True out")
    for name, is_given in (
        ("layer_dependency", options["layer_dependency"]),
        ("batch_dependency", options["batch_dependency"] != 1),
    ):
        if is_given and drawing != "labor":
            raise SettingsError(f"{name} is an option of sampling='labor'; leave it out")


def _check_feature(option: str, given: str | None, written: str | None, schema: GraphSchema) -> None:
    """Refuse a time or weight that the dataset was not written for."""
    if given is None or given == written:
        return
    nodes = schema.nodes.values() if option == "time_attr" else ()
    names = sorted({name for features in (*nodes, *schema.edges.values()) for name in features})
    if given not in names:
        where = "node type and no edge type" if option == "time_attr" else "edge type"
        raise UnknownNameError(f"{option} is {given!r}; no {where} has such a feature; {known_names(given, names)}")
    was = f"with {option}={written!r}" if written is not None else f"without {option}"
    raise SettingsError(
        f"{option} is {given!r}; the dataset was written {was}; write the parts again with {option}={given!r}"
    )
