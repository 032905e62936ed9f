"""Runs a command and samples the memory of all its processes."""

from __future__ import annotations

import resource
import subprocess
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil

OWN_S, PSS_S = 0.02, 0.5
"""Sampling intervals; PSS is slow to read."""
OWN = ("RssAnon:", "RssShmem:")


@dataclass(frozen=True)
class Watched:
    """Costs of one run; memory is the peak of the sum over its processes.

    Attributes:
        seconds: Wall time.
        cpu_s: Processor time of all ended processes; valid on a busy machine too.
        own_bytes: Resident memory without mapped files; ``--memory`` bounds it.
        rss_bytes: Resident memory with mapped files; shared pages count once per process.
        pss_bytes: Resident memory with mapped files; shared pages count once. Sampled less often.
    """

    seconds: float
    cpu_s: float
    own_bytes: int
    rss_bytes: int
    pss_bytes: int


def watch(words: list[str], log: Path | None = None, *, refused: int | None = None) -> Watched | None:
    """Run a command and watch its memory.

    Args:
        words: The command.
        log: A file for its stdout; None for this process's stdout.
        refused: Exit status by which the command refuses to work; None if it has none.

    Returns:
        Costs of the run, or None if it ended with the status ``refused``.

    Raises:
        SystemExit: The command failed.
    """
    started, cpu_before = time.perf_counter(), _children_s()
    own = rss = pss = 0
    next_pss = 0.0
    with ExitStack() as files:
        stdout = None if log is None else files.enter_context(log.open("wb"))
        process = files.enter_context(subprocess.Popen(words, stdout=stdout))
        root = psutil.Process(process.pid)
        while process.poll() is None:
            try:
                pids = [root.pid, *(child.pid for child in root.children(recursive=True))]
            except psutil.NoSuchProcess:
                continue
            found = [_status(pid) for pid in pids]
            own, rss = (max(peak, sum(one[i] for one in found)) for i, peak in ((0, own), (1, rss)))
            if time.perf_counter() >= next_pss:
                pss = max(pss, sum(map(_pss_bytes, pids)))
                next_pss = time.perf_counter() + PSS_S
            time.sleep(OWN_S)
    if refused is not None and process.returncode == refused:
        return None
    if process.returncode:
        raise SystemExit(f"{' '.join(words)} ended with {process.returncode}")
    return Watched(time.perf_counter() - started, _children_s() - cpu_before, own, rss, pss)


def peak_rss_bytes() -> int:
    """Peak resident memory of this process, including mapped files."""
    return _sizes(Path("/proc/self/status"))["VmHWM:"]


def _status(pid: int) -> tuple[int, int]:
    """Private and resident bytes of one process; 0 if it has ended."""
    sizes = _sizes(Path(f"/proc/{pid}/status"))
    return sum(sizes.get(name, 0) for name in OWN), sizes.get("VmRSS:", 0)


def _pss_bytes(pid: int) -> int:
    return _sizes(Path(f"/proc/{pid}/smaps_rollup")).get("Pss:", 0)


def _sizes(path: Path) -> dict[str, int]:
    try:
        lines = [line.split() for line in path.read_text(encoding="ascii").splitlines()]
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return {}
    return {words[0]: int(words[1]) << 10 for words in lines if len(words) == 3 and words[2] == "kB"}


def _children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
