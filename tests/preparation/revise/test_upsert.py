"""Checks that upserts replace the rows of known raw ids, and append the others."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hopstream
from hopstream.arrays import RaggedArray, join_columns
from hopstream.dataset.layout import open_dataset
from hopstream.dataset.manifest import read_manifest
from hopstream.dataset.read_back import read_dataset
from hopstream.errors import IdRangeError, SchemaError, SettingsError, StateError, UnknownNameError
from hopstream.graph.graph import NodeTable
from hopstream.preparation.append.run import append
from hopstream.preparation.audit.run import verify_dataset
from hopstream.preparation.revise.run import upsert, upsert_folder
from tests.dataset.graphs import take_rows, tree_of, typed_graphs
from tests.preparation.append.graphs import OPTIONS, grown_graph
from tests.preparation.revise.graphs import parts_of, write_like


def with_ids(graph):
    """The graph with unique raw ids of users."""
    users = graph.nodes["user"]
    names = RaggedArray.from_strings([f"user {number * 7 % 31}" for number in range(users.num_nodes)])
    return replace(
        graph, nodes={**graph.nodes, "user": NodeTable(num_nodes=30, features={**users.features, "name": names})}
    )


def replaced(graph, keys, rows, columns):
    """The graph whose users with some keys have other values, from some rows of columns."""
    users = graph.nodes["user"]
    order = np.arange(users.num_nodes)
    order[keys] = users.num_nodes + rows
    changed = {n: take_rows(join_columns([users.features[n], column]), order) for n, column in columns.items()}
    return replace(
        graph, nodes={**graph.nodes, "user": NodeTable(num_nodes=30, features={**users.features, **changed})}
    )


@pytest.mark.parametrize(("num_parts", "num_appends"), [(1, 0), (3, 0), (2, 2)])
@pytest.mark.parametrize("names", [("x", "tags"), ("x", "tags", "time")], ids=["features", "times"])
def test_known_nodes_get_new_values(tmp_path, rng, num_parts, num_appends, names):
    grown = grown_graph()
    grown = replace(grown, graph=with_ids(grown.graph))
    grown.write(tmp_path / "d", num_parts, num_appends, **OPTIONS) if num_appends else hopstream.write_parts(
        grown.graph, tmp_path / "d", num_parts=num_parts, method="random", rng_seed=5, **OPTIONS
    )
    graph, keys, others = grown.graph, rng.permutation(30)[:8], rng.permutation(30)[:8]
    users = graph.nodes["user"].features
    columns = {name: take_rows(users[name], others) for name in names}
    split = next(iter(graph.splits["user"]))
    mask = rng.random(8) < 0.5
    old = graph.splits["user"][split]
    wanted_split = np.union1d(np.setdiff1d(old, keys), keys[mask])
    changed = replaced(graph, keys, np.arange(8), columns)
    changed = replace(changed, splits={**graph.splits, "user": {**graph.splits["user"], split: wanted_split}})
    before = read_manifest(tmp_path / "d")
    got = upsert(
        tmp_path / "d",
        nodes={"user": {"name": take_rows(users["name"], keys), **columns}},
        ids={"user": "name"},
        splits={"user": {split: mask}},
    )
    owners = parts_of(tmp_path / "d")
    wanted = write_like(changed, tmp_path / "wanted", owners, num_parts=num_parts + num_appends, **OPTIONS)
    assert got.graph_id == wanted.graph_id and got.checksums == wanted.checksums
    assert {s: sum(n) for s, n in got.report.seeds.items()} == {s: sum(n) for s, n in wanted.report.seeds.items()}
    if num_appends and "time" not in names:
        assert len(got.book.deltas) == num_appends  # edges are not written again
        got = hopstream.dataset.reshard(
            tmp_path / "d", tmp_path / "again", partitions_dir=written_owners(tmp_path, owners), num_workers=0
        )
    assert got.files == wanted.files and got.dataset_id == wanted.dataset_id
    assert before.graph_id != got.graph_id
    open_dataset(tmp_path / "d", verify=True)
    found = verify_dataset(tmp_path / "d", against=changed)
    assert found.is_ok, [str(finding) for finding in found.findings]


@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_any_graph(tmp_path_factory, data):
    graph, root = data.draw(typed_graphs()), tmp_path_factory.mktemp("any")
    raw = {t: np.array(data.draw(st.permutations(range(of.num_nodes))), np.int64) for t, of in graph.nodes.items()}
    nodes = {t: replace(of, features={**of.features, "raw id": raw[t]}) for t, of in graph.nodes.items()}
    graph = replace(graph, nodes=nodes)
    num_parts, direction = data.draw(st.integers(1, 3)), data.draw(st.sampled_from(["in", "out", "both"]))
    before = hopstream.write_parts(graph, root / "d", num_parts=num_parts, method="hash", direction=direction)
    new_rows, changed = {}, {}
    for t, of in nodes.items():
        keys = np.array(data.draw(st.permutations(range(of.num_nodes))), np.int64)[: data.draw(st.integers(0, 12))]
        columns = {n: take_rows(column, np.sort(keys)) for n, column in of.features.items() if n != "raw id"}
        new_rows[t] = {"raw id": raw[t][keys], **columns}
        order = np.arange(of.num_nodes)
        order[keys] = of.num_nodes + np.arange(len(keys))
        rows = {n: take_rows(join_columns([of.features[n], column]), order) for n, column in columns.items()}
        changed[t] = replace(of, features={**of.features, **rows})
    if any(len(columns) > 1 and len(columns["raw id"]) for columns in new_rows.values()):
        got = upsert(root / "d", nodes=new_rows, ids=dict.fromkeys(nodes, "raw id"))
        wanted = write_like(
            replace(graph, nodes=changed), root / "wanted", parts_of(root / "d"), num_parts=num_parts,
            direction=direction,
        )  # fmt: skip
        assert got.dataset_id == wanted.dataset_id and got.book.num_parts == before.book.num_parts
        assert verify_dataset(root / "d", against=replace(graph, nodes=changed)).is_ok
    shutil.rmtree(root)


def written_owners(folder, owners):
    (folder / "owners").mkdir()
    for node_type, of_type in owners.items():
        np.save(folder / "owners" / f"{node_type}.npy", of_type)
    return folder / "owners"


def test_known_and_new_nodes_with_edges(tmp_path):
    graph = with_ids(grown_graph().graph)
    for name in ("got", "wanted"):
        hopstream.write_parts(graph, tmp_path / name, num_parts=2, method="hash", **OPTIONS)
    users = graph.nodes["user"].features
    columns = {name: take_rows(users[name], np.array([5, 6, 7])) for name in ("time", "x", "tags")}
    names = ["new", "user 0", "newer"]
    edges = {("user", "knows", "user"): (["new", "user 0"], ["user 7", "newer"], {"rating": [1.0, 2.0]})}
    splits = {"user": {next(iter(graph.splits["user"])): np.array([True, True, False])}}
    got = upsert(
        tmp_path / "got", nodes={"user": {"name": names, **columns}}, edges=edges, ids={"user": "name"}, splits=splits
    )
    known = {"name": ["user 0"], **{n: take_rows(c, np.array([1])) for n, c in columns.items()}}
    upsert(
        tmp_path / "wanted", nodes={"user": known}, ids={"user": "name"},
        splits={"user": {n: mask[[1]] for n, mask in splits["user"].items()}},
    )  # fmt: skip
    new = {"name": ["new", "newer"], **{n: take_rows(c, np.array([0, 2])) for n, c in columns.items()}}
    wanted = append(
        tmp_path / "wanted", nodes={"user": new}, edges=edges, ids={"user": "name"},
        splits={"user": {n: mask[[0, 2]] for n, mask in splits["user"].items()}},
    )  # fmt: skip
    assert got.dataset_id == wanted.dataset_id and got.graph_id == wanted.graph_id
    assert len(got.book.deltas) == 1 and verify_dataset(tmp_path / "got").is_ok
    assert [stage.name for stage in got.report.stages][-2:] == ["upsert", "append"]


@pytest.fixture
def people(tmp_path):
    graph = hopstream.graph_from_arrays(
        [[0, 1, 2], [1, 2, 0]],
        node_features={"name": ["ann", "bob", "cid"], "x": np.arange(3.0)},
        splits={"train": [0]},
    )
    hopstream.write_parts(graph, tmp_path / "d", num_parts=2, method="hash")
    return tmp_path / "d"


def test_only_new_nodes_are_an_append(people):
    inode = people.stat().st_ino
    manifest = upsert(people, nodes={"name": ["dee"], "x": [4.0]}, ids={"node": "name"}, splits={"train": [True]})
    assert people.stat().st_ino == inode and len(manifest.book.deltas) == 1
    assert read_dataset(people).splits["node"]["train"].tolist() == [0, 3]


def test_unchanged_files_are_links(people):
    old = {path: path.stat().st_ino for path in people.glob("part-*/**/*.npy")}
    upsert(people, nodes={"name": ["cid"], "x": [9.0]}, ids={"node": "name"})
    changed = [path for path, inode in old.items() if path.stat().st_ino != inode]
    assert [path.name for path in changed] == ["x.npy"]
    graph = read_dataset(people)
    assert graph.nodes["node"].features["x"].tolist() == [0.0, 1.0, 9.0]
    assert graph.splits["node"]["train"].tolist() == [0]


def test_splits_alone(people):
    upsert(people, nodes={"name": ["cid", "ann"]}, ids={"node": "name"}, splits={"train": [True, False]})
    graph = read_dataset(people)
    assert graph.splits["node"]["train"].tolist() == [2]
    assert graph.nodes["node"].features["x"].tolist() == [0.0, 1.0, 2.0]


def test_transformed_columns(tmp_path):
    users = {
        "table": pa.table({"name": ["a", "b", "c"], "age": [10, 20, 30]}),
        "id": "name",
        "features": {"years": {"column": "age", "transform": "min-max"}},
    }
    follows = {
        "table": pa.table({"from": ["a", "b"], "to": ["b", "c"]}),
        "type": ["user", "follows", "user"], "src": "from", "dst": "to",
    }  # fmt: skip
    graph = hopstream.read_graph({"nodes": {"user": users}, "edges": [follows]})
    hopstream.write_parts(graph, tmp_path / "parts", num_parts=1)
    upsert(
        tmp_path / "parts", nodes={"user": {"name": ["b", "d"], "age": [15, 30]}}, ids={"user": "name"},
        transforms=hopstream.dataset.read_transforms(tmp_path / "parts"),
    )  # fmt: skip
    assert read_dataset(tmp_path / "parts").nodes["user"].features["years"].tolist() == [0, 0.25, 1, 1]


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"nodes": {"x": [1.0]}}, SchemaError, "node.name is missing; it holds the raw ids"),
        ({"nodes": {"name": ["ann", "ann"], "x": [1.0, 2.0]}}, SettingsError, "is 'ann' in rows 0 and 1"),
        ({"nodes": {"name": ["ann", "dee"]}}, SchemaError, "node.x is missing; new rows need all"),
        ({"nodes": {"name": ["ann"], "x": [1]}}, SchemaError, "in the dataset it is float64"),
        ({"nodes": {"name": ["ann"], "y": [1.0]}}, UnknownNameError, "features of node name 'y'"),
        ({"nodes": {"name": ["ann"], "x": [1.0, 2.0]}}, SchemaError, "has 2 rows; there are 1"),
        ({"nodes": {"name": ["ann"], "x": [1.0]}, "splits": {"train": [0]}}, SchemaError, r"wanted bool\[1\], one per"),
        ({"nodes": {"name": ["ann"], "x": [1.0]}, "splits": {"tran": [True]}}, UnknownNameError, "'tran'"),
        ({"nodes": {"name": ["ann"], "x": [1.0]}, "edges": (["ann"], ["zoe"])}, IdRangeError, "'zoe'; no node of type"),
        ({"nodes": {"name": ["ann"], "x": [1.0]}, "ids": {"node": "nome"}}, UnknownNameError, "'nome'"),
    ],
)
def test_flaws_are_named_and_change_nothing(people, given, error, message):
    before = tree_of(people)
    with pytest.raises(error, match=message):
        upsert(people, **{"ids": {"node": "name"}, **given})
    assert tree_of(people) == before
    assert [path.name for path in people.parent.iterdir()] == ["d"]


def test_new_times_need_edge_keys(tmp_path):
    graph = hopstream.graph_from_arrays([[0, 1], [1, 0]], node_features={"id": np.arange(2), "t": np.arange(2)})
    hopstream.write_parts(graph, tmp_path / "d", num_parts=1, time_attr="t", keep_edge_keys=False)
    with pytest.raises(SettingsError, match="the dataset keeps no edge keys"):
        upsert(tmp_path / "d", nodes={"id": [1], "t": [7]}, ids={"node": "id"})


def test_parts_of_a_dataset_opened_before_are_refused_after_an_upsert_and_open_after_an_append(tmp_path: Path):
    graph = hopstream.graph_from_arrays([[0, 1], [1, 2]], node_features={"raw": np.arange(3), "x": np.arange(3.0)})
    hopstream.write_parts(graph, tmp_path / "d", num_parts=2, method="hash")
    opened = open_dataset(tmp_path / "d")
    hopstream.append(tmp_path / "d", nodes={"raw": [3], "x": [3.0]})
    assert opened.open_part(1).node_features["node"]["x"].tolist() == [2.0]
    upsert(tmp_path / "d", nodes={"raw": [2], "x": [9.0]}, ids={"node": "raw"})
    for _ in range(2):
        with pytest.raises(StateError, match="/d was replaced by another dataset after it was opened; open it again"):
            opened.open_part(1)
    assert open_dataset(tmp_path / "d").open_part(1).node_features["node"]["x"].tolist() == [9.0]


def test_empty_edges_and_their_empty_masks_are_no_additions(tmp_path: Path):
    graph = hopstream.graph_from_arrays(
        [[0, 1], [1, 2]], node_features={"raw": np.arange(3), "x": np.arange(3.0)},
        edge_splits={"train": np.array([True, False])},
    )  # fmt: skip
    hopstream.write_parts(graph, tmp_path / "d", num_parts=2, method="hash")
    none = np.empty(0, np.int64)
    found = upsert(
        tmp_path / "d", nodes={"raw": [1], "x": [9.0]}, edges=(none, none), ids={"node": "raw"},
        edge_splits={"train": np.empty(0, np.bool_)},
    )  # fmt: skip
    assert not found.book.deltas
    assert hopstream.read_dataset(tmp_path / "d").nodes["node"].features["x"].tolist() == [0.0, 9.0, 2.0]


def test_tables_with_headers_only_are_no_additions(tmp_path: Path):
    tables = tmp_path / "tables"
    tables.mkdir()
    description = {
        "nodes": {"user": {"files": "user.csv", "id": "raw", "features": ["x"]}},
        "edges": [{"type": ["user", "knows", "user"], "files": "knows.csv", "src": "a", "dst": "b", "split": "part"}],
    }
    (tables / "metadata.json").write_text(json.dumps(description))
    (tables / "user.csv").write_text("raw,x\n1,5\n2,6\n")
    (tables / "knows.csv").write_text("a,b,part\n1,2,train\n")
    hopstream.write_parts(hopstream.read_graph(tables), tmp_path / "d", num_parts=2, method="hash")
    (tables / "user.csv").write_text("raw,x\n2,9\n")
    (tables / "knows.csv").write_text("a,b,part\n")
    found = upsert_folder(tmp_path / "d", tables, ids={"user": "raw"})
    graph = hopstream.read_dataset(tmp_path / "d")
    assert graph.nodes["user"].features["x"].tolist() == [5, 9]
    assert (found.book.deltas, graph.edges["user", "knows", "user"].num_edges) == ((), 1)
