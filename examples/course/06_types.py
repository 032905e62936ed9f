"""Loads batches of a graph with users, movies and genres, with fan-outs per edge type.

    python examples/course/06_types.py [FOLDER]

Seeds are movies. Hop 1 draws users who rated them, and their genres. Hop 2 draws other movies of these users. Hop 3
draws users and genres of these movies. The picture counts the nodes and edges of one batch by type and hop.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import plots
from movies import HAS, RATED_BY, RATES, make_movies

import hopstream

FAN_OUTS = {RATES: [6, 0, 2], HAS: [-1, 0, -1], RATED_BY: [0, 3, 0]}  # one number per hop; -1 draws all

graph = make_movies()
with TemporaryDirectory() as folder:
    parts = Path(folder) / "movies"
    hopstream.write_parts(graph, parts, num_parts=2)
    with hopstream.NeighborLoader(parts, FAN_OUTS, seeds=("movie", "train"), batch_size=8, shuffle=True) as loader:
        batch = next(iter(loader))
print(batch)

# `edge_index` holds positions in the batch, `n_id` the nodes' keys, and `e_id` the edges' positions in your arrays.
assert batch["movie"].batch_size == 8 and batch["movie"].x.shape == (batch["movie"].num_nodes, 6)
for edge_type in (RATES, HAS, RATED_BY):
    (src, dst), edges = batch[edge_type].edge_index, batch[edge_type].e_id
    assert np.array_equal(batch[edge_type[0]].n_id[src], graph.edges[edge_type].src_keys[edges])
    assert np.array_equal(batch[edge_type[2]].n_id[dst], graph.edges[edge_type].dst_keys[edges])
assert np.array_equal(batch[RATES].time, graph.edges[RATES].features["time"][batch[RATES].e_id])

figure, axes = plots.panels("Nodes of one batch, by type", "Edges of one batch, by type", width=10.0, height=4.6)
nodes = {name: batch[name].num_sampled_nodes for name in ("movie", "user", "genre")}
edges = {" ".join(name): [0, *batch[name].num_sampled_edges] for name in (RATED_BY, RATES, HAS)}
colours = {"seeds": plots.RED, "hop 1": plots.ORANGE, "hop 2": plots.BLUE, "hop 3": plots.GREEN}
for axis, counts in zip(axes, (nodes, edges), strict=True):
    start = np.zeros(len(counts), int)
    for hop, (label, colour) in enumerate(colours.items()):
        sizes = np.array([int(row[hop]) for row in counts.values()])
        print(f"{label}  {dict(zip(counts, sizes.tolist(), strict=True))}")
        bars = axis.bar(range(len(counts)), sizes, bottom=start, color=colour, width=0.6)
        axis.bar_label(bars, [n if n > 20 else "" for n in sizes], label_type="center", color="white")
        start += sizes
    axis.bar_label(bars, [f"{n} in total" for n in start], padding=2)
    axis.set_xticks(range(len(counts)), [name.replace(" ", "\n") for name in counts])
    axis.grid(visible=False)
    axis.margins(y=0.12)
handles = [axes[0].bar(0, 0, color=colour, label=label) for label, colour in colours.items()]
figure.legend(handles=handles, loc="outside lower center", ncols=4)
plots.save(figure, __file__)
