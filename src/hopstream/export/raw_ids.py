"""Raw ids of a dataset's nodes as Arrow arrays, and an index from all raw ids to keys.

[Algorithm] A ``HashIndex`` of all raw ids of a node type. A look-up fetches the raw ids of the keys with the same hash
    from the store.
[Cost] 16 bytes per node for raw ids of any length, and a sort when the index is built.
[Not chosen] One pass over all raw ids per batch of seeds, as in ``find_ids``: that needs no memory between batches and
    suits an export of millions of seeds, but is far too slow for the batches of hundreds of seeds in a pipeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hopstream.arrays import Column, IntArray, RaggedArray
from hopstream.dataset.raw_ids import HashIndex, RawId, as_bytes, hashed, id_feature_of, strings_of, texts_of
from hopstream.errors import IdRangeError, quoted
from hopstream.ingest.raw_tables.raw_ids import INTEGER, NAME, strings_column
from hopstream.sample.raw_ids import fetch_ids, id_blocks, num_keys
from hopstream.schema import GraphSchema
from hopstream.store.contract import Store

UNSIGNED = pa.uint64()
MAX_SIGNED = 2**63 - 1
SeedEnd = tuple[str, str | None]
"""A node type and its feature of raw ids, or None; arguments of ``id_feature_of``."""


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


def link_name(source: bytes, target: bytes) -> bytes:
    """Return the name of a link, given the raw ids of its ends."""
    return b"%s->%s" % (source, target)


@dataclass(frozen=True, slots=True, eq=False)
class RawIndex:
    """Index from the raw ids of one node type to keys. Thread-safe.

    Attributes:
        store: Where the nodes are.
        node_type: The node type.
        feature: The feature that holds raw ids; None if raw ids are keys.
        index: Index of all raw ids; None if raw ids are keys.
    """

    store: Store
    node_type: str
    feature: str | None
    index: HashIndex | None

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
            return cls(store, node_type, None, None)
        hashes = np.empty(num_keys(store, node_type), np.uint64)
        for keys, ids in id_blocks(store, node_type, feature):
            hashes[keys] = hashed(ids)
        return cls(
            store, node_type, feature, HashIndex.of_hashes(hashes, partial(fetch_ids, store, node_type, feature))
        )

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
        if self.index is None:
            keys: IntArray = ids.fill_null(-1).to_numpy(zero_copy_only=False).copy()
            keys[(keys < 0) | (keys >= num_keys(self.store, self.node_type))] = -1
        else:
            keys = np.full(len(raw), -1, np.int64)
            is_one = ids.is_valid().to_numpy(zero_copy_only=False)
            keys[is_one] = self.index.find(column_of(ids.drop_null()))
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
