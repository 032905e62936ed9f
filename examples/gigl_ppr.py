"""Trains on neighbourhoods of personalised PageRank by a script for GiGL's graph-store mode.

    python examples/gigl_ppr.py

As ``gigl_nodes.py``, but each paper comes with the 32 papers that walks from it end at most often, and is labelled by
what these are, weighted by how often; there are no hops.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - the name that everyone who uses torch knows
from gigl_cluster import run_cluster
from gigl_nodes import CORA, TEST_BATCH_SIZE, evaluate, steps_of_epoch, train
from sage import Settings, stage_line
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.utils import scatter

import hopstream
from hopstream.compat.gigl.distributed.distributed_neighborloader import DistNeighborLoader
from hopstream.compat.gigl.distributed.graph_store import (
    GraphStoreInfo,
    RemoteDistDataset,
    init_compute_process,
    shutdown_compute_process,
)
from hopstream.compat.gigl.distributed.sampler_options import PPRSamplerOptions

OPTIONS = PPRSamplerOptions(alpha=0.15, max_ppr_nodes=32)


def main() -> int:
    """Serve Cora and train on it; 0 where the accuracy is as wanted."""
    parser = argparse.ArgumentParser(description="Train on Cora's PageRank neighbourhoods in graph-store mode.")
    parser.add_argument("--epochs", type=int, default=Settings.num_epochs)
    parser.add_argument("--wanted", type=float, default=0.76, help="test accuracy below which the script fails")
    arguments = parser.parse_args()
    with TemporaryDirectory(prefix="hopstream-cora-") as folder:
        parts = Path(folder) / "cora"
        hopstream.write_parts(hopstream.read_graph(CORA), parts, num_parts=2, method="kaminpar")
        return run_cluster(parts, train_process, arguments.epochs, arguments.wanted)


def train_process(local_rank: int, cluster_info: GraphStoreInfo, num_epochs: int, wanted: float) -> int:
    """Train as one of the ranks; 0 where the accuracy is as wanted."""
    torch.set_num_threads(1)
    init_compute_process(local_rank, cluster_info, compute_world_backend="gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    dataset = RemoteDistDataset(cluster_info, local_rank)
    settings = Settings(num_classes=7, num_epochs=num_epochs)

    batch_sizes = {"train": settings.batch_size // world_size, "test": TEST_BATCH_SIZE}
    loaders = {
        split: DistNeighborLoader(
            dataset,
            num_neighbors=[],  # not looked at
            input_nodes=dataset.fetch_node_ids(rank, world_size, split=split),
            batch_size=batch_size,
            shuffle=split == "train",
            sampler_options=OPTIONS,
        )
        for split, batch_size in batch_sizes.items()
    }

    torch.manual_seed(rank)
    model = Nearby(dataset.fetch_node_feature_info().dim, settings).to(loaders["train"].to_device)
    num_steps = num_epochs * steps_of_epoch(dataset, settings.batch_size)
    train(model, loaders["train"], settings, num_steps)
    accuracy = evaluate(model, loaders["test"])

    dist.barrier()
    for loader in loaders.values():
        loader.shutdown()
    shutdown_compute_process()
    if rank == 0:
        print(
            stage_line("result", f"test accuracy {accuracy:.3f} after {num_steps} steps; wanted {wanted:.2f} or more")
        )
    return 0 if accuracy >= wanted else 1


class Nearby(nn.Module):
    """A paper is the sum of what its neighbourhood's papers are, each by itself, times their scores."""

    def __init__(self, num_features: int, settings: Settings) -> None:
        """Two layers, whatever the neighbourhoods."""
        super().__init__()
        self.layers = nn.ModuleList(
            [nn.Linear(num_features, settings.hidden), nn.Linear(settings.hidden, settings.num_classes)]
        )
        self.dropout = settings.dropout

    def forward(self, batch: Data) -> Tensor:
        """Scores of a batch's seeds."""
        x = F.dropout(F.normalize(batch.x), self.dropout, self.training)
        x = self.layers[1](F.dropout(self.layers[0](x).relu(), self.dropout, self.training))
        seed, neighbor = batch.edge_index
        score, _ = batch.edge_attr.T  # the second column is 1 / (1 + hops)
        return scatter(x[neighbor] * score[:, None], seed, dim_size=batch.batch_size, reduce="sum")


if __name__ == "__main__":
    sys.exit(main())
