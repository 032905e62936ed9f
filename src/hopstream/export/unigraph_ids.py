"""Finds the raw id of each node of a unigraph that is written.

Raw ids that a feature has are copied to files in the order of keys, once, so that those of any edges' ends can be
looked up. No two nodes may have the same one: 8 bytes for each node are held while that is checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa

from hopstream.arrays import Array, IntArray, RaggedArray
from hopstream.errors import SchemaError, quoted
from hopstream.export.raw_ids import can_be_ids
from hopstream.ingest.chunked.ragged import RaggedSource
from hopstream.ingest.chunked.sources import FeatureSource
from hopstream.ingest.chunking.buckets import hashes_of
from hopstream.ingest.chunking.raw_files import append_values
from hopstream.ingest.ids import NAME, strings_column

BLOCK_ROWS = 1 << 16


class WrittenIds(Protocol):
    """The raw ids of the nodes of a type."""

    def take(self, keys: IntArray) -> RaggedArray:
        """The raw ids of some nodes, as strings."""
        ...


class KeyIds:
    """Keys as raw ids: ``"0"``, ``"1"`` and so on."""

    def take(self, keys: IntArray) -> RaggedArray:
        """As ``WrittenIds.take``."""
        return strings_column([pa.array(keys).cast(NAME)])


class StoredIds:
    """Raw ids that a feature has."""

    def __init__(self, folder: Path, label: str, source: FeatureSource) -> None:
        """Copy them.

        Args:
            folder: A new folder for the copy.
            label: What messages call the feature.
            source: The feature.

        Raises:
            SchemaError: It is not one string or integer per node, a raw id is empty, or two nodes have the same.
        """
        schema = source.schema
        if not can_be_ids(schema):
            raise SchemaError(f"{label} is {schema}; raw ids are one string or integer per node")
        folder.mkdir(parents=True)
        hashes, end, first = np.empty(source.num_rows, np.uint64), 0, 0
        with (folder / "values").open("wb") as values, (folder / "offsets").open("wb") as offsets:
            append_values(offsets, np.zeros(1, np.int64))
            for block in _strings_of(source):
                lengths = np.diff(block.offsets)
                if (lengths == 0).any():
                    raise SchemaError(
                        f"{label} of node {first + int(np.argmin(lengths))} is empty; every node has an id"
                    )
                append_values(values, block.values)
                append_values(offsets, block.offsets[1:] + end)
                hashes[first : first + len(block)] = hashes_of(arrow_strings(block))
                end, first = end + len(block.values), first + len(block)
        num_rows = source.num_rows
        self._strings = RaggedArray(
            np.memmap(folder / "values", np.uint8, "r") if end else np.empty(0, np.uint8),
            np.memmap(folder / "offsets", np.int64, "r", shape=(num_rows + 1,)), is_string=True,
        )  # fmt: skip
        self._check_unique(label, hashes)

    def take(self, keys: IntArray) -> RaggedArray:
        """As ``WrittenIds.take``."""
        return self._strings.take(keys)

    def _check_unique(self, label: str, hashes: Array) -> None:
        ordered = np.sort(hashes)
        repeated = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
        seen: dict[str, int] = {}
        for key in np.flatnonzero(np.isin(hashes, repeated)).tolist() if len(repeated) else ():
            raw = self._strings[key]
            if raw in seen:
                raise SchemaError(f"{label} is {quoted(raw)} of nodes {seen[raw]} and {key}; raw ids differ")
            seen[raw] = key


def _strings_of(source: FeatureSource) -> Iterator[RaggedArray]:
    if isinstance(source, RaggedSource):
        yield from source.blocks(0, source.num_rows)
        return
    for start in range(0, source.num_rows, BLOCK_ROWS):
        values = source.read(start, min(start + BLOCK_ROWS, source.num_rows))
        yield strings_column([pa.array(values).cast(NAME)])


def arrow_strings(rows: RaggedArray) -> pa.Array:
    """Rows of strings as an Arrow array, which shares their memory."""
    offsets, values = np.ascontiguousarray(rows.offsets), np.ascontiguousarray(rows.values)
    return pa.Array.from_buffers(NAME, len(rows), [None, pa.py_buffer(offsets), pa.py_buffer(values)])
