"""Ways to sample that all tests of plans cover, and their seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hopstream.sample.plan import NumNeighbors, SamplePlan, SeedNodes, plan_from_num_neighbors
from hopstream.sample.sampling_settings import SamplingSettings
from hopstream.schema import EdgeType, GraphSchema
from hopstream.store.contract import LaborSeeds, Strategy
from tests.naive_plans import Raw, spread_trees
from tests.timed_graphs import FOLLOWS, LAST_TIME, LIKES, RATED, RATES

NUM_SEEDS = {"item": 5, "user": 4}
DISJOINT = {"disjoint": True}
TEMPORAL = {"time_attr": "time"}
BIDIRECTIONAL = {"subgraph_type": "bidirectional"}
INDUCED = {"subgraph_type": "induced"}
WEIGHTED = {RATES: "weighted", FOLLOWS: "weighted"}
TOP_K = dict.fromkeys(WEIGHTED, "top_k")
LAST = dict.fromkeys((RATES, RATED, LIKES), "last")
LABOR = dict.fromkeys((RATES, RATED, LIKES, FOLLOWS), "labor")
REVERSES = {"reverse_types": {RATES: RATED}}


@dataclass(frozen=True)
class Mode:
    """Sampling mode: options of ``plan_with`` and of the request.

    Attributes:
        options: Options of ``plan_with``.
        is_excluding: Edges are excluded.
        is_reaching: All nodes that are reached are expanded.
        is_joining: Several seeds, of both types, grow one tree.
        num_neighbors: Neighbours per hop and edge type.
    """

    options: Mapping[str, object] = field(default_factory=dict)
    is_excluding: bool = False
    is_reaching: bool = False
    is_joining: bool = False
    num_neighbors: Mapping[EdgeType | str, Sequence[int]] = field(default_factory=lambda: NUM_NEIGHBORS)


NUM_NEIGHBORS: Mapping[EdgeType | str, Sequence[int]] = {
    RATES: [3, 2, 1],
    RATED: [2, 2, 2],
    LIKES: [2, -1, 1],
    FOLLOWS: [2, 0, 3],
}
ONE_TYPE = {RATES: [3, 2, 1], "default": [0, 0, 0]}
MODES = {
    "plain": Mode(),
    "excluding": Mode({}, is_excluding=True),
    "reaching": Mode(is_reaching=True),
    "reaching, disjoint": Mode(DISJOINT, is_reaching=True),
    "replacing": Mode({"replace": True}, is_excluding=True),
    "disjoint": Mode(DISJOINT),
    "disjoint, excluding": Mode(DISJOINT, is_excluding=True),
    "disjoint, replacing": Mode({**DISJOINT, "replace": True}),
    "temporal": Mode(TEMPORAL),
    "temporal, exclusive": Mode({**TEMPORAL, "time_inclusive": False}),
    "temporal, forwards": Mode({**TEMPORAL, "direction": "out"}),
    "temporal, excluding": Mode(TEMPORAL, is_excluding=True),
    "last": Mode({**TEMPORAL, "strategies": LAST}),
    "last, excluding": Mode({**TEMPORAL, "strategies": LAST, "time_inclusive": False}, is_excluding=True),
    "weighted": Mode({"strategies": WEIGHTED}),
    "weighted, replacing": Mode({"strategies": WEIGHTED, "replace": True}, is_excluding=True),
    "weighted, temporal": Mode({**TEMPORAL, "strategies": WEIGHTED}, is_excluding=True),
    "top-k": Mode({"strategies": TOP_K}),
    "top-k, temporal": Mode({**TEMPORAL, "strategies": TOP_K}, is_excluding=True),
    "labor": Mode({"strategies": LABOR}),
    "labor, one for all hops": Mode(
        {"strategies": LABOR, "sampling": "labor", "layer_dependency": True}, is_excluding=True
    ),
    "labor, temporal": Mode({**TEMPORAL, "strategies": LABOR}),
    "bidirectional": Mode(BIDIRECTIONAL),
    "bidirectional, forwards": Mode({**BIDIRECTIONAL, "direction": "out"}),
    "bidirectional, true edges": Mode({**BIDIRECTIONAL, **REVERSES}),
    "bidirectional, excluding": Mode({**BIDIRECTIONAL, **REVERSES}, is_excluding=True),
    "bidirectional, disjoint": Mode({**BIDIRECTIONAL, **REVERSES, **DISJOINT}),
    "bidirectional, temporal": Mode({**BIDIRECTIONAL, **REVERSES, **TEMPORAL}, is_excluding=True),
    "induced": Mode(INDUCED),
    "induced, forwards": Mode({**INDUCED, "direction": "out"}),
    "induced, excluding": Mode(INDUCED, is_excluding=True),
    "induced, disjoint": Mode({**INDUCED, **DISJOINT}),
    "induced, temporal": Mode({**INDUCED, **TEMPORAL, "time_inclusive": False}, is_excluding=True),
    "induced, one type followed": Mode(INDUCED, num_neighbors=ONE_TYPE),
    "induced, one type followed, forwards, temporal": Mode(
        {**INDUCED, **TEMPORAL, "direction": "out"}, is_excluding=True, num_neighbors=ONE_TYPE
    ),
    "joining": Mode(DISJOINT, is_reaching=True, is_joining=True),
    "joining, weighted, temporal": Mode({**TEMPORAL, "strategies": WEIGHTED}, is_excluding=True, is_joining=True),
    "joining, induced": Mode({**INDUCED, **DISJOINT}, is_joining=True),
    "joining, bidirectional": Mode({**BIDIRECTIONAL, **REVERSES, **DISJOINT}, is_joining=True),
}
NUM_JOINED_TREES = 3


def options_of(raw: Raw) -> dict[str, object]:
    """Options of ``write_parts`` for a dataset with times, weights and the keys of neighbours."""
    return {
        "direction": "both",
        "time_attr": raw.time_attr,
        "weight_attr": raw.weight_attr,
        "neighbor_keys": True,
    }


def plan_with(
    schema: GraphSchema,
    num_neighbors: NumNeighbors,
    seed_types: tuple[str, ...],
    *,
    strategies: Mapping[EdgeType, Strategy] | None = None,
    **options: Any,
) -> SamplePlan:
    """A plan that finds the ids of edges; ``options`` are of ``SamplingSettings``, or fields of a plan."""
    fields = {name: options.pop(name) for name in ("reverse_types", "hidden_types") if name in options}
    settings = SamplingSettings(**options)
    plan = plan_from_num_neighbors(
        schema, num_neighbors, seed_types, settings, strategies=strategies, wants_edge_ids=True
    )
    return replace(plan, **fields)


def plan_of(raw: Raw, mode: Mode) -> SamplePlan:
    """The plan of a mode, from seeds of both types."""
    plan = plan_with(raw.graph.schema, mode.num_neighbors, ("item", "user"), **mode.options)
    if not mode.is_reaching:
        return plan
    return replace(plan, ops=tuple(replace(op, expands="reached") for op in plan.ops))


def draw_seeds(raw: Raw, plan: SamplePlan, mode: Mode, rng: np.random.Generator) -> SeedNodes:
    """Seeds in keys, as a plan needs them; disjoint plans repeat some seeds in several trees."""
    may_repeat = plan.settings.is_disjoint and not mode.is_joining
    ids = {t: rng.choice(raw.graph.nodes[t].num_nodes, number, replace=may_repeat) for t, number in NUM_SEEDS.items()}
    trees = {t: np.arange(len(keys)) % NUM_JOINED_TREES for t, keys in ids.items()}
    excluded = {}
    for edge_type, table in raw.graph.edges.items():
        rows = rng.choice(table.num_edges, table.num_edges // 4, replace=False)
        excluded[edge_type] = np.stack([table.src_keys[rows], table.dst_keys[rows]])
    return SeedNodes(
        ids=ids,
        rng_seed=int(rng.integers(0, 1 << 63)) * 2,
        trees=(trees if mode.is_joining else spread_trees(ids)) if plan.settings.is_disjoint else None,
        times=rng.integers(0, LAST_TIME, sum(NUM_SEEDS.values())) if plan.settings.is_temporal else None,
        excluded=excluded if mode.is_excluding else {},
        labor=LaborSeeds(first=17, second=1 << 63, share=0.25),
    )
