"""Are records and features found where protobuf and the slow checksum find them?"""

from __future__ import annotations

import google_crc32c
import numpy as np
import pytest

from hopstream.kernels.example_columns import (
    BAD_RECORD,
    BAD_SIZE,
    MORE_NEEDED,
    TOO_LONG,
    WHOLE,
    count_ints,
    count_strings,
    find_columns,
    find_records,
    find_starts,
    find_strings,
    masked_crc,
    take_bytes,
    take_ints,
)
from hopstream.kernels.examples import UNUSUAL
from hopstream.tfgnn.messages import EXAMPLE, message_class
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


def test_records_are_found_up_to_the_first_that_is_not_whole(tmp_path):
    records = [b"", b"ab", bytes(range(100))]
    data, bounds = framed(tmp_path, records), np.empty((9, 2), np.int64)
    count, at, state = find_records(data, 1000, bounds)
    assert (count, at, state) == (3, len(data), WHOLE)
    assert [data[a:b].tobytes() for a, b in bounds[:3]] == records
    assert find_records(data, 1000, bounds[:2])[0] == 2
    for cut in range(1, len(data)):
        count, at, state = find_records(data[:cut], 1000, bounds)
        assert state == (WHOLE if at == cut else MORE_NEEDED) and at <= cut and count <= 3


def test_starts_are_those_of_the_records_up_to_the_first_that_is_not_whole(tmp_path):
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
    assert find_records(data, 1000, np.empty((9, 2), np.int64))[2] == state


def test_a_record_that_is_too_long_is_not_believed(tmp_path):
    assert find_records(framed(tmp_path, [b"ab"]), 1, np.empty((9, 2), np.int64))[2] == TOO_LONG


def example(**lists):
    message = message_class(EXAMPLE)()
    for name, values in lists.items():
        feature = message.features.feature[name]
        kind = {bytes: "bytes_list", float: "float_list", int: "int64_list"}[type(values[0])]
        getattr(feature, kind).value.extend(values)
    return message.SerializeToString(deterministic=True)


def test_features_are_found_by_their_whole_names():
    raw = [example(ab=[b"x", b""], a=[1, -1, 300]), example(b=[2.5]), b"", b"\x0a\x05junk"]
    data = np.frombuffer(b"".join(raw), np.uint8)
    ends = np.cumsum([len(r) for r in raw])
    bounds = np.stack([ends - [len(r) for r in raw], ends], axis=1).astype(np.int64)
    keys, key_offsets = np.frombuffer(b"aab", np.uint8), np.array([0, 1, 3])
    found, is_unusual = np.empty((4, 2, 3), np.int64), np.empty(4, np.bool_)
    assert find_columns(data, bounds, keys, key_offsets, np.empty((8, 5), np.int64), found, is_unusual) == 2
    assert is_unusual.tolist() == [False, False, False, True]
    assert found[:3, :, 0].tolist() == [[0x1A, 0x0A], [-1, -1], [-1, -1]]
    starts, ends = np.ascontiguousarray(found[:3, 0, 1]), np.ascontiguousarray(found[:3, 0, 2])
    counts = np.empty(3, np.int64)
    count_ints(data, starts, ends, counts)
    assert counts.tolist() == [3, 0, 0]
    values = np.empty(3, np.int64)
    assert take_ints(data, starts, ends, np.array([0, 3, 3, 3]), values) == -1 and values.tolist() == [1, -1, 300]
    starts, ends = np.ascontiguousarray(found[:3, 1, 1]), np.ascontiguousarray(found[:3, 1, 2])
    count_strings(data, starts, ends, counts)
    assert counts.tolist() == [2, 0, 0]
    places = np.empty((2, 2), np.int64)
    find_strings(data, starts, ends, np.array([0, 2, 2, 2]), places)
    text = np.empty(1, np.uint8)
    begins, stops = np.ascontiguousarray(places[:, 0]), np.ascontiguousarray(places[:, 1])
    take_bytes(data, begins, stops, np.array([0, 1, 1]), text)
    assert text.tobytes() == b"x"


def test_an_integer_that_is_cut_off_is_unusual():
    data, counts = np.array([0x80], np.uint8), np.empty(1, np.int64)
    count_ints(data, np.array([0]), np.array([1]), counts)
    assert counts[0] == UNUSUAL
