"""Checks that any record of many files is found by its number, plain or compressed, by many threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from hopstream.errors import ChecksumError, FormatError, IdRangeError
from hopstream.tfgnn.record_files import MAX_STREAMS, RecordFiles, RowCache
from hopstream.tfgnn.tfrecord import RecordWriter

SIZES = [5, 0, 17, 1, 30]


@pytest.fixture(params=["plain", "both"])
def files(request, tmp_path):
    paths, number = [], 0
    for file, size in enumerate(SIZES):
        paths.append(tmp_path / f"f{file}")
        is_compressed = request.param == "gzip" or (request.param == "both" and file % 2 == 0)
        with RecordWriter(paths[-1], is_compressed=is_compressed) as writer:
            for _ in range(size):
                writer.write(f"record {number}".encode() * (number % 3))
                number += 1
    return paths


def wanted(numbers):
    return [f"record {number}".encode() * (number % 3) for number in numbers]


@pytest.mark.parametrize("stretch", [1, 4])
def test_records_in_any_order(files, rng, stretch):
    found = RecordFiles(files, stretch=stretch)
    assert found.sizes == tuple(SIZES) and len(found) == sum(SIZES)
    for numbers in (np.arange(len(found)), rng.integers(0, len(found), 80), np.arange(len(found))[::-1]):
        assert found.read(numbers) == wanted(numbers.tolist())
    assert found.read(np.empty(0, np.int64)) == []
    assert found.place(22) == (files[3], 0) and found.place(4) == (files[0], 4)
    for number in (-1, len(found)):
        with pytest.raises(IdRangeError):
            found.read(np.array([number]))


def test_threads_read_the_same_records(files):
    found = RecordFiles(files, stretch=3)
    orders = [np.random.default_rng(seed).permutation(len(found)) for seed in range(8)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(found.read, orders)) == [wanted(order.tolist()) for order in orders]


def test_more_compressed_files_than_are_open_at_once(tmp_path):
    paths = [tmp_path / f"{i}" for i in range(2 * MAX_STREAMS)]
    for number, path in enumerate(paths):
        with RecordWriter(path, is_compressed=True) as writer:
            for row in range(4):
                writer.write(f"{number}.{row}".encode())
    found = RecordFiles(paths, stretch=2)
    numbers = np.arange(len(found)).reshape(-1, 4).T.reshape(-1)  # the first of each file, then the second
    assert found.read(numbers) == [f"{n}.{row}".encode() for row in range(4) for n in range(len(paths))]


def test_damage_is_named(tmp_path):
    path = tmp_path / "f"
    with RecordWriter(path) as writer:
        for _ in range(3):
            writer.write(b"0123456789")
    whole = path.read_bytes()
    for num_bytes in (5, 30, len(whole) - 1):
        path.write_bytes(whole[:num_bytes])
        with pytest.raises(FormatError, match=f"f ends in the middle of record {num_bytes // 26}"):
            RecordFiles([path])
    path.write_bytes(whole[:40] + b"!" + whole[41:])
    with pytest.raises(ChecksumError, match="record 1 does not match"):
        RecordFiles([path]).read(np.arange(3))


def test_a_cache_keeps_so_many_rows():
    loaded = []

    def get(cache, key, rows):
        return cache.get(key, lambda: (loaded.append(key) or key, rows))

    cache = RowCache(10)
    for key in ("a", "b", "a", "c", "a", "b"):  # b is the least recently used when c needs room
        assert get(cache, key, 5) == key
    assert loaded == ["a", "b", "c", "b"]
    assert get(cache, "large", 99) == "large" and get(cache, "large", 99) == "large"
    assert loaded[4:] == ["large"]
