"""Graph with times, weights and splits of edges."""

from __future__ import annotations

import numpy as np

from hopstream.arrays import Column
from hopstream.graph.graph import EdgeTable, Graph, NodeTable

RATES, KNOWS, LIKES = ("user", "rates", "movie"), ("user", "knows", "user"), ("movie", "like", "movie")
TIME_DTYPES = (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint32, np.uint64)


def timed_graph(
    rng: np.random.Generator, *, num_users: int = 30, num_movies: int = 12, num_edges: int = 150,
    timed: tuple[object, ...] = ("user", RATES, KNOWS),
) -> Graph:  # fmt: skip
    """Graph of users who rate movies and know users, and of movies that like movies.

    Many edges have the same time, and some are parallel.

    ``time`` is a feature of the types in ``timed``, each of another dtype; ``rating`` is a weight of ``rates`` and
    ``knows``, one in five 0. Splits of ``rates``: ``train``, ``val`` and ``all``; of ``likes``: ``none``.
    """

    def times(owner: object, num_rows: int) -> dict[str, Column]:
        dtype = TIME_DTYPES[int(rng.integers(0, len(TIME_DTYPES)))]
        low = -20 if np.issubdtype(dtype, np.signedinteger) else 0
        return {"time": rng.integers(low, 20, num_rows).astype(dtype)} if owner in timed else {}

    def edges(owner: tuple[str, str, str], sizes: tuple[int, int], features: dict[str, Column]) -> EdgeTable:
        src_keys, dst_keys = (rng.integers(0, n, num_edges) for n in sizes)
        return EdgeTable(src_keys=src_keys, dst_keys=dst_keys, features={**times(owner, num_edges), **features})

    rating = rng.integers(1, 6, num_edges) * (rng.random(num_edges) < 0.8)
    closeness = rng.random(num_edges) * (rng.random(num_edges) < 0.8)
    is_train = rng.random(num_edges) < 0.7
    return Graph(
        nodes={
            "user": NodeTable(num_nodes=num_users, features=times("user", num_users)),
            "movie": NodeTable(num_nodes=num_movies, features=times("movie", num_movies)),
        },
        edges={
            RATES: edges(RATES, (num_users, num_movies), {"rating": rating.astype(np.float32)}),
            KNOWS: edges(KNOWS, (num_users, num_users), {"rating": closeness}),
            LIKES: edges(LIKES, (num_movies, num_movies), {"number": np.arange(num_edges)}),
        },
        edge_splits={
            RATES: {
                "train": np.flatnonzero(is_train), "val": np.flatnonzero(~is_train), "all": np.arange(num_edges),
            },
            LIKES: {"none": np.empty(0, np.int64)},
        },
    ).check()  # fmt: skip
