"""Checks that messages equal those that protobuf reads."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopstream.arrays import RaggedArray, offsets_of
from hopstream.errors import FormatError, SchemaError
from hopstream.tfgnn.example import ValueLists, decode_example, encode_examples
from hopstream.tfgnn.messages import EXAMPLE, message_class

Example = message_class(EXAMPLE)
integers = st.integers(-(2**63), 2**63 - 1) | st.integers(-300, 300)
reals = st.floats(width=32, allow_nan=False)
lists = {
    "float_list": st.lists(reals, max_size=40), "int64_list": st.lists(integers, max_size=40),
    "bytes_list": st.lists(st.binary(max_size=200), max_size=5),
}  # fmt: skip
names = st.text(max_size=150)
KINDS = {"float_list": np.float32, "int64_list": np.int64}


def strings_of(values):
    return RaggedArray(
        np.frombuffer(b"".join(values), np.uint8), offsets_of(np.array([len(v) for v in values], np.int64)), True
    )


def plain(values):
    if isinstance(values, RaggedArray):
        data, offsets = values.values.tobytes(), values.offsets.tolist()
        return [data[a:b] for a, b in pairwise(offsets)]
    return values.tolist()


@st.composite
def batches(draw):
    """Some messages, each a value for each of some features."""
    kinds = draw(st.dictionaries(names, st.sampled_from(sorted(lists)), max_size=4))
    num_messages = draw(st.integers(0, 3))
    return kinds, [{name: draw(lists[kind]) for name, kind in kinds.items()} for _ in range(num_messages)]


@settings(deadline=None, max_examples=30)
@given(batch=batches())
def test_messages_equal_those_of_protobuf_and_survive_a_round_trip(batch):
    kinds, messages = batch
    columns = {}
    for name, kind in kinds.items():
        flat = [value for message in messages for value in message[name]]
        values = strings_of(flat) if kind == "bytes_list" else np.array(flat, KINDS[kind])
        columns[name] = ValueLists(values, offsets_of(np.array([len(m[name]) for m in messages], np.int64)))
    encoded = encode_examples(columns, len(messages))
    assert len(encoded) == len(messages)
    for number, message in enumerate(messages):
        want = Example()
        for name, values in message.items():
            getattr(want.features.feature[name], kinds[name]).value.extend(values)
            getattr(want.features.feature[name], kinds[name]).SetInParent()
        assert Example.FromString(encoded[number]) == want or not message
        got = decode_example(encoded[number])
        assert {name: plain(values) for name, values in got.items()} == message
        assert {n: plain(v) for n, v in decode_example(want.SerializeToString()).items()} == message


def test_many_features_and_no_bytes_at_all():
    columns = {f"f{i}": ValueLists(np.array([i], np.int64), np.array([0, 1])) for i in range(100)}
    assert {n: v.tolist() for n, v in decode_example(encode_examples(columns, 1)[0]).items()} == {
        f"f{i}": [i] for i in range(100)
    }
    assert decode_example(b"") == {}


def test_values_unfit_for_lists_are_refused():
    with pytest.raises(SchemaError, match=r"x is int32; a list holds float32, int64 or strings"):
        encode_examples({"x": ValueLists(np.zeros(1, np.int32), np.array([0, 1]))}, 1)
    with pytest.raises(SchemaError, match=r"x has lists for 1 messages; there are 2"):
        encode_examples({"x": ValueLists(np.zeros(1, np.int64), np.array([0, 1]))}, 2)
    with pytest.raises(FormatError, match=r"name is b'\\xff', which is not UTF-8"):
        decode_example(b"\x0a\x07\x0a\x05\x0a\x01\xff\x12\x00")
