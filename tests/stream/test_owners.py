"""Checks that ranks agree on who owns what, and that another server answers where the owner is gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopstream.errors import FormatError, StoreUnavailable
from hopstream.store.cluster import write_cluster
from hopstream.stream.client import RemoteGraph
from hopstream.stream.owners import candidates_for, owners_of
from tests.store.busy import make_busy
from tests.stream.rank_graphs import NUM_USERS, SETTINGS, serve_rack, write_graph


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_graph(tmp_path_factory.mktemp("ratings") / "parts")


def test_the_server_listed_first_owns_a_part():
    assert owners_of([(0, 1), (2,)]) == {0: (0, 1), 1: (2,)}
    assert owners_of([(0, 1), (1, 2), (0, 2)]) == {0: (0, 1), 1: (2,)}
    assert owners_of([(0,), (0,), (1,)]) == {0: (0,), 2: (1,)}


def test_others_are_asked_only_where_all_parts_have_replicas():
    assert candidates_for(0, (0, 1), [(0, 1), (2,)]) == [0]
    assert candidates_for(0, (0, 1), [(0, 1), (1,), (1, 2)]) == [0]
    assert candidates_for(1, (1,), [(0,), (1, 2), (0, 1)]) == [1, 2, 0]
    assert candidates_for(0, (0, 1), [(0, 1), (0,), (0, 1)]) == [0, 2, 1]


def test_ranks_have_the_same_inputs_when_an_owner_is_gone(folder: Path, tmp_path: Path):
    with serve_rack(folder, [[0, 1], [1, 2], [2, 0]]) as rack:
        write_cluster(tmp_path / "cluster.json", rack.cluster)
        with RemoteGraph(tmp_path / "cluster.json", settings=SETTINGS) as graph:
            before = [graph.fetch_node_ids(rank, 3, "train", "user") for rank in range(3)]
        rack.servers[0].close()
        with RemoteGraph(tmp_path / "cluster.json", settings=SETTINGS) as graph:
            after = [graph.fetch_node_ids(rank, 3, "train", "user") for rank in range(3)]
    as_lists = [[{s: keys.tolist() for s, keys in of_rank.items()} for of_rank in found] for found in (before, after)]
    assert as_lists[0] == as_lists[1]
    assert sum(len(keys) for of_rank in after for keys in of_rank.values()) == len(range(0, NUM_USERS, 3))


@pytest.mark.parametrize(
    ("times", "num_calls"),
    [((3,), (4,)), ((1e9, 0), (1, 1)), ((1, 1), (2, 1)), ((1e9, 4), (2, 5))],
    ids=["again until it answers", "the other at once", "once more", "the last until it answers"],
)
def test_a_server_that_is_too_busy_is_asked_again_after_its_replicas(
    folder: Path, times: tuple[float, ...], num_calls: tuple[int, ...]
):
    with (
        serve_rack(folder, [[0, 1, 2]] * len(times)) as rack,
        RemoteGraph(rack.locations, settings=SETTINGS) as graph,
    ):
        assert len(graph.seeds(0, 1, node_type="user")) == NUM_USERS
        attempts = [make_busy(graph._owners._channel(number), of_one) for number, of_one in enumerate(times)]
        assert len(graph.seeds(0, 1, node_type="user")) == NUM_USERS
        assert tuple(map(len, attempts)) == num_calls


def test_a_part_that_nobody_serves_any_more_is_an_error_in_time(folder: Path, tmp_path: Path):
    with serve_rack(folder, [[0], [1, 2]]) as rack, RemoteGraph(rack.locations, settings=SETTINGS) as graph:
        assert len(graph.seeds(0, 1, node_type="user")) == NUM_USERS
        rack.servers[1].close()
        with pytest.raises(StoreUnavailable, match="nothing listens there"):
            graph.fetch_node_ids(1, 2, node_type="user")


def test_an_owners_refusal_is_told_at_once(folder: Path):
    with serve_rack(folder, [[0, 1, 2]]) as rack, RemoteGraph(rack.locations, settings=SETTINGS) as graph:
        question = {"op": "get_node_ids", "dataset": rack.dataset_id, "node_type": "user", "split": 3}
        with pytest.raises(FormatError, match="'split' is 3"):
            graph._owners.ask(question, (0, 1), {"keys": NUM_USERS})
