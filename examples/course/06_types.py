"""Loads batches of a graph with users, movies and genres, with a fan-out per edge type.

    python examples/course/06_types.py [FOLDER]

The graph comes from arrays that a fixed seed draws. Batches are PyG's HeteroData. Seeds are movies: hop 1 draws the users
who rated them and their genres, hop 2 the other movies of these users. The picture counts a batch's nodes and edges of
each type by hop.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import plots

import hopstream

RATES, RATED_BY, HAS = ("user", "rates", "movie"), ("movie", "rev_rates", "user"), ("genre", "of", "movie")
NUM_USERS, NUM_MOVIES, NUM_GENRES = 500, 200, 8
FAN_OUTS = {RATES: [6, 0], HAS: [2, 2], RATED_BY: [0, 4]}  # edges lead towards the seeds

rng = np.random.default_rng(0)
users, movies = rng.integers(0, NUM_USERS, 5000), rng.integers(0, NUM_MOVIES, 5000)
stars = rng.integers(1, 6, 5000)
graph = hopstream.graph_from_arrays(
    {
        RATES: (users, movies),
        RATED_BY: (movies, users),  # sampling needs the way back from users to movies
        HAS: (rng.integers(0, NUM_GENRES, 2 * NUM_MOVIES), np.repeat(np.arange(NUM_MOVIES), 2)),
    },
    num_nodes={"user": NUM_USERS, "movie": NUM_MOVIES, "genre": NUM_GENRES},
    node_features={"movie": {"x": rng.standard_normal((NUM_MOVIES, 16), np.float32)}},
    edge_features={RATES: {"stars": stars}},
    splits={"movie": {"train": np.arange(150)}},
)
with TemporaryDirectory() as folder:
    parts = Path(folder) / "movies"
    hopstream.write_parts(graph, parts, num_parts=2)
    with hopstream.NeighborLoader(parts, FAN_OUTS, seeds=("movie", "train"), batch_size=16, shuffle=True) as loader:
        batch = next(iter(loader))
print(batch)

# A batch holds positions; `n_id` leads back to keys, and `e_id` to the edges in the arrays above.
src, dst = batch[RATES].edge_index
edges = batch[RATES].e_id
assert np.array_equal(users[edges], batch["user"].n_id[src])
assert np.array_equal(movies[edges], batch["movie"].n_id[dst])
assert np.array_equal(stars[edges], batch[RATES].stars)
assert batch["movie"].batch_size == 16 and batch["movie"].x.shape == (batch["movie"].num_nodes, 16)

figure, axes = plots.panels("Nodes of one batch", "Edges of one batch", width=10.0)
nodes = {name: batch[name].num_sampled_nodes for name in ("movie", "user", "genre")}
edges = {f"{a} {b}\n{c}": [0, *batch[a, b, c].num_sampled_edges] for a, b, c in (RATES, HAS, RATED_BY)}
for axis, counts in zip(axes, (nodes, edges), strict=True):
    start = np.zeros(len(counts))
    for hop, colour in enumerate((plots.RED, plots.ORANGE, plots.BLUE)):
        sizes = np.array([int(row[hop]) for row in counts.values()])
        label = "seeds" if hop == 0 else f"hop {hop}"
        bars = axis.barh(list(counts), sizes, left=start, color=colour, height=0.6, label=label if sizes.any() else None)
        axis.bar_label(bars, [str(size) if size else "" for size in sizes], label_type="center", color="white")
        start += sizes
        print(f"{label:<6}  {dict(zip(counts, sizes.tolist(), strict=True))}")
    axis.invert_yaxis()
    axis.grid(visible=False)
    axis.legend(loc="lower right")
plots.save(figure, __file__)
