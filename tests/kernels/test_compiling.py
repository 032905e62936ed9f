"""Checks that compiling is reported once in each process that does it, and nowhere else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.load.graphs import local_store, make_plain_graph

ONE_KERNEL = """
import threading

import numba
import numpy as np

from hopstream.kernels.permute import permute_range


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


@pytest.mark.parametrize("script", [ONE_KERNEL, pytest.param(LOADER, marks=pytest.mark.slow)], ids=["kernel", "loader"])
def test_compiling_is_told_on_stderr_once_and_only_where_it_happens(tmp_path: Path, script: str):
    local_store(make_plain_graph(np.random.default_rng(0)), tmp_path / "parts", 2).close()

    def stderr() -> str:
        return subprocess.run(
            [sys.executable, "-c", script, str(tmp_path / "parts")], check=True, capture_output=True, text=True,
            timeout=600, env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")},
        ).stderr  # fmt: skip

    where = tmp_path / "cache"
    assert stderr() == f"compiling kernels: first start on this machine; takes a minute or two, cached in {where}\n"
    assert stderr() == ""
