"""Tells which of a fixed list of mutants the default tests kill: ``python -m tests.mutants.run``.

A mutant is one changed operator, bound or constant of one line. It is put into a copy of the project, and tests run
until one fails: those of its room, then those of equality and pinned digests, then with ``--whole`` all default tests.
Results are kept as they come, and a later call goes on after them. A line that has moved to another file is found
there. Replace an entry of ``mutants.json`` whose line is gone by a mutant of the code in its place.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("mutants.json")
COPIED = (
    "src",
    "tests",
    "examples",
    "docs",
    "benchmarks",
    "pyproject.toml",
    "README.md",
    "CONTRIBUTING.md",
    "Makefile",
)
COMMON = ("tests/pinned", "tests/equality")
STAGE_S = 1800
KILLED, SURVIVED, GONE = "killed", "survived", "gone"


def find(root: Path, mutant: dict[str, str]) -> Path | None:
    """The file that has the mutant's line once: its own, or else the only one that has."""

    def has(path: Path) -> bool:
        return sum(line.strip() == mutant["old"] for line in path.read_text().splitlines()) == 1

    own = root / "src" / "hopstream" / mutant["file"]
    if own.is_file() and has(own):
        return own
    found = [path for path in (root / "src").rglob("*.py") if has(path)]
    return found[0] if len(found) == 1 else None


def change(path: Path, mutant: dict[str, str]) -> str:
    """Put the mutant into a file; its text before."""
    before = path.read_text()
    lines = [
        line.replace(mutant["old"], mutant["new"]) if line.strip() == mutant["old"] else line
        for line in before.splitlines(keepends=True)
    ]
    path.write_text("".join(lines))
    return before


def killer(root: Path, tests: Sequence[str], workers: int) -> str | None:
    """The first test that fails; None where all pass."""
    command = [
        sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header", "-n", str(workers),
        "--dist", "loadfile", "--max-worker-restart", "0", *tests,
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, cwd=root, env=_environment(root), capture_output=True, text=True, timeout=STAGE_S
        )
    except subprocess.TimeoutExpired:
        return f"no end in {STAGE_S} s"
    if done.returncode == 0:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return failed[1] if failed else f"pytest ended with {done.returncode}: {done.stdout[-200:]}"


def _environment(root: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(root / "src"), "NUMBA_CACHE_DIR": str(root / ".numba")}


def judge(root: Path, mutant: dict[str, str], *, workers: int, is_whole: bool) -> tuple[str, str]:
    """Return the outcome of a mutant and the test that killed it."""
    path = find(root, mutant)
    if path is None:
        return GONE, ""
    before = change(path, mutant)
    try:
        room = "tests/" + path.relative_to(root / "src" / "hopstream").parts[0]
        stages = [[room] if (root / room).is_dir() else [], [*COMMON], ["tests"] if is_whole else []]
        for tests in filter(None, stages):
            if (test := killer(root, tests, workers)) is not None:
                return KILLED, test
        return SURVIVED, ""
    finally:
        path.write_text(before)


def main() -> None:
    """Judge every mutant that is chosen and not judged yet, and print the share that is killed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=ROOT / ".cache" / "mutants.json", help="where results are kept")
    parser.add_argument("--only", default="", help="a regular expression of files, such as '^kernels/'")
    parser.add_argument("--every", type=int, default=1, help="every n-th mutant only")
    parser.add_argument("--workers", type=int, default=2, help="processes that run tests")
    parser.add_argument("--whole", action="store_true", help="let survivors face all default tests: ten minutes each")
    options = parser.parse_args()
    mutants = json.loads(LIST.read_text())[:: options.every]
    chosen = [one for one in mutants if re.search(options.only, one["file"])]
    options.results.parent.mkdir(parents=True, exist_ok=True)
    results = json.loads(options.results.read_text()) if options.results.exists() else {}
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        for name in COPIED:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
            copy(ROOT / name, root / name)
        for number, mutant in enumerate(chosen, start=1):
            key = f"{mutant['file']}: {mutant['old']} -> {mutant['new']}"
            state, _ = results.get(key, ("", ""))
            if not state or (options.whole and state == SURVIVED):
                results[key] = judge(root, mutant, workers=options.workers, is_whole=options.whole)
                options.results.write_text(json.dumps(results, indent=1) + "\n")
            sys.stdout.write(f"{number}/{len(chosen)} {results[key][0]}: {key}  {results[key][1]}\n")
            sys.stdout.flush()
    states = [results[f"{one['file']}: {one['old']} -> {one['new']}"][0] for one in chosen]
    told = ", ".join(f"{states.count(state)} {state}" for state in (KILLED, SURVIVED, GONE))
    sys.stdout.write(f"{told} of {len(states)} mutants\n")


if __name__ == "__main__":
    main()
