"""Checks that each raw id leads to its node, and any other id to an error that names it."""

from __future__ import annotations

import re

import numpy as np
import pytest

from hopstream.arrays import RaggedArray
from hopstream.dataset import raw_ids
from hopstream.dataset.layout import open_dataset
from hopstream.dataset.raw_ids import as_bytes
from hopstream.errors import IdRangeError, SettingsError, UnknownNameError
from hopstream.export.raw_ids import RawIndex
from hopstream.export.seeds import NodeIds, array_batches
from hopstream.graph.graph import Graph, NodeTable
from hopstream.preparation.write import write_parts
from hopstream.sample import raw_ids as sample_ids
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


def test_raw_ids_map_to_their_nodes(store, rng, monkeypatch):
    monkeypatch.setattr(sample_ids, "NODES_AT_ONCE", 300)
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


def test_colliding_hashes_are_resolved(store, monkeypatch):
    monkeypatch.setattr(raw_ids, "hash_strings", lambda values, offsets, out: out.fill(3))
    index = RawIndex.of(store, "text")
    assert index.keys_of([NAMES[5], NAMES[998], NAMES[0]]).tolist() == [5, 998, 0]
    with pytest.raises(IdRangeError, match="'x' is not a node"):
        index.keys_of([NAMES[5], "x"])


def test_unknown_seeds_are_named(store):
    with pytest.raises(IdRangeError, match=r"seed 'who' is not a node of type 'text': text.#id does not contain it"):
        RawIndex.of(store, "text").keys_of([NAMES[3], "who", "what"])
    for unknown in (-49, "x", "+6", " 6", "0x6", str(2**70), "-2"):
        with pytest.raises(
            IdRangeError,
            match=rf"seed '?{re.escape(str(unknown))}'? is not a node of type 'number': number.id does not contain it",
        ):
            RawIndex.of(store, "number").keys_of([-50, unknown])
    for unknown in ("1000", "x", -1):
        with pytest.raises(IdRangeError, match=r"of type 'key': it has no raw ids, and its keys are 0\.\.999"):
            RawIndex.of(store, "key").keys_of([unknown])


IDS = np.array([7, 2**63 + 5, 2**64 - 1, 8], np.uint64)
MEANT = {"007": 0, str(2**63 + 5): 1, str(2**64 - 1): 2, "8": 3}
NONE = ("-1", str(-(2**63) + 5), " 8", "+8", "8.0", "0x8", "", str(2**64), "9")


@pytest.fixture
def odd_store(tmp_path):
    nodes = {
        "large": NodeTable(num_nodes=4, features={"id": IDS}),
        "real": NodeTable(num_nodes=4, features={"id": np.arange(4, dtype=np.float32)}),
        "signed": NodeTable(num_nodes=4, features={"id": np.array([-7, 0, 7, -(2**63)])}),
    }
    write_parts(Graph(nodes=nodes, edges={}), tmp_path / "odd", num_parts=1, method="random")
    with LocalStore(open_dataset(tmp_path / "odd")) as opened:
        yield opened


def keys_by_all(store, node_type: str, raw: list) -> list[int]:
    """Keys by an export's look-up, after checking that the index gives the same; -1 for unknown ids."""
    index, ids = RawIndex.of(store, node_type), NodeIds(store, node_type, None)
    [batch] = array_batches(np.array(raw, object), "seeds")
    by_lookup = ids.keys_of(batch.columns[0]).tolist()
    for one, key in zip(raw, by_lookup, strict=True):
        if key < 0:
            with pytest.raises(IdRangeError, match=f"is not a node of type '{node_type}'"):
                index.keys_of([one])
        else:
            assert index.keys_of([one]).tolist() == [key]
            assert index.names_of([one]) == ids.of_keys(np.array([key]))
    return by_lookup


def test_an_export_and_an_index_mean_the_same(odd_store, store):
    assert keys_by_all(odd_store, "large", list(MEANT)) == list(MEANT.values())
    assert keys_by_all(odd_store, "large", list(map(int, MEANT))) == list(MEANT.values())
    assert keys_by_all(odd_store, "large", [8, -1, 7]) == [3, -1, 0]
    assert keys_by_all(odd_store, "large", [*NONE, "8"]) == [-1] * len(NONE) + [3]
    assert keys_by_all(odd_store, "real", ["002", "-1", "3", "4", "1.0"]) == [2, -1, 3, -1, -1]
    assert keys_by_all(odd_store, "signed", ["-7", "-07", "-0", str(-(2**63)), "7", "x"]) == [0, 0, 1, 3, 2, -1]
    assert keys_by_all(odd_store, "signed", [2**63, 2**64 - 7, 7]) == [-1, -1, 2]
    assert keys_by_all(store, "text", [NAMES[5], "007", "node"]) == [5, -1, -1]
    assert keys_by_all(store, "key", [2**63 + 5, 7]) == [-1, 7]


def test_bad_id_features_are_refused(store):
    with pytest.raises(SettingsError, match=r"id_feature is 'list', which is int64\[rows, 2\]; ids are single"):
        RawIndex.of(store, "text", "list")
    with pytest.raises(UnknownNameError, match="text has no feature 'x'"):
        RawIndex.of(store, "text", "x")
    with pytest.raises(UnknownNameError, match="topic"):
        RawIndex.of(store, "topic")
    for wrong in (1.5, True, None):
        with pytest.raises(SettingsError, match="raw ids are bytes, str or int"):
            as_bytes(wrong)
