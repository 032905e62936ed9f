"""Encodes and decodes batches of ``tf.Example`` messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from google.protobuf.message import DecodeError

from hopstream.arrays import Array, IntArray, RaggedArray, offsets_of
from hopstream.errors import FormatError, SchemaError, quoted
from hopstream.kernels.examples import (
    BYTES_LIST,
    FLOAT_LIST,
    INT64_LIST,
    MISSING,
    UNUSUAL,
    add_entry_sizes,
    begin_examples,
    count_values,
    int_list_sizes,
    locate_lists,
    put_floats,
    put_ints,
    put_strings,
    read_float_lists,
    read_int_lists,
    read_string_lists,
    string_list_sizes,
)
from hopstream.tfgnn.messages import EXAMPLE, message_class
from hopstream.tfgnn.tfrecord import HEAD_BYTES, TAIL_BYTES

Values = Array | RaggedArray
"""float32[num_values], int64[num_values], or byte strings as a ragged column."""


@dataclass(frozen=True, slots=True, eq=False)
class ValueLists:
    """The lists of one feature in a batch of messages.

    Attributes:
        values: The concatenated values of all messages.
        offsets: int64[num_messages + 1]; message ``i`` has values ``offsets[i]`` to ``offsets[i + 1]``.
    """

    values: Values
    offsets: IntArray

    @property
    def counts(self) -> IntArray:
        """int64[num_messages], number of values of each message."""
        return self.offsets[1:] - self.offsets[:-1]


@dataclass(frozen=True, slots=True, eq=False)
class EncodedExamples:
    """Messages in one buffer, each with room for the header and footer of a TFRecord.

    Attributes:
        data: uint8[num_bytes].
        offsets: int64[num_messages + 1]; ``data[offsets[i]:offsets[i + 1]]`` is message ``i`` with header and footer.
    """

    data: Array
    offsets: IntArray

    def __len__(self) -> int:
        """Return the number of messages."""
        return len(self.offsets) - 1

    def __getitem__(self, number: int) -> bytes:
        """Return one message without header and footer."""
        return self.data[self.offsets[number] + HEAD_BYTES : self.offsets[number + 1] - TAIL_BYTES].tobytes()

    @property
    def bounds(self) -> IntArray:
        """int64[num_messages, 2], start and end of each message in ``data``."""
        return np.stack([self.offsets[:-1] + HEAD_BYTES, self.offsets[1:] - TAIL_BYTES], axis=1)


def encode_examples(
    features: Mapping[str, ValueLists], num_messages: int, *, room: Array | None = None
) -> EncodedExamples:
    """Encode a batch of messages; features are in order of names.

    Args:
        features: Feature name to its lists in all messages.
        num_messages: Number of messages.
        room: uint8[...], a buffer to use if it is large enough; None to allocate one.

    Raises:
        SchemaError: Values are not float32, int64 or strings, or the number of lists is not that of messages.
    """
    totals = np.zeros(num_messages, np.int64)
    payloads: dict[str, IntArray] = {}
    for name, lists in features.items():
        if len(lists.offsets) != num_messages + 1:
            raise SchemaError(f"{name} has lists for {len(lists.offsets) - 1} messages; there are {num_messages}")
        payloads[name] = _payload_sizes(name, lists)
        add_entry_sizes(payloads[name], isinstance(lists.values, np.ndarray), len(name.encode()), totals)
    # Even an Example without features contains its map, of 0 bytes.
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
    """Decode the lists of one message by name, with protobuf.

    A feature without a list becomes an empty int64 list.

    Raises:
        FormatError: The bytes are not an ``Example``.
    """
    lists: dict[str, Values] = {}
    for name, feature in _features_of(data).items():  # [:] makes plain lists, which NumPy converts faster
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
    """Return the names of one message's features.

    Raises:
        FormatError: The bytes are not an ``Example``.
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


T = TypeVar("T")
MAX_NAMES = 10_000
"""Most different names in a batch of messages. Graphs do not have more, and names take memory."""
FEATURES_ROOM = 64
"""Initial size of the table of a message's features; it grows if a message has more."""
KIND_NAMES = {FLOAT_LIST: "float32", INT64_LIST: "int64", BYTES_LIST: "strings"}


@dataclass(frozen=True, slots=True, eq=False)
class NamedLists(ValueLists):
    """The lists of one feature in a batch of messages, and which messages have the feature.

    Attributes:
        is_there: bool[num_messages], whether the message has the feature, possibly with an empty list.
    """

    is_there: Array


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """Messages in one buffer.

    Attributes:
        data: uint8[...], the buffer of the messages.
        bounds: int64[num_messages, 2], start and end of each message in ``data``.
    """

    data: Array
    bounds: IntArray

    @classmethod
    def of(cls, records: Sequence[bytes]) -> Messages:
        """Concatenate single messages to a buffer."""
        ends = np.cumsum(np.fromiter(map(len, records), np.int64, len(records)))
        bounds = np.stack([np.concatenate([np.zeros(1, np.int64), ends[:-1]])[: len(ends)], ends], axis=1)
        return cls(np.frombuffer(b"".join(records), np.uint8), bounds)

    def alone(self, number: int, read: Callable[[bytes], T]) -> T:
        """Call ``read`` with one message and return the result.

        Raises:
            FormatError: The bytes are not an ``Example``; the error names the message.
        """
        start, end = self.bounds[number].tolist()
        try:
            return read(self.data[start:end].tobytes())
        except FormatError as error:
            raise FormatError(f"message {number}: {error}") from error

    def rewritten(self, numbers: Iterable[int]) -> Messages:
        """Re-encode some messages in the usual encoding; the new ones are appended to the buffer.

        Raises:
            FormatError: A message is not an ``Example``; the error names the message.
        """
        pieces, bounds, end = [self.data], self.bounds.copy(), len(self.data)
        for number in numbers:
            lists = self.alone(number, decode_example)
            whole = {name: ValueLists(values, np.array([0, len(values)], np.int64)) for name, values in lists.items()}
            pieces.append(np.frombuffer(encode_examples(whole, 1)[0], np.uint8))
            bounds[number] = end, end + len(pieces[-1])
            end += len(pieces[-1])
        return Messages(np.concatenate(pieces), bounds)


@dataclass(frozen=True, slots=True, eq=False)
class LocatedLists:
    """Positions of the lists of some features in messages.

    Attributes:
        messages: The messages.
        found: int64[num_names, num_messages, 3]: the kind of the list (``MISSING`` if the message does not have the
            feature, 0 if the feature has no list), and start and end of its values.
        counts: int64[num_names, num_messages], number of values of each list.
        num_bytes: int64[num_names, num_messages], bytes of all strings of each list.
        num_others: int64[num_messages], number of features with other names.
    """

    messages: Messages
    found: IntArray
    counts: IntArray
    num_bytes: IntArray
    num_others: IntArray

    def first_there(self, names: Sequence[int]) -> LocatedLists:
        """Select one list of each message: that of the first of the given names that the message has."""
        found, counts, num_bytes = (of[names[0]] for of in (self.found, self.counts, self.num_bytes))
        for name in names[1:]:
            is_missing = found[:, 0] == MISSING
            found = np.where(is_missing[:, None], self.found[name], found)
            counts = np.where(is_missing, self.counts[name], counts)
            num_bytes = np.where(is_missing, self.num_bytes[name], num_bytes)
        return LocatedLists(self.messages, found[None], counts[None], num_bytes[None], self.num_others)

    def read(self, kinds: Sequence[int]) -> list[NamedLists]:
        """Read the lists of all names.

        Args:
            kinds: For each name, the kind of all its non-empty lists.

        Raises:
            FormatError: A message is not an ``Example``; the error names it by its number.
        """
        data, is_there = self.messages.data, self.found[:, :, 0] != MISSING
        ends = np.zeros((len(self.counts), self.counts.shape[1] + 1), np.int64)
        np.cumsum(self.counts, axis=1, out=ends[:, 1:])
        lists = []
        for k, kind in enumerate(kinds):
            found, offsets = self.found[k], ends[k]
            values: Values
            if kind == FLOAT_LIST:
                values = np.empty(offsets[-1], np.float32)
                read_float_lists(data, found, offsets, values.view(np.uint8))
            elif kind == BYTES_LIST:
                text, lengths = np.empty(self.num_bytes[k].sum(), np.uint8), np.empty(offsets[-1], np.int64)
                read_string_lists(data, found, offsets, text, lengths)
                values = RaggedArray(text, offsets_of(lengths), is_string=True)
            else:
                values = np.empty(offsets[-1], np.int64)
                broken = read_int_lists(data, found, offsets, values)
                if broken != UNUSUAL:
                    self.messages.alone(broken, decode_example)  # raises an error with the details
                    raise FormatError(f"message {broken}: not a tf.Example: an integer has more than 64 bits")
            lists.append(NamedLists(values, offsets, is_there[k]))
        return lists


def locate(messages: Messages, names: Sequence[str]) -> LocatedLists:
    """Find the lists of some features; ``names`` must be sorted.

    Raises:
        FormatError: A message is not an ``Example``; the error names it by its number.
    """
    for _ in range(2):  # a second time if messages had to be re-encoded
        found, num_others = _located(messages, names)
        counts = np.empty(found.shape[:2], np.int64)
        num_bytes = np.empty_like(counts)
        count_values(messages.data, found, counts, num_bytes)
        is_unusual = (num_others == UNUSUAL) | (counts == UNUSUAL).any(axis=0)
        if not is_unusual.any():
            return LocatedLists(messages, found, counts, num_bytes, num_others)
        messages = messages.rewritten(np.flatnonzero(is_unusual).tolist())
    raise FormatError("messages are not canonical even after protobuf has rewritten them")


def _located(messages: Messages, names: Sequence[str]) -> tuple[IntArray, IntArray]:
    encoded = [name.encode() for name in names]
    keys = np.frombuffer(b"".join(encoded), np.uint8)
    key_offsets = offsets_of(np.fromiter(map(len, encoded), np.int64, len(encoded)))
    found = np.empty((len(names), len(messages.bounds), 3), np.int64)
    num_others = np.empty(len(messages.bounds), np.int64)
    room = FEATURES_ROOM
    while True:
        entries = np.empty((room, 5), np.int64)
        most = locate_lists(messages.data, messages.bounds, keys, key_offsets, entries, found, num_others)
        if most <= room:
            return found, num_others
        room = most


def decode_examples(records: Sequence[bytes], names: Sequence[str] | None = None) -> dict[str, NamedLists]:
    """Decode the lists of a batch of messages by name.

    Args:
        records: ``tf.Example`` messages.
        names: The features to read; a name that no message has gets empty lists. None: all features of all messages.

    Returns:
        Lists per name, in order of names. Values are float32, int64 or strings.

    Raises:
        FormatError: A message is not an ``Example``, or the lists of a name are of different kinds; the error names the
            message by its index in ``records``.
    """
    messages = Messages.of(records)
    wanted = sorted(set(names)) if names is not None else _names_of(messages, range(len(records))[:1])
    located = locate(messages, wanted)
    others = np.flatnonzero(located.num_others).tolist() if names is None else []
    if others:
        wanted = sorted({*wanted, *_names_of(messages, others)})
        located = locate(located.messages, wanted)
    return dict(zip(wanted, located.read(_kinds_of(wanted, located)), strict=True))


def _names_of(messages: Messages, numbers: Iterable[int]) -> list[str]:
    names: set[str] = set()
    for number in numbers:
        names.update(messages.alone(number, feature_names))
        if len(names) > MAX_NAMES:
            raise FormatError(f"messages have more than {MAX_NAMES} names of features; give the names to read")
    return sorted(names)


def _kinds_of(names: Sequence[str], located: LocatedLists) -> list[int]:
    """Return for each name the kind of its non-empty lists.

    Raises:
        FormatError: The kinds of a name's lists differ.
    """
    kinds, is_filled = located.found[:, :, 0], located.counts > 0
    most = np.where(is_filled, kinds, 0).max(axis=1, initial=0)
    is_other = is_filled & (kinds != most[:, None])
    if is_other.any():
        k = int(np.argmax(is_other.any(axis=1)))
        other, first = int(np.argmax(is_other[k])), int(np.argmax(is_filled[k] & ~is_other[k]))
        places = sorted(((first, KIND_NAMES[int(most[k])]), (other, KIND_NAMES[int(kinds[k, other])])))
        told = " and of ".join(f"{kind} in message {message}" for message, kind in places)
        raise FormatError(f"{names[k]} is a list of {told}")
    found: list[int] = np.where(is_filled.any(axis=1), most, kinds.max(axis=1, initial=0)).tolist()
    return found
