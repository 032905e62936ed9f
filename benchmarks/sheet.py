"""Compares the speed and memory of this revision and another one, as ratios from one session.

    git worktree add ../before REVISION
    python -m benchmarks.sheet ../before --scale 18 --rounds 5

Every case of ``benchmarks.run``, and one of preparation, runs in turns with both revisions, each with its own code and
data and with this interpreter. A ratio above 1 means that this revision is faster, or takes less memory.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import DATA, ROOT, Options, add_options, run_case, to_options
from benchmarks.run import PREPARE, RESULTS, plan_cases

LEAST = 0.97
"""Figures with a lower ratio are marked."""
DISPATCH = "dispatch"
Ratios = dict[str, dict[str, list[float]]]


def arguments_of(options: Options, name: str) -> tuple[str, ...]:
    """Command line of a case."""
    if name == DISPATCH:
        return ("-m", "benchmarks.preparation", f"--scale={options.scale}", "--formats", "parquet", "--keep")
    return next(plan.arguments for plan in plan_cases(options, []) if plan.name == name)


def figures_of(record: Mapping[str, Any]) -> dict[str, float]:
    """Speed and memory figures of a case, by name."""
    found = {**record.get("figures", record), "peak_rss_bytes": record["peak_rss_bytes"]}
    return {name: float(value) for name, value in found.items() if is_rate(name) or is_cost(name)}


def is_rate(name: str) -> bool:
    """Whether more is better."""
    return name.endswith("per_s")


def is_cost(name: str) -> bool:
    """Whether less is better."""
    return bool(re.search(r"(^seconds|^cpu_s|(?<!per)_s|ms_per_batch|peak\w*_bytes)$", name)) and not is_rate(name)


def compare(options: Options, names: Sequence[str], other: Path, rounds: int) -> Ratios:
    """Run cases in turns; return the ratios of all figures to the other revision's, one per round."""
    ratios: Ratios = {}
    for name in names:
        of_case = ratios.setdefault(name, {})
        for number in range(rounds):
            found = {}
            for root in (ROOT, other) if number % 2 else (other, ROOT):
                found[root] = figures_of(run_case(arguments_of(options, name), root=root))
            for figure in sorted(found[ROOT].keys() & found[other].keys()):
                own, its = found[ROOT][figure], found[other][figure]
                of_case.setdefault(figure, []).append(own / its if is_rate(figure) else its / own)
        for figure, values in of_case.items():
            middle = statistics.median(values)
            mark = "  <--" if middle < LEAST else ""
            print(f"{name:<18} {figure:<40} {middle:.3f}  ({min(values):.3f} to {max(values):.3f}){mark}", flush=True)
    return ratios


def main() -> None:
    """Read the command line, run, and write the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="the folder of the other revision")
    add_options(parser)
    parser.add_argument("--rounds", type=int, default=3, help="how often each case runs here and there")
    parser.add_argument("--only", nargs="*", metavar="CASE", help="cases to run, by the names that are printed")
    values = parser.parse_args()
    if values.data != DATA:
        parser.error("--data is not for a sheet: each revision has the data that it wrote itself")
    values.data = DATA.relative_to(ROOT)
    options, other = to_options(values), values.other.resolve()
    for root in (ROOT, other):
        run_case(arguments_of(options, PREPARE), root=root)
        run_case(arguments_of(options, DISPATCH), root=root)
    known = [*(plan.name for plan in plan_cases(options, []) if plan.name != PREPARE), DISPATCH]
    ratios = compare(options, [name for name in known if name in (values.only or known)], other, values.rounds)
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"sheet-{options.scale}.json"
    path.write_text(json.dumps({"python": sys.version.split()[0], "cores": os.cpu_count(), "ratios": ratios}, indent=1))


if __name__ == "__main__":
    main()
