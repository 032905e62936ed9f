"""What is each subgraph called, so that two of one seed have different names?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hopstream.arrays import Array, IntArray, RaggedArray, offsets_of
from hopstream.tfgnn.graph_tensor import GraphPieces
from hopstream.tfgnn.values import FeatureValues

SAMPLE_ID = "sample_id"
"""The context feature: the id of the seed, and from its second subgraph on ``id:1``, ``id:2`` and so on."""


def repeats_of(seeds: Array) -> IntArray:
    """int64[n], how often each seed was there before.

    Args:
        seeds: int64[n] or int64[n, 2].
    """
    columns = seeds[:, None] if seeds.ndim == 1 else seeds
    order = np.lexsort(columns.T[::-1])
    is_new = np.ones(len(seeds), np.bool_)
    of_sorted = columns[order]
    is_new[1:] = (of_sorted[1:] != of_sorted[:-1]).any(axis=1)
    places = np.arange(len(seeds), dtype=np.int64)
    repeats = np.empty(len(seeds), np.int64)
    repeats[order] = places - np.maximum.accumulate(np.where(is_new, places, 0))
    return repeats


def with_sample_ids(pieces: GraphPieces, seed_ids: Sequence[bytes], repeats: IntArray) -> GraphPieces:
    """Graph tensors of one component with ``context/sample_id``."""
    names = [
        name if number == 0 else b"%s:%d" % (name, number)
        for name, number in zip(seed_ids, repeats.tolist(), strict=True)
    ]
    return replace(pieces, context={**pieces.context, SAMPLE_ID: FeatureValues.of(byte_strings(names))})


def byte_strings(values: Sequence[bytes]) -> RaggedArray:
    """Strings as a column, if only an empty one."""
    lengths = np.fromiter(map(len, values), np.int64, len(values))
    return RaggedArray(np.frombuffer(b"".join(values), np.uint8), offsets_of(lengths), is_string=True)
