"""Checks that records come back, that every damage is found, and which files a name means."""

from __future__ import annotations

import gzip
import re
import struct

import numpy as np
import pytest

from hopstream.arrays import offsets_of
from hopstream.errors import ChecksumError, FormatError, SettingsError
from hopstream.tfgnn import tfrecord
from hopstream.tfgnn.tfrecord import (
    HEAD_BYTES,
    TAIL_BYTES,
    RecordWriter,
    example_blocks,
    files_of,
    masked_checksum,
    output_name,
    read_record_blocks,
    read_records,
    shard_paths,
    sharded_name,
)

RECORDS = [b"", b"a", bytes(range(256)) * 9]


def write(path, records=RECORDS, *, is_compressed=False):
    with RecordWriter(path, is_compressed=is_compressed) as writer:
        for record in records:
            writer.write(record)
    return path


def test_the_layout_is_that_of_tensorflow(tmp_path):
    """The bytes of ``tf.io.TFRecordWriter`` for one record ``hello``, from its documented layout."""
    raw = write(tmp_path / "x", [b"hello"]).read_bytes()
    assert raw[:8] == struct.pack("<Q", 5) and raw[12:17] == b"hello" and len(raw) == 21
    # CRC-32C of 'hello' is 0x9a71bb4c.
    assert struct.unpack("<I", raw[17:])[0] == (((0x9A71BB4C >> 15) | (0x9A71BB4C << 17)) + 0xA282EAD8) & 0xFFFFFFFF
    assert struct.unpack("<I", raw[8:12])[0] == masked_checksum(raw[:8])


@pytest.mark.parametrize("is_compressed", [False, True])
def test_records_survive_a_round_trip(tmp_path, is_compressed):
    path = write(tmp_path / "x", is_compressed=is_compressed)
    assert list(read_records(path)) == RECORDS
    again = write(tmp_path / "y", is_compressed=is_compressed)
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.parametrize(("block_bytes", "is_compressed"), [(1, False), (50, True), (1000, False), (None, True)])
def test_blocks_hold_every_record_once(tmp_path, block_bytes, is_compressed):
    records = [bytes(size % 251 for size in range(number)) for number in range(40)] + [b"", bytes(5000)]
    path = write(tmp_path / "x", records, is_compressed=is_compressed)
    found = [
        (block.first + number, record)
        for block in read_record_blocks(path, block_bytes)
        for number, record in enumerate(block.records())
    ]
    assert found == list(enumerate(records)) and list(read_records(path)) == records


def test_blocks_of_examples_are_bounded_by_records_and_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(tfrecord, "MAX_EXAMPLES", 4)
    monkeypatch.setattr(tfrecord, "EXAMPLES_BYTES", 150)
    sizes = {"a": [5, 0, 60, 60, 3, 200, 1, 1, 1, 1, 1], "empty": [], "b": [5, 0, 60]}
    paths = [write(tmp_path / name, map(bytes, of)) for name, of in sizes.items()]
    found = [(b.path.name, b.first, [len(record) for record in b.records()]) for b in example_blocks(paths)]
    assert found == [
        ("a", 0, [5, 0, 60]), ("a", 3, [60, 3]), ("a", 5, [200, 1]), ("a", 7, [1, 1, 1, 1]),
        ("b", 0, [5, 0, 60]),
    ]  # fmt: skip


def test_records_before_damage_are_delivered(tmp_path):
    path = write(tmp_path / "a")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"?")
    stream = read_record_blocks(path)
    assert next(stream).records() == RECORDS[:-1]
    with pytest.raises(ChecksumError, match="record 2 does not match its checksum"):
        next(stream)
    path.write_bytes(whole)
    path.write_bytes(path.read_bytes()[:-1])
    stream = read_record_blocks(path)
    assert next(stream).records() == RECORDS[:-1]
    with pytest.raises(FormatError, match="a ends in the middle of record 2"):
        next(stream)


@pytest.mark.parametrize("small_bytes", [0, 1 << 20])
def test_framed_records_are_the_same_bytes(tmp_path, monkeypatch, small_bytes):
    monkeypatch.setattr(tfrecord, "SMALL_BYTES", small_bytes)
    offsets = offsets_of(np.array([len(record) + HEAD_BYTES + TAIL_BYTES for record in RECORDS]))
    data = np.full(int(offsets[-1]), 7, np.uint8)
    for start, record in zip(offsets[:-1].tolist(), RECORDS, strict=True):
        data[start + HEAD_BYTES :][: len(record)] = np.frombuffer(record, np.uint8)
    with RecordWriter(tmp_path / "x") as writer:
        writer.write_framed(data, offsets)
    assert (tmp_path / "x").read_bytes() == write(tmp_path / "y").read_bytes()


@pytest.mark.parametrize("large_bytes", [0, 3])
def test_every_truncation_and_every_flipped_byte_is_found(tmp_path, monkeypatch, large_bytes):
    monkeypatch.setattr(tfrecord, "LARGE_BYTES", large_bytes)
    raw = write(tmp_path / "x", [b"one", b"", b"three"]).read_bytes()
    ends = [0, 19, 35, len(raw)]
    for size in range(len(raw)):
        (tmp_path / "y").write_bytes(raw[:size])
        if size in ends:
            assert len(list(read_records(tmp_path / "y"))) == ends.index(size)
        else:
            with pytest.raises(
                FormatError, match=rf"y ends in the middle of record {sum(e <= size for e in ends) - 1}"
            ):
                list(read_records(tmp_path / "y"))
    for at in range(len(raw)):
        damaged = bytearray(raw)
        damaged[at] ^= 1
        (tmp_path / "y").write_bytes(damaged)
        with pytest.raises(ChecksumError, match=r"record [012]"):
            list(read_records(tmp_path / "y"))


@pytest.mark.parametrize("is_compressed", [False, True])
def test_a_size_beyond_the_file_takes_no_memory(tmp_path, is_compressed):
    head = struct.pack("<Q", 1 << 40)
    raw = head + struct.pack("<I", masked_checksum(head)) + b"x" * 8
    (tmp_path / "x").write_bytes(gzip.compress(raw) if is_compressed else raw)
    with pytest.raises(FormatError, match=r"record 0 declares 1099511627776 bytes"):
        list(read_records(tmp_path / "x"))


def test_a_damaged_gzip_file_is_named(tmp_path):
    raw = write(tmp_path / "x", is_compressed=True).read_bytes()
    for damaged in (raw[:-9], raw[:-1], raw[:40] + b"????" + raw[44:]):
        (tmp_path / "x").write_bytes(damaged)
        with pytest.raises(FormatError, match=r"x: the data from record \d on cannot be decompressed"):
            list(read_records(tmp_path / "x"))


def test_names_of_shards(tmp_path):
    assert sharded_name("a/b@15") == ("a/b", 15) and sharded_name("a@b/c") == ("a@b/c", None)
    assert sharded_name("me@home.csv") == ("me@home.csv", None)
    names = [path.name for path in shard_paths(tmp_path / "n.tfrecords", 2)]
    assert names == ["n.tfrecords-00000-of-00002", "n.tfrecords-00001-of-00002"]
    for name in names:
        (tmp_path / name).touch()
    wanted = [tmp_path / name for name in names]
    for given in (f"{tmp_path}/n.tfrecords@2", f"{tmp_path}/n.tfrecords-?????-of-00002", f"{tmp_path}/n.*"):
        assert files_of(given) == wanted
    assert files_of(wanted[0]) == wanted[:1]
    with pytest.raises(
        FormatError,
        match=r"@3 means 3 files; .*-00000-of-00003 is missing, and all others too; there is .*00000-of-00002",
    ):
        files_of(f"{tmp_path}/n.tfrecords@3")
    (tmp_path / "n.tfrecords.pbtxt").touch()
    assert files_of("n.tfrecords-*", tmp_path) == wanted
    (tmp_path / "n.tfrecords-00000-of-00001").touch()
    with pytest.raises(
        FormatError, match=r"n.* is ambiguous: .*n.tfrecords has shards of \[1, 2\] files; give the file names"
    ):
        files_of(f"{tmp_path}/n.tfrecords-*")
    assert files_of(f"{tmp_path}/n.tfrecords-*-of-00002") == wanted
    wanted[0].unlink()
    for given in (f"{tmp_path}/n.tfrecords-*-of-00002", f"{tmp_path}/n.*2"):
        with pytest.raises(FormatError, match=r"n.tfrecords-00000-of-00002 is missing, but 1 of 2 exist; give their"):
            files_of(given)
    assert files_of(wanted[1]) == wanted[1:]
    with pytest.raises(FormatError, match=r"no file matches .*m\*"):
        files_of(f"{tmp_path}/m*")
    with pytest.raises(FormatError, match=r"m does not exist"):
        files_of(tmp_path / "m")
    for number in ("0", "999999"):
        with pytest.raises(SettingsError, match=rf"names {number} files; use 1 to"):
            sharded_name(f"x@{number}")


@pytest.mark.parametrize("tail", ["1000000", "-1", "y", "", "1 "])
def test_malformed_shard_counts_are_refused(tail):
    with pytest.raises(SettingsError, match=rf"out/s6@{tail} ends in @{tail}; write @ and a number of files"):
        sharded_name(f"out/s6@{tail}")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        *((name, f"{name} has ? or *; names of files to write end in -?????-of-00015, ") for name in (
            "o/x-?????-of-2", "o/x-????-of-00002", "o/x-?????-of-00002.tfrecord", "o/x?@2", "x-*", "x?-?????-of-00002",
        )),
        ("o/x-?????-of-00000", "o/x-?????-of-00000 names 0 files; use 1 to"),
        ("o/x@0", "o/x@0 names 0 files; use 1 to"),
    ],
)  # fmt: skip
def test_an_output_name_needs_a_number_of_files(name, message):
    with pytest.raises(SettingsError, match=re.escape(message)):
        output_name(name)


def test_names_of_outputs():
    for name in ("o?/x@12", "o?/x-?????-of-00012", "o?/x-00003-of-00012"):
        assert output_name(name) == ("o?/x", 12)
    assert output_name("o?/x.tfrecord") == ("o?/x.tfrecord", None)
