"""Checks that kernels are compiled once per machine and source, and that compiling is reported."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numba.core.errors import TypingError

from hopstream import kernels
from hopstream.kernels.compiling import cache_folder, source_digest
from hopstream.kernels.hashing import permute_range
from hopstream.kernels.weighted import add_weight
from tests.load.graphs import local_store, make_plain_graph

FOLDER = Path(kernels.__file__).parent
COUNTED = """
from numba.core import event

class Counter(event.Listener):
    names = []

    def on_start(self, compiled):
        self.names.append(compiled.data["dispatcher"].py_func.__qualname__)

    def on_end(self, compiled):
        pass

event.register("numba:compile", Counter())
"""
ONE_KERNEL = """
import threading

import numba
import numpy as np

from hopstream.kernels.hashing import permute_range


@numba.njit
def of_the_user(number):
    return number + number


def run():
    for dtype in (np.int64, np.int32):  # two signatures, each compiled by itself
        permute_range(0, 10, np.uint64(1), np.empty(10, dtype))


of_the_user(1)
made = {"numba": numba, "__name__": None}
exec("of_no_module = numba.njit(lambda number: number)", made)
made["of_no_module"](1)
threads = [threading.Thread(target=run) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""
LOADER = """
import sys

import hopstream

with hopstream.NeighborLoader(sys.argv[1], [2, 2], batch_size=20, num_threads=4) as loader:
    list(loader)
"""


def start(script: str, cache: Path, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "NUMBA_CACHE_DIR": str(cache)},
    )  # fmt: skip


def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    return out, err


@pytest.mark.parametrize("script", [ONE_KERNEL, pytest.param(LOADER, marks=pytest.mark.slow)], ids=["kernel", "loader"])
def test_compiling_is_reported_once_and_stale_kernels_are_removed(tmp_path: Path, script: str):
    local_store(make_plain_graph(np.random.default_rng(0)), tmp_path / "parts", 2).close()
    where = tmp_path / "cache"
    old, recent, other = (where / "kernels" / name for name in ("hashing-0", "hashing-1", "rows-0"))
    for folder in (old, recent, other):
        folder.mkdir(parents=True)
    os.utime(old, (0, 0))
    os.utime(other, (0, 0))
    errors = [finish(start(script, where, tmp_path / "parts"))[1] for _ in range(2)]
    told = "compiling kernels that are used on this machine for the first time; takes some seconds, cached in "
    assert errors == [f"{told}{where / 'kernels'}\n", ""]
    if script == ONE_KERNEL:
        assert not old.exists() and recent.exists() and other.exists()


def test_processes_that_start_together_compile_a_kernel_once(tmp_path: Path):
    script = f"{COUNTED}\n{ONE_KERNEL}\nprint(Counter.names.count('permute_range'))"
    processes = [start(script, tmp_path) for _ in range(2)]
    assert sum(int(finish(process)[0]) for process in processes) == 2


def test_an_unwritable_cache_folder_is_reported_once(tmp_path: Path):
    (tmp_path / "file").write_text("")
    _, err = finish(start(ONE_KERNEL, tmp_path / "file" / "cache"))
    assert err.count("\n") == 2 and "compiled kernels are not kept, so that every start compiles them: " in err


def test_a_kernel_that_cannot_be_compiled_leaves_no_lock():
    with pytest.raises(TypingError):
        permute_range("no number", 10, np.uint64(1), np.empty(10, np.int64))
    assert permute_range._cache._lock is None


def test_the_digest_follows_imports_but_not_time_stamps(tmp_path: Path):
    (tmp_path / "alone.py").write_text("")
    (tmp_path / "inlined.py").write_text("")
    (tmp_path / "middle.py").write_text("from hopstream.kernels.inlined import some\n")
    (tmp_path / "caller.py").write_text("import numpy\nfrom hopstream.kernels.middle import (\n    other,\n)\n")

    def digests() -> dict[str, str]:
        source_digest.cache_clear()
        return {path.stem: source_digest(path) for path in tmp_path.iterdir()}

    before = digests()
    (tmp_path / "inlined.py").write_text("# changed\n")
    os.utime(tmp_path / "alone.py", ns=(0, 0))
    after = digests()
    source_digest.cache_clear()
    assert {name for name in before if before[name] != after[name]} == {"inlined", "middle", "caller"}


def test_kernels_use_only_imports_that_the_digest_reads():
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert not any(alias.name.startswith("hopstream") for alias in node.names), path
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hopstream"):
                assert node.col_offset == 0 and (node.module or "").count(".") == 2, path


def test_the_folder_is_the_users_own_without_numbas_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("hopstream.kernels.compiling.config.CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "hopstream" / "kernels"


def test_inlined_kernels_cannot_be_called_from_python() -> None:
    with pytest.raises(TypeError, match="add_weight can only be called by compiled kernels"):
        add_weight(1.0, 2.0)
