"""Tests of what a process reads of its machine: control groups v1 and v2, nested ones, affinity."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import hopstream
from hopstream.engine.machine import Machine, num_processors, this_machine
from hopstream.ingest.chunked import write_chunked

GB = 10**9
MEMINFO = "MemTotal: 64000000 kB\nMemAvailable:   15625000 kB\n"
"""16 GB are available."""
V2, V1 = "0::/a/b\n", "4:memory:/a/b\n1:cpu,cpuacct:/a/b\n0::/\n"


def tree(root: Path, cgroup: str, files: dict[str, str]) -> Machine:
    """Facts that a process reads on a made-up machine."""
    written = {"proc/meminfo": MEMINFO, "proc/self/cgroup": cgroup}
    written |= {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in written.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return this_machine(root)


@pytest.mark.parametrize(
    ("cgroup", "files", "free_bytes"),
    [
        (V2, {}, 16 * GB),
        ("", {"memory.max": str(GB)}, 16 * GB),
        (V2, {"a/b/memory.max": "max\n", "a/memory.max": str(4 * GB), "a/memory.current": str(GB)}, 3 * GB),
        (V2, {"a/b/memory.max": str(2 * GB), "a/memory.max": str(4 * GB), "memory.max": str(9 * GB)}, 2 * GB),
        (V2, {"a/b/memory.max": str(8 * GB), "a/memory.high": str(5 * GB)}, 5 * GB),
        (V2, {"a/b/memory.max": str(40 * GB)}, 16 * GB),
        # Pages of files are taken back, so they are free.
        (V2, {"a/b/memory.max": str(4 * GB), "a/b/memory.current": str(3 * GB),
              "a/b/memory.stat": f"anon 5\ninactive_file {GB}\nactive_file {GB}\n"}, 3 * GB),
        (V2, {"a/b/memory.max": str(GB), "a/b/memory.current": str(2 * GB)}, 0),
        (V1, {"memory/a/b/memory.limit_in_bytes": str(2 * GB), "memory/a/b/memory.usage_in_bytes": str(GB),
              "memory/a/b/memory.stat": f"inactive_file 1\ntotal_inactive_file {GB // 2}\ntotal_active_file 0\n",
              "memory/a/memory.limit_in_bytes": "9223372036854771712"}, 3 * GB // 2),
        # In a container the path is the host's, and the mounted folder is the container's own group.
        (V1, {"memory/memory.limit_in_bytes": str(GB)}, GB),
        ("0::/../other\n", {"memory.max": str(GB)}, GB),
        # Version 2 beside version 1.
        (V1, {"unified/memory.max": str(GB)}, GB),
    ],
)  # fmt: skip
def test_free_memory_is_the_least_that_any_group_leaves(tmp_path, cgroup, files, free_bytes):
    assert tree(tmp_path, cgroup, files).free_bytes == free_bytes


@pytest.mark.parametrize(
    ("cgroup", "files", "count"),
    [
        (V2, {}, 64),
        (V2, {"a/b/cpu.max": "max 100000\n"}, 64),
        (V2, {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "400000 100000\n", "cpu.max": "800000 100000"}, 4),
        (V2, {"a/b/cpu.max": "150000 100000"}, 2),
        (V2, {"a/b/cpu.max": "1000 100000"}, 1),
        (V1, {"cpu/a/b/cpu.cfs_quota_us": "-1", "cpu/a/b/cpu.cfs_period_us": "100000"}, 64),
        (V1, {"cpu/a/cpu.cfs_quota_us": "300000", "cpu/a/cpu.cfs_period_us": "100000"}, 3),
    ],
)
def test_processors_are_the_least_that_any_quota_leaves(tmp_path, monkeypatch, cgroup, files, count):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    assert tree(tmp_path, cgroup, files).num_processors == count


TOLD = "from hopstream.engine.machine import this_machine as m; print(m().num_processors, m().free_bytes)"


def test_processors_are_counted_by_affinity():
    """A process that may use one processor, and its children, count one processor."""
    words = ["taskset", "-c", str(min(os.sched_getaffinity(0))), sys.executable, "-c", TOLD]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()[0] == "1"
    assert num_processors() <= len(os.sched_getaffinity(0))


@pytest.fixture
def groups() -> Iterator[dict[str, Path]]:
    """A real control group for memory and for processors, of this machine; each test fills them."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    top, made = Path("/sys/fs/cgroup"), {}
    try:
        for controller in ("memory", "cpu"):
            names = [(name, path) for _, name, path in lines if controller in name.split(",")]
            is_v1 = bool(names)
            parent = top / controller / names[0][1].lstrip("/") if is_v1 else top / lines[-1][2].lstrip("/")
            made[controller] = parent / f"hopstream-test-{os.getpid()}"
            made[controller].mkdir(exist_ok=True)
            if not (made[controller] / ("cgroup.procs" if is_v1 else f"{controller}.max")).exists():
                pytest.skip(f"{made[controller]} has no files of the controller {controller}")
        yield made
    except OSError as error:
        pytest.skip(f"control groups cannot be made here: {error}")
    finally:
        for folder in {*made.values()}:
            if folder.is_dir():
                folder.rmdir()


def run_inside(groups: dict[str, Path], num_bytes: int, program: str, *words: object) -> str:
    """Run a program in groups limited to ``num_bytes`` and one processor; return its output."""
    memory, cpu = groups["memory"], groups["cpu"]
    if (memory / "memory.limit_in_bytes").exists():
        (memory / "memory.limit_in_bytes").write_text(str(num_bytes))
        (cpu / "cpu.cfs_period_us").write_text("100000")
        (cpu / "cpu.cfs_quota_us").write_text("100000")
    else:
        (memory / "memory.max").write_text(str(num_bytes))
        (cpu / "cpu.max").write_text("100000 100000")
    entry = "; ".join(f"open('{folder}/cgroup.procs', 'w').write(str(os.getpid()))" for folder in {memory, cpu})
    program = f"import os; {entry}; {program}"
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, words)], capture_output=True, text=True, check=True
    ).stdout


def test_a_real_group(groups):
    processors, free = map(int, run_inside(groups, 500 << 20, TOLD).split())
    assert processors == 1 and 300 << 20 < free < 500 << 20


GAPS = """
import numpy as np
from hopstream.engine.machine import give_back_large_blocks
assert give_back_large_blocks()
np.ones(30 << 20, np.uint8)  # by itself glibc takes arrays up to this size from its heaps from now on
kept = []
for num_bytes in (2 << 20, 3 << 20, 5 << 20, 9 << 20):
    blocks = []
    for _ in range(20):
        blocks.append(np.ones(num_bytes, np.uint8))
        kept.append(np.ones(100_000, np.uint8))
    del blocks
status = open("/proc/self/status").read()
print(next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon:")) >> 10)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is for glibc")
def test_large_blocks_are_given_back():
    """Small arrays kept between large ones do not hold the memory of the large ones."""
    programs = (GAPS, GAPS.replace("assert give_back_large_blocks()", ""))
    given, kept = (
        int(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)
        for program in programs
    )
    assert given < 100 < kept


DISPATCH = "import sys; from hopstream.cli import main; sys.exit(main(['dispatch', *sys.argv[1:]]))"


@pytest.mark.slow
def test_a_verb_by_default_in_a_real_group(groups, tmp_path):
    """A million edges in 600 MB: the verb stays below the memory at which the OOM killer acts."""
    write_chunked(hopstream.rmat_graph(15, num_features=16), tmp_path / "c", num_chunks=2)
    (tmp_path / "o").mkdir()
    np.save(tmp_path / "o/node.npy", np.arange(1 << 15) % 2)
    said = run_inside(
        groups, 600 * 10**6, DISPATCH, "--in-dir", tmp_path / "c", "--partitions-dir", tmp_path / "o", "--out-dir",
        tmp_path / "d",
    )  # fmt: skip
    assert "(60 % of 5" in said and "; none of 1 workers fit" in said and "manifest.json" in said
