"""Runs all benchmarks, and writes their figures to a file and to the README.

Results are written to ``benchmarks/results/rmat-<scale>.json``; results of a subset of cases to ``…-partial.json``. At
the design scale, a full run also writes the README's tables.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.harness import (
    DESIGN_SCALE,
    NUM_FEATURES,
    ROOT,
    Options,
    add_options,
    describe_machine,
    run_case,
    to_options,
)
from benchmarks.prepare import is_prepared
from benchmarks.table import write_tables

RESULTS = ROOT / "benchmarks" / "results"
PREPARE = "prepare"
PEERS = {"graphbolt": "benchmarks/peers/graphbolt.py", "graphlearn": "benchmarks/peers/graphlearn.py"}
LOADING_CORES = {
    "loader": 1, "loader-2-threads": 2, "two_trainers": 2, "two_trainers-cached": 2, "two_trainers-sampled": 2,
}  # fmt: skip
"""Number of cores of the cases that load whole batches."""
CACHED = ("--cache=0.05", "--warmups=30")
QUIET_SHARE = 0.03
"""A case is repeated, while attempts are left, if other processes took more than this share of the cores."""
Result = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """One case of a run: name, command line and interpreter."""

    name: str
    arguments: tuple[str, ...]
    python: str = sys.executable


def plan_cases(options: Options, peer_pythons: Sequence[str]) -> list[Plan]:
    """All cases in order; peers follow the cases that they are compared with."""

    def case(module: str, num_threads: int = 1, more: Sequence[str] = (), suffix: str = "") -> Plan:
        arguments = replace(options, num_threads=num_threads).to_arguments()
        suffix = suffix or (f"-{num_threads}-threads" if num_threads > 1 else "")
        return Plan(module + suffix, ("-m", f"benchmarks.{module}", *arguments, *more))

    plans = [
        case(PREPARE),
        case("partition"),
        case("sampling"),
        case("gather"),
        case("loader"),
        case("loader", 2),
        case("wire"),
        case("two_trainers"),
        case("two_trainers", more=CACHED, suffix="-cached"),
        case("two_trainers", more=(*CACHED, "--sampled"), suffix="-sampled"),
        case("streaming"),
        case("modes"),
        case("links"),
        case("walks"),
        case("ppr"),
        case("export"),
    ]
    for peer_python in peer_pythons:
        name, _, python = peer_python.partition("=")
        if name not in PEERS or not Path(python).is_file():
            raise SystemExit(f"error: --peer {peer_python}: give NAME=PYTHON, NAME out of {', '.join(PEERS)}")
        plans.append(Plan(f"peer-{name}", (PEERS[name], *options.to_arguments()), python))
    return plans


def run_all(options: Options, plans: Sequence[Plan], num_attempts: int) -> Result:
    """Run the cases one after the other, each in a fresh process, the probes first and last."""
    result: Result = {"made_at": time.strftime("%Y-%m-%d %H:%M:%S %z"), "machine": describe_machine()}
    result["scale"] = options.scale
    result["probes"] = [_run(Plan("probes", ("-m", "benchmarks.probes")))["figures"]]
    result["cases"] = {}
    for plan in plans:
        result["cases"][plan.name] = _run(plan, num_attempts)
    result["probes"].append(_run(Plan("probes", ("-m", "benchmarks.probes")))["figures"])
    for name, case in result["cases"].items():
        if (share := share_of_limit(name, case["figures"], result["probes"])) is not None:
            case["figures"]["share_of_limit"] = share
    return result


def share_of_limit(name: str, figures: Mapping[str, float], probes: Sequence[Mapping[str, float]]) -> float | None:
    """Share of the memory-bound limit that a case reached; None for cases without this limit.

    The limit of a batch is one independent random read per edge and one copy of its rows, at the probed speeds of the
    same run, on all cores of the case. A program that does nothing else would reach 1.0.
    """
    read_ns = statistics.mean(probe["independent_read_ns"] for probe in probes)
    copy_gb_per_s = statistics.mean(probe["memcpy_gb_per_s"] for probe in probes)
    row_ms = 4 * NUM_FEATURES / copy_gb_per_s / 1e6
    read_ms = figures.get("edges_per_batch", 0) * read_ns / 1e6
    if name == "sampling":
        limit_ms = read_ms
    elif name == "gather":
        limit_ms = figures["rows_per_batch"] * row_ms
    elif name in LOADING_CORES:
        limit_ms = (read_ms + figures["rows_per_batch"] * row_ms) / LOADING_CORES[name]
    else:
        return None
    return limit_ms / figures["ms_per_batch"]


def _run(plan: Plan, num_attempts: int = 1) -> Result:
    """Run a case, and repeat it while other processes disturb it; return the least disturbed attempt."""
    records: list[Result] = []
    while len(records) < num_attempts and not (records and records[-1]["others_share"] <= QUIET_SHARE):
        started = time.perf_counter()
        records.append(run_case(plan.arguments, python=plan.python))
        shown = "  ".join(f"{name} {show(value)}" for name, value in records[-1]["figures"].items())
        others = f"{records[-1]['others_share']:.0%} of cores taken by others"
        print(f"{plan.name:<18} {shown}  ({time.perf_counter() - started:.1f} s, {others})", flush=True)
    return min(records, key=lambda record: float(record["others_share"]))


def show(value: float) -> str:
    """Format a number with three significant digits, and a letter for thousands."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):.3g} {letter}"
    return f"{value:.3g}"


def write_result(result: Result, path: Path) -> None:
    """Write a run's figures over those of the previous run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--only", nargs="*", metavar="CASE", help="cases to run, by the names that are printed")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON", help="also measure this peer")
    parser.add_argument("--attempts", type=int, default=3, help="how often a case runs while others disturb it")
    values = parser.parse_args()
    options = to_options(values)
    only = values.only and {*values.only, *([] if is_prepared(options) else [PREPARE])}
    plans = [plan for plan in plan_cases(options, values.peer) if not only or plan.name in only]
    result = run_all(options, plans, values.attempts)
    write_result(result, RESULTS / f"rmat-{options.scale}{'-partial' if only else ''}.json")
    if options.scale == DESIGN_SCALE and not values.only:
        write_tables(result, ROOT / "README.md")


if __name__ == "__main__":
    main()
