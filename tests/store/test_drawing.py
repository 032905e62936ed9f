"""Tests of what each field of a request does to the draws of a node, and of the chances of draws."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hopstream.dataset.layout import open_dataset
from hopstream.errors import SettingsError
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.preparation.write import write_parts
from hopstream.schema import EDGE, NODE
from hopstream.store.contract import TREE_SHIFT, LaborSeeds, SampleRequest
from hopstream.store.local import LocalStore
from tests.naive_weighted import chances_of_sets

NUM_DRAWS = 8_000
RNG_SEED = 77
TIMES = [30, 10, 20, 40, 20]
WEIGHTS = [2.0, 0.0, 1.0, 2.0, 4.0]


def open_star(folder: Path, times: list[int], weights: list[float]) -> LocalStore:
    """Node 0 has an edge from each of the nodes 1, 2, … with these times and weights."""
    num_edges = len(times)
    graph = Graph(
        nodes={NODE: NodeTable(num_nodes=num_edges + 1)},
        edges={
            EDGE: EdgeTable(
                src_keys=np.arange(1, num_edges + 1),
                dst_keys=np.zeros(num_edges, np.int64),
                features={"time": np.array(times), "weight": np.array(weights)},
            )
        },
    )
    write_parts(graph, folder, num_parts=1, time_attr="time", weight_attr="weight")
    return LocalStore(open_dataset(folder))


@pytest.fixture(scope="module")
def star(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStore]:
    """Neighbours 2 (time 10, weight 0), 3 (20, 1), 5 (20, 4), 1 (30, 2), 4 (40, 2), in stored order."""
    with open_star(tmp_path_factory.mktemp("star") / "parts", TIMES, WEIGHTS) as store:
        yield store


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStore]:
    """A node of 1000 edges: long rows are drawn from in other ways. Odd neighbours weigh 3, even ones 1."""
    with open_star(tmp_path_factory.mktemp("hub") / "parts", [0] * 1000, [3.0, 1.0] * 500) as store:
        yield store


def ask(store: LocalStore, count: int = -1, num_rows: int = 1, **fields: Any) -> list[list[int]]:
    """Neighbours that node 0 draws, once per requested id."""
    request = SampleRequest(
        edge_type=EDGE, direction="in", ids=np.zeros(num_rows, np.int64), count=count, wants_edge_ids=True, **fields
    )
    (reply,) = store.sample([request])
    assert reply.edge_ids is not None
    assert len(reply.neighbor_ids) == len(reply.edge_ids) == reply.counts.sum()
    bound = store.num_drawn_bound(request)
    assert (bound >= reply.counts).all()
    return [own.tolist() for own in np.split(reply.neighbor_ids, np.cumsum(reply.counts)[:-1])]


def test_all_edges_are_ordered_by_time_and_table_position(star: LocalStore) -> None:
    assert ask(star) == [[2, 3, 5, 1, 4]]


def test_edges_after_a_time_are_not_seen(star: LocalStore) -> None:
    assert ask(star, num_rows=5, times=np.array([5, 10, 20, 29, 99])) == [
        [], [2], [2, 3, 5], [2, 3, 5], [2, 3, 5, 1, 4]
    ]  # fmt: skip


def test_edges_at_the_time_are_seen_if_inclusive(star: LocalStore) -> None:
    assert ask(star, times=np.array([20]), is_inclusive=True) == [[2, 3, 5]]
    assert ask(star, times=np.array([20]), is_inclusive=False) == [[2]]


def test_the_last_edges_are_the_latest(star: LocalStore) -> None:
    assert ask(star, 2, strategy="last") == [[1, 4]]
    assert ask(star, 2, strategy="last", times=np.array([30])) == [[5, 1]]
    assert ask(star, 2, strategy="last", excluded=np.array([[0, 0], [4, 5]])) == [[3, 1]]


def test_the_heaviest_edges_come_first_and_ties_in_stored_order(star: LocalStore) -> None:
    assert ask(star, strategy="top_k") == [[5, 1, 4, 3]]
    assert ask(star, 2, strategy="top_k") == [[5, 1]]
    assert ask(star, 2, strategy="top_k", times=np.array([20])) == [[5, 3]]
    assert ask(star, 2, strategy="top_k", excluded=np.array([[0], [5]])) == [[1, 4]]


def test_all_weighted_edges_are_drawn_if_enough_are_requested(star: LocalStore) -> None:
    assert ask(star, strategy="weighted") == [[3, 5, 1, 4]]
    assert ask(star, 4, strategy="weighted") == [[3, 5, 1, 4]]
    assert ask(star, 9, strategy="weighted", times=np.array([20])) == [[3, 5]]
    assert ask(star, 2, strategy="weighted", times=np.array([10]), is_replacing=True) == [[]]


def test_excluded_neighbors_and_non_candidates_are_not_drawn(star: LocalStore) -> None:
    assert ask(star, excluded=np.array([[0, 0, 5], [1, 3, 2]])) == [[2, 5, 4]]
    assert ask(star, candidates=np.array([1, 2, 5])) == [[2, 5, 1]]
    assert ask(star, candidates=np.array([1, 2, 5]), excluded=np.array([[0], [1]])) == [[2, 5]]
    assert ask(star, candidates=np.empty(0, np.int64)) == [[]]


def test_candidates_apply_to_their_own_tree(star: LocalStore) -> None:
    trees = np.array([7, 0, 9, 7])
    candidates = np.array([2, 7 << TREE_SHIFT | 1, 7 << TREE_SHIFT | 5, 8 << TREE_SHIFT | 3])
    assert ask(star, -1, 4, trees=trees, candidates=candidates) == [[5, 1], [2], [], [5, 1]]
    excluded = np.array([[0, 0], [1, 2]])
    assert ask(star, -1, 4, trees=trees, candidates=candidates, excluded=excluded) == [[5], [], [], [5]]
    assert ask(star, excluded=np.empty((2, 0), np.int64)) == [[2, 3, 5, 1, 4]]


def test_excluded_neighbors_are_replaced_by_others(star: LocalStore) -> None:
    """The count is filled with other neighbours, as long as there are any."""
    assert [len(drawn) for drawn in ask(star, 3, num_rows=50, excluded=np.array([[0], [1]]))] == [3] * 50
    assert ask(star, 3, excluded=np.array([[0, 0], [1, 2]])) == [[3, 5, 4]]


def test_labor_takes_the_same_neighbors_for_every_node(star: LocalStore) -> None:
    """Variates belong to neighbours, so trees do not change them, and few draws are a subset of many."""
    labor = LaborSeeds(first=5)
    few = ask(star, 2, num_rows=3, strategy="labor", labor=labor, trees=np.arange(3))
    assert few[0] == few[1] == few[2]
    (more,) = ask(star, 3, strategy="labor", labor=labor)
    assert set(few[0]) < set(more)
    assert more == [neighbor for neighbor in [2, 3, 5, 1, 4] if neighbor in more]


def test_edge_types_without_times_are_seen_at_any_time(star: LocalStore, tmp_path: Path) -> None:
    graph = Graph(
        nodes={NODE: NodeTable(num_nodes=2)},
        edges={EDGE: EdgeTable(src_keys=np.array([1]), dst_keys=np.array([0]))},
    )
    write_parts(graph, tmp_path / "parts", num_parts=1)
    with LocalStore(open_dataset(tmp_path / "parts")) as store:
        assert ask(store, times=np.array([-(1 << 63)])) == [[1]]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"strategy": "weighted"}, "written without; write the parts again with weight_attr"),
        ({"strategy": "top_k"}, "written without; write the parts again with weight_attr"),
        ({"strategy": "last"}, "written without; write the parts again with time_attr"),
        ({"strategy": "best"}, "known: uniform, weighted, top_k, last, labor"),
        ({"strategy": "labor"}, "needs labor seeds"),
        ({"strategy": "uniform", "labor": LaborSeeds(first=1)}, "takes no labor seeds"),
        ({"strategy": "last", "is_replacing": True}, "draws an edge once"),
        ({"trees": np.array([1, 2])}, r"trees is int64\[2\]; wanted int64\[1\]"),
        ({"trees": np.array([1 << 23])}, "trees hold 8388608; they are 0..8388607"),
        ({"times": np.array([1.5])}, r"times is float64\[1\]; wanted int64\[1\]"),
        ({"excluded": np.array([1])}, r"excluded is int64\[1\]; wanted int64\[2, m\]"),
        ({"count": -2}, "give -1 for all neighbours"),
    ],
)
def test_unsupported_draws_are_refused_with_a_remedy(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    graph = Graph(
        nodes={NODE: NodeTable(num_nodes=2)},
        edges={EDGE: EdgeTable(src_keys=np.array([1]), dst_keys=np.array([0]))},
    )
    write_parts(graph, tmp_path / "parts", num_parts=1)
    with LocalStore(open_dataset(tmp_path / "parts")) as store, pytest.raises(SettingsError, match=message):
        ask(store, **{"count": 1, **fields})


def test_labor_without_keys_of_neighbors_is_refused(tmp_path: Path) -> None:
    graph = Graph(
        nodes={NODE: NodeTable(num_nodes=2)},
        edges={EDGE: EdgeTable(src_keys=np.array([1]), dst_keys=np.array([0]))},
    )
    write_parts(graph, tmp_path / "parts", num_parts=2, method="hash", neighbor_keys=False)
    message = "needs the keys of neighbours, and the dataset was written without; write the parts again"
    with LocalStore(open_dataset(tmp_path / "parts")) as store, pytest.raises(SettingsError, match=message):
        ask(store, 1, strategy="labor", labor=LaborSeeds(first=1))


# Chances: every draw is of a tree of its own, so one request makes as many independent draws as it has trees.


def draw_often(store: LocalStore, count: int, **fields: Any) -> list[tuple[int, ...]]:
    drawn = ask(store, count, NUM_DRAWS, trees=np.arange(NUM_DRAWS), rng_seed=RNG_SEED, **fields)
    return [tuple(own) for own in drawn]


def check_inclusion(drawn: list[tuple[int, ...]], chances: dict[int, float], where: object) -> None:
    """Check that each neighbour is drawn within 5 sigma of its chance, and no other neighbour is."""
    where = (f"rng_seed={RNG_SEED}", where)
    found = Counter(neighbor for own in drawn for neighbor in own)
    assert set(found) <= {neighbor for neighbor, chance in chances.items() if chance > 0}, where
    for neighbor, chance in chances.items():
        sigma = math.sqrt(max(1.0, len(drawn) * chance * (1 - chance)))
        assert abs(found[neighbor] - len(drawn) * chance) < 5 * sigma, (where, neighbor, found[neighbor], chance)


STAR_LIMITS: list[tuple[dict[str, Any], list[int]]] = [
    ({}, [2, 3, 5, 1, 4]),
    ({"times": np.full(NUM_DRAWS, 30)}, [2, 3, 5, 1]),
    ({"excluded": np.array([[0], [3]])}, [2, 5, 1, 4]),
    ({"candidates": (np.arange(NUM_DRAWS)[:, None] << TREE_SHIFT | np.array([1, 3, 4, 5])).ravel()}, [3, 5, 1, 4]),
    ({"times": np.full(NUM_DRAWS, 30), "excluded": np.array([[0], [2]])}, [3, 5, 1]),
]


@pytest.mark.parametrize("limit", range(len(STAR_LIMITS)))
@pytest.mark.parametrize("count", [1, 2])
def test_uniform_draws_have_equal_chances(star: LocalStore, limit: int, count: int) -> None:
    fields, eligible = STAR_LIMITS[limit]
    drawn = draw_often(star, count, **fields)
    assert all(len(set(own)) == count for own in drawn)
    check_inclusion(drawn, dict.fromkeys(eligible, count / len(eligible)), (fields, count))


@pytest.mark.parametrize("limit", range(len(STAR_LIMITS)))
@pytest.mark.parametrize("count", [1, 2])
def test_weighted_draws_have_the_chances_of_successive_draws(star: LocalStore, limit: int, count: int) -> None:
    fields, eligible = STAR_LIMITS[limit]
    weights = [WEIGHTS[neighbor - 1] for neighbor in eligible]
    chances = dict.fromkeys(eligible, 0.0)
    for positions, chance in chances_of_sets(weights, count).items():
        for position in positions:
            chances[eligible[position]] += chance
    check_inclusion(draw_often(star, count, strategy="weighted", **fields), chances, (fields, count))


@pytest.mark.parametrize("strategy", ["uniform", "weighted"])
@pytest.mark.parametrize("limit", range(len(STAR_LIMITS)))
def test_every_turn_with_replacement_has_the_same_chances(star: LocalStore, strategy: str, limit: int) -> None:
    fields, eligible = STAR_LIMITS[limit]
    shares = {n: WEIGHTS[n - 1] if strategy == "weighted" else 1.0 for n in eligible}
    chances = {n: share / sum(shares.values()) for n, share in shares.items()}
    drawn = draw_often(star, 3, strategy=strategy, is_replacing=True, **fields)
    for turn in range(3):
        check_inclusion([own[turn : turn + 1] for own in drawn], chances, (strategy, fields, turn))
    pairs = Counter(own[:2] for own in drawn)
    for first in eligible:
        for second in eligible:
            chance = chances[first] * chances[second]
            sigma = math.sqrt(max(1.0, NUM_DRAWS * chance * (1 - chance)))
            assert abs(pairs[first, second] - NUM_DRAWS * chance) < 5 * sigma, (
                RNG_SEED,
                strategy,
                fields,
                first,
                second,
            )


HUB_EXCLUDED = np.stack([np.zeros(300, np.int64), np.arange(1, 301)])
"""Draws of a hub that hit these are rejected."""


@pytest.mark.parametrize("strategy", ["uniform", "weighted"])
@pytest.mark.parametrize(("count", "is_replacing"), [(1, False), (1, True), (40, True)])
def test_draws_of_a_hub_with_excluded_neighbors_keep_their_chances(
    hub: LocalStore, strategy: str, count: int, is_replacing: bool
) -> None:
    shares = {n: 1.0 if strategy == "uniform" or n % 2 == 0 else 3.0 for n in range(301, 1001)}
    chances = {n: share / sum(shares.values()) for n, share in shares.items()}
    num_draws = NUM_DRAWS * count
    fields: dict[str, Any] = {"strategy": strategy, "is_replacing": is_replacing, "excluded": HUB_EXCLUDED}
    drawn = [(neighbor,) for own in draw_often(hub, count, **fields) for neighbor in own]
    assert len(drawn) == num_draws
    check_inclusion(drawn, chances, fields)


def test_uniform_draws_of_a_hub_without_replacement_have_equal_chances(hub: LocalStore) -> None:
    for count in (10, 60):
        drawn = draw_often(hub, count, excluded=HUB_EXCLUDED)
        assert all(len(set(own)) == count for own in drawn)
        check_inclusion(drawn, dict.fromkeys(range(301, 1001), count / 700), count)


def chances_of_heavy(num_heavy: int, num_light: int, count: int) -> dict[int, float]:
    """Exact chance of each number of heavy edges in successive draws; they weigh 3, light ones 1."""
    chances = {0: 1.0}
    for turn in range(count):
        grown: dict[int, float] = {}
        for heavy, chance in chances.items():
            left_heavy, left_light = 3.0 * (num_heavy - heavy), float(num_light - (turn - heavy))
            share = left_heavy / (left_heavy + left_light)
            for more, part in ((1, share), (0, 1 - share)):
                if part > 0:
                    grown[heavy + more] = grown.get(heavy + more, 0.0) + chance * part
        chances = grown
    return chances


@pytest.mark.parametrize(("num_excluded", "count"), [(300, 2), (300, 30), (900, 20), (984, 12)])
def test_draws_by_weight_of_a_hub_without_replacement_are_successive(
    hub: LocalStore, num_excluded: int, count: int
) -> None:
    """With few edges left, too many draws are rejected, so the rest is drawn from a list."""
    excluded = np.stack([np.zeros(num_excluded, np.int64), np.arange(1, num_excluded + 1)])
    drawn = draw_often(hub, count, strategy="weighted", excluded=excluded)
    assert all(len(set(own)) == count for own in drawn)
    num_each = (1000 - num_excluded) // 2
    law = chances_of_heavy(num_each, num_each, count)
    num_heavy = math.fsum(heavy * chance for heavy, chance in law.items())
    chances = {
        neighbor: (num_heavy if neighbor % 2 else count - num_heavy) / num_each
        for neighbor in range(num_excluded + 1, 1001)
    }
    check_inclusion(drawn, chances, (num_excluded, count))
    found = Counter(sum(neighbor % 2 for neighbor in own) for own in drawn)
    for heavy in range(count + 1):
        chance = law.get(heavy, 0.0)
        sigma = math.sqrt(max(1.0, NUM_DRAWS * chance * (1 - chance)))
        assert abs(found[heavy] - NUM_DRAWS * chance) < 5 * sigma, (RNG_SEED, heavy, found[heavy], chance)


def test_labor_draws_have_equal_chances_over_seeds(star: LocalStore) -> None:
    num_seeds = 2000
    drawn = [
        tuple(ask(star, 2, strategy="labor", labor=LaborSeeds(first=seed, second=seed + num_seeds, share=0.3))[0])
        for seed in range(num_seeds)
    ]
    check_inclusion(drawn, dict.fromkeys(range(1, 6), 0.4), "labor")


def test_trees_draw_independently_of_each_other(star: LocalStore) -> None:
    """Neighbouring trees, and trees whose numbers differ in one bit, draw independently."""
    drawn = np.array(draw_often(star, 1))[:, 0]
    for other in (np.arange(NUM_DRAWS) ^ 1, np.arange(NUM_DRAWS) ^ 4096, np.arange(NUM_DRAWS) - 1):
        kept = other < NUM_DRAWS
        table = np.zeros((6, 6))
        np.add.at(table, (drawn[kept], drawn[other[kept]]), 1)
        expected = kept.sum() / 25
        statistic = float(((table[1:, 1:] - expected) ** 2 / expected).sum())
        assert statistic < 24 + 6 * math.sqrt(2 * 24), (RNG_SEED, statistic)


def test_draws_of_a_tree_do_not_depend_on_the_request(star: LocalStore) -> None:
    trees = np.array([5, 0, 5, 9])
    together = ask(star, 2, 4, trees=trees, rng_seed=3)
    assert together[0] == together[2]
    assert together == [ask(star, 2, trees=trees[i : i + 1], rng_seed=3)[0] for i in range(4)]


def test_the_upper_bound_is_exact_if_all_edges_are_requested(star: LocalStore) -> None:
    request = SampleRequest(edge_type=EDGE, direction="in", ids=np.array([0, 3, 0]), count=-1)
    times = np.array([20, 20, 9])
    candidates = np.array([1, 3, 5])

    def bound(**fields: Any) -> list[int]:
        return star.num_drawn_bound(replace(request, **fields)).tolist()

    assert bound() == [5, 0, 5]
    assert bound(times=times) == [3, 0, 0]
    assert bound(times=times, candidates=candidates) == [2, 0, 0]
    assert bound(candidates=candidates, excluded=np.array([[0], [1]])) == [2, 0, 2]
    assert bound(trees=np.array([4, 4, 1]), candidates=candidates | 4 << TREE_SHIFT) == [3, 0, 0]
    assert bound(count=2) == [2, 0, 2]
    assert bound(count=7, candidates=candidates) == [3, 0, 3]
    assert bound(count=7, is_replacing=True) == [7, 0, 7]
    assert bound(count=7, is_replacing=True, candidates=candidates, times=times) == [7, 0, 0]


def test_memory_grows_with_drawn_edges_not_with_scanned_ones(tmp_path: Path) -> None:
    """All edges to a few candidates, of nodes of many edges: 80 MB of positions would be wasted."""
    num_nodes, degree = 100, 100_000
    src_keys = np.tile(np.arange(degree) % num_nodes, num_nodes).astype(np.int64)
    graph = Graph(
        nodes={NODE: NodeTable(num_nodes=num_nodes)},
        edges={EDGE: EdgeTable(src_keys=src_keys, dst_keys=np.repeat(np.arange(num_nodes), degree))},
    )
    write_parts(graph, tmp_path / "parts", num_parts=1, keep_edge_keys=False)
    with LocalStore(open_dataset(tmp_path / "parts")) as store:
        request = SampleRequest(
            edge_type=EDGE, direction="in", ids=np.arange(num_nodes), count=-1, wants_edge_ids=True,
            candidates=np.array([17]),
        )  # fmt: skip
        (reply,) = store.sample([request])
    assert reply.counts.tolist() == [degree // num_nodes] * num_nodes
    assert owned_bytes(reply.edge_ids) < 8 << 20


def owned_bytes(array: NDArray[Any] | None) -> int:
    while array is not None and isinstance(array.base, np.ndarray):
        array = array.base
    return 0 if array is None else array.nbytes
