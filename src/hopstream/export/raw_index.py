"""Which key has a raw id, where ids come a few at a time and in no order?

[Algorithm] Hashes of all raw ids of a node type, sorted, with their keys; what the hash finds is compared with the raw
    id itself, which the store is asked for. Integers are their own hashes.
[Cost] 16 bytes per node, however long raw ids are, and a sort when it is built.
[Not chosen] A dictionary of Python objects: ten times the memory. A pass over all ids for each batch of seeds, as
    ``seeds.NodeIds`` makes: it keeps nothing and is right for an export, whose seeds come by the million, and far too
    slow where they come by the hundred, as in a pipeline.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import Column, IntArray, RaggedArray
from hopstream.errors import IdRangeError
from hopstream.export.raw_ids import RawId, as_bytes, fetch_ids, id_feature_of, num_keys, strings_of, texts_of
from hopstream.kernels.raw_ids import hash_strings
from hopstream.store.contract import Store

NODES_AT_ONCE = 1 << 18
_INTEGER = re.compile(rb"-?[0-9]{1,19}")
UintArray = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, eq=False)
class RawIndex:
    """The raw ids of the nodes of one type. Safe to use from many threads.

    Attributes:
        store: Where the nodes are.
        node_type: Their type.
        feature: The feature that holds raw ids; None where raw ids are keys.
        hashes: uint64[num_nodes], ascending; empty where raw ids are keys.
        keys: int64[num_nodes], the key of each hash.
    """

    store: Store
    node_type: str
    feature: str | None
    hashes: UintArray
    keys: IntArray

    @classmethod
    def of(cls, store: Store, node_type: str, feature: str | None = None) -> RawIndex:
        """Read the raw ids of all nodes of a type, block by block.

        Args:
            store: Where they are.
            node_type: The type.
            feature: The feature that holds them; None for ``#id`` or ``id``, and where there is neither, raw ids are
                keys.

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

    def keys_of(self, raw: Sequence[RawId]) -> IntArray:
        """int64[n], the key of each raw id; text stands for an integer where raw ids are integers.

        Raises:
            IdRangeError: No node has one of them; the error names the first.
            StoreError: The store failed.
        """
        asked = [as_bytes(one) for one in raw]
        if self.feature is None:
            keys = _integers(asked)
            keys[keys >= num_keys(self.store, self.node_type)] = -1
        else:
            keys = self._find(asked)
        if len(keys) and int(keys.min()) < 0:
            wanted = f"{self.node_type}.{self.feature} has no such value"
            if self.feature is None:
                wanted = f"it has no raw ids, and its keys are 0..{num_keys(self.store, self.node_type) - 1}"
            raise IdRangeError(
                f"seed {raw[int(np.argmax(keys < 0))]!r} is no node of type {self.node_type!r}: {wanted}"
            )
        return keys

    def _find(self, asked: Sequence[bytes]) -> IntArray:
        """int64[n], the key of each raw id, -1 where there is none; of equal raw ids the first node's."""
        is_string = self.store.schema.feature(self.node_type, self.feature or "").is_string
        column: Column = strings_of(asked) if is_string else _integers(asked)
        hashes = _hashed(column)
        keys = np.full(len(asked), -1, np.int64)
        places = np.searchsorted(self.hashes, hashes)
        open_ones = np.arange(len(asked))
        while len(open_ones):
            at = places[open_ones]
            is_same = at < len(self.hashes)
            is_same[is_same] = self.hashes[at[is_same]] == hashes[open_ones[is_same]]
            open_ones, at = open_ones[is_same], at[is_same]
            found = fetch_ids(self.store, self.node_type, self.feature or "", self.keys[at])
            is_it = _equal(found, asked, open_ones)
            keys[open_ones[is_it]] = self.keys[at[is_it]]
            places[open_ones] += 1
            open_ones = open_ones[~is_it]
        return keys


def _hashed(column: Column) -> UintArray:
    if isinstance(column, RaggedArray):
        hashes = np.empty(len(column), np.uint64)
        hash_strings(column.values, column.offsets, hashes)
        return hashes
    return column.astype(np.int64).view(np.uint64)


def _equal(found: Column, asked: Sequence[bytes], places: IntArray) -> NDArray[np.bool_]:
    """bool[n], whether each raw id found is the one asked for."""
    wanted = [asked[place] for place in places.tolist()]
    return np.array([one == other for one, other in zip(texts_of(found), wanted, strict=True)], np.bool_)


def _integers(asked: Sequence[bytes]) -> IntArray:
    """int64[n], -1 for what is no integer of 64 bits."""
    numbers = [int(text) if _INTEGER.fullmatch(text) else -1 for text in asked]
    return np.array([number if -(2**63) <= number < 2**63 else -1 for number in numbers], np.int64)
