"""What does assignment see of a dataset?

What it sees of the graph that the dataset was written from: the same nodes, features and edges, the last in another
order. Methods that look at edges group them by node first, so the parts that they give are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from hopstream.arrays import Array, IntArray, offsets_of
from hopstream.assign.source import BLOCK_EDGES, OFFSET_BYTES, AssignSource, EdgeBlocks, EdgePieces, EdgeRows
from hopstream.dataset.book import Owner, ends_of, neighbor_dtype
from hopstream.dataset.chunks import overlaps
from hopstream.dataset.newest_rows import open_rows
from hopstream.dataset.paths import feature_paths
from hopstream.dataset.rows import INDICES, DatasetRows, RaggedFiles, owner_folder
from hopstream.errors import SchemaError
from hopstream.schema import Direction, EdgeType


def open_dataset_source(root: str | Path) -> AssignSource:
    """The dataset in a folder, of any number of parts, as assignment sees it.

    Raises:
        FormatError: The folder is no dataset of a format that this version reads, or a file is missing.
        ChecksumError: A file that leads to nodes or edges is not the one that was written.
    """
    rows = open_rows(root)
    rows.check_files(rows.leading_files)
    first = rows.contents.directions[0]
    edges = [owner_folder(p, (t, first)) for t in rows.contents.schema.edges for p in range(rows.book.num_parts)]
    rows.check_files(str(folder / INDICES) for folder in edges)
    return source_of_rows(rows)


def source_of_rows(rows: DatasetRows) -> AssignSource:
    """A dataset as assignment sees it.

    [Cost] Memory for the keys of all ids, 4 bytes each, and for sizes of nodes' rows where they differ.
    """
    schema, book = rows.contents.schema, rows.book
    keys: dict[str, Array] = {}

    def keys_of(node_type: str) -> Array:
        if node_type not in keys:
            keys[node_type] = _keys_of_ids(rows, node_type)
        return keys[node_type]

    def rows_of(edge_type: EdgeType) -> EdgeRows:
        owner = (edge_type, rows.contents.directions[0])
        fixed = [feature for feature in schema.edges[edge_type].values() if feature.is_fixed_width]
        ragged = rows.columns(owner).ragged

        def pieces() -> EdgePieces:  # files of a dataset are read by one thread, which opens each once
            own_type, other_type = ends_of(*owner)
            return (partial(iter, (b,)) for b in _edge_blocks(rows, owner, keys_of(own_type), keys_of(other_type)))

        def ragged_bytes(first: int, stop: int) -> IntArray:
            return _ragged_bytes(rows, owner, ragged, first, stop)

        return EdgeRows(
            num_edges=book.num_edges(edge_type), row_bytes=sum(feature.row_bytes for feature in fixed),
            ragged_bytes=ragged_bytes if ragged else None, pieces=pieces,
        )  # fmt: skip

    def node_bytes(node_type: str) -> int | IntArray:
        columns = rows.columns(node_type)
        num_bytes = sum(column.item_bytes for column in columns.fixed)
        if not columns.ragged:
            return num_bytes
        by_key = np.empty(book.num_ids(node_type), np.int64)
        for first in range(0, len(by_key), BLOCK_EDGES):
            stop = min(first + BLOCK_EDGES, len(by_key))
            of_ids = _ragged_bytes(rows, node_type, columns.ragged, first, stop)
            by_key[keys_of(node_type)[first:stop]] = num_bytes + of_ids
        return by_key

    return AssignSource(
        num_nodes={t: book.num_ids(t) for t in schema.nodes},
        node_bytes=node_bytes,
        edges={t: rows_of(t) for t in schema.edges},
        split=lambda node_type, name: rows.splits(node_type, name, BLOCK_EDGES),
        schema=schema,
        feature=lambda node_type, name: _feature(rows, node_type, name, keys_of(node_type)),
        folder=rows.root,
    )


def _keys_of_ids(rows: DatasetRows, node_type: str) -> Array:
    """integer[num_nodes], the key of each id."""
    num_nodes = rows.book.num_ids(node_type)
    keys = np.empty(num_nodes, neighbor_dtype(num_nodes))
    for first in range(0, num_nodes, BLOCK_EDGES):
        stop = min(first + BLOCK_EDGES, num_nodes)
        keys[rows.ids_of_keys(node_type, first, stop)] = np.arange(first, stop)
    return keys


def _edge_blocks(
    rows: DatasetRows, owner: tuple[EdgeType, Direction], own_keys: Array, other_keys: Array
) -> EdgeBlocks:
    """All edges, part by part, in stored order; the edges of a hub are several blocks."""
    (indices,) = (c for c in rows.columns(owner).fixed if c.name == INDICES)
    node_offsets = rows.book.node_offsets[ends_of(*owner)[0]]
    done = 0
    for part in range(rows.book.num_parts):
        num_rows = int(node_offsets[part + 1] - node_offsets[part])
        for first_row in range(0, num_rows, BLOCK_EDGES):
            stop_row = min(first_row + BLOCK_EDGES, num_rows)
            starts = rows.starts(owner, part, first_row, stop_row)
            keys = own_keys[int(node_offsets[part]) + first_row : int(node_offsets[part]) + stop_row]
            for begin in range(int(starts[0]), int(starts[-1]), BLOCK_EDGES):
                end = min(begin + BLOCK_EDGES, int(starts[-1]))
                bounded: IntArray = np.clip(starts, begin, end)
                own = np.repeat(keys, bounded[1:] - bounded[:-1]).astype(np.int64)
                other = other_keys[rows.read(owner, part, indices, begin, end)].astype(np.int64)
                yield (done, other, own) if owner[1] == "in" else (done, own, other)
                done += end - begin


def _ragged_bytes(rows: DatasetRows, owner: Owner, columns: Sequence[RaggedFiles], first: int, stop: int) -> IntArray:
    """int64[stop - first], bytes of the ragged features of some items, counted over all parts."""
    num_items = np.array([rows.num_items(owner, part) for part in range(rows.book.num_parts)], np.int64)
    bounds, found = offsets_of(num_items), np.zeros(stop - first, np.int64)
    for part, begin, end in overlaps(first, stop, bounds):
        for column in columns:
            starts = rows.value_starts(owner, part, column, begin - int(bounds[part]), end - int(bounds[part]))
            found[begin - first : end - first] += np.diff(starts) * column.values.item_bytes + OFFSET_BYTES
    return found


def _feature(rows: DatasetRows, node_type: str, name: str, keys: Array) -> Array:
    """The whole of a feature of nodes, in the order of keys.

    Raises:
        SchemaError: Its rows have different lengths.
    """
    feature = rows.contents.schema.feature(node_type, name)
    if not feature.is_fixed_width:
        raise SchemaError(f"{node_type}.{name} has rows of different lengths; classes are one integer for each node")
    (path,) = feature_paths(owner_folder(0, node_type), name, feature)
    (column,) = (c for c in rows.columns(node_type).fixed if c.name.name == path.name)
    values = np.empty((len(keys), *feature.shape), feature.numpy_dtype)
    offsets = rows.book.node_offsets[node_type]
    for part in range(rows.book.num_parts):
        num_rows = rows.num_items(node_type, part)
        values[keys[offsets[part] : offsets[part + 1]]] = rows.read(node_type, part, column, 0, num_rows)
    return values
