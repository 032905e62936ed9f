"""Graph with every kind of time, weights, and edge types with and without a reverse."""

from __future__ import annotations

import numpy as np

from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.schema import EdgeType

RATES, RATED = ("user", "rates", "item"), ("item", "rev_rates", "user")
LIKES, FOLLOWS = ("item", "like", "item"), ("user", "follows", "user")
LAST_TIME = 20


def make_timed_graph(rng: np.random.Generator, num_users: int = 30, num_items: int = 40) -> Graph:
    """Users who rate items and follow each other; with parallel edges, self loops, ties and zero weights.

    Items have a ``time``, users have none. Ratings have a ``time`` and a ``weight`` of their own; their reverses miss a
    third of them and have times of their own; likeness between items has no time of its own; who follows whom has a
    weight and no time at all.
    """
    num_ratings = 6 * num_users
    users, items = rng.integers(0, num_users, num_ratings), rng.integers(0, num_items, num_ratings)
    kept = np.flatnonzero(rng.random(num_ratings) < 0.67)

    def ends(num_sources: int, num_edges: int) -> dict[str, np.ndarray]:
        return {
            "src_keys": rng.integers(0, num_sources, num_edges),
            "dst_keys": rng.integers(0, num_sources - 2, num_edges),
        }

    def weights(num_edges: int) -> np.ndarray:
        return rng.choice([0.0, 0.5, 1.0, 2.5], num_edges).astype(np.float32)

    edges: dict[EdgeType, EdgeTable] = {
        RATES: EdgeTable(
            src_keys=users,
            dst_keys=items,
            features={"time": rng.integers(0, LAST_TIME, num_ratings), "weight": weights(num_ratings)},
        ),
        RATED: EdgeTable(
            src_keys=items[kept],
            dst_keys=users[kept],
            features={"time": rng.integers(0, LAST_TIME, len(kept)).astype(np.int32)},
        ),
        LIKES: EdgeTable(**ends(num_items, 5 * num_items)),
        FOLLOWS: EdgeTable(**ends(num_users, 4 * num_users), features={"weight": weights(4 * num_users)}),
    }
    return Graph(
        nodes={
            "user": NodeTable(num_nodes=num_users),
            "item": NodeTable(
                num_nodes=num_items, features={"time": rng.integers(0, LAST_TIME, num_items).astype(np.int16)}
            ),
        },
        edges=edges,
    ).check()
