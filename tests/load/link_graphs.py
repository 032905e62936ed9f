"""Graphs that tests of links share."""

from __future__ import annotations

import numpy as np

from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.schema import EDGE, NODE

RATES, RATED = ("user", "rates", "movie"), ("movie", "rev_rates", "user")
LIKES, FOLLOWS = ("user", "likes", "movie"), ("user", "follows", "user")


def make_small_graph() -> Graph:
    """Six nodes with edges 0 → 1, 2 → 1, 3 → 0, 4 → 3, 5 → 2 and 1 → 0.

    Split "test" has edges 0 and 3.
    """
    return Graph(
        nodes={NODE: NodeTable(num_nodes=6)},
        edges={EDGE: EdgeTable(src_keys=np.array([0, 2, 3, 4, 5, 1]), dst_keys=np.array([1, 1, 0, 3, 2, 0]))},
        edge_splits={EDGE: {"test": np.array([0, 3])}},
    ).check()


def make_rating_graph(rng: np.random.Generator, num_users: int = 40, num_movies: int = 60) -> Graph:
    """Graph of users who rate movies; only ratings have a reverse type and times.

    The time of a user is random. The time of a movie is that of its first rating.
    """
    num_ratings = 8 * num_users
    users = rng.integers(0, num_users, num_ratings)
    movies = (rng.random(num_ratings) ** 2 * num_movies).astype(np.int64)
    times = rng.integers(0, 1000, num_ratings)
    first_rated = np.full(num_movies, 1000)
    np.minimum.at(first_rated, movies, times)
    ratings = {"time": times, "stars": rng.integers(1, 6, num_ratings).astype(np.float32)}
    return Graph(
        nodes={
            "user": NodeTable(num_nodes=num_users, features={"time": rng.integers(0, 300, num_users)}),
            "movie": NodeTable(
                num_nodes=num_movies,
                features={"time": first_rated, "x": rng.standard_normal((num_movies, 3)).astype(np.float32)},
            ),
        },
        edges={
            RATES: EdgeTable(src_keys=users, dst_keys=movies, features=ratings),
            RATED: EdgeTable(src_keys=movies, dst_keys=users, features=ratings),
            LIKES: EdgeTable(
                src_keys=rng.integers(0, num_users, num_users), dst_keys=rng.integers(0, num_movies, num_users)
            ),
            FOLLOWS: EdgeTable(
                src_keys=rng.integers(0, num_users, num_users), dst_keys=rng.integers(0, num_users, num_users)
            ),
        },
        edge_splits={RATES: {"train": np.arange(0, num_ratings, 3), "val": np.arange(1, num_ratings, 3)}},
    ).check()
