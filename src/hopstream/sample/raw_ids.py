"""Looks up the keys of nodes by the raw ids that a dataset keeps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike

from hopstream.arrays import Array, Column, IntArray, to_array
from hopstream.dataset.raw_ids import NODES_AT_ONCE, find_ids, ids_like, kept_ids_of, unknown_id_error
from hopstream.errors import SettingsError
from hopstream.store import open_store
from hopstream.store.contract import FetchRequest, Store
from hopstream.store.settings import StoreSettings
from hopstream.store.sources import Source


def find_keys(
    source: Source, node_type: str, raw_ids: ArrayLike, *, id_feature: str | None = None,
    store_settings: StoreSettings | None = None,
) -> IntArray:  # fmt: skip
    """Look up the keys of nodes by raw id, in one pass over the raw ids of all nodes in bounded memory.

    Args:
        source: The folder of a dataset, a ``cluster.json``, a list of servers, a store, or a graph in memory.
        node_type: The node type.
        raw_ids: Strings or integers [n], with repetitions: a list, an array, or a column of a DataFrame.
        id_feature: The feature that holds the raw ids. None takes ``#id`` or ``id``, or else the only feature of
            strings.
        store_settings: Check of local files; deadline and security of requests to servers.

    Returns:
        int64[n], the key of each raw id.

    Raises:
        UnknownNameError: There is no such node type or feature.
        SettingsError: The feature is not known, or cannot hold raw ids; a value is neither text nor an integer; or
            several nodes have a wanted raw id.
        IdRangeError: No node has a raw id; the message names the first such one.
        HopstreamError: The source cannot be opened or read; see ``open_store``.
    """
    raw = to_array(raw_ids)
    if raw.ndim != 1 or (raw.dtype.kind not in "iuUSOT" and len(raw)):
        raise SettingsError(f"raw_ids is {raw.dtype}{list(raw.shape)}; give strings or integers [n]")
    store = open_store(source, store_settings)
    try:
        return keys_of_raw_ids(store, node_type, raw, "raw_ids", id_feature)
    finally:
        if store is not source:
            store.close()


def keys_of_raw_ids(store: Store, node_type: str, raw: Array, where: str, id_feature: str | None = None) -> IntArray:
    """Return int64[n], the keys of nodes by raw id; see ``find_keys``.

    Args:
        store: Where the nodes are.
        node_type: The node type.
        raw: Texts or integers [n].
        where: Name of the raw ids in messages.
        id_feature: As of ``find_keys``.

    Raises:
        HopstreamError: As of ``find_keys``.
    """
    feature = kept_ids_of(store.schema, node_type, id_feature)
    asked = ids_like(raw, node_type, feature, store.schema.nodes[node_type][feature], where)
    keys = find_ids(id_blocks(store, node_type, feature), asked, f"{node_type}.{feature}")
    if len(keys) and int(keys.min()) < 0:
        raise unknown_id_error(where, int(np.argmax(keys < 0)), raw, node_type, feature)
    return keys


def id_blocks(store: Store, node_type: str, feature: str) -> Iterator[tuple[IntArray, Column]]:
    """Yield the raw ids of all nodes of a type, in blocks, with their keys."""
    num_nodes = num_keys(store, node_type)
    for first in range(0, num_nodes, NODES_AT_ONCE):
        keys = np.arange(first, min(first + NODES_AT_ONCE, num_nodes), dtype=np.int64)
        yield keys, fetch_ids(store, node_type, feature, keys)


def num_keys(store: Store, node_type: str) -> int:
    """Return the number of nodes of a type."""
    return int(store.book.key_offsets(node_type)[-1])


def fetch_ids(store: Store, node_type: str, feature: str, keys: IntArray) -> Column:
    """Fetch the raw ids of nodes by key."""
    ids = store.lookup(node_type, keys)
    return store.fetch([FetchRequest(entity=node_type, names=(feature,), ids=ids)])[0][feature]
