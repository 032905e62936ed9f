"""Checks that walks and choices equal the plain answer, bit by bit, for long lists and any limits."""

from __future__ import annotations

import numpy as np
import pytest

from hopstream.dataset.layout import open_dataset
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.kernels.ppr import FIRST_CAPACITY
from hopstream.preparation.write import write_parts
from hopstream.sample.plan import SeedNodes
from hopstream.sample.ppr import PPRRunner
from hopstream.sample.ppr_settings import PPRSettings, plan_ppr
from hopstream.schema import EDGE, NODE
from hopstream.store.local import LocalStore
from tests.conftest import make_typed_graph
from tests.naive_ppr import NaivePPR

CITES, WRITES = ("paper", "cites", "paper"), ("author", "writes", "paper")
BOTH = (CITES, WRITES)
PLAIN = [
    {},
    {"alpha": 0.15, "eps": 1e-6},
    {"eps": 0.05, "enable_residual_topup": False},
    {"eps": 0.05},
    {"num_neighbors_per_hop": 3, "eps": 1e-3},
    {"max_fetch_iterations": 2, "alpha": 0.2},
    {"max_ppr_nodes": 7, "direction": "out", "alpha": 0.3},
    {"eps": 5.0},
]
TYPED = [
    {},
    {"limit_per_type": True, "max_ppr_nodes": 4},
    {"edge_types": [CITES]},
    {"typed_channel_ratios": {CITES: 0.5, WRITES: 0.5}, "max_ppr_nodes": 9},
    {"typed_channel_ratios": {WRITES: 0.9, BOTH: 0.1}, "max_ppr_nodes": 9, "eps": 0.02},
    {
        "typed_channel_ratios": {BOTH: 0.3, CITES: 0.3, WRITES: 0.4},
        "limit_per_type": True,
        "max_ppr_nodes": 3,
        "enable_residual_topup": False,
        "num_neighbors_per_hop": 2,
    },
]


def plain_graph(rng: np.random.Generator, num_nodes: int = 150, num_edges: int = 600) -> Graph:
    """A few nodes have most edges; the last ones have none; some edges are parallel and some are loops."""
    src, dst = (rng.random((2, num_edges)) ** 2 * (num_nodes - 5)).astype(np.int64)
    table = EdgeTable(src_keys=np.append(src, [3, 3, 3]), dst_keys=np.append(dst, [3, 4, 4]))
    return Graph(nodes={NODE: NodeTable(num_nodes=num_nodes)}, edges={EDGE: table}).check()


def check_against_the_plain_answer(graph, folder, seeds, settings, rng_seed):
    """Compare rows of seeds, which are node type to keys; with one part ids are keys."""
    write_parts(graph, folder, num_parts=1, direction="both")
    with LocalStore(open_dataset(folder)) as store:
        runner = PPRRunner(store, plan_ppr(store, settings, *seeds))
        # The state that a batch leaves behind must not matter.
        runner.run(SeedNodes(ids={seed_type: np.arange(3) for seed_type in seeds}, rng_seed=0))
        found = runner.run(SeedNodes(ids={t: np.array(keys) for t, keys in seeds.items()}, rng_seed=rng_seed))
    naive = NaivePPR(graph, settings, rng_seed)
    for seed_type, seed_keys in seeds.items():
        assert found.node_ids[seed_type][: len(seed_keys)].tolist() == seed_keys
        own_types = [own_type for own_type in found.edge_index if own_type[0] == seed_type]
        for place, seed_key in enumerate(seed_keys):
            wanted = naive.neighborhood((seed_type, seed_key))
            for own_type in own_types:
                is_of_seed = found.edge_index[own_type][0] == place
                keys = found.node_ids[own_type[2]][found.edge_index[own_type][1, is_of_seed]]
                of_type = [row for row in wanted if row.node[0] == own_type[2]]
                assert keys.tolist() == [row.node[1] for row in of_type]
                assert found.edge_attr[own_type][is_of_seed].tolist() == [row.attributes for row in of_type]
            assert {row.node[0] for row in wanted} <= {own_type[2] for own_type in own_types}


@pytest.mark.parametrize("options", PLAIN, ids=str)
def test_plain_walks_equal_the_plain_answer(rng, tmp_path, options):
    graph = plain_graph(rng)
    check_against_the_plain_answer(graph, tmp_path, {NODE: [3, 0, 149, 80]}, PPRSettings(**options), 12345)


@pytest.mark.parametrize("options", TYPED, ids=str)
@pytest.mark.parametrize("direction", ["in", "out"])
def test_typed_walks_equal_the_plain_answer(rng, tmp_path, options, direction):
    graph = make_typed_graph(rng)
    seeds = {"paper": [3, 0, 24]} if direction == "in" else {"author": [3, 0, 24], "paper": [7, 3]}
    settings = PPRSettings(direction=direction, **options)
    check_against_the_plain_answer(graph, tmp_path, seeds, settings, 54321)


def test_a_walk_that_outgrows_its_segment_keeps_everything(tmp_path):
    """Star of chains: the first push finds more neighbours than fit in a segment, later ones add to it."""
    width = 3 * FIRST_CAPACITY
    hub, inner = np.zeros(width, np.int64), np.arange(1, width + 1)
    src, dst = np.concatenate([hub, inner]), np.concatenate([inner, inner + width])
    graph = Graph(
        nodes={NODE: NodeTable(num_nodes=2 * width + 1)}, edges={EDGE: EdgeTable(src_keys=src, dst_keys=dst)}
    ).check()
    settings = PPRSettings(direction="out", max_ppr_nodes=5 * width, num_neighbors_per_hop=-1)
    check_against_the_plain_answer(graph, tmp_path, {NODE: [0, 5]}, settings, 1)


def test_a_shorter_path_found_late_updates_later_nodes(tmp_path):
    """Node 1 is one hop away but waits for its many edges; the chain 2, 3, 4 reaches node 5 before it."""
    links = [(0, 1), (0, 2), (2, 3), (3, 4), (4, 5), (1, 5), (5, 6), (6, 7)]
    links += [(1, 10 + i) for i in range(40)]
    links += [(i, 1) for i in (2, 3, 4, 5)]  # bring node 1 over its threshold after node 5 was pushed
    src, dst = np.array(links).T
    graph = Graph(nodes={NODE: NodeTable(num_nodes=50)}, edges={EDGE: EdgeTable(src_keys=src, dst_keys=dst)}).check()
    settings = PPRSettings(direction="out", alpha=0.05, eps=0.0212, max_ppr_nodes=100)
    check_against_the_plain_answer(graph, tmp_path, {NODE: [0]}, settings, 1)
