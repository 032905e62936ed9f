"""Checks that records are framed and found with the checksums of the library."""

from __future__ import annotations

import google_crc32c
import numpy as np
import pytest

from hopstream.kernels.records import (
    BAD_RECORD,
    BAD_SIZE,
    MORE_NEEDED,
    TOO_LONG,
    WHOLE,
    find_records,
    find_starts,
    masked_crc,
)
from hopstream.tfgnn.tfrecord import RecordWriter


def unmasked(value):
    rotated = (int(value) - 0xA282EAD8) & 0xFFFFFFFF
    return ((rotated >> 17) | (rotated << 15)) & 0xFFFFFFFF


def test_checksums_are_those_of_the_library(rng):
    data = rng.integers(0, 256, 300).astype(np.uint8)
    for start in (0, 1, 3):
        for length in [*range(20), 64, 255]:
            wanted = google_crc32c.value(data[start : start + length].tobytes())
            assert unmasked(masked_crc(data, start, start + length)) == wanted


def framed(tmp_path, records):
    with RecordWriter(tmp_path / "x") as writer:
        for record in records:
            writer.write(record)
    return np.fromfile(tmp_path / "x", np.uint8)


def test_records_are_found_up_to_the_first_incomplete_one(tmp_path):
    records = [b"", b"ab", bytes(range(100))]
    data, bounds = framed(tmp_path, records), np.empty((9, 2), np.int64)
    count, at, state = find_records(data, 1000, 1000, bounds)
    assert (count, at, state) == (3, len(data), WHOLE)
    assert [data[a:b].tobytes() for a, b in bounds[:3]] == records
    assert find_records(data, 1000, 1000, bounds[:2])[0] == 2
    for cut in range(1, len(data)):
        count, at, state = find_records(data[:cut], 1000, 1000, bounds)
        assert state == (WHOLE if at == cut else MORE_NEEDED) and at <= cut and count <= 3


def test_record_starts_are_found_up_to_an_incomplete_record(tmp_path):
    records = [b"", b"ab", bytes(range(100)), b""]
    data, starts = framed(tmp_path, records), np.empty(9, np.int64)
    wanted = np.cumsum([0, *(len(record) + 16 for record in records)]).tolist()
    assert find_starts(data, 0, 1000, starts) == (4, len(data), WHOLE)
    assert starts[:4].tolist() == wanted[:-1]
    assert find_starts(data, wanted[1], 1000, starts[:2]) == (2, wanted[3], WHOLE)
    assert starts[:2].tolist() == wanted[1:3]
    for cut in range(len(data)):
        count = sum(end <= cut for end in wanted[1:])
        state = WHOLE if cut in wanted else MORE_NEEDED
        assert find_starts(data[:cut], 0, 1000, starts) == (count, wanted[count], state)
    assert find_starts(data, 0, 99, starts) == (2, wanted[2], TOO_LONG)
    for place in (wanted[2], wanted[2] + 9):
        damaged = data.copy()
        damaged[place] ^= 1
        assert find_starts(damaged, 0, 1000, starts) == (2, wanted[2], BAD_SIZE)


@pytest.mark.parametrize(("place", "state"), [(0, BAD_SIZE), (9, BAD_SIZE), (13, BAD_RECORD), (15, BAD_RECORD)])
def test_damage_is_found(tmp_path, place, state):
    data = framed(tmp_path, [b"ab"])
    data[place] ^= 1
    assert find_records(data, 1000, 1000, np.empty((9, 2), np.int64))[2] == state
    unchecked = find_records(data, 1000, 1, np.empty((9, 2), np.int64))[2]
    assert unchecked == (WHOLE if state == BAD_RECORD else state)


def test_an_oversized_record_length_is_rejected(tmp_path):
    assert find_records(framed(tmp_path, [b"ab"]), 1, 1, np.empty((9, 2), np.int64))[2] == TOO_LONG
