"""Which graph was a dataset written from?

Nodes go back to the order of their keys and edges to the order of theirs, so that writing the result again, into other
parts or in another direction, gives what writing the original would have given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from hopstream.arrays import Array, Column, IntArray, RaggedArray, offsets_of
from hopstream.dataset.book import Owner, ends_of, neighbor_dtype, owner_label
from hopstream.dataset.chunks import row_chunks
from hopstream.dataset.layout import Dataset, EdgeArrays, PartArrays, open_dataset
from hopstream.dataset.overlays import newest_part
from hopstream.dataset.split import NodeSplit, split_edges
from hopstream.dataset.times import edge_times, sort_by_time
from hopstream.errors import FormatError
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.schema import Direction, EdgeType, FeatureSchema, type_label


def read_dataset(root: str | Path) -> Graph:
    """Read a dataset of any number of parts back into the graph that it was written from; see ``graph_of_dataset``.

    Raises:
        ChecksumError: A file is not the one that was written.
        FormatError: The folder is no dataset of a format that this version reads, or damaged.
    """
    return graph_of_dataset(open_dataset(root))


def graph_of_dataset(dataset: Dataset) -> Graph:
    """Read all parts of a dataset back into one graph, in the original order of nodes and edges.

    Node columns of a dataset of one part stay the memory maps that they are; everything else is held in memory. Of rows
    that were appended to, the newest are read.

    Where a dataset keeps no edge keys, the original order of a type's edges is known from its links. Without links that
    order is lost: edges come in the order in which they are stored, node by node, and in the order of time where they
    have times.

    Every file is checked first, or a damaged one would be written again with a checksum that fits it.

    Raises:
        ChecksumError: A file is not the one that was written.
        FormatError: A file is missing, truncated, or not what the manifest says, or keys are not 0..n-1, each once.
    """
    dataset.verify()
    manifest = dataset.manifest
    parts = [newest_part(dataset.open_part(part)) for part in range(manifest.book.num_parts)]
    keys_of_ids = {t: _keys_of_ids(dataset, parts, t) for t in manifest.schema.nodes}
    nodes = {
        t: NodeTable(
            num_nodes=manifest.book.num_ids(t),
            features={n: _node_column(parts, t, n, feature) for n, feature in features.items()},
        )
        for t, features in manifest.schema.nodes.items()
    }
    edges: dict[EdgeType, EdgeTable] = {}
    for edge_type in manifest.schema.edges:
        edge_keys = _stored_edge_keys(dataset, parts, edge_type, keys_of_ids, nodes)
        edges[edge_type] = _read_edges(dataset, parts, edge_type, keys_of_ids, edge_keys)
    graph = Graph(
        nodes=nodes,
        edges=edges,
        splits={
            t: {name: np.concatenate([part.splits[t][name] for part in parts]) for name in names}
            for t, names in manifest.schema.splits.items()
        },
        edge_splits={
            t: {name: np.concatenate([part.links[t].splits[name] for part in parts]) for name in names}
            for t, names in manifest.schema.edge_splits.items()
            if names
        },
        label_types=manifest.schema.label_types,
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


def _stored_edge_keys(
    dataset: Dataset,
    parts: Sequence[PartArrays],
    edge_type: EdgeType,
    keys_of_ids: Mapping[str, IntArray],
    nodes: Mapping[str, NodeTable],
) -> list[IntArray]:
    """The key of each edge that each part stores, in stored order; ids where the original order is not known."""
    owner = (edge_type, dataset.manifest.directions[0])
    arrays = [part.edges[owner] for part in parts]
    starts = offsets_of(np.array([len(edges.indices) for edges in arrays], np.int64))
    if edge_type in dataset.manifest.schema.edge_splits and not dataset.manifest.has_edge_keys:
        all_keys = _keys_from_links(dataset, parts, edge_type, keys_of_ids, nodes)
        return [all_keys[start : start + len(a.indices)] for a, start in zip(arrays, starts, strict=False)]
    edge_keys = [
        np.arange(start, start + len(a.indices), dtype=np.int64) if a.keys is None else a.keys
        for a, start in zip(arrays, starts, strict=False)
    ]
    _check_keys(dataset, owner, edge_keys)
    return edge_keys


def _keys_from_links(
    dataset: Dataset,
    parts: Sequence[PartArrays],
    edge_type: EdgeType,
    keys_of_ids: Mapping[str, IntArray],
    nodes: Mapping[str, NodeTable],
) -> IntArray:
    """int64[num_edges], the key of each edge id: links grouped as the writer grouped edges are in stored order."""
    manifest = dataset.manifest
    direction, time_attr = manifest.directions[0], manifest.time_attr
    links = [part.links[edge_type] for part in parts]
    times = [link.times for link in links if link.times is not None]
    table = EdgeTable(
        src_keys=np.concatenate([link.src_keys for link in links]),
        dst_keys=np.concatenate([link.dst_keys for link in links]),
        features={time_attr: np.concatenate(times)} if times and time_attr is not None else {},
    )
    splits = {t: _node_split(manifest.book.offsets(t), keys_of_ids[t]) for t in (edge_type[0], edge_type[2])}
    split = split_edges(table, edge_type, direction, splits)
    edge_time = edge_times(Graph(nodes=nodes, edges={edge_type: table}), edge_type, direction, splits, time_attr)
    if edge_time is not None:
        sort_by_time(split, edge_time)
    end = 0
    for part in parts:
        indices = part.edges[edge_type, direction].indices
        if not np.array_equal(split.indices[end : end + len(indices)], indices):
            raise FormatError(f"{dataset.root}: part {part.part}: links of {type_label(edge_type)} are not its edges")
        end += len(indices)
    return split.keys


def _node_split(offsets: IntArray, keys: IntArray) -> NodeSplit:
    ids_of_keys = np.empty(len(keys), neighbor_dtype(len(keys)))
    ids_of_keys[keys] = np.arange(len(keys), dtype=ids_of_keys.dtype)
    return NodeSplit(offsets=offsets, keys=keys, ids_of_keys=ids_of_keys)


def _read_edges(
    dataset: Dataset,
    parts: Sequence[PartArrays],
    edge_type: EdgeType,
    keys_of_ids: Mapping[str, IntArray],
    edge_keys: Sequence[IntArray],
) -> EdgeTable:
    direction: Direction = dataset.manifest.directions[0]
    owner = (edge_type, direction)
    arrays = [part.edges[owner] for part in parts]
    num_edges = dataset.manifest.book.num_edges(edge_type)
    own_keys, other_keys = np.empty(num_edges, np.int64), np.empty(num_edges, np.int64)
    own_type, other_type = ends_of(edge_type, direction)
    for part, edges, keys in zip(parts, arrays, edge_keys, strict=True):
        _check_offsets(f"{dataset.root}: part {part.part}: indptr of {owner_label(owner)}", edges.indptr)
        for first, last, start, stop in row_chunks(edges.indptr):
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
    book = dataset.manifest.book
    num_keys = book.num_ids(owner) if isinstance(owner, str) else book.num_edges(owner[0])
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
        for first, last, start, stop in row_chunks(column.offsets):
            shifts = offsets[places[first:last]] - column.offsets[first:last]
            targets = np.repeat(shifts, np.diff(column.offsets[first : last + 1])) + np.arange(start, stop)
            values[targets] = column.values[start:stop]
    return RaggedArray(values, offsets, feature.is_string)
