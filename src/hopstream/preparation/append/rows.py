"""Adds new edges to rows, in the order in which they are stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hopstream.arrays import Column, IntArray, join_columns, offsets_of, take_column
from hopstream.dataset.layout import EdgeArrays
from hopstream.dataset.stored_columns import EdgeRun, KeysOfIds
from hopstream.dataset.times import EdgeTimes, sort_edges


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AddedEdges:
    """The new edges of one type and direction.

    Attributes:
        own_ids: int64[n], ids of the ends that own them.
        other_ids: int64[n], ids of the other ends.
        first_key: Key of the first; the others follow.
        times: int64[n], or None where edges have none in this direction.
        features: Feature name to column of n rows.
        order: int64[n], the edges sorted by ``own_ids``; those of one id in the order of their keys.
        dtype: In which ids of the other ends are stored.
        keys_of_others: The key of each id of the other end.
    """

    own_ids: IntArray
    other_ids: IntArray
    first_key: int
    times: IntArray | None
    features: Mapping[str, Column]
    order: IntArray
    dtype: np.dtype[np.generic]
    keys_of_others: KeysOfIds


def merged_rows(
    old: EdgeArrays | None, added: AddedEdges, places: IntArray, num_added: IntArray, weight_attr: str | None
) -> EdgeRun:
    """Rows with their old edges and new ones, in stored order.

    Args:
        old: The old edges of the rows, or None where the rows are new.
        added: New edges.
        places: int64[m], which of them are these rows', row after row, in the order of their keys.
        num_added: int64[num_rows], how many of them each row has.
        weight_attr: The feature that says weights, if any.
    """
    num_old = np.zeros_like(num_added) if old is None else np.diff(old.indptr)
    indptr, old_indptr, added_indptr = offsets_of(num_old + num_added), offsets_of(num_old), offsets_of(num_added)
    total_old, total = int(old_indptr[-1]), int(indptr[-1])
    of_old = np.arange(total_old, dtype=np.int64) + np.repeat(indptr[:-1] - old_indptr[:-1], num_old)
    of_added = np.arange(len(places), dtype=np.int64) + np.repeat(indptr[:-1] + num_old - added_indptr[:-1], num_added)
    indices, keys, at = np.empty(total, added.dtype), np.zeros(total, np.int64), np.empty(total, np.int64)
    indices[of_added], keys[of_added] = added.other_ids[places], added.first_key + places
    at[of_old], at[of_added] = np.arange(total_old), np.arange(total_old, total)
    features = {name: take_column(column, places) for name, column in added.features.items()}
    times = None if added.times is None else added.times[places]
    if old is not None:
        indices[of_old] = old.indices
        if old.keys is not None:
            keys[of_old] = old.keys
        features = {name: join_columns([old.features[name], column]) for name, column in features.items()}
        times = times if times is None or old.times is None else np.concatenate([old.times, times])
    edge_times = None if times is None else EdgeTimes(own=times, neighbor=None, neighbor_keys=None)
    if edge_times is not None:
        sort_edges(indptr, at, indices, edge_times, keys)
    weights = features.get(weight_attr) if weight_attr is not None else None
    return EdgeRun(
        indptr=indptr, indices=indices, keys=keys, places=at, neighbor_keys=added.keys_of_others, times=edge_times,
        weights=weights if isinstance(weights, np.ndarray) else None, features=features,
    )  # fmt: skip
