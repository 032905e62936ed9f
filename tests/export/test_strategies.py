"""Checks that each strategy of a spec draws the right edges with the right frequencies.

A hub with a dozen edges is the seed of thousands of trees, which draw independently; rng seeds are fixed. Bounds are
five standard deviations.
"""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from hopstream import graph_from_arrays
from hopstream.dataset.layout import open_dataset
from hopstream.export.plan import plan_of_spec
from hopstream.export.subgraphs import SubgraphMaker
from hopstream.preparation.write import write_parts
from hopstream.store.local import LocalStore
from hopstream.tfgnn.graph_schema import schema_message
from hopstream.tfgnn.sampling_spec import LATEST_K, RANDOM_UNIFORM, RANDOM_WEIGHTED, TOP_K
from hopstream.tfgnn.spec_builder import SamplingSpecBuilder

CITES = ("paper", "cites", "paper")
WEIGHTS = np.array([3, 0, 8, 1, 1, 0, 5, 2], np.float32)
TIMES = np.array([50, 20, 70, 10, 80, 60, 30, 40])
NUM_EDGES, NUM_TREES = len(WEIGHTS), 20_000
SIGMAS = 5


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Hub, paper 0, that cites the other papers; weights and times of edges are not in edge order."""
    edges = np.stack([np.zeros(NUM_EDGES, np.int64), 1 + np.arange(NUM_EDGES)])
    features = {CITES: {"weight": WEIGHTS, "time": TIMES, "number": np.arange(NUM_EDGES)}}
    graph = graph_from_arrays({CITES: edges}, num_nodes={"paper": 1 + NUM_EDGES}, edge_features=features)
    folder = tmp_path_factory.mktemp("hub") / "parts"
    write_parts(graph, folder, num_parts=2, method="random", direction="out", weight_attr="weight", time_attr="time")
    with LocalStore(open_dataset(folder)) as opened:
        yield opened


def drawn(store, strategy, size, rng_seed=5):
    """int64[num_trees, drawn], the numbers of the edges that each tree's hub drew, in their order."""
    step = SamplingSpecBuilder(schema_message(store.schema)).seed("paper").sample(size, "cites", strategy)
    maker = SubgraphMaker(store, plan_of_spec(step.build(), store.schema), {CITES: ("number",)})
    edges = maker.make(np.zeros(NUM_TREES, np.int64), rng_seed).edge_sets["cites"]
    assert len(set(edges.sizes.tolist())) == 1
    return edges.features["number"].flat.reshape(NUM_TREES, -1)


def check_shares(counts, wanted):
    """Check each count against its share of the trees, within five standard deviations."""
    wanted = np.array(wanted)
    bound = SIGMAS * np.sqrt(NUM_TREES * wanted * (1 - wanted))
    assert np.all(np.abs(counts - NUM_TREES * wanted) <= bound), (counts / NUM_TREES, wanted)


def weighted_shares(size):
    """The share of trees that draw each edge: all ways to draw some edges one after the other, by weight."""
    shares = np.zeros(NUM_EDGES)
    for chosen in permutations(np.flatnonzero(WEIGHTS).tolist(), size):
        left, chance = float(WEIGHTS.sum()), 1.0
        for edge in chosen:
            chance *= WEIGHTS[edge] / left
            left -= WEIGHTS[edge]
        shares[list(chosen)] += chance
    return shares


@pytest.mark.parametrize("size", [1, 3, 7])
def test_uniform_draws_each_edge_and_each_pair_equally_often(store, size):
    found = drawn(store, RANDOM_UNIFORM, size)
    assert found.shape == (NUM_TREES, size)
    is_drawn = np.zeros((NUM_TREES, NUM_EDGES), np.bool_)
    np.put_along_axis(is_drawn, found, True, axis=1)
    assert np.all(is_drawn.sum(axis=1) == size), "without replacement"
    check_shares(is_drawn.sum(axis=0), np.full(NUM_EDGES, size / NUM_EDGES))
    together = is_drawn.T.astype(np.int64) @ is_drawn.astype(np.int64)
    share = size * (size - 1) / (NUM_EDGES * (NUM_EDGES - 1))
    check_shares(together[np.triu_indices(NUM_EDGES, 1)], np.full(NUM_EDGES * (NUM_EDGES - 1) // 2, share))


@pytest.mark.parametrize("size", [1, 2, 4])
def test_weighted_draws_follow_weights_and_skip_zero_weights(store, size):
    found = drawn(store, RANDOM_WEIGHTED, size)
    assert found.shape == (NUM_TREES, size)
    counts = np.bincount(found.reshape(-1), minlength=NUM_EDGES)
    assert counts[WEIGHTS == 0].tolist() == [0, 0]
    check_shares(counts, weighted_shares(size))
    assert np.all(np.diff(np.sort(found, axis=1), axis=1) > 0), "without replacement"


def test_weighted_returns_all_weighted_edges_if_too_few(store):
    """The edges come in stored order, which is that of time."""
    assert np.unique(drawn(store, RANDOM_WEIGHTED, 8), axis=0).tolist() == [[3, 6, 7, 0, 2, 4]]


@pytest.mark.parametrize(("size", "wanted"), [(1, [2]), (3, [2, 6, 0]), (5, [2, 6, 0, 7, 3]), (8, [2, 6, 0, 7, 3, 4])])
def test_top_k_gives_the_heaviest_first_and_equal_weights_in_order(store, size, wanted):
    assert np.unique(drawn(store, TOP_K, size), axis=0).tolist() == [wanted]


@pytest.mark.parametrize(("size", "wanted"), [(1, {4}), (3, {4, 2, 5}), (8, set(range(8)))])
def test_latest_k_gives_the_most_recent(store, size, wanted):
    rows = np.unique(drawn(store, LATEST_K, size), axis=0)
    assert len(rows) == 1 and set(rows[0].tolist()) == wanted


def test_trees_draw_independently(store):
    """Neighbouring trees, and other rng seeds, draw the same edge as often as independent draws do."""
    found = drawn(store, RANDOM_UNIFORM, 1)[:, 0]
    for distance in (1, 2, 64):
        num_same = int(np.count_nonzero(found[distance:] == found[:-distance]))
        check_shares(np.array([num_same]), [1 / NUM_EDGES])
    other = drawn(store, RANDOM_UNIFORM, 1, rng_seed=6)[:, 0]
    check_shares(np.array([np.count_nonzero(found == other)]), [1 / NUM_EDGES])
