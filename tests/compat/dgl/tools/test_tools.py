"""Checks that the tools take DGL's flags, agree with each other, and name errors."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

import hopstream
import hopstream.compat.dgl as dgl
from hopstream.compat.dgl.tools import chunk_graph, dispatch_data, random_partition, verify_partitions
from hopstream.errors import SchemaError, SettingsError, UnknownNameError
from hopstream.ingest.chunked import write_chunked
from tests.conftest import make_typed_graph

FLAGS_WITHOUT_EFFECT = (
    "--master-port=12345 --python-path=/usr/bin/python3 --ssh-port 22 --process-group-timeout 1800 "
    "--save-orig-nids --save-orig-eids --log-level ERROR"
)


@pytest.fixture(scope="module")
def graph():
    graph = make_typed_graph(np.random.default_rng(5), num_papers=40, num_authors=11)
    return hopstream.graph_from_arrays(
        {t: (table.src_keys, table.dst_keys) for t, table in graph.edges.items()},
        num_nodes={t: table.num_nodes for t, table in graph.nodes.items()},
    )


@pytest.fixture(scope="module")
def folder(graph, tmp_path_factory):
    """A chunked graph, the parts of its nodes, and the dataset of both, by the tools."""
    root = tmp_path_factory.mktemp("tools")
    rng = np.random.default_rng(6)
    np.save(root / "feat.npy", rng.random((40, 3), np.float32))
    np.save(root / "mask.npy", np.arange(40) % 3 == 0)
    np.save(root / "weight.npy", rng.random(33))
    chunk_graph.chunk_graph(
        graph, "mag", {"paper": {"feat": root / "feat.npy", "train_mask": root / "mask.npy"}},
        {"writes": {"weight": root / "weight.npy"}}, 3, root / "chunks",
    )  # fmt: skip
    assert random_partition.main(words(f"--in_dir {root}/chunks --out_dir {root}/owners --num_partitions 3")) == 0
    assert dispatch_data.main(words(f"{dispatched(root)} --workers 0 {FLAGS_WITHOUT_EFFECT}")) == 0
    return root


def words(text: str) -> list[str]:
    return text.split()


def dispatched(root) -> str:
    return f"--in-dir {root}/chunks --partitions-dir {root}/owners --out-dir {root}/parts"


def verified(root, parts="parts") -> list[str]:
    return words(f"--orig-dataset-dir {root}/chunks --part-graph-dir {root}/{parts} --partitions-dir {root}/owners")


def test_features_of_files_survive_chunking(folder, graph):
    read = hopstream.read_graph(folder / "chunks")
    assert list(read.nodes["paper"].features) == ["feat"] and not read.nodes["author"].features
    assert np.array_equal(read.nodes["paper"].features["feat"], np.load(folder / "feat.npy"))
    assert read.splits["paper"]["train"].tolist() == list(range(0, 40, 3))
    assert np.array_equal(read.edges["author", "writes", "paper"].features["weight"], np.load(folder / "weight.npy"))
    assert hopstream.read_dataset(folder / "parts").fingerprint() == read.fingerprint()
    for edge_type, table in graph.edges.items():
        assert np.array_equal(read.edges[edge_type].src_keys, table.src_keys)


def test_chunks_of_a_graphs_own_features(folder, tmp_path, capsys):
    source = folder / "chunks"
    flags = "--name again --num-chunks 2 --data-fmt parquet --edges-fmt parquet --vector-rows"
    assert chunk_graph.main([str(source), "--output-path", str(tmp_path / "a"), *words(flags)]) == 0
    assert hopstream.read_graph(tmp_path / "a").fingerprint() == hopstream.read_graph(source).fingerprint()
    assert chunk_graph.main([str(folder / "parts"), "--output-path", str(tmp_path / "d"), "--num-chunks", "3"]) == 0
    assert hopstream.read_graph(tmp_path / "d").fingerprint() == hopstream.read_graph(source).fingerprint()
    edata = f"author:writes:paper/w={folder}/weight.npy"
    assert chunk_graph.main([str(source), "--output-path", str(tmp_path / "b"), "--edata", edata]) == 0
    read = hopstream.read_graph(tmp_path / "b")
    assert list(read.edges["author", "writes", "paper"].features) == ["w"]
    assert not read.nodes["paper"].features
    capsys.readouterr()
    assert chunk_graph.main([str(source), "--output-path", str(tmp_path / "c"), "--ndata", "paper.x"]) == 2
    assert "--ndata is 'paper.x'; wanted type/name=file.npy" in capsys.readouterr().err
    gone = str(tmp_path / "gone.npy")
    given = ["--ndata", f"paper/x={gone}", "--edata", f"paper:cites:paper/x={gone}"]
    assert chunk_graph.main([str(source), "--output-path", str(tmp_path / "c"), *given]) == 2
    assert f"{gone} is not a file; it was given for feature 'x'" in capsys.readouterr().err


def test_a_graph_of_one_type_takes_paths_by_name(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(4.0))
    np.save(tmp_path / "w.npy", np.arange(3.0))
    plain = hopstream.graph_from_arrays(np.array([[0, 1, 2], [1, 2, 3]]))
    chunk_graph.chunk_graph(plain, "g", {"x": tmp_path / "x.npy"}, {"w": tmp_path / "w.npy"}, 2, tmp_path / "c")
    read = hopstream.read_graph(tmp_path / "c")
    assert read.nodes["node"].features["x"].tolist() == [0, 1, 2, 3]
    assert read.edges["node", "to", "node"].features["w"].tolist() == [0, 1, 2]
    with pytest.raises(SchemaError, match="w"):
        chunk_graph.chunk_graph(plain, "g", {}, {"w": tmp_path / "x.npy"}, 2, tmp_path / "d")
    with pytest.raises(SettingsError, match="both None"):
        chunk_graph.chunk_graph(plain, "g", None, {}, 2, tmp_path / "d")


def test_paths_of_unknown_types_are_refused(graph, tmp_path):
    np.save(tmp_path / "x.npy", np.arange(4.0))
    x = {"x": tmp_path / "x.npy"}
    for ndata, edata, message in (
        ({"venue": x}, {}, "ndata_paths name node type 'venue'"),
        ({}, {"reads": x}, "edata_paths name 'reads', which is not an edge type"),
    ):
        with pytest.raises(UnknownNameError, match=message):
            chunk_graph.chunk_graph(graph, "g", ndata, edata, 2, tmp_path / "d")
    with pytest.raises(SettingsError, match="3 types; give them by type"):
        chunk_graph.chunk_graph(graph, "g", x, {}, 2, tmp_path / "d")


def test_correct_parts_verify(folder, capsys):
    assert verify_partitions.main(verified(folder)) == 0
    said = capsys.readouterr().out
    assert "ok      nodes      108 checked, 0 wrong" in said and "wrong   " not in said  # 54 twice: keys, and owners
    assert verify_partitions.main([*verified(folder), "--log-level", "error"]) == 0
    assert not capsys.readouterr().out


def test_moved_nodes_and_changed_features_are_reported(folder, tmp_path, capsys):
    for name in ("chunks", "parts", "owners"):
        shutil.copytree(folder / name, tmp_path / name)
    owner = np.load(tmp_path / "owners/paper.npy")
    owner[7] = (owner[7] + 1) % 3
    np.save(tmp_path / "owners/paper.npy", owner)
    files = sorted((tmp_path / "chunks/node_data/paper").glob("feat*"))
    rows = np.load(files[0])
    rows[2] += 1
    np.save(files[0], rows)
    assert verify_partitions.main(verified(tmp_path)) == 1
    said = capsys.readouterr().out
    moved = f"key 7 (part {(owner[7] - 1) % 3}, not {owner[7]})"
    assert f"wrong   paper: is in another part than in the folder of owners: {moved}" in said
    assert "wrong   paper.feat: is not what the source has: key 2" in said


def test_dgls_files_beside_the_dataset(folder, tmp_path, capsys):
    arguments = dispatched(folder).replace(f"{folder}/parts", f"{tmp_path}/parts")
    flags = "--workers 0 --graph-formats coo,csc --save-orig-nids --save-orig-eids"
    for more in ("", " --overwrite"):
        assert dispatch_data.main(words(f"{arguments} {flags}{more}")) == 0, capsys.readouterr().err
        (tmp_path / "parts/.metadata.ended.partial/part0").mkdir(parents=True)  # as a process that is killed leaves it
    shutil.rmtree(tmp_path / "parts/.metadata.ended.partial")
    out = tmp_path / "parts"
    graph = hopstream.read_graph(folder / "chunks")
    book = hopstream.dataset.read_key_book(out)
    keys = {"paper": [], ("author", "writes", "paper"): []}
    for part in range(3):
        orig_nids, orig_eids = (dgl.data.load_tensors(out / f"part{part}/orig_{n}ids.dgl") for n in "ne")
        _, node_feats, edge_feats, _, name, _, _ = dgl.distributed.load_partition(out / "metadata.json", part)
        assert name == "mag" and set(orig_nids) == set(graph.nodes)
        assert np.array_equal(orig_nids["paper"], book.keys_of_part("paper", part))
        feat = graph.nodes["paper"].features["feat"]
        assert np.array_equal(node_feats["paper/feat"], feat[orig_nids["paper"]])
        weight = graph.edges["author", "writes", "paper"].features["weight"]
        writes = orig_eids["author:writes:paper"]
        assert np.array_equal(edge_feats["author:writes:paper/weight"], weight[writes])
        keys["paper"] += orig_nids["paper"].tolist()
        keys["author", "writes", "paper"] += writes.tolist()
    assert {of: sorted(found) for of, found in keys.items()} == {
        "paper": list(range(40)), ("author", "writes", "paper"): list(range(33))
    }  # fmt: skip
    assert verify_partitions.main(words(" ".join(verified(folder)).replace(f"{folder}/parts", str(out)))) == 0
    (out / "part0/notes.txt").write_text("")
    assert hopstream.verify_dataset(out).kinds == ("files",)
    assert dispatch_data.main(words(f"{arguments} --workers 0 --overwrite")) == 2
    assert "holds 'part0' beside a dataset" in capsys.readouterr().err


def test_dgls_files_are_those_of_partition_graph(folder, tmp_path):
    dgl.distributed.partition_graph(
        hopstream.read_graph(folder / "chunks"), "metadata", 3, tmp_path, part_method="file", owners=folder / "owners"
    )
    for path in sorted(tmp_path.rglob("*.dgl")):
        assert (folder / "parts" / path.relative_to(tmp_path)).read_bytes() == path.read_bytes()
    ours, theirs = (json.loads((root / "metadata.json").read_text()) for root in (folder / "parts", tmp_path))
    assert ours == {**theirs, "graph_name": "mag"}


def test_a_graph_that_dgls_files_do_not_hold(tmp_path, capsys):
    graph = hopstream.graph_from_arrays(
        np.array([[0, 1], [1, 0]]), node_features={"title": np.array(["one", "two"])}, num_nodes=2
    )
    write_chunked(graph, tmp_path / "chunks")
    given = f"--in_dir {tmp_path}/chunks --out_dir {tmp_path}/owners --num_partitions 2"
    assert random_partition.main(words(given)) == 0
    assert dispatch_data.main(words(f"{dispatched(tmp_path)} --workers 0")) == 2
    said = capsys.readouterr().err
    assert "_N/title is text or ragged" in said and "give --no-dgl-files to write the dataset alone" in said
    assert not (tmp_path / "parts").exists()  # before anything is dispatched
    assert dispatch_data.main(words(f"{dispatched(tmp_path)} --workers 0 --no-dgl-files")) == 0
    assert {path.name for path in (tmp_path / "parts").iterdir()} == {"manifest.json", "part-00000", "part-00001"}
    assert hopstream.read_dataset(tmp_path / "parts").fingerprint() == graph.fingerprint()


def test_original_ids_of_a_graph_without_types(tmp_path, rng):
    pairs = rng.integers(0, 20, (2, 60))
    chunk_graph.chunk_graph(hopstream.graph_from_arrays(pairs, num_nodes=20), "g", {}, {}, 2, tmp_path / "chunks")
    given = f"--in_dir {tmp_path}/chunks --out_dir {tmp_path}/owners --num_partitions 2"
    assert random_partition.main(words(given)) == 0
    flags = "--workers 0 --save-orig-nids --save-orig-eids"
    assert dispatch_data.main(words(f"{dispatched(tmp_path)} {flags}")) == 0
    for part in range(2):
        g = dgl.distributed.load_partition(tmp_path / "parts/metadata.json", part)[0]
        orig_nids, orig_eids = (dgl.data.load_tensors(tmp_path / f"parts/part{part}/orig_{n}ids.dgl") for n in "ne")
        is_own, is_own_edge = g.ndata["inner_node"].bool(), g.edata["inner_edge"].bool()
        assert np.array_equal(orig_nids["_N"], g.ndata["orig_id"][is_own])
        assert np.array_equal(orig_eids["_N:_E:_N"], g.edata["orig_id"][is_own_edge])
        assert np.isin(pairs[1][orig_eids["_N:_E:_N"]], orig_nids["_N"]).all()


def test_a_dgl_graph_is_chunked(tmp_path):
    g = dgl.graph(([0, 1, 2], [1, 2, 3]))
    np.save(tmp_path / "x.npy", np.arange(4.0))
    np.save(tmp_path / "w.npy", np.arange(3.0))
    chunk_graph.chunk_graph(
        g, "g", {"_N": {"x": tmp_path / "x.npy"}}, {"_E": {"w": tmp_path / "w.npy"}}, 2, tmp_path / "c"
    )
    read = hopstream.read_graph(tmp_path / "c")
    assert read.edges["node", "to", "node"].dst_keys.tolist() == [1, 2, 3]
    assert read.nodes["node"].features["x"].tolist() == [0, 1, 2, 3]


def test_tools_run_as_modules(folder, tmp_path):
    command = [sys.executable, "-m", "hopstream.compat.dgl.tools.random_partition"]
    given = words(f"--in_dir {folder}/chunks --out_dir {tmp_path}/owners --num_partitions 3")
    done = subprocess.run([*command, *given], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "owners/paper.txt").read_bytes() == (folder / "owners/paper.txt").read_bytes()


def test_errors_are_printed_in_one_line(folder, tmp_path, capsys):
    (tmp_path / "ip_config.txt").write_text("".join(f"10.0.0.{n}\n" for n in range(4)))
    elsewhere = f"--in-dir {folder}/chunks --partitions-dir {folder}/owners --out-dir {tmp_path}/parts --workers 0"
    given = f"--in_dir {folder}/chunks --out_dir {folder}/owners --num_partitions"
    for tool, arguments, message in (
        (random_partition, f"{given} 2", "holds parts of nodes; give --overwrite"),
        (
            random_partition,
            f"--in_dir {tmp_path} --out_dir {tmp_path}/o --num_partitions 2",
            "metadata.json is missing",
        ),
        (random_partition, f"{given} two", "argument --num_partitions: invalid int value: 'two'; see python -m"),
        (random_partition, "--in_dir x", "the following arguments are required: --out_dir, --num_partitions"),
        (dispatch_data, f"{elsewhere} --ip-config {tmp_path}/ip_config.txt", "names 4 machines for 3 parts"),
        (dispatch_data, f"{elsewhere} --ip-config {tmp_path}/none.txt", "none.txt"),
        (dispatch_data, f"{elsewhere} --use-graphbolt", "--use-graphbolt is given, and GraphBolt's files are not"),
        (dispatch_data, f"{elsewhere} --no-dgl-files --graph-formats csc", "leave out --no-dgl-files"),
        (dispatch_data, f"{elsewhere} --graph-formats cso", "--graph-formats has 'cso'; known: coo, csr, csc"),
        (dispatch_data, f"{elsewhere} --graph-format csc", "unrecognized arguments: --graph-format csc"),
        (verify_partitions, " ".join(verified(folder, "owners")), "is not a dataset"),
    ):
        assert tool.main(words(arguments)) == 2
        said = capsys.readouterr().err
        assert said.startswith("error: ") and message in said and said.count("\n") == 1, said
    assert not (tmp_path / "parts").exists()
