"""Checks what is to be added to a dataset, and converts it to tables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from hopstream.arrays import (
    Array,
    Column,
    IntArray,
    RaggedArray,
    column_schema,
    empty_column,
    open_array,
    to_array,
    write_blocks,
)
from hopstream.checks import known_names
from hopstream.dataset.manifest import Manifest
from hopstream.dataset.raw_ids import find_ids, id_feature_of, ids_like, ids_of_rows, unknown_id_error
from hopstream.dataset.rows import DatasetRows
from hopstream.dataset.stored_columns import (
    check_time_values,
    check_weight_total,
    check_weight_values,
    times_in_unit,
    weights_of,
)
from hopstream.errors import IdRangeError, SchemaError, SettingsError, UnknownNameError
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.ingest.chunked import ChunkedEdges, ChunkedGraph, FeatureSource, RaggedSource
from hopstream.ingest.chunked.sources import BLOCK_ROWS
from hopstream.ingest.user_columns import ColumnLike, as_array, as_column, as_keys
from hopstream.schema import EdgeType, FeatureSchema, GraphSchema, type_label

if TYPE_CHECKING:
    from hopstream.ingest.transforms.saved import Transforms

CHUNK_ROWS = 1 << 20
READ_BYTES = 64 << 20

Columns = Mapping[str, ColumnLike]
NewNodes = int | Columns
"""Number of new nodes, or their features, which imply the number."""

NewEdges = tuple[ColumnLike, ColumnLike] | tuple[ColumnLike, ColumnLike, Columns]
"""Keys of sources and of destinations, and features if the type has any."""

T = TypeVar("T")
V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class RawEnds:
    """Lookup of ends of new edges that are raw ids.

    Attributes:
        rows: The dataset.
        ids: Node type to the feature that holds the raw ids by which new edges name nodes of the type.
    """

    rows: DatasetRows
    ids: Mapping[str, str]

    def keys_of(self, node_type: str, raw: Column, new: NodeTable | None, where: str) -> IntArray:
        """Return int64[n], the keys of old and new nodes.

        Raises:
            IdRangeError: No node has a raw id; the message names the first such one.
            SettingsError: Two nodes have a raw id, or a value is neither text nor an integer.
        """
        feature = self.ids[node_type]
        held = self.rows.manifest.schema.nodes[node_type][feature]
        is_read = isinstance(raw, RaggedArray) and raw.is_string and held.is_string
        asked = raw if is_read else ids_like(to_array(raw), node_type, feature, held, where)
        keys = self.find(node_type, asked, new)
        if len(keys) and int(keys.min()) < 0:
            raise unknown_id_error(where, int(np.argmax(keys < 0)), raw, node_type, feature)
        return keys

    def check(self, tables: Mapping[str, NodeTable]) -> None:
        """Check the features, and that each new node has a raw id of its own.

        Raises:
            UnknownNameError: The dataset has no such type or feature.
            SettingsError: A feature cannot hold raw ids, or a new node has the raw id of another node.
        """
        for node_type, feature in self.ids.items():
            id_feature_of(self.rows.manifest.schema, node_type, feature)
            new = tables[node_type]
            self.find(node_type, new.features[feature], new)

    def find(self, node_type: str, asked: Column, new: NodeTable | None = None) -> IntArray:
        """Return int64[n], the key of the old or new node with each raw id; -1 for unknown raw ids.

        The raw ids are of the feature's kind: strings or integers.
        """
        feature, first = self.ids[node_type], self.rows.book.num_ids(node_type)
        blocks = ids_of_rows(self.rows, node_type, feature)
        if new is not None:
            of_new = np.arange(first, first + new.num_nodes, dtype=np.int64), new.features[feature]
            blocks = chain(blocks, [of_new])
        return find_ids(blocks, asked, f"{node_type}.{feature}")


def addition_of_arrays(  # noqa: PLR0913  one argument for each kind of rows
    manifest: Manifest, nodes: Mapping[str, NewNodes], edges: Mapping[EdgeType | str, NewEdges],
    splits: Mapping[str, Columns], edge_splits: Mapping[EdgeType | str, Columns], *,
    raw: RawEnds | None = None, transforms: Transforms | None = None,
) -> Graph:  # fmt: skip
    """Convert the arguments of ``append`` to tables of all types, with rows numbered from 0.

    If the dataset has one node type or one edge type, the arguments may omit the type. ``raw`` looks up ends that are
    raw ids. With ``transforms``, the columns are those of tables, and features are made of them.

    Raises:
        UnknownNameError: The dataset has no such type, feature or split.
        SettingsError: A new node has the raw id of another node, or a feature cannot hold raw ids.
        SchemaError: A column is missing, or does not fit the dataset's schema.
        IdRangeError: An edge names a node that is neither old nor new, or a split names an item that is not new.
    """
    schema = manifest.schema
    nodes, splits = by_types(nodes, schema.nodes), by_types(splits, schema.nodes)
    edges, edge_splits = by_types(edges, schema.edges), by_types(edge_splits, schema.edges)
    by_type = by_edge_type(schema, edges, "edges")
    check_names("nodes", nodes, schema.nodes)
    nodes, by_type = as_stored(manifest, transforms, nodes, by_type)
    node_tables = {t: _node_table(t, nodes.get(t, 0), features) for t, features in schema.nodes.items()}
    if raw is not None:
        raw.check(node_tables)

    def ends(node_type: str, value: ColumnLike, where: str) -> IntArray:
        if raw is None or node_type not in raw.ids:
            return as_keys(value, where)
        return raw.keys_of(node_type, as_raw(value), node_tables[node_type], where)

    edge_tables = {t: _edge_table(t, by_type.get(t), features, ends) for t, features in schema.edges.items()}
    check_names("splits", splits, schema.splits)
    return checked(
        manifest,
        Graph(
            nodes=node_tables,
            edges=edge_tables,
            splits={
                t: _splits(t, splits.get(t, {}), names, manifest.book.num_ids(t), node_tables[t].num_nodes)
                for t, names in schema.splits.items()
            },
            edge_splits={
                t: _splits(t, of.get(t, {}), names, manifest.book.num_edges(t), edge_tables[t].num_edges)
                for of in (by_edge_type(schema, edge_splits, "edge_splits"),)
                for t, names in schema.edge_splits.items()
            },
        ),
    )


def as_raw(value: ColumnLike) -> Column:
    """Return raw ids as an array or a column of strings."""
    return value if isinstance(value, RaggedArray) else to_array(value)


def _counted(manifest: Manifest, label: str, given: Columns) -> Columns:
    """Return columns with datetime64 values as integers in the unit of the dataset's times."""
    found = dict(given)
    for name, values in given.items():
        if getattr(getattr(values, "dtype", None), "kind", "") == "M":
            unit = manifest.time_unit if name == manifest.time_attr else None
            try:
                found[name] = times_in_unit(f"{label}.{name}", to_array(values), unit)
            except SettingsError as error:
                raise SchemaError(str(error)) from error
    return found


def as_stored(
    manifest: Manifest,
    transforms: Transforms | None,
    nodes: Mapping[str, NewNodes],
    edges: Mapping[EdgeType, NewEdges],
) -> tuple[dict[str, NewNodes], dict[EdgeType, NewEdges]]:
    """Return new nodes and edges with transforms applied, and with datetime64 values as integers."""

    def stored(label: str, columns: Columns) -> Columns:
        columns = transforms[label].apply(columns) if transforms and label in transforms else columns
        return _counted(manifest, label, columns)

    return (
        {t: stored(t, of) if isinstance(of, Mapping) else of for t, of in nodes.items()},
        {t: (of[0], of[1], stored(type_label(t), of[2])) if len(of) == 3 else of for t, of in edges.items()},
    )


def arguments_of_chunks(
    manifest: Manifest, graph: ChunkedGraph, scratch: Path
) -> tuple[dict[str, NewNodes], dict[EdgeType | str, NewEdges], dict[str, dict[str, Array]]]:
    """Return the nodes, edges and splits of a chunked graph as arguments of ``append``; splits are masks.

    The columns are copied to ``scratch`` and mapped.

    Args:
        manifest: Manifest of the dataset.
        graph: New rows; ends of edges are keys of old and new nodes, or raw ids.
        scratch: Folder for files that must exist as long as the result.
    """
    schema, number = manifest.schema, count()

    def copied(source: FeatureSource) -> Column:
        if isinstance(source, RaggedSource):
            return _copied_rows(source, scratch, next(number))
        step = max(1, READ_BYTES // max(1, source.row_bytes))
        blocks = (source.read(i, min(i + step, source.num_rows)) for i in range(0, source.num_rows, step))
        return _kept(scratch / f"{next(number)}.npy", source.dtype, (source.num_rows, *source.shape), blocks)

    def ends(edges: ChunkedEdges) -> tuple[IntArray, IntArray]:
        pieces = edges.ends.pieces(BLOCK_ROWS)

        blocks = (src for piece in pieces for _, src, _ in edges.ends.read(piece))
        src_keys = _kept(scratch / f"{next(number)}.npy", np.dtype(np.int64), (edges.num_edges,), blocks)
        blocks = (dst for piece in pieces for _, _, dst in edges.ends.read(piece))
        return src_keys, _kept(scratch / f"{next(number)}.npy", np.dtype(np.int64), (edges.num_edges,), blocks)

    check_names("nodes", graph.nodes, schema.nodes)
    check_names("edges", graph.edges, schema.edges)
    nodes: dict[str, NewNodes] = {}
    edges: dict[EdgeType | str, NewEdges] = {}
    for node_type, table in graph.nodes.items():
        check_names(f"features of {node_type}", table.features, schema.nodes[node_type])
        columns = {name: copied(column) for name, column in table.features.items()}
        nodes[node_type] = columns if columns else table.num_nodes
    for edge_type, of_type in graph.edges.items():
        check_names(f"features of {type_label(edge_type)}", of_type.features, schema.edges[edge_type])
        edges[edge_type] = (*ends(of_type), {name: copied(column) for name, column in of_type.features.items()})
    return (
        nodes,
        edges,
        {
            t: {name: _mask(of, graph.nodes[t].num_nodes) for name, of in names.items()}
            for t, names in graph.splits.items()
        },
    )


def _mask(rows: IntArray, num_rows: int) -> Array:
    mask = np.zeros(num_rows, np.bool_)
    mask[rows] = True
    return mask


def _copied_rows(source: RaggedSource, scratch: Path, number: int) -> RaggedArray:
    """Copy a ragged column to mapped files; it is read twice, because its length is unknown at first."""

    def ends() -> Iterator[Array]:
        yield np.zeros(1, np.int64)
        num_elements = 0
        for block in source.blocks(0, source.num_rows):
            yield block.offsets[1:] + num_elements
            num_elements += len(block.values)

    offsets = _kept(scratch / f"{number}.offsets.npy", np.dtype(np.int64), (source.num_rows + 1,), ends())
    shape = (int(offsets[-1]), *source.shape)
    blocks = (block.values for block in source.blocks(0, source.num_rows))
    values = _kept(scratch / f"{number}.values.npy", source.dtype, shape, blocks)
    return RaggedArray(values, offsets, source.is_string)


def _kept(path: Path, dtype: np.dtype[np.generic], shape: tuple[int, ...], blocks: Iterable[Array]) -> Array:
    write_blocks(path, dtype, shape, blocks)
    return open_array(path)


def checked(manifest: Manifest, added: Graph) -> Graph:
    """Refuse edges to unknown nodes, and times and weights that ``write_parts`` would refuse."""
    book = manifest.book
    totals = {t: book.num_ids(t) + table.num_nodes for t, table in added.nodes.items()}
    for edge_type, edges in added.edges.items():
        for what, keys, node_type in (("src", edges.src_keys, edge_type[0]), ("dst", edges.dst_keys, edge_type[2])):
            _check_keys(f"{type_label(edge_type)}: {what}_keys", keys, totals[node_type], node_type)
    tables: list[tuple[str | EdgeType, Mapping[str, Column]]] = [
        *((t, table.features) for t, table in added.nodes.items()),
        *((t, table.features) for t, table in added.edges.items()),
    ]
    for entity, features in tables:
        times = features.get(manifest.time_attr or "")
        if isinstance(times, np.ndarray):
            check_time_values(f"{type_label(entity)}.{manifest.time_attr}", 0, times)
        weights = weights_of(features, manifest.weight_attr)
        if isinstance(entity, tuple) and weights is not None:
            where = f"{type_label(entity)}.{manifest.weight_attr}"
            total = check_weight_values(where, 0, weights)
            if not book.num_edges(entity):
                check_weight_total(where, len(weights), total)
    return added


def _check_keys(where: str, keys: IntArray, num_nodes: int, node_type: str) -> None:
    for start in range(0, len(keys), CHUNK_ROWS):
        block = keys[start : start + CHUNK_ROWS]
        if int(block.min()) < 0 or int(block.max()) >= num_nodes:
            row = int(np.flatnonzero((block < 0) | (block >= num_nodes))[0])
            raise IdRangeError(
                f"{where}[{start + row}] is {int(block[row])}; {node_type} has keys 0..{num_nodes - 1} with the "
                "new nodes"
            )


def by_types(given: Any, types: Collection[T]) -> Any:
    """Return an argument by type; without types it belongs to the dataset's only type."""
    is_typed = isinstance(given, Mapping) and (
        not given or any(isinstance(value, Mapping | int | tuple) for value in given.values())
    )
    return given if is_typed or len(types) != 1 else dict.fromkeys(types, given)


def by_edge_type(schema: GraphSchema, given: Mapping[EdgeType | str, V], what: str) -> dict[EdgeType, V]:
    """Return an argument by edge type, whose keys may be labels."""
    known = {type_label(t): t for t in schema.edges}
    found: dict[EdgeType, V] = {}
    for name, value in given.items():
        edge_type = known.get(name) if isinstance(name, str) else name
        if edge_type not in schema.edges:
            raise UnknownNameError(f"{what} name edge type {name!r}; {known_names(name, known)}")
        found[cast(EdgeType, edge_type)] = value
    return found


def check_names(what: str, given: Mapping[V, object], known: Mapping[V, object]) -> None:
    """Raise ``UnknownNameError`` for a name that the dataset does not have."""
    for name in given:
        if name not in known:
            raise UnknownNameError(f"{what} name {name!r}; {known_names(name, known)}")


def _node_table(node_type: str, given: NewNodes, features: Mapping[str, FeatureSchema]) -> NodeTable:
    if isinstance(given, Mapping):
        columns = checked_columns(node_type, given, features, None)
        if not columns:
            raise SchemaError(f"{node_type} has no features; give the number of new nodes")
        return NodeTable(num_nodes=len(next(iter(columns.values()))), features=columns)
    if isinstance(given, bool) or not isinstance(given, int | np.integer) or given < 0:
        raise SchemaError(f"nodes of {node_type} are {given!r}; wanted a number, or columns by feature")
    return NodeTable(num_nodes=int(given), features=checked_columns(node_type, {}, features, int(given)))


def _edge_table(
    edge_type: EdgeType, given: NewEdges | None, features: Mapping[str, FeatureSchema],
    keys_of: Callable[[str, ColumnLike, str], IntArray],
) -> EdgeTable:  # fmt: skip
    label, nothing = type_label(edge_type), np.empty(0, np.int64)
    if given is None:
        return EdgeTable(src_keys=nothing, dst_keys=nothing, features=checked_columns(label, {}, features, 0))
    if not isinstance(given, tuple | list) or len(given) not in (2, 3):
        raise SchemaError(f"edges of {label} must be (src_keys, dst_keys) or (src_keys, dst_keys, features)")
    src_keys = keys_of(edge_type[0], given[0], f"{label}: src_keys")
    dst_keys = keys_of(edge_type[2], given[1], f"{label}: dst_keys")
    if len(src_keys) != len(dst_keys):
        raise SchemaError(f"{label} has {len(src_keys)} sources and {len(dst_keys)} destinations")
    columns = given[2] if len(given) == 3 else {}
    return EdgeTable(
        src_keys=src_keys, dst_keys=dst_keys, features=checked_columns(label, columns, features, len(src_keys))
    )


def checked_columns(
    label: str, given: Columns, features: Mapping[str, FeatureSchema], num_rows: int | None, *, is_partial: bool = False
) -> dict[str, Column]:
    """Return the columns in the order of the schema.

    A column may be missing only if there are no rows, or if some columns are enough (``is_partial``).

    Raises:
        UnknownNameError: The type has no such feature.
        SchemaError: A column is missing, or has the wrong dtype or length.
    """
    check_names(f"features of {label}", given, features)
    found: dict[str, Column] = {}
    for name, feature in features.items():
        where = f"{label}.{name}"
        if name not in given:
            if is_partial:
                continue
            if num_rows != 0:
                raise SchemaError(f"{where} is missing; new rows need all features of their type: {list(features)}")
            found[name] = empty_column(feature)
            continue
        column = as_column(given[name], where)
        if len(column) == 0:
            column = empty_column(feature) if column_schema(column).is_fixed_width == feature.is_fixed_width else column
        if column_schema(column) != feature:
            raise SchemaError(f"{where} is {column_schema(column)}; in the dataset it is {feature}: convert it")
        if isinstance(column, RaggedArray):
            column.check(where)
        num_rows = len(column) if num_rows is None else num_rows
        if len(column) != num_rows:
            raise SchemaError(f"{where} has {len(column)} rows; there are {num_rows} new rows")
        found[name] = column
    return found


def _splits(
    entity: str | EdgeType, given: Columns, names: tuple[str, ...], first: int, num_rows: int
) -> dict[str, IntArray]:
    label = type_label(entity)
    check_names(f"splits of {label}", given, dict.fromkeys(names))
    return {name: _split(f"split {name!r} of {label}", given.get(name), first, num_rows) for name in names}


def _split(where: str, given: ColumnLike | None, first: int, num_rows: int) -> IntArray:
    if given is None:
        return np.empty(0, np.int64)
    values = given if isinstance(given, list | tuple) else as_array(given, where)
    if isinstance(values, np.ndarray) and values.dtype == np.bool_:
        if values.shape != (num_rows,):
            raise SchemaError(
                f"{where} is bool{list(values.shape)}; a mask has a value for each of {num_rows} new rows"
            )
        return first + np.flatnonzero(values)
    keys = np.sort(as_keys(cast(ColumnLike, values), where))
    if len(keys) and (int(keys[0]) < first or int(keys[-1]) >= first + num_rows):
        wrong = int(keys[0]) if int(keys[0]) < first else int(keys[-1])
        wanted = f"new rows have keys {first}..{first + num_rows - 1}" if num_rows else "there are no new rows"
        raise IdRangeError(f"{where} names key {wrong}; {wanted}; existing rows keep their splits")
    if bool(np.any(keys[1:] == keys[:-1])):
        raise SchemaError(f"{where} names a key twice")
    return keys
