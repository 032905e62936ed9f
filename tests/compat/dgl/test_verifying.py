"""Checks that every fault of DGL's files is reported, and that correct files have no findings."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

import hopstream
from hopstream.compat.dgl import verifying_data
from hopstream.compat.dgl.binary import read_tensor_file, write_tensor_file
from hopstream.compat.dgl.distributed import partition_graph
from hopstream.compat.dgl.graph_files import read_graph_file, write_graph_file
from hopstream.compat.dgl.tools import verify_partitions
from hopstream.compat.dgl.verifying import verify_part_files
from hopstream.ingest.chunked import write_chunked
from tests.compat.dgl.graphs import plain_graph, some_owners, typed_graph

NUM_PARTS = 3
LIKES = ("a", "to", "b")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A typed graph as chunks, its owners, and DGL's files of its parts, without a dataset."""
    root = tmp_path_factory.mktemp("whole")
    graph = replace(typed_graph(), splits={"a": {"train": np.arange(0, 17, 2)}}, edge_splits={})
    write_chunked(graph, root / "chunks")
    (root / "owners").mkdir()
    owners = some_owners(graph, NUM_PARTS)
    for t, owner in owners.items():
        np.save(root / f"owners/{t}.npy", owner)
    partition_graph(graph, "g", NUM_PARTS, root / "parts", part_method="file", owners=owners)
    return root, graph, owners


@pytest.fixture
def parts(whole, tmp_path):
    shutil.copytree(whole[0] / "parts", tmp_path / "parts")
    return tmp_path / "parts"


def verify(whole, parts, **options):
    return verify_part_files(parts / "g.json", against=whole[1], owners=whole[0] / "owners", **options)


def told(report) -> str:
    return "\n".join(map(str, report.findings))


@pytest.mark.parametrize(
    ("graph", "num_hops", "max_edges"),
    [(plain_graph(), 1, 1), (plain_graph(), 2, 1 << 22), (typed_graph(), 0, 1), (typed_graph(), 1, 1 << 22)],
    ids=["plain, one hop", "plain, two hops", "typed, no hop", "typed, one hop"],
)
def test_correct_parts_verify(tmp_path, monkeypatch, graph, num_hops, max_edges):
    monkeypatch.setattr(verifying_data, "block_rows", lambda _: 5)
    owners = some_owners(graph, NUM_PARTS)
    (tmp_path / "owners").mkdir()
    for t, owner in owners.items():
        np.save(tmp_path / f"owners/{t}.npy", owner)
    partition_graph(graph, "g", NUM_PARTS, tmp_path, num_hops, part_method="file", owners=owners)
    report = verify_part_files(tmp_path / "g.json", against=graph, owners=tmp_path / "owners", max_edges=max_edges)
    assert report.is_ok, told(report)
    num_nodes = sum(table.num_nodes for table in graph.nodes.values())
    assert report.checks["nodes"].num_checked == num_nodes
    rev = ("b", "rev", "a")
    num_rev = graph.edges[rev].num_edges if rev in graph.edges else 0
    if rev in graph.edges and not num_hops:
        ends = graph.edges[rev]
        num_rev = np.count_nonzero(owners["b"][ends.src_keys] == owners["a"][ends.dst_keys])
    num_edges = sum(
        len(table.src_keys)
        if num_hops
        else np.count_nonzero(owners[t[0]][table.src_keys] == owners[t[2]][table.dst_keys])
        for t, table in graph.edges.items()
    )
    assert report.checks["ownership"].num_checked == num_edges
    assert report.checks["splits"].num_checked == (num_nodes if "node" in graph.nodes else 2 * 17 + num_rev)
    wanted = {"files": 3 * NUM_PARTS, "manifest": 1}
    assert {kind: report.checks[kind].num_checked for kind in wanted} == wanted
    if num_hops:
        assert report.checks["features"].num_checked == (150 if "node" in graph.nodes else 2 * 17 + 12 + 40)


def test_a_flipped_bit_of_a_feature(whole, parts, capsys):
    path = parts / "part0/node_feat.dgl"
    key = int(np.flatnonzero(whole[2]["a"] == 0)[1])
    value = whole[1].nodes["a"].features["x"][key].tobytes()
    data = bytearray(path.read_bytes())
    data[data.index(value) + 5] ^= 1
    path.write_bytes(data)
    report = verify(whole, parts)
    assert report.kinds == ("features",)
    assert told(report) == f"part0/node_feat.dgl a/x: is not what the source has: key {key}"
    given = f"--orig-dataset-dir {whole[0]}/chunks --part-graph-dir {parts} --partitions-dir {whole[0]}/owners".split()
    assert verify_partitions.main(given) == 1  # without a manifest.json: these are DGL's files alone
    said = capsys.readouterr().out
    assert f"wrong   part0/node_feat.dgl a/x: is not what the source has: key {key}" in said
    assert f"verify  {parts}/g.json" in said and "failed  features   86 checked, 1 wrong" in said
    shutil.copy(whole[0] / "parts/part0/node_feat.dgl", path)
    assert verify_partitions.main(given) == 0
    assert "skipped" not in capsys.readouterr().out


def test_folders_in_each_others_place(whole, parts):
    (parts / "part0").rename(parts / "x")
    (parts / "part1").rename(parts / "part0")
    (parts / "x").rename(parts / "part1")
    report = verify(whole, parts)
    assert report.kinds == ("files",)
    assert [f.where for f in report.findings] == ["part0/graph.dgl", "part1/graph.dgl"]
    assert "check that the folders of parts were not swapped" in told(report)
    assert report.checks["nodes"].num_checked == np.count_nonzero(
        np.concatenate([owner == 2 for owner in whole[2].values()])
    )


def change_graph(path, change) -> None:
    graph = read_graph_file(path)
    write_graph_file(path, change(graph))


def without_edge(graph, place):
    keep = np.arange(len(graph.src)) != place
    return replace(
        graph, src=graph.src[keep], dst=graph.dst[keep], edata={n: array[keep] for n, array in graph.edata.items()}
    )


def test_a_missing_edge_is_found(whole, parts):
    path = parts / "part1/graph.dgl"
    graph = read_graph_file(path)
    place = 2
    key, etype = int(graph.edata["orig_id"][place]), list(whole[1].edges)[graph.edata["_TYPE"][place]]
    assert graph.edata["inner_edge"][place]
    change_graph(path, lambda graph: without_edge(graph, place))
    report = verify(whole, parts)
    assert report.kinds == ("edges",)
    assert f"part1/graph.dgl {':'.join(etype)}: lacks edges into its nodes: edge key {key}" in told(report)
    assert "of its own, as the JSON file says: number" in told(report)


def changed(name, place, value):
    """Change one value of the data of a graph, or of an end of its edges."""

    def change(graph):
        if name in ("src", "dst"):
            array = getattr(graph, name).copy()
            array[place] = value(array[place]) if callable(value) else value
            return replace(graph, **{name: array})
        where, _, of = name.partition(".")
        array = getattr(graph, where)[of].copy()
        array[place] = value(array[place]) if callable(value) else value
        return replace(graph, **{where: {**getattr(graph, where), of: array}})

    return change


@pytest.mark.parametrize(
    ("change", "kinds", "text"),
    [
        (
            changed("src", slice(2), lambda ends: ends[::-1]),
            {"edges"},
            "joins other nodes than the source says (2 places): edge key",
        ),
        (changed("edata.orig_id", 0, lambda key: key + 1), {"edges", "features"}, "lacks edges into"),
        (changed("edata.orig_id", 0, -4), {"ranges", "edges"}, "has keys outside 0..39: -4"),
        (changed("edata.inner_edge", 0, 0), {"edges"}, "lacks edges into its nodes"),
        (changed("edata.inner_edge", -1, 1), {"edges", "ownership"}, "has edges of its own into nodes of other parts"),
        (changed("edata.inner_edge", 0, 2), {"halo"}, "inner_edge of an edge is wrong: edge 0 (2, not"),
        (
            changed("edata._ID", -1, lambda number: number - 40),
            {"halo"},
            "the part of an edge is wrong",
        ),
        (changed("edata._TYPE", 0, 1), {"halo"}, "_TYPE of an edge is wrong"),
        (changed("ndata.orig_id", -1, lambda key: key + 1), {"halo"}, "orig_id of a node is wrong"),
        (changed("ndata.part_id", -1, 0), {"halo"}, "part_id of a node is wrong"),
        (changed("ndata._TYPE", 0, 2), {"halo"}, "_TYPE of a node is wrong"),
    ],
)
def test_parts_of_a_different_graph_are_found(whole, parts, change, kinds, text):
    change_graph(parts / "part0/graph.dgl", change)
    report = verify(whole, parts)
    assert text in told(report) and kinds <= set(report.kinds), told(report)
    assert all("part0/graph.dgl" in str(f) or f.kind == "features" for f in report.findings), told(report)


def test_nodes_with_other_keys_and_other_owners(whole, parts, tmp_path):
    change_graph(parts / "part0/graph.dgl", changed("ndata.orig_id", 0, lambda key: key + 1))
    report = verify(whole, parts)
    assert "nodes" in report.kinds and "b: is held by no part: key" in told(report)
    shutil.copytree(whole[0] / "owners", tmp_path / "owners")
    owner = whole[2]["a"].copy()
    owner[3] = (owner[3] + 1) % NUM_PARTS
    np.save(tmp_path / "owners/a.npy", owner)
    report = verify_part_files(
        whole[0] / "parts/g.json", against=whole[1], owners=tmp_path / "owners"
    )  # fmt: skip
    moved = f"key 3 (part {whole[2]['a'][3]}, not {owner[3]})"
    assert f"a: is in another part than in the folder of owners: {moved}" in told(report)
    assert "ownership" in report.kinds or "edges" in report.kinds


def test_missing_extra_and_mistyped_data_are_found(whole, parts):
    path = parts / "part0/node_feat.dgl"
    arrays = read_tensor_file(path)
    arrays["a/x"] = arrays["a/x"][:, :2]
    arrays["a/train_mask"] = 1 - arrays["a/train_mask"].astype(np.uint8)
    arrays["b/z"] = arrays.pop("b/year")
    write_tensor_file(path, arrays)
    path = parts / "part2/edge_feat.dgl"
    path.write_bytes(path.read_bytes()[:-3])
    report = verify(whole, parts)
    assert set(report.kinds) == {"files", "schema", "splits"}
    said = told(report)
    rows = int((whole[2]["a"] == 0).sum())
    assert f"part0/node_feat.dgl a/x: is float32[{rows}, 2]; wanted float32[{rows}, 3]" in said
    assert "part0/node_feat.dgl b/year: is missing" in said
    assert "part0/node_feat.dgl: has 'b/z', which the source does not have" in said
    assert f"part0/node_feat.dgl a/train_mask: is not the source's split ({rows} places)" in said
    assert "part2/edge_feat.dgl: needs " in said


def test_files_as_dgls_own_scripts_leave_them(whole, parts):
    """Keys lie in separate files, which hold only those of owned nodes and edges, or are missing."""
    for part in range(NUM_PARTS):
        path = parts / f"part{part}/graph.dgl"
        graph = read_graph_file(path)
        names = list(whole[1].nodes), [":".join(t) for t in whole[1].edges]
        for data, inner, types, name in (
            (graph.ndata, "inner_node", names[0], "orig_nids.dgl"),
            (graph.edata, "inner_edge", names[1], "orig_eids.dgl"),
        ):  # fmt: skip
            keys = {
                label: data["orig_id"][(data[inner] != 0) & (data["_TYPE"] == row)] for row, label in enumerate(types)
            }
            write_tensor_file(path.with_name(name), keys)
        if not part:
            assert verify(whole, parts).is_ok
            saved = read_tensor_file(path.with_name("orig_nids.dgl"))
            for changed, said in ((saved["a"][::-1], "other keys of a than"), (saved["a"][1:], "9 keys of a; the")):
                write_tensor_file(path.with_name("orig_nids.dgl"), {**saved, "a": changed.copy()})
                report = verify(whole, parts)
                assert report.kinds == ("files",) and f"part0/orig_nids.dgl: has {said}" in told(report), told(report)
            write_tensor_file(path.with_name("orig_nids.dgl"), saved)
        data = [{n: a for n, a in of.items() if n not in ("orig_id", "part_id")} for of in (graph.ndata, graph.edata)]
        write_graph_file(path, replace(graph, ndata=data[0], edata=data[1]))
    report = verify(whole, parts)
    assert report.is_ok and report.checks["ownership"].num_checked == 95, told(report)
    keys = read_tensor_file(parts / "part0/orig_eids.dgl")
    keys["a:to:b"] = keys["a:to:b"][::-1].copy()
    write_tensor_file(parts / "part0/orig_eids.dgl", keys)
    assert {"edges", "features"} <= set(verify(whole, parts).kinds)
    for path in parts.glob("part*/orig_eids.dgl"):
        path.unlink()
    report = verify(whole, parts)
    assert report.is_ok and not report.checks["ownership"].num_checked
    assert "part0/orig_eids.dgl is missing: the keys of" in report.checks["ownership"].skipped[0]


def test_unmatched_types_and_missing_files_are_found(whole, parts, capsys):
    graph = replace(whole[1], edges={t: table for t, table in whole[1].edges.items() if t != LIKES})
    report = verify_part_files(parts / "g.json", against=graph, owners=whole[0] / "owners")
    assert told(report) == "a:to:b: is a type of the parts only"
    value = json.loads((parts / "g.json").read_text())
    shutil.rmtree(parts / "part1")
    assert "part1/graph.dgl: is missing" in told(verify(whole, parts))
    (parts / "g.json").write_text(json.dumps({**value, "num_nodes": -1}))
    assert "g.json: has num_nodes -1" in told(verify(whole, parts))
    (parts / "g.json").unlink()
    given = f"--orig-dataset-dir {whole[0]}/chunks --part-graph-dir {parts} --partitions-dir {whole[0]}/owners".split()
    assert verify_partitions.main(given) == 1
    assert "wrong   metadata.json: is missing" in capsys.readouterr().out


def test_owners_of_another_number_of_parts(whole, parts):
    fewer = {t: np.minimum(owner, 1) for t, owner in whole[2].items()}
    shutil.rmtree(parts)
    partition_graph(whole[1], "g", 2, parts, part_method="file", owners=fewer)
    with pytest.raises(hopstream.errors.IdRangeError, match=r"parts are numbered 0\.\.1"):
        verify(whole, parts)
