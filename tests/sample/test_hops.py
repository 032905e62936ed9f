"""Checks that plans expand nodes as often as they should, grow tables, and refuse what cannot run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hopstream.dataset.layout import open_dataset
from hopstream.errors import SettingsError
from hopstream.graph.graph import Graph
from hopstream.preparation.write import write_parts
from hopstream.sample.hops import PlanRunner
from hopstream.sample.plan import SEEDS, SampleOp, SamplePlan, SeedNodes, plan_from_num_neighbors
from hopstream.sample.sampling_settings import SamplingSettings
from hopstream.store.local import LocalStore
from tests.conftest import make_typed_graph
from tests.naive_plans import Found, Raw, in_keys, run_plan, seeds_in_ids

CITES, WRITES = ("paper", "cites", "paper"), ("author", "writes", "paper")


def _write(graph: Graph, folder: Path, num_parts: int) -> LocalStore:
    write_parts(graph, folder, num_parts=num_parts, method="random", direction="both")
    return LocalStore(open_dataset(folder))


def _run(store: LocalStore, runner: PlanRunner, seeds: SeedNodes) -> Found:
    return in_keys(store, runner.run(seeds_in_ids(store, seeds)))


def test_error_for_too_much_memory_names_the_setting(rng: np.random.Generator, tmp_path: Path) -> None:
    """More bytes than the address space has, so that no machine allocates them."""
    graph = make_typed_graph(rng, num_papers=9000, num_authors=10)
    store = _write(graph, tmp_path / "parts", 2)
    plan = plan_from_num_neighbors(
        graph.schema, {CITES: [2**31 - 1], "default": [1]}, ("paper",), SamplingSettings(replace=True)
    )
    seeds = SeedNodes(ids={"paper": np.arange(9000)}, rng_seed=5)
    wanted = r"for 2,147,483,647 neighbours of each of 9,000 nodes, with replacement, which is more than memory holds"
    with pytest.raises(SettingsError, match=f"num_neighbors asks op '.*' {wanted}; give a smaller num_neighbors"):
        PlanRunner(store, plan).run(seeds)


def test_a_dag_of_ops_expands_each_found_node_once(rng: np.random.Generator, tmp_path: Path) -> None:
    """Two ops feed a third, and one op feeds from the seeds and from the first hop together."""
    graph = make_typed_graph(rng)
    store = _write(graph, tmp_path / "parts", 3)

    def op(name: str, *inputs: str, direction: str = "in") -> SampleOp:
        return SampleOp(name=name, inputs=inputs, edge_type=CITES, direction=direction, count=2)

    ops = (op("back", SEEDS), op("forth", SEEDS, direction="out"), op("both", "back", "forth"))
    with pytest.raises(SettingsError, match="follows edge type paper__cites__paper in both directions"):
        SamplePlan(seed_types=("paper",), ops=ops, num_hops=3)
    ops = (op("back", SEEDS), op("again", "back"), op("wide", SEEDS, "again"))
    plan = SamplePlan(seed_types=("paper",), ops=ops, num_hops=4, wants_edge_ids=True)
    seeds = SeedNodes(ids={"paper": np.array([4, 9, 1])}, rng_seed=5)
    found = _run(store, PlanRunner(store, plan), seeds)
    assert found == run_plan(Raw(graph), plan, seeds)
    assert found.num_sampled_edges[CITES][3] == 0


@pytest.mark.parametrize("is_disjoint", [False, True])
@pytest.mark.parametrize("num_parts", [1, 3])
def test_nodes_reached_again_are_expanded_by_following_ops(rng, tmp_path, num_parts, is_disjoint) -> None:
    """The second op reaches only nodes that the first one found; its follower expands them all the same."""
    graph = make_typed_graph(rng, num_papers=12)
    store = _write(graph, tmp_path / "parts", num_parts)

    def op(name: str, *inputs: str, count: int = 4) -> SampleOp:
        return SampleOp(
            name=name, inputs=inputs, edge_type=CITES, direction="in", count=count, expands="reached"
        )  # fmt: skip

    ops = (
        op("first", SEEDS, count=-1),
        op("second", SEEDS, count=2),
        op("third", "second"),
        op("wide", SEEDS, "third"),
    )
    plan = SamplePlan(
        seed_types=("paper",), ops=ops, num_hops=4, wants_edge_ids=True, settings=SamplingSettings(disjoint=is_disjoint)
    )
    seeds = SeedNodes(
        ids={"paper": np.array([4, 9, 1])}, rng_seed=5, trees={"paper": np.array([1, 0, 2])} if is_disjoint else None
    )
    found = _run(store, PlanRunner(store, plan), seeds)
    assert found == run_plan(Raw(graph), plan, seeds)
    narrow = replace(plan, ops=tuple(replace(op, expands="new") for op in ops))
    assert _run(store, PlanRunner(store, narrow), seeds).num_sampled_edges[CITES][1] < found.num_sampled_edges[CITES][1]


@pytest.mark.parametrize("is_disjoint", [False, True])
def test_tables_grow_while_a_plan_runs(tmp_path: Path, rng: np.random.Generator, is_disjoint: bool) -> None:
    """More nodes than the first table has room for, found in one hop."""
    graph = make_typed_graph(rng, num_papers=9000, num_authors=10)
    store = _write(graph, tmp_path / "parts", 2)
    num_neighbors = [3, -1] if is_disjoint else [-1, -1]
    plan = plan_from_num_neighbors(
        graph.schema, num_neighbors, ("paper",), SamplingSettings(disjoint=is_disjoint), wants_edge_ids=True
    )
    runner = PlanRunner(store, plan)
    seeds = SeedNodes(
        ids={"paper": rng.choice(9000, 1500, replace=False)},
        rng_seed=1,
        trees={"paper": np.arange(1500)} if is_disjoint else None,
    )
    found = _run(store, runner, seeds)
    assert found == run_plan(Raw(graph), plan, seeds)
    assert len(found.node_keys["paper"]) > 4096


def test_seeds_given_twice_are_refused(tmp_path: Path, rng: np.random.Generator) -> None:
    graph = make_typed_graph(rng)
    store = _write(graph, tmp_path / "parts", 2)
    runner = PlanRunner(store, plan_from_num_neighbors(graph.schema, [1], ("paper",)))
    with pytest.raises(SettingsError, match="3 seeds have 2 distinct nodes"):
        runner.run(SeedNodes(ids={"paper": np.array([1, 2, 1])}, rng_seed=0))


def test_a_direction_that_the_dataset_lacks_is_refused(tmp_path: Path, rng: np.random.Generator) -> None:
    graph = make_typed_graph(rng)
    write_parts(graph, tmp_path / "parts", num_parts=2, method="random", direction="in")
    store = LocalStore(open_dataset(tmp_path / "parts"))
    with pytest.raises(SettingsError, match="follows direction 'out'; the dataset holds in"):
        PlanRunner(store, plan_from_num_neighbors(graph.schema, [1], ("author",), SamplingSettings(direction="out")))
