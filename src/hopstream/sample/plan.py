"""What is to be sampled: which edge types, from which frontier, how many neighbours?

A plan is a DAG of ops. An op expands the nodes that its inputs discovered and draws neighbours along one edge type.
PyG's ``num_neighbors`` is one way to write a plan; one executor runs all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral

from hopstream.errors import SettingsError
from hopstream.kernels.hashing import derive_seed
from hopstream.schema import Direction, EdgeType, GraphSchema, type_label
from hopstream.store.contract import MAX_COUNT

SEEDS = "seeds"
"""The input that stands for the seeds themselves."""

NumNeighbors = Sequence[int] | Mapping[EdgeType, Sequence[int]] | Mapping[str, Sequence[int]]
MAX_HOPS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOp:
    """One step of a plan: draw neighbours of newly found nodes along one edge type.

    Attributes:
        name: Distinct in its plan; the draws depend on it.
        inputs: Ops (or ``SEEDS``) whose newly discovered nodes are expanded; each node once.
        edge_type: The edge type to follow.
        direction: ``in`` expands destinations and finds sources; ``out`` the other way round.
        count: Neighbours per node; -1 means all.
    """

    name: str
    inputs: tuple[str, ...]
    edge_type: EdgeType
    direction: Direction
    count: int

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
        seed_type: Node type of the seeds.
        ops: The ops.
        num_hops: Length of the per-hop counts in the result; at least the depth of the DAG.
        is_replacing: Draw with replacement.
        wants_edge_ids: Also find the ids of the edges drawn.
    """

    seed_type: str
    ops: tuple[SampleOp, ...]
    num_hops: int
    is_replacing: bool = False
    wants_edge_ids: bool = False

    def __post_init__(self) -> None:
        """Refuse undefined inputs, cycles and inputs that find another type than the op expands."""
        found: dict[str, str] = {SEEDS: self.seed_type}
        directions: dict[EdgeType, Direction] = {}
        for op in self.ops:
            if op.name in found:
                raise SettingsError(f"op {op.name!r} is defined twice")
            if not -1 <= op.count <= MAX_COUNT:
                raise SettingsError(f"op {op.name!r}: count is {op.count}; give -1 for all, or 0 to {MAX_COUNT}")
            if directions.setdefault(op.edge_type, op.direction) != op.direction:
                raise SettingsError(f"the plan follows edge type {type_label(op.edge_type)} in both directions")
            for name in op.inputs:
                if name not in found:
                    raise SettingsError(f"op {op.name!r}: input {name!r} is not defined before it; got {list(found)}")
                if found[name] != op.expanded_type:
                    raise SettingsError(
                        f"op {op.name!r} expands {op.expanded_type!r}; its input {name!r} finds {found[name]!r}"
                    )
            found[op.name] = op.found_type
        if self.num_hops < len(self.levels()):
            raise SettingsError(f"the plan is {len(self.levels())} hops deep; num_hops is {self.num_hops}")

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


def plan_from_num_neighbors(
    schema: GraphSchema,
    num_neighbors: NumNeighbors,
    seed_type: str,
    *,
    direction: Direction = "in",
    is_replacing: bool = False,
    wants_edge_ids: bool = False,
) -> SamplePlan:
    """Write PyG's ``num_neighbors`` as a plan: in every hop, expand the nodes that the hop before discovered.

    Args:
        schema: The graph's schema.
        num_neighbors: Neighbours per hop for all edge types, or per edge type (a tuple or ``src__rel__dst``); the key
            ``"default"`` stands for the edge types that are not named. -1 means all, 0 does not follow the edge type.
        seed_type: Node type of the seeds.
        direction: ``in`` follows edges backwards, as message passing needs it; ``out`` forwards.
        is_replacing: Draw with replacement.
        wants_edge_ids: Also find the ids of the edges drawn.

    Raises:
        UnknownNameError: ``seed_type`` or an edge type is not in the schema.
        SettingsError: Counts below -1, edge types with different numbers of hops, or no hop at all.
    """
    schema.check_node_type(seed_type)
    counts = _counts_per_edge_type(schema, num_neighbors)
    num_hops = max(len(per_hop) for per_hop in counts.values()) if counts else 0
    ops: list[SampleOp] = []
    frontier: dict[str, tuple[str, ...]] = {seed_type: (SEEDS,)}
    for hop in range(num_hops):
        found: dict[str, tuple[str, ...]] = {}
        for edge_type, per_hop in counts.items():
            expanded, neighbor = (edge_type[2], edge_type[0]) if direction == "in" else (edge_type[0], edge_type[2])
            if per_hop[hop] == 0 or expanded not in frontier:
                continue
            name = f"hop{hop + 1}/{type_label(edge_type)}"
            ops.append(
                SampleOp(
                    name=name,
                    inputs=frontier[expanded],
                    edge_type=edge_type,
                    direction=direction,
                    count=per_hop[hop],
                )
            )
            found[neighbor] = (*found.get(neighbor, ()), name)
        frontier = found
    return SamplePlan(
        seed_type=seed_type,
        ops=tuple(ops),
        num_hops=num_hops,
        is_replacing=is_replacing,
        wants_edge_ids=wants_edge_ids,
    )


def _counts_per_edge_type(schema: GraphSchema, num_neighbors: NumNeighbors) -> dict[EdgeType, list[int]]:
    if not isinstance(num_neighbors, Mapping):
        per_hop = _checked_counts("num_neighbors", num_neighbors)
        return dict.fromkeys(schema.edges, per_hop)
    by_label = {type_label(edge_type): edge_type for edge_type in schema.edges}
    given: dict[EdgeType, list[int]] = {}
    default: list[int] | None = None
    for name, value in num_neighbors.items():
        if name == "default":
            default = _checked_counts("num_neighbors['default']", value)
            continue
        edge_type = by_label.get(name, name) if isinstance(name, str) else name
        schema.check_edge_type(edge_type)  # type: ignore[arg-type]  # an unknown string fails the check
        given[edge_type] = _checked_counts(f"num_neighbors[{name!r}]", value)  # type: ignore[index]
    lengths = {len(per_hop) for per_hop in (*given.values(), *([default] if default is not None else []))}
    if len(lengths) > 1:
        raise SettingsError(f"num_neighbors has edge types of {sorted(lengths)} hops; give each the same number")
    missing = [type_label(edge_type) for edge_type in schema.edges if edge_type not in given]
    if default is None:
        if missing:
            raise SettingsError(f"num_neighbors misses edge types {missing}; name them, or give a 'default'")
        return {edge_type: given[edge_type] for edge_type in schema.edges}
    return {edge_type: given.get(edge_type, default) for edge_type in schema.edges}


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
