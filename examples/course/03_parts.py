"""Cuts Cora into four parts by hash, METIS and KaMinPar, and compares the cuts.

    python examples/course/03_parts.py [FOLDER]

The method decides how many edges join different parts, and how many bytes each part holds. It does not decide what a
model sees: batches are equal, bit for bit. The script asserts this and fails unless METIS and KaMinPar cut less than a
quarter of what hash cuts.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import plots

import hopstream

CORA = Path(__file__).parents[1] / "data" / "cora.npz"
METHODS = {"hash": plots.GREY, "metis": plots.ORANGE, "kaminpar": plots.BLUE}
NUM_PARTS = 4


def contents(parts: Path) -> list[tuple[bytes, ...]]:
    """Bytes of the keys, edges and features of an epoch's batches."""
    with hopstream.NeighborLoader(parts, [10, 5], seeds="train", batch_size=32, shuffle=True) as loader:
        return [tuple(batch[name].numpy().tobytes() for name in ("n_id", "edge_index", "x")) for batch in loader]


graph = hopstream.read_graph(CORA)
reports, batches = {}, {}
with TemporaryDirectory() as folder:
    for method in METHODS:
        parts = Path(folder) / method
        report = hopstream.write_parts(graph, parts, num_parts=NUM_PARTS, method=method).report
        reports[method], batches[method] = report, contents(parts)
        sizes = ", ".join(f"{size / 1e6:.2f}" for size in report.bytes)
        print(f"{method:<9}  {report.cut.fraction:6.1%} of {report.cut.num_edges:,} edges cut; parts of {sizes} MB")
assert batches["hash"] == batches["metis"] == batches["kaminpar"]
assert all(reports[name].cut.num_cut < reports["hash"].cut.num_cut / 4 for name in ("metis", "kaminpar"))

figure, (left, right) = plots.panels("Edges between parts", "Size of each part")
shares = [100 * report.cut.fraction for report in reports.values()]
bars = left.bar(list(METHODS), shares, color=list(METHODS.values()))
left.bar_label(bars, fmt="%.1f %%", padding=2)
left.set(ylabel="% of edges", ylim=(0, 90))
for place, (method, colour) in enumerate(METHODS.items()):
    offsets = [part + 0.27 * (place - 1) for part in range(NUM_PARTS)]
    right.bar(offsets, [size / 1e6 for size in reports[method].bytes], 0.25, color=colour, label=method)
right.set(ylabel="MB", ylim=(0, 5.5), xticks=range(NUM_PARTS), xticklabels=[f"part {p}" for p in range(NUM_PARTS)])
right.legend(loc="upper center", ncols=3, columnspacing=1.2)
plots.save(figure, __file__)
