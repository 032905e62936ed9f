"""Checks that seeds are understood in every form that users give, and wrong ones are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hopstream.arrays import RaggedArray
from hopstream.errors import IdRangeError, SettingsError, UnknownNameError
from hopstream.graph.graph import Graph, NodeTable
from hopstream.sample.seeds import read_seeds
from tests.conftest import make_typed_graph
from tests.load.graphs import local_store, make_plain_graph


@pytest.fixture(scope="module")
def typed(tmp_path_factory):
    graph = make_typed_graph(np.random.default_rng(0))
    return graph, local_store(graph, tmp_path_factory.mktemp("typed") / "parts", num_parts=3)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    graph = make_plain_graph(np.random.default_rng(0))
    return graph, local_store(graph, tmp_path_factory.mktemp("plain") / "parts")


def keys_of(seeds):
    return seeds.keys_at(np.arange(seeds.num_seeds)).tolist()


def input_ids_of(seeds):
    return seeds.input_ids_at(np.arange(seeds.num_seeds)).tolist()


MASK = np.zeros(60, np.bool_)
MASK[[3, 4, 59]] = True


@pytest.mark.parametrize(
    ("seeds", "keys", "input_ids"),
    [
        ("paper", range(60), range(60)),
        (("paper", None), range(60), range(60)),
        (("author", None), range(25), range(25)),
        (("paper", "val"), range(20), range(20)),
        (["paper", "val"], range(20), range(20)),
        (("paper", [5, 3, 5]), [5, 3, 5], range(3)),
        (("paper", np.array([59, 0], np.int32)), [59, 0], range(2)),
        (("paper", np.array([59, 0], np.uint64)), [59, 0], range(2)),
        (("paper", torch.tensor([7, 2])), [7, 2], range(2)),
        (("paper", MASK), [3, 4, 59], [3, 4, 59]),
        (("paper", torch.from_numpy(MASK)), [3, 4, 59], [3, 4, 59]),
        (("paper", MASK.tolist()), [3, 4, 59], [3, 4, 59]),
    ],
)
def test_seeds_of_a_typed_graph(typed, seeds, keys, input_ids):
    found = read_seeds(typed[1], seeds)
    assert found.num_seeds == len(list(keys))
    assert keys_of(found) == list(keys)
    assert input_ids_of(found) == list(input_ids)


@pytest.mark.parametrize(
    ("seeds", "keys"),
    [
        (None, range(80)),
        ("node", range(80)),
        (("node", None), range(80)),
        ([4, 79], [4, 79]),
        ((4, 79), [4, 79]),
        (torch.tensor([4, 79]), [4, 79]),
        (range(5), range(5)),
    ],
)
def test_seeds_of_a_plain_graph_need_no_type(plain, seeds, keys):
    assert keys_of(read_seeds(plain[1], seeds)) == list(keys)


def test_splits_are_the_keys_of_the_graph(plain, typed):
    for graph, store, node_type in ((*plain, "node"), (*typed, "paper")):
        found = read_seeds(store, (node_type, "train"))
        assert keys_of(found) == graph.splits[node_type]["train"].tolist()
        assert not found.may_repeat
    assert keys_of(read_seeds(plain[1], "train")) == plain[0].splits["node"]["train"].tolist()


@pytest.mark.parametrize(
    ("seeds", "error", "message"),
    [
        (None, SettingsError, r"several node types; give seeds=\(node type, …\) with one of paper, author, institute"),
        ([1, 2], SettingsError, "several node types"),
        ("train", UnknownNameError, "'train' is not a node type.*paper.*val"),
        (("venue", None), UnknownNameError, "unknown node type 'venue'"),
        (("paper", "test"), UnknownNameError, "no split 'test'; known: .*train"),
        (("author", "train"), UnknownNameError, "no split 'train'"),
        (("paper", [0, 60]), IdRangeError, r"seeds\[1\] is 60; keys of 'paper' are 0..59"),
        (("paper", [-1]), IdRangeError, r"seeds\[0\] is -1"),
        (("paper", [0.5]), SettingsError, "float64; give integer keys or a bool mask"),
        (("paper", [None]), SettingsError, "object; give integer keys or a bool mask"),
        (("paper", ["a"]), IdRangeError, r"seeds\[0\] is 'a'; no node of type 'paper' has it in feature 'title'"),
        (("paper", [b"a"]), IdRangeError, r"seeds\[0\] is b'a'; no node of type 'paper' has it in feature 'title'"),
        (("paper", [[1], [2]]), SettingsError, "one-dimensional"),
        (("paper", 3), SettingsError, r"^seeds is 3; give a list: \[3\]$"),
        (("paper", torch.tensor(3)), SettingsError, r"^seeds is 3; give a list: \[3\]$"),
        (("paper", {1, 2}), SettingsError, r"^seeds is a set; give a list: list\(seeds\)$"),
        (("paper", (n for n in [1, 2])), SettingsError, r"^seeds is a generator; give a list: list\(seeds\)$"),
        (("paper", [1, [2]]), SettingsError, r"^seeds is a list, not an array \(.*\(node type, keys\)$"),
        (("paper", torch.ones(3, dtype=torch.bfloat16)), SettingsError, "^seeds is a Tensor, not an array"),
        (("paper", [True, False]), SettingsError, "seeds is a mask with 2 entries; 'paper' has 60 nodes"),
    ],
)
def test_invalid_seeds_are_refused(typed, seeds, error, message):
    with pytest.raises(error, match=message):
        read_seeds(typed[1], seeds)


@pytest.fixture
def people(tmp_path):
    names = RaggedArray.from_strings(["bo", "ada", "cy"])
    graph = Graph(nodes={"person": NodeTable(num_nodes=3, features={"name": names, "age": np.arange(3)})})
    return local_store(graph, tmp_path / "parts")


@pytest.mark.parametrize(
    ("seeds", "keys"),
    [
        (["ada"], [1]),
        (["ada", "bo"], [1, 0]),
        (["cy", "ada", "cy"], [2, 1, 2]),
        (np.array(["ada", "bo"]), [1, 0]),
        (np.array(["ada", "cy"], object), [1, 2]),
        (("ada",), [1]),
        ([b"bo"], [0]),
    ],
)
def test_raw_ids_are_seeds_with_the_same_fingerprint_as_their_keys(people, seeds, keys):
    for given in (seeds, ("person", seeds)):
        found = read_seeds(people, given)
        assert keys_of(found) == keys
        assert found.fingerprint() == read_seeds(people, keys).fingerprint()


def test_unknown_raw_ids_are_named(people):
    with pytest.raises(IdRangeError, match=r"seeds\[1\] is 'zoe'; no node of type 'person' has it in feature 'name'"):
        read_seeds(people, ["ada", "zoe"])


def test_seeds_as_strings_need_a_feature_of_raw_ids(typed, tmp_path):
    with pytest.raises(SettingsError, match=r"no feature id with raw ids, and no feature of strings; give keys, or .*"):
        read_seeds(typed[1], ("author", ["ada"]))
    names = RaggedArray.from_strings(["a", "b"])
    graph = Graph(nodes={"person": NodeTable(num_nodes=2, features={"name": names, "town": names})})
    store = local_store(graph, tmp_path / "parts")
    with pytest.raises(SettingsError, match=r"several features of strings \(name, town\); .*find_keys\(…, 'person'"):
        read_seeds(store, ["a"])


def test_seeds_may_be_empty(tmp_path, typed):
    store = local_store(Graph(nodes={"node": NodeTable(num_nodes=0)}), tmp_path / "parts")
    assert read_seeds(store, None).num_seeds == 0
    assert (
        read_seeds(typed[1], ("paper", [])).num_seeds
        == read_seeds(typed[1], ("paper", np.zeros(60, bool))).num_seeds
        == 0
    )


def test_later_changes_of_the_users_array_change_nothing(plain):
    keys = np.array([1, 2, 3])
    found = read_seeds(plain[1], keys)
    keys[:] = 0
    assert keys_of(found) == [1, 2, 3]


def test_fingerprints_differ_between_seeds(typed):
    choices = ["paper", ("paper", "val"), ("paper", "train"), ("paper", [1, 2]), ("paper", [2, 1]), ("author", [1, 2])]
    prints = [read_seeds(typed[1], choice).fingerprint() for choice in choices]
    assert len(set(prints)) == len(prints)
    assert prints[3] == read_seeds(typed[1], ("paper", np.array([1, 2], np.int16))).fingerprint()


@pytest.mark.parametrize(
    ("given", "node_type", "keys"),
    [
        (None, "author", range(25)),
        ([3, 1], "author", [3, 1]),
        ("val", "paper", range(20)),
        ("paper", "author", range(60)),
    ],
)
def test_the_node_type_may_be_a_separate_argument(typed, given, node_type, keys):
    assert keys_of(read_seeds(typed[1], given, node_type=node_type)) == list(keys)


def test_messages_name_the_option(typed):
    for given, message in (
        ([30], r"^start\[0\] is 30; keys of 'author'"),
        (3, "^start is 3;"),
    ):
        with pytest.raises((SettingsError, IdRangeError), match=message):
            read_seeds(typed[1], given, "start", "author")
