"""Reads a dataset back into the graph that it was written from.

Nodes and edges are restored to the order of their keys. So writing the result again, into other parts or in another
direction, gives the same dataset as writing the original.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import numpy as np

from hopstream.arrays import Array, Column, IntArray, RaggedArray, offsets_of
from hopstream.dataset.book import Entity, ends_of, entity_label
from hopstream.dataset.chunks import positions_of, row_chunks
from hopstream.dataset.layout import Dataset, open_dataset
from hopstream.dataset.rows import EDGE_KEYS, INDICES, ColumnFile, DatasetRows, KeyMarks, RaggedFiles, RowBlock
from hopstream.dataset.split import NodeSplit, split_edges
from hopstream.dataset.stored_columns import edge_times, sort_by_time
from hopstream.errors import FormatError
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.schema import EdgeType, type_label

BLOCK_BYTES = 16 << 20
"""Bytes of a column per read, unless one item is larger."""
BLOCK_EDGES = 1 << 20
BLOCK_KEYS = 1 << 20

KeysOf = Callable[[RowBlock], Array]
"""Function that returns integer[items], the key of each item of a block."""
KeyedBlocks = Sequence[tuple[RowBlock, Array]]
"""Blocks with the keys of their items."""


def read_dataset(root: str | Path) -> Graph:
    """Read a dataset of any number of parts back into its source graph; see ``graph_of_dataset``.

    Raises:
        ChecksumError: A file does not match its checksum.
        FormatError: The folder is no dataset of a format that this version reads, or is damaged.
    """
    return graph_of_dataset(open_dataset(root))


def graph_of_dataset(dataset: Dataset) -> Graph:
    """Read all parts of a dataset back into one graph, in the original order of nodes and edges.

    Node columns of a dataset of one part stay memory maps; everything else is read into memory. Of rows that an append
    changed only the newest version is read. Edges without stored keys are in the order of ``edge_keys``.

    Every file is checked first. Otherwise a damaged file would be written again with a valid checksum.

    Raises:
        ChecksumError: A file does not match its checksum.
        FormatError: A file is missing, truncated, or contradicts the manifest, or keys are not 0..n-1, each once.
    """
    dataset.verify()
    rows = DatasetRows(dataset.root, dataset.manifest, takes_sums=False)
    schema, book = dataset.manifest.schema, dataset.manifest.book
    keys_of_ids = {t: rows.keys_of_ids(t) for t in schema.nodes}
    if book.num_parts == 1:  # the format guarantees that ids equal keys
        columns = dict(dataset.open_part(0).node_features)
    else:
        columns = {t: columns_by_key(rows, t, _node_blocks(rows, t, keys_of_ids[t])) for t in schema.nodes}
    return Graph(
        nodes={t: NodeTable(num_nodes=book.num_ids(t), features=features) for t, features in columns.items()},
        edges={t: _edge_table(rows, t, keys_of_ids) for t in schema.edges},
        splits={t: {name: _split(rows, t, name) for name in names} for t, names in schema.splits.items()},
        edge_splits={
            t: {name: _split(rows, t, name) for name in names} for t, names in schema.edge_splits.items() if names
        },
        label_types=schema.label_types,
        transforms=dataset.manifest.transforms,
    ).check()


def _split(rows: DatasetRows, entity: str | EdgeType, name: str) -> IntArray:
    return np.concatenate([np.empty(0, np.int64), *rows.splits(entity, name, BLOCK_KEYS)])


def _edge_table(rows: DatasetRows, edge_type: EdgeType, keys_of_ids: dict[str, Array]) -> EdgeTable:
    entity = (edge_type, rows.manifest.directions[0])
    own_keys, other_keys = (keys_of_ids[t] for t in ends_of(*entity))
    num_edges = rows.book.num_edges(edge_type)
    own, other = np.empty((2, num_edges), np.int64)
    keys_of, marks = edge_keys(rows, edge_type), KeyMarks(f"{rows.root}: {entity_label(entity)}", num_edges)
    blocks = [(block, keys_of(block)) for block in rows.blocks(entity, _block_items(rows, entity))]
    for block, keys in blocks:
        marks.add(keys)
        own[keys] = np.repeat(own_keys[block.row_ids], block.counts)
        other[keys] = other_keys[neighbors_of(rows, entity, block)]
    marks.check()
    src_keys, dst_keys = (other, own) if entity[1] == "in" else (own, other)
    return EdgeTable(src_keys=src_keys, dst_keys=dst_keys, features=columns_by_key(rows, entity, blocks))


def neighbors_of(rows: DatasetRows, entity: Entity, block: RowBlock) -> Array:
    """Return integer[items], the ids of the other ends of a block's edges, checked to be in range."""
    return rows.read_spans(entity, rows.columns(entity).named(INDICES), block.piece, block.starts, block.counts)


def edge_keys(rows: DatasetRows, edge_type: EdgeType) -> KeysOf:
    """Return a function that gives the keys of edges in the first direction.

    If a dataset keeps no edge keys, the links of a type give the order of its keys. Without links that order is lost.
    Then edges are numbered in stored order: node by node, and by time if they have times.

    [Cost] Some 50 bytes of memory per edge for a type whose keys come from its links.

    Raises:
        FormatError: The links of the type contradict its edges.
    """
    entity = (edge_type, rows.manifest.directions[0])
    if rows.manifest.has_edge_keys:
        column = rows.columns(entity).named(EDGE_KEYS)
        return lambda block: rows.read_spans(entity, column, block.piece, block.starts, block.counts)
    if edge_type not in rows.manifest.schema.edge_splits:
        return lambda block: block.item_places
    keys = _keys_from_links(rows, edge_type)
    return lambda block: keys[block.item_places]


def _keys_from_links(rows: DatasetRows, edge_type: EdgeType) -> Array:
    """Return integer[num_edges], edge keys in stored order, by grouping links as the writer did."""
    manifest, num_edges = rows.manifest, rows.book.num_edges(edge_type)
    direction, time_attr = manifest.directions[0], manifest.time_attr
    features: dict[str, Column] = {}
    if time_attr is not None and time_attr in manifest.schema.edges[edge_type]:
        features[time_attr] = rows.links(edge_type, "time", 0, num_edges)
    table = EdgeTable(
        src_keys=rows.links(edge_type, "src_key", 0, num_edges),
        dst_keys=rows.links(edge_type, "dst_key", 0, num_edges),
        features=features,
    )
    splits, nodes = {}, {}
    for node_type in (edge_type[0], edge_type[2]):
        keys = rows.keys_of_ids(node_type)
        ids_of_keys = rows.ids_of_keys(node_type, 0, len(keys)).astype(keys.dtype)
        splits[node_type] = NodeSplit(offsets=rows.book.offsets(node_type), keys=keys, ids_of_keys=ids_of_keys)
        names = [name for name in manifest.schema.nodes[node_type] if name == time_attr]
        times = columns_by_key(rows, node_type, _node_blocks(rows, node_type, keys), names)
        nodes[node_type] = NodeTable(num_nodes=len(keys), features=times)
    split = split_edges(table, edge_type, direction, splits)
    edge_time = edge_times(Graph(nodes=nodes, edges={edge_type: table}), edge_type, direction, splits, time_attr)
    if edge_time is not None:
        sort_by_time(split, edge_time)
    entity = (edge_type, direction)
    for block in rows.blocks(entity, BLOCK_EDGES):
        if not np.array_equal(split.indices[block.item_places], neighbors_of(rows, entity, block)):
            part = rows.book.piece_parts(entity)[block.piece]
            raise FormatError(f"{rows.root}: part {part}: links of {type_label(edge_type)} are not its edges")
    return split.keys


def node_column(rows: DatasetRows, node_type: str, name: str, keys_of_ids: Array) -> Column:
    """Return a feature of nodes, in the order of keys."""
    return columns_by_key(rows, node_type, _node_blocks(rows, node_type, keys_of_ids), {name})[name]


def _node_blocks(rows: DatasetRows, node_type: str, keys_of_ids: Array) -> KeyedBlocks:
    return [(block, keys_of_ids[block.row_ids]) for block in rows.blocks(node_type, _block_items(rows, node_type))]


def _block_items(rows: DatasetRows, entity: Entity) -> int:
    """Return the number of items per read."""
    return max(1, BLOCK_BYTES // max([32, *(column.item_bytes for column in rows.columns(entity).fixed)]))


def columns_by_key(
    rows: DatasetRows, entity: Entity, blocks: KeyedBlocks, names: Collection[str] | None = None
) -> dict[str, Column]:
    """Return features of a node type, or of an edge type in one direction, in the order of keys.

    Args:
        rows: The dataset.
        entity: The node type, or the edge type and direction.
        blocks: All items of the entity; their keys are in range and unique.
        names: The features; None for all.
    """
    schema = rows.manifest.schema
    features = schema.nodes[entity] if isinstance(entity, str) else schema.edges[entity[0]]
    num_items = rows.book.num_ids(entity) if isinstance(entity, str) else rows.book.num_edges(entity[0])
    found: dict[str, Column] = {}
    for name in features if names is None else names:
        files = rows.columns(entity).features[name]
        if isinstance(files, ColumnFile):
            found[name] = _fixed_by_key(rows, entity, files, blocks, num_items)
        else:
            values, offsets = _ragged_by_key(rows, entity, files, blocks, num_items)
            found[name] = RaggedArray(values, offsets, features[name].is_string)
    return found


def _fixed_by_key(rows: DatasetRows, entity: Entity, column: ColumnFile, blocks: KeyedBlocks, num_items: int) -> Array:
    values = np.empty((num_items, *column.shape), column.dtype)
    for block, keys in blocks:
        values[keys] = rows.read_spans(entity, column, block.piece, block.starts, block.counts)
    return values


def _ragged_by_key(
    rows: DatasetRows, entity: Entity, column: RaggedFiles, blocks: KeyedBlocks, num_items: int
) -> tuple[Array, IntArray]:
    lengths = np.empty(num_items, np.int64)
    for block, keys in blocks:
        lengths[keys] = rows.element_spans(entity, column, block.piece, block.starts, block.counts)[1]
    offsets = offsets_of(lengths)
    values = np.empty((int(offsets[-1]), *column.values.shape), column.values.dtype)
    max_elements = max(1, BLOCK_BYTES // max(32, column.values.item_bytes))
    for block, keys in blocks:
        starts, counts = rows.element_spans(entity, column, block.piece, block.starts, block.counts)
        for first, last, _, _ in row_chunks(offsets_of(counts), max_elements):
            few = slice(first, last)
            elements = rows.read_spans(entity, column.values, block.piece, starts[few], counts[few])
            values[positions_of(offsets[keys[few]], counts[few])] = elements
    return values, offsets
