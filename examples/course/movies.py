"""Graph of users, movies and genres that the course draws from a fixed seed."""

from __future__ import annotations

import numpy as np

import hopstream

RATES, RATED_BY, HAS = ("user", "rates", "movie"), ("movie", "rev_rates", "user"), ("genre", "of", "movie")
NUM_USERS, NUM_MOVIES, NUM_GENRES, NUM_RATINGS, DAYS = 300, 240, 6, 9000, 1000


def make_movies() -> hopstream.Graph:
    """Draw ratings with times, split in the order of time.

    Every user likes one genre, and another one from some day on. Nine of ten ratings are of the genre that the user
    likes at the time. Sampling needs edges that lead towards the seeds, so ratings are stored in both directions.
    """
    rng = np.random.default_rng(0)
    users, times = rng.integers(0, NUM_USERS, NUM_RATINGS), rng.integers(0, DAYS, NUM_RATINGS)
    likes, change = rng.integers(0, NUM_GENRES, (NUM_USERS, 2)), rng.integers(0.3 * DAYS, 0.9 * DAYS, NUM_USERS)
    liked = likes[users, (times >= change[users]).astype(int)]
    genres = np.where(rng.random(NUM_RATINGS) < 0.9, liked, rng.integers(0, NUM_GENRES, NUM_RATINGS))
    movies = genres + NUM_GENRES * rng.integers(0, NUM_MOVIES // NUM_GENRES, NUM_RATINGS)
    genre_of = np.arange(NUM_MOVIES) % NUM_GENRES
    x = np.eye(NUM_GENRES)[genre_of] + rng.normal(0, 0.3, (NUM_MOVIES, NUM_GENRES))
    graph = hopstream.graph_from_arrays(
        {RATES: (users, movies), RATED_BY: (movies, users), HAS: (genre_of, np.arange(NUM_MOVIES))},
        num_nodes={"user": NUM_USERS, "movie": NUM_MOVIES, "genre": NUM_GENRES},
        node_features={"movie": {"x": x.astype(np.float32)}},
        edge_features={RATES: {"time": times}, RATED_BY: {"time": times}},
        splits={"movie": {"train": np.arange(NUM_MOVIES // 2)}},
    )
    return hopstream.split_links(graph, RATES, method="time", time_attr="time", val=0, test=0.1)
