"""Checks that splits have the requested sizes, are the same everywhere, and are stable if promised."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopstream.dataset.layout import open_dataset
from hopstream.dataset.read_back import read_dataset
from hopstream.errors import SchemaError, SettingsError, UnknownNameError
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.graph.splits import SplitSettings, group_pairs, split_links, split_nodes
from hopstream.kernels.hashing import derive_seed
from hopstream.preparation.write import write_parts
from hopstream.schema import EDGE, NODE
from hopstream.store.local import LocalStore
from tests import naive
from tests.dataset.timed_graphs import KNOWS, LIKES, RATES, timed_graph


def nodes_only(num_nodes: int, **features) -> Graph:
    return Graph(nodes={NODE: NodeTable(num_nodes=num_nodes, features=features)})


def links_only(src: list[int], dst: list[int], num_nodes: int = 100, **features) -> Graph:
    edges = EdgeTable(src_keys=np.array(src, np.int64), dst_keys=np.array(dst, np.int64), features=features)
    return Graph(nodes={NODE: NodeTable(num_nodes=num_nodes)}, edges={EDGE: edges})


def sizes(splits) -> dict[str, int]:
    return {name: len(keys) for name, keys in splits.items()}


def test_a_random_split_has_the_sizes_asked_for():
    graph = split_nodes(nodes_only(1000), val=0.05, test=120, rng_seed=3)
    assert sizes(graph.splits[NODE]) == {"train": 830, "val": 50, "test": 120}
    keys = np.concatenate(list(graph.splits[NODE].values()))
    assert np.sort(keys).tolist() == list(range(1000))
    other = split_nodes(nodes_only(1000), val=0.05, test=120, rng_seed=4)
    assert other.splits[NODE]["val"].tolist() != graph.splits[NODE]["val"].tolist()


@settings(deadline=None)
@given(
    num_nodes=st.integers(0, 200),
    shares=st.tuples(*[st.floats(0, 1)] * 3).filter(lambda shares: sum(shares) > 0),
    has_train=st.booleans(),
    method=st.sampled_from(["random", "hash", "time"]),
    rng_seed=st.integers(0, (1 << 64) - 1),
)
def test_splits_never_overlap_and_shares_are_met(num_nodes, shares, has_train, method, rng_seed):
    val, test, train = (share / sum(shares) for share in shares)
    graph = nodes_only(num_nodes, t=np.random.default_rng(rng_seed).integers(0, 9, num_nodes))
    options = {"method": method, "time_attr": "t" if method == "time" else None, "rng_seed": rng_seed}
    splits = split_nodes(graph, val=val, test=test, train=train / 2 if has_train else None, **options).splits[NODE]
    keys = np.concatenate([np.empty(0, np.int64), *splits.values()])
    assert len(np.unique(keys)) == len(keys)
    if not has_train:
        assert len(keys) == num_nodes
    if method != "hash":
        wanted = {"val": val, "test": test, "train": train / 2 if has_train else 1 - val - test}
        for name, share in wanted.items():
            assert abs(len(splits.get(name, ())) - share * num_nodes) <= 1


def test_an_empty_share_makes_no_split():
    graph = split_nodes(nodes_only(10), val=0.0, test=3)
    assert sizes(graph.splits[NODE]) == {"train": 7, "test": 3}
    assert sizes(split_nodes(nodes_only(10), val=4, test=6).splits[NODE]) == {"train": 0, "val": 4, "test": 6}
    assert sizes(split_nodes(nodes_only(0)).splits[NODE]) == {"train": 0, "val": 0, "test": 0}


def test_an_empty_share_removes_the_old_split():
    old = {name: np.arange(4) for name in ("train", "val", "test", "mine")}
    graph = replace(links_only([0, 1, 2], [1, 2, 3], num_nodes=10), splits={NODE: old}, edge_splits={EDGE: {}})
    assert sizes(split_nodes(graph, val=0, test=3).splits[NODE]) == {"mine": 4, "train": 7, "test": 3}
    assert sizes(split_nodes(graph, train=0, val=0.0, test=0).splits[NODE]) == {"mine": 4}
    old = {name: np.arange(2) for name in ("train", "val", "test", "mine")}
    graph = replace(graph, edge_splits={EDGE: old})
    assert sizes(split_links(graph, train=0, val=1, test=0).edge_splits[EDGE]) == {"mine": 2, "val": 1}


def test_random_splits_are_pinned():
    """Random splits must not change between versions: a repeated split would mix test and train."""
    graph = split_nodes(nodes_only(12), val=2, test=3, rng_seed=7)
    assert {name: keys.tolist() for name, keys in graph.splits[NODE].items()} == {
        "train": [1, 2, 4, 6, 8, 10, 11], "val": [0, 5], "test": [3, 7, 9],
    }  # fmt: skip


def test_every_node_is_as_likely_to_be_tested():
    """5 sigma over 2000 seeds, for 12 nodes of which 3 are tested."""
    counts = np.zeros(12)
    for rng_seed in range(2000):
        counts[split_nodes(nodes_only(12), val=2, test=3, rng_seed=rng_seed).splits[NODE]["test"]] += 1
    assert counts.sum() == 3 * 2000
    assert np.abs(counts - 500).max() < 5 * np.sqrt(2000 * 0.25 * 0.75), counts


def naive_place(key: int, salt: int, val: float, test: float) -> str:
    share = (naive.node_stream(salt, key) >> 11) / 2**53
    return "val" if share < val else "test" if share < val + test else "train"


def test_a_hash_split_is_that_of_the_reference():
    splits = split_nodes(nodes_only(500), val=0.2, test=0.3, method="hash", rng_seed=11).splits[NODE]
    salt = derive_seed("split", NODE, 11)
    for name, keys in splits.items():
        assert keys.tolist() == [key for key in range(500) if naive_place(key, salt, 0.2, 0.3) == name]
    assert abs(len(splits["test"]) - 150) < 5 * np.sqrt(500 * 0.3 * 0.7)


def test_added_nodes_do_not_move_other_nodes():
    small, large = (split_nodes(nodes_only(n), method="hash", val=0.2).splits[NODE] for n in (300, 1000))
    for name, keys in small.items():
        assert large[name][large[name] < 300].tolist() == keys.tolist()


def test_links_are_in_the_split_of_their_source_node(rng):
    graph = timed_graph(rng)
    by_node = split_nodes(graph, "user", method="hash", rng_seed=5).splits["user"]
    for edge_type, by, end in ((RATES, "src", "src_keys"), (KNOWS, "dst", "dst_keys")):
        links = split_links(graph, edge_type, by=by, method="hash", rng_seed=5).edge_splits[edge_type]
        for name in ("train", "val", "test"):
            assert set(getattr(graph.edges[edge_type], end)[links[name]]) <= set(by_node[name])
        assert sum(len(links[name]) for name in ("train", "val", "test")) == 150


@pytest.mark.parametrize("method", ["random", "hash"])
@pytest.mark.parametrize("by", ["src", "dst", "pair"])
def test_links_with_the_same_key_share_a_split(rng, method, by):
    graph = timed_graph(rng, num_users=8, num_edges=200)
    links = split_links(graph, KNOWS, by=by, method=method, val=0.3, test=0.3).edge_splits[KNOWS]
    edges = graph.edges[KNOWS]
    units = {
        "src": edges.src_keys.tolist(),
        "dst": edges.dst_keys.tolist(),
        "pair": [frozenset(ends) for ends in zip(edges.src_keys.tolist(), edges.dst_keys.tolist(), strict=True)],
    }[by]
    found = {name: {units[key] for key in keys} for name, keys in links.items()}
    assert sum(map(len, links.values())) == 200
    assert not (found["train"] & found["val"] or found["train"] & found["test"] or found["val"] & found["test"])
    if method == "random":
        num_units = len(set(units))
        assert len(found["val"]) == round(0.3 * num_units)


def test_pairs_of_two_types_have_no_reverses():
    graph = Graph(
        nodes={"a": NodeTable(num_nodes=3), "b": NodeTable(num_nodes=3)},
        edges={("a", "to", "b"): EdgeTable(src_keys=np.array([0, 1, 0]), dst_keys=np.array([1, 0, 1]))},
    )
    splits = split_links(graph, by="pair", val=1, test=1).edge_splits["a", "to", "b"]
    assert sizes(splits) in ({"train": 0, "val": 1, "test": 2}, {"train": 0, "val": 2, "test": 1})


def test_the_latest_are_for_testing():
    times = np.array([5, 1, 9, 9, 3, 7, 0, 2, 9, 4], np.uint8)
    splits = split_nodes(nodes_only(10, t=times), method="time", time_attr="t", val=3, test=0.2).splits[NODE]
    assert {name: keys.tolist() for name, keys in splits.items()} == {
        "test": [3, 8],  # of three links with equal times, those with the largest keys
        "val": [0, 2, 5],
        "train": [1, 4, 6, 7, 9],
    }
    only_four = split_nodes(nodes_only(10, t=times), method="time", time_attr="t", val=3, test=2, train=4).splits[NODE]
    assert only_four["train"].tolist() == [1, 4, 7, 9]  # the earliest, 6, is in none


def test_link_time_is_its_own_or_that_of_its_younger_end():
    own = links_only([0, 1, 2, 3], [1, 2, 3, 4], t=np.array([4.5, -1.0, np.inf, 2.0]))
    splits = split_links(own, method="time", time_attr="t", val=1, test=1).edge_splits[EDGE]
    assert [splits[name].tolist() for name in ("train", "val", "test")] == [[1, 3], [0], [2]]
    ends = replace(links_only([0, 1, 2, 3], [1, 2, 3, 0], 4), nodes=nodes_only(4, t=np.array([0, 5, 2, 1])).nodes)
    splits = split_links(ends, method="time", time_attr="t", val=1, test=1).edge_splits[EDGE]
    assert [splits[name].tolist() for name in ("train", "val", "test")] == [[2, 3], [0], [1]]  # at 5, 5, 2, 1
    by_pair = links_only([0, 1, 1], [1, 2, 0], t=np.array([1, 5, 9]))
    splits = split_links(by_pair, method="time", time_attr="t", val=0, test=1, by="pair").edge_splits[EDGE]
    assert splits["test"].tolist() == [0, 2]


def test_other_splits_stay():
    graph = replace(nodes_only(10), splits={NODE: {"mine": np.arange(3), "val": np.arange(4)}})
    assert sizes(split_nodes(graph, val=1, test=2).splits[NODE]) == {"mine": 3, "val": 1, "test": 2, "train": 7}
    named = split_nodes(graph, val=1, test=2, names=("fit", "tune", "judge")).splits[NODE]
    assert sizes(named) == {"mine": 3, "val": 4, "fit": 7, "tune": 1, "judge": 2}


@pytest.mark.parametrize("method", ["random", "hash", "time"])
def test_splits_are_the_same_for_every_number_of_parts(tmp_path, rng, method):
    graph = timed_graph(rng)
    options = {"method": method, "time_attr": "time" if method == "time" else None, "rng_seed": 9}

    def split(of: Graph) -> Graph:
        for edge_type, by in ((RATES, "src"), (KNOWS, "pair"), (RATES, "edge")):
            names = (f"train {by}", f"val {by}", f"test {by}")
            of = split_links(of, edge_type, by=by, names=names, **options)
        return split_nodes(of, "user", **options)

    wanted = split(graph)
    for num_parts in (1, 3, 4):
        write_parts(graph, tmp_path / "plain", num_parts=num_parts, method="random", overwrite=True)
        again = split(read_dataset(tmp_path / "plain"))
        assert again.fingerprint() == wanted.fingerprint()
        write_parts(wanted, tmp_path / "split", num_parts=num_parts, method="random", overwrite=True)
        with LocalStore(open_dataset(tmp_path / "split", verify=True)) as store:
            for name, keys in wanted.splits["user"].items():
                assert store.split("user", name).tolist() == keys.tolist()
            for edge_type, splits in wanted.edge_splits.items():
                for name, keys in splits.items():
                    assert store.edge_split(edge_type, name).tolist() == keys.tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "ratio"}, r"method is 'ratio'; give random\|hash\|time"),
        ({"val": -0.1}, "val is -0.1; give a share"),
        ({"test": 1.5}, "test is 1.5; give a share"),
        ({"val": float("nan")}, "val is nan"),
        ({"val": True}, "val is True"),
        ({"val": None}, "val is None"),
        ({"train": "rest"}, "train is 'rest'"),
        ({"val": 0.5, "test": 0.6}, "add up to more than 1"),
        ({"val": 0.5, "test": 0.2, "train": 0.5}, "add up to more than 1"),
        ({"val": 3, "method": "hash"}, "val is 3; method 'hash' supports only shares"),
        ({"rng_seed": -1}, "rng_seed is -1"),
        ({"names": ("a", "b")}, r"names is \('a', 'b'\); give three"),
        ({"names": ("a", "b", "a")}, "names is"),
        ({"method": "time"}, "method is 'time' and time_attr None; give time_attr with method 'time'"),
        ({"time_attr": "t"}, "method is 'random' and time_attr 't'"),
    ],
)
def test_a_bad_option_is_refused_by_name(options, message):
    with pytest.raises(SettingsError, match=message):
        SplitSettings(**options)
    with pytest.raises(SettingsError, match=message):
        split_nodes(nodes_only(10), **options)


def test_oversized_shares_and_unknown_types_are_refused(rng):
    graph = timed_graph(rng)
    with pytest.raises(SettingsError, match=r"val 20, test 11 and train None need 31; there are 30 of user"):
        split_nodes(graph, "user", val=20, test=11)
    with pytest.raises(SettingsError, match=r"need \d+; there are \d+ of user__knows__user by pair"):
        split_links(graph, KNOWS, val=150, test=1, by="pair")
    with pytest.raises(
        SettingsError, match=r"node_type is not given, but the graph has 2; give one of \['user', 'movie'\]"
    ):
        split_nodes(graph)
    with pytest.raises(SettingsError, match="edge_type is not given, but the graph has 3"):
        split_links(graph)
    with pytest.raises(UnknownNameError, match="unknown node type 'film'"):
        split_nodes(graph, "film")
    with pytest.raises(UnknownNameError, match="unknown edge type 'user__knows'"):
        split_links(graph, "user__knows")
    with pytest.raises(SettingsError, match="by is 'source'; give edge"):
        split_links(graph, KNOWS, by="source")
    assert LIKES in split_links(graph, "movie__like__movie").edge_splits


def test_invalid_time_features_are_refused():
    with pytest.raises(UnknownNameError, match="node has no feature 't'; known"):
        split_nodes(nodes_only(3), method="time", time_attr="t")
    with pytest.raises(SchemaError, match=r"node\.t is not one number per row"):
        split_nodes(nodes_only(3, t=np.zeros((3, 2))), method="time", time_attr="t")
    with pytest.raises(SchemaError, match=r"node\.t\[1\] is not a number"):
        split_nodes(nodes_only(3, t=np.array([0, np.nan, 1])), method="time", time_attr="t")
    with pytest.raises(UnknownNameError, match="neither node__to__node nor 'node' nor 'node' has a feature 't'"):
        split_links(links_only([0], [1]), method="time", time_attr="t")


@given(pairs=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1 << 62)), max_size=30))
def test_pairs_are_numbered_in_order(pairs):
    first, second = (np.array([pair[end] for pair in pairs], np.int64) for end in (0, 1))
    distinct = sorted(set(pairs))
    assert group_pairs(first, second).tolist() == [distinct.index(pair) for pair in pairs]
