"""Style of the course's pictures: figures on white, and one PNG per script."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure  # without pyplot, figures need no display and need no close
from PIL import Image

if TYPE_CHECKING:
    from torch_geometric.data import Data

BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#8A8A8A"
"""Colours of Okabe and Ito, which colour-blind readers can tell apart."""
STYLE = {
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "font.size": 12,
    "grid.color": "#E0E0E0",
    "legend.frameon": False,
    "lines.linewidth": 2.0,
    "savefig.facecolor": "white",
}


def panels(*titles: str, width: float = 9.0, height: float = 3.8) -> tuple[Figure, list[Axes]]:
    """Make a figure with one panel per title, side by side."""
    mpl.rcParams.update(STYLE)
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(1, len(titles), squeeze=False)[0]
    for axis, title in zip(axes, titles, strict=True):
        axis.set_title(title)
    return figure, list(axes)


def save(figure: Figure, script: str) -> None:
    """Write ``NN_name.png`` to the folder in the script's first argument, by default the current one."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{Path(script).stem}.png"
    figure.savefig(path, dpi=100)
    with Image.open(path) as image:
        image.convert("RGB").quantize(64, dither=Image.Dither.NONE).save(path, optimize=True)  # a third of the bytes
    print(f"picture    {path}")


def draw_batch(batch: Data, script: str) -> None:
    """Draw a batch on rings: seeds inside, then one ring per hop; save the picture."""
    src, dst = batch.edge_index.numpy()
    stops = np.cumsum(batch.num_sampled_nodes)
    hop = np.searchsorted(stops, np.arange(batch.num_nodes), side="right")
    angle = np.zeros(batch.num_nodes)
    for ring in range(len(stops)):
        members = np.flatnonzero(hop == ring)
        # Nodes of a hop lie in the order of the nodes that they were drawn for, so that few edges cross.
        parents = [angle[dst[(src == node) & (hop[dst] < ring)]].min(initial=7.0) for node in members]
        ordered = members[np.argsort(parents, kind="stable")]
        angle[ordered] = 2 * np.pi * (np.arange(len(ordered)) + 0.5) / len(ordered)
    x, y = (hop + 0.6) * np.cos(angle), (hop + 0.6) * np.sin(angle)
    figure, (axis,) = panels(f"One batch: {batch.num_nodes} nodes, {batch.num_edges} edges", width=6.6, height=6.4)
    for a, b in zip(src, dst, strict=True):
        arrow = {"arrowstyle": "-|>", "color": GREY, "shrinkA": 11, "shrinkB": 11}
        axis.annotate("", (x[b], y[b]), (x[a], y[a]), arrowprops=arrow)
    for ring, (name, colour) in enumerate(zip(("seeds", "hop 1", "hop 2"), (RED, ORANGE, BLUE), strict=True)):
        axis.scatter(x[hop == ring], y[hop == ring], 520, colour, edgecolors="white", label=name, zorder=3)
    for node, key in enumerate(batch.n_id.tolist()):
        axis.text(x[node], y[node], key, ha="center", va="center", fontsize=8, color="white", zorder=4, weight="bold")
    axis.set_aspect("equal")
    axis.axis("off")
    axis.legend(loc="upper right", markerscale=0.6)
    save(figure, script)
