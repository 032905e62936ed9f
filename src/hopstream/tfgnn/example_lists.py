"""Decodes the lists of many ``tf.Example`` messages at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from hopstream.arrays import Array, IntArray, RaggedArray, offsets_of
from hopstream.errors import FormatError
from hopstream.kernels.example_lists import (
    MISSING,
    count_values,
    locate_lists,
    read_float_lists,
    read_int_lists,
    read_string_lists,
)
from hopstream.kernels.examples import BYTES_LIST, FLOAT_LIST, INT64_LIST, UNUSUAL
from hopstream.tfgnn.example import ValueLists, Values, decode_example, encode_examples, feature_names

T = TypeVar("T")
MAX_NAMES = 10_000
"""Different names in a batch of messages; nobody's graphs have more, and names take memory."""
FEATURES_ROOM = 64
"""Features of a message that there is room for at first."""
KIND_NAMES = {FLOAT_LIST: "float32", INT64_LIST: "int64", BYTES_LIST: "strings"}


@dataclass(frozen=True, slots=True, eq=False)
class NamedLists(ValueLists):
    """The lists of one name in a batch of messages, with the messages that have the name at all.

    Attributes:
        is_there: bool[num_messages].
    """

    is_there: Array


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """Messages in one buffer.

    Attributes:
        data: uint8[...], which holds them.
        bounds: int64[num_messages, 2], begin and end of each.
    """

    data: Array
    bounds: IntArray

    @classmethod
    def of(cls, records: Sequence[bytes]) -> Messages:
        """Messages that are given one by one."""
        ends = np.cumsum(np.fromiter(map(len, records), np.int64, len(records)))
        bounds = np.stack([np.concatenate([np.zeros(1, np.int64), ends[:-1]])[: len(ends)], ends], axis=1)
        return cls(np.frombuffer(b"".join(records), np.uint8), bounds)

    def alone(self, number: int, read: Callable[[bytes], T]) -> T:
        """What ``read`` makes of one message.

        Raises:
            FormatError: The bytes are no ``Example``; the error names the message.
        """
        start, end = self.bounds[number].tolist()
        try:
            return read(self.data[start:end].tobytes())
        except FormatError as error:
            raise FormatError(f"message {number}: {error}") from error

    def rewritten(self, numbers: Iterable[int]) -> Messages:
        """The same messages, of which some are written again in the usual way, behind the others.

        Raises:
            FormatError: One of them is no ``Example``; the error names it.
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
    """Where the lists of some names are in messages.

    Attributes:
        messages: The messages.
        found: int64[num_names, num_messages, 3]: the kind of the list (``MISSING`` where the message has no feature of
            the name, 0 where the feature has no list), and begin and end of its values.
        counts: int64[num_names, num_messages], the values of each list.
        num_bytes: int64[num_names, num_messages], the bytes of all strings of each list.
        num_others: int64[num_messages], features of other names.
    """

    messages: Messages
    found: IntArray
    counts: IntArray
    num_bytes: IntArray
    num_others: IntArray

    def first_there(self, names: Sequence[int]) -> LocatedLists:
        """One list of each message: that of the first of some names that the message has."""
        found, counts, num_bytes = (of[names[0]] for of in (self.found, self.counts, self.num_bytes))
        for name in names[1:]:
            is_missing = found[:, 0] == MISSING
            found = np.where(is_missing[:, None], self.found[name], found)
            counts = np.where(is_missing, self.counts[name], counts)
            num_bytes = np.where(is_missing, self.num_bytes[name], num_bytes)
        return LocatedLists(self.messages, found[None], counts[None], num_bytes[None], self.num_others)

    def read(self, kinds: Sequence[int]) -> list[NamedLists]:
        """The lists of all names.

        Args:
            kinds: For each name the kind of all lists that hold anything.

        Raises:
            FormatError: A message is no ``Example``; the error names it by its number.
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
                    self.messages.alone(broken, decode_example)  # which says what is wrong
                    raise FormatError(f"message {broken}: not a tf.Example: an integer has more than 64 bits")
            lists.append(NamedLists(values, offsets, is_there[k]))
        return lists


def locate(messages: Messages, names: Sequence[str]) -> LocatedLists:
    """Find the lists of some names, which ascend.

    Raises:
        FormatError: A message is no ``Example``; the error names it by its number.
    """
    for _ in range(2):  # again where messages were written in an unusual way
        found, num_others = _located(messages, names)
        counts = np.empty(found.shape[:2], np.int64)
        num_bytes = np.empty_like(counts)
        count_values(messages.data, found, counts, num_bytes)
        is_unusual = (num_others == UNUSUAL) | (counts == UNUSUAL).any(axis=0)
        if not is_unusual.any():
            return LocatedLists(messages, found, counts, num_bytes, num_others)
        messages = messages.rewritten(np.flatnonzero(is_unusual).tolist())
    raise FormatError("messages are still unusual after protobuf has read them")


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
    """The lists of a batch of messages by name.

    Args:
        records: Messages, ``tf.Example`` each.
        names: Which are wanted; a name that no message has gets empty lists. None: all that any message has.

    Returns:
        Lists per name, in the order of the names. Values are float32, int64 or strings.

    Raises:
        FormatError: A message is no ``Example``, or a name's lists are of different kinds; the error names the message
            by its number among ``records``.
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
            raise FormatError(f"messages have more than {MAX_NAMES} names of features; give the names that are wanted")
    return sorted(names)


def _kinds_of(names: Sequence[str], located: LocatedLists) -> list[int]:
    """The kind of each name's lists that hold anything."""
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
