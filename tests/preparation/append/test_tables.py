"""Checks that tables with raw ids are appended and upserted as the arrays that they hold."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hopstream
from hopstream.cli import main
from hopstream.dataset.read_back import read_dataset
from hopstream.errors import IdRangeError, SchemaError, SettingsError, UnknownNameError
from hopstream.preparation.append.run import append_folder
from tests.dataset.graphs import tree_of

LIKES = ("user", "likes", "film")
DESCRIPTION = {
    "nodes": {
        "user": {
            "files": "users.csv",
            "id": {"column": "name", "dtype": "string"},
            "features": {
                "age": {"column": "age", "dtype": "float32"},
                "years": {"column": "years", "transform": "min-max"},
            },
            "split": "part",
        },
        "film": {"files": "films.parquet", "id": "number"},
    },
    "edges": [
        {
            "type": list(LIKES), "files": "likes.csv", "src": "who", "dst": "what",
            "features": {"stars": "stars"}, "split": "part",
        }
    ],
}  # fmt: skip


def write(folder, users, likes, films=(), **changes):
    folder.mkdir(exist_ok=True)
    (folder / "users.csv").write_text("name,age,years,part\n" + users)
    (folder / "likes.csv").write_text("who,what,stars,part\n" + likes)
    pq.write_table(pa.table({"number": pa.array(films, pa.int64())}), folder / "films.parquet")
    (folder / "metadata.json").write_text(json.dumps({**DESCRIPTION, **changes}))
    return folder


@pytest.fixture
def parts(tmp_path):
    users = "007,1,10,train\nann,2,20,\nbob,3,30,val\n"
    write(tmp_path / "old", users, "007,5,1.5,train\nbob,6,2.5,val\n", [5, 6])
    graph = hopstream.read_graph(tmp_path / "old" / "metadata.json")
    hopstream.write_parts(graph, tmp_path / "d", num_parts=2, method="hash")
    return tmp_path / "d"


def test_new_rows_join_old_ones(parts, tmp_path):
    new = write(tmp_path / "new", "7,4,25,train\n", "7,7,3,train\n007,5,4,\n7,6,5,val\n", [7])
    assert main(["append", str(parts), str(new)]) == 0
    graph = read_dataset(parts)
    users, edges = graph.nodes["user"].features, graph.edges[LIKES]
    assert users["name"].tolist() == ["007", "ann", "bob", "7"]
    assert users["age"].tolist() == [1, 2, 3, 4] and users["years"].tolist() == [0, 0.5, 1, 0.75]
    assert graph.nodes["film"].features["number"].tolist() == [5, 6, 7]
    assert (edges.src_keys.tolist(), edges.dst_keys.tolist()) == ([0, 2, 3, 0, 3], [0, 1, 2, 0, 1])
    assert edges.features["stars"].tolist() == [1.5, 2.5, 3, 4, 5]
    assert graph.splits["user"]["train"].tolist() == [0, 3] and graph.edge_splits[LIKES]["val"].tolist() == [1, 4]
    assert hopstream.verify_dataset(parts).is_ok


def test_edges_alone(parts, tmp_path):
    append_folder(parts, write(tmp_path / "new", "", "ann,5,1,\n"))
    assert read_dataset(parts).edges[LIKES].src_keys.tolist() == [0, 2, 1]
    with pytest.raises(SettingsError, match="were already added"):
        append_folder(parts, tmp_path / "new")


def test_upsert_of_tables(parts, tmp_path):
    new = write(tmp_path / "new", "ann,9,15,val\n7,4,25,train\n", "7,6,5,val\n", [6])
    assert main(["upsert", str(parts), str(new)]) == 0
    graph = read_dataset(parts)
    assert graph.nodes["user"].features["age"].tolist() == [1, 9, 3, 4]
    assert graph.nodes["user"].features["years"].tolist() == [0, 0.25, 1, 0.75]
    assert graph.splits["user"]["val"].tolist() == [1, 2] and graph.splits["user"]["train"].tolist() == [0, 3]
    assert graph.edges[LIKES].src_keys.tolist() == [0, 2, 3] and graph.nodes["film"].num_nodes == 2


@pytest.mark.parametrize(
    ("users", "likes", "changes", "error", "message"),
    [
        ("", "zoe,5,1,\n", {}, IdRangeError, r"src_keys\[0\] is 'zoe'; no node of type 'user' has it"),
        ("", "ann,x,1,\n", {}, SchemaError, r"user__likes__film.what is 'x' at .*likes.csv line 2; wanted an integer"),
        ("", ",5,1,\n", {}, SchemaError, r"user__likes__film.who is empty at .*likes.csv line 2; wanted a raw id"),
        ("ann,1,1,\n", "", {}, SettingsError, r"user.name is 'ann' of nodes 1 and 3"),
        ("eve,1,1,dev\n", "", {}, UnknownNameError, "'dev'"),
        ("", "", {"nodes": {"user": {"files": "users.csv", "id": "part"}}, "edges": []}, UnknownNameError, "'part'"),
        ("", "", {"nodes": {"userz": {"files": "users.csv", "id": "name"}}, "edges": []}, UnknownNameError, "'userz'"),
        (
            "",
            "",
            {"nodes": {"user": {"files": "users.csv"}}, "edges": []},
            SettingsError,
            "user has no column of raw ids",
        ),
    ],
)
def test_flaws_are_named_and_change_nothing(parts, tmp_path, users, likes, changes, error, message):
    new, before = write(tmp_path / "new", users, likes, **changes), tree_of(parts)
    with pytest.raises(error, match=message):
        append_folder(parts, new)
    assert tree_of(parts) == before
