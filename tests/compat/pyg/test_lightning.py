"""Do PyG's data modules for PyTorch Lightning train over a dataset?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data.lightning import LightningNodeData
from torch_geometric.nn import SAGEConv

import hopstream
from hopstream.compat.pyg import DatasetSampler, open_stores
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.schema import EDGE, NODE

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


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("lightning") / "parts"
    hopstream.write_parts(make_graph(), folder, num_parts=2, method="random", links=[EDGE])
    return folder


def make_trainer() -> Any:
    """A trainer that says nothing, of four epochs; everything drawn is drawn anew."""
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


def test_nodes(folder):
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
