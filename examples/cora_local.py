"""Trains in one process on a folder of parts, without servers.

    python examples/cora_local.py                # makes the parts in a temporary folder
    python examples/cora_local.py parts/cora     # uses existing parts

Only the source differs from ``cora_ddp.py``: a folder instead of a ``cluster.json``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from sage import Settings, train_repeatedly

import hopstream

CORA = Path(__file__).parent / "data" / "cora.npz"


def main() -> int:
    """Train on Cora; return 0 if the accuracy is high enough."""
    parser = argparse.ArgumentParser(description="Train GraphSAGE on Cora in one process.")
    parser.add_argument("parts", nargs="?", type=Path, help="a folder of parts; made if it is not given")
    parser.add_argument("--runs", type=int, default=3, help="trainings, each with its own rng seed")
    parser.add_argument("--epochs", type=int, default=Settings.num_epochs)
    parser.add_argument("--wanted", type=float, default=0.78, help="mean test accuracy below which the script fails")
    arguments = parser.parse_args()

    torch.set_num_threads(1)  # Cora's matrices are small: threads would wait for each other longer than they compute
    with TemporaryDirectory() as folder:
        parts = arguments.parts
        if parts is None:
            parts = Path(folder) / "cora"
            hopstream.write_parts(hopstream.read_graph(CORA), parts, num_parts=4, method="kaminpar")
        is_as_wanted = train_repeatedly(
            parts, Settings(num_classes=7, num_epochs=arguments.epochs),
            num_runs=arguments.runs, wanted=arguments.wanted, report=print,
        )  # fmt: skip
    return 0 if is_as_wanted else 1


if __name__ == "__main__":
    sys.exit(main())
