"""Checks that an appended dataset equals one written in one go, and is never seen in part."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hopstream
from hopstream.arrays import column_schema
from hopstream.dataset.layout import open_dataset, read_manifest
from hopstream.dataset.manifest import Manifest
from hopstream.dataset.read_back import read_dataset
from hopstream.engine.atomic_folder import locked
from hopstream.errors import IdRangeError, SchemaError, SettingsError, StateError, UnknownNameError
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.ingest.chunked import write_chunked
from hopstream.preparation.append.run import append, append_folder
from hopstream.preparation.audit.run import verify_dataset
from hopstream.store.local import LocalStore
from tests.dataset.graphs import tree_of, typed_graphs
from tests.dataset.timed_graphs import LIKES, RATES
from tests.grown import grow
from tests.preparation.append.graphs import OPTIONS, grown_graph, written


@pytest.mark.parametrize(("num_parts", "num_appends"), [(1, 3), (3, 1)])
def test_appending_gives_the_graph_of_a_single_write(tmp_path, num_parts, num_appends):
    grown = grown_graph()
    manifest = written(tmp_path / "d", num_parts, num_appends)
    wanted = hopstream.write_parts(grown.graph, tmp_path / "one", num_parts=2, method="hash", **OPTIONS)
    assert manifest.graph_id == wanted.graph_id
    assert manifest.checksums == wanted.checksums
    assert manifest.book.num_parts == num_parts + num_appends
    assert len(manifest.book.deltas) == num_appends
    assert read_manifest(tmp_path / "d").dataset_id == manifest.dataset_id
    assert read_dataset(tmp_path / "d").fingerprint() == grown.graph.fingerprint()
    report = manifest.report
    assert report.cut.num_edges == wanted.report.cut.num_edges
    assert sum(report.edges) == sum(wanted.report.edges)
    assert sum(map(sum, report.edges_between)) == report.cut.num_edges
    assert {split: sum(counts) for split, counts in report.seeds.items()} == {
        split: sum(counts) for split, counts in wanted.report.seeds.items()
    }
    open_dataset(tmp_path / "d", verify=True)
    found = verify_dataset(tmp_path / "d", against=grown.graph)
    assert found.is_ok, [str(finding) for finding in found.findings]
    assert set(found.skipped) == {"halo"}


def test_without_edge_keys(tmp_path):
    grown = grown_graph()
    options = {**OPTIONS, "neighbor_keys": False, "keep_edge_keys": False, "links": ["user__knows__user"]}
    grown.write(tmp_path / "d", 2, 2, **options)
    found = verify_dataset(tmp_path / "d", against=grown.graph)
    assert found.is_ok, [str(finding) for finding in found.findings]
    assert verify_dataset(tmp_path / "d").is_ok
    open_dataset(tmp_path / "d", verify=True)


@given(data=st.data())
@settings(max_examples=10, deadline=None)
def test_any_graph_in_any_steps(tmp_path_factory, data):
    graph = data.draw(typed_graphs())
    grown = grow(graph, np.random.default_rng(data.draw(st.integers(0, 99))), data.draw(st.integers(2, 4)))
    root = tmp_path_factory.mktemp("any")
    num_appends = grown.num_steps - 1
    for step in range(1, grown.num_steps):  # a step without additions is refused, so none is appended
        if grown.until(step).fingerprint() == grown.until(step - 1).fingerprint():
            return
    direction = data.draw(st.sampled_from(["in", "out", "both"]))
    grown.write(root / "d", data.draw(st.integers(1, 3)), num_appends, direction=direction)
    assert read_manifest(root / "d").graph_id == grown.graph.fingerprint()
    found = verify_dataset(root / "d", against=grown.graph)
    assert found.is_ok, [str(finding) for finding in found.findings]
    open_dataset(root / "d", verify=True)
    shutil.rmtree(root)


def _fixed(graph: Graph) -> Graph:
    """The graph without columns that chunked graphs cannot hold."""
    nodes = {
        t: NodeTable(
            num_nodes=table.num_nodes,
            features={n: c for n, c in table.features.items() if column_schema(c).is_fixed_width},
        )
        for t, table in graph.nodes.items()
    }
    splits = {t: {"train": of["train"]} for t, of in graph.splits.items() if "train" in of}
    return Graph(nodes=nodes, edges=graph.edges, splits=splits)


def test_from_a_chunked_graph(tmp_path):
    grown = grow(_fixed(grown_graph().graph), np.random.default_rng(1), 2)
    grown.write(tmp_path / "arrays", 2, 1, **OPTIONS)
    hopstream.write_parts(grown.until(0), tmp_path / "d", num_parts=2, method="random", rng_seed=5, **OPTIONS)
    added = grown.added(1)
    tables = Graph(
        nodes={
            t: NodeTable(
                num_nodes=n[1] - n[0], features=added["nodes"][t] if isinstance(added["nodes"][t], dict) else {}
            )
            for t, n in grown.num_nodes.items()
        },
        # A graph refuses edges to missing nodes, so the ends are those of this many nodes.
        edges={
            t: EdgeTable(src_keys=np.zeros_like(src), dst_keys=np.zeros_like(dst), features=features)
            for t, (src, dst, features) in added["edges"].items()
        },
        splits={t: {n: k - grown.num_nodes[t][0] for n, k in of.items()} for t, of in added["splits"].items()},
    )
    write_chunked(tables, tmp_path / "delta", num_chunks=1, edges_format="numpy")
    metadata = json.loads((tmp_path / "delta" / "metadata.json").read_text())
    for t, (src, dst, _) in added["edges"].items():
        (name,) = metadata["edges"][":".join(t)]["data"]
        np.save(tmp_path / "delta" / name, np.stack([src, dst], 1))
    manifest = append_folder(tmp_path / "d", tmp_path / "delta")
    assert manifest.dataset_id == read_manifest(tmp_path / "arrays").dataset_id
    with pytest.raises(
        SettingsError, match=r"the rows of .*delta were already added to .*arrays as delta 1; give again=True"
    ):
        append_folder(tmp_path / "arrays", tmp_path / "delta")  # splits name other keys now, but the same rows
    assert append_folder(tmp_path / "d", tmp_path / "delta", again=True).book.num_parts == 4


def test_appended_datetimes_are_counted_in_the_units_that_the_dataset_keeps(tmp_path):
    edges = EdgeTable(src_keys=np.arange(3), dst_keys=np.array([1, 2, 0]), features={"time": np.array([5, 6, 7])})
    graph = Graph(nodes={"node": NodeTable(num_nodes=3)}, edges={("node", "to", "node"): edges}).check()
    hopstream.write_parts(graph, tmp_path / "one", num_parts=1, time_attr="time", time_unit="s")
    hopstream.dataset.reshard(tmp_path / "one", tmp_path / "d", num_parts=2, method="hash", num_workers=0)
    times = np.array(["1970-01-01T00:01", "1970-01-02T00:00"], "M8[ns]")
    assert append(tmp_path / "d", edges=([0, 1], [2, 2], {"time": times})).time_unit == "s"
    added = hopstream.read_dataset(tmp_path / "d").edges["node", "to", "node"]
    assert added.features["time"].tolist() == [5, 6, 7, 60, 86400]
    with pytest.raises(SchemaError, match=r"node__to__node\.time\[0\] is .*, no whole number"):
        append(tmp_path / "d", edges=([0], [2], {"time": times[:1] + 1}))


def test_open_stores_keep_the_old_dataset(tmp_path):
    grown = grown_graph()
    hopstream.write_parts(grown.until(2), tmp_path / "d", num_parts=2, method="hash", **OPTIONS)
    with LocalStore(open_dataset(tmp_path / "d")) as store:
        ids = np.arange(store.book.num_ids("movie"))
        before = store.degrees(RATES, "in", ids)
        append(tmp_path / "d", **grown.added(3))
        assert store.degrees(RATES, "in", ids).tolist() == before.tolist()
    with LocalStore(open_dataset(tmp_path / "d")) as store:
        after = store.degrees(RATES, "in", np.arange(store.book.num_ids("movie")))
        assert after.sum() == store.book.num_edges(RATES) > before.sum()


def test_only_opened_parts_are_needed(tmp_path):
    written(tmp_path / "d", 2, 2)
    shutil.rmtree(tmp_path / "d" / "part-00000")
    with LocalStore(open_dataset(tmp_path / "d"), [1, 3]) as store:
        first, stop = store.book.node_offsets["user"][1:3]
        keys = open_dataset(tmp_path / "d").open_part(1).node_keys["user"]
        graph = grown_graph().graph
        wanted = np.bincount(graph.edges["user", "knows", "user"].dst_keys, minlength=graph.nodes["user"].num_nodes)
        degrees = store.degrees(("user", "knows", "user"), "in", np.arange(first, stop))
        assert degrees.tolist() == wanted[keys].tolist()
        with pytest.raises(IdRangeError, match="of part 0"):
            store.degrees(RATES, "out", np.zeros(1, np.int64))


def test_parts_without_new_edges_open(tmp_path: Path):
    graph = hopstream.graph_from_arrays([[0, 1, 2], [1, 2, 0]], num_nodes=3)
    hopstream.write_parts(graph, tmp_path / "d", owners={"node": np.array([0, 1, 1])}, num_parts=2, direction="in")
    append(tmp_path / "d", edges=([2], [0]))
    for part, degrees in ((0, [2]), (1, [1, 1])):
        with LocalStore(open_dataset(tmp_path / "d"), [part]) as store:
            ids = np.arange(*store.book.node_offsets["node"][part : part + 2])
            assert store.degrees(("node", "to", "node"), "in", ids).tolist() == degrees


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A dataset for which all appends of these tests are refused."""
    root = tmp_path_factory.mktemp("begun") / "d"
    hopstream.write_parts(grown_graph().until(1), root, num_parts=2, method="hash", **OPTIONS)
    return root


USER, MOVIE = {"nodes": {"user": 1}}, {"nodes": {"movie": {"time": np.zeros(2, np.uint64)}}}
ONE = np.zeros(1, np.int64)
LIKED = {LIKES: (ONE, ONE, {"number": ONE})}


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({}, SettingsError, "give new nodes or new edges"),
        ({"nodes": {"actor": 1}}, UnknownNameError, "nodes name 'actor'"),
        ({"edges": {"user__sees__movie": (ONE, ONE)}}, UnknownNameError, "edges name edge type 'user__sees__movie'"),
        (USER, SchemaError, "user.time is missing"),
        ({"nodes": {"movie": -1}}, SchemaError, "wanted a number"),
        ({"nodes": {"movie": {"x": ONE}}}, UnknownNameError, "features of movie name 'x'"),
        ({"edges": {LIKES: (ONE, ONE)}}, SchemaError, "movie__like__movie.number is missing"),
        ({"edges": {LIKES: (ONE, ONE, {"number": ONE.astype(np.int32)})}}, SchemaError, "in the dataset it is int64"),
        (
            {"edges": {LIKES: (ONE, ONE, {"number": ONE.astype("M8[s]")})}},
            SchemaError,
            "the dataset states no unit of its times",
        ),
        ({"edges": {LIKES: (ONE, ONE + 99, {"number": ONE})}}, IdRangeError, r"dst_keys\[0\] is 99; movie has keys"),
        ({"edges": {LIKES: (ONE, ONE[:0], {"number": ONE})}}, SchemaError, "1 sources and 0 destinations"),
        ({"edges": {LIKES: (ONE, ONE, {"number": ONE.repeat(2)})}}, SchemaError, "has 2 rows; there are 1 new rows"),
        ({"edges": LIKED, "splits": {"movie": {"train": ONE}}}, UnknownNameError, "splits of movie name 'train'"),
        ({**MOVIE, "splits": {"movie": {"test": ONE}}}, IdRangeError, "names key 0; new rows have"),
        (
            {"edges": {RATES: (ONE, ONE, {"time": ONE.astype(np.int16), "rating": -np.ones(1, np.float32)})}},
            SchemaError,
            r"rating\[0\] is -1",
        ),
    ],
)
def test_refused_appends_leave_the_dataset_unchanged(begun, given, error, message):
    before = tree_of(begun)
    with pytest.raises(error, match=message):
        append(begun, **given)
    assert tree_of(begun) == before
    assert [path.name for path in begun.parent.iterdir()] == ["d"]


def test_ids_that_outgrow_their_dtype_are_refused(tmp_path, monkeypatch):
    hopstream.write_parts(grown_graph().until(1), tmp_path / "d", num_parts=2, method="hash", **OPTIONS)
    limit = read_manifest(tmp_path / "d").book.num_ids("movie") + 1
    monkeypatch.setattr(
        "hopstream.preparation.append.run.number_dtype", lambda n: np.dtype(np.uint32 if n < limit else np.int64)
    )
    with pytest.raises(SettingsError, match="compact first"):
        append(tmp_path / "d", **MOVIE)


def test_edge_keys_that_outgrow_their_dtype_are_refused(tmp_path, monkeypatch):
    hopstream.write_parts(grown_graph().until(1), tmp_path / "d", num_parts=2, method="hash", **OPTIONS)
    before, num_edges = tree_of(tmp_path / "d"), read_manifest(tmp_path / "d").book.num_edges(LIKES)
    monkeypatch.setattr(
        "hopstream.preparation.append.run.edge_key_dtype",
        lambda _, n: np.dtype(np.uint32 if n <= num_edges else np.int64),
    )
    told = rf"would grow from {num_edges} to {num_edges + 1} edges; .*: write the grown graph again"
    with pytest.raises(SettingsError, match=told):
        append(tmp_path / "d", edges=LIKED)
    assert tree_of(tmp_path / "d") == before


def test_append_removes_the_halo_until_compaction(tmp_path):
    root = tmp_path / "d"
    hopstream.write_parts(grown_graph().until(1), root, num_parts=2, method="hash", **OPTIONS)
    hopstream.dataset.add_halo(root, hops=1)
    assert list(root.glob("part-*/halo"))
    assert append(root, **MOVIE).halo is None and read_manifest(root).halo is None
    assert not list(root.glob("part-*/halo")) and verify_dataset(root).is_ok
    with pytest.raises(SettingsError, match="compact the dataset first"):
        hopstream.dataset.add_halo(root, hops=1)
    assert hopstream.dataset.add_halo(root, hops=0, features="none").manifest.halo is None
    hopstream.dataset.compact(root)
    assert hopstream.dataset.add_halo(root, hops=1).manifest.halo is not None and verify_dataset(root).is_ok


def test_two_at_once_are_refused(tmp_path):
    hopstream.write_parts(grown_graph().until(1), tmp_path / "d", num_parts=2, method="hash", **OPTIONS)
    with locked(tmp_path / "d"), pytest.raises(StateError, match="by another process"):
        append(tmp_path / "d", **MOVIE)
    append(tmp_path / "d", **MOVIE)


KILLED = """
import os, signal, sys
import numpy as np
import hopstream.preparation.append.run as run
from hopstream.dataset.manifest import Manifest
place, stage = sys.argv[1], sys.argv[2]
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
if stage == "manifest":
    Manifest.write = die
else:
    run.grown_manifest = die
run.append(place, nodes={"movie": {"time": np.zeros(2, np.uint64)}})
"""


@pytest.mark.parametrize("stage", [pytest.param("files", marks=pytest.mark.slow), "manifest"])
def test_a_killed_append_leaves_the_dataset_unchanged(tmp_path, stage):
    grown = grown_graph()
    hopstream.write_parts(grown.until(1), tmp_path / "d", num_parts=2, method="random", rng_seed=5, **OPTIONS)
    before = read_manifest(tmp_path / "d")
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "d"), stage], env=dict(os.environ), check=False
    )
    assert ended.returncode == -signal.SIGKILL
    assert read_manifest(tmp_path / "d").dataset_id == before.dataset_id
    open_dataset(tmp_path / "d", verify=True)
    found = {finding.kind for finding in verify_dataset(tmp_path / "d").findings}
    assert found == ({"files"} if stage == "manifest" else set())
    for step in (2, 3):
        append(tmp_path / "d", **grown.added(step))
    assert verify_dataset(tmp_path / "d", against=grown.graph).is_ok
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d"]


def test_a_full_disk_leaves_the_dataset_unchanged(tmp_path, monkeypatch):
    root = tmp_path / "d"
    hopstream.write_parts(grown_graph().until(1), root, num_parts=2, method="hash", **OPTIONS)
    before = tree_of(root)

    def full(self: Manifest, folder: Path) -> None:
        raise OSError(28, "No space left on device", str(folder))

    with monkeypatch.context() as patch:
        patch.setattr(Manifest, "write", full)
        with pytest.raises(OSError, match="No space left"):
            append(root, **MOVIE)
    assert tree_of(root) == before and verify_dataset(root).is_ok


def test_additions_to_single_types_need_no_type_names(tmp_path: Path):
    graph = hopstream.graph_from_arrays(
        [[0, 1, 2], [1, 2, 0]], num_nodes=3, node_features={"x": np.arange(3)}, edge_features={"w": np.arange(3)},
        splits={"train": [0]}, edge_splits={"train": [1]},
    )  # fmt: skip
    nodes, edges = {"x": [3, 4]}, ([3, 4], [0, 3], {"w": [3, 4]})
    splits, edge_splits = {"train": [3]}, {"train": [4]}
    found = []
    for name in ("typed", "plain"):
        hopstream.write_parts(graph, tmp_path / name, num_parts=2, method="hash")
        types = (
            {"nodes": {"node": nodes}, "edges": {("node", "to", "node"): edges}, "splits": {"node": splits},
             "edge_splits": {"node__to__node": edge_splits}}
            if name == "typed"
            else {"nodes": nodes, "edges": edges, "splits": splits, "edge_splits": edge_splits}
        )  # fmt: skip
        hopstream.append(tmp_path / name, **types)
        found.append(hopstream.read_dataset(tmp_path / name))
    assert found[0].fingerprint() == found[1].fingerprint() and found[1].nodes["node"].num_nodes == 5
    assert found[1].splits["node"]["train"].tolist() == [0, 3]
    with pytest.raises(UnknownNameError, match="'nod'"):
        hopstream.append(tmp_path / "plain", nodes={"nod": {"x": [5]}})
