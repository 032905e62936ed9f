"""Checks that a plan can be run over a store, and from some seeds."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hopstream.arrays import IntArray
from hopstream.errors import SettingsError
from hopstream.sample.plan import SampleOp, SamplePlan, SeedNodes
from hopstream.store.contract import MAX_TREES, LaborSeeds, SampleRequest, Store
from hopstream.store.strategies import check_strategy


def check_plan(plan: SamplePlan, store: Store) -> None:
    """Refuse a plan that a store cannot run.

    Raises:
        UnknownNameError: The store's graph has no such node type or edge type.
        SettingsError: The dataset does not hold a direction, times, weights or keys that the plan needs.
    """
    for seed_type in plan.seed_types:
        store.schema.check_node_type(seed_type)
    for op in plan.ops:
        _check_op(op, plan, store)
    for edge_type in (*plan.reverse_types.keys(), *plan.reverse_types.values()):
        store.schema.check_edge_type(edge_type)
    if plan.settings.is_temporal and store.time_attr is None:
        raise SettingsError(
            "the plan is temporal, and the dataset was written without times; write the parts again with time_attr='…'"
        )


def _check_op(op: SampleOp, plan: SamplePlan, store: Store) -> None:
    store.schema.check_edge_type(op.edge_type)
    if op.direction not in store.directions:
        raise SettingsError(
            f"op {op.name!r} follows direction {op.direction!r}; the dataset holds "
            f"{'|'.join(store.directions)}; write the parts with direction {op.direction!r} or 'both'"
        )
    nothing = np.empty(0, np.int64)
    request = SampleRequest(
        edge_type=op.edge_type,
        direction=op.direction,
        ids=nothing,
        count=op.count,
        is_replacing=plan.settings.replace,
        strategy=op.strategy,
        trees=nothing if plan.settings.is_disjoint else None,
        labor=LaborSeeds(first=0) if op.strategy == "labor" else None,
    )
    check_strategy(store, request)


def check_seeds(plan: SamplePlan, seeds: SeedNodes) -> None:
    """Refuse seeds that do not fit a plan.

    Raises:
        SettingsError: Seeds of another type; trees or times that are missing, not asked for or not what they must be.
    """
    if not seeds.ids.keys() <= set(plan.seed_types):
        unknown = [t for t in seeds.ids if t not in plan.seed_types]
        raise SettingsError(f"seeds are of type {'|'.join(unknown)}; the plan's are {'|'.join(plan.seed_types)}")
    for name, given, is_wanted in (
        ("trees", seeds.trees, plan.settings.is_disjoint),
        ("times", seeds.times, plan.settings.is_temporal),
    ):
        if (given is not None) != is_wanted:
            kind = "disjoint" if name == "trees" else "temporal"
            raise SettingsError(
                f"seeds without {name} for a plan that is {kind}; give {name}"
                if is_wanted
                else f"seeds with {name} for a plan that is not {kind}; leave {name} out, or make the plan {kind}"
            )
    if seeds.trees is not None:
        _check_trees(seeds.ids, seeds.trees, seeds.times)


def _check_trees(ids: Mapping[str, IntArray], trees: Mapping[str, IntArray], times: IntArray | None) -> None:
    for node_type, of_type in ids.items():
        given = trees.get(node_type)
        if given is None or given.dtype != np.int64 or given.shape != of_type.shape:
            got = "none" if given is None else f"{given.dtype}{list(given.shape)}"
            raise SettingsError(
                f"trees of {len(of_type)} seeds of type {node_type!r} are {got}; give int64[{len(of_type)}]"
            )
    every = [trees[node_type] for node_type in ids if len(trees[node_type])]
    if not every:
        return
    first, last = min(int(of.min()) for of in every), max(int(of.max()) for of in every)
    if first < 0 or last >= MAX_TREES:
        raise SettingsError(f"trees are {first}..{last}; number them from 0 to {MAX_TREES - 1}")
    if times is not None and (times.dtype != np.int64 or times.ndim != 1 or len(times) <= last):
        raise SettingsError(
            f"times are {times.dtype}{list(times.shape)}; give int64[num_trees], one for each tree up to {last}"
        )
