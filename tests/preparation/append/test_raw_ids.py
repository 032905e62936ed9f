"""Checks that appended edges may name old and new nodes by raw id."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import hopstream
from hopstream.arrays import RaggedArray
from hopstream.errors import IdRangeError, SettingsError, UnknownNameError

NUM_USERS = 60
RATES = ("user", "rates", "film")
NAMES = [f"user {number * 7 % 61}" for number in range(NUM_USERS)]
NUMBERS = np.arange(20)[::-1] + 100


@pytest.fixture
def parts(rng: np.random.Generator, tmp_path):
    graph = hopstream.graph_from_arrays(
        {RATES: rng.integers(0, (NUM_USERS, len(NUMBERS)), (200, 2)).T},
        node_features={"user": {"name": NAMES}, "film": {"id": NUMBERS}},
    )
    for name in ("by_key", "by_id"):
        hopstream.write_parts(graph, tmp_path / name, num_parts=3, method="hash")
    return tmp_path


NODES = {"user": {"name": ["new", "newer"]}, "film": {"id": np.array([7])}}
BY_KEY = (np.array([60, 3, 61]), np.array([20, 5, 20]))
BY_ID = (["new", NAMES[3], "newer"], [7, int(NUMBERS[5]), 7])


@pytest.mark.parametrize("make", [list, np.array, lambda ids: np.array(ids, object)])
def test_edges_by_raw_id_are_those_by_key(parts, make):
    by_key = hopstream.append(parts / "by_key", nodes=NODES, edges={RATES: BY_KEY})
    ends = tuple(map(make, BY_ID))
    by_id = hopstream.append(parts / "by_id", nodes=NODES, edges={RATES: ends}, ids={"user": "name", "film": "id"})
    assert by_id.dataset_id == by_key.dataset_id and by_id.graph_id == by_key.graph_id
    more = (RaggedArray.from_strings(["newer"]), np.array([0]))
    hopstream.append(parts / "by_id", edges={RATES: more}, ids={"user": "name"})  # a node of an earlier append
    grown = hopstream.read_dataset(parts / "by_id").edges[RATES]
    assert (grown.src_keys[-1], grown.dst_keys[-1]) == (61, 0)


def test_edges_by_raw_id_join_transformed_rows(tmp_path):
    users = {
        "table": pa.table({"name": ["a", "b", "c"], "age": [10, 20, 30]}),
        "id": "name",
        "features": {"years": {"column": "age", "transform": "min-max"}},
    }
    likes = {
        "table": pa.table({"from": ["a", "b"], "to": ["b", "c"], "stars": [2.0, 6.0]}),
        "type": ["user", "likes", "user"],
        "src": "from",
        "dst": "to",
        "features": {"stars": {"column": "stars", "transform": "min-max"}},
    }
    hopstream.prepare({"nodes": {"user": users}, "edges": [likes]}, tmp_path / "parts", num_parts=1)
    hopstream.append(
        tmp_path / "parts",
        nodes={"user": {"name": ["d"], "age": [25]}},
        edges={("user", "likes", "user"): (["d", "c"], ["a", "d"], {"stars": [3.0, 5.0]})},
        ids={"user": "name"},
        transforms=hopstream.dataset.read_transforms(tmp_path / "parts"),
    )
    grown = hopstream.read_dataset(tmp_path / "parts")
    edges = grown.edges["user", "likes", "user"]
    assert grown.nodes["user"].features["years"].tolist() == [0, 0.5, 1, 0.75]
    assert (edges.src_keys.tolist(), edges.dst_keys.tolist()) == ([0, 1, 3, 2], [1, 2, 0, 3])
    assert edges.features["stars"].tolist() == [0, 1, 0.25, 0.75]


@pytest.mark.parametrize(
    ("nodes", "ends", "ids", "error", "message"),
    [
        (NODES, (["zoe"], [0]), {"user": "name"}, IdRangeError, r"src_keys\[0\] is 'zoe'; no node of type 'user' has"),
        (NODES, ([0], ["x"]), {"film": "id"}, IdRangeError, r"dst_keys\[0\] is 'x'; no node of type 'film' has it"),
        (
            {"user": {"name": [NAMES[4]]}},
            ([0], [0]),
            {"user": "name"},
            SettingsError,
            r"of nodes 4 and 60; raw",
        ),
        ({"user": {"name": ["a", "a"]}}, ([0], [0]), {"user": "name"}, SettingsError, r"'a' of nodes 60 and 61"),
        (NODES, ([0], [0]), {"user": "nome"}, UnknownNameError, "'nome'"),
        (NODES, ([0], [0]), {"users": "name"}, UnknownNameError, "'users'"),
    ],
)
def test_flaws_are_named_and_change_nothing(parts, nodes, ends, ids, error, message):
    before = hopstream.read_dataset(parts / "by_id").fingerprint()
    with pytest.raises(error, match=message):
        hopstream.append(parts / "by_id", nodes=nodes, edges={RATES: ends}, ids=ids)
    assert hopstream.read_dataset(parts / "by_id").fingerprint() == before
