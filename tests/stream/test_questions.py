"""Checks that a RemoteGraph answers with the dataset's contents, and refuses senseless questions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopstream
from hopstream.dataset.layout import open_dataset
from hopstream.errors import IdRangeError, SettingsError, StateError, UnknownNameError
from hopstream.graph.graph import Graph
from hopstream.preparation.write import write_parts
from hopstream.schema import type_label
from hopstream.stream.client import RemoteGraph
from hopstream.stream.questions import FeatureShape
from tests.load.link_graphs import FOLLOWS, LIKES, RATED, RATES, make_rating_graph
from tests.stream.serving import remote_graph, serve_here

NUM_USERS, NUM_MOVIES = 83, 60


def make_graph() -> Graph:
    """The graph of ratings, with a split of users, and an empty one."""
    graph = make_rating_graph(np.random.default_rng(5), NUM_USERS, NUM_MOVIES)
    return replace(graph, splits={"user": {"train": np.arange(0, NUM_USERS, 3), "none": np.empty(0, np.int64)}}).check()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ratings") / "parts"
    write_parts(make_graph(), folder, num_parts=3, method="random", direction="both", weight_attr="stars")
    return folder


@pytest.fixture
def locations(folder: Path) -> Iterator[str]:
    """Three servers, each with a part."""
    with serve_here(folder) as served:
        yield served.locations


@pytest.fixture
def graph(locations: str) -> Iterator[RemoteGraph]:
    with remote_graph(locations) as graph:
        yield graph


def test_facts_of_the_graph_are_fetched(folder: Path, graph: RemoteGraph):
    made = make_graph()
    assert graph.fetch_schema() == open_dataset(folder).manifest.schema
    assert graph.fetch_node_types() == ("user", "movie")
    assert set(graph.fetch_edge_types()) == {RATES, RATED, LIKES, FOLLOWS}
    assert graph.fetch_edge_dir() == ("in", "out")
    assert graph.fetch_edge_weights_registered() is True
    assert graph.fetch_node_feature_info()["movie"] == {
        "time": FeatureShape(dim=1, dtype="int64"),
        "x": FeatureShape(dim=3, dtype="float32"),
    }
    assert graph.fetch_edge_feature_info()[RATES]["stars"] == FeatureShape(dim=1, dtype="float32")
    assert graph.fetch_edge_feature_info()[LIKES] == {}
    keys = np.array([5, 0, 59, 5])
    labels = graph.fetch_node_labels("movie", "x", keys)
    assert labels.tolist() == made.nodes["movie"].features["x"][keys].tolist()


def test_books_map_nodes_and_edges_to_parts(folder: Path, graph: RemoteGraph):
    book = open_dataset(folder).manifest.book
    nodes, edges = graph.fetch_node_partition_book(), graph.fetch_edge_partition_book()
    assert {owner: of.tolist() for owner, of in nodes.items()} == {t: o.tolist() for t, o in book.node_offsets.items()}
    assert {owner: of.tolist() for owner, of in edges.items()} == {t: o.tolist() for t, o in book.edge_offsets.items()}
    parts = graph.get_node_partition_id("user", range(NUM_USERS))
    assert np.bincount(parts, minlength=3).tolist() == np.diff(nodes["user"]).tolist()
    nodes["user"][:] = 0  # a copy: the graph's own book is not the caller's to write
    assert graph.fetch_node_partition_book()["user"].any()


def test_degrees_are_of_one_edge_type_or_the_sum(graph: RemoteGraph):
    edges = make_graph().edges
    keys = np.array([7, 3, 3, 0])
    starts = {t: np.bincount(edges[t].src_keys, minlength=NUM_USERS)[keys] for t in (RATES, LIKES, FOLLOWS)}
    ends = {t: np.bincount(edges[t].dst_keys, minlength=NUM_USERS)[keys] for t in (RATED, FOLLOWS)}
    out = graph.fetch_degrees("user", keys, direction="out")
    assert out.tolist() == sum(starts.values()).tolist()
    assert graph.fetch_degrees("user", keys).tolist() == sum(ends.values()).tolist()
    for edge_type, wanted in starts.items():
        found = graph.fetch_degrees("user", keys, edge_type=edge_type, direction="out")
        assert found.tolist() == wanted.tolist()
    assert graph.fetch_degrees("user", [], edge_type=type_label(RATED)).tolist() == []
    with pytest.raises(SettingsError, match="belong to 'movie', not to 'user'"):
        graph.fetch_degrees("user", keys, edge_type=RATES, direction="in")
    with pytest.raises(SettingsError, match="direction is 'up'"):
        graph.fetch_degrees("user", keys, direction="up")


Ask = Callable[[RemoteGraph], Any]


@pytest.mark.parametrize(
    ("ask", "error", "message"),
    [
        (lambda graph: graph.fetch_split("user", "holdout"), UnknownNameError, "no split 'holdout'; known"),
        (lambda graph: graph.fetch_split("movie", "train"), UnknownNameError, "no split 'train'"),
        (lambda graph: graph.fetch_split("planet", "train"), UnknownNameError, "planet"),
        (lambda graph: graph.fetch_node_labels("movie", "genre", [0]), UnknownNameError, "genre"),
        (lambda graph: graph.fetch_node_labels("movie", "x", [NUM_MOVIES]), IdRangeError, str(NUM_MOVIES)),
        (lambda graph: graph.fetch_node_labels("movie", "x", [0.5]), SettingsError, r"keys are float64\[1\]"),
        (lambda graph: graph.get_node_partition_id("user", [[0]]), SettingsError, r"keys are int64\[1, 1\]"),
    ],
)
def test_invalid_questions_are_refused(graph: RemoteGraph, ask: Ask, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        ask(graph)


def test_splits_are_those_of_the_dataset_and_seeds_of_loaders(graph: RemoteGraph):
    keys = graph.fetch_split("user", "train")
    assert keys.dtype == np.int64 and keys.tolist() == list(range(0, NUM_USERS, 3))
    assert graph.fetch_split("user", "none").tolist() == []
    visited: list[int] = []
    for rank in range(3):
        with hopstream.NeighborLoader(
            graph, [2], seeds=("user", "train"), batch_size=4, rank=rank, world_size=3, collate="numpy"
        ) as loader:
            for batch in loader:
                visited += batch.node_keys["user"][: batch.batch_size].tolist()
    assert sorted(set(visited)) == keys.tolist()


def test_a_closed_graph_refuses_requests_and_keeps_its_loaders(locations: str):
    graph = remote_graph(locations)
    seeds = ("user", graph.fetch_split("user", "train"))
    with hopstream.NeighborLoader(graph, [2], seeds=seeds, batch_size=10, collate="numpy") as loader:
        graph.close()
        graph.close()
        assert len(list(loader)) == 3
    with pytest.raises(StateError, match="closed"):
        graph.fetch_node_types()
    remote_graph(locations).close()  # it was never asked
