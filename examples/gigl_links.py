"""Predicts links by a script for GiGL's graph-store mode, with anchors and random negatives.

    python examples/gigl_links.py FOLDER

FOLDER is the folder of ``movielens.py``. The last fifth of each user's ratings are labels, edges of a type that is
never followed, as in GiGL; the other ratings are the graph. The labels of four fifths of the users train a model, on
two ranks: movies of labels should score above random movies. The other users test the model.

The figure is how often a label scores above a random movie for the same user; 0.5 is chance. The baseline is the
popularity of movies in the graph. The exit status is 0 if the model is better than both.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - the name that everyone who uses torch knows
from gather import Gather
from gigl_cluster import compute_process, end_loaders, run_cluster, take_steps
from movielens import RATED_BY, RATES, describe_tables, one_hot
from sage import stage_line
from tables import read_tables
from torch import Tensor, nn
from torch_geometric.data import HeteroData

import hopstream
from hopstream.compat.gigl.distributed import DistABLPLoader, DistNeighborLoader
from hopstream.compat.gigl.distributed.graph_store import GraphStoreInfo
from hopstream.compat.gigl.src.common.types.graph_data import EdgeType
from hopstream.compat.gigl.types.graph import message_passing_to_positive_label
from hopstream.compat.gigl.utils.iterator import InfiniteIterator
from hopstream.graph import EdgeTable, Graph, NodeTable

LABELS = message_passing_to_positive_label(EdgeType(*RATES))
NUM_NEIGHBORS = {RATED_BY: [20, 5], RATES: [5, 0]}
ANCHORS, NEGATIVES = 16, 256
"""Users and random movies per batch of one rank."""


def main() -> int:
    """Serve MovieLens and train on it; return 0 if the model is better than chance and popularity."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where movies.csv and ratings.csv are")
    parser.add_argument("--epochs", type=int, default=8)
    arguments = parser.parse_args()
    graph = read_movielens(arguments.folder)
    rates, labels = graph.edges[RATES], graph.edges[LABELS]
    num_users, num_movies = graph.nodes["user"].num_nodes, graph.nodes["movie"].num_nodes
    print(stage_line("read", f"{num_users:,} users, {num_movies:,} movies, {rates.num_edges:,} ratings"))
    print(stage_line("labels", f"{labels.num_edges:,} later ratings"))
    popularity = np.bincount(rates.dst_keys, minlength=num_movies)
    return run_cluster(graph, train_process, popularity, arguments.epochs)


def read_movielens(folder: Path) -> Graph:
    """Read users, movies, ratings in both directions, and labels; split the users."""
    tables = read_tables(folder, ("movies", "ratings"), describe_tables)
    movies, rates = tables.nodes["movie"], tables.edges[RATES]
    order = np.lexsort((np.asarray(rates.features["time"]), rates.src_keys))
    users = rates.src_keys[order]
    counts = np.bincount(users)
    places = np.arange(len(users)) - (np.cumsum(counts) - counts)[users]  # of each rating among those of its user
    is_label = places >= counts[users] * 4 // 5
    known, later = order[~is_label], order[is_label]
    ratings = {"edge_attr": np.asarray(rates.features["rating"])[known, None] - np.float32(3.5)}
    num_ratings = np.bincount(rates.dst_keys[known], minlength=movies.num_nodes)[:, None]
    x = np.concatenate([one_hot(movies.features["genres"]), np.log1p(num_ratings, dtype=np.float32)], axis=1)
    graph = Graph(
        nodes={
            "user": NodeTable(num_nodes=tables.nodes["user"].num_nodes),
            "movie": NodeTable(num_nodes=movies.num_nodes, features={"x": x}),
        },
        edges={
            RATES: EdgeTable(src_keys=rates.src_keys[known], dst_keys=rates.dst_keys[known], features=ratings),
            RATED_BY: EdgeTable(src_keys=rates.dst_keys[known], dst_keys=rates.src_keys[known], features=ratings),
            LABELS: EdgeTable(src_keys=rates.src_keys[later], dst_keys=rates.dst_keys[later]),
        },
    )
    return hopstream.split_nodes(graph, "user", val=0.0, test=0.2)


class Recommender(nn.Module):
    """Model of users by their ratings, and of movies by their features and raters; scores are products."""

    def __init__(self, num_movies: int, num_features: int, width: int = 32) -> None:
        """Make the layers; there are no parameters per user."""
        super().__init__()
        self.movie = nn.Embedding(num_movies, width)
        nn.init.zeros_(self.movie.weight)
        self.features = nn.Linear(num_features, width)
        self.to_user = Gather(width, num_values=1)
        self.to_movie = Gather(width, num_values=1)
        self.bias = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, batch: HeteroData) -> tuple[Tensor, Tensor]:
        """float32[n, width] of all users, and float32[n, width + 1] of all movies; the last column is a bias."""
        movies = self.movie(batch["movie"].node) + self.features(batch["movie"].x)
        edges = batch[RATED_BY]
        users = self.to_user(movies, edges.edge_index, edges.edge_attr, len(batch["user"].node))
        edges = batch[RATES]
        movies = movies + self.to_movie(users, edges.edge_index, edges.edge_attr, len(movies))
        return users, torch.cat([movies, self.bias(movies)], dim=1)


class Scores(nn.Module):
    """Scores a batch's labels, and random movies for the same users."""

    def __init__(self, model: Recommender) -> None:
        """Score with ``model``."""
        super().__init__()
        self.model = model

    def forward(self, main: HeteroData, random: HeteroData) -> tuple[Tensor, Tensor]:
        """float32[n] of n labels, and float32[n, m] of m random movies."""
        users, movies = self.model(main)
        _, others = self.model(random)
        anchor, label = main.y_positive
        chosen, others = users[anchor], others[: random["movie"].batch_size]
        positive = (chosen * movies[label, :-1]).sum(dim=1) + movies[label, -1]
        return positive, chosen @ others[:, :-1].T + others[:, -1]


def train_process(local_rank: int, cluster_info: GraphStoreInfo, popularity: np.ndarray, num_epochs: int) -> int:
    """Train as one of the ranks; return 0 if the model is better than chance and popularity."""
    with compute_process(local_rank, cluster_info) as dataset:
        rank, world_size = dist.get_rank(), dist.get_world_size()
        anchors = {
            split: dataset.fetch_ablp_input(
                split, rank, world_size, anchor_node_type="user", supervision_edge_type=EdgeType(*RATES)
            )
            for split in ("train", "test")
        }
        loaders = {
            split: DistABLPLoader(
                dataset,
                num_neighbors=NUM_NEIGHBORS,
                input_nodes=anchors[split],
                batch_size=ANCHORS,
                shuffle=split == "train",
                use_label_edge_index_output=True,
            )
            for split in anchors
        }
        random_loader = DistNeighborLoader(
            dataset,
            num_neighbors=NUM_NEIGHBORS,
            input_nodes=("movie", dataset.fetch_node_ids(rank, world_size, node_type="movie")),
            batch_size=NEGATIVES,
            shuffle=True,
        )

        torch.manual_seed(0)
        model = Scores(Recommender(len(popularity), dataset.fetch_node_feature_info()["movie"].dim))
        model.to(random_loader.to_device)
        num_anchors = sum(map(len, dataset.fetch_node_ids(split="train", node_type="user").values()))
        num_steps = num_epochs * math.ceil(num_anchors / world_size / ANCHORS)
        train(model, loaders["train"], random_loader, num_steps)
        found, known = test(model, loaders["test"], random_loader, torch.from_numpy(popularity))
        end_loaders([*loaders.values(), random_loader])
    if rank == 0:
        print(stage_line("result", f"AUC {found:.3f} after {num_steps} steps; popularity {known:.3f}; chance 0.500"))
    return 0 if found > max(known, 0.5) else 1


def train(model: Scores, loader: DistABLPLoader, random_loader: DistNeighborLoader, num_steps: int) -> None:
    """Train for ``num_steps`` steps."""
    optimizer = torch.optim.Adam(model.parameters(), 5e-3, weight_decay=1e-3)
    pairs = zip(InfiniteIterator(loader), InfiniteIterator(random_loader), strict=True)
    take_steps(model, optimizer, pairs, loss_of, num_steps)


def loss_of(model: nn.Module, batches: tuple[HeteroData, HeteroData]) -> Tensor:
    """Loss that falls as labels score above random movies."""
    positive, negative = model(*batches)
    return F.softplus(negative - positive[:, None]).mean()


@torch.no_grad()
def test(
    model: Scores, loader: DistABLPLoader, random_loader: DistNeighborLoader, popularity: Tensor
) -> tuple[float, float]:
    """Share of pairs in which a label scores above a random movie, by the model and by popularity."""
    model.eval()
    wins = torch.zeros(3, dtype=torch.float64)
    for main_batch, random_batch in zip(loader, InfiniteIterator(random_loader), strict=False):
        label = popularity[main_batch["movie"].node[main_batch.y_positive[1]].cpu()]
        other = popularity[random_batch["movie"].batch.cpu()].expand(len(label), -1)
        for place, (positive, negative) in enumerate([model(main_batch, random_batch), (label, other)]):
            difference = positive[:, None] - negative
            wins[place] += ((difference > 0).double() + 0.5 * (difference == 0).double()).sum().cpu()
        wins[2] += other.numel()
    dist.all_reduce(wins)
    found, known, num_pairs = wins.tolist()
    return found / num_pairs, known / num_pairs


if __name__ == "__main__":
    sys.exit(main())
