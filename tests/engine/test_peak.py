"""Checks that the peak covers all processes, including ended ones."""

from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np
import pytest

from hopstream.engine import machine as peak_module
from hopstream.engine.machine import own_bytes, peak_bytes, watched

MB = 1 << 20
GROW = "import sys; block = bytearray(150 << 20); print('grown', flush=True); sys.stdin.read()"


def test_processes_that_have_ended_count():
    """Two processes of 150 MiB: one is a child, the other a grandchild."""
    with watched():
        before = own_bytes()
        nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {GROW!r}], check=True)"
        pipe = subprocess.PIPE
        started = [
            subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe) for program in (GROW, nested)
        ]
        for process in started:
            assert process.stdout is not None and process.stdout.readline() == b"grown\n"
        assert own_bytes() - before > 300 * MB
        peak = peak_bytes()
        for process in started:
            process.communicate(timeout=30)
        assert own_bytes() < before + 100 * MB
        assert peak_bytes() >= peak > before + 300 * MB
    assert "memory watch" not in {thread.name for thread in threading.enumerate()}


def test_pages_of_mapped_files_do_not_count(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(100 * MB, np.uint8))
    before = own_bytes()
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    assert int(mapped.sum()) == 0
    assert own_bytes() - before < 20 * MB


def test_the_outermost_watch_decides_when_it_begins():
    block = np.ones(100 * MB, np.uint8)
    with watched():
        with watched():
            before = peak_bytes()
        del block
        assert peak_bytes() >= before > 100 * MB
    with watched():
        assert peak_bytes() < before - 50 * MB


def test_a_larger_sample_of_another_thread_is_not_lost(monkeypatch: pytest.MonkeyPatch):
    """It is taken while this thread compares its own with the peak."""
    watch = peak_module._Watch()
    watch._num_inside = 1
    other = threading.Thread(target=watch.sample)

    class Compared(int):
        def __gt__(self, than: int) -> bool:
            other.start()
            other.join(0.2)
            return int(self) > int(than)

    monkeypatch.setattr(peak_module, "own_bytes", lambda: 100 if threading.current_thread() is other else Compared(10))
    watch.sample()
    other.join()
    assert watch._peak == 100
