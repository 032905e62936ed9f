"""Raw ids of a dataset's nodes: their feature, their text, and an index from raw ids to keys.

[Algorithm] The index holds the sorted hashes of all raw ids of a node type with their keys. A look-up fetches the raw
    ids of the keys with the same hash from the store, and compares them. Integers are their own hashes.
[Cost] 16 bytes per node for raw ids of any length, and a sort when the index is built.
[Not chosen] A dictionary of Python objects: ten times the memory. One pass over all raw ids per batch of seeds, as in
    ``seeds.NodeIds``: that needs no memory between batches and suits an export of millions of seeds, but is far too
    slow for the batches of hundreds of seeds in a pipeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hopstream.arrays import Column, IntArray, RaggedArray, offsets_of
from hopstream.errors import IdRangeError, SettingsError, quoted
from hopstream.ingest.raw_tables.raw_ids import INTEGER, NAME, strings_column
from hopstream.kernels.spill import hash_strings
from hopstream.schema import FeatureSchema, GraphSchema
from hopstream.store.contract import FetchRequest, Store

ID_NAMES = ("#id", "id")
"""Default names of the feature that holds raw ids, in order of preference."""

UNSIGNED = pa.uint64()
MAX_SIGNED = 2**63 - 1
RawId = bytes | str | int
SeedEnd = tuple[str, str | None]
"""A node type and its feature of raw ids, or None; arguments of ``id_feature_of``."""


def id_feature_of(schema: GraphSchema, node_type: str, feature: str | None) -> str | None:
    """Return the feature that holds the raw ids of a node type; None if raw ids are keys.

    Args:
        schema: Schema of the graph.
        node_type: The node type.
        feature: The chosen feature. None takes the first of ``#id`` and ``id`` that can hold raw ids; an ``id`` of
            reals or lists cannot.

    Raises:
        UnknownNameError: There is no such node type or feature.
        SettingsError: The chosen feature holds neither single strings nor single integers.
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
    """Return whether a feature has one string or integer per node."""
    is_single = not schema.shape and not schema.is_ragged
    return is_single and (schema.is_string or np.dtype(schema.dtype).kind in "iu")


def kind_of_ids(schema: GraphSchema, node_type: str, feature: str | None) -> pa.DataType:
    """Return the Arrow type of raw ids: ``large_string``, ``int64`` or ``uint64``.

    ``feature`` is the result of ``id_feature_of``.
    """
    if feature is None:
        return INTEGER
    held = schema.nodes[node_type][feature]
    if held.is_string:
        return NAME
    return UNSIGNED if held.dtype == "uint64" else INTEGER


def ids_as(raw: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert raw ids to the type of a node type's raw ids; null if that is impossible.

    Args:
        raw: Arrow ``int64``, ``uint64``, ``string`` or ``large_string``.
        kind: The wanted type, from ``kind_of_ids``.
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
    """Convert Arrow ids without nulls to a column."""
    return strings_column([ids]) if ids.type == NAME else ids.to_numpy(zero_copy_only=False)


def arrow_strings(rows: RaggedArray, kind: pa.DataType = NAME) -> pa.Array:
    """Convert rows of strings to an Arrow array that shares their memory."""
    offsets, values = np.ascontiguousarray(rows.offsets), np.ascontiguousarray(rows.values)
    return pa.Array.from_buffers(kind, len(rows), [None, pa.py_buffer(offsets), pa.py_buffer(values)])


def num_keys(store: Store, node_type: str) -> int:
    """Return the number of nodes of a type."""
    return int(store.book.key_offsets(node_type)[-1])


def fetch_ids(store: Store, node_type: str, feature: str, keys: IntArray) -> Column:
    """Fetch the raw ids of nodes by key."""
    ids = store.lookup(node_type, keys)
    return store.fetch([FetchRequest(entity=node_type, names=(feature,), ids=ids)])[0][feature]


def texts_of(column: Column) -> list[bytes]:
    """Convert raw ids to text."""
    if not isinstance(column, RaggedArray):
        return [b"%d" % value for value in column.tolist()]
    data, bounds = column.values.tobytes(), column.offsets.tolist()
    return [data[start:end] for start, end in pairwise(bounds)]


def strings_of(texts: Sequence[bytes]) -> RaggedArray:
    """Convert texts to a column of strings."""
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    return RaggedArray(np.frombuffer(b"".join(texts), np.uint8), offsets_of(lengths), is_string=True)


def as_bytes(raw: RawId) -> bytes:
    """Convert a raw id to text in UTF-8, as in ``context/seed_id``.

    Raises:
        SettingsError: The value is neither text nor an integer.
    """
    if isinstance(raw, bytes):
        return raw
    if isinstance(raw, str):
        return raw.encode()
    if isinstance(raw, int | np.integer) and not isinstance(raw, bool):
        return b"%d" % raw
    raise SettingsError(f"seed {quoted(raw)} is {type(raw).__name__}; raw ids are bytes, str or int")


def link_name(source: bytes, target: bytes) -> bytes:
    """Return the name of a link, given the raw ids of its ends."""
    return b"%s->%s" % (source, target)


NODES_AT_ONCE = 1 << 18
UintArray = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, eq=False)
class RawIndex:
    """Index from the raw ids of one node type to keys. Thread-safe.

    Attributes:
        store: Where the nodes are.
        node_type: The node type.
        feature: The feature that holds raw ids; None if raw ids are keys.
        hashes: uint64[num_nodes], ascending; empty if raw ids are keys.
        keys: int64[num_nodes], the key of each hash; empty if raw ids are keys.
    """

    store: Store
    node_type: str
    feature: str | None
    hashes: UintArray
    keys: IntArray

    @classmethod
    def of(cls, store: Store, node_type: str, feature: str | None = None) -> RawIndex:
        """Build the index: read the raw ids of all nodes of a type in blocks.

        Args:
            store: Where the nodes are.
            node_type: The node type.
            feature: The feature that holds raw ids. None takes ``#id`` or ``id``; without both, raw ids are keys.

        Raises:
            UnknownNameError: There is no such node type or feature.
            SettingsError: The feature holds neither single strings nor single integers.
            StoreError: The store failed.
        """
        feature = id_feature_of(store.schema, node_type, feature)
        if feature is None:
            nothing = np.empty(0, np.int64)
            return cls(store, node_type, None, nothing.view(np.uint64), nothing)
        num_nodes = num_keys(store, node_type)
        hashes: UintArray = np.empty(num_nodes, np.uint64)
        for first in range(0, num_nodes, NODES_AT_ONCE):
            block = np.arange(first, min(first + NODES_AT_ONCE, num_nodes), dtype=np.int64)
            hashes[block] = _hashed(fetch_ids(store, node_type, feature, block))
        keys = np.argsort(hashes, kind="stable")
        return cls(store, node_type, feature, hashes[keys], keys)

    @classmethod
    def of_ends(cls, store: Store, ends: Sequence[SeedEnd]) -> tuple[RawIndex, ...]:
        """Build the index for each end of a seed, see ``of``; equal ends share one index."""
        found = {end: cls.of(store, *end) for end in dict.fromkeys(ends)}
        return tuple(found[end] for end in ends)

    def keys_of(self, raw: Sequence[RawId]) -> IntArray:
        """Look up int64[n], the key of each raw id; if raw ids are integers, text is parsed.

        Raises:
            IdRangeError: No node has a raw id; the message names the first such one.
            StoreError: The store failed.
        """
        ids = self._ids(raw)
        if self.feature is None:
            keys: IntArray = ids.fill_null(-1).to_numpy(zero_copy_only=False).copy()
            keys[(keys < 0) | (keys >= num_keys(self.store, self.node_type))] = -1
        else:
            keys = np.full(len(raw), -1, np.int64)
            is_one = ids.is_valid().to_numpy(zero_copy_only=False)
            keys[is_one] = self._find(column_of(ids.drop_null()))
        if len(keys) and int(keys.min()) < 0:
            wanted = f"{self.node_type}.{self.feature} does not contain it"
            if self.feature is None:
                wanted = f"it has no raw ids, and its keys are 0..{num_keys(self.store, self.node_type) - 1}"
            raise IdRangeError(
                f"seed {quoted(raw[int(np.argmax(keys < 0))])} is not a node of type {self.node_type!r}: {wanted}"
            )
        return keys

    def names_of(self, raw: Sequence[RawId]) -> list[bytes]:
        """Return the dataset's own text of raw ids, for example ``7`` for the integer ``007``.

        Values that cannot be raw ids of the node type are returned unchanged.
        """
        given = [as_bytes(one) for one in raw]
        ids = self._ids(raw)
        names = iter(texts_of(column_of(ids.drop_null())))
        return [next(names) if is_one else one for one, is_one in zip(given, ids.is_valid().to_pylist(), strict=True)]

    def _ids(self, raw: Sequence[RawId]) -> pa.Array:
        """Convert raw ids to the type of the node type's raw ids; null if that is impossible."""
        texts = strings_of([as_bytes(one) for one in raw])
        kind = kind_of_ids(self.store.schema, self.node_type, self.feature)
        return ids_as(arrow_strings(texts), kind)

    def _find(self, asked: Column) -> IntArray:
        """Return int64[n], the key of the first node with each raw id; -1 for unknown raw ids."""
        hashes, texts = _hashed(asked), texts_of(asked)
        keys = np.full(len(asked), -1, np.int64)
        places = np.searchsorted(self.hashes, hashes)
        open_ones = np.arange(len(asked))
        while len(open_ones):
            at = places[open_ones]
            is_same = at < len(self.hashes)
            is_same[is_same] = self.hashes[at[is_same]] == hashes[open_ones[is_same]]
            open_ones, at = open_ones[is_same], at[is_same]
            found = fetch_ids(self.store, self.node_type, self.feature or "", self.keys[at])
            is_it = _equal(found, texts, open_ones)
            keys[open_ones[is_it]] = self.keys[at[is_it]]
            places[open_ones] += 1
            open_ones = open_ones[~is_it]
        return keys


def _hashed(column: Column) -> UintArray:
    if isinstance(column, RaggedArray):
        hashes = np.empty(len(column), np.uint64)
        hash_strings(column.values, column.offsets, hashes)
        return hashes
    return column.view(np.uint64) if column.dtype == np.uint64 else column.astype(np.int64).view(np.uint64)


def _equal(found: Column, asked: Sequence[bytes], places: IntArray) -> NDArray[np.bool_]:
    """Return bool[n], whether each fetched raw id equals the requested one."""
    wanted = [asked[place] for place in places.tolist()]
    return np.array([one == other for one, other in zip(texts_of(found), wanted, strict=True)], np.bool_)
