"""Sampling plans: a DAG of ops that expand frontiers along edge types.

An op expands the nodes that its inputs discovered, and draws neighbours along one edge type. PyG's ``num_neighbors``
converts to a plan; one executor runs all plans.
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
"""Name of the input that means the seeds."""

NumNeighbors = Sequence[int] | Mapping[EdgeType, Sequence[int]] | Mapping[str, Sequence[int]]
Expanded = Literal["new", "reached"]
"""Frontier of an op: nodes that its inputs discovered, or all nodes that their edges lead to."""
MAX_HOPS = 64
DEFAULTS = SamplingSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOp:
    """Step of a plan: draws neighbours of a frontier along one edge type.

    Attributes:
        name: Unique in its plan; the random draws depend on it.
        inputs: Ops (or ``SEEDS``) whose nodes are expanded; each node once.
        edge_type: The edge type to follow.
        direction: ``in`` expands destinations and finds sources; ``out`` expands sources and finds destinations.
        count: Neighbours per node; -1 means all.
        strategy: How neighbours are drawn; see ``SampleRequest``.
        expands: ``new``: the nodes that the inputs discovered, as in PyG; no node is expanded in two hops.
            ``reached``: all nodes that the inputs' edges lead to, as in TF-GNN; a node that two ops reach is expanded
            after both.
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
        """Node type of the frontier."""
        return self.edge_type[2] if self.direction == "in" else self.edge_type[0]

    @property
    def found_type(self) -> str:
        """Node type of the neighbours."""
        return self.edge_type[0] if self.direction == "in" else self.edge_type[2]

    @property
    def rng_salt(self) -> int:
        """64 bits that make this op's random draws independent of other ops'."""
        return derive_seed(self.name, type_label(self.edge_type), self.direction)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePlan:
    """A checked DAG of ops, in topological order.

    Attributes:
        seed_types: Node types of the seeds; ``SEEDS`` as an input means the seeds of the type that the op expands. For
            links, the types of sources and destinations, which may be equal.
        ops: The ops.
        num_hops: Length of the per-hop counts in the result; at least the depth of the DAG.
        settings: Settings of sampling. Ops have their own strategy and direction. Edge types that no op follows are
            read in the direction of the settings if the store holds it. A tree may have several seeds, such as a link's
            ends.
        wants_edge_ids: Also find the ids of the drawn edges.
        wants_edge_keys: Find the keys of the drawn edges instead of their ids; only for directional subgraphs and
            stores that ask servers, where it saves the request for the keys.
        reverse_types: For bidirectional subgraphs: edge type to the edge type of its reverses. One entry is enough for
            a pair; see ``reverse_of``.
        hidden_types: Edge types that an induced subgraph leaves out besides label types; no op follows them.
    """

    seed_types: tuple[str, ...]
    ops: tuple[SampleOp, ...]
    num_hops: int
    settings: SamplingSettings = DEFAULTS
    wants_edge_ids: bool = False
    wants_edge_keys: bool = False
    reverse_types: Mapping[EdgeType, EdgeType] = field(default_factory=dict)
    hidden_types: frozenset[EdgeType] = frozenset()

    def __post_init__(self) -> None:
        """Check every op, and refuse undefined inputs, cycles, and inputs of another node type."""
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
        """Edge types that the plan follows, to the direction of each."""
        return {op.edge_type: op.direction for op in self.ops}

    def directions_over(self, store: Store) -> dict[EdgeType, Direction]:
        """Return the edge types of a subgraph's edges, without added reverses, to the direction of each.

        The plan follows these edge types. An induced subgraph also has all others, except label types
        (``GraphSchema.label_types``) and ``hidden_types``.
        """
        others = store.schema.message_types if self.settings.subgraph_type == "induced" else ()
        direction = self.direction_over(store)
        return {**{t: direction for t in others if t not in self.hidden_types}, **self.directions}

    def direction_over(self, store: Store) -> Direction:
        """Return the direction for edge types that no op follows."""
        direction = self.settings.direction
        return direction if direction in store.directions else store.directions[0]

    def reverse_of(self, edge_type: EdgeType) -> EdgeType | None:
        """Return the edge type that holds an edge type's reverses, or None if there is none.

        ``reverse_types`` names it in either direction. Otherwise, an edge type between nodes of one type is its own
        reverse.
        """
        if edge_type in self.reverse_types:
            return self.reverse_types[edge_type]
        named_for = [t for t, reverse in self.reverse_types.items() if reverse == edge_type]
        return named_for[0] if named_for else edge_type if edge_type[0] == edge_type[2] else None

    def levels(self) -> list[list[SampleOp]]:
        """Return ops by depth. Ops of one level depend only on earlier levels: a level is one round trip."""
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
    """Seeds of one run of a plan.

    Attributes:
        ids: Node type to int64[n] ids, distinct per type, or per type and tree if the plan is disjoint.
        rng_seed: 64 bits; the draws are a function of it and of the nodes' keys and trees.
        trees: Node type to int64[n], the tree of each seed; seeds may share a tree. None if the plan is not disjoint.
        times: int64[num_trees], the time of each tree, or None if the plan is not temporal.
        excluded: Edge type to int64[2, m], ids of sources and destinations; no edge between such a pair is followed.
        labor: Seeds of the batch's variates; required if an op's strategy is ``labor``.
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
    """Convert PyG's ``num_neighbors`` to a plan; a hop expands the nodes that the last one discovered.

    Args:
        schema: The graph's schema.
        num_neighbors: Neighbours per hop for all edge types, or per edge type (a tuple or ``src__rel__dst``); the key
            ``"default"`` covers edge types that are not named. -1 means all, 0 does not follow the edge type. Label
            types (``GraphSchema.label_types``) are followed only if they are named.
        seed_types: Node types of the seeds.
        settings: Settings of sampling.
        strategies: Edge type to strategy; ``uniform`` for others.
        wants_edge_ids: As in ``SamplePlan``.

    Raises:
        UnknownNameError: The schema has no such seed type or edge type.
        SettingsError: A count is below -1, edge types have different numbers of hops, or there is no hop.
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
    """Return the neighbours per hop of every edge type of the schema; see ``plan_from_num_neighbors``."""
    if not isinstance(num_neighbors, Mapping):
        per_hop = checked_counts("num_neighbors", num_neighbors)
        return {edge_type: _none_if_label(schema, edge_type, per_hop) for edge_type in schema.edges}
    given: dict[EdgeType, list[int]] = {}
    default: list[int] | None = None
    for name, value in num_neighbors.items():
        if name == "default":
            default = checked_counts("num_neighbors['default']", value)
            continue
        given[schema.edge_type_of(name, ["default"])] = checked_counts(f"num_neighbors[{name!r}]", value)
    lengths = {len(per_hop) for per_hop in (*given.values(), *([default] if default is not None else []))}
    if len(lengths) > 1:
        raise SettingsError(f"num_neighbors has edge types of {sorted(lengths)} hops; give each the same number")
    missing = [type_label(edge_type) for edge_type in schema.message_types if edge_type not in given]
    if default is None:
        if missing:
            raise SettingsError(f"num_neighbors misses edge types {missing}; name them, or give a 'default'")
        default = [0] * max(lengths, default=0)  # only label types are left
    return {t: given[t] if t in given else _none_if_label(schema, t, default) for t in schema.edges}


def _none_if_label(schema: GraphSchema, edge_type: EdgeType, per_hop: list[int]) -> list[int]:
    return [0] * len(per_hop) if edge_type in schema.label_types else per_hop


def checked_counts(where: str, counts: object) -> list[int]:
    """Check and return the numbers per hop of an option.

    Raises:
        SettingsError: They are no 1 to ``MAX_HOPS`` integers of -1 and above.
    """
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
