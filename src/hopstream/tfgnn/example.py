"""Encodes many ``tf.Example`` messages at once, and decodes one; ``example_lists`` decodes many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from hopstream.arrays import Array, IntArray, RaggedArray, offsets_of
from hopstream.errors import FormatError, SchemaError, quoted
from hopstream.kernels.examples import (
    add_entry_sizes,
    begin_examples,
    int_list_sizes,
    put_floats,
    put_ints,
    put_strings,
    string_list_sizes,
)
from hopstream.tfgnn.messages import EXAMPLE, message_class
from hopstream.tfgnn.tfrecord import HEAD_BYTES, TAIL_BYTES

Values = Array | RaggedArray
"""float32[num_values], int64[num_values], or byte strings as a ragged column."""


@dataclass(frozen=True, slots=True, eq=False)
class ValueLists:
    """One feature of a batch of messages.

    Attributes:
        values: The values of all messages, one after the other.
        offsets: int64[num_messages + 1]; message ``i`` has values ``offsets[i]`` to ``offsets[i + 1]``.
    """

    values: Values
    offsets: IntArray

    @property
    def counts(self) -> IntArray:
        """int64[num_messages], how many values each message has."""
        return self.offsets[1:] - self.offsets[:-1]


@dataclass(frozen=True, slots=True, eq=False)
class EncodedExamples:
    """Messages in one buffer, with room around each for what TFRecord files add.

    Attributes:
        data: uint8[num_bytes].
        offsets: int64[num_messages + 1]; message ``i`` with that room is ``data[offsets[i]:offsets[i + 1]]``.
    """

    data: Array
    offsets: IntArray

    def __len__(self) -> int:
        """Number of messages."""
        return len(self.offsets) - 1

    def __getitem__(self, number: int) -> bytes:
        """One message alone."""
        return self.data[self.offsets[number] + HEAD_BYTES : self.offsets[number + 1] - TAIL_BYTES].tobytes()

    @property
    def bounds(self) -> IntArray:
        """int64[num_messages, 2], begin and end of each."""
        return np.stack([self.offsets[:-1] + HEAD_BYTES, self.offsets[1:] - TAIL_BYTES], axis=1)


def encode_examples(
    features: Mapping[str, ValueLists], num_messages: int, *, room: Array | None = None
) -> EncodedExamples:
    """Write a batch of messages; features are in the order of their names.

    Args:
        features: Name to its lists in all messages.
        num_messages: How many messages there are.
        room: uint8[...] to write to where it is large enough; None allocates.

    Raises:
        SchemaError: Values are of another dtype, or a feature has lists for another number of messages.
    """
    totals = np.zeros(num_messages, np.int64)
    payloads: dict[str, IntArray] = {}
    for name, lists in features.items():
        if len(lists.offsets) != num_messages + 1:
            raise SchemaError(f"{name} has lists for {len(lists.offsets) - 1} messages; there are {num_messages}")
        payloads[name] = _payload_sizes(name, lists)
        add_entry_sizes(payloads[name], isinstance(lists.values, np.ndarray), len(name.encode()), totals)
    # An Example without features still has its map, of no bytes.
    lengths = totals + 1 + _varint_lengths(totals)
    offsets = offsets_of(lengths + HEAD_BYTES + TAIL_BYTES)
    num_bytes = int(offsets[-1])
    data = room[:num_bytes] if room is not None and len(room) >= num_bytes else np.empty(num_bytes, np.uint8)
    places = np.empty(num_messages, np.int64)
    begin_examples(offsets[:-1] + HEAD_BYTES, totals, data, places)
    for name in sorted(features):
        lists, key = features[name], np.frombuffer(name.encode(), np.uint8)
        if isinstance(lists.values, RaggedArray):
            strings = lists.values
            put_strings(data, places, key, strings.values, strings.offsets, lists.offsets, payloads[name])
        elif lists.values.dtype == np.float32:
            put_floats(data, places, key, lists.values.view(np.uint8), lists.offsets)
        else:
            put_ints(data, places, key, lists.values, lists.offsets, payloads[name])
    return EncodedExamples(data, offsets)


def _payload_sizes(name: str, lists: ValueLists) -> IntArray:
    sizes = np.empty(len(lists.offsets) - 1, np.int64)
    if isinstance(lists.values, RaggedArray):
        string_list_sizes(lists.values.offsets, lists.offsets, sizes)
    elif lists.values.dtype == np.float32 and lists.values.flags.c_contiguous:
        np.multiply(np.diff(lists.offsets), 4, out=sizes)
    elif lists.values.dtype == np.int64:
        int_list_sizes(lists.values, lists.offsets, sizes)
    else:
        raise SchemaError(f"{name} is {lists.values.dtype}; a list holds float32, int64 or strings")
    return sizes


def _varint_lengths(numbers: IntArray) -> IntArray:
    return np.searchsorted(1 << np.arange(7, 63, 7, dtype=np.int64), numbers, side="right") + 1


def decode_example(data: bytes) -> dict[str, Values]:
    """The lists of one message by name, read by protobuf. A feature without a list is an empty int64 list.

    Raises:
        FormatError: The bytes are no ``Example``.
    """
    lists: dict[str, Values] = {}
    for name, feature in _features_of(data).items():  # [:] makes plain lists, which NumPy reads faster
        kind = feature.WhichOneof("kind")
        if kind == "bytes_list":
            strings = list(feature.bytes_list.value)
            offsets = offsets_of(np.fromiter(map(len, strings), np.int64, len(strings)))
            lists[name] = RaggedArray(np.frombuffer(b"".join(strings), np.uint8), offsets, is_string=True)
        elif kind == "float_list":
            lists[name] = np.array(feature.float_list.value[:], np.float32)
        else:
            lists[name] = np.array(feature.int64_list.value[:], np.int64)
    return lists


def feature_names(data: bytes) -> list[str]:
    """The names of one message's features.

    Raises:
        FormatError: The bytes are no ``Example``.
    """
    return list(_features_of(data))


def _features_of(data: bytes) -> dict[str, Any]:
    try:
        return dict(message_class(EXAMPLE).FromString(data).features.feature.items())
    except UnicodeDecodeError as error:
        raise FormatError(
            f"not a tf.Example: a feature's name is {quoted(error.object)}, which is not UTF-8"
        ) from error
    except DecodeError as error:
        raise FormatError(f"not a tf.Example: {error}") from error
