"""Checks of blocks against a slow count of the edges of each hop, and of the light blocks' names."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import hopstream
import hopstream.compat.dgl as dgl
from hopstream.compat.dgl import blocks as blocks_module
from hopstream.errors import SettingsError, UnknownNameError
from tests.compat.dgl.graphs import plain_graph, typed_graph


def batches_of(graph, folder, num_neighbors, seeds, **options):
    hopstream.write_parts(graph, folder, num_parts=3, method="hash")
    with hopstream.NeighborLoader(folder, num_neighbors, seeds, batch_size=5, collate="numpy", **options) as loader:
        return list(loader)


@pytest.mark.parametrize(
    ("graph", "seeds"), [(plain_graph(), None), (typed_graph(), ("a", None)), (typed_graph(), ("b", None))]
)
def test_a_block_has_all_sampled_edges_into_its_destinations(tmp_path, graph, seeds):
    """A walk back from the seeds, one edge at a time, reaches the nodes and edges of each block."""
    for batch in batches_of(graph, tmp_path, [3, 2, 2], seeds):
        found = dgl.block_arrays(batch)
        assert len(found) == 3
        reached = {(t, slot) for t, counts in batch.num_sampled_nodes.items() for slot in range(counts[0])}
        for block in reversed(found):
            assert {(t, slot) for t, number in block.num_dst_nodes.items() for slot in range(number)} == reached
            into = {
                (t, src, dst)
                for t, edge_index in batch.edge_index.items()
                for src, dst in edge_index.T.tolist()
                if (t[2], dst) in reached
            }
            drawn = {(t, *pair) for t, ends in block.edges.items() for pair in zip(*map(list, ends), strict=True)}
            assert drawn == into
            reached |= {(t[0], src) for t, src, _ in into}
            assert {(t, slot) for t, number in block.num_src_nodes.items() for slot in range(number)} == reached
        assert {t: len(keys) for t, keys in batch.node_keys.items()} == found[0].num_src_nodes


def test_blocks_share_the_memory_and_have_the_keys_and_features(tmp_path):
    graph = typed_graph()
    schema = graph.schema
    for batch in batches_of(graph, tmp_path, [2, 2], ("b", None)):
        first, last = dgl.to_blocks(batch, schema)
        assert first.num_dst_nodes("a") == last.num_src_nodes("a") and last.num_dst_nodes("a") == 0
        for t, keys in batch.node_keys.items():
            assert first.srcnodes[t].data["_ID"].tolist() == keys.tolist()
            assert last.dstnodes[t].data["_ID"].tolist() == keys[: batch.num_sampled_nodes[t][0]].tolist()
        assert torch.equal(
            first.srcdata["x"]["a"], torch.from_numpy(graph.nodes["a"].features["x"][first.srcdata["_ID"]["a"]])
        )
        assert last.dstdata["year"]["b"].tolist() == batch.node_keys["b"][: batch.batch_size].tolist()
        for block in (first, last):
            for t in graph.edges:
                table, keys = graph.edges[t], block.edges[t].data["_ID"].numpy()
                src, dst = block.edges(etype=t)
                assert len(keys) == len(src) == block.num_edges(t)
                assert block.srcnodes[t[0]].data["_ID"][src].tolist() == table.src_keys[keys].tolist()
                assert block.dstnodes[t[2]].data["_ID"][dst].tolist() == table.dst_keys[keys].tolist()
                degrees = np.bincount(dst, minlength=block.num_dst_nodes(t[2]))
                assert block.in_degrees(etype=t).tolist() == degrees.tolist()
            weights = block.edges["a", "to", "b"].data["weight"]
            keys = block.edges["a", "to", "b"].data["_ID"]
            assert weights.tolist() == graph.edges["a", "to", "b"].features["weight"][keys].tolist()
        x = first.srcnodes["a"].data["x"]
        assert not len(x) or x.data_ptr() == batch.node_features["a"]["x"].ctypes.data


def test_light_blocks_have_the_names_of_dgls(tmp_path):
    (batch, *_) = batches_of(plain_graph(), tmp_path, [2, 2], None)
    first, last = dgl.to_blocks(batch, plain_graph().schema)
    assert last.is_block and last.ntypes == last.srctypes == last.dsttypes == ["_N"]
    assert last.canonical_etypes == [("_N", "_E", "_N")] and last.etypes == ["_E"]
    assert last.number_of_dst_nodes() == batch.batch_size and last.number_of_src_nodes() == last.num_src_nodes("_N")
    last.srcdata["h"] = torch.ones(last.num_src_nodes(), 2)
    last.dstdata["h"] = torch.zeros(last.num_dst_nodes(), 2)
    last.edata["h"] = torch.zeros(last.num_edges())
    assert set(last.edata) == {"_ID", "weight", "h"}
    moved = last.to("meta")
    assert (moved.device, moved.srcdata["h"].device.type, moved.edges()[0].device.type) == ("meta", "meta", "meta")
    assert moved.num_dst_nodes() == last.num_dst_nodes() and moved.edata["h"].shape == last.edata["h"].shape
    assert repr(last).startswith("Block(num_src_nodes={'_N': ") and last.device == "cpu"
    with pytest.raises(ValueError, match=r"'h' has shape \[1\]; there are 5 destinations '_N'"):
        last.dstdata["h"] = torch.zeros(1)
    assert first.num_dst_nodes() == last.num_src_nodes()
    (typed, *_) = batches_of(typed_graph(), tmp_path / "typed", [2], ("a", None))
    (block,) = dgl.to_blocks(typed, typed_graph().schema)
    block.srcdata["h"] = {"a": torch.zeros(block.num_src_nodes("a"))}
    assert list(block.srcdata["h"]) == ["a"] and "h" in block.srcdata and len(block.srcdata) == 5
    del block.srcdata["h"]
    with pytest.raises(UnknownNameError, match="no type has data 'h'"):
        block.srcdata["h"]


def test_where_dgl_is_installed_blocks_are_its_own(tmp_path, monkeypatch):
    """The stand-in has the names that DGL's block has; the tests beside DGL call the real one."""
    graph = typed_graph()
    (batch, *_) = batches_of(graph, tmp_path, [2, 2], ("b", None))
    wanted = dgl.to_blocks(batch, graph.schema)

    def create_block(ends, num_src, num_dst):
        arrays = {t: tuple(end.numpy() for end in pair) for t, pair in ends.items()}
        made = blocks_module.Block(
            blocks_module.BlockArrays(edges=arrays, num_src_nodes=num_src, num_dst_nodes=num_dst)
        )
        made.is_dgls = True
        return made

    monkeypatch.setattr(blocks_module, "find_dgl", lambda: SimpleNamespace(create_block=create_block))
    found = dgl.to_blocks(batch, graph.schema)
    assert all(block.is_dgls for block in found)
    for got, want in zip(found, wanted, strict=True):
        assert repr(got) == repr(want)
        for view in ("srcdata", "dstdata", "edata"):
            assert list(getattr(got, view)) == list(getattr(want, view))


def test_batches_that_are_no_blocks_are_refused(tmp_path):
    graph = plain_graph()
    hopstream.write_parts(graph, tmp_path / "both", num_parts=2, method="hash", direction="both")
    for options, message in (
        ({"direction": "out"}, "lead away from the seeds; use direction='in'"),
        ({"subgraph_type": "induced"}, "not in the order of hops; use subgraph_type='directional'"),
    ):
        with hopstream.NeighborLoader(tmp_path / "both", [3, 3], batch_size=4, collate="numpy", **options) as loader:
            batch = next(iter(loader))
        with pytest.raises(SettingsError, match=message):
            dgl.block_arrays(batch)
