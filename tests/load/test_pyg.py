"""Checks that a batch has the attributes that PyG's users know, with the values they mean."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import SAGEConv
from torch_geometric.utils import trim_to_layer

from hopstream.arrays import RaggedArray
from hopstream.errors import SettingsError
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.load.load_settings import LoadSettings
from hopstream.load.loader import NeighborLoader
from hopstream.load.pyg import to_pyg
from hopstream.load.setup import open_setup
from hopstream.schema import ATTACHED_ATTRIBUTES, EDGE, NODE
from tests.conftest import make_typed_graph
from tests.load.graphs import local_store, make_plain_graph

CITES, WRITES, WORKS = ("paper", "cites", "paper"), ("author", "writes", "paper"), ("author", "works_at", "institute")


@pytest.fixture(scope="module")
def typed(tmp_path_factory):
    graph = make_typed_graph(np.random.default_rng(3))
    return graph, local_store(graph, tmp_path_factory.mktemp("typed") / "parts", num_parts=2)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    graph = make_plain_graph(np.random.default_rng(4))
    return graph, local_store(graph, tmp_path_factory.mktemp("plain") / "parts", num_parts=2)


def batches_of(store, *arguments, **settings):
    with NeighborLoader(store, *arguments, num_threads=0, **settings) as loader:
        return list(loader)


def test_a_plain_graph_gives_data(plain):
    graph, store = plain
    nodes, edges = graph.nodes[NODE], graph.edges[EDGE]
    for batch in batches_of(store, [3, 3], None, 16):
        assert type(batch) is Data
        assert set(batch.keys()) == {
            "n_id", "x", "y", "num_sampled_nodes", "input_id", "batch_size", "edge_index", "e_id", "edge_attr",
            "num_sampled_edges",
        }  # fmt: skip
        batch.validate(raise_on_error=True)
        keys = batch.n_id.numpy()
        assert batch.num_nodes == len(keys) == sum(batch.num_sampled_nodes)
        assert batch.n_id[: batch.batch_size].equal(batch.input_id)
        assert batch.x.dtype == torch.float32
        assert np.array_equal(batch.x, nodes.features["x"][keys])
        assert np.array_equal(batch.y, nodes.features["y"][keys])
        assert batch.edge_index.dtype == batch.n_id.dtype == batch.e_id.dtype == batch.input_id.dtype == torch.int64
        assert batch.edge_index.is_contiguous()
        src, dst = keys[batch.edge_index]
        assert np.array_equal(src, edges.src_keys[batch.e_id])
        assert np.array_equal(dst, edges.dst_keys[batch.e_id])
        assert np.array_equal(batch.edge_attr, edges.features["edge_attr"][batch.e_id])
        assert sum(batch.num_sampled_edges) == batch.num_edges
        assert len(batch.num_sampled_nodes) == len(batch.num_sampled_edges) + 1 == 3


def test_a_typed_graph_gives_hetero_data(typed):
    graph, store = typed
    for batch in batches_of(store, {"default": [3, 3]}, ("paper", "train"), 8):
        assert type(batch) is HeteroData
        batch.validate(raise_on_error=True)
        assert batch.node_types == ["paper", "author", "institute"]
        assert batch.edge_types == [CITES, WRITES, WORKS]
        papers = batch["paper"]
        assert set(papers.keys()) == {
            "n_id", "feat", "year", "title", "tags", "tags_offsets", "num_sampled_nodes", "input_id", "batch_size"
        }  # fmt: skip
        assert "input_id" not in batch["author"]
        keys = papers.n_id.numpy()
        assert np.array_equal(keys[: papers.batch_size], graph.splits["paper"]["train"][papers.input_id])
        assert np.array_equal(papers.feat, graph.nodes["paper"].features["feat"][keys])
        assert papers.year.dtype == torch.int16
        titles, tags = graph.nodes["paper"].features["title"], graph.nodes["paper"].features["tags"]
        assert papers.title == [titles[key] for key in keys]
        for row, key in enumerate(keys):
            start, end = papers.tags_offsets[row : row + 2]
            assert np.array_equal(papers.tags[start:end], tags[key])
        assert batch["author"].feat.shape == (batch["author"].num_nodes, 2, 2)
        assert batch["author"].feat.dtype == torch.float64
        edges = batch[WRITES]
        assert np.array_equal(edges.weight, graph.edges[WRITES].features["weight"][edges.e_id])
        assert set(edges.keys()) == {"edge_index", "e_id", "weight", "num_sampled_edges"}
        assert set(batch.edge_index_dict) == {CITES, WRITES, WORKS}
        assert batch[WORKS].edge_index.shape == (2, 0)


def test_data_can_be_trained_on(plain):
    (batch, *_) = batches_of(plain[1], [3, 3], "train", 16)
    first, second = SAGEConv(3, 8), SAGEConv(8, 4)
    hidden = first(batch.x, batch.edge_index).relu()
    hidden, edge_index, _ = trim_to_layer(1, batch.num_sampled_nodes, batch.num_sampled_edges, hidden, batch.edge_index)
    out = second(hidden, edge_index)[: batch.batch_size]
    torch.nn.functional.cross_entropy(out, batch.y[: batch.batch_size]).backward()


def test_trimming_a_batch_changes_no_seed(plain):
    """The order of nodes and edges by hop is what ``trim_to_layer`` relies on."""
    torch.manual_seed(0)
    layers = [SAGEConv(3, 3) for _ in range(3)]
    for batch in batches_of(plain[1], [4, 3, 2], [5, 6, 5, 40], 4):
        whole = trimmed = batch.x
        edge_index = batch.edge_index
        for number, layer in enumerate(layers):
            whole = layer(whole, batch.edge_index)
            trimmed, edge_index, _ = trim_to_layer(
                number, batch.num_sampled_nodes, batch.num_sampled_edges, trimmed, edge_index
            )
            trimmed = layer(trimmed, edge_index)
        assert torch.allclose(whole[: batch.batch_size], trimmed[: batch.batch_size], atol=1e-5)
        assert torch.equal(batch.n_id[:4], torch.tensor([5, 6, 5, 40]))
        assert torch.allclose(whole[0], whole[2])


def test_edge_keys_can_be_left_out_or_asked_for(plain, tmp_path):
    graph, store = plain
    assert all("e_id" not in batch for batch in batches_of(store, [2], None, 40, edge_keys=False))
    assert all("e_id" in batch for batch in batches_of(store, [2], None, 40, edge_keys=True))
    without = local_store(graph, tmp_path / "parts", keep_edge_keys=False)
    for batch in batches_of(without, [2], None, 40):
        assert "e_id" not in batch
        assert batch.edge_attr.shape == (batch.num_edges, 2)
    with pytest.raises(SettingsError, match="edge_keys=True, and the dataset keeps no edge keys; write the parts"):
        NeighborLoader(without, [2], edge_keys=True)


def test_a_graph_without_edges_gives_batches_of_seeds(tmp_path):
    graph = Graph(nodes={NODE: NodeTable(num_nodes=5, features={"x": np.eye(5, dtype=np.float32)})})
    (batch,) = batches_of(local_store(graph, tmp_path / "parts"), [2], None, 5)
    assert type(batch) is Data
    assert batch.edge_index.shape == (2, 0)
    assert batch.x.equal(torch.eye(5))


@pytest.mark.parametrize("dtype", ["bool", "uint8", "uint16", "uint32", "uint64", "float16", "complex64"])
def test_every_dtype_becomes_a_tensor(dtype, tmp_path):
    values = np.arange(6).reshape(6, 1).astype(dtype)
    graph = Graph(
        nodes={NODE: NodeTable(num_nodes=6, features={"value": values})},
        edges={EDGE: EdgeTable(src_keys=np.arange(6), dst_keys=np.arange(6)[::-1].copy())},
    )
    (batch,) = batches_of(local_store(graph, tmp_path / "parts"), [2], [4, 2], 2)
    assert str(batch.value.dtype) == f"torch.{dtype}"
    assert np.array_equal(batch.value.numpy(), values[batch.n_id])


@pytest.mark.parametrize(
    ("nodes", "edges", "message"),
    [
        ({"n_id": np.zeros(3)}, {}, "feature 'n_id' of the graph would hide the batch's own 'n_id'"),
        ({"batch": np.zeros(3)}, {}, "feature 'batch' of the graph would hide"),
        ({"seed_time": np.zeros(3)}, {}, "feature 'seed_time' of the graph would hide"),
        ({}, {"edge_index": np.zeros(3)}, "'edge_index'"),
        ({"weight": np.zeros(3)}, {"weight": np.zeros(3)}, "the graph has two columns.*'weight'"),
    ],
)
def test_columns_that_would_hide_each_other_are_refused(nodes, edges, message, tmp_path):
    graph = Graph(
        nodes={NODE: NodeTable(num_nodes=3, features=nodes)},
        edges={EDGE: EdgeTable(src_keys=np.arange(3), dst_keys=np.arange(3), features=edges)},
    )
    store = local_store(graph, tmp_path / "parts")
    with pytest.raises(SettingsError, match=message):
        NeighborLoader(store, [1])
    assert len(batches_of(store, [1], None, 3, node_features=[], edge_features=[])) == 1
    assert len(batches_of(store, [1], None, 3, collate="numpy")) == 1


ATTACHED = {
    "whole": np.array([1, 2]),
    "named": {0: np.array([3]), "deep": {"er": np.array([[4]])}},
    "number": 5,
    "words": RaggedArray.from_strings(["a", "b"]),
    "rows": RaggedArray(np.arange(3), np.array([0, 1, 3])),
}


def with_attributes(store, seeds, num_neighbors, attributes):
    """A numpy batch as if its loader had attached these."""
    with NeighborLoader(store, num_neighbors, seeds, 4, collate="numpy", num_threads=0) as loader:
        return replace(next(iter(loader)), attributes=attributes)


def check_attached(store):
    assert store["whole"].equal(torch.tensor([1, 2]))
    assert store["named"][0].equal(torch.tensor([3]))
    assert store["named"]["deep"]["er"].equal(torch.tensor([[4]]))
    assert store["number"] == 5
    assert store["words"] == ["a", "b"]
    assert (store["rows"].tolist(), store["rows_offsets"].tolist()) == ([0, 1, 2], [0, 1, 3])


@pytest.mark.parametrize("owner", [NODE, EDGE, None], ids=repr)
def test_loader_attributes_are_attributes_of_data(plain, owner):
    batch = to_pyg(with_attributes(plain[1], None, [2], {owner: ATTACHED}), is_homogeneous=True)
    check_attached(batch)
    assert batch.validate()


@pytest.mark.parametrize("owner", ["author", CITES, None], ids=repr)
def test_loader_attributes_are_on_their_type_or_the_whole_graph(typed, owner):
    batch = to_pyg(with_attributes(typed[1], "paper", {"default": [2]}, {owner: ATTACHED}), is_homogeneous=False)
    check_attached(batch if owner is None else batch[owner])
    assert "whole" not in batch["paper"]
    assert batch.validate()
    if owner is not None:
        assert "whole" not in batch._global_store


@pytest.mark.parametrize("name", sorted(ATTACHED_ATTRIBUTES))
def test_features_hidden_by_link_loaders_are_for_node_loaders_only(tmp_path, name):
    graph = Graph(
        nodes={NODE: NodeTable(num_nodes=3)},
        edges={EDGE: EdgeTable(src_keys=np.arange(3), dst_keys=np.arange(3), features={name: np.arange(3)})},
    )
    store = local_store(graph, tmp_path / "parts")
    assert batches_of(store, [1], None, 3)[0][name].tolist() == [0, 1, 2]
    with pytest.raises(SettingsError, match=f"feature '{name}' of the graph would hide the batch's own '{name}'"):
        open_setup(store, "in", LoadSettings())
    open_setup(store, "in", LoadSettings(collate="numpy"))
    open_setup(store, "in", LoadSettings(edge_features=[]))


needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_pinning_without_a_device_is_refused(plain):
    with pytest.raises(SettingsError, match=r"pin_memory=True needs a CUDA device.*use pin_memory=False"):
        NeighborLoader(plain[1], [2], pin_memory=True)


@needs_cuda
def test_pinned_batches_are_pinned_and_equal(typed):
    pinned = batches_of(typed[1], {"default": [3]}, "paper", 8, pin_memory=True)
    for one, other in zip(pinned, batches_of(typed[1], {"default": [3]}, "paper", 8), strict=True):
        for store, wanted in zip(one.stores, other.stores, strict=True):
            for name, value in store.items():
                if isinstance(value, torch.Tensor):
                    assert value.is_pinned() or not value.numel()  # torch pins no empty tensor
                    assert torch.equal(value, wanted[name])


@needs_cuda
def test_a_pinned_batch_may_be_dropped_before_its_copy_to_the_gpu_has_run(typed):
    copies = []
    for batch in batches_of(typed[1], {"default": [3]}, "paper", 8, pin_memory=True):
        torch.cuda._sleep(20_000_000)  # copies wait behind it, while later batches are made
        copies.append(batch.to("cuda", non_blocking=True))
        del batch
    torch.cuda.synchronize()
    for one, other in zip(copies, batches_of(typed[1], {"default": [3]}, "paper", 8), strict=True):
        for store, wanted in zip(one.stores, other.stores, strict=True):
            for name, value in store.items():
                if isinstance(value, torch.Tensor):
                    assert torch.equal(value.cpu(), wanted[name])


def test_pinned_memory_is_handed_over_in_the_storage_that_torch_made(typed, monkeypatch):
    """torch tracks copies from pinned memory by storage, so a batch must hold torch's own storage."""
    owned = []
    empty = torch.empty

    def record(shape, *, dtype, pin_memory):
        assert pin_memory
        owned.append(empty(shape, dtype=dtype))
        return owned[-1]

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "empty", record)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    pinned = batches_of(typed[1], {"default": [3]}, "paper", 8, pin_memory=True)
    monkeypatch.undo()
    for one, other in zip(pinned, batches_of(typed[1], {"default": [3]}, "paper", 8), strict=True):
        for store, wanted in zip(one.stores, other.stores, strict=True):
            for name, value in store.items():
                if isinstance(value, torch.Tensor):
                    assert torch.equal(value, wanted[name])
                if name in ("n_id", "edge_index", "e_id", "feat", "year", "weight"):
                    assert value.untyped_storage()._cdata in {t.untyped_storage()._cdata for t in owned}


def test_pinning_numpy_batches_is_refused(plain):
    with pytest.raises(SettingsError, match="use it with collate='pyg'"):
        NeighborLoader(plain[1], [2], pin_memory=True, collate="numpy")


def test_numpy_batches_need_no_torch(tmp_path):
    local_store(make_plain_graph(np.random.default_rng(4)), tmp_path / "parts")
    code = (
        "import sys; from hopstream.load.loader import NeighborLoader\n"
        f"batches = list(NeighborLoader({str(tmp_path / 'parts')!r}, [2, 2], batch_size=16, collate='numpy'))\n"
        "assert len(batches) == 5 and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_missing_torch_is_an_error_with_a_remedy(tmp_path):
    local_store(make_plain_graph(np.random.default_rng(4)), tmp_path / "parts")
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from hopstream.errors import MissingDependencyError\nfrom hopstream.load.loader import NeighborLoader\n"
        f"try: NeighborLoader({str(tmp_path / 'parts')!r}, [2])\n"
        "except MissingDependencyError as e: assert 'hopstream[pyg]' in str(e) and \"collate='numpy'\" in str(e)\n"
        "else: raise SystemExit('no error')"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
