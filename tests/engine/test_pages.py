"""Checks that pages of mapped arrays are released even if maps end meanwhile, and return unchanged."""

import os
import subprocess
import sys
import time

import numpy as np
import pytest

from hopstream import arrays
from hopstream.arrays import open_array, release_pages, write_array
from hopstream.engine import Task, machine
from hopstream.engine.local import local_engine
from tests.engine.contract import PROBE

NUM_VALUES = 1 << 22
SOON_S = 20.0
FORKS = """
import os, signal, sys, threading, time
from pathlib import Path
from hopstream.arrays import open_array, release_pages

path = Path(sys.argv[1])

def use():
    while True:
        open_array(path)
        release_pages()

for _ in range(3):
    threading.Thread(target=use, daemon=True).start()
for _ in range(60):
    time.sleep(0.001)
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        open_array(path)
        release_pages()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0, "a child waited for a lock of its parent's threads"
"""


def resident_file_bytes():
    return machine._bytes_of(os.getpid(), machine.FILES)


def test_pages_are_released_and_read_again(tmp_path, monkeypatch):
    wanted = np.arange(NUM_VALUES)
    write_array(tmp_path / "values.npy", wanted)
    mapped = open_array(tmp_path / "values.npy")
    before = resident_file_bytes()
    assert np.array_equal(mapped, wanted) and resident_file_bytes() > before + wanted.nbytes // 2
    monkeypatch.setattr(machine, "MAPPED_BYTES", 0)
    machine.let_go_of_pages()
    assert resident_file_bytes() < before + wanted.nbytes // 2
    assert np.array_equal(mapped, wanted)


def test_maps_closed_during_a_release_are_unmapped_afterwards(tmp_path, monkeypatch):
    write_array(tmp_path / "values.npy", np.arange(NUM_VALUES))
    held = [open_array(tmp_path / "values.npy") for _ in range(3)]
    num_maps, real = len(arrays._MAPS._sizes), arrays._LIBC.madvise

    class Ending:
        """End the maps in the middle of the loop, as the garbage collector might."""

        munmap = arrays._LIBC.munmap

        @staticmethod
        def madvise(address, num_bytes, advice):
            held.clear()
            assert address in arrays._MAPS._sizes  # so no other map can have this memory
            return real(address, num_bytes, advice)

    monkeypatch.setattr(arrays, "_LIBC", Ending)
    release_pages()
    assert len(arrays._MAPS._sizes) == num_maps - 3


def test_watching_memory_releases_pages(tmp_path, monkeypatch):
    write_array(tmp_path / "values.npy", np.arange(NUM_VALUES))
    mapped = open_array(tmp_path / "values.npy")
    before = resident_file_bytes()
    monkeypatch.setattr(machine, "MAPPED_BYTES", 0)
    mapped.sum()
    with machine.watched():
        ends = time.monotonic() + SOON_S
        while resident_file_bytes() > before + mapped.nbytes // 2:
            assert time.monotonic() < ends
            time.sleep(0.01)


def test_a_worker_releases_pages(tmp_path):
    with (tmp_path / "zeros.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": (300 << 20,)})
        file.truncate(file.tell() + (300 << 20))
    found = []
    with local_engine(1) as engine:
        task = Task("read", f"{PROBE}:read", {"path": str(tmp_path / "zeros.npy"), "timeout_s": SOON_S})
        engine.map([task], lambda _, value: found.append(value))
    assert found[0] < 300 << 20


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forked_children_map_arrays_despite_parent_threads(tmp_path):
    write_array(tmp_path / "values.npy", np.arange(100))
    subprocess.run([sys.executable, "-c", FORKS, str(tmp_path / "values.npy")], check=True, timeout=60)
