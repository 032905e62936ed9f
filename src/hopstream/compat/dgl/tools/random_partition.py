"""Random assignment of a chunked graph's nodes to parts, with the flags of ``random_partition.py``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from hopstream.assign.owners import META
from hopstream.assign.run import assign_folder
from hopstream.compat.dgl.tools.command import DONE, Flags, run_tool, say
from hopstream.ingest.chunked import open_chunked


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tool; return its exit status."""
    flags = Flags("random_partition", "Put each node of a chunked graph into a random part.")
    flags.add_argument("--in_dir", type=Path, required=True, help="folder of the chunked graph, with metadata.json")
    flags.add_argument("--out_dir", type=Path, required=True, help="folder to write <node type>.txt to")
    flags.add_argument("--num_partitions", type=int, required=True, help="number of parts")
    flags.add_argument("--rng_seed", type=int, default=0, help="seed of the random choice (not in DGL)")
    flags.add_argument("--overwrite", action="store_true", help="replace existing files (not in DGL)")
    return run_tool(_run, flags, arguments)


def _run(given: argparse.Namespace) -> int:
    found = assign_folder(
        open_chunked(given.in_dir), given.out_dir, num_parts=given.num_partitions, method="random",
        rng_seed=given.rng_seed, overwrite=given.overwrite,
    )  # fmt: skip
    for node_type, owner in found.owners.items():
        say("assign", f"{len(owner)} nodes of {node_type} to {given.num_partitions} parts")
    say("done", str(given.out_dir / META))
    return DONE


if __name__ == "__main__":
    sys.exit(main())
