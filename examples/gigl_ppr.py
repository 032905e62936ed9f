"""Trains on neighbourhoods of personalised PageRank by a script for GiGL's graph-store mode.

    python examples/gigl_ppr.py

It differs from ``gigl_nodes.py`` in the neighbourhood: each paper comes with the 32 papers of highest PageRank score
around it. Their features, weighted by the scores, predict the paper's label; there are no hops.
"""

from __future__ import annotations

import sys

import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - the name that everyone who uses torch knows
from gigl_cluster import compute_process
from gigl_nodes import TEST_BATCH_SIZE, main, train_and_test
from sage import Settings
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.utils import scatter

from hopstream.compat.gigl.distributed.distributed_neighborloader import DistNeighborLoader
from hopstream.compat.gigl.distributed.graph_store import GraphStoreInfo
from hopstream.compat.gigl.distributed.sampler_options import PPRSamplerOptions

OPTIONS = PPRSamplerOptions(alpha=0.15, max_ppr_nodes=32)


def train_process(local_rank: int, cluster_info: GraphStoreInfo, num_epochs: int, wanted: float) -> int:
    """Train as one of the ranks; return 0 if the accuracy is high enough."""
    settings = Settings(num_classes=7, num_epochs=num_epochs)
    with compute_process(local_rank, cluster_info) as dataset:
        rank, world_size = dist.get_rank(), dist.get_world_size()
        batch_sizes = {"train": settings.batch_size // world_size, "test": TEST_BATCH_SIZE}
        loaders = {
            split: DistNeighborLoader(
                dataset,
                num_neighbors=[],  # ignored
                input_nodes=dataset.fetch_node_ids(rank, world_size, split=split),
                batch_size=batch_size,
                shuffle=split == "train",
                sampler_options=OPTIONS,
            )
            for split, batch_size in batch_sizes.items()
        }
        return train_and_test(dataset, loaders, Nearby, settings, wanted)


class Nearby(nn.Module):
    """Model that sums the outputs of a paper's neighbourhood, weighted by their scores."""

    def __init__(self, num_features: int, settings: Settings) -> None:
        """Make two layers."""
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
    sys.exit(main(train_process, __doc__))
