"""What are raw ids: which feature of nodes holds them, and how are they written as text?"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from hopstream.arrays import Column, IntArray, RaggedArray, offsets_of
from hopstream.errors import SettingsError
from hopstream.schema import FeatureSchema, GraphSchema
from hopstream.store.contract import FetchRequest, Store

ID_NAMES = ("#id", "id")
"""What the feature is called that keeps raw ids, where nothing else is said."""

RawId = bytes | str | int


def id_feature_of(schema: GraphSchema, node_type: str, feature: str | None) -> str | None:
    """The feature that holds the raw ids of a node type; None where raw ids are keys.

    Args:
        schema: Of the graph.
        node_type: The type.
        feature: The feature that was named; None for ``#id`` or ``id``, the first that can hold ids.

    Raises:
        UnknownNameError: There is no such node type or feature.
        SettingsError: The feature named holds neither single strings nor single integers.
    """
    schema.check_node_type(node_type)
    if feature is None:
        features = schema.nodes[node_type]
        return next((name for name in ID_NAMES if name in features and _can_be_ids(features[name])), None)
    held = schema.feature(node_type, feature)
    if not _can_be_ids(held):
        raise SettingsError(f"id_feature is {feature!r}, which is {held}; ids are single strings or integers")
    return feature


def _can_be_ids(schema: FeatureSchema) -> bool:
    is_single = not schema.shape and not schema.is_ragged
    return is_single and (schema.is_string or np.dtype(schema.dtype).kind in "iu")


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
    raise SettingsError(f"seed {raw!r} is {type(raw).__name__}; raw ids are bytes, str or int")


def link_name(source: bytes, target: bytes) -> bytes:
    """What a link is called, by the raw ids of its ends."""
    return b"%s->%s" % (source, target)
