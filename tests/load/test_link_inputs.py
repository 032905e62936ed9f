"""Checks that links mean the same in any form, and that wrong ones are refused with their place."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch

from hopstream.errors import IdRangeError, SettingsError, UnknownNameError
from hopstream.load.link_inputs import read_link_inputs
from hopstream.schema import EDGE
from hopstream.store.contract import Links
from tests.load.graphs import local_store, make_plain_graph
from tests.load.link_graphs import LIKES, RATED, RATES, make_rating_graph, make_small_graph

PAIRS = np.array([[0, 5, 5], [3, 1, 1]])


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    with local_store(make_small_graph(), tmp_path_factory.mktemp("small") / "parts", 2) as store:
        yield store


@pytest.fixture(scope="module")
def rating_graph():
    return make_rating_graph(np.random.default_rng(3))


@pytest.fixture(scope="module")
def ratings(rating_graph, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ratings") / "parts"
    with local_store(rating_graph, folder, 3, links=[RATED], time_attr="time") as store:
        yield store


def read(store, links, labels=None, times=None):
    return read_link_inputs(store, links, labels, times)


def ends(store, inputs, positions):
    links = inputs.links_at(store, np.asarray(positions))
    return [links.src_keys.tolist(), links.dst_keys.tolist()]


@pytest.mark.parametrize(
    "given",
    [
        PAIRS,
        PAIRS.astype(np.uint8),
        PAIRS.tolist(),
        torch.from_numpy(PAIRS),
        (PAIRS[0], PAIRS[1]),
        [torch.from_numpy(PAIRS[0]), torch.from_numpy(PAIRS[1])],
        (EDGE, PAIRS),
        (list(EDGE), PAIRS),
        [EDGE, torch.from_numpy(PAIRS)],
        ("node__to__node", (PAIRS[0], PAIRS[1])),
        Links(src_keys=PAIRS[0], dst_keys=PAIRS[1]),
        (EDGE, Links(src_keys=PAIRS[0], dst_keys=PAIRS[1])),
    ],
)
def test_keys_may_come_in_any_form(small, given):
    inputs = read(small, given)
    assert (inputs.edge_type, inputs.num_links, inputs.are_stored) == (EDGE, 3, False)
    assert ends(small, inputs, [2, 0]) == [[5, 0], [1, 3]]


@pytest.mark.parametrize("given", [None, EDGE, "node__to__node", (EDGE, None), list(EDGE), ("node__to__node", None)])
def test_all_edges_are_requested_in_key_order(small, given):
    inputs = read(small, given)
    assert (inputs.num_links, inputs.are_stored) == (6, True)
    assert ends(small, inputs, [5, 0, 4]) == [[1, 0, 5], [0, 1, 2]]


@pytest.mark.parametrize("given", ["test", (EDGE, "test"), ["node__to__node", "test"]])
def test_a_split_is_requested_by_its_edges(small, given):
    inputs = read(small, given)
    assert inputs.num_links == 2
    assert ends(small, inputs, [1, 0]) == [[4, 0], [3, 1]]


def test_splits_of_types_have_times_of_their_own(ratings, rating_graph):
    inputs = read(ratings, (RATES, "val"))
    positions = np.array([7, 2])
    keys = rating_graph.edge_splits[RATES]["val"][positions]
    table = rating_graph.edges[RATES]
    links = inputs.links_at(ratings, positions)
    assert links.src_keys.tolist() == table.src_keys[keys].tolist()
    assert links.dst_keys.tolist() == table.dst_keys[keys].tolist()
    assert links.times.tolist() == table.features["time"][keys].tolist()


def test_given_times_override_edge_times(ratings):
    inputs = read(ratings, (RATES, "train"), times=torch.arange(107, dtype=torch.int32) - 5)
    links = inputs.links_at(ratings, np.array([3, 0]))
    assert (links.times.dtype, links.times.tolist()) == (np.int64, [-2, -5])
    links = read(ratings, (LIKES, [[1, 2], [3, 4]]), times=[8, 9]).links_at(ratings, np.array([1]))
    assert links.times.tolist() == [9]
    links = Links(src_keys=np.array([1, 2]), dst_keys=np.array([3, 4]), times=np.array([8, 9], np.int32))
    assert read(ratings, (LIKES, links)).links_at(ratings, np.array([1])).times.tolist() == [9]
    assert read(ratings, (LIKES, links), times=[5, 6]).links_at(ratings, np.array([1])).times.tolist() == [6]
    assert read(ratings, (LIKES, [[1, 2], [3, 4]])).links_at(ratings, np.array([1])).times is None


@pytest.mark.parametrize(
    ("labels", "dtype", "shape"),
    [
        ([1, 0, 2], np.int64, (3,)),
        (torch.tensor([0.5, 1.0, 2.0]), np.float32, (3,)),
        (np.array([[1, 2], [3, 4], [5, 6]], np.uint8)[:, ::-1], np.uint8, (3, 2)),
        ([True, False, True], np.int64, (3,)),
    ],
)
def test_labels_may_have_any_numeric_dtype(small, labels, dtype, shape):
    inputs = read(small, PAIRS, labels)
    assert (inputs.labels.dtype, inputs.labels.shape) == (dtype, shape)
    assert inputs.labels.tolist() == np.asarray(labels).astype(dtype).tolist()


def test_given_arrays_are_copied(small):
    pairs, labels, times = PAIRS.copy(), np.array([1, 2, 3]), np.array([4, 5, 6])
    inputs = read(small, pairs, labels, times)
    before = inputs.fingerprints()
    pairs[:], labels[:], times[:] = 0, 0, 0
    assert inputs.fingerprints() == before
    assert ends(small, inputs, [0]) == [[0], [3]]


def test_fingerprints_differ_where_links_do(small):
    times, labels = [1, 2, 3], [1, 2, 3]
    made = [
        read(small, PAIRS),
        read(small, PAIRS[::-1]),
        read(small, PAIRS[:, :2]),
        read(small, PAIRS, labels),
        read(small, PAIRS, [1.0, 2.0, 3.0]),
        read(small, PAIRS, None, times),
        read(small, PAIRS, labels, times),
        read(small, None),
        read(small, "test"),
    ]
    assert len({str(inputs.fingerprints()) for inputs in made}) == len(made)
    assert read(small, torch.from_numpy(PAIRS)).fingerprints() == made[0].fingerprints()


def test_all_edges_take_no_memory(tmp_path):
    """A batch of 8 of 200 000 edges takes memory for 8."""
    graph = make_plain_graph(np.random.default_rng(1), num_nodes=1000, num_edges=200_000)
    with local_store(graph, tmp_path / "parts", links=[EDGE]) as store:
        ends(store, read(store, None), [1, 2])
        tracemalloc.start()
        inputs = read(store, None)
        inputs.links_at(store, np.arange(100_000, 100_008))
        inputs.fingerprints()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert inputs.num_links == 200_000
    assert peak < 20_000


@pytest.mark.parametrize(
    ("links", "error", "message"),
    [
        ([[0, 9, 6], [3, 1, 1]], IdRangeError, r"edge_label_index\[0, 1\] is 9; keys of 'node' are 0\.\.5"),
        ([[0, 1], [3, -1]], IdRangeError, r"edge_label_index\[1, 1\] is -1; keys of 'node' are 0\.\.5"),
        (np.array([[2**63], [0]], np.uint64), IdRangeError, r"edge_label_index\[0, 0\] is 9223372036854775808"),
        (PAIRS.T, SettingsError, r"edge_label_index is int64\[3, 2\]; .*the other way round, give its transpose"),
        (PAIRS[0], SettingsError, r"edge_label_index is int64\[3\]; give keys \[2, n\]: sources, destinations"),
        (PAIRS[:, :, None], SettingsError, r"edge_label_index is int64\[2, 3, 1\]"),
        (([0, 1], [2]), SettingsError, r"rows of shapes \[2\] and \[1\]; give keys \[2, n\]"),
        (PAIRS / 2, SettingsError, r"edge_label_index\[0\] is float64; give integer keys"),
        ([["a", "b"], [0, 1]], SettingsError, "'node' has no feature id with raw ids, and no feature of str"),
        (PAIRS > 2, SettingsError, r"edge_label_index\[0\] is bool; give integer keys"),
        ("train", UnknownNameError, r"node__to__node has no split 'train'; known: \['test'\]"),
        (("a", "b", "c"), UnknownNameError, r"unknown edge type \('a', 'b', 'c'\)"),
        ((("a", "b", "c"), PAIRS), UnknownNameError, r"unknown edge type \('a', 'b', 'c'\)"),
        (("a__b__c", PAIRS), UnknownNameError, "unknown edge type 'a__b__c'; known: .*'node__to__node'"),
    ],
)
def test_invalid_links_are_refused(small, links, error, message):
    with pytest.raises(error, match=message):
        read(small, links)


@pytest.mark.parametrize(
    ("links", "error", "message"),
    [
        (
            PAIRS,
            SettingsError,
            r"several edge types; give edge_label_index=\(edge type, …\) with one of user__rates__m",
        ),
        (None, SettingsError, "several edge types"),
        (
            "train",
            UnknownNameError,
            r"'train' is not an edge type .*for a split give .*'user__rates__movie': \['train', 'va",
        ),
        (
            LIKES,
            UnknownNameError,
            r"all edges of user__likes__movie, .* write_parts\(…, links=\[\('user', 'likes', 'movi",
        ),
        ((LIKES, "train"), UnknownNameError, r"split 'train' of user__likes__movie, .*links="),
        ((RATED, "train"), UnknownNameError, r"movie__rev_rates__user has no split 'train'; known: \[\]"),
        ((RATES, [[40], [0]]), IdRangeError, r"edge_label_index\[0, 0\] is 40; keys of 'user' are 0\.\.39"),
        ((RATES, [[39], [60]]), IdRangeError, r"edge_label_index\[1, 0\] is 60; keys of 'movie' are 0\.\.59"),
    ],
)
def test_invalid_link_types_are_refused(ratings, links, error, message):
    with pytest.raises(error, match=message):
        read(ratings, links)


@pytest.mark.parametrize(
    ("labels", "times", "message"),
    [
        ([1, 2], None, r"edge_label is int64\[2\]; give one row per link \(node__to__node, keys\): \[3, …\]"),
        (1, None, r"edge_label is int64\[\]"),
        (["a", "b", "c"], None, "edge_label is <U1; give numbers"),
        (np.ones(3, complex), None, "edge_label is complex128; give numbers"),
        (None, [1, 2], r"edge_label_time is int64\[2\]; give one integer per link: \[3\]"),
        (None, [1.0, 2.0, 3.0], "edge_label_time is float64; times are integers"),
        (None, np.array([1, 2, 2**63], np.uint64), "edge_label_time holds 9223372036854775808"),
        (None, np.array(["2020", "2021", "2022"], "datetime64[s]"), "edge_label_time is datetime64"),
        (None, [[1], [2], [3]], r"edge_label_time is int64\[3, 1\]"),
    ],
)
def test_invalid_labels_and_times_are_refused(small, labels, times, message):
    with pytest.raises(SettingsError, match=message):
        read(small, PAIRS, labels, times)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([1.0, float("nan"), 2.0], r"^edge_label\[1\] is nan; give a number for every link"),
        (torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, float("nan")]]), r"^edge_label\[2, 1\] is nan"),
        (torch.ones(3, dtype=torch.bfloat16), r"^edge_label is torch.bfloat16, not an array of numbers .* float32$"),
        ([[1], [1, 2], [3]], "^edge_label is list, not an array of numbers"),
    ],
)
def test_non_numeric_labels_are_refused(small, labels, message):
    with pytest.raises(SettingsError, match=message):
        read(small, PAIRS, labels)
