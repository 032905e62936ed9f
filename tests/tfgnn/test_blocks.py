"""Do blocks hold every record once, and no more than fits?"""

from __future__ import annotations

import pytest

from hopstream.errors import FormatError
from hopstream.tfgnn import blocks
from hopstream.tfgnn.blocks import record_blocks
from hopstream.tfgnn.tfrecord import RecordWriter

SIZES = [5, 0, 60, 60, 3, 200, 1, 1, 1, 1, 1]


@pytest.fixture
def paths(tmp_path):
    for name, sizes in (("a", SIZES), ("empty", []), ("b", SIZES[:3])):
        with RecordWriter(tmp_path / name) as writer:
            for size in sizes:
                writer.write(bytes(size))
    return [tmp_path / name for name in ("a", "empty", "b")]


def test_blocks_are_bounded_by_records_and_bytes(paths, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_RECORDS", 4)
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 100)
    found = list(record_blocks(paths))
    assert [(block.path.name, block.first, [len(record) for record in block.records]) for block in found] == [
        ("a", 0, [5, 0, 60, 60]), ("a", 4, [3, 200]), ("a", 6, [1, 1, 1, 1]), ("a", 10, [1]), ("b", 0, [5, 0, 60]),
    ]  # fmt: skip


def test_what_lies_before_damage_is_handed_out_first(paths):
    paths[0].write_bytes(paths[0].read_bytes()[:-1])
    stream = record_blocks(paths)
    assert len(next(stream).records) == len(SIZES) - 1
    with pytest.raises(FormatError, match="a ends in the middle of record 10"):
        next(stream)
