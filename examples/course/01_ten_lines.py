"""Reads Cora, writes it as parts and draws one batch, in about ten lines.

    python examples/course/01_ten_lines.py [FOLDER]

A batch starts from four seeds, draws up to four neighbours of each (hop 1), and up to two neighbours of each of these
(hop 2). The picture shows its nodes with their keys. Arrows lead from a drawn neighbour to the node that it was drawn
for, as messages of a model do. Where an arrow has two heads, each end was drawn for the other.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import plots

import hopstream

CORA = Path(__file__).parents[1] / "data" / "cora.npz"

with TemporaryDirectory() as parts:
    graph = hopstream.read_graph(CORA)
    hopstream.write_parts(graph, parts, num_parts=2, overwrite=True)
    with hopstream.NeighborLoader(parts, [4, 2], seeds="train", batch_size=4, shuffle=True) as loader:
        batch = next(iter(loader))
print(batch)
print("seeds     ", batch.n_id[: batch.batch_size].tolist())
assert batch.batch_size == 4 and batch.x.shape == (batch.num_nodes, 1433)
plots.draw_batch(batch, __file__)
