"""Finds the nodes that an export starts from: those that a table names by raw id, those of a split, or all.

Repeated seeds are numbered, so that two subgraphs of one seed have different names.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hopstream.arrays import Array, IntArray, RaggedArray
from hopstream.errors import IdRangeError, SchemaError, SettingsError, quoted
from hopstream.export.raw_ids import fetch_ids, id_feature_of, ids_as, kind_of_ids, link_name, num_keys, texts_of
from hopstream.export.seed_tables import SeedBatch
from hopstream.ingest.raw_tables.raw_ids import NAME
from hopstream.store.contract import Store


def repeats_of(seeds: IntArray) -> IntArray:
    """int64[n], how often each seed was there before. 40 to 60 bytes per seed are held meanwhile.

    Args:
        seeds: int64[n], or int64[n, 2] for links.
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


SEEDS_AT_ONCE = 1 << 22
"""Seeds that are looked up in one pass over the ids of all nodes."""
NODES_AT_ONCE = 1 << 19


class NodeIds:
    """The raw ids of the nodes of one type, for seeds that come by the million.

    All ids are read in one pass for some millions of seeds, and nothing is kept between passes. ``RawIndex`` is for
    seeds that come a few at a time: it keeps 16 bytes per node, which an export of few seeds would make for nothing.
    """

    def __init__(self, store: Store, node_type: str, feature: str | None) -> None:
        """Find the feature that holds them, as ``id_feature_of`` does.

        Raises:
            UnknownNameError: There is no such feature.
            SettingsError: It holds neither single strings nor single integers.
        """
        self._store, self.node_type = store, node_type
        self.num_nodes = num_keys(store, node_type)
        self.feature = id_feature_of(store.schema, node_type, feature)
        self.kind = kind_of_ids(store.schema, node_type, self.feature)

    def of_keys(self, keys: IntArray) -> list[bytes]:
        """The raw ids of some nodes as text."""
        return [b"%d" % key for key in keys.tolist()] if self.feature is None else texts_of(self._column(keys))

    def keys_of(self, raw: pa.Array) -> IntArray:
        """int64[n], the key of each raw id, the first node's where several have it, and -1 where none has.

        The ids of all nodes are read once, block by block.
        """
        wanted = ids_as(raw, self.kind)
        if self.feature is None:
            numbers: IntArray = wanted.fill_null(-1).to_numpy(zero_copy_only=False)
            return np.where((numbers >= 0) & (numbers < self.num_nodes), numbers, -1)
        encoded = wanted.dictionary_encode()
        distinct = encoded.dictionary
        keys = np.full(len(distinct), -1, np.int64)
        for first in range(0, self.num_nodes, NODES_AT_ONCE):
            block = np.arange(first, min(first + NODES_AT_ONCE, self.num_nodes), dtype=np.int64)
            places = pc.index_in(_arrow(self._column(block), self.kind), value_set=distinct).fill_null(-1).to_numpy()
            is_found = places >= 0
            is_found[is_found] = keys[places[is_found]] < 0
            keys[places[is_found][::-1]] = block[is_found][::-1]
        numbers = encoded.indices.fill_null(-1).to_numpy()
        return np.where(numbers >= 0, np.append(keys, -1)[numbers], -1)

    def _column(self, keys: IntArray) -> Array | RaggedArray:
        return fetch_ids(self._store, self.node_type, self.feature or "", keys)


def seed_names(ends: Sequence[NodeIds], keys: IntArray) -> list[bytes]:
    """The raw ids of some seeds, int64[n], or the names of links, int64[n, 2], as text."""
    columns = keys.reshape(-1, len(ends)).T
    names = [of.of_keys(np.ascontiguousarray(column)) for of, column in zip(ends, columns, strict=True)]
    return names[0] if len(names) == 1 else list(map(link_name, *names))


def _arrow(column: Array | RaggedArray, kind: pa.DataType) -> pa.Array:
    if not isinstance(column, RaggedArray):
        return pa.array(column).cast(kind)
    parts = [pa.py_buffer(np.ascontiguousarray(part)) for part in (column.offsets, column.values)]
    return pa.Array.from_buffers(NAME, len(column), [None, *parts])


def write_seeds(
    path: Path, batches: Iterable[SeedBatch], ends: Sequence[NodeIds], source: str, at_once: int = SEEDS_AT_ONCE
) -> None:  # fmt: skip
    """Write the keys of the seeds of a table.

    Args:
        path: The file; it comes into its place when all keys are known.
        batches: The seeds.
        ends: The ids of the nodes that they may be; of links those of sources and those of targets.
        source: What the table is called.
        at_once: Seeds that are looked up in one pass, at most ``SEEDS_AT_ONCE``.

    Raises:
        IdRangeError: A seed is no node; the error names table, row and id.
        SettingsError: There are no seeds.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    num_seeds = 0
    with partial.open("wb") as file:
        for group in _groups(batches, min(at_once, SEEDS_AT_ONCE)):
            keys = _keys_of_group(group, ends, source)
            num_seeds += len(keys)
            file.write(np.ascontiguousarray(keys, "<i8").data)
    if not num_seeds:
        partial.unlink()
        raise SettingsError(f"{source} has no rows; name seeds, or leave seeds out to start from every node")
    partial.replace(path)


def write_numbers(path: Path, numbers: IntArray) -> None:
    """Write int64[n] so that ``read_seeds`` reads them; the file comes into its place whole."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    np.asarray(numbers, "<i8").tofile(partial)
    partial.replace(path)


def read_seeds(path: Path, num_columns: int = 1) -> IntArray:
    """What was written, mapped: int64[n], or int64[n, 2] for links."""
    keys: IntArray = np.memmap(path, np.dtype("<i8"), mode="r")
    return keys if num_columns == 1 else keys.reshape(-1, num_columns)


def split_seeds(store: Store, node_type: str, split: str) -> IntArray:
    """The keys of a split.

    Raises:
        UnknownNameError: There is no such split.
        SettingsError: It has no nodes.
    """
    keys = store.split(node_type, split)
    if not len(keys):
        raise SettingsError(f"split {split!r} of {node_type} has no nodes, so there is nothing to export")
    return keys


def _groups(batches: Iterable[SeedBatch], at_once: int) -> Iterator[list[SeedBatch]]:
    group: list[SeedBatch] = []
    num_rows = 0
    for batch in batches:
        group.append(batch)
        num_rows += len(batch.columns[0])
        if num_rows >= at_once:
            yield group
            group, num_rows = [], 0
    if group:
        yield group


def _keys_of_group(group: list[SeedBatch], ends: Sequence[NodeIds], source: str) -> IntArray:
    """int64[n] or int64[n, 2]."""
    columns = [
        nodes.keys_of(_joined([batch.columns[number] for batch in group], source, nodes.kind))
        for number, nodes in enumerate(ends)
    ]
    keys = np.stack(columns, axis=1)
    is_missing = (keys < 0).any(axis=1)
    if is_missing.any():
        _refuse(group, int(np.argmax(is_missing)), keys, ends)
    return keys[:, 0] if len(columns) == 1 else keys


def _joined(arrays: list[pa.Array], source: str, kind: pa.DataType) -> pa.Array:
    are_integers = {pa.types.is_integer(array.type) for array in arrays}
    if len(are_integers) > 1:
        raise SchemaError(f"{source} holds integers in one file and strings in another; write one kind of ids")
    return pa.concat_arrays([ids_as(array, kind) for array in arrays])


def _refuse(group: list[SeedBatch], row: int, keys: IntArray, ends: Sequence[NodeIds]) -> None:
    """Raise the error of the seed in a row of a group."""
    column = int(np.argmax(keys[row] < 0))
    nodes = ends[column]
    for batch in group:
        if row < len(batch.columns[0]):
            raw = batch.columns[column][row].as_py()
            known = (
                f"its nodes are 0..{nodes.num_nodes - 1}" if nodes.feature is None
                else f"feature {nodes.feature!r} of none of its {nodes.num_nodes} nodes is that"
            )  # fmt: skip
            raise IdRangeError(f"{batch.place(row)}: seed {quoted(raw)} is no {nodes.node_type}; {known}")
        row -= len(batch.columns[0])
