"""Temporal link prediction on MovieLens from two servers: predicts the movies that users rate next.

    python examples/movielens.py FOLDER

FOLDER holds ``movies.csv`` and ``ratings.csv`` of https://grouplens.org/datasets/movielens/latest/, "small", which may
not be used commercially; they may be compressed (``.csv.gz``). Most users in the last tenth of all ratings have no
earlier ratings, so the model has no parameters per user. It represents a user by the ratings before the link's time,
which temporal sampling draws.

The figure is how often the movie of a later rating scores above a random movie for the same user; 0.5 is chance. The
baselines are a movie's popularity: its number of ratings in the training period, or until that time. The exit status
is 0 if the model is better than all of them.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name that everyone who uses torch knows
from auc import share_in_order
from gather import Gather, log_age
from sage import stage_line
from served import served
from tables import read_tables
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.data.storage import EdgeStorage

import hopstream
from hopstream.graph import Graph, NodeTable, RaggedArray
from hopstream.load import LinksLike

RATES, RATED_BY = ("user", "rates", "movie"), ("movie", "rev_rates", "user")
BATCH_SIZE = 512
NEGATIVES_PER_TEST = 5
NUM_SHOWN, MIN_RATINGS = 3, 10
"""Number of titles to print, and least number of ratings of a recommended movie."""


def describe_tables(files: Mapping[str, str]) -> dict[str, Any]:
    """Describe the columns of the tables; the table of ratings is read twice, for both directions."""
    ratings = {
        "files": files["ratings"],
        "features": {
            "rating": {"column": "rating", "dtype": "float32"},
            "time": {"column": "timestamp", "dtype": "int64"},
        },
    }
    return {
        "nodes": {
            "movie": {"files": files["movies"], "id": "movieId", "features": ["title", "genres"]},
            "user": {"from_edges": True},
        },
        "edges": [
            {"type": RATES, "src": "userId", "dst": "movieId", **ratings},
            {"type": RATED_BY, "src": "movieId", "dst": "userId", **ratings},
        ],
    }


def read_movielens(folder: Path) -> Graph:
    """Read users, movies, and ratings in both directions, split in the order of time."""
    graph = read_tables(folder, ("movies", "ratings"), describe_tables)
    movies = graph.nodes["movie"]
    features = {"title": movies.features["title"], "genres": one_hot(movies.features["genres"])}
    graph = replace(graph, nodes={**graph.nodes, "movie": NodeTable(num_nodes=movies.num_nodes, features=features)})
    return hopstream.split_links(graph, RATES, method="time", time_attr="time", val=0.0, test=0.1)


def one_hot(rows: RaggedArray) -> np.ndarray:
    """float32[n, genres]: of ``Action|Comedy``, a one for each."""
    named = [row.split("|") for row in rows]
    column_of = {name: column for column, name in enumerate(sorted({name for names in named for name in names}))}
    ones = np.zeros((len(named), len(column_of)), np.float32)
    for row, names in enumerate(named):
        ones[row, [column_of[name] for name in names]] = 1
    return ones


class Recommender(nn.Module):
    """Model of users by ratings, and of movies by genres, raters and ages; scores are products."""

    def __init__(self, num_movies: int, num_genres: int, width: int = 32) -> None:
        """Make the layers; movies outside of training are represented by their genres only."""
        super().__init__()
        self.movie = nn.Embedding(num_movies, width)
        nn.init.zeros_(self.movie.weight)
        self.genres = nn.Linear(num_genres, width)
        self.to_user = Gather(width, num_values=2)
        self.to_movie = Gather(width, num_values=2)
        self.bias = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, batch: HeteroData, link_times: Tensor) -> tuple[Tensor, Tensor]:
        """float32[n, width] of all users, float32[n, width + 1] of all movies; the last column is a bias."""
        movies = self.movie(batch["movie"].n_id) + self.genres(batch["movie"].genres)
        edges, of_link = batch[RATED_BY], batch["user"].batch
        users = self.to_user(movies, edges.edge_index, edge_values(edges, link_times[of_link]), len(of_link))
        edges, of_link = batch[RATES], batch["movie"].batch
        raters = self.to_movie(users, edges.edge_index, edge_values(edges, link_times[of_link]), len(of_link))
        movies = movies + raters
        return users, torch.cat([movies, self.bias(movies)], dim=1)


def edge_values(edges: EdgeStorage, now: Tensor) -> Tensor:
    """float32[num_edges, 2], rating and age of each edge; ``now`` is int64[destinations]."""
    return torch.stack([edges.rating - 3.5, log_age(edges.time, now[edges.edge_index[1]])], dim=1)


def scores_of(users: Tensor, movies: Tensor) -> Tensor:
    """One score per pair of rows; movies may have another dimension in the middle."""
    return (users * movies[..., :-1]).sum(dim=-1) + movies[..., -1]


def link_loader(source: Path, links: LinksLike, **options: Any) -> hopstream.LinkNeighborLoader:
    """Load links with the latest earlier ratings of both ends."""
    return hopstream.LinkNeighborLoader(
        source,
        {RATED_BY: [20, 5], RATES: [10, 0]},
        (RATES, links),
        batch_size=BATCH_SIZE,
        time_attr="time",
        temporal_strategy="last",
        time_inclusive=False,
        edge_keys=False,
        **options,
    )


def train(source: Path, num_movies: int, num_epochs: int, rng_seed: int) -> Recommender:
    """Train a model to score rated movies above random ones."""
    torch.manual_seed(rng_seed)
    with link_loader(
        source, "train", neg_sampling="triplet", node_features={"movie": ["genres"]}, shuffle=True, rng_seed=rng_seed
    ) as loader:
        (num_genres,) = loader.schema.feature("movie", "genres").shape
        model = Recommender(num_movies, num_genres)
        optimizer = torch.optim.Adam(model.parameters(), 5e-3)
        for _ in range(num_epochs):
            for batch in loader:
                users, movies = model(batch, batch["user"].seed_time)
                chosen = users[batch["user"].src_index]
                positive = scores_of(chosen, movies[batch["movie"].dst_pos_index])
                negative = scores_of(chosen, movies[batch["movie"].dst_neg_index])
                loss = F.softplus(negative - positive).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return model.eval()


@dataclass(frozen=True)
class Tested:
    """Test results of later ratings.

    Attributes:
        movie_keys: int64[n, 1 + NEGATIVES_PER_TEST]: the rated movie, then random ones.
        times: int64[n], time of the rating.
        scores: float32[n, 1 + NEGATIVES_PER_TEST], scores of the model.
    """

    movie_keys: np.ndarray
    times: np.ndarray
    scores: np.ndarray


@torch.no_grad()
def test(model: Recommender, source: Path) -> Tested:
    """Score the movies of later ratings, and random ones for the same users."""
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    negatives = hopstream.NegativeSampling("triplet", NEGATIVES_PER_TEST)
    with link_loader(source, "test", neg_sampling=negatives, node_features={"movie": ["genres"]}) as loader:
        for batch in loader:
            chosen, times = batch["movie"], batch["user"].seed_time
            users, movies = model(batch, times)
            slots = torch.cat([chosen.dst_pos_index[:, None], chosen.dst_neg_index], dim=1)
            scores = scores_of(users[batch["user"].src_index][:, None], movies[slots])
            found.append((chosen.n_id[slots], times, scores))
    return Tested(*(torch.cat(parts).numpy() for parts in zip(*found, strict=True)))


def popularity(graph: Graph, movie_keys: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Number of ratings of each movie before a time in seconds."""
    rates = graph.edges[RATES]
    # One ascending number per movie and time; times take 40 bits.
    ratings = np.sort((rates.dst_keys << 40) + np.asarray(rates.features["time"]))
    return np.searchsorted(ratings, (movie_keys << 40) + before) - np.searchsorted(ratings, movie_keys << 40)


@torch.no_grad()
def recommend(model: Recommender, source: Path, user_key: int, movie_keys: np.ndarray, now: int) -> list[str]:
    """Titles of the movies with the highest scores for a user."""
    scores: list[Tensor] = []
    titles: list[str] = []
    links = (np.full(len(movie_keys), user_key), movie_keys)
    times = np.full(len(movie_keys), now)
    with link_loader(source, links, edge_label_time=times, node_features={"movie": ["genres", "title"]}) as loader:
        for batch in loader:
            users, movies = model(batch, batch[RATES].edge_label_time)
            user_slots, movie_slots = batch[RATES].edge_label_index
            scores.append(scores_of(users[user_slots], movies[movie_slots]))
            titles += [batch["movie"].title[slot] for slot in movie_slots]
    return [titles[place] for place in torch.cat(scores).topk(min(NUM_SHOWN, len(titles))).indices]


def show_recommended(model: Recommender, source: Path, graph: Graph) -> None:
    """Print the last liked movies of the last user in the data, and recommended ones."""
    rates = graph.edges[RATES]
    users, movies = rates.src_keys, rates.dst_keys
    times, ratings = np.asarray(rates.features["time"]), np.asarray(rates.features["rating"])
    user_key = int(users[times.argmax()])
    own = np.flatnonzero(users == user_key)
    liked = own[np.lexsort((times[own], ratings[own]))][-NUM_SHOWN:]
    titles = list(graph.nodes["movie"].features["title"])
    num_ratings = np.bincount(movies)
    unseen = np.setdiff1d(np.flatnonzero(num_ratings >= MIN_RATINGS), movies[own])
    found = recommend(model, source, user_key, unseen, int(times.max()) + 1)
    user = graph.nodes["user"].features["id"][user_key]
    print(stage_line("user", f"{user} liked {'; '.join(titles[key] for key in movies[liked])}"))
    print(stage_line("recommend", "; ".join(found)))


def main() -> int:
    """Run the example; return 0 if the model is better than chance and popularity."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where movies.csv and ratings.csv are")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rng-seed", type=int, default=0)
    values = parser.parse_args()
    torch.set_num_threads(1)  # servers and the loader need the other cores
    with TemporaryDirectory(prefix="hopstream-movielens-") as name:
        parts = Path(name) / "parts"
        graph = read_movielens(values.folder)
        splits, rates = graph.edge_splits[RATES], graph.edges[RATES]
        num_users, num_movies = graph.nodes["user"].num_nodes, graph.nodes["movie"].num_nodes
        print(stage_line("read", f"{num_users:,} users, {num_movies:,} movies, {rates.num_edges:,} ratings"))
        hopstream.write_parts(graph, parts, num_parts=2, time_attr="time")
        with served(parts) as cluster:
            started = time.perf_counter()
            model = train(cluster, num_movies, values.epochs, values.rng_seed)
            trained = time.perf_counter()
            print(stage_line("train", f"{values.epochs} epochs from 2 servers", trained - started))
            tested = test(model, cluster)
            print(stage_line("test", f"{len(splits['test']):,} later ratings", time.perf_counter() - trained))
            show_recommended(model, cluster, graph)
    start = np.asarray(rates.features["time"])[splits["test"]].min()
    found, *baselines = (
        share_in_order(scores[:, 0], scores[:, 1:])
        for scores in (
            tested.scores,
            popularity(graph, tested.movie_keys, start),
            popularity(graph, tested.movie_keys, tested.times[:, None]),
        )
    )
    known = "popularity in training {:.3f}, until that moment {:.3f}".format(*baselines)
    print(stage_line("result", f"AUC {found:.3f}; {known}; chance 0.500"))
    return 0 if found > max(*baselines, 0.5) else 1


if __name__ == "__main__":
    sys.exit(main())
