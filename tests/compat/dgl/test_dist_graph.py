"""Checks of ``DistGraph``, its shares and its loaders, against the graph in memory."""

import numpy as np
import pytest
import torch

import hopstream
import hopstream.compat.dgl as dgl
from hopstream.compat.dgl.dataloading import NeighborSampler, Uniform
from hopstream.compat.dgl.distributed import (
    DistEdgeDataLoader,
    DistGraph,
    DistNodeDataLoader,
    edge_split,
    node_split,
)
from hopstream.errors import IdRangeError, SettingsError, UnknownNameError
from tests.compat.dgl.graphs import plain_graph, some_owners, typed_graph

REV = ("b", "rev", "a")


@pytest.fixture
def plain(tmp_path):
    graph = plain_graph()
    owners = some_owners(graph, 3)
    hopstream.write_parts(graph, tmp_path / "plain", num_parts=3, owners=owners, links=[("node", "to", "node")])
    with DistGraph("plain", part_config=tmp_path / "plain") as g:
        yield graph, owners["node"], g


@pytest.fixture
def typed(tmp_path):
    graph = typed_graph()
    hopstream.write_parts(graph, tmp_path / "typed", num_parts=3, owners=some_owners(graph, 3))
    with DistGraph("typed", part_config=tmp_path / "typed") as g:
        yield graph, g


def test_data_are_read_by_key(plain, typed):
    graph, owners, g = plain
    assert (g.ntypes, g.canonical_etypes, g.etypes) == (["_N"], [("_N", "_E", "_N")], ["_E"])
    assert (g.num_nodes(), g.number_of_nodes("_N"), g.num_edges(), g.number_of_edges("_E")) == (30, 30, 120, 120)
    assert "num_nodes={'_N': 30}" in repr(g)
    feat, wanted = g.ndata["feat"], torch.from_numpy(graph.nodes["node"].features["feat"])
    assert (feat.shape, feat.dtype, len(feat), list(g.ndata)) == ((30, 4), torch.float32, 30, ["feat", "train_mask"])
    keys = torch.tensor([7, 3, 29, 3])
    assert torch.equal(feat[keys], wanted[keys]) and torch.equal(feat[10:], wanted[10:])
    assert torch.equal(feat[5], wanted[5:6])
    assert g.ndata["train_mask"].nonzero().ravel().tolist() == list(range(0, 30, 3))
    with pytest.raises(IdRangeError, match="30"):
        feat[torch.tensor([30])]
    with pytest.raises(UnknownNameError, match=r"no data 'feats'; known: .*; did you mean 'feat'"):
        g.ndata["feats"]
    book = g.get_partition_book()
    assert book.num_partitions() == 3 and book.nid2partid(range(30)).tolist() == owners.tolist()
    for part in range(3):
        assert book.partid2nids(part).tolist() == np.flatnonzero(owners == part).tolist()
    with pytest.raises(IdRangeError, match=r"partid is 3; parts are numbered 0\.\.2"):
        book.partid2nids(3)
    graph, g = typed
    assert (g.ntypes, g.etypes) == (list(graph.nodes), [t[1] for t in graph.edges])
    assert g.nodes["b"].data["year"][torch.tensor([4, 2])].tolist() == [4, 2]
    assert g.nodes["a"].data["is_new"][:].tolist() == graph.nodes["a"].features["is_new"].tolist()
    assert g.edges["rev"].data["val_mask"].nonzero().ravel().tolist() == list(range(5))
    assert g.edges[REV].data["val_mask"].shape == (30,) and ("to" in g.edges) is False
    with pytest.raises(UnknownNameError, match="features of edges are data of blocks: NeighborSampler"):
        g.edges["a", "to", "b"].data["weight"]
    with pytest.raises(UnknownNameError, match="node type is None"):
        _ = g.ndata
    with pytest.raises(UnknownNameError, match="edge type is 'to'"):
        g.num_edges("to")


def test_shares_of_trainers_are_disjoint_complete_and_near(plain, typed):
    _, owners, g = plain
    book, mask = g.get_partition_book(), torch.arange(30) % 5 != 0
    shares = [node_split(mask, book, rank=rank, num_trainers=3).numpy() for rank in range(3)]
    assert sorted(np.concatenate(shares)) == mask.nonzero().ravel().tolist()
    assert {len(share) for share in shares} == {8}
    near = [int((owners[share] == rank).sum()) for rank, share in enumerate(shares)]
    sizes = [int((owners[mask.numpy()] == part).sum()) for part in range(3)]
    assert near == [min(8, size) for size in sizes]
    assert node_split(mask, book).tolist() == mask.nonzero().ravel().tolist()
    ends = [edge_split(torch.ones(120), book, rank=rank, num_trainers=4) for rank in range(4)]
    assert torch.equal(torch.cat(ends), torch.arange(120)) and {len(share) for share in ends} == {30}
    _, g = typed
    mask = g.nodes["a"].data["train_mask"]
    assert node_split(mask, g.get_partition_book(), ntype="a").tolist() == list(range(0, 17, 2))
    assert edge_split(g.edges["rev"].data["val_mask"], g.get_partition_book(), etype="rev").tolist() == list(range(5))
    for given, message in (
        ({"force_even": False}, "force_even is False"),
        ({"rank": 2, "num_trainers": 2}, "rank is 2"),
        ({"ntype": "b"}, "wanted a mask of all nodes: 12"),
    ):
        with pytest.raises((SettingsError, hopstream.errors.SchemaError), match=message):
            node_split(mask, g.get_partition_book(), **{"ntype": "a", **given})


def test_node_loader_gives_the_batches_of_neighbor_loader(plain):
    _, _, g = plain
    nids = torch.arange(1, 30, 2)
    sampler = NeighborSampler([2, 3], prefetch_node_feats=["feat"], prefetch_edge_feats=["weight"])
    loader = DistNodeDataLoader(g, nids, sampler, batch_size=4, shuffle=True, num_workers=2, queue_size=1)
    wanted = hopstream.NeighborLoader(g.store, [3, 2], nids, batch_size=4, shuffle=True)
    assert len(loader) == len(wanted) == 4
    for _ in range(2):
        seen = []
        for (input_nodes, seeds, blocks), data in zip(loader, wanted, strict=True):
            assert torch.equal(input_nodes, data.n_id) and torch.equal(seeds, data.n_id[: data.batch_size])
            assert torch.equal(torch.stack(blocks[0].edges()), data.edge_index)
            assert torch.equal(blocks[0].srcdata["feat"], data.feat) and torch.equal(blocks[0].edata["_ID"], data.e_id)
            assert torch.equal(blocks[0].edata["weight"], data.weight)
            seen += seeds.tolist()
        assert sorted(seen) == nids.tolist() and seen != nids.tolist()
    loader.close()
    wanted.close()


def test_node_loader_of_a_typed_graph(typed):
    graph, g = typed
    sampler = NeighborSampler(
        [{("a", "to", "b"): 2, "rev": 2}, 3], prefetch_node_feats={"a": ["x"]}, prefetch_labels={"b": ["year"]}
    )
    loader = DistNodeDataLoader(g, {"b": torch.arange(12), "a": []}, sampler, batch_size=5)
    wanted = {t: [3, 2 if t in {("a", "to", "b"), REV} else 0] for t in graph.edges}
    other = hopstream.NeighborLoader(g.store, wanted, ("b", None), batch_size=5)
    for (input_nodes, seeds, blocks), data in zip(loader, other, strict=True):
        assert all(torch.equal(input_nodes[t], data[t].n_id) for t in g.ntypes)
        assert len(seeds["a"]) == 0 and torch.equal(blocks[-1].dstdata["year"]["b"], seeds["b"])
        assert torch.equal(blocks[0].srcdata["x"]["a"], data["a"].x) and "is_new" not in blocks[0].srcdata
    loader.close()
    other.close()
    for nids, given, message in (
        ({"a": [1], "b": [2]}, {}, "nids name 2 types; give those of one type, and make a loader for each"),
        ({"a": [1]}, {"device": "cuda:0"}, r"device is cuda:0; .* call block\.to\(device\)"),
    ):
        with pytest.raises(SettingsError, match=message):
            DistNodeDataLoader(g, nids, sampler, **given)
    with pytest.raises(SettingsError, match="edge_dir is 'out'"):
        NeighborSampler([1], edge_dir="out")


def test_edge_loader_gives_links_negatives_and_blocks(plain):
    graph, _, g = plain
    table, eids = graph.edges["node", "to", "node"], torch.arange(0, 120, 4)
    sampler = NeighborSampler([-1, -1])
    loader = DistEdgeDataLoader(g, eids, sampler, batch_size=7, exclude="self", negative_sampler=Uniform(2))
    seen = []
    for input_nodes, positives, negatives, blocks in loader:
        keys, nodes = positives.edata["_ID"], positives.ndata["_ID"]
        src, dst = positives.edges()
        assert nodes[src].tolist() == table.src_keys[keys].tolist()
        assert nodes[dst].tolist() == table.dst_keys[keys].tolist()
        wrong_src, wrong_dst = negatives.edges()
        assert torch.equal(wrong_src, src.repeat_interleave(2)) and len(wrong_dst) == 2 * len(keys)
        assert torch.equal(nodes, input_nodes[: len(nodes)]) and blocks[-1].num_dst_nodes() == len(nodes)
        assert torch.equal(blocks[-1].dstdata["_ID"], nodes)
        pairs = set(zip(nodes[src].tolist(), nodes[dst].tolist(), strict=True))
        src, dst = (input_nodes[end].tolist() for end in blocks[-1].edges())
        assert not pairs & set(zip(src, dst, strict=True))
        seen += keys.tolist()
    assert seen == eids.tolist()
    loader.close()
    loader = DistEdgeDataLoader(g, eids, sampler, batch_size=30, exclude="reverse_id")
    ((_, positives, blocks),) = loader
    nodes = positives.ndata["_ID"]
    src, dst = (nodes[end].tolist() for end in positives.edges())
    pairs = {*zip(src, dst, strict=True), *zip(dst, src, strict=True)}
    assert not pairs & set(zip(*(blocks[0].srcdata["_ID"][end].tolist() for end in blocks[0].edges()), strict=True))
    loader.close()


def test_edge_loader_of_a_typed_graph(typed):
    graph, g = typed
    sampler = NeighborSampler([2])
    given = {"reverse_etypes": {"rev": ("a", "to", "b")}, "exclude": "reverse_types"}
    loader = DistEdgeDataLoader(g, {"rev": torch.arange(5)}, sampler, batch_size=5, **given)
    ((input_nodes, positives, blocks),) = loader
    table = graph.edges[REV]
    src, dst = positives.edges(etype=REV)
    assert positives.num_edges() == 5 and positives.edges[REV].data["_ID"].tolist() == list(range(5))
    assert positives.nodes["b"].data["_ID"][src].tolist() == table.src_keys[:5].tolist()
    assert positives.nodes["a"].data["_ID"][dst].tolist() == table.dst_keys[:5].tolist()
    assert len(blocks) == 1 and set(input_nodes) == set(g.ntypes)
    loader.close()
    with pytest.raises(SettingsError, match="exclude is 'reverse_types' and reverse_etypes None"):
        DistEdgeDataLoader(g, {"rev": [1]}, sampler, exclude="reverse_types")
    with pytest.raises(UnknownNameError, match="links"):
        DistEdgeDataLoader(g, {("a", "to", "b"): [1]}, sampler)


def test_sources_of_a_graph(tmp_path):
    graph = plain_graph()
    hopstream.write_parts(graph, tmp_path / "data", num_parts=2, method="hash")
    dgl.distributed.partition_graph(graph, "g", 2, tmp_path / "dgl", part_method="random")
    with pytest.raises(SettingsError, match=r"DGL's JSON file without a dataset beside it; make one with hopstream"):
        DistGraph("g", part_config=tmp_path / "dgl/g.json")
    (tmp_path / "data/metadata.json").write_text((tmp_path / "dgl/g.json").read_text())
    with DistGraph("g", part_config=str(tmp_path / "data/metadata.json")) as g:
        assert g.num_nodes() == 30
    with pytest.raises(SettingsError, match="part_config is not given"):
        DistGraph("g")
    with pytest.raises(SettingsError, match="gpb is given"):
        DistGraph("g", g.get_partition_book(), tmp_path / "data")


def test_batches_and_data_from_servers_are_those_of_the_folder(tmp_path, server_pool):
    graph = typed_graph()
    manifest = hopstream.write_parts(graph, tmp_path / "data", num_parts=3, owners=some_owners(graph, 3))
    sampler = NeighborSampler([2, 2], prefetch_node_feats={"a": ["x"]})
    found = []
    with server_pool.serve_cluster(tmp_path / "data", manifest.dataset_id, [[0, 1], [2]]) as cluster:
        for source in (tmp_path / "data", cluster):
            with DistGraph("typed", part_config=source) as g:
                shares = [
                    node_split(torch.ones(17), g.get_partition_book(), ntype="a", rank=rank, num_trainers=2)
                    for rank in (0, 1)
                ]
                loader = DistNodeDataLoader(g, {"a": shares[1]}, sampler, batch_size=3)
                rows = g.nodes["a"].data["x"][shares[0]]
                batches = [
                    ({t: keys.tolist() for t, keys in nodes.items()}, blocks[0].srcdata["x"]["a"].tolist())
                    for nodes, _, blocks in loader
                ]
                loader.close()
                found.append(([share.tolist() for share in shares], rows.tolist(), batches))
    assert found[0] == found[1] and len(found[0][2]) == 3
