"""Does each raw id lead to its node, and any other to an error that names it?"""

from __future__ import annotations

import numpy as np
import pytest

from hopstream.arrays import RaggedArray
from hopstream.errors import IdRangeError, SettingsError, UnknownNameError
from hopstream.export import raw_index
from hopstream.export.raw_index import RawIndex, as_bytes
from hopstream.graph.graph import Graph, NodeTable
from hopstream.partition.layout import open_dataset, write_parts
from hopstream.store.local import LocalStore

NUM_NODES = 1000
NUMBERS = np.arange(NUM_NODES)[::-1] * 7 - 50
NAMES = [f"node {number * number % 1009}|{number}" for number in range(NUM_NODES)]


@pytest.fixture
def store(tmp_path):
    names = RaggedArray.from_strings([*NAMES[:-1], ""])
    lists = np.zeros((NUM_NODES, 2), np.int64)
    nodes = {
        "text": NodeTable(num_nodes=NUM_NODES, features={"#id": names, "list": lists}),
        "number": NodeTable(num_nodes=NUM_NODES, features={"id": NUMBERS.astype(np.int32)}),
        "key": NodeTable(num_nodes=NUM_NODES),
    }
    write_parts(Graph(nodes=nodes, edges={}), tmp_path / "parts", num_parts=3, method="random")
    with LocalStore(open_dataset(tmp_path / "parts")) as opened:
        yield opened


def test_raw_ids_lead_to_their_nodes(store, rng, monkeypatch):
    monkeypatch.setattr(raw_index, "NODES_AT_ONCE", 300)
    keys = rng.integers(0, NUM_NODES - 1, 200)
    text = RawIndex.of(store, "text")
    assert text.feature == "#id"
    assert text.keys_of([NAMES[key] for key in keys]).tolist() == keys.tolist()
    assert text.keys_of([NAMES[key].encode() for key in keys]).tolist() == keys.tolist()
    assert text.keys_of([""]).tolist() == [NUM_NODES - 1]
    number = RawIndex.of(store, "number")
    assert number.keys_of([NUMBERS[key] for key in keys]).tolist() == keys.tolist()
    assert number.keys_of([str(NUMBERS[key]) for key in keys]).tolist() == keys.tolist()
    assert RawIndex.of(store, "key").keys_of([b"7", "999", 0]).tolist() == [7, 999, 0]
    assert text.keys_of([]).tolist() == number.keys_of([]).tolist() == []


def test_equal_hashes_are_told_apart(store, monkeypatch):
    monkeypatch.setattr(raw_index, "hash_strings", lambda values, offsets, out: out.fill(3))
    index = RawIndex.of(store, "text")
    assert index.keys_of([NAMES[5], NAMES[998], NAMES[0]]).tolist() == [5, 998, 0]
    with pytest.raises(IdRangeError, match="'x' is no node"):
        index.keys_of([NAMES[5], "x"])


def test_unknown_seeds_are_named(store):
    with pytest.raises(IdRangeError, match=r"seed 'who' is no node of type 'text': text\.#id has no such value"):
        RawIndex.of(store, "text").keys_of([NAMES[3], "who", "what"])
    for unknown in (-49, "x", "007", str(2**70), "-2"):
        with pytest.raises(IdRangeError, match=rf"seed '?{unknown}'? is no node of type 'number': number.id has no"):
            RawIndex.of(store, "number").keys_of([-50, unknown])
    for unknown in ("1000", "x", -1):
        with pytest.raises(IdRangeError, match=r"of type 'key': it has no raw ids, and its keys are 0\.\.999"):
            RawIndex.of(store, "key").keys_of([unknown])


def test_what_cannot_be_is_refused(store):
    with pytest.raises(SettingsError, match=r"id_feature is 'list', which is int64\[rows, 2\]; ids are single"):
        RawIndex.of(store, "text", "list")
    with pytest.raises(UnknownNameError, match="text has no feature 'x'"):
        RawIndex.of(store, "text", "x")
    with pytest.raises(UnknownNameError, match="topic"):
        RawIndex.of(store, "topic")
    for wrong in (1.5, True, None):
        with pytest.raises(SettingsError, match="raw ids are bytes, str or int"):
            as_bytes(wrong)
