"""Checks that neighbourhoods are those of personalised PageRank, with their exact contents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import networkx as nx
import numpy as np
import pytest

from hopstream.dataset.layout import open_dataset
from hopstream.errors import SettingsError
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.preparation.write import write_parts
from hopstream.sample.plan import SeedNodes
from hopstream.sample.ppr import PPRRunner
from hopstream.sample.ppr_settings import PPR, PPRSettings, plan_ppr
from hopstream.schema import EDGE, NODE
from hopstream.store.local import LocalStore
from tests.load.graphs import WatchedStore

EXACT = {"eps": 1e-9, "max_ppr_nodes": 10_000, "num_neighbors_per_hop": -1}
OWN = (NODE, PPR, NODE)
VIEWS, LIKES, SHARES = ("user", "views", "item"), ("user", "likes", "item"), ("user", "shares", "item")


def plain_graph(links: Sequence[tuple[int, int]], num_nodes: int) -> Graph:
    src, dst = np.array(links, np.int64).reshape(-1, 2).T
    return Graph(
        nodes={NODE: NodeTable(num_nodes=num_nodes)}, edges={EDGE: EdgeTable(src_keys=src, dst_keys=dst)}
    ).check()


def typed_graph() -> Graph:
    """One user viewed items 0 to 3, liked items 3 and 4, and shared item 5."""

    def table(*items: int) -> EdgeTable:
        return EdgeTable(src_keys=np.zeros(len(items), np.int64), dst_keys=np.array(items))

    return Graph(
        nodes={"user": NodeTable(num_nodes=1), "item": NodeTable(num_nodes=6)},
        edges={VIEWS: table(0, 1, 2, 3), LIKES: table(3, 4), SHARES: table(5)},
    ).check()


@pytest.fixture
def store_of(tmp_path):
    stores = []

    def open_graph(graph: Graph, num_parts: int = 1) -> LocalStore:
        folder = tmp_path / str(len(stores))
        write_parts(graph, folder, num_parts=num_parts, method="random", direction="both")
        stores.append(LocalStore(open_dataset(folder)))
        return stores[-1]

    yield open_graph
    for store in stores:
        store.close()


def starting(ids: Sequence[int], node_type: str = NODE, **options: Any) -> SeedNodes:
    return SeedNodes(ids={node_type: np.array(ids)}, **{"rng_seed": 0, **options})


def rows_of(store, seed_type: str, seeds: Sequence[int], **options):
    """Per seed, in batch order: (node type, id, attributes rounded to six places); seeds are ids."""
    found = PPRRunner(store, plan_ppr(store, PPRSettings(**options), seed_type)).run(starting(seeds, seed_type))
    rows = [[] for _ in seeds]
    for (_, _, node_type), (seed_slots, slots) in found.edge_index.items():
        keys = found.node_ids[node_type][slots]
        for seed, key, attributes in zip(seed_slots, keys, found.edge_attr[seed_type, PPR, node_type], strict=True):
            rows[seed].append((node_type, int(key), *np.round(attributes, 6).tolist()))
    return rows


class TestAgainstNetworkx:
    """Without sinks, scores are ``networkx.pagerank`` with ``alpha=1 - alpha``; they add up to 1."""

    def scores(self, store, num_nodes: int, **options) -> np.ndarray:
        found = PPRRunner(store, plan_ppr(store, PPRSettings(**EXACT, **options), NODE)).run(starting(range(num_nodes)))
        scores = np.zeros((num_nodes, num_nodes))
        seeds, slots = found.edge_index[OWN]
        scores[seeds, found.node_ids[NODE][slots]] = found.edge_attr[OWN][:, 0]
        return scores

    def wanted(self, graph: nx.Graph, alpha: float) -> np.ndarray:
        rows = []
        for seed in range(len(graph)):
            ranks = nx.pagerank(graph, alpha=1 - alpha, personalization={seed: 1}, tol=1e-12, max_iter=10_000)
            rows.append([ranks[node] for node in range(len(graph))])
        return np.array(rows)

    @pytest.mark.parametrize("alpha", [0.15, 0.5, 0.85])
    def test_an_undirected_graph(self, store_of, alpha):
        graph = nx.karate_club_graph()
        graph = nx.Graph(graph.edges())  # without weights
        links = [link for edge in graph.edges() for link in (edge, edge[::-1])]
        scores = self.scores(store_of(plain_graph(links, 34)), 34, alpha=alpha)
        assert scores == pytest.approx(self.wanted(graph, alpha), abs=1e-6)
        assert scores.sum(axis=1) == pytest.approx(1.0, abs=1e-6)

    @pytest.mark.parametrize("direction", ["in", "out"])
    def test_a_directed_graph_with_parallel_edges_and_loops(self, store_of, rng, direction):
        links = [*enumerate(np.roll(np.arange(30), 1)), *rng.integers(0, 30, (90, 2))]
        walked = [(a, b) if direction == "out" else (b, a) for a, b in links]
        graph = nx.MultiDiGraph([(int(a), int(b)) for a, b in walked])
        scores = self.scores(store_of(plain_graph(links, 30)), 30, alpha=0.3, direction=direction)
        assert scores == pytest.approx(self.wanted(graph, 0.3), abs=1e-6)

    def test_where_walks_end_in_sinks_scores_are_in_proportion(self, store_of, rng):
        """networkx returns a walk from a sink to its seed, which scales all scores of the seed alike."""
        links = [(int(a), int(b)) for a, b in rng.integers(0, 40, (80, 2)) if a >= 8]
        graph = nx.MultiDiGraph(links)
        graph.add_nodes_from(range(40))
        scores = self.scores(store_of(plain_graph(links, 40)), 40, alpha=0.3, direction="out")
        assert scores / scores.sum(axis=1, keepdims=True) == pytest.approx(self.wanted(graph, 0.3), abs=1e-6)

    def test_a_typed_graph_is_walked_as_one(self, store_of, rng):
        src, dst = rng.integers(0, 12, 60), rng.integers(0, 9, 60)
        graph = Graph(
            nodes={"a": NodeTable(num_nodes=12), "b": NodeTable(num_nodes=9)},
            edges={
                ("a", "to", "b"): EdgeTable(src_keys=src, dst_keys=dst),
                ("b", "back", "a"): EdgeTable(src_keys=dst, dst_keys=src),
                ("a", "next", "a"): EdgeTable(src_keys=np.arange(12), dst_keys=np.roll(np.arange(12), 1)),
            },
        ).check()
        merged = nx.MultiDiGraph(zip(src.tolist(), (dst + 12).tolist(), strict=True))
        merged.add_edges_from(zip((dst + 12).tolist(), src.tolist(), strict=True))
        merged.add_edges_from(zip(range(12), np.roll(np.arange(12), 1).tolist(), strict=True))
        store = store_of(graph)
        for seed, rows in enumerate(rows_of(store, "a", range(12), alpha=0.25, direction="out", **EXACT)):
            wanted = nx.pagerank(merged, alpha=0.75, personalization={seed: 1}, tol=1e-12, max_iter=1000)
            found = {key + 12 * (node_type == "b"): score for node_type, key, score, _ in rows}
            assert found == pytest.approx({n: s for n, s in wanted.items() if n in found}, abs=1e-6)


class TestByHand:
    def test_two_nodes_that_point_at_each_other(self, store_of):
        """Half of each visit stays, half moves on: 1/2 + 1/8 + … = 2/3 at the seed, 1/3 at the other."""
        store = store_of(plain_graph([(0, 1), (1, 0)], 2))
        assert rows_of(store, NODE, [0], eps=1e-12) == [[(NODE, 0, 0.666667, 1.0), (NODE, 1, 0.333333, 0.5)]]

    def test_a_chain_ends_in_a_sink(self, store_of):
        """0 → 1 → 2: a quarter stays at each node that walks come to; what would leave node 2 is lost."""
        store = store_of(plain_graph([(0, 1), (1, 2)], 4))
        found = rows_of(store, NODE, [0, 3], alpha=0.25, direction="out")
        assert found[0] == [(NODE, 0, 0.25, 1.0), (NODE, 1, 0.1875, 0.5), (NODE, 2, 0.140625, 0.333333)]
        assert found[1] == [(NODE, 3, 0.25, 1.0)]  # a node without edges keeps alpha

    def test_in_walks_against_the_edges(self, store_of):
        store = store_of(plain_graph([(0, 1), (1, 2)], 3))
        assert [row[1] for row in rows_of(store, NODE, [2], direction="in")[0]] == [2, 1, 0]
        assert [row[1] for row in rows_of(store, NODE, [2], direction="out")[0]] == [2]

    def test_equal_scores_come_in_the_order_in_which_nodes_were_reached(self, store_of):
        """The stored order of edges decides, not the nodes' numbers."""
        store = store_of(plain_graph([(0, 4), (0, 2), (0, 3), (0, 1)], 5))
        assert [row[1] for row in rows_of(store, NODE, [0], direction="out")[0]] == [0, 4, 2, 3, 1]
        assert [row[1] for row in rows_of(store, NODE, [0], direction="out", max_ppr_nodes=3)[0]] == [0, 4, 2]

    def test_a_node_is_pushed_while_its_residual_is_large_for_its_degree(self, store_of):
        """Node 1 has 1/8 = alpha * 1/4 and three edges: it is pushed at eps 1/12, and not above it."""
        links = [(0, 1), (0, 2), (1, 3), (1, 4), (1, 5)]
        store = store_of(plain_graph(links, 6))
        pushed = rows_of(store, NODE, [0], direction="out", eps=1 / 12 - 1e-9)[0]
        assert [row[1:3] for row in pushed[:3]] == [(0, 0.5), (1, 0.125), (2, 0.125)]
        assert [row[1:] for row in pushed[3:]] == [(key, 0.020833, 0.333333) for key in (3, 4, 5)]
        assert len(rows_of(store, NODE, [0], direction="out", eps=1 / 12 + 1e-9)[0]) == 3

    def test_top_up_fills_free_slots_with_reached_nodes(self, store_of):
        """Node 1 keeps its residual, as it has many edges; node 2, a sink with less, is pushed."""
        links = [(0, 1), (0, 1), (0, 2), *((1, 3 + i) for i in range(9))]
        store = store_of(plain_graph(links, 12))
        options = {"direction": "out", "eps": 0.1}
        settled = [(NODE, 0, 0.5, 1.0), (NODE, 2, 0.083333, 0.5)]
        assert rows_of(store, NODE, [0], enable_residual_topup=False, **options)[0] == settled
        assert rows_of(store, NODE, [0], **options)[0] == [settled[0], (NODE, 1, 0.166667, 0.5), settled[1]]
        assert rows_of(store, NODE, [0], max_ppr_nodes=2, **options)[0] == settled  # it displaces no other node

    def test_the_walk_ends_after_the_last_fetch_round(self, store_of):
        """After one round nothing more is read: node 1 keeps all that came to it."""
        store = store_of(plain_graph([(0, 1), (1, 2), (2, 0)], 3))
        found = rows_of(store, NODE, [0], direction="out", max_fetch_iterations=1)[0]
        assert found == [(NODE, 0, 0.5, 1.0), (NODE, 1, 0.25, 0.5)]

    def test_a_seed_that_occurs_twice_has_a_slot_and_rows_for_each(self, store_of):
        store = store_of(plain_graph([(0, 1), (1, 0), (1, 2)], 3))
        plan = plan_ppr(store, PPRSettings(direction="out"), NODE)
        found = PPRRunner(store, plan).run(starting([1, 0, 1]))
        assert found.node_ids[NODE].tolist() == [1, 0, 1, 2]
        assert found.num_sampled_nodes == {NODE: [3, 1]}
        rows = list(zip(*found.edge_index[OWN].tolist(), strict=True))
        assert rows == [(0, 0), (0, 1), (0, 3), (1, 1), (1, 0), (1, 3), (2, 2), (2, 1), (2, 3)]


class TestChannels:
    """A channel's walk follows its own edge types: half stays at the user, its items share the rest."""

    def test_each_channel_has_its_share_and_the_rest_follows_scores(self, store_of):
        """Of six slots, views take three, the user's included; likes fill two; the last goes by score."""
        ratios = {VIEWS: 0.5, LIKES: 0.5}
        found = rows_of(store_of(typed_graph()), "user", [0], direction="out", typed_channel_ratios=ratios,
                        max_ppr_nodes=6)[0]  # fmt: skip
        both = (0.5, 1.0, 1.0)
        viewed, absent = (0.0625, 0.5, 1.0), (0.0, 0.0, 0.0)
        liked = (0.125, 0.5, 1.0)
        assert found == [
            ("user", 0, 0.5, 1.0, *both, *both),
            ("item", 3, 0.125, 0.5, *viewed, *liked),  # it is of the likes, where its score is larger
            ("item", 4, 0.125, 0.5, *absent, *liked),
            ("item", 0, 0.0625, 0.5, *viewed, *absent),
            ("item", 1, 0.0625, 0.5, *viewed, *absent),
            ("item", 2, 0.0625, 0.5, *viewed, *absent),  # takes the slot that the likes did not fill
        ]

    def test_a_share_is_kept_against_larger_scores(self, store_of):
        ratios = {SHARES: 0.25, LIKES: 0.25, VIEWS: 0.5}
        options = {"direction": "out", "max_ppr_nodes": 4, "typed_channel_ratios": ratios}
        found = rows_of(store_of(typed_graph()), "user", [0], **options)[0]
        assert [(node_type, key) for node_type, key, *_ in found] == [
            ("user", 0),
            ("item", 3),
            ("item", 0),
            ("item", 1),
        ]

    def test_edge_types_of_one_channel_are_followed_together(self, store_of):
        ratios = {VIEWS: 0.4, (LIKES, SHARES): 0.6}
        options = {"direction": "out", "typed_channel_ratios": ratios}
        found = {key: row for _, key, *row in rows_of(store_of(typed_graph()), "user", [0], **options)[0][1:]}
        assert found[5] == found[4] == [0.083333, 0.5, 0.0, 0.0, 0.0, 0.083333, 0.5, 1.0]

    def test_a_limit_per_type_holds_for_each_node_type(self, store_of):
        options = {"direction": "out", "limit_per_type": True, "max_ppr_nodes": 2}
        found = rows_of(store_of(typed_graph()), "user", [0], **options)[0]
        assert found == [
            ("user", 0, 0.5, 1.0),
            ("item", 3, 0.071429, 0.5),  # viewed and liked: two of seven edges
            ("item", 0, 0.035714, 0.5),
        ]

    def test_only_some_edge_types_are_followed(self, store_of):
        options = {"direction": "out", "edge_types": [LIKES]}
        found = rows_of(store_of(typed_graph()), "user", [0], **options)[0]
        assert [(key, score) for _, key, score, _ in found[1:]] == [(3, 0.125), (4, 0.125)]


class TestSampledEdges:
    def test_sampled_edges_connect_found_nodes(self, store_of):
        """0 → 1 → 2 → 3 with 1 → 0: nodes 0 to 2 are kept; the edge to 3 has an end outside."""
        store = store_of(plain_graph([(0, 1), (1, 2), (2, 3), (1, 0)], 4))
        settings = PPRSettings(direction="out", max_ppr_nodes=3, include_sampled_edges=True)
        found = PPRRunner(store, plan_ppr(store, settings, NODE), wants_edge_ids=True).run(starting([0]))
        assert found.node_ids[NODE].tolist() == [0, 1, 2]
        edges = found.edges[EDGE]
        assert list(zip(edges.src_slots, edges.dst_slots, strict=True)) == [(0, 1), (1, 2), (1, 0)]
        assert edges.edge_ids.tolist() == [0, 1, 2]  # ids follow the source here

    def test_in_the_direction_of_the_edges(self, store_of):
        store = store_of(plain_graph([(0, 1), (1, 2)], 3))
        settings = PPRSettings(direction="in", include_sampled_edges=True)
        found = PPRRunner(store, plan_ppr(store, settings, NODE)).run(starting([2]))
        keys = found.node_ids[NODE]
        edges = found.edges[EDGE]
        assert list(zip(keys[edges.src_slots], keys[edges.dst_slots], strict=True)) == [(1, 2), (0, 1)]
        assert edges.edge_ids is None

    def test_a_typed_graph_has_sampled_edges_by_type(self, store_of):
        settings = PPRSettings(direction="out", max_ppr_nodes=3, include_sampled_edges=True)
        store = store_of(typed_graph())
        found = PPRRunner(store, plan_ppr(store, settings, "user")).run(starting([0], "user"))
        assert found.node_ids["item"].tolist() == [3, 0]
        slots = {t: edges.dst_slots.tolist() for t, edges in found.edges.items()}
        assert slots == {VIEWS: [1, 0], LIKES: [0], SHARES: []}


class TestWork:
    def test_a_neighbour_list_is_fetched_once_per_batch(self, store_of, rng):
        watched = CountingStore(store_of(plain_graph(rng.integers(0, 50, (400, 2)), 50), num_parts=3))
        runner = PPRRunner(watched, plan_ppr(watched, PPRSettings(alpha=0.2), NODE))
        runner.run(starting(range(50)))
        assert sorted(watched.asked) == sorted(set(watched.asked))
        assert sorted(watched.counted) == list(range(50))
        assert watched.num_trips < 10

    def test_the_result_of_a_seed_does_not_depend_on_the_batch(self, store_of, rng):
        """Lists that are cut short depend on the batch's seed and on the node, so on no other seed."""
        store = store_of(plain_graph(rng.integers(0, 60, (900, 2)), 60))
        options = {"num_neighbors_per_hop": 4, "max_fetch_iterations": 3, "alpha": 0.2}
        together = rows_of(store, NODE, range(60), **options)
        assert together[7] == rows_of(store, NODE, [7], **options)[0]
        assert together[::-1] == rows_of(store, NODE, range(59, -1, -1), **options)

    def test_too_many_nodes_are_an_error_that_names_the_seed(self, store_of):
        store = store_of(plain_graph([(9, 1), *((0, 1 + i) for i in range(5))], 10))
        with pytest.raises(
            SettingsError, match=r"the walk from node 0 reached more than max_nodes_touched=5 nodes; use a"
        ):
            rows_of(store, NODE, [9, 0], direction="out", max_nodes_touched=5)
        assert len(rows_of(store, NODE, [9, 0], direction="out", max_nodes_touched=6)[1]) == 6

    def test_too_many_rounds_are_an_error_that_names_a_seed(self, store_of):
        store = store_of(plain_graph([(0, 1), (1, 0), (2, 2)], 4))
        with pytest.raises(
            SettingsError, match=r"walks of 2 of 3 seeds did not end in max_rounds=4 .for example from node 0.;"
        ):
            rows_of(store, NODE, [3, 0, 2], max_rounds=4)

    def test_error_names_the_key_of_the_seed_not_its_id(self, store_of):
        store = store_of(plain_graph([(17, i) for i in range(10)], 18), num_parts=4)
        plan = plan_ppr(store, PPRSettings(direction="out", max_nodes_touched=3), NODE)
        with pytest.raises(SettingsError, match="the walk from node 17 reached"):
            PPRRunner(store, plan).run(starting(store.lookup(NODE, np.array([17]))))

    def test_every_neighbour_has_the_same_chance_to_be_in_a_list_that_is_cut_short(self, store_of):
        """A hub of 40 leaves pushes to 5: each leaf is expected in 250 of 2000 batches, within 5 sigma."""
        store = store_of(plain_graph([(0, 1 + i) for i in range(40)], 41))
        plan = plan_ppr(store, PPRSettings(direction="out", num_neighbors_per_hop=5), NODE)
        runner, counts = PPRRunner(store, plan), np.zeros(41, np.int64)
        for rng_seed in range(2000):
            found = runner.run(starting([0], rng_seed=rng_seed))
            counts[found.node_ids[NODE]] += 1
        deviation = np.abs(counts[1:] - 250).max() / np.sqrt(2000 * 5 / 40 * 35 / 40)
        assert counts[1:].sum() == 10_000
        assert deviation < 5, f"rng seeds 0..1999: {counts[1:].tolist()}"


class CountingStore(WatchedStore):
    """A store that records requested lists and degrees."""

    def __init__(self, store) -> None:
        super().__init__(store)
        self.asked, self.counted, self.num_trips = [], [], 0

    def submit_sample(self, requests):
        self.num_trips += 1
        self.asked += [int(i) for request in requests for i in request.ids]
        return super().submit_sample(requests)

    def degrees(self, edge_type, direction, ids):
        self.counted += ids.tolist()
        return super().degrees(edge_type, direction, ids)
