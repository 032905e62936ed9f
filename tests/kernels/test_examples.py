"""Checks that messages are written as protobuf writes them, and features found where it finds them."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hopstream.arrays import RaggedArray, offsets_of
from hopstream.kernels.examples import (
    BYTES_LIST,
    FLOAT_LIST,
    INT64_LIST,
    UNUSUAL,
    find_features,
    int_list_sizes,
    string_list_sizes,
)
from hopstream.tfgnn.example import ValueLists, encode_examples
from hopstream.tfgnn.messages import EXAMPLE, message_class

integers = st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 300)


def example_with(**features):
    message = message_class(EXAMPLE)()
    for name, (kind, values) in features.items():
        getattr(message.features.feature[name], kind).value.extend(values)
    return message


@settings(deadline=None)
@given(lists=st.lists(st.lists(integers, max_size=5), max_size=4))
def test_sizes_of_integers_are_those_of_protobuf(lists):
    sizes = np.empty(len(lists), np.int64)
    values = np.array([value for row in lists for value in row], np.int64)
    int_list_sizes(values, offsets_of(np.array([len(row) for row in lists], np.int64)), sizes)
    wanted = []
    for row in lists:
        message = example_with(x=("int64_list", row)).features.feature["x"].int64_list
        size = message.ByteSize()
        wanted.append(size - 1 - (1 if size < 130 else 2) if row else 0)
    assert sizes.tolist() == wanted


def test_sizes_of_strings_are_those_of_protobuf():
    strings = [b"", b"a", b"b" * 127, b"c" * 128, b"d" * 20_000]
    offsets = offsets_of(np.array([len(value) for value in strings], np.int64))
    sizes = np.empty(2, np.int64)
    string_list_sizes(offsets, np.array([0, 2, 5]), sizes)
    for size, row in zip(sizes.tolist(), (strings[:2], strings[2:]), strict=True):
        assert size == example_with(x=("bytes_list", row)).features.feature["x"].bytes_list.ByteSize()


def test_strings_are_written_as_protobuf_writes_them():
    lists = ValueLists(RaggedArray.from_strings(["a", "bc"]), np.array([0, 2]))
    wanted = example_with(x=("bytes_list", [b"a", b"bc"]))
    assert message_class(EXAMPLE).FromString(bytes(encode_examples({"x": lists}, 1)[0])) == wanted


def test_features_are_located():
    message = example_with(f=("float_list", [1.5, -2]), i=("int64_list", [7, -1]), s=("bytes_list", [b"", b"xy"]))
    message.features.feature["empty"].int64_list.SetInParent()
    message.features.feature["none"].SetInParent()
    data = np.frombuffer(b"?" + message.SerializeToString() + b"!", np.uint8)
    found = np.empty((9, 5), np.int64)
    assert find_features(data, 1, len(data) - 1, found) == 5
    by_name = {data[key:key_end].tobytes(): rest for key, key_end, *rest in found[:5].tolist()}
    kind, start, end = by_name[b"f"]
    assert kind == FLOAT_LIST and np.frombuffer(data[start:end].tobytes(), "<f4").tolist() == [1.5, -2]
    kind, start, end = by_name[b"i"]
    assert kind == INT64_LIST and data[start:end].tobytes() == b"\x07" + b"\xff" * 9 + b"\x01"
    kind, start, end = by_name[b"s"]
    assert kind == BYTES_LIST and data[start:end].tobytes() == b"\x0a\x00\x0a\x02xy"
    assert by_name[b"empty"][0] == INT64_LIST and by_name[b"empty"][1] == by_name[b"empty"][2]
    assert by_name[b"none"][0] == 0


def test_features_beyond_the_buffer_are_counted():
    message = example_with(a=("int64_list", [1, 2, 3]), b=("bytes_list", [b"x", b"y"]))
    data = np.frombuffer(message.SerializeToString(), np.uint8)
    found = np.empty((2, 5), np.int64)
    assert find_features(data, 0, len(data), found[:1]) == 2
    assert find_features(data, 0, len(data), found) == 2


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_damaged_messages_are_never_read_beyond_their_end(data):
    """With bounds checks, an access outside the array is an error here."""
    message = example_with(f=("float_list", [1.5]), i=("int64_list", [300, -1]), s=("bytes_list", [b"", b"xyz"]))
    raw = np.frombuffer(message.SerializeToString(), np.uint8).copy()
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw = raw[: data.draw(st.integers(0, len(raw)))]
    found = np.empty((9, 5), np.int64)
    num_found = find_features(raw, 0, len(raw), found)
    assert UNUSUAL <= num_found <= len(raw)
    for key, key_end, kind, start, end in found[: max(0, num_found)].tolist():
        assert 0 <= key <= key_end <= start <= end <= len(raw) and kind in (0, BYTES_LIST, FLOAT_LIST, INT64_LIST)
