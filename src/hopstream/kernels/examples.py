"""Encodes and decodes many ``tf.Example`` messages at once.

An ``Example`` is a map from names to lists: of float32, of int64 as varints (seven bits per byte), or of bytes. Every
nested message is preceded by its size. So all sizes are computed first, then all bytes are written once.

[Algorithm] Writing: one kernel per kind of list writes one feature into all messages of a batch. Finding: one pass over
    a message in the usual encoding; other encodings (a list in two pieces, unknown fields) are left to protobuf.
[Cost] Floats and strings are copied; integers take a step per seven bits. About 5 GB/s of floats per core.
[Not chosen] protobuf's own classes: a Python call per list, and a Python object per string and number.

[Algorithm] Reading: names are looked up in all messages in one pass. Messages mostly have the same order of names, so
    the name after the last match is tried first, and others by binary search. Then one kernel per name and kind of list
    copies or decodes the values of all messages to their destinations. Other encodings are left to protobuf.
[Cost] Some tens of nanoseconds per name and message; floats at the speed of copying, integers at about 2 ns per value
    of one byte.
[Not chosen] One message at a time: a dozen Python calls per name and message, 0.1 to 0.3 ms for a small subgraph.
"""

from __future__ import annotations

import numpy as np

from hopstream.kernels.compiling import inlined, kernel

MESSAGE, VALUE, PACKED = 0x0A, 0x12, 0x0A
"""Tags: a message or a string in field 1, a message in field 2, packed values or a string in field 1."""
BYTES_LIST, FLOAT_LIST, INT64_LIST = 0x0A, 0x12, 0x1A
"""Tags of the kinds of list in a ``Feature``."""
UNUSUAL = -1
"""Result for a message in another encoding; protobuf must read it, or reports the error in it."""


@inlined
def varint_length(value: int) -> int:
    """Return the number of bytes of a varint; ten for negative numbers."""
    rest = np.uint64(value)
    length = 1
    while rest >= np.uint64(128):
        rest >>= np.uint64(7)
        length += 1
    return length


@inlined
def _put_varint(out: np.ndarray, at: int, value: int) -> int:
    rest = np.uint64(value)
    while rest >= np.uint64(128):
        out[at] = np.uint8(rest & np.uint64(127)) | np.uint8(128)
        rest >>= np.uint64(7)
        at += 1
    out[at] = np.uint8(rest)
    return at + 1


@kernel
def int_list_sizes(values: np.ndarray, offsets: np.ndarray, sizes: np.ndarray) -> None:
    """Compute the bytes of the packed integers of each list.

    Args:
        values: int64[num_values].
        offsets: int64[num_lists + 1], list ``i`` is ``values[offsets[i]:offsets[i + 1]]``.
        sizes: int64[num_lists], out.
    """
    for i in range(len(sizes)):
        size = 0
        for v in range(offsets[i], offsets[i + 1]):
            size += varint_length(values[v])
        sizes[i] = size


@kernel
def string_list_sizes(value_offsets: np.ndarray, offsets: np.ndarray, sizes: np.ndarray) -> None:
    """Compute the bytes of the strings of each list, with their tags and sizes.

    Args:
        value_offsets: int64[num_values + 1], where each string begins.
        offsets: int64[num_lists + 1], list ``i`` has strings ``offsets[i]`` to ``offsets[i + 1]``.
        sizes: int64[num_lists], out.
    """
    for i in range(len(sizes)):
        size = 0
        for v in range(offsets[i], offsets[i + 1]):
            length = value_offsets[v + 1] - value_offsets[v]
            size += 1 + varint_length(length) + length
        sizes[i] = size


@kernel
def add_entry_sizes(payload_sizes: np.ndarray, is_packed: bool, num_key_bytes: int, totals: np.ndarray) -> None:
    """Add the bytes of one map entry in each message, with its tag and size.

    Args:
        payload_sizes: int64[num_messages], bytes of the packed values, or of the strings with their tags.
        is_packed: Values are packed; a list that is not empty then has a tag and a size of its own.
        num_key_bytes: Bytes of the name.
        totals: int64[num_messages], added to.
    """
    key_size = 1 + varint_length(num_key_bytes) + num_key_bytes
    for i in range(len(totals)):
        _, _, entry = _sizes(payload_sizes[i], is_packed, key_size)
        totals[i] += 1 + varint_length(entry) + entry


@inlined
def _sizes(payload: int, is_packed: bool, key_size: int) -> tuple[int, int, int]:
    """Return the sizes of list, ``Feature`` and entry, each without its own tag and size."""
    inner = payload
    if is_packed and payload > 0:
        inner = 1 + varint_length(payload) + payload
    feature = 1 + varint_length(inner) + inner
    return inner, feature, key_size + 1 + varint_length(feature) + feature


@inlined
def _put_head(
    out: np.ndarray, at: int, key: np.ndarray, kind: int, payload: int, is_packed: bool, key_size: int
) -> int:
    """Write the part of an entry before its values; return the position after it."""
    inner, feature, entry = _sizes(payload, is_packed, key_size)
    out[at] = MESSAGE
    at = _put_varint(out, at + 1, entry)
    out[at] = MESSAGE
    at = _put_varint(out, at + 1, len(key))
    for b in range(len(key)):
        out[at + b] = key[b]
    at += len(key)
    out[at] = VALUE
    at = _put_varint(out, at + 1, feature)
    out[at] = kind
    at = _put_varint(out, at + 1, inner)
    if is_packed and payload > 0:
        out[at] = PACKED
        at = _put_varint(out, at + 1, payload)
    return at


@kernel
def begin_examples(starts: np.ndarray, sizes: np.ndarray, out: np.ndarray, places: np.ndarray) -> None:
    """Write the tag and the size of the map of each message.

    Args:
        starts: int64[num_messages], position of each message in ``out``.
        sizes: int64[num_messages], bytes of its map.
        out: uint8[...].
        places: int64[num_messages], out: position of its first entry.
    """
    for i in range(len(starts)):
        out[starts[i]] = MESSAGE
        places[i] = _put_varint(out, starts[i] + 1, sizes[i])


@kernel
def put_floats(out: np.ndarray, places: np.ndarray, key: np.ndarray, data: np.ndarray, offsets: np.ndarray) -> None:
    """Write an entry of floats into each message.

    Args:
        out: uint8[...].
        places: int64[num_messages], in and out: position of the entry, then the position after it.
        key: uint8[...], the name.
        data: uint8[4 * num_values], the bytes of float32 in little endian order.
        offsets: int64[num_messages + 1], in values.
    """
    key_size = 1 + varint_length(len(key)) + len(key)
    for i in range(len(places)):
        start, payload = 4 * offsets[i], 4 * (offsets[i + 1] - offsets[i])
        at = _put_head(out, places[i], key, FLOAT_LIST, payload, True, key_size)
        out[at : at + payload] = data[start : start + payload]
        places[i] = at + payload


@kernel
def put_ints(
    out: np.ndarray, places: np.ndarray, key: np.ndarray, values: np.ndarray, offsets: np.ndarray, sizes: np.ndarray
) -> None:
    """Write an entry of integers into each message.

    Args:
        out: uint8[...].
        places: int64[num_messages], in and out: position of the entry, then the position after it.
        key: uint8[...], the name.
        values: int64[num_values].
        offsets: int64[num_messages + 1].
        sizes: int64[num_messages], from ``int_list_sizes``.
    """
    key_size = 1 + varint_length(len(key)) + len(key)
    for i in range(len(places)):
        at = _put_head(out, places[i], key, INT64_LIST, sizes[i], True, key_size)
        for v in range(offsets[i], offsets[i + 1]):
            at = _put_varint(out, at, values[v])
        places[i] = at


@kernel
def put_strings(
    out: np.ndarray, places: np.ndarray, key: np.ndarray, data: np.ndarray, value_offsets: np.ndarray,
    offsets: np.ndarray, sizes: np.ndarray,
) -> None:  # fmt: skip
    """Write an entry of strings into each message.

    Args:
        out: uint8[...].
        places: int64[num_messages], in and out: position of the entry, then the position after it.
        key: uint8[...], the name.
        data: uint8[...], the strings, one after the other.
        value_offsets: int64[num_values + 1], where each string begins.
        offsets: int64[num_messages + 1], in strings.
        sizes: int64[num_messages], from ``string_list_sizes``.
    """
    key_size = 1 + varint_length(len(key)) + len(key)
    for i in range(len(places)):
        at = _put_head(out, places[i], key, BYTES_LIST, sizes[i], False, key_size)
        for v in range(offsets[i], offsets[i + 1]):
            start, length = value_offsets[v], value_offsets[v + 1] - value_offsets[v]
            out[at] = PACKED
            at = _put_varint(out, at + 1, length)
            out[at : at + length] = data[start : start + length]
            at += length
        places[i] = at


@inlined
def _varint(data: np.ndarray, at: int, end: int) -> tuple[np.int64, np.int64]:
    """Decode a varint; return it and the position after it, ``UNUSUAL`` if it does not end in time."""
    value, shift = np.uint64(0), np.uint64(0)
    while at < end and shift < np.uint64(64):
        byte = np.uint64(data[at])
        value |= (byte & np.uint64(127)) << shift
        at += 1
        if byte < np.uint64(128):
            return np.int64(value), np.int64(at)
        shift += np.uint64(7)
    return np.int64(0), np.int64(UNUSUAL)


@inlined
def _message(data: np.ndarray, at: int, end: int, tag: int) -> tuple[np.int64, np.int64]:
    """Find the begin and the end of a message with a tag; the begin is ``UNUSUAL`` if there is none."""
    if at >= end or data[at] != tag:
        return np.int64(UNUSUAL), np.int64(0)
    size, begin = _varint(data, at + 1, end)
    if begin < 0 or size < 0 or size > end - begin:
        return np.int64(UNUSUAL), np.int64(0)
    return np.int64(begin), np.int64(begin + size)


@kernel
def find_features(data: np.ndarray, start: int, end: int, found: np.ndarray) -> int:
    """Find the features of an ``Example`` that is ``data[start:end]``.

    Args:
        data: uint8[...].
        start: First byte of the message.
        end: One past its last byte.
        found: int64[room, 5], out: begin and end of the name, the tag of the kind (0: none), begin and end of the list;
            for lists of numbers, of the packed values.

    Returns:
        Number of features, perhaps more than ``room``; ``UNUSUAL`` if protobuf must read the message.
    """
    if start == end:
        return 0
    at, last = _message(data, start, end, MESSAGE)
    if at < 0 or last != end:
        return UNUSUAL
    num_found = 0
    while at < last:
        entry, entry_end = _message(data, at, last, MESSAGE)
        if entry < 0:
            return UNUSUAL
        key, key_end = _message(data, entry, entry_end, MESSAGE)
        if key < 0:
            return UNUSUAL
        feature, feature_end = _message(data, key_end, entry_end, VALUE)
        if feature < 0 or feature_end != entry_end:
            return UNUSUAL
        kind, values, values_end = 0, feature, feature
        if feature < feature_end:
            kind = np.int64(data[feature])
            values, values_end = _message(data, feature, feature_end, kind)
            if kind not in (BYTES_LIST, FLOAT_LIST, INT64_LIST) or values < 0 or values_end != feature_end:
                return UNUSUAL
            if kind != BYTES_LIST and values < values_end:
                packed, packed_end = _message(data, values, values_end, PACKED)
                if packed < 0 or packed_end != values_end or (kind == FLOAT_LIST and (packed_end - packed) % 4):
                    return UNUSUAL
                values = packed
        if num_found < len(found):
            row = found[num_found]
            row[0], row[1], row[2], row[3], row[4] = key, key_end, kind, values, values_end
        num_found += 1
        at = entry_end
    return num_found


MISSING = -1
"""Kind of a feature that a message does not have."""


@inlined
def _compare(data: np.ndarray, start: int, length: int, keys: np.ndarray, at: int, key_length: int) -> np.int64:
    """Compare a name with a key by bytes: below 0 if it is smaller, 0 if equal, else above 0."""
    for b in range(min(length, key_length)):
        if data[start + b] != keys[at + b]:
            return np.int64(data[start + b]) - np.int64(keys[at + b])
    return np.int64(length - key_length)


@kernel
def locate_lists(
    data: np.ndarray, bounds: np.ndarray, keys: np.ndarray, key_offsets: np.ndarray, entries: np.ndarray,
    found: np.ndarray, num_others: np.ndarray,
) -> int:  # fmt: skip
    """Find the lists of some names in each message.

    Args:
        data: uint8[...], the messages.
        bounds: int64[num_messages, 2], begin and end of each message.
        keys: uint8[...], the names, concatenated, ascending.
        key_offsets: int64[num_names + 1].
        entries: int64[room, 5], scratch.
        found: int64[num_names, num_messages, 3], out: kind (``MISSING`` without the feature, 0 without a list), begin
            and end of the values. If a message has a feature twice, the last one counts.
        num_others: int64[num_messages], out: features with other names; ``UNUSUAL`` if protobuf must read the message.

    Returns:
        Largest number of features in a message. If it exceeds ``room``, the results must not be used.
    """
    num_names = len(key_offsets) - 1
    most = 0
    for m in range(len(bounds)):
        for k in range(num_names):
            found[k, m, 0] = MISSING
        num_entries = find_features(data, bounds[m, 0], bounds[m, 1], entries)
        num_others[m] = min(num_entries, 0)
        most = max(most, num_entries)
        guess = 0
        for e in range(min(num_entries, len(entries))):
            start, length = entries[e, 0], entries[e, 1] - entries[e, 0]
            first, last, k, is_found = 0, num_names, guess, False
            while first < last:
                order = _compare(data, start, length, keys, key_offsets[k], key_offsets[k + 1] - key_offsets[k])
                if order == 0:
                    found[k, m, 0], found[k, m, 1], found[k, m, 2] = entries[e, 2], entries[e, 3], entries[e, 4]
                    guess = k + 1 if k + 1 < num_names else 0
                    is_found = True
                    break
                if order < 0:
                    last = k
                else:
                    first = k + 1
                k = (first + last) // 2
            if not is_found:
                num_others[m] += 1
    return most


@kernel
def count_values(data: np.ndarray, found: np.ndarray, counts: np.ndarray, num_bytes: np.ndarray) -> None:
    """Count the values of each list.

    Args:
        data: uint8[...].
        found: int64[num_names, num_messages, 3], from ``locate_lists``.
        counts: int64[num_names, num_messages], out; ``UNUSUAL`` if protobuf must read the message.
        num_bytes: int64[num_names, num_messages], out: bytes of all strings together.
    """
    for k in range(len(found)):
        for m in range(found.shape[1]):
            kind, start, end = found[k, m, 0], found[k, m, 1], found[k, m, 2]
            count, length = 0, 0
            if kind == FLOAT_LIST:
                count = (end - start) // 4
            elif kind == INT64_LIST:
                for b in range(start, end):
                    count += data[b] < 128
                if end > start and data[end - 1] >= 128:
                    count = UNUSUAL
            elif kind == BYTES_LIST:
                at = start
                while at < end:
                    begin, at = _message(data, at, end, PACKED)
                    if begin < 0:
                        count = UNUSUAL
                        break
                    count += 1
                    length += at - begin
            counts[k, m], num_bytes[k, m] = count, length


@kernel
def read_float_lists(data: np.ndarray, found: np.ndarray, offsets: np.ndarray, out: np.ndarray) -> None:
    """Copy floats of all messages.

    Args:
        data: uint8[...].
        found: int64[num_messages, 3].
        offsets: int64[num_messages + 1], in values.
        out: uint8[4 * num_values], out.
    """
    for m in range(len(found)):
        start, length = found[m, 1], 4 * (offsets[m + 1] - offsets[m])
        out[4 * offsets[m] : 4 * offsets[m] + length] = data[start : start + length]


@kernel
def read_int_lists(data: np.ndarray, found: np.ndarray, offsets: np.ndarray, out: np.ndarray) -> int:
    """Decode integers of all messages.

    Args:
        data: uint8[...].
        found: int64[num_messages, 3].
        offsets: int64[num_messages + 1], in values.
        out: int64[num_values], out.

    Returns:
        The first message with a number of more than ten bytes, or ``UNUSUAL`` if there is none.
    """
    for m in range(len(found)):
        at, end = found[m, 1], found[m, 2]
        for v in range(offsets[m], offsets[m + 1]):
            if data[at] < 128:
                out[v] = data[at]
                at += 1
                continue
            value, at = _varint(data, at, end)
            if at < 0:
                return m
            out[v] = value
    return UNUSUAL


@kernel
def read_string_lists(
    data: np.ndarray, found: np.ndarray, offsets: np.ndarray, out: np.ndarray, lengths: np.ndarray
) -> None:
    """Copy strings of all messages.

    Args:
        data: uint8[...].
        found: int64[num_messages, 3].
        offsets: int64[num_messages + 1], in strings.
        out: uint8[num_bytes], out: the strings, one after the other.
        lengths: int64[num_strings], out.
    """
    to = 0
    for m in range(len(found)):
        at, end = found[m, 1], found[m, 2]
        for v in range(offsets[m], offsets[m + 1]):
            begin, at = _message(data, at, end, PACKED)
            length = at - begin
            out[to : to + length] = data[begin:at]
            lengths[v] = length
            to += length
