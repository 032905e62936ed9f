"""Are parts those of the chunked graph and of the owners, with the flags of DGL's ``verify_partitions.py``?"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from hopstream.compat.dgl.tools.command import DONE, LOG_LEVELS, OUR_FAULT, Flags, run_tool, say
from hopstream.ingest.chunked import open_chunked
from hopstream.partition.audit.run import verify_dataset


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tool; return its exit status, 1 where something is wrong."""
    flags = Flags("verify_partitions", "Compare parts with the chunked graph and the owners that they were made of.")
    flags.add_argument("--orig-dataset-dir", type=Path, required=True, help="folder of the chunked graph")
    flags.add_argument("--part-graph-dir", "--part-graph", type=Path, required=True, help="folder of the dataset")
    flags.add_argument("--partitions-dir", type=Path, required=True, help="folder with the part of each node")
    flags.add_argument("--log-level", type=str.upper, default="INFO", choices=("NOTSET", *LOG_LEVELS),
                       help="above INFO nothing is said but what is wrong")  # fmt: skip
    return run_tool(_run, flags, arguments)


def _run(given: argparse.Namespace) -> int:
    report = verify_dataset(
        given.part_graph_dir, against=open_chunked(given.orig_dataset_dir), owners=given.partitions_dir
    )
    if given.log_level in ("NOTSET", "DEBUG", "INFO"):
        for kind, check in report.checks.items():
            say(check.status, f"{kind:<10} {check.num_checked} checked, {check.num_wrong} wrong")
    for finding in report.findings:
        say("wrong", str(finding))
    if report.num_left_out:
        say("wrong", f"{report.num_left_out} more")
    return DONE if report.is_ok else OUR_FAULT


if __name__ == "__main__":
    sys.exit(main())
