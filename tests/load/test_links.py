"""Tests of batches of links: their contents in every mode, and refused settings."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch_geometric.sampler import EdgeSamplerInput, SamplerOutput
from torch_geometric.sampler import NegativeSampling as PygNegativeSampling
from torch_geometric.sampler.neighbor_sampler import edge_sample

from hopstream.errors import IdRangeError, SettingsError, StateError, UnknownNameError
from hopstream.load.link_inputs import LinkInputs
from hopstream.load.links import LinkNeighborLoader, raise_labels
from hopstream.load.rank_splits import rank_links
from hopstream.sample.negatives import NegativeSampling
from hopstream.schema import EDGE
from tests.load.contract import BatchesContract
from tests.load.graphs import flat, local_store, make_plain_graph
from tests.load.link_graphs import FOLLOWS, LIKES, RATED, RATES, make_rating_graph, make_small_graph

PAIRS = np.array([[0, 2, 0], [1, 3, 3]])
TIMED = {"time_attr": "time"}


@pytest.fixture(scope="module", params=[1, 3], ids=["1 part", "3 parts"])
def small(request, tmp_path_factory):
    """0 → 1, 2 → 1, 3 → 0, 4 → 3, 5 → 2, 1 → 0."""
    with local_store(make_small_graph(), tmp_path_factory.mktemp("small") / "parts", request.param) as store:
        yield store


@pytest.fixture(scope="module")
def rating_graph():
    return make_rating_graph(np.random.default_rng(4))


@pytest.fixture(scope="module")
def ratings(rating_graph, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ratings") / "parts"
    with local_store(rating_graph, folder, 3, time_attr="time", direction="both") as store:
        yield store


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    graph = make_plain_graph(np.random.default_rng(6))
    with local_store(graph, tmp_path_factory.mktemp("plain") / "parts", 4) as store:
        yield store


def first_batch(store, links=PAIRS, num_neighbors=(-1,), batch_size=3, **options):
    with LinkNeighborLoader(store, list(num_neighbors), links, batch_size, num_threads=0, **options) as loader:
        return next(iter(loader))


def edges_of(batch):
    """Pairs of keys."""
    return [tuple(pair) for pair in batch.n_id[batch.edge_index].T.tolist()]


def pairs_of(batch):
    """The links of a batch as pairs of keys."""
    return [tuple(pair) for pair in batch.n_id[batch.edge_label_index].T.tolist()]


# Content of a batch


def test_links_without_negatives_start_from_their_ends(small):
    """The ends come first, sources before destinations, each node once."""
    batch = first_batch(small)
    assert batch.n_id.tolist() == [0, 2, 1, 3, 5, 4]
    assert batch.edge_label_index.tolist() == [[0, 1, 0], [2, 3, 3]]
    assert pairs_of(batch) == [(0, 1), (2, 3), (0, 3)]
    assert edges_of(batch) == [(3, 0), (1, 0), (5, 2), (0, 1), (2, 1), (4, 3)]
    assert batch.input_id.tolist() == [0, 1, 2]
    assert (batch.batch_size, batch.num_sampled_nodes, batch.num_sampled_edges) == (3, [4, 2], [6])
    for absent in ("edge_label", "edge_label_time", "batch", "seed_time"):
        assert absent not in batch


def test_labels_of_links_alone_are_as_they_were_given(small):
    batch = first_batch(small, edge_label=np.array([0, 5, 7], np.int16), shuffle=True)
    assert batch.edge_label.dtype == torch.int16
    assert batch.edge_label.tolist() == np.array([0, 5, 7])[batch.input_id].tolist()
    assert pairs_of(batch) == [tuple(PAIRS[:, i].tolist()) for i in batch.input_id.tolist()]


def test_binary_negatives_follow_the_positives(small):
    batch = first_batch(small, neg_sampling_ratio=1.5)
    assert pairs_of(batch)[:3] == [(0, 1), (2, 3), (0, 3)]
    assert pairs_of(batch)[3:] == [(4, 2), (2, 5), (5, 4), (5, 2), (3, 0)]
    assert batch.edge_label.equal(torch.tensor([1.0, 1, 1, 0, 0, 0, 0, 0]))
    assert batch.n_id[: batch.num_sampled_nodes[0]].tolist() == [0, 2, 4, 5, 3, 1]
    assert batch.edge_label_index.shape == (2, 8)
    assert batch.batch_size == 3


@pytest.mark.parametrize(
    ("labels", "wanted"),
    [
        (np.array([0, 1, 2]), [1, 2, 3]),
        (np.array([1, 2, 3]), [1, 2, 3]),
        (np.array([True, False, True]), [2, 1, 2]),
        (np.array([0.5, 2.0, 1.0], np.float32), [0.5, 2.0, 1.0]),
        (np.array([-1, 1, -2]), [-1, 1, -2]),
    ],
)
def test_label_0_is_reserved_for_negatives(small, labels, wanted):
    batch = first_batch(small, edge_label=torch.from_numpy(labels), neg_sampling="binary")
    assert batch.edge_label.tolist() == [*wanted, 0, 0, 0]
    assert batch.edge_label.dtype == torch.from_numpy(labels).dtype or labels.dtype == np.bool_


def test_label_offsets_depend_on_all_labels_not_on_the_batch(small):
    """The second batch has one link and no label 0, and is raised as the first."""
    with LinkNeighborLoader(small, [1], PAIRS, 1, edge_label=[0, 1, 1], neg_sampling_ratio=1, num_threads=0) as loader:
        assert [batch.edge_label.tolist() for batch in loader] == [[1, 0], [2, 0], [2, 0]]


def test_labels_may_have_several_columns(small):
    labels = np.arange(6, dtype=np.int32).reshape(3, 2)
    batch = first_batch(small, edge_label=labels, neg_sampling={"mode": "binary", "amount": 0.4})
    assert batch.edge_label.tolist() == [[1, 2], [3, 4], [5, 6], [0, 0], [0, 0]]


def test_triplets_have_indices_of_sources_positives_and_negatives(small):
    batch = first_batch(small, neg_sampling="triplet")
    assert batch.n_id[batch.src_index].tolist() == [0, 2, 0]
    assert batch.n_id[batch.dst_pos_index].tolist() == [1, 3, 3]
    assert batch.n_id[batch.dst_neg_index].tolist() == [2, 5, 4]
    assert "edge_label_index" not in batch
    assert "edge_label" not in batch


def test_triplets_of_several_negatives_have_a_row_per_positive(small):
    batch = first_batch(small, neg_sampling=NegativeSampling("triplet", 2))
    assert batch.n_id[batch.dst_neg_index].tolist() == [[2, 2], [5, 0], [4, 0]]


def test_in_batch_triplets_use_destinations_of_other_links(small):
    links = [[0, 2, 0, 5], [1, 3, 4, 2]]
    batch = first_batch(small, links, batch_size=4, neg_sampling=NegativeSampling("triplet", 3, in_batch=True))
    negatives = batch.n_id[batch.dst_neg_index].tolist()
    assert [sorted(row) for row in negatives] == [[2, 3, 4], [1, 2, 4], [1, 2, 3], [1, 3, 4]]
    assert batch.num_sampled_nodes[0] == 6


def test_strict_triplets_are_not_edges(small):
    """0 and 2 lead to 1, 3 and 1 lead to 0, 4 to 3, 5 to 2; and the batch has 0 → 3 and 5 → 0."""
    how = NegativeSampling("triplet", 50, strict=True)
    batch = first_batch(small, [[0, 5], [3, 0]], neg_sampling=how)
    negatives = batch.n_id[batch.dst_neg_index]
    assert sorted(set(negatives[0].tolist())) == [0, 2, 4, 5]
    assert sorted(set(negatives[1].tolist())) == [1, 3, 4, 5]


def test_negatives_follow_their_weights(small):
    how = PygNegativeSampling(
        "binary", 4, src_weight=torch.tensor([0, 0, 1.0, 0, 0, 0]), dst_weight=[0, 3, 0, 0, 0, 0.0]
    )
    assert set(pairs_of(first_batch(small, neg_sampling=how))[3:]) == {(2, 1)}


def test_every_end_grows_a_tree_of_its_own(small):
    """Trees of both ends of a link, and of its negatives, have the link's number."""
    batch = first_batch(small, disjoint=True)
    assert batch.edge_label_index.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert batch.n_id[:6].tolist() == [0, 2, 0, 1, 3, 3]
    assert batch.batch[:6].tolist() == [0, 1, 2, 0, 1, 2]
    assert edges_of(batch) == [(3, 0), (1, 0), (5, 2), (3, 0), (1, 0), (0, 1), (2, 1), (4, 3), (4, 3)]
    assert batch.batch.tolist() == [0, 1, 2, 0, 1, 2, 0, 0, 1, 2, 2, 0, 0, 1, 2]


@pytest.mark.parametrize("amount", [0.4, 1, 1.5, 3])
def test_trees_of_negatives_have_the_number_of_their_link(small, amount):
    batch = first_batch(small, disjoint=True, neg_sampling_ratio=amount)
    num_negatives = math.ceil(3 * amount)
    numbers = batch.batch[batch.edge_label_index]
    assert numbers[0].tolist() == numbers[1].tolist() == [k % 3 for k in [0, 1, 2, *range(num_negatives)]]


def test_trees_of_triplets_have_the_number_of_their_link(small):
    batch = first_batch(small, disjoint=True, neg_sampling=NegativeSampling("triplet", 2))
    assert batch.batch[batch.src_index].tolist() == batch.batch[batch.dst_pos_index].tolist() == [0, 1, 2]
    assert batch.batch[batch.dst_neg_index].tolist() == [[0, 0], [1, 1], [2, 2]]


def test_all_edges_and_splits_are_links(small):
    graph = make_small_graph()
    table = graph.edges[EDGE]
    batch = first_batch(small, None, batch_size=6, shuffle=True)
    pairs = list(zip(table.src_keys.tolist(), table.dst_keys.tolist(), strict=True))
    assert sorted(batch.input_id.tolist()) == list(range(6))
    assert pairs_of(batch) == [pairs[i] for i in batch.input_id.tolist()]
    batch = first_batch(small, "test")
    assert (pairs_of(batch), batch.input_id.tolist()) == ([(0, 1), (4, 3)], [0, 1])


# Links that are left out


def test_links_of_the_batch_can_be_left_out(small):
    """Where 0 → 1 is the link, 1 has only 2 left; where 1 → 0 is its reverse, 0 has only 3."""
    links = [[0], [1]]
    assert edges_of(first_batch(small, links)) == [(3, 0), (1, 0), (0, 1), (2, 1)]
    assert edges_of(first_batch(small, links, exclude_links="self")) == [(3, 0), (1, 0), (2, 1)]
    assert edges_of(first_batch(small, links, exclude_links=True)) == [(3, 0), (2, 1)]
    assert edges_of(first_batch(small, links, exclude_links=EDGE)) == [(3, 0), (2, 1)]
    assert edges_of(first_batch(small, links, exclude_links=["node__to__node"])) == [(3, 0), (2, 1)]


def test_other_edges_are_drawn_in_place_of_excluded_links(small):
    for rng_seed in range(10):
        batch = first_batch(small, [[0], [1]], [1], exclude_links=True, rng_seed=rng_seed)
        assert edges_of(batch) == [(3, 0), (2, 1)]


@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("direction", ["in", "out"])
def test_no_link_of_a_batch_is_in_its_subgraph(ratings, rating_graph, direction, disjoint):
    options = {"direction": direction, "disjoint": disjoint, "exclude_links": RATED, "neg_sampling_ratio": 1}
    table = rating_graph.edges[RATES]
    all_pairs = np.stack([table.src_keys, table.dst_keys])
    with LinkNeighborLoader(ratings, [4, 4], (RATES, "train"), 10, **options) as loader:
        for batch in loader:
            is_positive = batch[RATES].edge_label == 1
            users, movies = batch["user"].n_id, batch["movie"].n_id
            src, dst = batch[RATES].edge_label_index[:, is_positive]
            links = set(zip(users[src].tolist(), movies[dst].tolist(), strict=True))
            assert len(is_positive) == 2 * is_positive.sum() == 2 * len(batch[RATES].input_id)
            for edge_type, (src_type, dst_type) in ((RATES, (users, movies)), (RATED, (movies, users))):
                src, dst = batch[edge_type].edge_index
                pairs = list(zip(src_type[src].tolist(), dst_type[dst].tolist(), strict=True))
                assert not links & {pair if edge_type == RATES else pair[::-1] for pair in pairs}
            keys = rating_graph.edge_splits[RATES]["train"][batch[RATES].input_id.numpy()]
            assert links == set(map(tuple, all_pairs[:, keys].T.tolist()))


def test_reverses_are_known_by_name_or_declared(ratings, rating_graph):
    """``rev_rates`` is known as the reverse of ``rates``; the reverse of ``likes`` must be declared."""
    excluded = []
    for links, options in [
        ((RATES, [[1], [2]]), {"exclude_links": True}),
        ((RATES, [[1], [2]]), {"exclude_links": "self"}),
        ((RATES, [[1], [2]]), {"exclude_links": "movie__rev_rates__user"}),
        ((RATES, [[1], [2]]), {}),
        ((LIKES, [[1], [2]]), {"exclude_links": True}),
        ((LIKES, [[1], [2]]), {"exclude_links": [RATED]}),
        ((LIKES, [[1], [2]]), {"exclude_links": ["user__rates__movie", RATED]}),
    ]:
        with LinkNeighborLoader(ratings, [1], links, **options) as loader:
            excluded.append(loader.facts()["exclude_links"])
    rates, rated, likes = "user__rates__movie", "movie__rev_rates__user", "user__likes__movie"
    assert excluded == [
        {rates: "links", rated: "reverses"},
        {rates: "links"},
        {rates: "links", rated: "reverses"},
        {},
        {likes: "links"},
        {likes: "links", rated: "reverses"},
        {likes: "links", rates: "links", rated: "reverses"},
    ]


def test_facts_name_excluded_links_and_their_directions(small):
    excluded = []
    for given in (False, "self", True, EDGE):
        with LinkNeighborLoader(small, [1], PAIRS, exclude_links=given) as loader:
            excluded.append(loader.facts()["exclude_links"])
    assert excluded == [{}, {"node__to__node": "links"}, {"node__to__node": "both"}, {"node__to__node": "both"}]


def test_links_may_be_left_out_of_another_type(ratings, rating_graph):
    """Links of one type are edges of another, as if predicted links had a type of their own."""
    table = rating_graph.edges[RATES]
    links = (LIKES, np.stack([table.src_keys, table.dst_keys]))
    num_edges = []
    for exclude in (True, [RATES], [RATES, RATED]):
        batch = first_batch(ratings, links, [-1], 320, exclude_links=exclude)
        num_edges.append([batch[t].num_edges for t in (RATES, RATED)])
    assert num_edges == [[320, 320], [0, 320], [0, 0]]


# Types


def test_link_attributes_are_on_their_edge_types(ratings, rating_graph):
    batch = first_batch(ratings, (RATES, "val"), [2, 1], 5, neg_sampling_ratio=2)
    keys = rating_graph.edge_splits[RATES]["val"][:5]
    table = rating_graph.edges[RATES]
    src, dst = batch[RATES].edge_label_index
    assert batch["user"].n_id[src[:5]].tolist() == table.src_keys[keys].tolist()
    assert batch["movie"].n_id[dst[:5]].tolist() == table.dst_keys[keys].tolist()
    assert batch[RATES].edge_label.tolist() == [1.0] * 5 + [0.0] * 10
    assert batch[RATES].input_id.tolist() == list(range(5))
    assert batch[RATES].batch_size == 5
    num_ends = [batch[t].num_sampled_nodes[0] for t in ("user", "movie")]
    assert num_ends == [len(set(src.tolist())), len(set(dst.tolist()))] == [src.max() + 1, dst.max() + 1]


def test_triplets_are_on_the_types_of_their_ends(ratings):
    batch = first_batch(ratings, (RATES, "val"), [2, 1], 5, neg_sampling=NegativeSampling("triplet", 3))
    assert batch["user"].src_index.shape == batch["movie"].dst_pos_index.shape == (5,)
    assert batch["movie"].dst_neg_index.shape == (5, 3)
    assert "src_index" not in batch["movie"]
    assert "edge_label_index" not in batch[RATES]
    assert batch[RATES].input_id.tolist() == list(range(5))


def test_negatives_come_from_the_whole_graph_over_all_parts(ratings):
    """Draws do not depend on the parts of nodes, and reach all nodes."""
    how = NegativeSampling("triplet", 200)
    batch = first_batch(ratings, (LIKES, [[0, 1], [0, 1]]), [1], 2, neg_sampling=how)
    assert set(batch["movie"].n_id[batch["movie"].dst_neg_index].flatten().tolist()) == set(range(60))


# Time


def test_neighbourhoods_of_links_are_of_their_time(ratings, rating_graph):
    options = {**TIMED, "neg_sampling_ratio": 2, "exclude_links": True}
    with LinkNeighborLoader(ratings, [5, 5], (RATES, "val"), 20, **options) as loader:
        for batch in loader:
            times = batch[RATES].edge_label_time
            num_links = batch[RATES].batch_size
            table = rating_graph.edges[RATES]
            keys = rating_graph.edge_splits[RATES]["val"][batch[RATES].input_id.numpy()]
            assert times[:num_links].tolist() == table.features["time"][keys].tolist()
            assert times.reshape(3, -1).unique(dim=0).shape[0] == 1
            for edge_type in (RATES, RATED):
                src, _ = batch[edge_type].edge_index
                assert (batch[edge_type].time <= times[batch[edge_type[0]].batch[src]]).all()
            src, dst = batch[RATES].edge_label_index
            assert (batch["user"].batch[src] == batch["movie"].batch[dst]).all()
            assert (batch["movie"].time[dst] <= times).all()


def test_links_at_the_same_moment_can_be_left_out(ratings):
    with LinkNeighborLoader(ratings, [-1], (RATES, "val"), 20, **TIMED, time_inclusive=False) as loader:
        for batch in loader:
            times = batch[RATES].edge_label_time
            for edge_type in (RATES, RATED):
                src, _ = batch[edge_type].edge_index
                assert (batch[edge_type].time < times[batch[edge_type[0]].batch[src]]).all()


def test_triplets_of_a_time(ratings):
    links = (LIKES, [[0, 1], [0, 1]])
    how = NegativeSampling("triplet", 2)
    batch = first_batch(ratings, links, [3], 2, edge_label_time=[900, 400], neg_sampling=how, **TIMED)
    assert batch["user"].seed_time.tolist() == batch["movie"].seed_time.tolist() == [900, 400]
    assert (batch["movie"].time[batch["movie"].dst_neg_index] <= torch.tensor([[900], [400]])).all()
    assert "edge_label_time" not in batch[LIKES]


def test_links_of_a_rank_have_their_times(ratings):
    links = rank_links(ratings, (RATES, "val"), rank=1, world_size=3)
    batch = first_batch(ratings, (RATES, links), [2], len(links.times), **TIMED)
    assert batch[RATES].edge_label_time.tolist() == links.times.tolist()
    assert "edge_label_time" not in first_batch(ratings, (RATES, links), [2], 3)[RATES]


# PyG's own rules


@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("mode", [None, ("binary", 1), ("binary", 2), ("binary", 0.5), ("triplet", 1), ("triplet", 3)])
def test_shapes_and_labels_are_those_of_pyg(small, mode, disjoint):
    """Compare with PyG's own function, with a sampler that finds no neighbours."""
    links = torch.tensor([[0, 2, 0, 4], [1, 3, 3, 4]])
    how = None if mode is None else PygNegativeSampling(*mode)

    def no_neighbors(seeds, times):
        trees = torch.arange(len(seeds)) if disjoint else None
        return SamplerOutput(node=seeds, row=seeds[:0], col=seeds[:0], edge=None, batch=trees)

    wanted = edge_sample(
        EdgeSamplerInput(torch.arange(4), links[0], links[1]), no_neighbors, 6, disjoint, neg_sampling=how
    )
    batch = first_batch(small, links, [0], 4, neg_sampling=how, disjoint=disjoint)
    if mode is not None and mode[0] == "triplet":
        ours = [batch.input_id, batch.src_index, batch.dst_pos_index, batch.dst_neg_index]
    else:
        ours = [batch.input_id, batch.edge_label_index, batch.get("edge_label")]
    for mine, theirs in zip(ours, wanted.metadata, strict=False):
        if theirs is None:
            assert mine is None
        else:
            assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
    if mode is not None and mode[0] == "binary":
        assert batch.edge_label.equal(wanted.metadata[2])
    if disjoint:
        assert torch.equal(batch.batch, wanted.batch) or mode == ("binary", 0.5)
        is_triplet = mode is not None and mode[0] == "triplet"
        for place in (1, 2, 3) if is_triplet else (1,):
            assert ours[place].equal(wanted.metadata[place])


# Settings


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"neg_sampling": "binary", "neg_sampling_ratio": 1}, SettingsError, "both given"),
        ({"neg_sampling": "triplet", "edge_label": [1, 2, 3]}, SettingsError, "triplets have no labels"),
        (
            {"neg_sampling_ratio": 1, "edge_label": [0.0, 1.0, 2.0]},
            SettingsError,
            "edge_label contains 0, .* and float labels",
        ),
        ({"neg_sampling_ratio": 1, "edge_label": [0, 1, -2]}, SettingsError, "edge_label contains 0, .* below 0"),
        (
            {"neg_sampling_ratio": 1, "edge_label": np.array([0, 1, 255], np.uint8)},
            SettingsError,
            "edge_label goes up to 255, so it cannot be incremented by 1 in uint8",
        ),
        ({"edge_label": [1, 2]}, SettingsError, r"edge_label is int64\[2\]"),
        ({"edge_label_time": [1, 2, 3]}, SettingsError, "edge_label_time needs time_attr="),
        ({"time_attr": "time"}, UnknownNameError, "time_attr is 'time'; no node type and no edge type has"),
        (
            {"exclude_links": "node"},
            UnknownNameError,
            "exclude_links is 'node'; give True, False, 'self' or edge types",
        ),
        ({"exclude_links": 3}, UnknownNameError, "exclude_links is 3; give True"),
        ({"exclude_links": []}, SettingsError, r"exclude_links is \[\]; name edge types, or give True"),
        ({"exclude_links": ("a", "b", "c")}, UnknownNameError, r"unknown edge type \('a', 'b', 'c'\)"),
        ({"edge_label_index": [[7], [0]]}, IdRangeError, r"edge_label_index\[0, 0\] is 7"),
        ({"neg_sampling": {"dst_weight": [1.0]}}, SettingsError, "dst_weight has 1 entries; node type 'node' has 6"),
        ({"batch_size": 1 << 22, "disjoint": True, "neg_sampling_ratio": 3}, SettingsError, "trees; at most 8388608"),
        ({"direction": "out"}, SettingsError, "direction is 'out'; the dataset holds in"),
        ({"seeds": [1]}, SettingsError, "seeds= is no option of LinkNeighborLoader: links are given as edge_label_in"),
        ({"input_time": [1]}, SettingsError, "the times of links are given as edge_label_time="),
        ({"neg_edge_label_index": PAIRS}, SettingsError, "neg_edge_label_index= is no option .* negatives are drawn"),
        ({"batch_sampler": 2}, SettingsError, "links are chosen with edge_label_index="),
    ],
)
def test_invalid_settings_are_refused(small, options, error, message):
    options = {"edge_label_index": PAIRS, **options}
    with pytest.raises(error, match=message):
        LinkNeighborLoader(small, [1], **options)


@pytest.mark.parametrize(
    ("links", "options", "message"),
    [
        ((LIKES, [[1], [2]]), TIMED, "links given as keys have none; give edge_label_time="),
        ((RATES, [[1], [2]]), TIMED, "links given as keys have none"),
        (
            (RATES, "val"),
            {"exclude_links": FOLLOWS},
            "names user__follows__user, which does not connect 'user' and 'movie'",
        ),
        ((RATES, "val"), {"temporal_strategy": "last"}, "needs time_attr="),
    ],
)
def test_invalid_settings_for_types_are_refused(ratings, links, options, message):
    with pytest.raises(SettingsError, match=message):
        LinkNeighborLoader(ratings, [1], links, **options)


def test_stored_links_without_times_need_them(tmp_path, rating_graph):
    with (
        local_store(rating_graph, tmp_path / "parts", time_attr="time", links=[LIKES]) as store,
        pytest.raises(SettingsError, match="edges of user__likes__movie have no 'time'; give edge_label_time="),
    ):
        LinkNeighborLoader(store, [1], LIKES, **TIMED)


def test_too_few_strict_negatives_are_an_error(small):
    """0 → 1 is an edge, and no other destination has weight."""
    how = NegativeSampling("triplet", 2, dst_weight=[0, 1, 0, 0, 0, 0], strict=True)
    with pytest.raises(SettingsError, match="2 of 2 strict negatives of node__to__node") as raised:
        first_batch(small, [[0], [3]], neg_sampling=how)
    assert any("drawing negatives" in note for note in raised.value.__notes__)


def test_raised_labels_are_new():
    labels = np.array([0, 1])
    assert raise_labels(labels).tolist() == [1, 2]
    assert labels.tolist() == [0, 1]


def test_inputs_read_only_the_requested_links():
    """A loader of all edges asks for the ends of its batch's links alone."""
    asked = []

    def links(edge_type, keys):
        asked.append(keys.tolist())
        return SimpleNamespace()

    inputs = LinkInputs(edge_type=EDGE, num_links=1 << 40, name="all")
    inputs.links_at(SimpleNamespace(links=links), np.array([5, 1 << 39]))
    assert asked == [[5, 1 << 39]]


# Epochs, threads, saved states


class TestLinkLoader(BatchesContract):
    @pytest.fixture
    def new_loader(self, plain):
        links = np.random.default_rng(2).integers(0, 80, (2, 60))

        def new(**settings):
            more = {"num_threads": 4, "neg_sampling_ratio": 1.5, **settings}
            return LinkNeighborLoader(
                plain, [3, 2], links, **{"batch_size": 7, "collate": "numpy", "shuffle": True, **more}
            )

        return new


class TestTimedLinkLoader(BatchesContract):
    @pytest.fixture
    def new_loader(self, ratings):
        def new(**settings):
            more = {"num_threads": 2, "exclude_links": True, **settings}
            settings = {"batch_size": 9, "collate": "numpy", "shuffle": True, **more}
            how = NegativeSampling("triplet", 2, strict=True)
            return LinkNeighborLoader(ratings, [3, 2], (RATES, "val"), neg_sampling=how, **TIMED, **settings)

        return new


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"edge_label": [1, 2, 4]}, "over other edge_label="),
        ({"edge_label_index": PAIRS[:, ::-1]}, r"over other links \(edge_label_index=\)"),
        ({"neg_sampling": {"amount": 2}}, "neg_sampling"),
        ({"neg_sampling": {"strict": True}}, "neg_sampling"),
        ({"neg_sampling": None}, "neg_sampling"),
        ({"exclude_links": True}, "exclude_links"),
        ({"disjoint": True}, "disjoint"),
    ],
)
def test_a_state_of_other_links_is_refused(small, change, name):
    settings = {"edge_label_index": PAIRS, "edge_label": [1, 2, 3], "neg_sampling": {"amount": 1}}
    with LinkNeighborLoader(small, [1], **settings) as loader:
        state = json.loads(json.dumps(loader.state_dict()))
    with LinkNeighborLoader(small, [1], **settings) as same:
        same.load_state_dict(state)
    with LinkNeighborLoader(small, [1], **{**settings, **change}) as other, pytest.raises(StateError, match=name):
        other.load_state_dict(state)


def test_ranks_share_the_links(plain):
    links = np.random.default_rng(2).integers(0, 80, (2, 50))
    options = {"collate": "numpy", "neg_sampling_ratio": 1, "shuffle": True, "remainder": "uneven"}
    with LinkNeighborLoader(plain, [2], links, 8, **options) as loader:
        alone = [flat(batch) for batch in loader]
    shared = {}
    for rank in range(3):
        with LinkNeighborLoader(plain, [2], links, 8, rank=rank, world_size=3, **options) as loader:
            shared.update({batch.index: flat(batch) for batch in loader})
    assert [shared[index] for index in sorted(shared)] == alone


def test_repr_describes_the_loader(small):
    with LinkNeighborLoader(small, [1], "test", 2) as loader:
        wanted = "LinkNeighborLoader(2 links (node__to__node, split 'test'), batch_size=2, 1 batches on rank 0 of 1)"
        assert repr(loader) == wanted
