"""Do blocks of records hold what is read record by record, however blocks and messages are cut?"""

from __future__ import annotations

import numpy as np
import pytest

from hopstream.arrays import RaggedArray
from hopstream.errors import ChecksumError, FormatError
from hopstream.kernels.examples import BYTES_LIST, FLOAT_LIST, INT64_LIST
from hopstream.tfgnn.example import decode_example
from hopstream.tfgnn.example_columns import NOT_THERE, RecordBlock, find_columns, read_record_blocks
from hopstream.tfgnn.messages import EXAMPLE, message_class
from hopstream.tfgnn.tfrecord import RecordWriter, read_records

NAMES = ["ids", "xs", "texts", "none"]


def records_of(rng, num_records=40):
    made = []
    for number in range(num_records):
        message = message_class(EXAMPLE)()
        message.features.feature["ids"].int64_list.value.extend(rng.integers(-(2**63), 2**63, number % 4).tolist())
        message.features.feature["xs"].float_list.value.extend(rng.random(number % 3).tolist())
        if number % 5:
            message.features.feature["texts"].bytes_list.value.extend([b"a" * (number % 3), b"\xff"])
        for other in range(number % 2 * 80):
            message.features.feature[f"other{other}"].int64_list.value.append(other)
        made.append(message.SerializeToString())
    return made


def write(path, records, *, is_compressed=False):
    with RecordWriter(path, is_compressed=is_compressed) as writer:
        for record in records:
            writer.write(record)
    return path


@pytest.mark.parametrize("is_compressed", [False, True])
@pytest.mark.parametrize("block_bytes", [1, 50, 1000, None])
def test_blocks_are_what_records_are(rng, tmp_path, block_bytes, is_compressed):
    path = write(tmp_path / "x", [*records_of(rng), b"", bytes(5000)], is_compressed=is_compressed)
    found = [
        (block.first + i, block.data[start:end].tobytes())
        for block in read_record_blocks(path, block_bytes)
        for i, (start, end) in enumerate(block.bounds.tolist())
    ]
    assert found == list(enumerate(read_records(path)))


def test_columns_are_what_messages_hold(rng, tmp_path):
    records = records_of(rng)
    records.append(b"\x0a\x00" + records[3])  # the map in two pieces: unusual, and valid
    path = write(tmp_path / "x", records)
    (block,) = read_record_blocks(path)
    found = find_columns(block, NAMES)
    assert (found.kinds(3) == NOT_THERE).all()
    for column, kind in enumerate([INT64_LIST, FLOAT_LIST, BYTES_LIST]):
        lists = found.lists(column, kind)
        for i, record in enumerate(records):
            wanted = decode_example(record).get(NAMES[column])
            values = lists.values[lists.offsets[i] : lists.offsets[i + 1]] if column < 2 else None
            if column < 2:
                assert values.tolist() == (wanted.tolist() if wanted is not None else [])
            else:
                held = lists.values.take(np.arange(lists.offsets[i], lists.offsets[i + 1]))
                assert held.values.tobytes() == (wanted.values.tobytes() if isinstance(wanted, RaggedArray) else b"")


def test_a_record_that_is_no_message_is_named(tmp_path):
    data = np.frombuffer(b"\x0a\x03\x0a\x7f\x01", np.uint8)
    block = RecordBlock(data, np.array([[0, 0], [0, len(data)]]), 0)
    with pytest.raises(FormatError, match=r"message 1 is not a tf.Example"):
        find_columns(block, NAMES)


@pytest.mark.parametrize("is_compressed", [False, True])
def test_damaged_files(rng, tmp_path, is_compressed):
    path = write(tmp_path / "x", records_of(rng, 3), is_compressed=is_compressed)
    raw = path.read_bytes()
    path.write_bytes(raw[:-3])
    with pytest.raises(FormatError, match=r"record [12]|behind the first \d records"):
        list(read_record_blocks(path))
    if not is_compressed:
        path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
        with pytest.raises(ChecksumError, match=r"record 2 does not match its checksum"):
            list(read_record_blocks(path))
        path.write_bytes(b"\xff" * 50)
        with pytest.raises(ChecksumError, match=r"the size of record 0"):
            list(read_record_blocks(path))
