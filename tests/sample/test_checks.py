"""Checks that plans that the dataset cannot run, and seeds that do not fit a plan, are refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hopstream.dataset.layout import open_dataset
from hopstream.errors import SettingsError, UnknownNameError
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.preparation.write import write_parts
from hopstream.sample.hops import PlanRunner
from hopstream.sample.plan import SamplePlan, SeedNodes
from hopstream.store.contract import LaborSeeds
from hopstream.store.local import LocalStore
from tests.plan_modes import plan_with

LIKES, OWNS = ("item", "likes", "item"), ("user", "owns", "item")
ENDS = {"src_keys": np.array([0, 1, 2]), "dst_keys": np.array([1, 2, 0])}
GRAPH = Graph(
    nodes={"item": NodeTable(num_nodes=3), "user": NodeTable(num_nodes=3)},
    edges={LIKES: EdgeTable(**ENDS, features={"time": np.arange(3), "weight": np.ones(3)}), OWNS: EdgeTable(**ENDS)},
)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, LocalStore]]:
    """The graph with times and weights, and without."""
    root: Path = tmp_path_factory.mktemp("checks")
    write_parts(GRAPH, root / "rich", num_parts=2, method="random", time_attr="time", weight_attr="weight")
    write_parts(GRAPH, root / "poor", num_parts=2, method="random")
    stores = {name: LocalStore(open_dataset(root / name)) for name in ("rich", "poor")}
    yield stores
    for store in stores.values():
        store.close()


def _plan(seed_types: tuple[str, ...] = ("item",), **options: object) -> SamplePlan:
    return plan_with(GRAPH.schema, [1], seed_types, **options)


TREES = {"disjoint": True}
TIMES = {"time_attr": "time"}


@pytest.mark.parametrize(
    "options,message",
    [
        (TIMES, "the plan is temporal, and the dataset was written without times; write the parts again with time_at"),
        ({"strategies": {LIKES: "last"}}, "strategy 'last' needs times, and the dataset was written without"),
        ({"strategies": {LIKES: "weighted"}}, "strategy 'weighted' needs weights, and the dataset was written without"),
        ({"strategies": {LIKES: "labor"}}, "strategy 'labor' needs the keys of neighbours, and the dataset was"),
    ],
    ids=str,
)
def test_error_names_data_that_a_plan_needs(stores: dict[str, LocalStore], options: dict, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        PlanRunner(stores["poor"], _plan(**options))


@pytest.mark.parametrize("strategy,what", [("last", "time"), ("weighted", "weight"), ("top_k", "weight")])
def test_error_names_data_that_a_strategy_needs(stores: dict[str, LocalStore], strategy: str, what: str) -> None:
    with pytest.raises(SettingsError, match=f"user__owns__item/in: strategy '{strategy}' needs .* feature '{what}'"):
        PlanRunner(stores["rich"], _plan(strategies={OWNS: strategy}))


def test_reverse_types_are_those_of_the_graph(stores: dict[str, LocalStore]) -> None:
    plan = _plan(subgraph_type="bidirectional", reverse_types={OWNS: ("item", "owned_by", "user")})
    with pytest.raises(UnknownNameError, match=r"unknown edge type \('item', 'owned_by', 'user'\)"):
        PlanRunner(stores["poor"], plan)


def _seeds(trees: object = None, times: object = None, **options: object) -> SeedNodes:
    return SeedNodes(
        ids={"item": np.array([2, 1])},
        rng_seed=0,
        trees=None if trees is None else {"item": np.array(trees)},
        times=None if times is None else np.array(times),
        **options,
    )


@pytest.mark.parametrize(
    "options,seeds,message",
    [
        ({}, SeedNodes(ids={"user": np.array([1])}, rng_seed=0), "seeds are of type user; the plan's are item"),
        ({}, _seeds([0, 1]), "the seeds have trees, but the plan is not disjoint"),
        ({}, _seeds(times=[0, 1]), "the seeds have times, but the plan is not temporal"),
        (TREES, _seeds(), "the plan is disjoint, but the seeds have no trees; give trees"),
        (
            TREES,
            _seeds([0, 1], [5, 5]),
            "the seeds have times, but the plan is not temporal; leave times out, or make t",
        ),
        (TIMES, _seeds([0, 1]), "the plan is temporal, but the seeds have no times; give times"),
        (TREES, _seeds([0]), r"trees of 2 seeds of type 'item' are int64\[1\]; give int64\[2\]"),
        (TREES, _seeds([0.0, 1.0]), r"are float64\[2\]; give int64\[2\]"),
        (
            TREES,
            SeedNodes(ids={"item": np.array([2])}, rng_seed=0, trees={}),
            "1 seeds of type 'item' are none; give in",
        ),
        (
            TREES,
            SeedNodes(ids={"item": np.array([1, 2, 1])}, rng_seed=0, trees={"item": np.array([3, 3, 3])}),
            "3 seeds have 2 distinct nodes; give each node once in each tree",
        ),
        (TREES, _seeds([-1, 3]), "trees are -1..3; number them from 0 to 8388607"),
        (TREES, _seeds([0, 1 << 23]), "trees are 0..8388608"),
        (TIMES, _seeds([0, 5], [1, 2]), r"times are int64\[2\]; give int64\[num_trees\], one for each tree up to 5"),
        (TIMES, _seeds([0, 1], [1.0, 2.0]), r"times are float64\[2\]"),
        (TIMES, _seeds([0, 1], 3), r"times are int64\[\]"),
    ],
)
def test_seeds_that_do_not_fit_are_refused(
    stores: dict[str, LocalStore], options: dict, seeds: SeedNodes, message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        PlanRunner(stores["rich"], _plan(**options)).run(seeds)


def test_labor_without_random_seeds_is_refused(tmp_path: Path) -> None:
    write_parts(GRAPH, tmp_path / "parts", num_parts=1)
    with LocalStore(open_dataset(tmp_path / "parts")) as store:
        runner = PlanRunner(store, _plan(strategies={LIKES: "labor"}))
        with pytest.raises(
            SettingsError, match="op 'hop1/item__likes__item' uses strategy 'labor' and has no random seeds; give"
        ):
            runner.run(_seeds())
        assert runner.run(_seeds(labor=LaborSeeds(first=3))).node_ids["item"].tolist()[:2] == [2, 1]


def test_no_seeds_give_no_nodes(stores: dict[str, LocalStore]) -> None:
    nothing = np.empty(0, np.int64)
    for options, trees, times in (({}, None, None), (TREES, nothing, None), (TIMES, nothing, nothing)):
        seeds = SeedNodes(
            ids={"item": nothing}, rng_seed=0, trees=trees if trees is None else {"item": trees}, times=times
        )
        for subgraph_type in ("directional", "bidirectional", "induced"):
            found = PlanRunner(stores["rich"], _plan(**options, subgraph_type=subgraph_type)).run(seeds)
            assert [len(ids) for ids in found.node_ids.values()] == [0, 0]
