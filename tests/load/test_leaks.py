"""Checks that held-out links, and those that a batch predicts, stay out of its message edges."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from hopstream.errors import SettingsError
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.graph.splits import hold_out_links, split_links
from hopstream.load.layerwise import infer_layerwise
from hopstream.load.links import LinkNeighborLoader
from hopstream.load.loader import NeighborLoader, RandomNodeLoader
from hopstream.load.ppr import PPRLoader
from hopstream.preparation.write import write_parts
from hopstream.sample.negatives import NegativeSampling
from hopstream.sample.ppr_settings import PPRSettings
from hopstream.sample.walks import random_walks
from tests.load.link_graphs import FOLLOWS, RATED, RATES, make_rating_graph

WILL = ("user", "will_rate", "movie")
KNOWS, REV_KNOWS, WILL_KNOW = ("p", "knows", "p"), ("p", "rev_knows", "p"), ("p", "will_know", "p")
ALL = [-1, -1]


@pytest.fixture(scope="module")
def ratings(tmp_path_factory):
    """Ratings and their reverses ``rev_…``, held out as a new user would: without ``reverse``."""
    graph = make_rating_graph(np.random.default_rng(5))
    edges = {t: graph.edges[t] for t in (RATES, RATED, FOLLOWS)}
    graph = split_links(replace(graph, edges=edges, edge_splits={}), RATES, by="pair", val=0.2, test=0.2)
    return write(tmp_path_factory, hold_out_links(graph, supervision_type=WILL))


@pytest.fixture(scope="module")
def oddly_named(tmp_path_factory):
    """The same graph, but its reverse type has another name, and was declared once."""
    graph = make_rating_graph(np.random.default_rng(5))
    back = ("movie", "seen_by", "user")
    edges = {RATES: graph.edges[RATES], back: graph.edges[RATED]}
    graph = split_links(replace(graph, edges=edges, edge_splits={}), RATES, by="pair", val=0.2, test=0.2)
    return write(tmp_path_factory, hold_out_links(graph, RATES, WILL, reverse=back))


@pytest.fixture(scope="module", params=["a reverse type", "both ways in one type"])
def people(request, tmp_path_factory):
    """Links between nodes of one type, from the smaller key to the larger."""
    src, dst = np.sort(np.random.default_rng(3).integers(0, 60, (2, 300)), axis=0)
    both = EdgeTable(src_keys=np.append(src, dst), dst_keys=np.append(dst, src))
    edges = {KNOWS: both}
    if request.param == "a reverse type":
        edges = {
            KNOWS: EdgeTable(src_keys=src, dst_keys=dst),
            REV_KNOWS: EdgeTable(src_keys=dst, dst_keys=src),
        }
    graph = split_links(Graph(nodes={"p": NodeTable(num_nodes=60)}, edges=edges), KNOWS, by="pair", val=0.2, test=0.2)
    return write(tmp_path_factory, hold_out_links(graph, KNOWS, WILL_KNOW))


def write(tmp_path_factory, graph: Graph):
    folder = tmp_path_factory.mktemp("parts") / "held"
    write_parts(graph, folder, num_parts=2, method="hash", direction="both", links=list(graph.edges))
    return folder


def num_leaks(folder, links, num_neighbors, **options) -> int:
    """Number of links of batches that are edges, or reversed edges, of their subgraphs."""
    found = num_links = 0
    with LinkNeighborLoader(folder, num_neighbors, links, batch_size=16, **options) as loader:
        for batch in loader:
            src, _, dst = links[0]
            ends = batch[links[0]].edge_label_index.numpy()
            num_links += ends.shape[1]
            edges = set()
            for a, relation, b in batch.edge_types:
                if "edge_index" in batch[a, relation, b] and (a, b) in ((src, dst), (dst, src)):
                    pairs = batch[a, relation, b].edge_index.numpy()
                    edges |= set(zip(*pairs.tolist(), strict=True)) if (a, b) == (src, dst) else set()
                    edges |= set(zip(*pairs[::-1].tolist(), strict=True)) if (b, a) == (src, dst) else set()
            assert edges
            found += len(set(zip(*ends.tolist(), strict=True)) & edges)
    assert num_links
    return found


@pytest.mark.parametrize("num_neighbors", [ALL, {"default": ALL}, {RATES: ALL, RATED: ALL, "default": [0, 0]}])
@pytest.mark.parametrize("split", ["val", "test"])
def test_held_out_links_do_not_leak_for_any_fan_out(ratings, num_neighbors, split):
    assert num_leaks(ratings, (WILL, split), num_neighbors) == 0


def test_a_label_type_is_followed_if_named(ratings):
    """Check that ``num_leaks`` sees leaks."""
    assert num_leaks(ratings, (WILL, "test"), {"default": ALL, WILL: ALL}) > 0


def test_links_of_a_batch_are_left_out_of_their_original_type(ratings):
    assert num_leaks(ratings, (WILL, "train"), ALL) > 0
    assert num_leaks(ratings, (WILL, "train"), ALL, exclude_links="self") > 0  # the reverses stay
    assert num_leaks(ratings, (WILL, "train"), ALL, exclude_links=True) == 0
    assert num_leaks(ratings, (WILL, "train"), {"default": ALL, WILL: ALL}, exclude_links=True) == 0
    assert num_leaks(ratings, (RATES, None), ALL, exclude_links=True) == 0


def test_a_reverse_type_that_was_given_once_is_remembered(oddly_named):
    assert num_leaks(oddly_named, (WILL, "train"), ALL, exclude_links=True) == 0
    assert num_leaks(oddly_named, (RATES, None), ALL, exclude_links=True) == 0
    assert num_leaks(oddly_named, (WILL, "test"), ALL) == 0


@pytest.mark.parametrize("direction", ["in", "out"])
def test_links_between_nodes_of_one_type_do_not_leak(people, direction):
    for split in ("val", "test"):
        assert num_leaks(people, (WILL_KNOW, split), ALL, direction=direction) == 0
    assert num_leaks(people, (WILL_KNOW, "train"), ALL, direction=direction) > 0
    assert num_leaks(people, (WILL_KNOW, "train"), ALL, direction=direction, exclude_links=True) == 0
    assert num_leaks(people, (KNOWS, None), ALL, direction=direction, exclude_links=True) == 0


def test_a_link_back_is_separate_if_reverses_have_their_own_type(tmp_path_factory):
    ends = EdgeTable(src_keys=np.array([0, 1]), dst_keys=np.array([1, 0]))
    graph = Graph(nodes={"p": NodeTable(num_nodes=2)}, edges={KNOWS: ends, REV_KNOWS: ends})
    folder = write(
        tmp_path_factory, hold_out_links(split_links(graph, KNOWS, val=0, test=0), KNOWS, WILL_KNOW, splits=())
    )
    for links in ((WILL_KNOW, [[0], [1]]), (KNOWS, [[0], [1]])):
        with LinkNeighborLoader(folder, [-1], links, exclude_links=True) as loader:
            batch = next(iter(loader))
        assert batch["p"].n_id.tolist() == [0, 1]
        assert batch[KNOWS].edge_index.tolist() == [[1], [0]]
        assert batch[REV_KNOWS].edge_index.tolist() == [[0], [1]]


def test_subgraphs_of_other_kinds_do_not_leak(ratings):
    for kind in ("bidirectional", "induced"):
        assert num_leaks(ratings, (WILL, "test"), ALL, subgraph_type=kind) == 0
    counts = {"default": ALL, RATES: [0, 0]}
    assert num_leaks(ratings, (WILL, "train"), counts, subgraph_type="induced", exclude_links=RATED) > 0
    assert num_leaks(ratings, (WILL, "train"), counts, subgraph_type="induced", exclude_links=True) == 0


def test_loaders_of_nodes_do_not_follow_label_types(ratings):
    loaders = [
        NeighborLoader(ratings, ALL, "movie", batch_size=60),
        RandomNodeLoader(ratings, {"default": ALL}, "movie", num_batches=2, batch_size=30),
        PPRLoader(ratings, "movie", PPRSettings(direction="in", include_sampled_edges=True), batch_size=60),
    ]
    for loader in loaders:
        with loader:
            batch = next(iter(loader))
        assert batch[RATES].edge_index.shape[1]
        assert WILL not in batch.edge_types or not batch[WILL].edge_index.shape[1]


def test_layers_do_not_follow_label_types(ratings, tmp_path):
    followed = set()

    def layer(number, node_type, batch):
        followed.update(t for t in batch.edge_types if batch[t].edge_index.shape[1])
        return np.zeros((batch[node_type].batch_size, 1), np.float32)

    infer_layerwise(ratings, layer, tmp_path / "rows", num_layers=1, batch_size=64)
    assert {RATES, RATED} <= followed and WILL not in followed


def test_walks_follow_the_only_type_that_holds_no_labels(tmp_path_factory):
    src, dst = np.random.default_rng(3).integers(0, 60, (2, 300))
    graph = Graph(nodes={"p": NodeTable(num_nodes=60)}, edges={KNOWS: EdgeTable(src_keys=src, dst_keys=dst)})
    held = hold_out_links(split_links(graph, by="pair", val=0.4), supervision_type=WILL_KNOW)
    walks = random_walks(write(tmp_path_factory, held), None, walk_length=4)
    edges = held.edges[KNOWS]
    known = set(zip(edges.src_keys.tolist(), edges.dst_keys.tolist(), strict=True))
    steps = {(a, b) for walk in walks.tolist() for a, b in pairwise(walk) if b >= 0}
    assert steps and steps <= known
    with pytest.raises(SettingsError, match="say which to follow"):
        random_walks(write(tmp_path_factory, replace(held, label_types={})), None, walk_length=4)


@pytest.mark.parametrize("edge_type", [RATES, WILL])
@pytest.mark.parametrize("mode", ["binary", "triplet"])
def test_strict_negatives_are_neither_left_nor_held_out_links(ratings, edge_type, mode):
    """Half of the links stay in the graph; these and the links of all splits count as links of both types."""
    graph = make_rating_graph(np.random.default_rng(5))
    links = set(zip(graph.edges[RATES].src_keys.tolist(), graph.edges[RATES].dst_keys.tolist(), strict=True))
    num_negatives = 0
    with LinkNeighborLoader(
        ratings, [0], edge_type, 16, neg_sampling=NegativeSampling(mode, 2, strict=True), collate="numpy"
    ) as loader:
        for batch in loader:
            users, movies = batch.node_keys["user"], batch.node_keys["movie"]
            if mode == "binary":
                src, dst = batch.attributes[edge_type]["edge_label_index"][:, batch.batch_size :]
            else:
                found = batch.attributes["movie"]["dst_neg_index"]
                src, dst = np.repeat(batch.attributes["user"]["src_index"], 2), found.reshape(-1)
            pairs = set(zip(users[src].tolist(), movies[dst].tolist(), strict=True))
            num_negatives += len(pairs)
            assert not pairs & links
    assert num_negatives > 100
