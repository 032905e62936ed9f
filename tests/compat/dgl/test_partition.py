"""Checks that nodes and edges are numbered as DGL documents it, and that files hold their own rows."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import hopstream
import hopstream.compat.dgl as dgl
from hopstream.arrays import RaggedArray
from hopstream.compat.dgl import loading
from hopstream.compat.dgl.distributed import (
    load_partition,
    load_partition_book,
    load_partition_feats,
    partition_graph,
    read_partitions,
)
from hopstream.compat.dgl.in_memory import around_part
from hopstream.compat.dgl.verifying import verify_part_files
from hopstream.errors import SchemaError, SettingsError
from tests.compat.dgl.graphs import plain_graph, some_owners, typed_graph

NUM_PARTS = 3


@pytest.fixture(scope="module")
def typed(tmp_path_factory):
    """The graph, its owners, the path of the JSON and the returned mapping; part 1 owns no ``b`` node."""
    graph, out = typed_graph(), tmp_path_factory.mktemp("typed")
    owners = some_owners(graph, NUM_PARTS)
    owners["b"][owners["b"] == 1] = 2
    maps = partition_graph(
        graph, "g", NUM_PARTS, out, num_hops=2, part_method="file", owners=owners, return_mapping=True
    )
    return graph, owners, out / "g.json", maps


def test_numbers_ascend_by_part_and_type(typed):
    graph, owners, path, (nodes, edges) = typed
    said = json.loads(path.read_text())
    assert [said[name] for name in ("graph_name", "num_parts", "halo_hops", "num_nodes")] == ["g", NUM_PARTS, 2, 30]
    assert said["ntypes"] == {"b": 0, "a": 1, "c": 2} and said["num_edges"] == 95
    next_node = next_edge = 0
    for part in range(NUM_PARTS):
        for t in graph.nodes:
            keys = np.flatnonzero(owners[t] == part)
            first, stop = said["node_map"][t][part]
            assert (first, stop) == (next_node, next_node + len(keys))
            before = int((owners[t] < part).sum())
            assert nodes[t][before : before + len(keys)].tolist() == keys.tolist()
            next_node = stop
        for t, table in graph.edges.items():
            parts = owners[t[2]][table.dst_keys]
            keys = np.flatnonzero(parts == part)
            first, stop = said["edge_map"][":".join(t)][part]
            assert (first, stop) == (next_edge, next_edge + len(keys))
            before = int((parts < part).sum())
            assert edges[t][before : before + len(keys)].tolist() == keys.tolist()
            next_edge = stop
    start, stop = said["node_map"]["b"][1]
    assert start == stop == said["node_map"]["c"][0][1]  # an empty range, which begins where the one before it ended


def test_graphs_of_parts_hold_their_own_first_and_then_the_halo(typed):
    graph, owners, path, (old_nodes, old_edges) = typed
    for part in range(NUM_PARTS):
        g, _, _, book, name, ntypes, etypes = load_partition(path, part)
        assert (name, ntypes, etypes) == ("g", list(graph.nodes), list(graph.edges))
        assert {n: t.dtype for n, t in g.ndata.items()} == {
            "_ID": torch.int64, "inner_node": torch.uint8, "part_id": torch.int64, "orig_id": torch.int64,
            "_TYPE": torch.int16,
        }  # fmt: skip
        assert g.edata["_TYPE"].dtype == torch.int32 and g.edata["inner_edge"].dtype == torch.uint8
        is_inner = g.ndata["inner_node"].bool()
        assert g.ndata["_ID"][is_inner].tolist() == book.partid2nids(part).tolist()
        assert is_inner.tolist() == sorted(is_inner.tolist(), reverse=True)
        assert book.nid2partid(g.ndata["_ID"]).tolist() == g.ndata["part_id"].tolist()
        types, numbers = book.map_to_per_ntype(g.ndata["_ID"])
        assert types.tolist() == g.ndata["_TYPE"].tolist()
        assert [int(old_nodes[ntypes[t]][n]) for t, n in zip(types, numbers, strict=True)] == g.ndata[
            "orig_id"
        ].tolist()
        assert g.edata["_ID"][g.edata["inner_edge"].bool()].tolist() == book.partid2eids(part).tolist()
        types, numbers = book.map_to_per_etype(g.edata["_ID"])
        around, found = around_part(graph, owners, part, 2), {t: [] for t in graph.edges}
        src, dst = g.edges()
        for place, (t, n) in enumerate(zip(types.tolist(), numbers.tolist(), strict=True)):
            table, key = graph.edges[etypes[t]], int(old_edges[etypes[t]][n])
            assert int(g.edata["orig_id"][place]) == key and int(g.edata["_TYPE"][place]) == t
            ends = [int(g.ndata["orig_id"][end[place]]) for end in (src, dst)]
            assert ends == [table.src_keys[key], table.dst_keys[key]]
            found[etypes[t]].append(key)
        assert {t: sorted(keys) for t, keys in found.items()} == {t: k.tolist() for t, k in around.edge_keys.items()}


def test_features_follow_the_numbers(typed):
    graph, _, path, (nodes, edges) = typed
    all_nodes = [load_partition_feats(path, part, load_edges=False) for part in range(NUM_PARTS)]
    assert all(feats is None for _, feats in all_nodes)
    assert set(all_nodes[0][0]) == {"a/x", "a/is_new", "a/train_mask", "a/held_mask", "b/year"}
    joined = torch.cat([feats["a/x"] for feats, _ in all_nodes])
    assert np.array_equal(joined, graph.nodes["a"].features["x"][nodes["a"]])
    all_edges = [load_partition_feats(path, part, load_nodes=False)[1] for part in range(NUM_PARTS)]
    joined = torch.cat([feats["a:to:b/weight"] for feats in all_edges])
    assert np.array_equal(joined, graph.edges["a", "to", "b"].features["weight"][edges["a", "to", "b"]])


@pytest.mark.parametrize(
    ("graph", "num_parts", "num_hops", "method"),
    [(plain_graph(), 1, 1, "metis"), (plain_graph(), 4, 3, "random"), (typed_graph(), 2, 1, "metis")],
    ids=["plain, one part", "plain", "typed"],
)
def test_a_graph_survives_a_round_trip(tmp_path, graph, num_parts, num_hops, method):
    partition_graph(graph, "g", num_parts, tmp_path, num_hops, method)
    read, owners = read_partitions(tmp_path / "g.json")
    assert read.fingerprint() == graph.fingerprint() and read.schema == graph.schema
    manifest = hopstream.write_parts(read, tmp_path / "dataset", owners=owners, num_parts=num_parts)
    assert manifest.book.num_parts == num_parts
    assert hopstream.read_dataset(tmp_path / "dataset").fingerprint() == graph.fingerprint()
    assert partition_graph(tmp_path / "dataset", "h", num_parts, tmp_path / "again", part_method="random") is None
    assert read_partitions(tmp_path / "again/h.json")[0].fingerprint() == graph.fingerprint()


def test_graphs_with_data_and_those_of_pyg_are_taken(tmp_path):
    src, dst = torch.randint(0, 20, (2, 60))
    g = dgl.graph((src, dst), num_nodes=20)
    g.ndata["feat"], g.ndata["train_mask"] = torch.rand(20, 2), torch.arange(20) % 2 == 0
    nodes, edges = partition_graph(g, "g", 2, tmp_path / "a", return_mapping=True)
    parts = [load_partition(tmp_path / "a/g.json", part) for part in range(2)]
    assert torch.equal(torch.cat([p[1]["_N/feat"] for p in parts]), g.ndata["feat"][nodes])
    assert parts[0][5:] == (["_N"], [("_N", "_E", "_N")]) and "_TYPE" not in parts[0][0].ndata
    back = torch.empty_like(g.ndata["feat"])
    back[nodes] = torch.cat([p[1]["_N/feat"] for p in parts])
    assert torch.equal(back, g.ndata["feat"]) and sorted(edges.tolist()) == list(range(60))
    data = Data(edge_index=torch.stack([src, dst]), feat=g.ndata["feat"], train_mask=g.ndata["train_mask"])
    partition_graph(data, "g", 2, tmp_path / "b")
    assert (
        read_partitions(tmp_path / "b/g.json")[0].fingerprint()
        == read_partitions(tmp_path / "a/g.json")[0].fingerprint()
    )
    typed = dgl.heterograph({("u", "r", "v"): ([0, 1, 2], [0, 0, 1]), ("v", "s", "u"): ([1, 0], [2, 2])})
    assert typed.ntypes == ["u", "v"] and typed.num_nodes("u") == 3 and typed.num_edges("s") == 2
    node_maps, edge_maps = partition_graph(typed, "t", 2, tmp_path / "c", part_method="random", return_mapping=True)
    assert set(node_maps) == {"u", "v"} and set(edge_maps) == {("u", "r", "v"), ("v", "s", "u")}


def test_classes_and_edges_are_shared_out(tmp_path):
    graph = plain_graph(400, 2000)
    rare = torch.arange(400) % 7 == 0
    partition_graph(graph, "g", 4, tmp_path, balance_ntypes=rare, balance_edges=True)
    _, owners = read_partitions(tmp_path / "g.json")
    assert np.bincount(owners["node"][rare.numpy()], minlength=4).max() <= 1.03 * 58 / 4 + 1
    assert max(of["num_edges"] for of in load_partition_book(tmp_path / "g.json", 0)[0].metadata()) < 700
    typed = typed_graph()
    partition_graph(typed, "t", 2, tmp_path / "t", balance_ntypes={"a": np.arange(17) < 4})
    _, owners = read_partitions(tmp_path / "t/t.json")
    assert np.bincount(owners["a"][:4], minlength=2).tolist() == [2, 2]
    assert np.bincount(owners["b"], minlength=2).tolist() == [6, 6]  # a type that is not named is a class too


def test_trainers_are_parts_of_parts(tmp_path):
    graph = typed_graph()
    partition_graph(graph, "g", 2, tmp_path, num_trainers_per_machine=3, part_method="random")
    read, owners = read_partitions(tmp_path / "g.json")
    assert read.fingerprint() == graph.fingerprint()  # the read graph has no feature for trainers
    for part in range(2):
        g, nodes, edges, *_ = load_partition(tmp_path / "g.json", part)
        trainers = nodes["a/trainer_id"]
        assert set((trainers // 3).tolist()) == {part} and len(set(trainers.tolist())) == 3
        assert (owners["a"] == part).sum() == len(trainers)
        of_node = dict(
            zip(
                *(g.ndata[n][g.ndata["_TYPE"] == 1][: len(trainers)].tolist() for n in ("orig_id",)),
                trainers.tolist(),
                strict=True,
            )
        )
        first = g.edata["orig_id"][(g.edata["_TYPE"] == 1) & (g.edata["inner_edge"] == 1)].tolist()
        dst = [of_node[int(graph.edges["b", "rev", "a"].dst_keys[key])] for key in first]
        assert edges["b:rev:a/trainer_id"].tolist() == dst


def test_reshuffle_true_is_accepted_from_older_scripts(tmp_path):
    for out, options in (("a", {}), ("b", {"reshuffle": True})):
        partition_graph(plain_graph(), "g", 2, tmp_path / out, 1, "random", **options)
    assert (tmp_path / "a/g.json").read_bytes() == (tmp_path / "b/g.json").read_bytes()


def test_a_part_may_own_nothing(tmp_path):
    graph = plain_graph(6, 9)
    partition_graph(graph, "g", 3, tmp_path, part_method="file", owners={"node": np.array([0, 0, 2, 2, 0, 2])})
    assert read_partitions(tmp_path / "g.json")[0].fingerprint() == graph.fingerprint()
    assert load_partition(tmp_path / "g.json", 1)[0].num_nodes() == 0


def test_new_parts_replace_old_ones_whole(tmp_path):
    partition_graph(plain_graph(), "g", 4, tmp_path, part_method="random")
    partition_graph(plain_graph(), "g", 2, tmp_path, part_method="random")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["g.json", "part0", "part1"]
    before = (tmp_path / "g.json").read_bytes()
    text = hopstream.graph_from_arrays(
        [[0], [1]], num_nodes=2, node_features={"t": RaggedArray.from_strings(["a", "b"])}
    )
    with pytest.raises(SchemaError, match="_N/t is text or ragged"):
        partition_graph(text, "g", 2, tmp_path, part_method="random")
    assert (tmp_path / "g.json").read_bytes() == before and len(list(tmp_path.iterdir())) == 3
    with pytest.raises(SettingsError, match=r"holds the parts of g\.json"):
        partition_graph(plain_graph(), "other", 2, tmp_path)
    (tmp_path / "part1/notes.txt").write_text("mine")
    with pytest.raises(SettingsError, match=r"notes\.txt"):
        partition_graph(plain_graph(), "g", 2, tmp_path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_hops": -1}, "num_hops is -1"),
        ({"num_hops": 2**31}, "num_hops is 2147483648; it must be an integer from 0"),
        ({"num_parts": None}, "num_parts is None"),
        ({"num_parts": True}, "num_parts is True"),
        ({"num_trainers_per_machine": 0}, "num_trainers_per_machine is 0"),
        ({"objtype": "vol"}, "objtype is 'vol'"),
        ({"use_graphbolt": True}, "use_graphbolt"),
        ({"graph_formats": ["coo", "dense"]}, "graph_formats"),
        ({"part_method": "parmetis"}, "method is 'parmetis'"),
        ({"part_method": "file"}, "owners are not given"),
        ({"owners": {"node": np.zeros(40, np.int64)}}, "method is 'metis' and owners are given; .* method='file'"),
        ({"graph_name": 5}, "graph_name is 5"),
        ({"graph_name": "a\0b"}, "graph_name"),
        ({"graph_formats": [["csr"]]}, "graph_formats"),
        ({"reshuffle": False}, "reshuffle is False; .* leave it out, and take old numbers from orig_id"),
        ({"balance_ntypes": True}, "balance_ntypes is True; older versions of DGL had reshuffle in this place"),
    ],
)
def test_bad_options_are_refused(tmp_path, options, said):
    with pytest.raises(SettingsError, match=said):
        partition_graph(plain_graph(), **{"graph_name": "g", "num_parts": 2, "out_path": tmp_path / "out", **options})
    assert not (tmp_path / "out").exists()


def test_invalid_graphs_and_unstorable_names_are_refused(tmp_path):
    with pytest.raises(SchemaError, match=r"node type 'zz'; known: \['_N'\]"):
        partition_graph(plain_graph(), "g", 2, tmp_path / "out", balance_ntypes={"zz": np.zeros(40, np.int64)})
    with pytest.raises(SchemaError, match="neither a PyG Data"):
        partition_graph(object(), "g", 2, tmp_path)
    slashed = hopstream.graph_from_arrays([[0], [1]], num_nodes=2, node_features={"a/b": np.arange(2)})
    with pytest.raises(SchemaError, match="a/b"):
        partition_graph(slashed, "g", 2, tmp_path)
    with pytest.raises(SchemaError, match="several node types"):
        partition_graph(typed_graph(), "g", 2, tmp_path, balance_ntypes=np.zeros(30))
    with pytest.raises(SettingsError, match="graph_name"):
        partition_graph(plain_graph(), "a/b", 2, tmp_path)
    with pytest.raises(TypeError, match="unknown"):
        partition_graph(plain_graph(), "g", 2, tmp_path, unknown=1)


def test_names_of_a_graph_without_types_stay_where_it_has_relations(tmp_path):
    """``_N`` and ``_E`` become ``node`` and ``to`` only in graphs without other types."""
    ends = ([0, 1], [1, 2])
    g = dgl.heterograph({("_N", "likes", "_N"): ends, ("_N", "_E", "_N"): ends}, num_nodes_dict={"_N": 4})
    g.ndata["feat"] = torch.rand(4, 2)
    classes = {"_N": torch.arange(4) % 2}
    partition_graph(g, "g", 2, tmp_path, part_method="random", balance_ntypes=classes)
    _, features, _, _, _, ntypes, etypes = load_partition(tmp_path / "g.json", 0)
    assert list(features) == ["_N/feat"] and ntypes == ["_N"]
    assert sorted(etypes) == [("_N", "_E", "_N"), ("_N", "likes", "_N")]
    read, owners = read_partitions(tmp_path / "g.json")[:2]
    assert set(read.edges) == {("_N", "_E", "_N"), ("_N", "likes", "_N")} and list(owners) == ["_N"]
    assert np.array_equal(read.nodes["_N"].features["feat"], g.ndata["feat"].numpy())
    (tmp_path / "owners").mkdir()
    np.savetxt(tmp_path / "owners/_N.txt", owners["_N"], fmt="%d")
    assert verify_part_files(tmp_path / "g.json", against=read, owners=tmp_path / "owners").is_ok


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.int64])
def test_masks_of_zeros_and_ones_are_splits(tmp_path, dtype):
    g = dgl.graph(([0, 1, 2], [1, 2, 3]), num_nodes=6)
    g.ndata["train_mask"] = (torch.arange(6) % 2).to(dtype)
    g.ndata["val_mask"] = torch.arange(6)  # numbers of something else
    partition_graph(g, "g", 2, tmp_path, part_method="random")
    read = read_partitions(tmp_path / "g.json")[0]
    assert read.splits["node"]["train"].tolist() == [1, 3, 5] and list(read.splits["node"]) == ["train"]
    assert list(read.nodes["node"].features) == ["val_mask"]


def test_features_called_masks_stay_features(tmp_path):
    graph = plain_graph()
    features = {**graph.nodes["node"].features, "test_mask": np.arange(graph.nodes["node"].num_nodes) % 2}
    graph = replace(graph, nodes={"node": replace(graph.nodes["node"], features=features)}, splits={})
    partition_graph(graph, "g", 2, tmp_path, part_method="random")
    assert read_partitions(tmp_path / "g.json")[0].fingerprint() == graph.fingerprint()


def test_owners_may_be_given_by_the_name_of_dgl(tmp_path):
    graph = plain_graph()
    owners = np.arange(graph.nodes["node"].num_nodes, dtype=np.int32) % 2
    for name in ("_N", "node"):
        partition_graph(graph, "g", 2, tmp_path, part_method="file", owners={name: owners})
        assert np.array_equal(read_partitions(tmp_path / "g.json")[1]["node"], owners)


def test_graphs_of_types_are_cut_by_hash(tmp_path):
    graph = typed_graph()
    partition_graph(graph, "g", 3, tmp_path / "a", part_method="hash")
    assert read_partitions(tmp_path / "a/g.json")[0].fingerprint() == graph.fingerprint()
    classes = {"a": np.zeros(graph.nodes["a"].num_nodes, np.int64)}
    with pytest.raises(SettingsError, match=r"'hash' assigns nodes by their keys.*balance_ntypes.* leave them out"):
        partition_graph(graph, "g", 3, tmp_path / "b", part_method="hash", balance_ntypes=classes)


def test_owners_of_a_graph_without_types_are_one_array(tmp_path):
    owners = np.arange(30) % 3
    for name, given in (("a", {"_N": owners}), ("b", torch.from_numpy(owners))):
        dgl.distributed.partition_graph(plain_graph(), "g", 3, tmp_path / name, part_method="file", owners=given)
    a, b = (dgl.distributed.read_partitions(tmp_path / name / "g.json")[1]["node"] for name in "ab")
    assert a.tolist() == b.tolist() == owners.tolist()


def test_where_dgl_is_installed_parts_are_its_graphs(tmp_path, monkeypatch):
    graph = plain_graph(20, 30)
    dgl.distributed.partition_graph(graph, "g", 2, tmp_path, part_method="random")
    wanted = load_partition(tmp_path / "g.json", 0)[0]
    made = SimpleNamespace(ndata={}, edata={})

    def of_dgl(ends, num_nodes):
        made.ends, made.num_nodes = ends, num_nodes
        return made

    monkeypatch.setattr(loading, "find_spec", lambda name: name == "dgl")
    monkeypatch.setattr(loading, "import_module", lambda name: SimpleNamespace(graph=of_dgl))
    assert load_partition(tmp_path / "g.json", 0)[0] is made
    assert made.num_nodes == wanted.num_nodes()
    assert all(torch.equal(got, of) for got, of in zip(made.ends, wanted.edges(), strict=True))
    assert set(made.ndata) == set(wanted.ndata) and set(made.edata) == set(wanted.edata)
