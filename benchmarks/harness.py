"""Harness of all benchmarks: options, timing, comparison in turns, and cases in fresh processes.

Every case is a script of its own and runs in a fresh process, so that its peak memory and its caches are its own. A
case prints one JSON object as its last line; ``run_case`` reads it. Ratios of figures from one run are valid for other
machines. Absolute figures are not, so every run also probes the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.processes import peak_rss_bytes

ROOT = Path(__file__).parents[1]
DATA = ROOT / ".cache" / "benchmarks"
DESIGN_SCALE = 21
EDGES_PER_NODE = 32
NUM_FEATURES = 100
NUM_CLASSES = 16
BATCH_SIZE = 1024
FANOUT = (15, 10, 5)
CASE_TIMEOUT_S = 1800.0
RNG_SEED = 1
LIBRARIES = ("hopstream", "numpy", "numba", "pyarrow", "torch", "torch_geometric", "kaminpar", "pymetis")

Figures = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of every case.

    Attributes:
        scale: The graph has 2**scale nodes.
        data: Folder of the prepared datasets.
        num_batches: Batches per repetition.
        num_repeats: Repetitions; figures are medians over them.
        num_threads: Threads, for cases that have a choice.
    """

    scale: int
    data: Path
    num_batches: int
    num_repeats: int
    num_threads: int

    def parts_path(self, num_parts: int) -> Path:
        """Path of the prepared dataset with ``num_parts`` parts."""
        return self.data / f"rmat-{self.scale}-{num_parts}"

    @property
    def modes_path(self) -> Path:
        """Path of the prepared dataset of one part with times and weights of edges, without features."""
        return self.data / f"rmat-{self.scale}-modes"

    def to_arguments(self) -> list[str]:
        """The command line that ``read_options`` reads back."""
        return [
            f"--scale={self.scale}", f"--data={self.data}", f"--batches={self.num_batches}",
            f"--repeats={self.num_repeats}", f"--threads={self.num_threads}",
        ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of each repetition of some work."""

    seconds: tuple[float, ...]

    @property
    def median_s(self) -> float:
        """Median, the figure to quote."""
        return statistics.median(self.seconds)

    @property
    def min_s(self) -> float:
        """Minimum, the time without disturbance by other processes."""
        return min(self.seconds)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options that every case takes."""
    parser.add_argument("--scale", type=int, default=DESIGN_SCALE, help="the graph has 2**SCALE nodes")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the prepared datasets")
    parser.add_argument("--batches", type=int, default=50, help="batches per repetition")
    parser.add_argument("--repeats", type=int, default=3, help="repetitions, of which the median is reported")
    parser.add_argument("--threads", type=int, default=1, help="threads, where the case has a choice")


def read_options(description: str) -> Options:
    """Parse the options of a case that runs by itself."""
    parser = argparse.ArgumentParser(description=description)
    add_options(parser)
    return to_options(parser.parse_args())


def to_options(values: argparse.Namespace) -> Options:
    """Convert the parsed options of ``add_options`` to a record."""
    return Options(
        scale=values.scale,
        data=values.data,
        num_batches=values.batches,
        num_repeats=values.repeats,
        num_threads=values.threads,
    )


def repeat(work: Callable[[], object], num_repeats: int, *, num_warmups: int = 1) -> Timing:
    """Time some work several times, after ``num_warmups`` runs that are not timed."""
    for _ in range(num_warmups):
        work()
    seconds = []
    for _ in range(num_repeats):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return Timing(tuple(seconds))


Work = Callable[[int], tuple[int, int]]
"""Processes batch ``i``; returns the numbers of drawn edges and of units of work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Measured turns of one variant, which took turns with others.

    Attributes:
        seconds: Processor time of the thread in each turn.
        num_edges: Edges drawn in a turn.
        num_units: Units of work in a turn; ratios are per unit.
        num_batches: Batches in a turn.
    """

    seconds: tuple[float, ...]
    num_edges: int
    num_units: int
    num_batches: int

    @property
    def edges_per_s(self) -> float:
        """Edges per second of the median turn."""
        return self.num_edges / statistics.median(self.seconds)

    @property
    def units_per_s(self) -> float:
        """Units per second of the median turn."""
        return self.num_units / statistics.median(self.seconds)

    def ratio_to(self, plain: Turns) -> float:
        """Ratio of seconds per unit to another variant's: the median over adjacent turns."""
        seconds = zip(self.seconds, plain.seconds, strict=True)
        return statistics.median(own / other for own, other in seconds) * plain.num_units / self.num_units


def take_turns(
    works: Mapping[str, Work], options: Options, max_batches: Mapping[str, int] | None = None
) -> dict[str, Turns]:
    """Measure several variants in turns in every repetition, so that disturbances affect all alike.

    Seconds are processor time of this thread: the work never waits, and time of other processes does not count.

    Args:
        works: Name to work; all of it runs in the caller's thread.
        options: Numbers of batches and repetitions.
        max_batches: Name to the most batches of a turn, for slow work.
    """
    num_batches = {name: min((max_batches or {}).get(name, options.num_batches), options.num_batches) for name in works}
    done = {name: [work(i) for i in range(num_batches[name])] for name, work in works.items()}
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(options.num_repeats):
        for name, work in works.items():
            started = time.thread_time()
            for i in range(num_batches[name]):
                work(i)
            seconds[name].append(time.thread_time() - started)
    return {
        name: Turns(
            seconds=tuple(seconds[name]),
            num_edges=sum(edges for edges, _ in done[name]),
            num_units=sum(units for _, units in done[name]),
            num_batches=num_batches[name],
        )
        for name in works
    }


def report(case: str, settings: Mapping[str, object], figures: Mapping[str, float]) -> None:
    """Print a case's result with the peak memory of its process, as the last line of its output."""
    record = {"case": case, "settings": dict(settings), "figures": dict(figures), "peak_rss_bytes": peak_rss_bytes()}
    print(json.dumps(record), flush=True)


def run_case(
    arguments: Sequence[str], *, python: str = sys.executable, timeout_s: float = CASE_TIMEOUT_S, root: Path = ROOT
) -> Any:
    """Run one case in a fresh process, with the code of ``root``.

    Returns:
        The JSON object that the case printed last, with ``others_share`` added: the share of the machine's processor
        time that other processes took meanwhile, from 0 to 1. A value that is not near 0 means a disturbed case.

    Raises:
        RuntimeError: The case failed, ran past its deadline, or printed no result.
    """
    command = [python, *arguments]
    environment = os.environ if root == ROOT else {**os.environ, "PYTHONPATH": str(root / "src")}
    own_before, busy_before, started = _children_cpu_s(), _busy_cpu_s(), time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=root, env=environment, timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"{' '.join(command)} took more than {timeout_s:.0f} s") from error
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        raise RuntimeError(f"{' '.join(command)} failed with {done.returncode}:\n{done.stdout}{done.stderr}")
    own_s, busy_s = _children_cpu_s() - own_before, _busy_cpu_s() - busy_before
    core_s = (time.perf_counter() - started) * (os.cpu_count() or 1)
    return {**json.loads(lines[-1]), "others_share": round(max(0.0, busy_s - own_s) / core_s, 3)}


def _children_cpu_s() -> float:
    """Processor seconds of ended processes that this process or its children waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _busy_cpu_s() -> float:
    """Busy seconds of all cores since boot, including time that the host took away (steal)."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, stat.read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def describe_machine() -> dict[str, object]:
    """Facts about the machine and the software that a reader needs to judge absolute figures."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": _cpu_name(),
        "num_cores": os.cpu_count() or 1,
        "memory_gib": round(memory_bytes / 2**30, 1),
        "load_before": round(os.getloadavg()[0], 2),
        "system": platform.system(),
        "python": platform.python_version(),
        "libraries": {name: _version(name) for name in LIBRARIES},
        "commit": _commit(),
    }


def _cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "absent"


def _commit() -> str:
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--exclude=*"],
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() or "unknown"
