"""Tests of GLT's partition files: reading, writing, and graphs that come back from them."""

from __future__ import annotations

import pickle
import sys
import types
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
import torch

import hopstream
from hopstream.compat.glt import partition_files
from hopstream.compat.glt.partition import (
    FeaturePartitionData,
    GLTPartitionBook,
    GraphPartitionData,
    OffsetId2Index,
    PartitionBook,
    RangePartitionBook,
    cat_feature_cache,
    load_partition,
    read_partitions,
    write_partitions,
)
from hopstream.errors import FormatError, IdRangeError, SchemaError, SettingsError, UnknownNameError
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.schema import EDGE, NODE

USER, ITEM = "user", "item"
BUYS, LIKED_BY = (USER, "buys", ITEM), (ITEM, "liked_by", USER)
RING = 40


class Part(NamedTuple):
    """Contents of the ring's files of one part."""

    edges: torch.Tensor
    eids: torch.Tensor
    nodes: torch.Tensor


def pickle_on(path, tensor, rows=7):
    """Append a tensor as GLT does: pickles of some rows each, one after the other."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        for start in range(0, max(1, len(tensor)), rows):
            pickle.dump(tensor[start : start + rows].clone(), file)


def save(value, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(value, path)


@pytest.fixture
def glts_book(monkeypatch):
    """GLT's classes of books as files name them: the same fields, in modules of GLT's names."""
    for name in ("graphlearn_torch", "graphlearn_torch.partition", "graphlearn_torch.partition.partition_book"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    module = sys.modules["graphlearn_torch.partition.partition_book"]
    for name in ("RangePartitionBook", "OffsetId2Index"):
        setattr(module, name, type(name, (), {"__module__": module.__name__}))
    module.GLTPartitionBook = type("GLTPartitionBook", (torch.Tensor,), {"__module__": module.__name__})

    def make(ranges, part):
        book, rows = module.RangePartitionBook(), module.OffsetId2Index()
        rows.offset = ranges[part][0]
        book.partition_bounds, book.partition_idx, book._id2index = torch.tensor([e for _, e in ranges]), part, rows
        return book

    make.table = lambda parts: parts.as_subclass(module.GLTPartitionBook)
    return make


def write_ring(root, by, book_of=None, is_old=False, protocol=pickle.HIGHEST_PROTOCOL):
    """Write the ring of 40 nodes as GLT's partitioner does; each edge lies in the part of its source.

    Part 1 caches node 3.
    """
    root.mkdir()
    ids = torch.arange(RING)
    parts = ids // 20 if by == "range" else ids % 2
    src = ids.repeat_interleave(2)
    edges = torch.stack([src, (src + torch.tensor([1, 2]).repeat(RING)) % RING])
    for part in range(2):
        folder, nodes, eids = root / f"part{part}", ids[parts == part], torch.nonzero(parts[src] == part)[:, 0]
        for name, value in (("rows", edges[0][eids]), ("cols", edges[1][eids]), ("eids", eids)):
            save(value, folder / "graph" / f"{name}.pt")
        for kind, of in (("node_feat", nodes), ("edge_feat", eids)):
            feats = of[:, None].float().repeat(1, 4)
            if is_old:
                save(feats, folder / kind / "feats.pt")
                save(of, folder / kind / "ids.pt")
            else:
                pickle_on(folder / kind / "feats.pkl", feats)
                pickle_on(folder / kind / "ids.pkl", of)
    save(torch.tensor([3]), root / "part1" / "node_feat" / "cache_ids.pt")
    save(torch.full((1, 4), 3.0), root / "part1" / "node_feat" / "cache_feats.pt")
    save(parts if book_of is None else book_of(parts), root / "node_pb.pt")
    save(parts[src], root / "edge_pb.pt")
    meta = {"num_parts": 2, "data_cls": "homo", "node_types": None, "edge_types": None}
    (root / "META").write_bytes(pickle.dumps(meta, protocol))
    return parts


def check_ring(root, parts):
    """Check every part from ids alone."""
    graph, owners = read_partitions(root)
    assert owners[NODE].tolist() == parts.tolist()
    edges = graph.edges[EDGE]
    assert edges.src_keys.tolist() == [v // 2 for v in range(2 * RING)]
    assert edges.dst_keys.tolist() == [(v // 2 + 1 + v % 2) % RING for v in range(2 * RING)]
    assert np.array_equal(graph.nodes[NODE].features["x"], np.arange(RING, dtype=np.float32)[:, None].repeat(4, 1))
    assert edges.features["edge_attr"][:, 2].tolist() == list(range(2 * RING))
    for part in range(2):
        num_parts, idx, data, node_feat, edge_feat, node_pb, edge_pb = load_partition(root, part)
        assert (num_parts, idx) == (2, part)
        assert isinstance(data, GraphPartitionData) and isinstance(node_feat, FeaturePartitionData)
        rows, cols = data.edge_index
        assert set(((cols - rows) % RING).tolist()) == {1, 2} and data.weights is None
        assert bool((node_pb[rows] == part).all()) and bool((edge_pb[data.eids] == part).all())
        assert torch.equal(node_feat.feats[:, 0].long(), node_feat.ids)
        assert torch.equal(edge_feat.feats[:, 3].long(), edge_feat.ids) and torch.equal(edge_feat.ids, data.eids)
        ratio, feats, id2idx, feat_pb = cat_feature_cache(part, node_feat, node_pb)
        if part == 0 or node_feat.cache_ids is None:
            assert ratio == 0.0 and feats is node_feat.feats and feat_pb is node_pb
            continue
        assert ratio == 1 / 21 and feat_pb[torch.tensor([3, 4])].tolist() == [1, parts[4]]
        assert int(node_pb[torch.tensor([3])]) == parts[3]  # the given book stays
        ids = torch.cat([node_feat.cache_ids, node_feat.ids])
        assert torch.equal(feats[id2idx[ids], 0].long(), ids)


@pytest.mark.parametrize("by", ["range", "hash"])
@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_the_ring_as_glt_writes_it(by, is_old, protocol, tmp_path):
    parts = write_ring(tmp_path / "ring", by, is_old=is_old, protocol=protocol)
    check_ring(tmp_path / "ring", parts)
    graph, owners = read_partitions(tmp_path / "ring")
    hopstream.write_parts(graph, tmp_path / "dataset", owners=owners, direction="out")
    dataset = hopstream.open_dataset(tmp_path / "dataset")
    for part in range(2):
        assert torch.equal(torch.from_numpy(np.array(dataset.open_part(part).node_keys[NODE])).long(),
                           torch.nonzero(parts == part)[:, 0])  # fmt: skip
    write_partitions(tmp_path / "dataset", tmp_path / "back")
    check_ring(tmp_path / "back", parts)


def test_saved_books_of_glt_are_read(tmp_path, glts_book):
    parts = write_ring(tmp_path / "a", "range", book_of=lambda _: glts_book([(0, 20), (20, 40)], 0))
    check_ring(tmp_path / "a", parts)
    *_, book, _ = load_partition(tmp_path / "a", 1)
    assert isinstance(book, RangePartitionBook) and book.partition_idx == 1 and book.id2index.offset == 20
    parts = write_ring(tmp_path / "b", "hash", book_of=glts_book.table)
    check_ring(tmp_path / "b", parts)
    parts = write_ring(tmp_path / "c", "range", book_of=lambda _: RangePartitionBook([(0, 20), (20, 40)], 0))
    check_ring(tmp_path / "c", parts)
    parts = write_ring(tmp_path / "d", "hash", book_of=GLTPartitionBook)
    check_ring(tmp_path / "d", parts)
    save(glts_book([(0, 40)], 0), tmp_path / "a" / "node_pb.pt")
    with pytest.raises(FormatError, match=r"node_pb.pt has partition_bounds of 1 parts; wanted 2 that ascend from 0"):
        load_partition(tmp_path / "a", 0)
    save(glts_book([(0, 20), (20, 10)], 0), tmp_path / "a" / "node_pb.pt")
    with pytest.raises(FormatError, match=r"node_pb.pt has partition_bounds of 2 parts; wanted 2 that ascend"):
        read_partitions(tmp_path / "a")


def homogeneous(rng, num_nodes=31, num_edges=90):
    features = {
        "x": rng.standard_normal((num_nodes, 3)).astype(np.float32), "y": rng.integers(0, 5, num_nodes),
    }  # fmt: skip
    edge_features = {
        "edge_attr": rng.random((num_edges, 2)), "weight": rng.random(num_edges).astype(np.float32),
    }  # fmt: skip
    src, dst = rng.integers(0, num_nodes, (2, num_edges))
    return Graph(
        nodes={NODE: NodeTable(num_nodes=num_nodes, features=features)},
        edges={EDGE: EdgeTable(src_keys=src, dst_keys=dst, features=edge_features)},
        splits={NODE: {"train": np.arange(0, num_nodes, 2), "test": np.array([1, 3])}},
    ).check()


def typed(rng):
    """A type without edges and features, one edge type without edges, and features of some types alone."""
    return Graph(
        nodes={
            USER: NodeTable(num_nodes=14, features={"x": rng.integers(0, 9, (14, 2)), "y": rng.random((14, 3))}),
            ITEM: NodeTable(num_nodes=22, features={"x": rng.random((22, 4)).astype(np.float16)}),
            "shop": NodeTable(num_nodes=3),
        },
        edges={
            BUYS: EdgeTable(
                src_keys=rng.integers(0, 14, 60),
                dst_keys=rng.integers(0, 22, 60),
                features={"edge_attr": rng.random((60, 1)).astype(np.float32)},
            ),
            LIKED_BY: EdgeTable(
                src_keys=rng.integers(0, 22, 25),
                dst_keys=rng.integers(0, 14, 25),
                features={"weight": rng.random(25).astype(np.float32)},
            ),
            (USER, "follows", USER): EdgeTable(src_keys=np.empty(0, np.int64), dst_keys=np.empty(0, np.int64)),
        },
        splits={USER: {"train": np.array([0, 5, 13])}},
    ).check()


def owners_of(graph, rng, num_parts=3):
    """The part of each node, and nothing for the last part in one type."""
    owners = {t: rng.integers(0, num_parts, nodes.num_nodes).astype(np.int32) for t, nodes in graph.nodes.items()}
    if "shop" in owners:
        owners["shop"] = np.array([0, 1, 0], np.int32)
    return owners


@pytest.mark.parametrize("make", [homogeneous, typed])
@pytest.mark.parametrize("direction", ["in", "out", "both"])
def test_a_dataset_survives_a_round_trip(make, direction, rng, tmp_path):
    graph = make(rng)
    owners = owners_of(graph, rng)
    hopstream.write_parts(graph, tmp_path / "parts", owners=owners, num_parts=3, direction=direction)
    write_partitions(tmp_path / "parts", tmp_path / "glt")
    found, found_owners = read_partitions(tmp_path / "glt")
    assert found.fingerprint() == graph.fingerprint()
    assert {t: of.tolist() for t, of in found_owners.items()} == {t: of.tolist() for t, of in owners.items()}
    hopstream.write_parts(found, tmp_path / "again", owners=found_owners, num_parts=3, direction=direction)
    again, first = (hopstream.open_dataset(tmp_path / name).manifest for name in ("again", "parts"))
    assert {name: record.crc32c for name, record in again.files.items()} == {
        name: record.crc32c for name, record in first.files.items()
    }
    end = 1 if direction == "in" else 0
    for part in range(3):
        data = load_partition(tmp_path / "glt", part)[2]
        for edge_type, of in (data if make is typed else {EDGE: data}).items():
            assert (owners[edge_type[0 if end == 0 else 2]][of.edge_index[end].numpy()] == part).all()


@pytest.mark.parametrize("make", [homogeneous, typed])
def test_written_partitions_are_readable_by_glt(make, rng, tmp_path, monkeypatch):
    """GLT reads with ``pickle.load`` and ``torch.load``; features in several pickles."""
    monkeypatch.setattr(partition_files, "CHUNK_BYTES", 64)
    graph = make(rng)
    owners = owners_of(graph, rng)
    write_partitions(graph, tmp_path, owners=owners, num_parts=3)
    is_hetero = make is typed
    meta = pickle.loads((tmp_path / "META").read_bytes())
    assert meta == {
        "num_parts": 3,
        "data_cls": "hetero" if is_hetero else "homo",
        "node_types": list(graph.nodes) if is_hetero else None,
        "edge_types": list(graph.edges) if is_hetero else None,
    }
    num_pickles = 0
    for node_type, nodes in graph.nodes.items():
        assert torch.load(tmp_path / (f"node_pb/{node_type}.pt" if is_hetero else "node_pb.pt")).tolist() == list(
            owners[node_type]
        )
        for part in range(3):
            folder = tmp_path / f"part{part}" / "node_feat" / (node_type if is_hetero else "")
            if "x" not in nodes.features:
                assert not folder.exists()
                continue
            loaded = {}
            for name in ("feats", "ids"):
                with (folder / f"{name}.pkl").open("rb") as file:
                    pieces = []
                    while file.peek(1):
                        pieces.append(pickle.load(file))
                loaded[name] = torch.cat(pieces)
                num_pickles += len(pieces)
            assert loaded["ids"].tolist() == np.flatnonzero(owners[node_type] == part).tolist()
            assert np.array_equal(loaded["feats"].numpy(), nodes.features["x"][loaded["ids"]])
    assert num_pickles > 12
    seen = dict.fromkeys(graph.edges, 0)
    for edge_type, edges in graph.edges.items():
        for part in range(3):
            folder = tmp_path / f"part{part}" / "graph" / ("__".join(edge_type) if is_hetero else "")
            rows, cols, ids = (torch.load(folder / f"{name}.pt").numpy() for name in ("rows", "cols", "eids"))
            assert np.array_equal(edges.src_keys[ids], rows) and np.array_equal(edges.dst_keys[ids], cols)
            if "weight" in edges.features:
                weights = torch.load(folder / "weights.pt")
                assert weights.dtype == torch.float32
                assert np.array_equal(weights.numpy(), edges.features["weight"][ids])
            seen[edge_type] += len(ids)
    assert seen == {t: edges.num_edges for t, edges in graph.edges.items()}


def test_a_folder_with_the_whole_graph(rng, tmp_path):
    """GLT's ``graph_caching`` stores all edges beside the parts, and books only of edges with features."""
    graph = typed(rng)
    write_partitions(graph, tmp_path, num_parts=2, method="random")
    for edge_type, edges in graph.edges.items():
        name = "__".join(edge_type)
        for part in range(2):
            for path in (tmp_path / f"part{part}" / "graph" / name).iterdir():
                path.unlink()
        order = np.arange(edges.num_edges)[:: -1 if edge_type == BUYS else 1].copy()
        for file, values in (("rows", edges.src_keys), ("cols", edges.dst_keys)):
            save(torch.from_numpy(values[order]), tmp_path / "graph" / name / f"{file}.pt")
        if edge_type == BUYS:
            save(torch.from_numpy(order), tmp_path / "graph" / name / "eids.pt")
            continue
        (tmp_path / "edge_pb" / f"{name}.pt").unlink()
        if edge_type == LIKED_BY:
            save(torch.from_numpy(edges.features["weight"]), tmp_path / "graph" / name / "weights.pt")
    for part in range(2):
        for path in (tmp_path / f"part{part}" / "graph").iterdir():
            path.rmdir()
        (tmp_path / f"part{part}" / "graph").rmdir()
    assert read_partitions(tmp_path)[0].fingerprint() == graph.fingerprint()
    _, _, data, *_, edge_pb = load_partition(tmp_path, 1, graph_caching=True)
    assert len(data[BUYS].edge_index[0]) == 60 and data[LIKED_BY].eids is None and list(edge_pb) == [BUYS]
    save(torch.arange(60) + 1, tmp_path / "graph" / "__".join(BUYS) / "eids.pt")
    with pytest.raises(FormatError, match=r"eids.pt does not have each of the edge ids 0..59 once"):
        read_partitions(tmp_path)


def test_a_graph_without_edges(tmp_path):
    graph = Graph(nodes={NODE: NodeTable(num_nodes=5)}).check()
    write_partitions(graph, tmp_path, num_parts=2, method="random")
    assert read_partitions(tmp_path)[0].fingerprint() == graph.fingerprint()
    _, _, data, node_feat, edge_feat, _, edge_pb = load_partition(tmp_path, 1)
    assert data.edge_index[0].shape == (0,) and node_feat is edge_feat is None and len(edge_pb) == 0


def test_labels_of_other_files(rng, tmp_path):
    graph = typed(rng)
    write_partitions(graph, tmp_path / "glt", num_parts=2, method="random")
    save(torch.arange(22), tmp_path / "label.pt")
    found, _ = read_partitions(tmp_path / "glt", whole_node_label_file={ITEM: tmp_path / "label.pt"})
    assert found.nodes[ITEM].features["y"].tolist() == list(range(22)) and "y" not in found.nodes[USER].features
    with pytest.raises(SettingsError, match=r"whole_node_label_file is .*label.pt'; give a dictionary"):
        read_partitions(tmp_path / "glt", whole_node_label_file=tmp_path / "label.pt")
    with pytest.raises(UnknownNameError, match=r"labels are of node type 'itm'; .*did you mean 'item'"):
        read_partitions(tmp_path / "glt", whole_node_label_file={"itm": tmp_path / "label.pt"})
    with pytest.raises(FormatError, match=r"label.pt has 22 labels; there are 14 nodes"):
        read_partitions(tmp_path / "glt", whole_node_label_file={USER: tmp_path / "label.pt"})
    write_ring(tmp_path / "ring", "hash")
    save(torch.arange(RING), tmp_path / "label.pt")
    found, _ = read_partitions(tmp_path / "ring", whole_node_label_file=tmp_path / "label.pt")
    assert found.nodes[NODE].features["y"].tolist() == list(range(RING))


def test_which_features_are_written(rng, tmp_path):
    graph = homogeneous(rng)
    nodes = graph.nodes[NODE]
    several = replace(graph, nodes={NODE: replace(nodes, features={**nodes.features, "time": np.arange(31)})})
    with pytest.raises(SettingsError, match=r"node has the features \['x', 'time'\], and GLT keeps one: give node_fe"):
        write_partitions(several, tmp_path / "a", num_parts=2, method="random")
    write_partitions(several, tmp_path / "a", node_feat="time", num_parts=2, method="random")
    assert read_partitions(tmp_path / "a")[0].nodes[NODE].features["x"].tolist() == list(range(31))
    write_partitions(several, tmp_path / "b", node_feat={}, edge_feat={}, num_parts=2, method="random")
    found, _ = read_partitions(tmp_path / "b")
    assert (list(found.nodes[NODE].features), list(found.edges[EDGE].features)) == (["y"], ["weight"])
    for choice, message in (("z", r"node_feat is 'z', which no type has"), ({"item": "x"}, r"is given for 'item'"),
                            ({NODE: "z"}, r"node has no feature 'z'")):  # fmt: skip
        with pytest.raises(UnknownNameError, match=message):
            write_partitions(several, tmp_path / "c", node_feat=choice, num_parts=2, method="random")
    assert not (tmp_path / "c").exists()


def test_unwritable_graphs_are_refused(rng, tmp_path):
    graph = homogeneous(rng)
    with pytest.raises(SettingsError, match=r"edge_assign_strategy is 'by_source'; .*by_src"):
        write_partitions(graph, tmp_path / "a", edge_assign_strategy="by_source", num_parts=2, method="random")
    text = hopstream.graph_from_arrays({("a", "to", "a"): np.array([[0], [1]])}, node_features={"a": {"x": ["s", "t"]}})
    with pytest.raises(SchemaError, match=r"a.x holds strings or rows of different lengths"):
        write_partitions(text, tmp_path / "a", num_parts=1)
    slash = hopstream.graph_from_arrays({("a/b", "to", "a/b"): np.array([[0], [1]])})
    with pytest.raises(SchemaError, match=r"'a/b' cannot be the name of a file"):
        write_partitions(slash, tmp_path / "a", num_parts=1)
    edges = replace(graph.edges[EDGE], features={"weight": np.arange(90)})
    with pytest.raises(SchemaError, match=r"weight of edges is torch.int64\[90\]; GLT has float\[n\]"):
        write_partitions(replace(graph, edges={EDGE: edges}), tmp_path / "a", num_parts=1)
    assert not (tmp_path / "a").exists()
    write_partitions(graph, tmp_path / "a", num_parts=2, method="random")
    with pytest.raises(SettingsError, match=r"a holds GLT's partitions; give overwrite=True"):
        write_partitions(graph, tmp_path / "a", num_parts=2, method="random")
    write_partitions(graph, tmp_path / "a", num_parts=1, overwrite=True)
    assert not (tmp_path / "a" / "part1").exists()
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "x.txt").write_text("")
    with pytest.raises(SettingsError, match=r"holds 'x.txt' and is not a folder of GLT's partitions"):
        write_partitions(graph, tmp_path / "notes", num_parts=1, overwrite=True)
    hopstream.write_parts(graph, tmp_path / "parts", num_parts=2, method="random")
    with pytest.raises(SettingsError, match=r"num_parts is given, but a dataset already has parts"):
        write_partitions(tmp_path / "parts", tmp_path / "new", num_parts=2)


class Bomb:
    def __reduce__(self):
        return print, ("code was run",)


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_code_in_files_is_not_executed(protocol, tmp_path, capsys):
    write_ring(tmp_path / "ring", "hash")
    for name in ("META", "part0/node_feat/feats.pkl", "part1/edge_feat/ids.pkl", "node_pb.pt"):
        path = tmp_path / "ring" / name
        whole = path.read_bytes()
        for value in (Bomb(), {"num_parts": Bomb()}, print, Part):
            path.write_bytes(pickle.dumps(value, protocol))
            with pytest.raises(FormatError, match=path.name):
                read_partitions(tmp_path / "ring")
        path.write_bytes(whole)
    assert "code was run" not in capsys.readouterr().out
    read_partitions(tmp_path / "ring")


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ([1, 2], r"META holds list; it must be a dictionary"),
        ({}, r"META has num_parts NoneType; it must be an integer from 1"),
        ({"num_parts": True, "data_cls": "homo"}, r"META has num_parts True"),
        ({"num_parts": 0, "data_cls": "homo"}, r"META has num_parts 0"),
        ({"num_parts": 2, "data_cls": "both"}, r"META has data_cls 'both'; it must be 'homo' or 'hetero'"),
        ({"num_parts": 2, "data_cls": "hetero"}, r"META has node_types that are not a list of distinct names"),
        ({"num_parts": 2, "data_cls": "hetero", "node_types": ["a", "../b"]}, r"META has node_types"),
        ({"num_parts": 2, "data_cls": "hetero", "node_types": [".."]}, r"META has node_types"),
        ({"num_parts": 2, "data_cls": "hetero", "node_types": ["a"], "edge_types": [("a", "b")]}, r"has edge_types"),
        ({"num_parts": 3, "data_cls": "homo"}, r"ring has no folder part2; copy the part there"),
    ],
)
def test_an_invalid_meta_file_is_refused(meta, message, tmp_path):
    write_ring(tmp_path / "ring", "hash")
    (tmp_path / "ring" / "META").write_bytes(pickle.dumps(meta))
    with pytest.raises(FormatError, match=message):
        read_partitions(tmp_path / "ring")


def test_truncated_pickles_are_errors_or_prefixes(rng, tmp_path):
    path = tmp_path / "META"
    whole = pickle.dumps({"num_parts": 2, "edge_types": [("a", "b", "a")], "more": [1, 2**40, 0.5, None, b"", True]}, 4)
    path.write_bytes(whole)
    assert partition_files.read_value(path) == pickle.loads(whole)
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(FormatError, match=r"META"):
            partition_files.read_value(path)
    for _ in range(100):
        data = bytearray(whole)
        data[rng.integers(2, len(data))] = rng.integers(0, 256)
        path.write_bytes(data)
        try:
            partition_files.read_value(path)
        except FormatError as error:
            assert str(path) in str(error)


def edit(path, change):
    value = torch.load(path)
    torch.save(change(value), path)


def test_damaged_folders_name_the_file(tmp_path):
    root = tmp_path / "ring"
    write_ring(root, "hash")
    with pytest.raises(IdRangeError, match=r"part is 2; .* has the parts 0..1"):
        load_partition(root, 2)
    with pytest.raises(FormatError, match=r"none.META cannot be read \(No such file or directory\)"):
        load_partition(tmp_path / "none", 0)
    damages = [
        ("part0/graph/rows.pt", lambda _: torch.zeros(3), r"rows.pt: value is torch.float32"),
        ("part0/graph/cols.pt", lambda t: t[1:], r"graph/cols.pt has 39 rows; rows.pt has 40"),
        ("part0/graph/cols.pt", lambda t: t + 40, r"dst_keys\[\d+\] is \d+; keys are 0..39"),
        ("part0/graph/eids.pt", lambda t: t + 1, r"the ids of part 0 are not the 40"),
        ("part0/graph/rows.pt", lambda _: "text", r"rows.pt: value is str; wanted a tensor"),
        ("node_pb.pt", lambda t: t + 1, r"node_pb.pt\[1\] is 2; parts are 0..1"),
        ("node_pb.pt", lambda t: t.float(), r"node_pb.pt: the map of parts is torch.float32"),
        ("node_pb.pt", lambda t: 1 - t, r"nodes 'node': the ids of part 0 are not the 20"),
        ("edge_pb.pt", lambda t: t[:-1], r"edges .*: the ids of part 1 are not the 39"),
        ("part1/node_feat/cache_ids.pt", lambda t: t.repeat(2), r"cache_feats has 1 rows, and there are 2 ids"),
    ]
    for name, change, message in damages:
        whole = (root / name).read_bytes()
        edit(root / name, change)
        with pytest.raises((FormatError, IdRangeError), match=message):
            read_partitions(root)
        (root / name).write_bytes(whole)
    for name in ("node_pb.pt", "edge_pb.pt", "part1/graph/cols.pt", "part1/graph/eids.pt", "part0/node_feat/ids.pkl"):
        whole = (root / name).read_bytes()
        (root / name).unlink()
        with pytest.raises(FormatError, match=name.rsplit("/", maxsplit=1)[-1]):
            read_partitions(root)
        (root / name).write_bytes(whole[: len(whole) // 2])
        with pytest.raises(FormatError, match=name.rsplit("/", maxsplit=1)[-1]):
            read_partitions(root)
        (root / name).write_bytes(whole)
    (root / "part1/graph").rename(root / "aside")
    with pytest.raises(FormatError, match=r"parts have src of 40 of 80 rows"):
        read_partitions(root)


def test_invalid_pickled_tensors_are_refused(tmp_path):
    path = tmp_path / "feats.pkl"
    wide = torch.zeros(1).expand(10**9)
    for values, message in (
        (
            [torch.zeros(2, 3), torch.zeros(2, 4)],
            r"feats.pkl holds rows torch.float32\[4\] after rows torch.float32\[3",
        ),
        ([torch.zeros(2), torch.zeros(2).long()], r"feats.pkl holds rows torch.int64"),
        ([torch.zeros(2), 5], r"feats.pkl holds things other than tensors"),
        ([torch.tensor(5.0)], r"feats.pkl holds things other than tensors of rows"),
        ([wide], r"feats.pkl has a tensor \[1000000000\] of torch.float32 in 4 bytes"),
        ([torch.zeros(2).to_sparse()], r"feats.pkl"),
    ):
        path.write_bytes(b"".join(map(pickle.dumps, values)))
        with pytest.raises(FormatError, match=message):
            partition_files.read_tensor(path)
    path.write_bytes(b"")
    with pytest.raises(FormatError, match=r"feats.pkl is empty"):
        partition_files.read_tensor(path)
    tensor = torch.arange(12.0).view(4, 3).to(torch.bfloat16).t()
    path.write_bytes(pickle.dumps(tensor))
    assert torch.equal(partition_files.read_tensor(path), tensor)


def test_a_range_book():
    book = RangePartitionBook([(0, 4), (4, 5), (5, 10), (10, 13)], 2)
    assert book[torch.arange(13)].tolist() == [0] * 4 + [1] + [2] * 5 + [3] * 3
    assert (book.num_partitions, book.partition_idx, book.offset) == (4, 2, 0)
    assert book.partition_bounds.tolist() == [4, 5, 10, 13] and book.device == torch.device("cpu")
    assert isinstance(book, PartitionBook) and isinstance(book.id2index, OffsetId2Index)
    ids = book.id_filter(book, 2)
    assert ids.tolist() == [5, 6, 7, 8, 9] and book.id2index[ids].tolist() == [0, 1, 2, 3, 4]
    assert book.id_filter(book, 0).tolist() == [0, 1, 2, 3] and book.id2index.to("cpu") is book.id2index
    with pytest.raises(
        ValueError, match=r"partition_ranges\[1\] is \(4, 4\); the start of a range must be below its end"
    ):
        RangePartitionBook([(0, 4), (4, 4)], 0)
    with pytest.raises(ValueError, match=r"partition_ranges\[1\] starts at 5; the range before it ends at 4"):
        RangePartitionBook([(0, 4), (5, 8)], 0)
    with pytest.raises(IdRangeError, match=r"partition_idx is 2; parts are 0..1"):
        RangePartitionBook([(0, 4), (4, 8)], 2)


def test_a_table_is_a_tensor():
    table = torch.tensor([0, 1, 1, 0])
    book = GLTPartitionBook(table)
    assert isinstance(book, torch.Tensor) and isinstance(book, PartitionBook) and book.offset == 0
    assert book[torch.tensor([1, 3])].tolist() == [1, 0] and book.dtype == torch.int64
    assert torch.where(book == 1)[0].tolist() == [1, 2]
    table[0] = 1
    assert int(book[0]) == 1
    with pytest.raises(NotImplementedError):
        PartitionBook()[table]


def test_copies_of_rows_that_are_owned_count_first():
    data = FeaturePartitionData(torch.tensor([[5.0], [6.0]]), torch.tensor([5, 6]), torch.tensor([[6.5]]),
                                torch.tensor([6]))  # fmt: skip
    book = RangePartitionBook([(0, 5), (5, 8)], 1)
    ratio, feats, rows, changed = cat_feature_cache(1, data, book)
    assert (ratio, feats[:, 0].tolist(), rows.tolist()) == (1 / 3, [6.5, 5.0, 6.0], [0, 0, 0, 0, 0, 1, 0])
    assert changed.tolist() == [0] * 5 + [1] * 3
    with pytest.raises(FormatError, match=r"feat_pdata has no feats"):
        cat_feature_cache(1, data._replace(feats=None), book)
