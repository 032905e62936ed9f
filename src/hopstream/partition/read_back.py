"""Which graph was a dataset written from?

Nodes go back to the order of their keys and edges to the order of theirs, so that writing the result again, into other
parts or in another direction, gives what writing the original would have given.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from hopstream.arrays import Array, Column, IntArray, RaggedArray, offsets_of
from hopstream.errors import FormatError
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.partition.book import Owner, ends_of, owner_label
from hopstream.partition.layout import Dataset, EdgeArrays, PartArrays, open_dataset
from hopstream.schema import Direction, EdgeType, FeatureSchema

CHUNK_ITEMS = 1 << 22
"""Edges, or elements of ragged rows, that are moved at a time; bounds what is held beside the graph."""


def read_dataset(root: str | Path) -> Graph:
    """Read a dataset of any number of parts back into the graph that it was written from; see ``graph_of_dataset``.

    Raises:
        ChecksumError: A file is not the one that was written.
        FormatError: The folder is no dataset of a format that this version reads, or damaged.
    """
    return graph_of_dataset(open_dataset(root))


def graph_of_dataset(dataset: Dataset) -> Graph:
    """Read all parts of a dataset back into one graph, in the original order of nodes and edges.

    Node columns of a dataset of one part stay the memory maps that they are; everything else is held in memory. Where
    the dataset keeps no edge keys, edges come in the order in which it stores them.

    Every file is checked first, or a damaged one would be written again with a checksum that fits it.

    Raises:
        ChecksumError: A file is not the one that was written.
        FormatError: A file is missing, truncated, or not what the manifest says, or keys are not 0..n-1, each once.
    """
    dataset.verify()
    manifest = dataset.manifest
    parts = [dataset.open_part(part) for part in range(manifest.book.num_parts)]
    keys_of_ids = {t: _keys_of_ids(dataset, parts, t) for t in manifest.schema.nodes}
    graph = Graph(
        nodes={
            t: NodeTable(
                num_nodes=manifest.book.num_ids(t),
                features={n: _node_column(parts, t, n, feature) for n, feature in features.items()},
            )
            for t, features in manifest.schema.nodes.items()
        },
        edges={t: _read_edges(dataset, parts, t, keys_of_ids) for t in manifest.schema.edges},
        splits={
            t: {name: np.concatenate([part.splits[t][name] for part in parts]) for name in names}
            for t, names in manifest.schema.splits.items()
        },
    )
    return graph.check()


def _keys_of_ids(dataset: Dataset, parts: Sequence[PartArrays], node_type: str) -> IntArray:
    """int64[num_nodes], the key of each id."""
    if len(parts) == 1:
        keys = parts[0].node_keys[node_type]
    else:
        keys = np.concatenate([part.node_keys[node_type] for part in parts])
    _check_keys(dataset, node_type, [keys])
    return keys


def _node_column(parts: Sequence[PartArrays], node_type: str, name: str, feature: FeatureSchema) -> Column:
    columns = [part.node_features[node_type][name] for part in parts]
    if len(parts) == 1:  # id equals key, says the format
        return columns[0]
    return _place(f"{node_type}.{name}", columns, [part.node_keys[node_type] for part in parts], feature)


def _read_edges(
    dataset: Dataset, parts: Sequence[PartArrays], edge_type: EdgeType, keys_of_ids: dict[str, IntArray]
) -> EdgeTable:
    direction: Direction = dataset.manifest.directions[0]
    owner = (edge_type, direction)
    arrays = [part.edges[owner] for part in parts]
    starts = dataset.manifest.book.offsets(owner)
    edge_keys = [
        np.arange(start, start + len(a.indices), dtype=np.int64) if a.keys is None else a.keys
        for a, start in zip(arrays, starts, strict=False)
    ]
    _check_keys(dataset, owner, edge_keys)
    num_edges = int(starts[-1])
    own_keys, other_keys = np.empty(num_edges, np.int64), np.empty(num_edges, np.int64)
    own_type, other_type = ends_of(edge_type, direction)
    for part, edges, keys in zip(parts, arrays, edge_keys, strict=True):
        _check_offsets(f"{dataset.root}: part {part.part}: indptr of {owner_label(owner)}", edges.indptr)
        for first, last, start, stop in _row_chunks(edges.indptr):
            places = keys[start:stop]
            degrees = np.diff(edges.indptr[first : last + 1])
            own_keys[places] = np.repeat(part.node_keys[own_type][first:last], degrees)
            other_keys[places] = keys_of_ids[other_type][_checked_ids(dataset, edges, start, stop, owner)]
    features = {
        name: _place(f"{owner_label(owner)}.{name}", [a.features[name] for a in arrays], edge_keys, feature)
        for name, feature in dataset.manifest.schema.edges[edge_type].items()
    }
    src_keys, dst_keys = (other_keys, own_keys) if direction == "in" else (own_keys, other_keys)
    return EdgeTable(src_keys=src_keys, dst_keys=dst_keys, features=features)


def _checked_ids(
    dataset: Dataset, edges: EdgeArrays, start: int, stop: int, owner: tuple[EdgeType, Direction]
) -> Array:
    """The other ends of edges ``[start, stop)``; an id that no node has would read beside the table of keys."""
    ids = edges.indices[start:stop]
    num_nodes = dataset.manifest.book.num_ids(ends_of(*owner)[1])
    if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= num_nodes):
        raise FormatError(
            f"{dataset.root}: indices of {owner_label(owner)} lie in {int(ids.min())}..{int(ids.max())}; "
            f"ids are 0..{num_nodes - 1}"
        )
    return ids


def _check_keys(dataset: Dataset, owner: Owner, keys: Sequence[IntArray]) -> None:
    """Raise ``FormatError`` unless the arrays together hold 0..n-1, each once."""
    num_keys = dataset.manifest.book.num_ids(owner)
    is_seen = np.zeros(num_keys, np.bool_)
    for array in keys:
        if len(array) and (int(array.min()) < 0 or int(array.max()) >= num_keys):
            break
        is_seen[array] = True
    if not is_seen.all():
        raise FormatError(f"{dataset.root}: keys of {owner_label(owner)} are not 0..{num_keys - 1}, each once")


def _check_offsets(where: str, offsets: IntArray) -> None:
    if bool(np.any(offsets[1:] < offsets[:-1])):
        raise FormatError(f"{where} must ascend; copy the dataset again, or verify it")


def _row_chunks(offsets: IntArray) -> Iterator[tuple[int, int, int, int]]:
    """``(first row, end row, first item, end item)`` of stretches of about ``CHUNK_ITEMS`` items, or of one row."""
    first, num_rows = 0, len(offsets) - 1
    while first < num_rows:
        start = int(offsets[first])
        last = int(np.searchsorted(offsets, start + CHUNK_ITEMS, side="right")) - 1
        last = min(max(last, first + 1), first + CHUNK_ITEMS, num_rows)
        yield first, last, start, int(offsets[last])
        first = last


def _place(where: str, columns: Sequence[Column], keys: Sequence[IntArray], feature: FeatureSchema) -> Column:
    """One column of all rows: row ``i`` of ``columns[p]`` becomes row ``keys[p][i]``."""
    num_rows = sum(map(len, keys))
    if feature.is_fixed_width:
        out = np.empty((num_rows, *feature.shape), feature.numpy_dtype)
        for column, places in zip(columns, keys, strict=True):
            out[places] = column
        return out
    ragged = [c for c in columns if isinstance(c, RaggedArray)]
    lengths = np.empty(num_rows, np.int64)
    for column, places in zip(ragged, keys, strict=True):
        _check_offsets(f"offsets of {where}", column.offsets)
        lengths[places] = np.diff(column.offsets)
    offsets = offsets_of(lengths)
    values = np.empty((int(offsets[-1]), *feature.shape), feature.numpy_dtype)
    for column, places in zip(ragged, keys, strict=True):
        for first, last, start, stop in _row_chunks(column.offsets):
            shifts = offsets[places[first:last]] - column.offsets[first:last]
            targets = np.repeat(shifts, np.diff(column.offsets[first : last + 1])) + np.arange(start, stop)
            values[targets] = column.values[start:stop]
    return RaggedArray(values, offsets, feature.is_string)
