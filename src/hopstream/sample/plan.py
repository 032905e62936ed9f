"""The plan of a sample: which edge types are followed, from which frontier, and how many neighbours are drawn.

A plan is a DAG of ops. An op expands the nodes that its inputs discovered and draws neighbours along one edge type.
PyG's ``num_neighbors`` is one way to write a plan; one executor runs all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Literal, get_args

from hopstream.arrays import IntArray
from hopstream.errors import SettingsError
from hopstream.kernels.hashing import derive_seed
from hopstream.sample.sampling_settings import SamplingSettings
from hopstream.schema import Direction, EdgeType, GraphSchema, type_label
from hopstream.store.contract import MAX_COUNT, REPLACING, STRATEGIES, LaborSeeds, Store, Strategy

SEEDS = "seeds"
"""The input that stands for the seeds themselves."""

NumNeighbors = Sequence[int] | Mapping[EdgeType, Sequence[int]] | Mapping[str, Sequence[int]]
Expanded = Literal["new", "reached"]
"""Which nodes an op expands: those that its inputs discovered, or all that their edges lead to."""
MAX_HOPS = 64
DEFAULTS = SamplingSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOp:
    """One step of a plan: draw neighbours of newly found nodes along one edge type.

    Attributes:
        name: Distinct in its plan; the draws depend on it.
        inputs: Ops (or ``SEEDS``) whose nodes are expanded; each node once.
        edge_type: The edge type to follow.
        direction: ``in`` expands destinations and finds sources; ``out`` the other way round.
        count: Neighbours per node; -1 means all.
        strategy: How they are chosen; see ``SampleRequest``.
        expands: ``new``: the nodes that the inputs discovered, as in PyG, so that no node is expanded by two hops;
            ``reached``: all that their edges lead to, as in TF-GNN, so that a node that two ops reach is expanded by
            what follows either.
    """

    name: str
    inputs: tuple[str, ...]
    edge_type: EdgeType
    direction: Direction
    count: int
    strategy: Strategy = "uniform"
    expands: Expanded = "new"

    @property
    def expanded_type(self) -> str:
        """The node type of the frontier."""
        return self.edge_type[2] if self.direction == "in" else self.edge_type[0]

    @property
    def found_type(self) -> str:
        """The node type of the neighbours."""
        return self.edge_type[0] if self.direction == "in" else self.edge_type[2]

    @property
    def rng_salt(self) -> int:
        """64 bits that set this op's draws apart from those of every other op."""
        return derive_seed(self.name, type_label(self.edge_type), self.direction)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePlan:
    """A checked DAG of ops in an order in which every op follows its inputs.

    Attributes:
        seed_types: Node types of the seeds; ``SEEDS`` as an input means those of the type that the op expands. Where
            links are seeds: the types of sources and of targets, be they one type twice.
        ops: The ops.
        num_hops: Length of the per-hop counts in the result; at least the depth of the DAG.
        settings: How neighbourhoods are sampled. Ops say how their neighbours are chosen, and the direction that they
            follow; edge types that no op follows are read in the direction of the settings, where the store holds it.
            Trees may have several seeds, such as a link's ends.
        wants_edge_ids: Also find the ids of the edges drawn.
        reverse_types: For bidirectional subgraphs, the edge type that holds an edge type's reverses, said once for the
            two; see ``reverse_of``.
        hidden_types: Edge types that no op follows and that an induced subgraph leaves out, besides label types.
    """

    seed_types: tuple[str, ...]
    ops: tuple[SampleOp, ...]
    num_hops: int
    settings: SamplingSettings = DEFAULTS
    wants_edge_ids: bool = False
    reverse_types: Mapping[EdgeType, EdgeType] = field(default_factory=dict)
    hidden_types: frozenset[EdgeType] = frozenset()

    def __post_init__(self) -> None:
        """Refuse undefined inputs, cycles and inputs that find another type than the op expands."""
        found: dict[str, str] = {}
        directions: dict[EdgeType, Direction] = {}
        for op in self.ops:
            if op.name in found or op.name == SEEDS:
                raise SettingsError(f"op {op.name!r} is defined twice")
            if not -1 <= op.count <= MAX_COUNT:
                raise SettingsError(f"op {op.name!r}: count is {op.count}; give -1 for all, or 0 to {MAX_COUNT}")
            if directions.setdefault(op.edge_type, op.direction) != op.direction:
                raise SettingsError(f"the plan follows edge type {type_label(op.edge_type)} in both directions")
            self._check_strategy(op)
            self._check_inputs(op, found)
            found[op.name] = op.found_type
        for edge_type, reverse in self.reverse_types.items():
            if (edge_type[0], edge_type[2]) != (reverse[2], reverse[0]):
                raise SettingsError(
                    f"reverse_types: {type_label(reverse)} cannot hold the reverses of {type_label(edge_type)}; "
                    f"they lead from {edge_type[2]!r} to {edge_type[0]!r}"
                )
        if self.num_hops < len(self.levels()):
            raise SettingsError(f"the plan is {len(self.levels())} hops deep; num_hops is {self.num_hops}")

    def _check_strategy(self, op: SampleOp) -> None:
        if op.strategy not in STRATEGIES:
            raise SettingsError(f"op {op.name!r}: strategy is {op.strategy!r}; give {'|'.join(STRATEGIES)}")
        if op.expands not in get_args(Expanded):
            raise SettingsError(f"op {op.name!r}: expands is {op.expands!r}; give {'|'.join(get_args(Expanded))}")
        if self.settings.replace and op.strategy not in REPLACING:
            raise SettingsError(f"op {op.name!r}: strategy {op.strategy!r} never draws with replacement")

    def _check_inputs(self, op: SampleOp, found: Mapping[str, str]) -> None:
        for name in op.inputs:
            if name == SEEDS and op.expanded_type not in self.seed_types:
                raise SettingsError(
                    f"op {op.name!r} expands {op.expanded_type!r}; the seeds are {'|'.join(self.seed_types)}"
                )
            if name == SEEDS:
                continue
            if name not in found:
                raise SettingsError(f"op {op.name!r}: input {name!r} is not defined before it; got {[SEEDS, *found]}")
            if found[name] != op.expanded_type:
                raise SettingsError(
                    f"op {op.name!r} expands {op.expanded_type!r}; its input {name!r} finds {found[name]!r}"
                )

    @property
    def directions(self) -> dict[EdgeType, Direction]:
        """The edge types that the plan follows, and in which direction."""
        return {op.edge_type: op.direction for op in self.ops}

    def directions_over(self, store: Store) -> dict[EdgeType, Direction]:
        """The edge types that a subgraph has edges of, reverses that are added aside, and the direction of each.

        The plan follows these edge types. An induced subgraph also has all others, except label types
        (``GraphSchema.label_types``) and ``hidden_types``.
        """
        others = store.schema.message_types if self.settings.subgraph_type == "induced" else ()
        direction = self.direction_over(store)
        return {**{t: direction for t in others if t not in self.hidden_types}, **self.directions}

    def direction_over(self, store: Store) -> Direction:
        """The direction in which edge types are read that no op follows."""
        direction = self.settings.direction
        return direction if direction in store.directions else store.directions[0]

    def reverse_of(self, edge_type: EdgeType) -> EdgeType | None:
        """The edge type that holds an edge type's reverses.

        That is the one that ``reverse_types`` names, or the first that it names this one for; an edge type between
        nodes of one type that it does not mention is its own. None where there is none.
        """
        if edge_type in self.reverse_types:
            return self.reverse_types[edge_type]
        named_for = [t for t, reverse in self.reverse_types.items() if reverse == edge_type]
        return named_for[0] if named_for else edge_type if edge_type[0] == edge_type[2] else None

    def levels(self) -> list[list[SampleOp]]:
        """Ops by depth: those of one level need only levels before it, so a level is one round trip."""
        depth = {SEEDS: 0}
        levels: list[list[SampleOp]] = []
        for op in self.ops:
            depth[op.name] = 1 + max((depth[name] for name in op.inputs), default=0)
            while len(levels) < depth[op.name]:
                levels.append([])
            levels[depth[op.name] - 1].append(op)
        return levels


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SeedNodes:
    """What one run of a plan starts from.

    Attributes:
        ids: Node type to int64[n] ids; distinct inside a type, or inside a type and a tree where the plan is disjoint.
        rng_seed: 64 bits; the draws are a function of it and of the nodes' keys and trees.
        trees: Node type to int64[n], the tree of each seed; several seeds may have one. None where the plan is not
            disjoint.
        times: int64[num_trees], the time of each tree, or None where the plan is not temporal.
        excluded: Edge type to int64[2, m], ids of sources and of destinations: no edge between the two is followed.
        labor: Seeds of the batch's variates; needed where an op's strategy is ``labor``.
    """

    ids: Mapping[str, IntArray]
    rng_seed: int
    trees: Mapping[str, IntArray] | None = None
    times: IntArray | None = None
    excluded: Mapping[EdgeType, IntArray] = field(default_factory=dict)
    labor: LaborSeeds | None = None


def plan_from_num_neighbors(
    schema: GraphSchema,
    num_neighbors: NumNeighbors,
    seed_types: tuple[str, ...],
    settings: SamplingSettings = DEFAULTS,
    *,
    strategies: Mapping[EdgeType, Strategy] | None = None,
    wants_edge_ids: bool = False,
) -> SamplePlan:
    """Write PyG's ``num_neighbors`` as a plan: in every hop, expand the nodes that the hop before discovered.

    Args:
        schema: The graph's schema.
        num_neighbors: Neighbours per hop for all edge types, or per edge type (a tuple or ``src__rel__dst``); the key
            ``"default"`` stands for the edge types that are not named. -1 means all, 0 does not follow the edge type.
            Label types (``GraphSchema.label_types``) are followed only where they are named.
        seed_types: Node types of the seeds.
        settings: How neighbourhoods are sampled.
        strategies: How neighbours of an edge type are chosen; ``uniform`` where it is not named.
        wants_edge_ids: As of ``SamplePlan``.

    Raises:
        UnknownNameError: A seed type or an edge type is not in the schema.
        SettingsError: Counts below -1, edge types with different numbers of hops, or no hop at all.
    """
    for seed_type in seed_types:
        schema.check_node_type(seed_type)
    counts = counts_per_edge_type(schema, num_neighbors)
    num_hops = max(len(per_hop) for per_hop in counts.values()) if counts else 0
    ops: list[SampleOp] = []
    frontier: dict[str, tuple[str, ...]] = dict.fromkeys(seed_types, (SEEDS,))
    for hop in range(num_hops):
        found: dict[str, tuple[str, ...]] = {}
        for edge_type, per_hop in counts.items():
            expanded, neighbor = (
                (edge_type[2], edge_type[0]) if settings.direction == "in" else (edge_type[0], edge_type[2])
            )
            if per_hop[hop] == 0 or expanded not in frontier:
                continue
            name = f"hop{hop + 1}/{type_label(edge_type)}"
            ops.append(
                SampleOp(
                    name=name,
                    inputs=frontier[expanded],
                    edge_type=edge_type,
                    direction=settings.direction,
                    count=per_hop[hop],
                    strategy=(strategies or {}).get(edge_type, "uniform"),
                )
            )
            found[neighbor] = (*found.get(neighbor, ()), name)
        frontier = found
    return SamplePlan(
        seed_types=seed_types, ops=tuple(ops), num_hops=num_hops, settings=settings, wants_edge_ids=wants_edge_ids
    )


def counts_per_edge_type(schema: GraphSchema, num_neighbors: NumNeighbors) -> dict[EdgeType, list[int]]:
    """Neighbours per hop of every edge type of the schema; see ``plan_from_num_neighbors``."""
    if not isinstance(num_neighbors, Mapping):
        per_hop = _checked_counts("num_neighbors", num_neighbors)
        return {edge_type: _none_if_label(schema, edge_type, per_hop) for edge_type in schema.edges}
    given: dict[EdgeType, list[int]] = {}
    default: list[int] | None = None
    for name, value in num_neighbors.items():
        if name == "default":
            default = _checked_counts("num_neighbors['default']", value)
            continue
        given[schema.edge_type_of(name, ["default"])] = _checked_counts(f"num_neighbors[{name!r}]", value)
    lengths = {len(per_hop) for per_hop in (*given.values(), *([default] if default is not None else []))}
    if len(lengths) > 1:
        raise SettingsError(f"num_neighbors has edge types of {sorted(lengths)} hops; give each the same number")
    missing = [type_label(edge_type) for edge_type in schema.message_types if edge_type not in given]
    if default is None:
        if missing:
            raise SettingsError(f"num_neighbors misses edge types {missing}; name them, or give a 'default'")
        default = [0] * max(lengths, default=0)  # of label types alone
    return {t: given[t] if t in given else _none_if_label(schema, t, default) for t in schema.edges}


def _none_if_label(schema: GraphSchema, edge_type: EdgeType, per_hop: list[int]) -> list[int]:
    return [0] * len(per_hop) if edge_type in schema.label_types else per_hop


def _checked_counts(where: str, counts: object) -> list[int]:
    if isinstance(counts, str) or not isinstance(counts, Iterable):
        raise SettingsError(f"{where} is {counts!r}; give one number per hop, for example [15, 10]")
    given = list(counts)
    if not 1 <= len(given) <= MAX_HOPS:
        raise SettingsError(f"{where} has {len(given)} hops; give 1 to {MAX_HOPS}")
    if any(isinstance(count, bool) or not isinstance(count, Integral) for count in given):
        raise SettingsError(f"{where} is {given}; give integers: -1 for all, or 0 and above")
    checked = [int(count) for count in given]
    if any(not -1 <= count <= MAX_COUNT for count in checked):
        raise SettingsError(f"{where} is {checked}; give -1 for all, or 0 to {MAX_COUNT}")
    return checked
