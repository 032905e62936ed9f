"""Pages of mapped arrays are let go of, whatever ends meanwhile, and come back unchanged."""

import gc
import os

import numpy as np

from hopstream import arrays
from hopstream.arrays import open_array, release_pages, write_array
from hopstream.engine import peak

NUM_VALUES = 1 << 22


def resident_file_bytes():
    return peak._bytes_of(os.getpid(), peak.FILES)


def test_pages_are_let_go_of_and_come_back(tmp_path, monkeypatch):
    wanted = np.arange(NUM_VALUES)
    write_array(tmp_path / "values.npy", wanted)
    mapped = open_array(tmp_path / "values.npy")
    before = resident_file_bytes()
    assert np.array_equal(mapped, wanted) and resident_file_bytes() > before + wanted.nbytes // 2
    monkeypatch.setattr(peak, "MAPPED_BYTES", 0)
    peak.let_go_of_pages()
    assert resident_file_bytes() < before + wanted.nbytes // 2
    assert np.array_equal(mapped, wanted)


def test_maps_that_end_while_pages_are_let_go_of_are_unmapped_afterwards(tmp_path, monkeypatch):
    write_array(tmp_path / "values.npy", np.arange(NUM_VALUES))
    held = [open_array(tmp_path / "values.npy") for _ in range(3)]
    num_maps, real = len(arrays._MAPS._sizes), arrays._LIBC.madvise

    class Ending:
        """Ends the maps as the collector might, in the midst of the loop."""

        munmap = arrays._LIBC.munmap

        @staticmethod
        def madvise(address, num_bytes, advice):
            held.clear()
            gc.collect()
            assert address in arrays._MAPS._sizes  # nobody else can have memory there
            return real(address, num_bytes, advice)

    monkeypatch.setattr(arrays, "_LIBC", Ending)
    release_pages()
    assert len(arrays._MAPS._sizes) == num_maps - 3
