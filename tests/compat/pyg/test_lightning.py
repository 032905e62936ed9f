"""Checks that PyG's data modules for PyTorch Lightning train over a dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data.lightning import LightningLinkData, LightningNodeData
from torch_geometric.nn import SAGEConv
from torch_geometric.sampler import NegativeSampling

import hopstream
from hopstream.compat.pyg import DatasetSampler, open_stores
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.schema import EDGE, NODE
from tests.compat.pyg.worlds import as_data
from tests.processes import ServerPool

lightning = pytest.importorskip("pytorch_lightning")
NUM_NODES, NUM_CLASSES = 240, 3


def make_graph() -> Graph:
    """Communities: neighbours are mostly of a node's own class, and features say a little of it."""
    rng = np.random.default_rng(2)
    classes = rng.integers(0, NUM_CLASSES, NUM_NODES)
    src = rng.integers(0, NUM_NODES, 12 * NUM_NODES)
    dst = rng.integers(0, NUM_NODES, 12 * NUM_NODES)
    kept = (classes[src] == classes[dst]) | (rng.random(len(src)) < 0.1)
    x = rng.standard_normal((NUM_NODES, 8)).astype(np.float32)
    x[:, :NUM_CLASSES] += np.eye(NUM_CLASSES, dtype=np.float32)[classes]
    return Graph(
        nodes={NODE: NodeTable(num_nodes=NUM_NODES, features={"x": x, "y": classes})},
        edges={EDGE: EdgeTable(src_keys=src[kept], dst_keys=dst[kept])},
        splits={
            NODE: {
                "train": np.arange(0, NUM_NODES, 2),
                "val": np.arange(1, NUM_NODES, 4),
                "test": np.arange(3, NUM_NODES, 4),
            }
        },
    ).check()


class Sage(torch.nn.Module):
    """Two layers."""

    def __init__(self, num_out: int) -> None:
        super().__init__()
        self.first, self.second = SAGEConv(8, 16), SAGEConv(16, num_out)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)


class NodeModule(lightning.LightningModule):
    """Learns the class of nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Sage(NUM_CLASSES)
        self.num_seen = 0

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        self.num_seen += batch.batch_size
        out = self.model(batch.x, batch.edge_index)[: batch.batch_size]
        return torch.nn.functional.cross_entropy(out, batch.y[: batch.batch_size])

    def validation_step(self, batch: Any, _: int) -> None:
        out = self.model(batch.x, batch.edge_index)[: batch.batch_size].argmax(dim=1)
        is_right = (out == batch.y[: batch.batch_size]).float().mean()
        self.log("right", is_right, batch_size=batch.batch_size)

    test_step = validation_step

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.02)


class LinkModule(NodeModule):
    """Model that tells links from negatives."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Sage(16)

    def _scores(self, batch: Any) -> torch.Tensor:
        out = self.model(batch.x, batch.edge_index)
        return (out[batch.edge_label_index[0]] * out[batch.edge_label_index[1]]).sum(dim=1)

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        self.num_seen += len(batch.input_id)
        return torch.nn.functional.binary_cross_entropy_with_logits(self._scores(batch), batch.edge_label)

    def validation_step(self, batch: Any, _: int) -> None:
        is_right = ((self._scores(batch) > 0).float() == batch.edge_label).float().mean()
        self.log("right", is_right, batch_size=len(batch.edge_label))

    test_step = validation_step


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("lightning") / "parts"
    hopstream.write_parts(make_graph(), folder, num_parts=2, method="random", links=[EDGE])
    return folder


def make_trainer() -> Any:
    """A silent trainer of four epochs, with all generators seeded."""
    lightning.seed_everything(4)
    return lightning.Trainer(
        accelerator="cpu", max_epochs=4, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, num_sanity_val_steps=0,
    )  # fmt: skip


def node_module(features: Any, data: Any, sampler: DatasetSampler, **options: Any) -> LightningNodeData:
    return LightningNodeData(
        data, node_sampler=sampler, batch_size=24, pin_memory=False, eval_loader_kwargs={"num_neighbors": [-1, -1]},
        **{f"input_{split}_nodes": features.input_nodes(split) for split in ("train", "val", "test")}, **options,
    )  # fmt: skip


@pytest.mark.slow
def test_nodes_over_servers_with_worker_processes(folder, server_pool: ServerPool):
    """Workers cannot inherit connections of their parent, so they are spawned."""
    with server_pool.serve([folder], [[0], [1]]) as (addresses,):
        data = open_stores(",".join(addresses), hopstream.StoreSettings(prefer_local=False))
        with data[0] as features:
            sampler = DatasetSampler(data, [4, 3])
            workers = {"num_workers": 2, "multiprocessing_context": "spawn", "persistent_workers": True}
            trainer, learner = make_trainer(), NodeModule()
            module = node_module(features, data, sampler, **workers)
            trainer.fit(learner, module)
            assert learner.num_seen == 4 * NUM_NODES // 2
            assert trainer.callback_metrics["right"] > 0.8


@pytest.mark.slow
def test_links_are_learned_alike_wherever_the_graph_is(folder, server_pool: ServerPool):
    graph = make_graph()
    edges = graph.edges[EDGE]
    links = torch.from_numpy(np.stack([edges.src_keys, edges.dst_keys]))
    found = {}
    with server_pool.serve([folder], [[0], [1]]) as (addresses,):
        for place in ("memory", "folder", "servers"):
            source = ",".join(addresses) if place == "servers" else folder
            stores = open_stores(source, hopstream.StoreSettings(prefer_local=False))
            with stores[0]:
                data = as_data(graph) if place == "memory" else stores
                train, val = (
                    given if place == "memory" else (None, given) for given in (links[:, ::2], links[:, 1::2])
                )
                module = LightningLinkData(
                    data, train, input_val_edges=val, input_test_edges=val,
                    link_sampler=DatasetSampler(stores, [4, 3], exclude_links=True),
                    neg_sampling=NegativeSampling("binary", 1), batch_size=64, pin_memory=False,
                )  # fmt: skip
                trainer, learner = make_trainer(), LinkModule()
                trainer.fit(learner, module)
                assert learner.num_seen == 4 * links[:, ::2].size(1)
                found[place] = (trainer.callback_metrics["right"], trainer.test(learner, module, verbose=False))
    assert found["memory"][0] > 0.58, "a guess is right half of the time"
    assert found["memory"] == found["folder"] == found["servers"]


def test_lightning_trains_on_nodes(folder):
    """Evaluation sees all neighbours, by its own ``num_neighbors``."""
    data = open_stores(folder)
    with data[0] as features:
        sampler = DatasetSampler(data, [4, 3])
        trainer, learner = make_trainer(), NodeModule()
        module = node_module(features, data, sampler)
        trainer.fit(learner, module)
        assert learner.num_seen == 4 * NUM_NODES // 2
        assert module.eval_graph_sampler.num_neighbors == [-1, -1]
        assert sampler.num_neighbors == [4, 3]
        assert trainer.callback_metrics["right"] > 0.8
        assert trainer.test(learner, module, verbose=False)[0]["right"] > 0.8
