"""Verifier of parts against a chunked graph and owners, with the flags of ``verify_partitions.py``.

The parts are a dataset's, in DGL's files, or both in one folder.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from hopstream.compat.dgl.tools.command import DONE, JSON_STEM, LOG_LEVELS, OUR_FAULT, Flags, run_tool, say
from hopstream.compat.dgl.verifying import verify_part_files
from hopstream.dataset.paths import MANIFEST
from hopstream.ingest.chunked import open_chunked
from hopstream.ingest.source_paths import is_dgl_config
from hopstream.preparation.audit.report import NOTHING, VerifyReport
from hopstream.preparation.audit.run import verify_dataset


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tool; return its exit status, 1 if the parts differ from the source."""
    flags = Flags("verify_partitions", "Compare parts with the chunked graph and the owners that they were made of.")
    flags.add_argument("--orig-dataset-dir", type=Path, required=True, help="folder of the chunked graph")
    flags.add_argument("--part-graph-dir", "--part-graph", type=Path, required=True, help="folder of the parts")
    flags.add_argument("--partitions-dir", type=Path, required=True, help="folder with the part of each node")
    flags.add_argument("--log-level", type=str.upper, default="INFO", choices=("NOTSET", *LOG_LEVELS),
                       help="above INFO only errors are printed")  # fmt: skip
    return run_tool(_run, flags, arguments)


def _run(given: argparse.Namespace) -> int:
    folder, source = given.part_graph_dir, open_chunked(given.orig_dataset_dir)
    configs = _part_configs(folder)
    reports = []
    if (folder / MANIFEST).exists() or not configs or any(folder.glob("part-?????")):
        reports.append((folder / MANIFEST, verify_dataset(folder, against=source, owners=given.partitions_dir)))
    reports += [(path, verify_part_files(path, against=source, owners=given.partitions_dir)) for path in configs]
    for path, report in reports:
        _tell(path, report, is_quiet=given.log_level not in ("NOTSET", "DEBUG", "INFO"))
    return DONE if all(report.is_ok for _, report in reports) else OUR_FAULT


def _part_configs(folder: Path) -> list[Path]:
    """Return the JSON files of DGL's parts, or the expected one if the folder has only the parts."""
    found = sorted(path for path in folder.glob("*.json") if is_dgl_config(path))
    return found or [folder / f"{JSON_STEM}.json"] * any(folder.glob("part[0-9]*/graph.dgl"))


def _tell(path: Path, report: VerifyReport, *, is_quiet: bool) -> None:
    """Print what was verified, what is wrong, and which of DGL's files could not be compared."""
    if not is_quiet:
        say("verify", str(path))
        for kind, check in report.checks.items():
            if check.status != "skipped" or path.name == MANIFEST:
                say(check.status, f"{kind:<10} {check.num_checked} checked, {check.num_wrong} wrong")
            for why in check.skipped if path.name != MANIFEST else ():
                if why != NOTHING:
                    say("skipped", f"{kind:<10} {why}")
    for finding in report.findings:
        say("wrong", str(finding))
    if report.num_left_out:
        say("wrong", f"{report.num_left_out} more")


if __name__ == "__main__":
    sys.exit(main())
