"""Finds the edges that have given keys, by the parts' own columns."""

from __future__ import annotations

import threading

import numpy as np

from hopstream.arrays import IntArray, find_sorted
from hopstream.errors import IdRangeError
from hopstream.schema import EdgeType, type_label
from hopstream.store.contract import KEY, KEY_SCHEMA, Store
from hopstream.store.whole import fetch_rows


class EdgeIdsOfKeys:
    """Finds ids of edges by key and part; safe to use from many threads.

    The keys of a part's edges are fetched when the part is first asked for, and kept: 16 bytes per edge of the part.
    """

    def __init__(self, store: Store, edge_type: EdgeType) -> None:
        """Look at the edges of one type that lead into nodes.

        Args:
            store: Answers for every part that will be asked for; its edges have keys.
            edge_type: The edge type.
        """
        self._store = store
        self._edge_type = edge_type
        self._sorted: dict[int, tuple[IntArray, IntArray]] = {}
        self._lock = threading.Lock()
        self._locks: dict[int, threading.Lock] = {}

    def find(self, keys: IntArray, parts: IntArray) -> IntArray:
        """int64[n], the id of each edge.

        Args:
            keys: int64[n] edge keys, in any order, repeats too.
            parts: int64[n], the part that holds each edge.

        Raises:
            IdRangeError: A part does not exist, or does not hold an edge of that key.
            StoreError: A server failed, or gave no answer in time.
        """
        ids = np.empty(len(keys), np.int64)
        for part in np.unique(parts).tolist():
            (rows,) = np.nonzero(parts == part)
            known, ids_of = self._part(part)
            places = find_sorted(known, keys[rows])
            if len(unknown := rows[places < 0]):
                raise IdRangeError(
                    f"edge {int(keys[unknown[0]])} of {type_label(self._edge_type)} is not in part {part}, "
                    f"which holds {len(known)} edges of the type; the book of edges says that it is: a part holds "
                    "the edges that lead to its nodes"
                )
            ids[rows] = ids_of[places]
        return ids

    def _part(self, part: int) -> tuple[IntArray, IntArray]:
        """Keys of a part's edges, ascending, and the id of each."""
        offsets = self._store.book.edge_offsets[self._edge_type, "in"]
        if not 0 <= part < len(offsets) - 1:
            raise IdRangeError(f"part is {part}; of {len(offsets) - 1} parts the numbers are 0..{len(offsets) - 2}")
        with self._lock:
            of_part = self._locks.setdefault(part, threading.Lock())
        with of_part:  # a part that answers slowly keeps nobody from the others
            if part not in self._sorted:
                ids = np.arange(int(offsets[part]), int(offsets[part + 1]))
                keys = fetch_rows(self._store, (self._edge_type, "in"), {KEY: KEY_SCHEMA}, ids)[KEY]
                order = np.argsort(keys, kind="stable")
                self._sorted[part] = keys[order], ids[order]
            return self._sorted[part]
