"""How are the lists of many ``tf.Example`` messages read at once?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
from hopstream.tfgnn.example import (
    FIRST_ROOM,
    ValueLists,
    Values,
    decode_by_protobuf,
    encode_examples,
    feature_names,
)

MAX_NAMES = 10_000
"""Different names in a batch of messages; nobody's graphs have more, and names take memory."""
_KINDS = {FLOAT_LIST: "float32", INT64_LIST: "int64", BYTES_LIST: "strings"}


@dataclass(frozen=True, slots=True, eq=False)
class NamedLists(ValueLists):
    """The lists of one name in a batch of messages, with the messages that have the name at all.

    Attributes:
        is_there: bool[num_messages].
    """

    is_there: Array


@dataclass(frozen=True, slots=True, eq=False)
class _Messages:
    """Messages in one buffer: uint8[num_bytes] and int64[num_messages + 1]."""

    data: Array
    offsets: IntArray

    @classmethod
    def of(cls, records: Sequence[bytes]) -> _Messages:
        lengths = np.fromiter(map(len, records), np.int64, len(records))
        return cls(np.frombuffer(b"".join(records), np.uint8), offsets_of(lengths))


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
    records = list(records)
    wanted = sorted(set(names)) if names is not None else _names_of(records[:1])
    for _ in range(3):  # again where names were new, and where messages were written in an unusual way
        messages = _Messages.of(records)
        found, num_others = _located(messages, wanted)
        unusual = num_others == UNUSUAL
        if names is None and bool(np.any(num_others > 0)):
            wanted = sorted({*wanted, *_names_of([records[m] for m in np.flatnonzero(num_others > 0)])})
            found, num_others = _located(messages, wanted)
        counts = np.empty((len(wanted), len(records)), np.int64)
        num_bytes = np.empty_like(counts)
        for k in range(len(wanted)):
            count_values(messages.data, found[k], counts[k], num_bytes[k])
        unusual |= np.any(counts == UNUSUAL, axis=0)
        if not bool(np.any(unusual)):
            lists = _read(messages, wanted, found, counts, num_bytes)
            if not isinstance(lists, int):
                return lists
            unusual[lists] = True
        for m in np.flatnonzero(unusual).tolist():
            records[m] = _rewritten(records[m], m)
    raise FormatError("messages are still unusual after protobuf has read them")


def _located(messages: _Messages, names: Sequence[str]) -> tuple[IntArray, IntArray]:
    encoded = [name.encode() for name in names]
    keys = np.frombuffer(b"".join(encoded), np.uint8)
    key_offsets = offsets_of(np.fromiter(map(len, encoded), np.int64, len(encoded)))
    num_messages = len(messages.offsets) - 1
    found = np.empty((len(names), num_messages, 3), np.int64)
    num_others = np.empty(num_messages, np.int64)
    room = FIRST_ROOM
    while True:
        entries = np.empty((room, 5), np.int64)
        most = locate_lists(messages.data, messages.offsets, keys, key_offsets, entries, found, num_others)
        if most <= room:
            return found, num_others
        room = most


def _names_of(records: Sequence[bytes]) -> list[str]:
    names: set[str] = set()
    for record in records:
        names.update(feature_names(record))
        if len(names) > MAX_NAMES:
            raise FormatError(f"messages have more than {MAX_NAMES} names of features; give the names that are wanted")
    return sorted(names)


def _rewritten(record: bytes, number: int) -> bytes:
    """The same message in the usual way."""
    try:
        lists = decode_by_protobuf(record)
    except FormatError as error:
        raise FormatError(f"message {number}: {error}") from error
    ends = {name: np.array([0, len(values)], np.int64) for name, values in lists.items()}
    return encode_examples({name: ValueLists(values, ends[name]) for name, values in lists.items()}, 1)[0]


def _read(
    messages: _Messages, names: Sequence[str], found: IntArray, counts: IntArray, num_bytes: IntArray
) -> dict[str, NamedLists] | int:
    """The lists, or the number of a message that only protobuf can read."""
    lists: dict[str, NamedLists] = {}
    for k, name in enumerate(names):
        offsets = offsets_of(counts[k])
        kind = _kind_of(name, found[k, :, 0], counts[k])
        values: Values
        if kind == FLOAT_LIST:
            values = np.empty(offsets[-1], np.float32)
            read_float_lists(messages.data, found[k], offsets, values.view(np.uint8))
        elif kind == BYTES_LIST:
            data, lengths = np.empty(int(num_bytes[k].sum()), np.uint8), np.empty(offsets[-1], np.int64)
            read_string_lists(messages.data, found[k], offsets, data, lengths)
            values = RaggedArray(data, offsets_of(lengths), is_string=True)
        else:
            values = np.empty(offsets[-1], np.int64)
            broken = read_int_lists(messages.data, found[k], offsets, values)
            if broken != UNUSUAL:
                return int(broken)
        lists[name] = NamedLists(values, offsets, found[k, :, 0] != MISSING)
    return lists


def _kind_of(name: str, kinds: IntArray, counts: IntArray) -> int:
    """The kind of a name's lists that hold anything."""
    filled = np.flatnonzero(counts)
    if not len(filled):
        return int(kinds.max(initial=0))
    others = filled[kinds[filled] != kinds[filled[0]]]
    if len(others):
        first, other = int(filled[0]), int(others[0])
        raise FormatError(
            f"{name} is a list of {_KINDS[int(kinds[first])]} in message {first} and of {_KINDS[int(kinds[other])]} in "
            f"message {other}"
        )
    return int(kinds[filled[0]])
