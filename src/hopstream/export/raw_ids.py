"""Raw ids: the feature of nodes that holds them, the text that means integers, and their own text.

A raw id is a string, or an integer of 64 bits, with or without sign, in a feature of one value per node; where a node
type has none, keys are raw ids. Text in decimal digits, with or without ``-``, means an integer: ``007`` is 7, as it is
at the ends of edges; blanks, ``+`` and other bases are none. All who take seeds ask here, so all mean the same node.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hopstream.arrays import Column, IntArray, RaggedArray, offsets_of
from hopstream.errors import SettingsError, quoted
from hopstream.ingest.ids import INTEGER, NAME, strings_column
from hopstream.schema import FeatureSchema, GraphSchema
from hopstream.store.contract import FetchRequest, Store

ID_NAMES = ("#id", "id")
"""What the feature is called that keeps raw ids, where nothing else is said."""

UNSIGNED = pa.uint64()
MAX_SIGNED = 2**63 - 1
RawId = bytes | str | int
SeedEnd = tuple[str, str | None]
"""A node type, and the feature of it that holds raw ids, as ``id_feature_of`` takes them."""


def id_feature_of(schema: GraphSchema, node_type: str, feature: str | None) -> str | None:
    """The feature that holds the raw ids of a node type; None where raw ids are keys.

    Args:
        schema: Of the graph.
        node_type: The type.
        feature: The feature that was named; None for ``#id`` or ``id``, the first that can hold ids: an ``id`` of reals
            or lists is a feature like any other.

    Raises:
        UnknownNameError: There is no such node type or feature.
        SettingsError: The feature named holds neither single strings nor single integers.
    """
    schema.check_node_type(node_type)
    if feature is None:
        features = schema.nodes[node_type]
        return next((name for name in ID_NAMES if name in features and can_be_ids(features[name])), None)
    held = schema.feature(node_type, feature)
    if not can_be_ids(held):
        raise SettingsError(f"id_feature is {feature!r}, which is {held}; ids are single strings or integers")
    return feature


def can_be_ids(schema: FeatureSchema) -> bool:
    """Whether a feature has one string or integer per node."""
    is_single = not schema.shape and not schema.is_ragged
    return is_single and (schema.is_string or np.dtype(schema.dtype).kind in "iu")


def kind_of_ids(schema: GraphSchema, node_type: str, feature: str | None) -> pa.DataType:
    """What ``id_feature_of`` found holds: Arrow ``large_string``, ``int64`` or ``uint64``."""
    if feature is None:
        return INTEGER
    held = schema.nodes[node_type][feature]
    if held.is_string:
        return NAME
    return UNSIGNED if held.dtype == "uint64" else INTEGER


def ids_as(raw: pa.Array, kind: pa.DataType) -> pa.Array:
    """Raw ids as a node type has them; null where they cannot be.

    Args:
        raw: Arrow ``int64``, ``uint64``, ``string`` or ``large_string``.
        kind: What ``kind_of_ids`` says.
    """
    if raw.type == kind:
        return raw
    if kind == NAME:
        return raw.cast(NAME)
    if pa.types.is_integer(raw.type):
        mask = pc.less(raw, 0) if raw.type == INTEGER else pc.greater(raw, pa.scalar(MAX_SIGNED, UNSIGNED))
        return pc.if_else(mask, None, raw).cast(kind)
    is_number = pc.match_substring_regex(raw, r"^-?[0-9]{1,20}$")
    try:
        return pc.if_else(is_number, raw, None).cast(kind)
    except pa.ArrowInvalid:  # one is out of range
        lowest, highest = (0, 2 * MAX_SIGNED + 1) if kind == UNSIGNED else (-MAX_SIGNED - 1, MAX_SIGNED)
        numbers = [
            int(text) if is_one else None for text, is_one in zip(raw.to_pylist(), is_number.to_pylist(), strict=True)
        ]
        return pa.array([n if n is not None and lowest <= n <= highest else None for n in numbers], kind)


def column_of(ids: pa.Array) -> Column:
    """Arrow ids without nulls as a column."""
    return strings_column([ids]) if ids.type == NAME else ids.to_numpy(zero_copy_only=False)


def num_keys(store: Store, node_type: str) -> int:
    """How many nodes of a type there are."""
    return int(store.book.key_offsets(node_type)[-1])


def fetch_ids(store: Store, node_type: str, feature: str, keys: IntArray) -> Column:
    """The raw ids of some nodes by key."""
    ids = store.lookup(node_type, keys)
    return store.fetch([FetchRequest(owner=node_type, names=(feature,), ids=ids)])[0][feature]


def texts_of(column: Column) -> list[bytes]:
    """Raw ids as text."""
    if not isinstance(column, RaggedArray):
        return [b"%d" % value for value in column.tolist()]
    data, bounds = column.values.tobytes(), column.offsets.tolist()
    return [data[start:end] for start, end in pairwise(bounds)]


def strings_of(texts: Sequence[bytes]) -> RaggedArray:
    """Text as a column."""
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    return RaggedArray(np.frombuffer(b"".join(texts), np.uint8), offsets_of(lengths), is_string=True)


def as_bytes(raw: RawId) -> bytes:
    """A raw id as text in UTF-8, as ``context/seed_id`` has it.

    Raises:
        SettingsError: It is neither text nor an integer.
    """
    if isinstance(raw, bytes):
        return raw
    if isinstance(raw, str):
        return raw.encode()
    if isinstance(raw, int | np.integer) and not isinstance(raw, bool):
        return b"%d" % raw
    raise SettingsError(f"seed {quoted(raw)} is {type(raw).__name__}; raw ids are bytes, str or int")


def link_name(source: bytes, target: bytes) -> bytes:
    """What a link is called, by the raw ids of its ends."""
    return b"%s->%s" % (source, target)
