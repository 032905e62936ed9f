"""Samples in time: a neighbourhood holds no edge that is later than its seed's time.

    python examples/course/07_time.py [FOLDER]

``time_attr`` names the times of edges, and ``input_time`` gives the times of seeds. The picture has a point for every
drawn edge. Without times, nearly half of the edges are later than their seed. With times, none is.
``temporal_strategy="last"`` draws the latest of the earlier edges.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import plots
import torch

import hopstream

NUM_NODES, NUM_EDGES, DAYS = 300, 9000, 1000
rng = np.random.default_rng(0)
graph = hopstream.graph_from_arrays(
    rng.integers(0, NUM_NODES, (2, NUM_EDGES)),
    num_nodes=NUM_NODES,
    edge_features={"time": rng.integers(0, DAYS, NUM_EDGES)},
)
seeds, moments = np.arange(100), rng.integers(100, DAYS, 100)
timed = {"time_attr": "time", "input_time": moments}
ways = {
    "without times": {"disjoint": True},  # a tree per seed, as with times
    "time_attr": timed,
    'time_attr, "last"': {**timed, "temporal_strategy": "last"},
}
figure, axes = plots.panels(*ways, width=11.0, height=4.2)
shares, ages = {}, {}
with TemporaryDirectory() as folder:
    parts = Path(folder) / "timed"
    hopstream.write_parts(graph, parts, num_parts=2, time_attr="time")
    for axis, (name, options) in zip(axes, ways.items(), strict=True):
        seed_times, edge_times = [], []
        with hopstream.NeighborLoader(parts, [4, 2], seeds=seeds, batch_size=20, **options) as loader:
            for batch in loader:
                seed_of_edge = batch.batch[batch.edge_index[1]]  # the tree that an edge belongs to
                seed_times.append(torch.from_numpy(moments)[batch.input_id[seed_of_edge]])
                edge_times.append(batch.time)
                if "time_attr" in options:
                    assert batch.seed_time.tolist() == moments[batch.input_id].tolist()
        now, then = torch.cat(seed_times), torch.cat(edge_times)
        late = then > now
        shares[name], ages[name] = float(late.float().mean()), float((now - then).float().mean())
        print(f"{name:<18}  {len(now)} edges, {shares[name]:.1%} later than their seed; mean age {ages[name]:.0f} days")
        axis.plot([0, DAYS], [0, DAYS], color=plots.GREY, linewidth=1)
        axis.scatter(now[~late], then[~late], 7, plots.BLUE, label="known")
        axis.scatter(now[late], then[late], 7, plots.RED, label=f"later than the seed: {shares[name]:.0%}")
        axis.set(xlabel="time of the seed (days)", xlim=(0, DAYS), ylim=(0, 1290), yticks=range(0, 1001, 200))
        axis.legend(loc="upper left", markerscale=2, handletextpad=0.2, borderaxespad=0.2)
axes[0].set_ylabel("time of the edge (days)")
plots.save(figure, __file__)
assert shares["without times"] > 0.3 and shares["time_attr"] == shares['time_attr, "last"'] == 0
assert ages['time_attr, "last"'] < ages["time_attr"] / 2
