"""Checks that older files of DGL are read, and that parts that do not fit each other are refused."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

import hopstream
from hopstream.compat.dgl.binary import read_tensor_file, write_tensor_file
from hopstream.compat.dgl.distributed import (
    load_partition,
    load_partition_book,
    load_partition_feats,
    partition_graph,
    read_partitions,
)
from hopstream.compat.dgl.graph_files import read_graph_file, write_graph_file
from hopstream.errors import FormatError, SettingsError, UnknownNameError
from tests.compat.dgl.graphs import plain_graph, some_owners, typed_graph


def parts_of(graph, out, **options):
    partition_graph(graph, "g", 2, out, part_method="file", owners=some_owners(graph, 2), **options)
    return out / "g.json"


def change(path, **fields):
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def without_old_ids(path):
    """Remove the data from parts that DGL itself does not write."""
    for file in path.parent.glob("part*/graph.dgl"):
        found = read_graph_file(file)
        ndata, edata = (
            {n: a for n, a in of.items() if n not in ("orig_id", "part_id")} for of in (found.ndata, found.edata)
        )
        write_graph_file(file, replace(found, ndata=ndata, edata=edata))


def test_old_files_of_a_graph_without_types(tmp_path):
    graph = plain_graph()
    path = parts_of(graph, tmp_path)
    said = json.loads(path.read_text())
    for name, key in (("node_map", "_N"), ("edge_map", "_N:_E:_N")):
        change(path, **{name: [stop for _, stop in said[name][key]]})
    said = json.loads(path.read_text())
    path.write_text(
        json.dumps({name: value for name, value in said.items() if name not in ("ntypes", "etypes", "hopstream")})
    )
    for file in tmp_path.glob("part*/*_feat.dgl"):
        write_tensor_file(file, {name.partition("/")[2]: array for name, array in read_tensor_file(file).items()})
    read, _ = read_partitions(path)
    assert read.fingerprint() == graph.fingerprint()
    assert list(load_partition(path, 0)[1]) == ["_N/feat", "_N/train_mask"]


def test_relations_without_their_ends_are_found_in_the_parts(tmp_path):
    rng = np.random.default_rng(0)
    graph = hopstream.graph_from_arrays(
        {("a", "to", "b"): rng.integers(0, 9, (2, 30)), ("b", "rev", "a"): rng.integers(0, 9, (2, 20))},
        num_nodes={"a": 9, "b": 9}, edge_features={("a", "to", "b"): {"w": np.arange(30)}},
    )  # fmt: skip
    path = parts_of(graph, tmp_path)
    said = json.loads(path.read_text())
    bare = {name: {t.split(":")[1]: of for t, of in said[name].items()} for name in ("edge_map", "etypes")}
    change(path, **bare)
    assert load_partition_book(path, 1)[3] == {("a", "to", "b"): 0, ("b", "rev", "a"): 1}
    assert read_partitions(path)[0].fingerprint() == graph.fingerprint()
    empty = hopstream.graph_from_arrays({("a", "none", "b"): np.empty((2, 0), np.int64)}, num_nodes={"a": 3, "b": 3})
    path = parts_of(empty, tmp_path / "empty")
    change(path, edge_map={"none": [[0, 0], [0, 0]]}, etypes={"none": 0})
    with pytest.raises(FormatError, match="'none' without its node types"):
        load_partition_book(path, 0)


@pytest.mark.parametrize(
    ("of", "types", "said"),
    [
        ("ndata", [-1, 1], r"node types -1\.\.1; the JSON file has 2 of them"), ("ndata", [7, 1], r"node types 1\.\.7"),
        ("ndata", [[0], [1]], r"'_TYPE' as int64\[2, 1\]; wanted"), ("ndata", [0.0, 1.0], "wanted integers"),
        ("edata", [[0], [0]], r"'_TYPE' as int64\[2, 1\]; wanted"), ("edata", [0.0, 0.0], "wanted integers"),
    ],
)  # fmt: skip
def test_edges_of_unknown_types_are_refused(tmp_path, of, types, said):
    graph = hopstream.graph_from_arrays({("a", "r", "b"): [[0, 0], [0, 0]]}, num_nodes={"a": 1, "b": 1})
    partition_graph(graph, "g", 1, tmp_path)
    path = tmp_path / "g.json"
    change(path, edge_map={"r": [[0, 2]]}, etypes={"r": 0})
    assert load_partition_book(path, 0)[3] == {("a", "r", "b"): 0}
    file = tmp_path / "part0" / "graph.dgl"
    part = read_graph_file(file)
    write_graph_file(file, replace(part, **{of: {**getattr(part, of), "_TYPE": np.array(types)}}))
    with pytest.raises(FormatError, match=said):
        load_partition_book(path, 0)


def test_without_old_ids_keys_are_new_numbers_or_come_from_files(tmp_path):
    graph = typed_graph()
    path = parts_of(graph, tmp_path)
    nodes, edges = {}, {}
    for part in (0, 1):  # as dispatch_data.py --save-orig-nids --save-orig-eids writes them
        g, *_ = load_partition(path, part)
        for to, data, inner, names in (
            (nodes, g.ndata, "inner_node", list(graph.nodes)),
            (edges, g.edata, "inner_edge", [":".join(t) for t in graph.edges]),
        ):
            mine = data[inner] == 1
            to[part] = {n: data["orig_id"][mine & (data["_TYPE"] == row)].numpy() for row, n in enumerate(names)}
    without_old_ids(path)
    plain, owners = read_partitions(path)
    assert plain.fingerprint() != graph.fingerprint()
    assert all((np.diff(owner) >= 0).all() for owner in owners.values())
    for part in (0, 1):
        write_tensor_file(tmp_path / f"part{part}/orig_nids.dgl", nodes[part])
        write_tensor_file(tmp_path / f"part{part}/orig_eids.dgl", edges[part])
    assert read_partitions(path)[0].fingerprint() == graph.fingerprint()
    write_tensor_file(tmp_path / "part1/orig_nids.dgl", nodes[0])
    with pytest.raises(FormatError, match=r"orig_nids\.dgl"):
        read_partitions(path)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"num_parts": 0}, "num_parts 0"),
        ({"num_parts": 3}, "part-2"),
        ({"node_map": "node_map.npy"}, "only ranges"),
        (
            {"node_map": {"_N": [[0, 10], [12, 30]]}},
            r"must be contiguous .* part 1 has \[12, 30\] of '_N'; wanted a range from 10",
        ),
        ({"node_map": {"_N": [[0, 10], [10]]}}, "no array as ranges of '_N'; wanted 2 pairs"),
        ({"node_map": {"_N": [[0, 10]]}}, "wanted 2 pairs"),
        ({"ntypes": {"_N": 1}}, "ids 0"),
        ({"ntypes": {"_N": 0.5}}, "wanted whole numbers by type"),
        ({"ntypes": {}, "node_map": {}}, "no node types"),
        ({"etypes": {}, "edge_map": {}}, "num_edges 120, and ranges of edges that end with 0"),
        ({"graph_name": None}, "graph_name None; wanted a text"),
        ({"num_nodes": 31}, "num_nodes 31, and ranges of nodes that end with 30"),
        ({"part-1": {"part_graph_graphbolt": "x.pt"}}, "GraphBolt"),
        ({"node_map": {"_N": [[0, 1], [1, 30]]}}, "of its own, but part .* according to .*json; check"),
        (
            {"edge_map": {"_N:_E:_N": [[0, 1], [1, 120]]}},
            r"78 edges, numbers 0\.\.77, of its own, but part 0 has 1 from",
        ),
    ],
)
def test_a_json_file_that_contradicts_the_parts_is_refused(tmp_path, fields, said):
    path = parts_of(plain_graph(), tmp_path)
    change(path, **fields)
    with pytest.raises(FormatError, match=said):
        read_partitions(path)


def test_a_part_in_the_place_of_another_is_refused(tmp_path):
    path = parts_of(typed_graph(), tmp_path)
    (tmp_path / "part0").rename(tmp_path / "old")
    (tmp_path / "part1").rename(tmp_path / "part0")
    (tmp_path / "old").rename(tmp_path / "part1")
    for part in (0, 1):
        with pytest.raises(FormatError, match=f"but part {part} has .* according to .* swapped"):
            load_partition(path, part)


def test_missing_and_incomplete_parts_are_refused(tmp_path):
    path = parts_of(plain_graph(), tmp_path / "a")
    for load in (load_partition, load_partition_feats, load_partition_book):
        for part in ("0", None, 1.0, True):
            with pytest.raises(SettingsError, match=r"part_id is .*; it must be an integer"):
                load(path, part)
    assert load_partition(path, 0, use_graphbolt=False)[4] == "g"
    with pytest.raises(SettingsError, match="use_graphbolt is given"):
        load_partition(path, 0, use_graphbolt=True)
    with pytest.raises(UnknownNameError, match="no part 2"):
        load_partition(path, 2)
    feats = path.parent / "part1/node_feat.dgl"
    write_tensor_file(feats, {"_N/feat": np.zeros((3, 4), np.float32)})
    with pytest.raises(FormatError, match="_N/feat"):
        read_partitions(path)
    write_tensor_file(feats, {})
    with pytest.raises(FormatError, match="has no 'feat'"):
        read_partitions(path)
    feats.unlink()
    with pytest.raises(FormatError, match=r"node_feat\.dgl is missing"):
        read_partitions(path)


def test_parts_without_edges_between_them_are_refused(tmp_path):
    graph = plain_graph()
    path = parts_of(graph, tmp_path / "cut", num_hops=0)
    owners = some_owners(graph, 2)["node"]
    ends = graph.edges["node", "to", "node"]
    number, own = (int(((owners[ends.src_keys] == 0) | is_all)[owners[ends.dst_keys] == 0].sum()) for is_all in (1, 0))
    assert load_partition(path, 0)[0].num_edges() == own < number
    with pytest.raises(
        FormatError, match=f"has {own} of the {number} edges of part 0: with num_hops=0 .*num_hops=1, or"
    ):
        read_partitions(path)
    change(path, halo_hops=1)  # without this the part is damaged
    with pytest.raises(FormatError, match=f"{own} edges, numbers .* part 0 has {number}"):
        load_partition(path, 0)
    halves = np.arange(30) // 15
    apart = hopstream.graph_from_arrays(
        np.stack([e[halves[ends.src_keys] == halves[ends.dst_keys]] for e in (ends.src_keys, ends.dst_keys)]),
        num_nodes=30,
    )
    partition_graph(apart, "g", 2, tmp_path / "apart", 0, part_method="file", owners={"node": halves.astype(np.int32)})
    assert read_partitions(tmp_path / "apart/g.json")[0].fingerprint() == apart.fingerprint()


def test_error_for_a_wrong_path_asks_for_the_json_file(tmp_path):
    with pytest.raises(FormatError, match=r"none\.json is missing; give the JSON file that partition_graph wrote"):
        read_partitions(tmp_path / "none.json")
    with pytest.raises(FormatError, match=r"the folder .*nowhere is missing; give the JSON"):
        read_partitions(tmp_path / "nowhere/g.json")
    with pytest.raises(FormatError, match=r"is a folder; give the JSON file in it: .* this folder has none"):
        read_partitions(tmp_path)
    for text in ("[1, 2]", '{"a": 1}'):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(
            FormatError, match=r"has no 'graph_name', .*'edge_map', .* give the JSON file that partition_g"
        ):
            load_partition_book(tmp_path / "bad.json", 0)
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(FormatError, match=r"is not a JSON file .* give the file that partition_graph wrote"):
        load_partition(tmp_path / "bad.json", 0)
    with pytest.raises(FormatError, match=r"is a folder; give the JSON file in it: one of \['bad\.json'\]"):
        load_partition(tmp_path, 0)


def test_files_outside_the_folder_are_not_read(tmp_path):
    path = parts_of(plain_graph(), tmp_path / "a")
    said = json.loads(path.read_text())["part-1"]
    outside = tmp_path / "outside"
    shutil.copytree(path.parent / "part1", outside)
    (path.parent / "linked").symlink_to(outside)
    for folder in ("../outside", str(outside), "part0/../../outside", "linked"):
        for what, name in said.items():
            change(path, **{"part-1": {**said, what: name.replace("part1", folder)}})
            with pytest.raises(FormatError, match=r"of part 1, which leads out of the folder .* put the part's files"):
                load_partition(path, 1)
    change(path, **{"part-1": said})
    (path.parent / "ring").symlink_to("ring")
    change(path, **{"part-1": {**said, "part_graph": "ring/graph.dgl"}})
    with pytest.raises(FormatError, match="ring"):
        load_partition(path, 1)
    (tmp_path / "b").symlink_to(tmp_path / "a")  # the folder itself may be a link, and paths in it may be whole
    change(path, **{"part-1": {what: str(path.parent / name) for what, name in said.items()}})
    assert read_partitions(tmp_path / "b/g.json")[0].fingerprint() == plain_graph().fingerprint()
    without_old_ids(path)
    (tmp_path / "orig_nids.dgl").write_bytes(b"")
    (path.parent / "part0/orig_nids.dgl").symlink_to(tmp_path / "orig_nids.dgl")
    with pytest.raises(FormatError, match=r"orig_nids\.dgl' of part 0, which leads out"):
        read_partitions(path)
