"""Checks that a dataset is written whole or not at all, and that nothing else is touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import defaultdict

import numpy as np
import pytest

from hopstream import arrays
from hopstream.dataset.layout import open_dataset
from hopstream.dataset.settings import PartitionSettings
from hopstream.errors import FormatError, IdRangeError, SchemaError, SettingsError
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.ingest import graph_from_arrays
from hopstream.preparation.write import write_parts
from hopstream.schema import EDGE, NODE
from tests.dataset.graphs import community_graph, tree_of


@pytest.mark.parametrize("method", ["kaminpar", "random"])
def test_the_same_seed_writes_the_same_files(tmp_path, rng, method: str):
    graph = community_graph(rng, 500, 3000)
    first = write_parts(graph, tmp_path / "a", num_parts=3, method=method, rng_seed=11)
    second = write_parts(graph, tmp_path / "b", num_parts=3, method=method, rng_seed=11)
    other = write_parts(graph, tmp_path / "c", num_parts=3, method=method, rng_seed=12)
    assert first.dataset_id == second.dataset_id != other.dataset_id
    trees = [tree_of(tmp_path / name) for name in "ab"]
    for tree in trees:
        del tree["manifest.json"]  # it holds times
    assert trees[0] == trees[1]


def test_settings_and_options(tmp_path, typed_graph: Graph):
    settings = PartitionSettings(num_parts=2, method="hash", rng_seed=4)
    manifest = write_parts(typed_graph, tmp_path / "a", settings=settings, num_parts=3)
    assert (manifest.made_by["num_parts"], manifest.made_by["method"]) == (3, "hash")
    assert write_parts(typed_graph, tmp_path / "b").book.num_parts == 1
    with pytest.raises(SettingsError, match="num_parts"):
        write_parts(typed_graph, tmp_path / "c", num_parts=0)
    with pytest.raises(TypeError, match="num_part"):
        write_parts(typed_graph, tmp_path / "c", num_part=3)
    assert not (tmp_path / "c").exists()


def test_given_owners_imply_their_method(tmp_path, typed_graph: Graph):
    owners = {t: np.arange(n.num_nodes) % 2 for t, n in typed_graph.nodes.items()}
    manifest = write_parts(typed_graph, tmp_path, num_parts=2, owners=owners)
    assert manifest.made_by["method"] == "file"
    part = open_dataset(tmp_path).open_part(1)
    assert part.node_keys["paper"].tolist() == list(range(1, 60, 2))
    with pytest.raises(IdRangeError, match=r"owners\['paper'\]\[2\] is 2"):
        write_parts(typed_graph, tmp_path / "x", num_parts=2, owners={**owners, "paper": np.arange(60) % 3})
    assert not (tmp_path / "x").exists()


def test_progress_ends_every_stage(tmp_path, typed_graph: Graph):
    calls = defaultdict(list)
    write_parts(
        typed_graph, tmp_path, num_parts=2, direction="both", progress=lambda stage, *rest: calls[stage].append(rest)
    )
    assert list(calls) == ["assign", "measure", "write"]
    for stage in calls.values():
        total = stage[0][1]
        assert stage == [(done, total) for done in range(total + 1)]
    assert calls["write"][-1] == (2 * (3 + 2 * 3), 2 * (3 + 2 * 3))


def test_a_bad_graph_is_refused_before_anything_is_written(tmp_path):
    graph = Graph(
        nodes={NODE: NodeTable(num_nodes=2)}, edges={EDGE: EdgeTable(src_keys=np.array([0]), dst_keys=np.array([2]))}
    )
    with pytest.raises(IdRangeError):
        write_parts(graph, tmp_path / "d")
    assert list(tmp_path.iterdir()) == []


def test_other_folders_and_files_are_left_alone(tmp_path, typed_graph: Graph):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("precious")
    (tmp_path / "file").write_text("precious")
    for overwrite in (False, True):
        with pytest.raises(SettingsError, match=r"full holds 'thesis.tex' and is not a dataset"):
            write_parts(typed_graph, tmp_path / "full", overwrite=overwrite)
        with pytest.raises(SettingsError, match="is a file"):
            write_parts(typed_graph, tmp_path / "file", overwrite=overwrite)
    assert tree_of(tmp_path) == {"full/thesis.tex": b"precious", "file": b"precious"}
    (tmp_path / "empty").mkdir()
    write_parts(typed_graph, tmp_path / "empty")
    open_dataset(tmp_path / "empty", verify=True)


def test_a_dataset_is_replaced_only_when_asked(tmp_path, typed_graph: Graph):
    write_parts(typed_graph, tmp_path, num_parts=5, method="random")
    before = tree_of(tmp_path)
    with pytest.raises(SettingsError, match="holds a dataset; give overwrite=True or another folder"):
        write_parts(typed_graph, tmp_path, num_parts=2)
    assert tree_of(tmp_path) == before
    write_parts(typed_graph, tmp_path, num_parts=2, overwrite=True)
    assert open_dataset(tmp_path, verify=True).manifest.book.num_parts == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["manifest.json", "part-00000", "part-00001"]


@pytest.mark.parametrize("name", ["README", "part-00000/notes.txt", "part-00001/node/link", "manifest.json"])
def test_a_dataset_with_other_files_is_not_replaced(tmp_path, typed_graph: Graph, name: str):
    write_parts(typed_graph, tmp_path / "d", num_parts=2)
    if name.endswith("link"):
        (tmp_path / "d" / name).symlink_to(tmp_path)
    elif name == "manifest.json":
        (tmp_path / "d" / name).unlink()
    else:
        (tmp_path / "d" / name).write_text("mine")
    before = tree_of(tmp_path)
    wanted = "part-00000" if name == "manifest.json" else name
    with pytest.raises(SettingsError, match=f"holds '{wanted}'.*move it away"):
        write_parts(typed_graph, tmp_path / "d", num_parts=2, overwrite=True)
    assert tree_of(tmp_path) == before


def test_a_refused_write_leaves_the_old_dataset(tmp_path, typed_graph: Graph):
    write_parts(typed_graph, tmp_path / "d", num_parts=2)
    before = tree_of(tmp_path)
    with pytest.raises(FormatError, match="none is not a folder; give the folder with the part of each node"):
        write_parts(typed_graph, tmp_path / "d", num_parts=2, owners=tmp_path / "none", overwrite=True)
    assert tree_of(tmp_path) == before


def test_only_a_graph_is_written(tmp_path):
    with pytest.raises(
        SettingsError, match=r"graph is a dict; wanted a Graph: convert it with hopstream\.read_graph or"
    ):
        write_parts({"edge_index": 1}, tmp_path / "d")


class Stop(BaseException):
    """Like KeyboardInterrupt."""


@pytest.mark.parametrize("error", [OSError(28, "no space left on device"), Stop()])
@pytest.mark.parametrize("fails_at", [1, 7, 30])
def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch, typed_graph: Graph, error, fails_at: int):
    num_writes = 0
    real = arrays._ChecksumWriter.write

    def failing(self, data):
        nonlocal num_writes
        num_writes += 1
        if num_writes == fails_at:
            raise error
        return real(self, data)

    monkeypatch.setattr(arrays._ChecksumWriter, "write", failing)
    with pytest.raises(type(error)):
        write_parts(typed_graph, tmp_path / "new", num_parts=2)
    assert list(tmp_path.iterdir()) == []

    monkeypatch.undo()
    write_parts(typed_graph, tmp_path / "old", num_parts=2)
    before = tree_of(tmp_path)
    monkeypatch.setattr(arrays._ChecksumWriter, "write", failing)
    num_writes = 0
    with pytest.raises(type(error)):
        write_parts(typed_graph, tmp_path / "old", num_parts=2, overwrite=True)
    assert tree_of(tmp_path) == before


WRITER = """
import sys, numpy as np
from tests.dataset.graphs import community_graph
from hopstream.preparation.write import write_parts
def progress(stage, done, total):
    if stage == "write" and done == int(sys.argv[2]):
        print("here", flush=True)
        sys.stdin.read()  # until killed
graph = community_graph(np.random.default_rng(0), 500, 3000)
write_parts(graph, sys.argv[1], num_parts=4, progress=progress, overwrite=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("at", [0, 3, 8])
@pytest.mark.parametrize("is_new", [True, False])
def test_a_killed_write_leaves_the_old_dataset_and_can_be_repeated(tmp_path, typed_graph: Graph, at: int, is_new: bool):
    root = tmp_path / "d"
    if not is_new:
        write_parts(typed_graph, root, num_parts=2)
    before = tree_of(tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(root), str(at)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout.readline() == "here\n"
        in_use = [p.name for p in tmp_path.iterdir() if p != root]
        write_parts(typed_graph, tmp_path / "other")
        os.kill(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert in_use == [".d.work"]
    assert tree_of(root) == {name.removeprefix("d/"): data for name, data in before.items()}
    write_parts(typed_graph, root, num_parts=2, overwrite=not is_new)
    open_dataset(root, verify=True)
    assert sorted(p.name for p in root.iterdir()) == ["manifest.json", "part-00000", "part-00001"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["d", "other"]


def test_a_reader_keeps_its_maps_while_a_dataset_is_replaced(tmp_path, typed_graph: Graph):
    write_parts(typed_graph, tmp_path, num_parts=2)
    part = open_dataset(tmp_path).open_part(0)
    keys = part.node_keys["paper"].tolist()
    write_parts(typed_graph, tmp_path, num_parts=3, overwrite=True, method="random")
    assert part.node_keys["paper"].tolist() == keys


def test_inputs_may_be_maps_and_views(tmp_path, typed_graph: Graph):
    """Edges as two columns of one file, features in Fortran order, as readers may return them."""
    cites = typed_graph.edges["paper", "cites", "paper"]
    np.save(tmp_path / "edges.npy", np.stack([cites.src_keys, cites.dst_keys], axis=1))
    ends = np.load(tmp_path / "edges.npy", mmap_mode="r")
    feat = np.asfortranarray(typed_graph.nodes["paper"].features["feat"])
    plain, view = (
        Graph(
            nodes={"paper": NodeTable(num_nodes=60, features={"feat": column})},
            edges={("paper", "cites", "paper"): EdgeTable(src_keys=src_keys, dst_keys=dst_keys)},
        )
        for column, src_keys, dst_keys in [
            (typed_graph.nodes["paper"].features["feat"], cites.src_keys, cites.dst_keys),
            (feat, ends[:, 0], ends[:, 1]),
        ]
    )
    one = write_parts(plain, tmp_path / "a", num_parts=2, direction="both")
    assert write_parts(view, tmp_path / "b", num_parts=2, direction="both").dataset_id == one.dataset_id


def test_the_number_of_parts_follows_from_owners(tmp_path, rng):
    graph = graph_from_arrays(rng.integers(0, 9, (2, 30)), num_nodes=9)
    owners = {"node": rng.permutation(9) % 3}
    assert write_parts(graph, tmp_path / "mapping", owners=owners).book.num_parts == 3
    assert write_parts(graph, tmp_path / "more", owners=owners, num_parts=4).book.num_parts == 4
    (tmp_path / "owners").mkdir()
    np.savetxt(tmp_path / "owners" / "node.txt", owners["node"], "%d")
    assert write_parts(graph, tmp_path / "folder", owners=tmp_path / "owners").book.num_parts == 3
    with pytest.raises(SchemaError, match="one integer for each of 9"):
        write_parts(graph, tmp_path / "bad", owners={"node": np.zeros(9)})
