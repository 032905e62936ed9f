"""Checks that lists of many messages equal those that protobuf reads of each."""

from __future__ import annotations

import time
from functools import partial

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from hopstream.errors import FormatError
from hopstream.tfgnn import example as example_lists
from hopstream.tfgnn.example import ValueLists, decode_example, decode_examples, encode_examples
from hopstream.tfgnn.messages import EXAMPLE, message_class
from tests.tfgnn.schemas import not_utf_8

Example = message_class(EXAMPLE)


def example(**lists):
    message = Example()
    for name, values in lists.items():
        first = values[0] if values else 0
        kind = {bytes: "bytes_list", float: "float_list"}.get(type(first), "int64_list")
        getattr(message.features.feature[name], kind).value.extend(values)
    return message.SerializeToString()


def unpacked(name, values):
    """A list of integers as protobuf 2 would write it: a tag before each number."""
    inner = b"".join(b"\x08" + bytes([value]) for value in values)
    feature = b"\x1a" + bytes([len(inner)]) + inner
    entry = b"\x0a" + bytes([len(name)]) + name + b"\x12" + bytes([len(feature)]) + feature
    features = b"\x0a" + bytes([len(entry)]) + entry
    return b"\x0a" + bytes([len(features)]) + features


def overlong():
    """An integer of more than ten bytes, which protobuf refuses."""
    inner = b"\x0a\x0c" + b"\xff" * 11 + b"\x01"
    feature = b"\x1a" + bytes([len(inner)]) + inner
    entry = b"\x0a\x01a\x12" + bytes([len(feature)]) + feature
    features = b"\x0a" + bytes([len(entry)]) + entry
    return b"\x0a" + bytes([len(features)]) + features


values = st.one_of(
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5),
    st.lists(st.integers(0, 127), max_size=40),
)
messages = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "i": values,
            "f": st.lists(st.floats(width=32, allow_nan=False), max_size=5),
            "s": st.lists(st.binary(max_size=6), max_size=5),
            "longer name": values,
        },
    ),
    max_size=6,
)


@settings(max_examples=30, deadline=None)
@given(messages)
def test_lists_are_those_of_each_message(of):
    records = [example(**lists) for lists in of]
    found = decode_examples(records)
    assert sorted(found) == sorted({name for lists in of for name in lists})
    for name, lists in found.items():
        for m, record in enumerate(records):
            alone = decode_example(record)
            assert bool(lists.is_there[m]) == (name in alone)
            flat = lists.values.tolist()[lists.offsets[m] : lists.offsets[m + 1]] if name != "s" else None
            if flat is not None:
                assert flat == (alone[name].tolist() if name in alone else [])
            else:
                of_message = range(lists.offsets[m], lists.offsets[m + 1])
                bounds = getattr(lists.values, "offsets", None)
                got = [lists.values.values[bounds[i] : bounds[i + 1]].tobytes() for i in of_message]
                assert got == of[m].get("s", [])


def test_messages_with_another_encoding_are_read_too():
    twice = example(a=[1]) + example(a=[2, 3])  # protobuf merges these; the last value of a key counts
    records = [example(a=[7, 300]), unpacked(b"a", [1, 2, 3]), twice, b"", example(b=[1.5])]
    lists = decode_examples(records, ["a"])["a"]
    assert np.diff(lists.offsets).tolist() == [2, 3, 2, 0, 0]
    assert lists.values.tolist() == [7, 300, 1, 2, 3, 2, 3]
    assert lists.is_there.tolist() == [True, True, True, False, False]


def test_unusual_messages_are_left_to_protobuf():
    """Unpacked values, a list in two pieces and unknown fields are all valid."""
    two_pieces = b"\x0a\x0f\x0a\x0d\x0a\x01a\x12\x08\x1a\x06\x0a\x01\x07\x0a\x01\x09"
    usual = example(a=[5])
    for record in (unpacked(b"a", [7, 9]), two_pieces, b"\x98\x06\x01" + unpacked(b"a", [7, 9])):
        assert decode_examples([usual, record, usual])["a"].values.tolist() == [5, 7, 9, 5]


@settings(max_examples=30, deadline=None)
@given(data=st.binary(max_size=60))
def test_any_bytes_are_read_as_protobuf_reads_them(data):
    try:
        want = Example.FromString(data).features.feature
    except DecodeError:
        with pytest.raises(FormatError, match=r"message 0: not a tf.Example"):
            decode_examples([data])
        return
    assert decode_examples([data]).keys() == want.keys()


def test_many_names_are_found():
    records = [example(**{f"n{i}": [i] for i in range(m, 150)}) for m in range(3)]
    found = decode_examples(records)
    assert len(found) == 150
    assert found["n149"].values.tolist() == [149] * 3


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([example(a=[1]), b"\x0a\xff"], "message 1: not a tf.Example"),
        ([not_utf_8()], "message 0: not a tf.Example: a feature's name is b'.*', which is not UTF-8"),
        ([example(a=[1]), overlong()], "message 1: not a tf.Example"),
        ([example(a=[1]), b"", example(a=[1.0])], "a is a list of int64 in message 0 and of float32 in message 2"),
    ],
)
def test_invalid_examples_are_refused(records, message):
    with pytest.raises(FormatError, match=message):
        decode_examples(records)


def test_too_many_names_are_refused(monkeypatch):
    monkeypatch.setattr(example_lists, "MAX_NAMES", 3)
    records = [example(**{f"n{number}": [1]}) for number in range(5)]
    with pytest.raises(FormatError, match="more than 3 names of features; give the names to read"):
        decode_examples(records)
    assert decode_examples(records, ["n4"])["n4"].values.tolist() == [1]


def test_no_messages_decode_to_empty_columns():
    assert decode_examples([]) == {}
    assert decode_examples([], ["a"])["a"].offsets.tolist() == [0]


def shuffled(names, seed):
    """A message of some names in an order of chance, which protobuf reads as any other."""
    entries = [encode_examples({name: ValueLists(np.array([len(name)]), np.array([0, 1]))}, 1)[0] for name in names]
    pieces = [entry[2:] for entry in entries]
    assert all(entry[1] == len(entry) - 2 for entry in entries)
    np.random.default_rng(seed).shuffle(pieces)
    size, head = sum(map(len, pieces)), b"\x0a"
    while size > 127:
        head += bytes([size & 127 | 128])
        size >>= 7
    return head + bytes([size]) + b"".join(pieces)


@settings(max_examples=30, deadline=None)
@given(names=st.sets(st.text("abä", max_size=4), max_size=30), wanted=st.sets(st.text("abä", max_size=4), max_size=9))
def test_names_in_any_order_are_found(names, wanted):
    record = shuffled(sorted(names), 0)
    for chosen in (names, wanted):
        found = decode_examples([record, b""], sorted(chosen))
        assert {name: of.values.tolist() for name, of in found.items()} == {
            name: [len(name)] if name in names else [] for name in chosen
        }
    assert set(decode_examples([record])) == names


def test_names_in_another_order_take_no_time_for_each_pair_of_them():
    names = [f"n{number:05}" for number in range(9_000)]
    times = []
    for record in (shuffled(names, 0), encode_examples({n: ValueLists(*ONE) for n in names}, 1)[0]):
        locate = partial(example_lists._located, example_lists.Messages.of([record] * 4), names)
        locate()  # compiled
        took = []
        for _ in range(3):
            start = time.thread_time()
            locate()
            took.append(time.thread_time() - start)
        times.append(min(took))
    assert times[0] < 40 * times[1]  # 14 look-ups of a name, most of which miss caches; 4,500 took 500 times as long


ONE = (np.array([1]), np.array([0, 1]))
