"""Trains on a generated R-MAT graph of any size.

    python examples/rmat_train.py                # 16 thousand nodes: seconds
    python examples/rmat_train.py --scale 21     # 2 million nodes and 67 million edges

An R-MAT graph has degrees as skewed as real graphs. Its labels follow its communities, so they are best predicted from
neighbourhoods.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from sage import Settings, stage_line, train_and_evaluate

import hopstream

NUM_FEATURES, NUM_CLASSES = 32, 8


def main() -> int:
    """Make the graph, partition it and train on it; return 0 if the accuracy is above twice chance."""
    parser = argparse.ArgumentParser(description="Train GraphSAGE on a synthetic R-MAT graph.")
    parser.add_argument("--scale", type=int, default=14, help="the graph has 2**scale nodes")
    parser.add_argument("--edges-per-node", type=int, default=32)
    parser.add_argument("--parts", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where to keep the parts; a temporary folder if it is not given")
    arguments = parser.parse_args()

    with TemporaryDirectory() as temporary:
        parts = (arguments.folder or Path(temporary)) / f"rmat-{arguments.scale}"
        started = time.perf_counter()
        graph = hopstream.rmat_graph(
            arguments.scale, edges_per_node=arguments.edges_per_node, num_features=NUM_FEATURES, num_classes=NUM_CLASSES
        )
        made = time.perf_counter()
        num_nodes, num_edges = graph.nodes["node"].num_nodes, graph.edges["node", "to", "node"].num_edges
        print(stage_line("make", f"{num_nodes:,} nodes, {num_edges:,} edges", made - started), flush=True)

        manifest = hopstream.write_parts(graph, parts, num_parts=arguments.parts, method="kaminpar", overwrite=True)
        cut = f"{arguments.parts} parts, {manifest.report.cut.fraction:.1%} of edges cut"
        print(stage_line("partition", cut, time.perf_counter() - made), flush=True)

        settings = Settings(
            num_classes=NUM_CLASSES, num_neighbors=(15, 10), test_neighbors=(15, 10), batch_size=1024,
            num_epochs=arguments.epochs, dropout=0.2,
        )  # fmt: skip
        outcome = train_and_evaluate(parts, settings, rng_seed=0)
    print(stage_line("train", f"{outcome}; guessing gives {1 / NUM_CLASSES:.3f}", outcome.seconds))
    return 0 if outcome.accuracy > 2 / NUM_CLASSES else 1


if __name__ == "__main__":
    sys.exit(main())
