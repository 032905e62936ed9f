"""Trains on labeled nodes by a script for GiGL's graph-store mode.

    python examples/gigl_nodes.py

Two storage machines on loopback hold one half of Cora each and sample; two ranks train GraphSAGE with
DistributedDataParallel. In the ranks' code, only the import of ``hopstream.compat.gigl`` differs from GiGL's.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - the name that everyone who uses torch knows
from gigl_cluster import compute_process, end_loaders, run_cluster, take_steps
from sage import Sage, Settings, stage_line
from torch import Tensor, nn
from torch_geometric.data import Data

import hopstream
from hopstream.compat.gigl.distributed.distributed_neighborloader import DistNeighborLoader
from hopstream.compat.gigl.distributed.graph_store import GraphStoreInfo, RemoteDistDataset
from hopstream.compat.gigl.utils.iterator import InfiniteIterator

CORA = Path(__file__).parent / "data" / "cora.npz"
ALL_NEIGHBORS = [200, 200]  # more than any paper has
TEST_BATCH_SIZE = 256


def main(process: Callable[..., int], description: str | None) -> int:
    """Serve Cora and train on it; return 0 if the accuracy is high enough."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=Settings.num_epochs)
    parser.add_argument("--wanted", type=float, default=0.76, help="test accuracy below which the script fails")
    arguments = parser.parse_args()
    return run_cluster(hopstream.read_graph(CORA), process, arguments.epochs, arguments.wanted)


def train_process(local_rank: int, cluster_info: GraphStoreInfo, num_epochs: int, wanted: float) -> int:
    """Train as one of the ranks; return 0 if the accuracy is high enough."""
    settings = Settings(num_classes=7, num_epochs=num_epochs)
    with compute_process(local_rank, cluster_info) as dataset:
        rank, world_size = dist.get_rank(), dist.get_world_size()
        train_loader = DistNeighborLoader(
            dataset,
            num_neighbors=list(settings.num_neighbors),
            input_nodes=dataset.fetch_node_ids(rank, world_size, split="train"),
            batch_size=settings.batch_size // world_size,
            shuffle=True,
        )
        test_loader = DistNeighborLoader(
            dataset,
            num_neighbors=ALL_NEIGHBORS,
            input_nodes=dataset.fetch_node_ids(rank, world_size, split="test"),
            batch_size=TEST_BATCH_SIZE,
        )
        return train_and_test(dataset, {"train": train_loader, "test": test_loader}, SageOfBatch, settings, wanted)


def train_and_test(
    dataset: RemoteDistDataset, loaders: Mapping[str, DistNeighborLoader],
    new_model: Callable[[int, Settings], nn.Module], settings: Settings, wanted: float,
) -> int:  # fmt: skip
    """Train a model, test it, and shut the loaders down; return 0 if the accuracy is high enough."""
    # Each rank has its own dropout; all start from rank 0's weights, which DDP broadcasts.
    torch.manual_seed(dist.get_rank())
    model = new_model(dataset.fetch_node_feature_info().dim, settings).to(loaders["train"].to_device)
    num_steps = settings.num_epochs * steps_of_epoch(dataset, settings.batch_size)
    train(model, loaders["train"], settings, num_steps)
    accuracy = evaluate(model, loaders["test"])
    end_loaders(loaders.values())
    if dist.get_rank() == 0:
        print(
            stage_line("result", f"test accuracy {accuracy:.3f} after {num_steps} steps; wanted {wanted:.2f} or more")
        )
    return 0 if accuracy >= wanted else 1


class SageOfBatch(Sage):
    """GraphSAGE that takes a batch."""

    def forward(self, batch: Data) -> Tensor:
        """Scores of all nodes of a batch; those of the seeds come first."""
        return super().forward(batch.x, batch.edge_index)


def steps_of_epoch(dataset: RemoteDistDataset, batch_size: int) -> int:
    """Steps per epoch, equal on all ranks as DDP needs, although their shares of training nodes differ."""
    num_nodes = sum(map(len, dataset.fetch_node_ids(split="train").values()))
    return math.ceil(num_nodes / batch_size)


def train(model: nn.Module, loader: DistNeighborLoader, settings: Settings, num_steps: int) -> None:
    """Train for ``num_steps`` steps; iterate over this rank's nodes as often as needed."""
    optimizer = torch.optim.Adam(model.parameters(), settings.learning_rate, weight_decay=settings.weight_decay)
    take_steps(model, optimizer, InfiniteIterator(loader), loss_of, num_steps)


def loss_of(model: nn.Module, batch: Data) -> Tensor:
    """Mean loss of a batch's seeds."""
    return F.cross_entropy(model(batch)[: batch.batch_size], batch.y[: batch.batch_size])


@torch.no_grad()
def evaluate(model: nn.Module, loader: DistNeighborLoader) -> float:
    """Share of the test nodes that the model labels right, over all ranks."""
    model.eval()
    counts = torch.zeros(2, dtype=torch.int64)
    for batch in loader:
        labels = model(batch)[: batch.batch_size].argmax(dim=1)
        counts += torch.tensor([int((labels == batch.y[: batch.batch_size]).sum()), batch.batch_size])
    dist.all_reduce(counts)
    num_right, num_tested = counts.tolist()
    return num_right / num_tested


if __name__ == "__main__":
    sys.exit(main(train_process, __doc__))
