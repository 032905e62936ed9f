"""Checks that held-out links are gone from the graph, and that all else is unchanged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hopstream.arrays import RaggedArray
from hopstream.dataset.read_back import read_dataset
from hopstream.errors import SettingsError, UnknownNameError
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.graph.splits import hold_out_links, split_links
from hopstream.ingest.npz import read_npz, write_npz
from hopstream.preparation.write import write_parts
from tests.dataset.timed_graphs import KNOWS, LIKES, RATES, timed_graph

REVERSE, LABEL, MEETS = ("movie", "rated_by", "user"), ("user", "rates_label", "movie"), ("user", "meets", "user")


@pytest.fixture
def graph(rng) -> Graph:
    """Ratings and their reverses, in another order and with another feature."""
    graph = timed_graph(rng)
    rates = graph.edges[RATES]
    order = rng.permutation(rates.num_edges)
    reverse = EdgeTable(
        src_keys=rates.dst_keys[order],
        dst_keys=rates.src_keys[order],
        features={"rates_key": order, "note": notes(150)},
    )
    return replace(
        graph, edges={**graph.edges, REVERSE: reverse}, edge_splits={REVERSE: {"odd": np.arange(1, 150, 2)}}
    ).check()


def notes(num_rows: int) -> RaggedArray:
    return RaggedArray.from_strings([f"nº {i}" for i in range(num_rows)])


def ends(edges: EdgeTable) -> list[tuple[int, int]]:
    return list(zip(edges.src_keys.tolist(), edges.dst_keys.tolist(), strict=True))


def test_a_small_case_in_full():
    likes, label = ("a", "likes", "a"), ("a", "will_like", "a")
    graph = Graph(
        nodes={"a": NodeTable(num_nodes=6)},
        edges={
            likes: EdgeTable(
                src_keys=np.array([0, 1, 2, 3, 4]),
                dst_keys=np.array([1, 2, 3, 4, 5]),
                features={"w": np.arange(5) * 10},
            )
        },
        edge_splits={likes: {"train": np.array([0, 2]), "val": np.array([1]), "test": np.array([4])}},
    )
    found = hold_out_links(graph, likes, label)
    assert ends(found.edges[likes]) == [(0, 1), (2, 3), (3, 4)]  # 3 is in no split and stays
    assert found.edges[likes].features["w"].tolist() == [0, 20, 30]
    assert ends(found.edges[label]) == [(0, 1), (1, 2), (2, 3), (4, 5)]
    assert found.edges[label].features["w"].tolist() == [0, 10, 20, 40]
    splits = {name: keys.tolist() for name, keys in found.edge_splits[label].items()}
    assert splits == {"train": [0, 2], "val": [1], "test": [3]}
    assert set(found.edge_splits) == {label}
    disjoint = hold_out_links(graph, likes, label, splits=("train", "val", "test"))
    assert ends(disjoint.edges[likes]) == [(3, 4)]
    assert ends(disjoint.edges[label]) == ends(found.edges[label])


def test_held_out_links_and_their_reverses_are_gone(graph):
    split = split_links(graph, RATES, by="pair", val=0.2, test=0.2)
    found = hold_out_links(split, RATES, LABEL, reverse=REVERSE)
    pairs, named = ends(graph.edges[RATES]), split.edge_splits[RATES]
    held = {pairs[key] for name in ("val", "test") for key in named[name]}
    assert not held & set(ends(found.edges[RATES]))
    assert not {(dst, src) for src, dst in held} & set(ends(found.edges[REVERSE]))
    train = [pairs[key] for key in named["train"]]
    assert ends(found.edges[RATES]) == train
    assert sorted(ends(found.edges[REVERSE])) == sorted((dst, src) for src, dst in train)
    for name, keys in named.items():
        label = found.edges[LABEL]
        assert [ends(label)[key] for key in found.edge_splits[LABEL][name]] == [pairs[key] for key in keys]
        rating = label.features["rating"][found.edge_splits[LABEL][name]]
        assert rating.tolist() == graph.edges[RATES].features["rating"][keys].tolist()
    for edge_type in (KNOWS, LIKES):
        assert found.edges[edge_type] is graph.edges[edge_type]


def test_the_rest_of_the_reverse_type_stays_as_it_was(graph):
    found = hold_out_links(split_links(graph, RATES, by="pair"), RATES, LABEL, reverse=REVERSE)
    before, after = graph.edges[REVERSE], found.edges[REVERSE]
    kept = [before.features["rates_key"].tolist().index(key) for key in after.features["rates_key"]]
    assert kept == sorted(kept) and ends(after) == [ends(before)[row] for row in kept]
    assert list(after.features["note"]) == [f"nº {row}" for row in kept]
    odd = [kept[key] for key in found.edge_splits[REVERSE]["odd"]]
    assert odd == [row for row in kept if row % 2]


def both_ways(rng: np.random.Generator) -> np.ndarray:
    """Sixty pairs of users, each there and back, and no edge twice."""
    pairs = np.array(np.triu_indices(30, 1))
    one_way = pairs[:, rng.choice(pairs.shape[1], 60, replace=False)]
    return np.concatenate([one_way, one_way[::-1]], axis=1)


def test_edges_in_both_directions(rng):
    both = both_ways(rng)
    graph = Graph(nodes={"user": NodeTable(num_nodes=30)}, edges={KNOWS: EdgeTable(src_keys=both[0], dst_keys=both[1])})
    torn = split_links(graph, KNOWS, val=0.3, test=0.3)
    with pytest.raises(
        SettingsError, match=r"edge \d+ of user__knows__user is in split 'train', but its reverse is held"
    ):
        hold_out_links(torn, KNOWS, MEETS, reverse=KNOWS)
    found = hold_out_links(split_links(graph, by="pair", val=0.3, test=0.3), KNOWS, MEETS, reverse=KNOWS)
    held = {ends(found.edges[MEETS])[key] for name in ("val", "test") for key in found.edge_splits[MEETS][name]}
    seen = set(ends(found.edges[KNOWS]))
    assert held and not held & seen and not {(b, a) for a, b in held} & seen
    assert {(b, a) for a, b in held} == held


def test_disjoint_training_links(graph):
    """Training links are held out as well, so messages follow only links in no split."""
    split = split_links(graph, RATES, by="pair", train=0.3, val=0.1, test=0.1)
    found = hold_out_links(split, RATES, LABEL, splits=("train", "val", "test"), reverse=REVERSE)
    assert not set(ends(found.edges[RATES])) & set(ends(found.edges[LABEL]))
    assert found.edges[RATES].num_edges + found.edges[LABEL].num_edges == 150
    assert len(found.edge_splits[LABEL]["train"]) > 25


@pytest.mark.parametrize("num_parts", [1, 3])
def test_held_out_graphs_are_stored_in_any_number_of_parts(tmp_path, graph, num_parts):
    found = hold_out_links(split_links(graph, RATES, by="pair"), RATES, LABEL, reverse=REVERSE)
    write_parts(found, tmp_path, num_parts=num_parts, method="hash", time_attr="time")
    assert read_dataset(tmp_path).fingerprint() == found.fingerprint()


def test_bad_options_are_refused(graph):
    split = split_links(graph, RATES, by="pair")
    for wrong in (("movie", "label", "user"), ("user", "label"), "user__label__movie"):
        with pytest.raises(SettingsError, match="give an edge type from 'user' to 'movie'"):
            hold_out_links(split, RATES, wrong)
    with pytest.raises(SettingsError, match="exists already"):
        hold_out_links(split, RATES, RATES)
    with pytest.raises(SettingsError, match="does not lead back from 'movie' to 'user'"):
        hold_out_links(split, RATES, LABEL, reverse=RATES)
    with pytest.raises(UnknownNameError, match=r"has no split \['tset'\]; it has \['train', 'val', 'test'\]"):
        hold_out_links(split, "user__rates__movie", LABEL, splits=("val", "tset"))
    with pytest.raises(UnknownNameError, match="user__knows__user has no split"):
        hold_out_links(split, KNOWS, MEETS)
    with pytest.raises(UnknownNameError, match="unknown edge type"):
        hold_out_links(split, ("a", "b", "c"), LABEL)


def test_the_graph_remembers_where_links_were_taken_from(tmp_path, graph):
    split = split_links(graph, RATES, by="pair")
    found = hold_out_links(split, RATES, LABEL, reverse=REVERSE)
    assert found.label_types == found.schema.label_types == {LABEL: (RATES, REVERSE)}
    assert hold_out_links(split, RATES, LABEL).label_types == {LABEL: (RATES,)}  # "rated_by" is no name of a reverse
    forgetful = replace(found, label_types={})
    assert forgetful.fingerprint() != found.fingerprint()
    write_parts(found, tmp_path / "parts", num_parts=2, method="hash", links=[RATES])
    assert read_dataset(tmp_path / "parts").label_types == found.label_types
    again = hold_out_links(split_links(found, LABEL, names=("a", "b", "c")), LABEL, ("user", "more", "movie"))
    assert again.label_types == {LABEL: (RATES, REVERSE), ("user", "more", "movie"): (LABEL,)}


def test_label_types_survive_a_file_of_arrays(tmp_path, rng):
    graph = Graph(
        nodes={"user": NodeTable(num_nodes=9)}, edges={KNOWS: table(rng), ("user", "rev_knows", "user"): table(rng)}
    )
    found = hold_out_links(split_links(graph, KNOWS, by="pair", val=0.3), KNOWS, MEETS)
    write_npz(found, tmp_path / "held.npz")
    again = read_npz(tmp_path / "held.npz")
    assert again.label_types == found.label_types == {MEETS: (KNOWS, ("user", "rev_knows", "user"))}
    assert again.fingerprint() == found.fingerprint()


def table(rng: np.random.Generator) -> EdgeTable:
    return EdgeTable(src_keys=rng.integers(0, 9, 20), dst_keys=rng.integers(0, 9, 20))


def test_a_reverse_type_is_found_by_its_name(graph):
    named = ("movie", "rev_rates", "user")
    edges = {named if t == REVERSE else t: of for t, of in graph.edges.items()}
    split = split_links(replace(graph, edges=edges, edge_splits={}), RATES, by="pair", val=0.2, test=0.2)
    found, said = hold_out_links(split, RATES, LABEL), hold_out_links(split, RATES, LABEL, reverse=named)
    assert found.fingerprint() == said.fingerprint() and found.label_types == {LABEL: (RATES, named)}
    assert found.edges[named].num_edges == found.edges[RATES].num_edges < graph.edges[RATES].num_edges
    kept = hold_out_links(split, RATES, LABEL, reverse=None)
    assert kept.edges[named] is split.edges[named] and kept.label_types == {LABEL: (RATES,)}


def test_both_directions_of_an_edge_are_held_out_together(rng):
    both = both_ways(rng)
    graph = Graph(nodes={"user": NodeTable(num_nodes=30)}, edges={KNOWS: EdgeTable(src_keys=both[0], dst_keys=both[1])})
    split = split_links(graph, by="pair", val=0.3, test=0.3)
    found = hold_out_links(split, supervision_type=MEETS)
    assert found.fingerprint() == hold_out_links(split, KNOWS, MEETS, reverse=KNOWS).fingerprint()
    torn = split_links(graph, val=0.3, test=0.3)
    with pytest.raises(SettingsError, match=r"by='pair'.*or.*give reverse=None"):
        hold_out_links(torn, KNOWS, MEETS)
    assert hold_out_links(torn, KNOWS, MEETS, reverse=None).label_types == {MEETS: (KNOWS,)}


def test_the_edge_type_may_be_left_out_where_one_has_splits(graph):
    graph = replace(graph, edge_splits={})
    split = split_links(graph, RATES, by="pair")
    found = hold_out_links(split, supervision_type=LABEL)
    assert found.fingerprint() == hold_out_links(split, RATES, LABEL).fingerprint()
    for several in (graph, split_links(split, KNOWS)):
        with pytest.raises(SettingsError, match="edge_type is not given, but the graph has"):
            hold_out_links(several, supervision_type=LABEL)
    with pytest.raises(SettingsError, match="supervision_type is None; give an edge type from 'user' to 'movie'"):
        hold_out_links(split)


def parallel_graph(rng: np.random.Generator) -> Graph:
    src_keys, dst_keys = rng.integers(0, 10, (2, 300))
    order = rng.permutation(300)
    back = ("movie", "rev_rates", "user")
    return Graph(
        nodes={"user": NodeTable(num_nodes=10), "movie": NodeTable(num_nodes=10)},
        edges={
            RATES: EdgeTable(src_keys=src_keys, dst_keys=dst_keys),
            back: EdgeTable(src_keys=dst_keys[order], dst_keys=src_keys[order]),
        },
    ).check()


@pytest.mark.parametrize("reverse", ["rev_", None])
def test_a_parallel_edge_of_a_held_out_one_is_refused(rng, reverse):
    graph = parallel_graph(rng)
    said = r"edge \d+ of user__rates__movie is in split 'train', but a parallel edge is held out; .*by='pair'.*'remove'"
    with pytest.raises(SettingsError, match=said):
        hold_out_links(split_links(graph, RATES), RATES, LABEL, reverse=reverse)
    with pytest.raises(SettingsError, match=r"parallel is 'keep'; give refuse\|remove"):
        hold_out_links(split_links(graph, RATES), RATES, LABEL, parallel="keep")


@pytest.mark.parametrize("by,parallel", [("pair", "refuse"), ("pair", "remove"), ("edge", "remove")])
def test_both_types_lose_the_same_links(rng, by, parallel):
    graph = parallel_graph(rng)
    split = split_links(graph, RATES, by=by)
    found = hold_out_links(split, RATES, LABEL, parallel=parallel)
    named, pairs = split.edge_splits[RATES], ends(graph.edges[RATES])
    held = {pairs[key] for name in ("val", "test") for key in named[name]}
    left = [pair for pair in pairs if pair not in held]
    assert held and left and ends(found.edges[RATES]) == left
    back = ends(found.edges["movie", "rev_rates", "user"])
    assert sorted(back) == sorted((dst, src) for src, dst in left)
    assert ends(found.edges[LABEL]) == pairs


def test_parallel_edges_in_no_split_leave(rng):
    graph = parallel_graph(rng)
    pairs = ends(graph.edges[RATES])
    found = hold_out_links(replace(graph, edge_splits={RATES: {"test": np.arange(30)}}), RATES, LABEL, splits=("test",))
    assert ends(found.edges[RATES]) == [pair for pair in pairs if pair not in set(pairs[:30])]
    assert len(ends(found.edges["movie", "rev_rates", "user"])) == found.edges[RATES].num_edges
    assert ends(found.edges[LABEL]) == pairs[:30]
