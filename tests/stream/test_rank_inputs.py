"""Checks that a server answers what its parts own, in frames of bounded size, and refuses what makes no sense."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from hopstream.errors import FormatError, SettingsError, UnknownNameError
from hopstream.partition.book import PartitionBook
from hopstream.partition.layout import open_dataset
from hopstream.schema import GraphSchema
from hopstream.store.contract import KEY, FetchRequest
from hopstream.store.local import LocalStore
from hopstream.store.wire import Frame, decode_frame, encode_frame
from hopstream.stream import rank_inputs
from hopstream.stream.owners import _ColumnsReader
from hopstream.stream.rank_inputs import RankInputs, owned_keys
from tests.load.link_graphs import LIKES, RATED, RATES
from tests.stream.rank_graphs import NUM_USERS, make_graph, write_graph

WHOLE = {"server_rank": 0, "start_numerator": 0, "end_numerator": 1, "denominator": 1}
NODES = {"node_type": "user", "split": None, "parts": [0, 1, 2], "server_slice": None}
ANCHORS = {
    **NODES, "supervision_edge_type": list(RATES), "negative_edge_type": None, "label_direction": "out",
    "max_labels": -1, "rng_seed": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStore]:
    with LocalStore(open_dataset(write_graph(tmp_path_factory.mktemp("ratings") / "parts"))) as opened:
        yield opened


@pytest.fixture
def inputs(store: LocalStore) -> RankInputs:
    return RankInputs(lambda: store)


def ask(inputs: RankInputs, op: str, header: dict[str, Any]) -> tuple[dict[str, list[int]], list[int]]:
    """The columns of an answer, and the rows of each of its frames."""
    columns: dict[str, list[int]] = {}
    sizes = []
    for frame in map(decode_frame, inputs.operations[op](decode_frame(encode_frame(header)))):
        for name, piece in zip(frame.header["columns"], frame.arrays, strict=True):
            columns.setdefault(name, []).extend(piece.tolist())
        sizes.append(sum(map(len, frame.arrays)))
    told = frame.header["num_rows"]
    assert {name: len(columns.get(name, [])) for name in told} == told
    return {name: columns.get(name, []) for name in told}, sizes


def keys_of_part(store: LocalStore, part: int) -> list[int]:
    first, stop = store.book.node_offsets["user"][part : part + 2]
    ids = np.arange(first, stop)
    return store.fetch([FetchRequest(owner="user", names=(KEY,), ids=ids)])[0][KEY].tolist()


def test_parts_own_their_nodes_and_no_others(store: LocalStore, inputs: RankInputs):
    for parts in ([0], [2], [2, 0], [0, 1, 2], []):
        keys = sorted(key for part in parts for key in keys_of_part(store, part))
        assert ask(inputs, "get_node_ids", {**NODES, "parts": parts})[0] == {"keys": keys}
        train = [key for key in keys if key % 3 == 0]
        assert ask(inputs, "get_node_ids", {**NODES, "parts": parts, "split": "train"})[0] == {"keys": train}
        assert ask(inputs, "get_node_ids", {**NODES, "parts": parts, "split": "none"})[0] == {"keys": []}


def test_a_slice_is_of_the_ascending_keys(inputs: RankInputs):
    third = {**WHOLE, "start_numerator": 1, "end_numerator": 2, "denominator": 3}
    found = ask(inputs, "get_node_ids", {**NODES, "server_slice": third})[0]["keys"]
    assert found == list(range(NUM_USERS // 3, 2 * NUM_USERS // 3))


class StripedStore:
    """A million nodes; part ``p`` of four owns every fourth node from ``p`` on."""

    NUM = 1 << 20
    book = PartitionBook(num_parts=4, node_offsets={"user": np.arange(5) * (NUM // 4)}, edge_offsets={})
    schema = GraphSchema(nodes={"user": {}}, edges={})

    def fetch(self, requests: list[FetchRequest]) -> list[dict[str, np.ndarray]]:
        return [{KEY: 4 * (one.ids % (self.NUM // 4)) + one.ids // (self.NUM // 4)} for one in requests]


@pytest.mark.parametrize(("parts", "start"), [([0, 1, 2, 3], 0), ([0, 1, 2, 3], 1), ([0, 2], 0)])
def test_what_is_contiguous_travels_and_is_kept_as_a_run(parts: list[int], start: int):
    inputs = RankInputs(StripedStore)  # type: ignore[arg-type]
    server_slice = {**WHOLE, "start_numerator": start, "end_numerator": 2, "denominator": 2}
    header = {**NODES, "parts": parts, "server_slice": server_slice, "runs": True}
    num_bytes, reader = 0, _ColumnsReader({"keys": StripedStore.NUM})
    for message in inputs.get_node_ids(Frame(header, [])):
        num_bytes += len(message)
        reader.take(decode_frame(message))
    wanted = np.arange(start * StripedStore.NUM // 2, StripedStore.NUM)
    wanted = wanted[np.isin(wanted % 4, parts)]
    assert np.array_equal(reader.result()["keys"], wanted)
    if len(parts) == 4:
        assert num_bytes < 500
        assert [kept.nbytes for kept in inputs._kept.values()] == [16]
    assert num_bytes < 8 * len(wanted) + 10_000  # no more than the keys, where they are fewer numbers


def test_reading_keys_takes_memory_for_a_block():
    tracemalloc.start()
    try:
        assert len(owned_keys(StripedStore(), "user", None, [0, 1, 2, 3])) == StripedStore.NUM  # type: ignore[arg-type]
        assert tracemalloc.get_traced_memory()[1] < 7 << 20  # of 8 MiB of keys
    finally:
        tracemalloc.stop()


def test_long_answers_come_in_frames_of_bounded_size(inputs: RankInputs, monkeypatch: pytest.MonkeyPatch):
    nodes, _ = ask(inputs, "get_node_ids", NODES)
    header = {**ANCHORS, "negative_edge_type": list(LIKES)}
    anchors, _ = ask(inputs, "get_ablp_input", header)
    monkeypatch.setattr(rank_inputs, "FRAME_ROWS", 5)
    monkeypatch.setattr(rank_inputs, "BLOCK_ANCHORS", 7)
    again, sizes = ask(RankInputs(inputs._graph), "get_node_ids", NODES)
    assert again == nodes
    assert max(sizes) == 5
    again, sizes = ask(RankInputs(inputs._graph), "get_ablp_input", header)
    assert again == anchors
    assert max(sizes) == 5


@pytest.mark.parametrize(("edge_type", "direction"), [(RATES, "out"), (RATED, "in"), (LIKES, "out")])
def test_labels_are_the_edges_of_each_anchor(inputs: RankInputs, edge_type: tuple[str, str, str], direction: str):
    edges = make_graph().edges[edge_type]
    anchor_keys, label_keys = (edges.src_keys, edges.dst_keys)[:: 1 if direction == "out" else -1]
    header = {**ANCHORS, "supervision_edge_type": list(edge_type), "label_direction": direction, "split": "train"}
    found = ask(inputs, "get_ablp_input", header)[0]
    assert found["anchors"] == list(range(0, NUM_USERS, 3))
    rows = np.split(np.array(found["positives"], np.int64), np.cumsum(found["positive_counts"])[:-1])
    for anchor, row in zip(found["anchors"], rows, strict=True):
        assert sorted(row.tolist()) == sorted(label_keys[anchor_keys == anchor].tolist())


def test_labels_over_the_limit_are_drawn_the_same_for_every_slice(inputs: RankInputs):
    header = {**ANCHORS, "max_labels": 3, "negative_edge_type": list(LIKES), "rng_seed": 9}
    every = ask(inputs, "get_ablp_input", header)[0]
    assert max(every["positive_counts"]) == 3
    assert ask(inputs, "get_ablp_input", {**header, "rng_seed": 10})[0] != every
    joined: dict[str, list[int]] = {name: [] for name in every}
    for start in range(5):
        part = {**WHOLE, "start_numerator": start, "end_numerator": start + 1, "denominator": 5}
        for name, column in ask(inputs, "get_ablp_input", {**header, "server_slice": part})[0].items():
            joined[name] += column
    assert joined == every


def test_keys_that_are_kept_are_bounded_and_used_again(store: LocalStore, monkeypatch: pytest.MonkeyPatch):
    num_reads = 0

    def counted(*args: Any) -> Any:
        nonlocal num_reads
        num_reads += 1
        return owned_keys(*args)

    monkeypatch.setattr(rank_inputs, "owned_keys", counted)
    inputs = RankInputs(lambda: store)
    first = ask(inputs, "get_node_ids", NODES)
    assert ask(inputs, "get_node_ids", NODES) == first
    assert num_reads == 1
    monkeypatch.setattr(rank_inputs, "KEPT_BYTES", owned_keys(store, "user", None, [1]).nbytes)
    ask(inputs, "get_node_ids", {**NODES, "parts": [1]})
    assert sum(kept.nbytes for kept in inputs._kept.values()) <= rank_inputs.KEPT_BYTES
    assert ask(inputs, "get_node_ids", NODES) == first
    assert num_reads == 3
    assert inputs.lookups == (1, 3)


def test_ranks_that_ask_together_have_the_keys_read_once(store: LocalStore, monkeypatch: pytest.MonkeyPatch):
    reads: list[int] = []
    everybody = threading.Barrier(4)

    def counted(*args: Any) -> Any:
        reads.append(1)
        return owned_keys(*args)

    def ask_together(_: int) -> object:
        everybody.wait(10)
        return ask(inputs, "get_node_ids", NODES)

    monkeypatch.setattr(rank_inputs, "owned_keys", counted)
    inputs = RankInputs(lambda: store)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(ask_together, range(4)))
    assert found == [found[0]] * 4
    assert len(reads) == 1


def test_questions_without_answers_are_not_kept_for_ever(inputs: RankInputs, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rank_inputs, "MAX_KEPT", 2)
    for parts in ([0], [1], [2], [0, 1]):
        ask(inputs, "get_node_ids", {**NODES, "parts": parts, "split": "none"})
    assert [parts for _, _, parts in inputs._kept] == [(2,), (0, 1)]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"node_type": "planet"}, UnknownNameError, "planet"),
        ({"node_type": 3}, FormatError, "node_type"),
        ({"split": "holdout"}, UnknownNameError, "no split 'holdout'"),
        ({"split": 3}, FormatError, "split"),
        ({"parts": None}, FormatError, "parts"),
        ({"parts": [True]}, FormatError, "parts"),
        ({"parts": [3]}, SettingsError, r"0\.\.2"),
        ({"parts": [0, 0]}, SettingsError, "each once"),
        ({"server_slice": 3}, FormatError, "server_slice"),
        ({"server_slice": {}}, FormatError, "server_slice"),
        ({"server_slice": {**WHOLE, "denominator": 0}}, SettingsError, "denominator is 0"),
        ({"server_slice": {**WHOLE, "start_numerator": 1, "end_numerator": 0}}, SettingsError, "must not end before"),
        ({"server_slice": {**WHOLE, "end_numerator": "1"}}, SettingsError, "end_numerator"),
    ],
)
@pytest.mark.parametrize("op", ["get_node_ids", "get_ablp_input"])
def test_requests_that_make_no_sense_are_refused(
    inputs: RankInputs, op: str, change: dict[str, Any], error: type[Exception], message: str
):
    if op == "get_ablp_input" and change == {"node_type": "planet"}:
        error = SettingsError
    with pytest.raises(error, match=message):
        ask(inputs, op, {**ANCHORS, **change})


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"supervision_edge_type": None}, FormatError, "source, relation, destination"),
        ({"supervision_edge_type": ["user", "eats", "movie"]}, UnknownNameError, "eats"),
        ({"supervision_edge_type": list(RATED)}, SettingsError, "are of type 'movie'"),
        ({"negative_edge_type": list(RATED)}, SettingsError, "another edge type between"),
        ({"label_direction": "up"}, FormatError, "direction"),
        ({"label_direction": None}, FormatError, "direction"),
        ({"max_labels": 0}, SettingsError, "max_labels is 0"),
        ({"max_labels": -2}, SettingsError, "max_labels is -2"),
        ({"rng_seed": -1}, SettingsError, "rng_seed is -1"),
    ],
)
def test_anchors_that_make_no_sense_are_refused(
    inputs: RankInputs, change: dict[str, Any], error: type[Exception], message: str
):
    with pytest.raises(error, match=message):
        ask(inputs, "get_ablp_input", {**ANCHORS, **change})
