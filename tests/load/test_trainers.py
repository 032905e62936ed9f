"""Checks that Lightning and Accelerate train with loaders, in memory and over servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import accelerate
import pytest
import pytorch_lightning as lightning
import torch

import hopstream
from tests.compat.pyg.test_lightning import NUM_NODES, NodeModule, make_graph, make_trainer
from tests.processes import ServerPool

SETTINGS = {"num_neighbors": [4, 3], "batch_size": 24, "num_workers": 2}
NUM_TRAIN = NUM_NODES // 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trainers") / "parts"
    hopstream.write_parts(make_graph(), folder, num_parts=2, method="random")
    return folder


def fitted(source: object, **options: Any) -> tuple[NodeModule, lightning.Trainer]:
    """Train with Lightning for four epochs, validating after each."""
    trainer, learner = make_trainer(), NodeModule()
    with (
        hopstream.NeighborLoader(source, input_nodes="train", shuffle=True, **SETTINGS, **options) as train,
        hopstream.NeighborLoader(source, input_nodes="val", **SETTINGS, **options) as val,
    ):
        trainer.fit(learner, train, val)
        assert (train.epoch, train.state_dict()["next_batch"]) == (3, 5)  # the trainer stops at the last batch
    return learner, trainer


def test_lightning_trains_alike_from_memory_and_from_servers(folder: Path, server_pool: ServerPool) -> None:
    learner, trainer = fitted(make_graph())
    assert learner.num_seen == 4 * NUM_TRAIN
    assert trainer.num_training_batches == NUM_TRAIN // SETTINGS["batch_size"]
    assert trainer.callback_metrics["right"] > 0.7  # a third by chance
    with server_pool.serve([folder], [[0], [1]]) as (addresses,):
        far, _ = fitted(",".join(addresses), store_settings=hopstream.StoreSettings(prefer_local=False))
    for near_weights, far_weights in zip(learner.parameters(), far.parameters(), strict=True):
        assert torch.equal(near_weights, far_weights)


def test_accelerate_trains_with_a_loader() -> None:
    accelerate.utils.set_seed(4)
    accelerator, learner = accelerate.Accelerator(cpu=True), NodeModule()
    with (
        hopstream.NeighborLoader(make_graph(), input_nodes="train", shuffle=True, **SETTINGS) as loader,
        hopstream.NeighborLoader(make_graph(), input_nodes="test", **SETTINGS) as test,
    ):
        model, optimizer, train = accelerator.prepare(learner.model, learner.configure_optimizers(), loader)
        assert (train.batch_size, len(train.dataset), len(train)) == (24, NUM_TRAIN, 5)
        for _ in range(4):
            for batch in train:
                with accelerator.accumulate(model):
                    out = model(batch.x, batch.edge_index)[: batch.batch_size]
                    accelerator.backward(torch.nn.functional.cross_entropy(out, batch.y[: batch.batch_size]))
                    optimizer.step()
                    optimizer.zero_grad()
        right = [
            accelerator.gather_for_metrics(
                model(batch.x, batch.edge_index)[: batch.batch_size].argmax(dim=1) == batch.y[: batch.batch_size]
            )
            for batch in test
        ]
        assert torch.cat(right).float().mean() > 0.8
