"""Checks that a compute rank gets its inputs, each node on one rank, and true answers about the graph."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopstream
from hopstream.errors import FormatError, IdRangeError, SettingsError, StateError, UnknownNameError
from hopstream.partition.layout import open_dataset, write_parts
from hopstream.schema import NODE, type_label
from hopstream.store.cluster import write_cluster
from hopstream.store.wire import Frame
from hopstream.stream.client import RemoteGraph
from hopstream.stream.metadata import ABLPInput, FeatureInfo
from hopstream.stream.owners import _ColumnsReader
from tests.load.graphs import make_plain_graph
from tests.load.link_graphs import FOLLOWS, LIKES, RATED, RATES
from tests.stream.rank_graphs import NUM_MOVIES, NUM_USERS, SETTINGS, make_graph, serve_rack, write_graph


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_graph(tmp_path_factory.mktemp("ratings") / "parts")


def remote(locations: str | Path) -> RemoteGraph:
    return RemoteGraph(locations, settings=SETTINGS, timeout_s=30.0)


TWO, THREE = [[0, 2], [1]], [[0], [1], [2]]


@pytest.mark.parametrize("parts_of_servers", [TWO, THREE], ids=["two servers", "three servers"])
@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_all_ranks_together_visit_every_node_once(folder: Path, parts_of_servers: list[list[int]], world_size: int):
    with serve_rack(folder, parts_of_servers) as rack, remote(rack.locations) as graph:
        visited: list[int] = []
        for rank in range(world_size):
            ids = graph.fetch_node_ids(rank, world_size, "train", "user")
            keys = graph.seeds(rank, world_size, "train", "user")
            assert np.concatenate(list(ids.values())).tolist() == keys.tolist()
            assert all((np.diff(of_server) > 0).all() for of_server in ids.values())
            with hopstream.NeighborLoader(graph, [2], seeds=("user", keys), batch_size=4, collate="numpy") as loader:
                for batch in loader:
                    visited += batch.node_keys["user"][: batch.batch_size].tolist()
        assert sorted(visited) == list(range(0, NUM_USERS, 3))


@pytest.mark.parametrize("parts_of_servers", [TWO, THREE, [[0, 1, 2]], [[0, 1], [1, 2], [0, 2]]])
def test_all_ranks_together_have_every_node_once_of_the_server_that_owns_it(
    folder: Path, parts_of_servers: list[list[int]]
):
    dataset = open_dataset(folder)
    with serve_rack(folder, parts_of_servers) as rack, remote(rack.locations) as graph:
        for world_size in (1, 3, 100):
            found = [graph.fetch_node_ids(rank, world_size, node_type="user") for rank in range(world_size)]
            every = np.concatenate([keys for of_rank in found for keys in of_rank.values()])
            assert sorted(every.tolist()) == list(range(NUM_USERS))
            for server, parts in enumerate(parts_of_servers):
                keys = np.concatenate([of_rank[server] for of_rank in found if server in of_rank] or [np.empty(0, int)])
                own = set(parts) - {part for others in parts_of_servers[:server] for part in others}
                assert set(graph.get_node_partition_id("user", keys).tolist()) == own
        assert dataset.manifest.book.num_parts == 3


def test_a_split_may_be_empty_or_smaller_than_the_ranks(folder: Path):
    with serve_rack(folder, THREE) as rack, remote(rack.locations) as graph:
        assert sorted(key for rank in range(7) for key in graph.seeds(rank, 7, "test", "user")) == [1, 80]
        assert all(graph.seeds(rank, 2, "none", "user").size == 0 for rank in range(2))
        assert graph.seeds(0, 1, "none", "user").dtype == np.int64


def test_the_node_type_may_be_left_out_where_there_is_one(tmp_path: Path):
    plain = make_plain_graph(np.random.default_rng(0))
    write_parts(plain, tmp_path / "parts", num_parts=2, method="random")
    with serve_rack(tmp_path / "parts", [[0], [1]]) as rack:
        write_cluster(tmp_path / "cluster.json", rack.cluster)
        with remote(tmp_path / "cluster.json") as graph:
            found = np.concatenate([graph.seeds(rank, 3, "train") for rank in range(3)])
            assert sorted(found.tolist()) == plain.splits[NODE]["train"].tolist()


def joined(inputs: list[dict[int, ABLPInput]]) -> dict[int, tuple[list[int], list[int] | None]]:
    """Anchor to its labels, which are positive and negative."""
    found: dict[int, tuple[list[int], list[int] | None]] = {}
    for of_rank in inputs:
        for one in of_rank.values():
            for row, anchor in enumerate(one.anchors.tolist()):
                assert anchor not in found
                negatives = None if one.negatives is None else sorted(one.negatives[row].tolist())
                found[anchor] = (sorted(one.positives[row].tolist()), negatives)
    return found


def test_all_ranks_together_have_every_anchor_once_with_its_labels(folder: Path):
    rates, likes = make_graph().edges[RATES], make_graph().edges[LIKES]
    wanted = {
        anchor: (
            sorted(rates.dst_keys[rates.src_keys == anchor].tolist()),
            sorted(likes.dst_keys[likes.src_keys == anchor].tolist()),
        )
        for anchor in range(0, NUM_USERS, 3)
    }
    with serve_rack(folder, TWO) as rack, remote(rack.locations) as graph:
        for label in (RATES, type_label(RATES)):
            inputs = [
                graph.fetch_ablp_input(rank, 3, label, split="train", negative_edge_type=LIKES) for rank in range(3)
            ]
            assert joined(inputs) == wanted
        assert any(
            len(one.negatives[row]) == 0 for of in inputs for one in of.values() for row in range(len(one.anchors))
        )
        few = graph.fetch_ablp_input(0, 1, RATES, max_labels=2, rng_seed=3)
        assert joined([few]) == joined(
            [graph.fetch_ablp_input(rank, 4, RATES, max_labels=2, rng_seed=3) for rank in range(4)]
        )
        assert {len(one.positives[row]) for one in few.values() for row in range(len(one.anchors))} <= {0, 1, 2}
        movies = graph.fetch_ablp_input(0, 1, RATES, label_direction="in", node_type="movie")
        assert sorted(joined([movies])) == list(range(NUM_MOVIES))


def test_anchors_of_a_rank_are_a_loaders_input(folder: Path):
    with serve_rack(folder, TWO) as rack, remote(rack.locations) as graph:
        visited = []
        for rank in range(2):
            inputs = graph.fetch_ablp_input(rank, 2, RATES, split="train")
            anchors = np.concatenate([one.anchors for one in inputs.values()])
            with hopstream.ABLPLoader(
                graph, [2], ("user", anchors), supervision=RATES, batch_size=8, collate="numpy"
            ) as loader:
                for batch in loader:
                    visited += batch.node_keys["user"][: batch.batch_size].tolist()
        assert sorted(visited) == list(range(0, NUM_USERS, 3))


def test_what_there_is_to_know_of_the_graph(folder: Path):
    made = make_graph()
    with serve_rack(folder, TWO) as rack, remote(rack.locations) as graph:
        assert graph.fetch_schema() == open_dataset(folder).manifest.schema
        assert graph.fetch_node_types() == ("user", "movie")
        assert set(graph.fetch_edge_types()) == {RATES, RATED, LIKES, FOLLOWS}
        assert graph.fetch_edge_dir() == ("in", "out")
        assert graph.fetch_edge_weights_registered() is True
        assert graph.fetch_node_feature_info()["movie"] == {
            "time": FeatureInfo(dim=1, dtype="int64"),
            "x": FeatureInfo(dim=3, dtype="float32"),
        }
        assert graph.fetch_edge_feature_info()[RATES]["stars"] == FeatureInfo(dim=1, dtype="float32")
        assert graph.fetch_edge_feature_info()[LIKES] == {}
        keys = np.array([5, 0, 59, 5])
        labels = graph.fetch_node_labels("movie", "x", keys)
        assert labels.tolist() == made.nodes["movie"].features["x"][keys].tolist()


def test_books_tell_who_owns_what(folder: Path):
    book = open_dataset(folder).manifest.book
    with serve_rack(folder, TWO) as rack, remote(rack.locations) as graph:
        nodes, edges = graph.fetch_node_partition_book(), graph.fetch_edge_partition_book()
        assert {owner: of.tolist() for owner, of in nodes.items()} == {
            t: o.tolist() for t, o in book.node_offsets.items()
        }
        assert {owner: of.tolist() for owner, of in edges.items()} == {
            t: o.tolist() for t, o in book.edge_offsets.items()
        }
        parts = graph.get_node_partition_id("user", range(NUM_USERS))
        assert np.bincount(parts, minlength=3).tolist() == np.diff(nodes["user"]).tolist()
        nodes["user"][:] = 0  # a copy: the graph's own book is not the caller's to write
        assert graph.fetch_node_partition_book()["user"].any()


def test_degrees_are_of_one_edge_type_or_the_sum(folder: Path):
    edges = make_graph().edges
    keys = np.array([7, 3, 3, 0])
    starts = {t: np.bincount(edges[t].src_keys, minlength=NUM_USERS)[keys] for t in (RATES, LIKES, FOLLOWS)}
    ends = {t: np.bincount(edges[t].dst_keys, minlength=NUM_USERS)[keys] for t in (RATED, FOLLOWS)}
    with serve_rack(folder, TWO) as rack, remote(rack.locations) as graph:
        out = graph.fetch_degrees("user", keys, direction="out")
        assert out.tolist() == sum(starts.values()).tolist()
        assert graph.fetch_degrees("user", keys).tolist() == sum(ends.values()).tolist()
        for edge_type, wanted in starts.items():
            found = graph.fetch_degrees("user", keys, edge_type=edge_type, direction="out")
            assert found.tolist() == wanted.tolist()
        assert graph.fetch_degrees("user", [], edge_type=type_label(RATED)).tolist() == []
        with pytest.raises(SettingsError, match="are those of 'movie', not of 'user'"):
            graph.fetch_degrees("user", keys, edge_type=RATES, direction="in")
        with pytest.raises(SettingsError, match="direction is 'up'"):
            graph.fetch_degrees("user", keys, direction="up")


Ask = Callable[[RemoteGraph], Any]


@pytest.mark.parametrize(
    ("ask", "error", "message"),
    [
        (lambda graph: graph.fetch_node_ids(2, 2, node_type="user"), SettingsError, "rank is 2; with world_size 2"),
        (lambda graph: graph.fetch_node_ids(-1, 2, node_type="user"), SettingsError, "rank is -1"),
        (lambda graph: graph.fetch_node_ids(0, 0, node_type="user"), SettingsError, "world_size is 0"),
        (lambda graph: graph.fetch_node_ids(0, 1), SettingsError, "node_type is not given"),
        (lambda graph: graph.fetch_node_ids(0, 1, node_type="planet"), UnknownNameError, "planet"),
        (lambda graph: graph.seeds(0, 1, "holdout", "user"), UnknownNameError, "no split 'holdout'; known"),
        (lambda graph: graph.seeds(0, 1, "train", "movie"), UnknownNameError, "no split 'train'"),
        (lambda graph: graph.fetch_ablp_input(0, 1, ("a", "b", "c")), UnknownNameError, "b"),
        (lambda graph: graph.fetch_ablp_input(0, 1, RATES, split="val"), UnknownNameError, "no split 'val'"),
        (lambda graph: graph.fetch_ablp_input(0, 1, RATES, node_type="movie"), SettingsError, "of type 'user'"),
        (lambda graph: graph.fetch_ablp_input(0, 1, RATES, max_labels=0), SettingsError, "max_labels is 0"),
        (lambda graph: graph.fetch_node_labels("movie", "genre", [0]), UnknownNameError, "genre"),
        (lambda graph: graph.fetch_node_labels("movie", "x", [NUM_MOVIES]), IdRangeError, str(NUM_MOVIES)),
        (lambda graph: graph.fetch_node_labels("movie", "x", [0.5]), SettingsError, r"keys are float64\[1\]"),
        (lambda graph: graph.get_node_partition_id("user", [[0]]), SettingsError, r"keys are int64\[1, 1\]"),
    ],
)
def test_questions_that_make_no_sense_are_refused(folder: Path, ask: Ask, error: type[Exception], message: str):
    with serve_rack(folder, [[0, 1, 2]]) as rack, remote(rack.locations) as graph, pytest.raises(error, match=message):
        ask(graph)


def test_a_closed_graph_answers_nothing_and_leaves_its_loaders_alone(folder: Path):
    with serve_rack(folder, TWO) as rack:
        graph = remote(rack.locations)
        seeds = ("user", graph.seeds(0, 1, "train", "user"))
        with hopstream.NeighborLoader(graph, [2], seeds=seeds, batch_size=10, collate="numpy") as loader:
            graph.close()
            graph.close()
            assert len(list(loader)) == 3
        with pytest.raises(StateError, match="closed"):
            graph.fetch_node_types()
        with pytest.raises(StateError, match="closed"):
            graph.seeds(0, 1, "train", "user")
        never_asked = remote(rack.locations)
        never_asked.close()


@pytest.mark.parametrize(
    ("header", "arrays"),
    [
        ({"columns": ["keys"]}, []),
        ({"columns": ["planets"]}, [np.zeros(1, np.int64)]),
        ({"columns": [["keys"]]}, [np.zeros(1, np.int64)]),
        ({}, []),
        ({"columns": ["keys"]}, [np.array([9])]),
        ({"columns": ["keys"]}, [np.array([-1])]),
        ({"columns": ["keys"]}, [np.zeros(1, np.float64)]),
        *(
            ({"columns": ["keys"], "runs": True}, [np.array(bounds)])
            for bounds in (
                [0],
                [0, 10],
                [-1, 3],
                [3, 3],
                [3, 2],
                [0, 4, 3, 5],
                [5, 6, 0, 1],
                [0, 1 << 62],
                [7, -(1 << 63)],
            )
        ),
    ],
)
def test_frames_that_make_no_sense_are_refused(header: dict[str, Any], arrays: list[np.ndarray]):
    with pytest.raises(FormatError):
        _ColumnsReader({"keys": 9}).take(Frame(header, arrays))


def test_runs_in_many_frames_are_no_more_than_the_keys_there_are():
    reader = _ColumnsReader({"keys": 9})
    runs = Frame({"columns": ["keys"], "runs": True}, [np.array([0, 5])])
    reader.take(runs)
    with pytest.raises(FormatError, match="has 10 numbers of 9 in runs"):
        reader.take(runs)


def test_an_answer_that_was_cut_off_is_refused():
    reader = _ColumnsReader({"keys": 9})
    reader.take(Frame({"columns": ["keys"]}, [np.array([3, 4])]))
    with pytest.raises(FormatError, match="says that they have None"):
        reader.result()
    reader.take(Frame({"columns": [], "num_rows": {"keys": 3}}, []))
    with pytest.raises(FormatError, match="2"):
        reader.result()
