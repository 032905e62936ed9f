"""Reads a graph in memory from CSV, Parquet and TFRecord tables, and from tables in memory.

Node tables are read first, once each; they define the key of every raw id. For node types without a table, an extra
pass over the edges collects the raw ids. Then edges are read once, and their raw ids are looked up a few million at a
time.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hopstream.arrays import Column, IntArray, take_column
from hopstream.checks import Settings
from hopstream.errors import SchemaError, SettingsError, quoted
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.ingest.raw_tables.columns import ColumnReader, raw_id_column
from hopstream.ingest.raw_tables.files import Batch, Origin, read_batches
from hopstream.ingest.raw_tables.metadata import (
    Description,
    EdgeTableSpec,
    FeatureSpec,
    NodeTableSpec,
    TableFiles,
    TablesMetadata,
    check_num_rows,
)
from hopstream.ingest.raw_tables.raw_ids import RawIds, collect_raw_ids, first_non_integer, sorted_raw_ids
from hopstream.ingest.source_paths import is_unigraph, read_metadata
from hopstream.ingest.transforms.saved import SavedFeature, Transforms
from hopstream.ingest.user_columns import check_tables
from hopstream.places.paths import AnyPath, path_of, uri_of
from hopstream.schema import EdgeType, type_label

SavedTransforms = dict[str, dict[str, Any]]
"""Feature to ``SavedFeature.to_json``."""
MERGED_BATCHES = 64
"""Number of batches after which their distinct raw ids are merged."""


def read_node_table(
    node_type: str, spec: NodeTableSpec, files: TableFiles, *, is_dropping: bool
) -> tuple[RawIds, NodeTable, dict[str, IntArray], int, SavedTransforms]:
    """Read the table of one node type.

    Args:
        node_type: Name of the node type.
        spec: Its columns.
        files: Its files.
        is_dropping: Drop rows whose raw id an earlier row has, instead of raising.

    Returns:
        The raw ids, the nodes with their features, the splits, the number of dropped rows, and the transforms.

    Raises:
        FormatError: A file is missing or damaged.
        SchemaError: A raw id is empty, repeated or of the wrong dtype, or a feature contradicts its spec.
    """
    table = TableRows(node_type, spec)
    origins: list[Origin] = []
    raw: list[pa.Array] = []
    num_rows = 0
    for batch in table.batches(files, [spec.id_column] if spec.id_column is not None else []):
        if spec.id_column is not None:
            origins.append(batch.origin)
            raw.append(node_raw_ids(node_type, spec, batch))
        num_rows += batch.num_rows
    ids = RawIds(None, num_rows) if spec.id_column is None else collect_raw_ids(raw, spec.id_dtype)
    features = table.features()
    kept = ids.first_rows() if is_dropping else None
    if kept is None:
        _refuse_repeated(node_type, ids, origins, raw)
        return ids, NodeTable(num_nodes=num_rows, features=features), table.splits(), 0, table.transforms()
    nodes = NodeTable(num_nodes=len(kept), features=_take(features, kept))
    return ids.take(kept), nodes, table.splits(kept), num_rows - len(kept), table.transforms()


class TableRows:
    """Collector of the features and splits of a table while its rows are read."""

    def __init__(self, label: str, spec: NodeTableSpec | EdgeTableSpec) -> None:
        """Start without rows; ``label`` is the table's type in messages."""
        self._label, self._split_column = label, spec.split_column
        self._readers = {name: ColumnReader(f"{label}.{name}", feature) for name, feature in spec.features.items()}
        self._columns = [name for feature in spec.features.values() for name in feature.columns]
        self._splits: list[pa.Array] = []

    def batches(self, files: TableFiles, id_columns: Sequence[str]) -> Iterator[Batch]:
        """Read the table once; the batches also hold the columns of raw ids."""
        splits = [self._split_column] if self._split_column is not None else []
        for batch in read_batches(files, [*self._columns, *id_columns, *splits]):
            for reader in self._readers.values():
                reader.add(batch)
            yield batch
            if self._split_column is not None:
                self._splits.append(split_names(self._label, self._split_column, batch))

    def features(self) -> dict[str, Column]:
        """Return all rows of each feature."""
        return {name: reader.finish() for name, reader in self._readers.items()}

    def transforms(self) -> SavedTransforms:
        """Return how features are made, after ``features``; empty if none is transformed."""
        return saved_transforms({name: reader.saved() for name, reader in self._readers.items()})

    def splits(self, kept: IntArray | None = None) -> dict[str, IntArray]:
        """Return split name to ascending keys, in the order of the splits' first rows.

        Args:
            kept: int64[n], the kept rows, ascending, whose keys are 0..n-1; None if all rows are kept.
        """
        if not self._splits:
            return {}
        names = pa.chunked_array(self._splits).combine_chunks().dictionary_encode()
        codes = names.indices.fill_null(-1).to_numpy()
        codes = codes if kept is None else codes[kept]
        return {name: np.flatnonzero(codes == code) for code, name in enumerate(names.dictionary.to_pylist())}


def _take(features: Mapping[str, Column], rows: IntArray) -> dict[str, Column]:
    return {name: take_column(column, rows) for name, column in features.items()}


def raw_ids_of_edges(node_type: str, spec: NodeTableSpec, metadata: TablesMetadata) -> RawIds:
    """Collect the distinct raw ids of a node type from the ends of edges, ascending.

    Empty ends are skipped.

    Raises:
        FormatError: A file is missing or damaged.
        SchemaError: A raw id is of the wrong dtype.
    """
    seen: dict[str, list[pa.Array]] = {}
    for edge_type, edges in metadata.edges.items():
        columns = [c for t, c in ((edge_type[0], edges.src_column), (edge_type[2], edges.dst_column)) if t == node_type]
        for batch in read_batches(edges.files, columns) if columns else ():
            for column in columns:
                label = f"{type_label(edge_type)}.{column}"
                raw = raw_id_column(batch, column, label).drop_null()
                if spec.id_dtype == "int64" and first_non_integer(raw) is not None:
                    raise not_integers_error(label, node_type)
                chunks = seen.setdefault(str(raw.type), [])
                chunks.append(raw.unique())
                if len(chunks) == MERGED_BATCHES:
                    chunks[:] = [pc.unique(pa.chunked_array(chunks))]
    return sorted_raw_ids([chunk for chunks in seen.values() for chunk in chunks], spec.id_dtype)


def not_integers_error(label: str, node_type: str) -> SchemaError:
    """Build the error for edge ends that are not integers although the node type declares integer raw ids."""
    return SchemaError(f"{label} has raw ids that are not integers, but {node_type}.id.dtype is int64")


def node_raw_ids(node_type: str, spec: NodeTableSpec, batch: Batch) -> pa.Array:
    """Return the raw ids of a batch of a node table, with the type that the file has.

    Raises:
        SchemaError: A raw id is empty, or not of the declared dtype.
    """
    label = f"{node_type}.{spec.id_column}"
    raw = raw_id_column(batch, str(spec.id_column), label)
    if raw.null_count:
        row = int(np.argmax(raw.is_null().to_numpy(zero_copy_only=False)))
        raise SchemaError(f"{label} is empty at {batch.origin.place(row)}; every node has a raw id")
    bad_row = first_non_integer(raw) if spec.id_dtype == "int64" else None
    if bad_row is not None:
        raise SchemaError(f"{label} is {quoted(raw[bad_row].as_py())} at {batch.origin.place(bad_row)}; wanted int64")
    return raw


def _refuse_repeated(node_type: str, ids: RawIds, origins: Sequence[Origin], raw: Sequence[pa.Array]) -> None:
    row = ids.first_repeated()
    if ids.values is None or row is None:
        return
    first = int(pc.index(ids.values, ids.values[row]).as_py())
    ends = np.cumsum([len(chunk) for chunk in raw])
    places = []
    for position in (first, row):
        batch = int(np.searchsorted(ends, position, side="right"))
        places.append(origins[batch].place(position - int(ends[batch] - len(raw[batch]))))
    raise repeated_error(node_type, ids.values[row].as_py(), places)


def repeated_error(node_type: str, raw: object, places: Sequence[str]) -> SchemaError:
    """Build the error for a raw id that two rows have."""
    return SchemaError(
        f"{node_type} has raw id {quoted(raw)} twice: {places[0]} and {places[1]}; "
        'read with on_duplicate="drop" to keep the first of such rows'
    )


LOOKUP_ROWS = 1 << 22
"""Edges per lookup; every lookup builds a hash table of all raw ids of the node type."""


@dataclass(frozen=True, slots=True)
class _Ends:
    """The raw ids at both ends of a batch of edges."""

    origin: Origin
    src: pa.Array
    dst: pa.Array


def read_edge_table(
    edge_type: EdgeType, spec: EdgeTableSpec, raw_ids: Mapping[str, RawIds], *, is_dropping: bool
) -> tuple[EdgeTable, dict[str, IntArray], int, SavedTransforms]:
    """Read one edge type.

    Args:
        edge_type: The edge type.
        spec: Its files and columns.
        raw_ids: The raw ids of every node type.
        is_dropping: Drop edges with an end that is empty or names no node, instead of raising.

    Returns:
        The edges in table order, their splits, the number of dropped edges, and the transforms.

    Raises:
        FormatError: A file is missing or damaged.
        SchemaError: An end is empty or names no node, or a feature contradicts its spec.
    """
    label = type_label(edge_type)
    table = TableRows(label, spec)
    waiting: list[_Ends] = []
    src_keys, dst_keys = [np.empty(0, np.int64)], [np.empty(0, np.int64)]

    def look_up() -> None:
        src = raw_ids[edge_type[0]].keys_of([ends.src for ends in waiting])
        dst = raw_ids[edge_type[2]].keys_of([ends.dst for ends in waiting])
        if not is_dropping:
            _refuse_dangling(edge_type, spec, waiting, (src, dst))
        src_keys.append(src)
        dst_keys.append(dst)
        waiting.clear()

    for batch in table.batches(spec.files, [spec.src_column, spec.dst_column]):
        src, dst = (raw_id_column(batch, c, f"{label}.{c}") for c in (spec.src_column, spec.dst_column))
        waiting.append(_Ends(batch.origin, src, dst))
        if sum(len(ends.src) for ends in waiting) >= LOOKUP_ROWS:
            look_up()
    look_up()
    src_of, dst_of, features = np.concatenate(src_keys), np.concatenate(dst_keys), table.features()
    kept = np.flatnonzero((src_of >= 0) & (dst_of >= 0))
    num_dropped = len(src_of) - len(kept)
    if not num_dropped:
        return EdgeTable(src_keys=src_of, dst_keys=dst_of, features=features), table.splits(), 0, table.transforms()
    edges = EdgeTable(src_keys=src_of[kept], dst_keys=dst_of[kept], features=_take(features, kept))
    return edges, table.splits(kept), num_dropped, table.transforms()


def _refuse_dangling(
    edge_type: EdgeType, spec: EdgeTableSpec, batches: Sequence[_Ends], keys: tuple[IntArray, IntArray]
) -> None:
    is_dangling = (keys[0] < 0) | (keys[1] < 0)
    if not is_dangling.any():
        return
    row = int(np.argmax(is_dangling))
    node_type, column = (edge_type[0], spec.src_column) if keys[0][row] < 0 else (edge_type[2], spec.dst_column)
    is_src = keys[0][row] < 0
    for ends in batches:
        if row < len(ends.src):
            raw = (ends.src if is_src else ends.dst)[row].as_py()
            raise dangling_error(f"{type_label(edge_type)}.{column}", raw, node_type, ends.origin.place(row))
        row -= len(ends.src)


def dangling_error(label: str, raw: object, node_type: str, place: str) -> SchemaError:
    """Build the error for an end that is empty (``raw`` is None) or names no node."""
    got = "is empty" if raw is None else f"is {quoted(raw)}, which no {node_type} node has"
    return SchemaError(f'{label} {got}, at {place}; read with on_dangling="drop" to leave such edges out')


def split_names(label: str, column: str, batch: Batch) -> pa.Array:
    """Return the name of each row's split; null for empty cells.

    Raises:
        SchemaError: The column does not hold strings.
    """
    names = batch.columns[column]
    if pa.types.is_dictionary(names.type):
        names = names.dictionary_decode()
    if not (pa.types.is_string(names.type) or pa.types.is_large_string(names.type)):
        raise SchemaError(
            f"{label}.{column} is {names.type} at {batch.origin.place(0)}; a split column holds names of splits"
        )
    marks = pa.array(["", *batch.origin.files.null_values], pa.string())
    names = names.cast(pa.string())
    return pc.if_else(pc.is_in(names, value_set=marks), None, names)


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSettings(Settings):
    """Settings of the reader of tables.

    Attributes:
        keep_raw_ids: Keep the raw ids of a node type as a feature named like their column.
        on_dangling: What to do with an edge that has an empty end or an end that is no node: raise an ``error``, or
            ``drop`` and count it.
        on_duplicate: What to do with a node whose raw id an earlier row has: raise an ``error``, or ``drop`` and count
            it.
        data_path: The folder that file names in a unigraph's schema are relative to, and that absolute names must lie
            in; by default the folder of the schema. It is kept as an absolute path.
        fitted: Apply these transforms, of ``read_transforms`` or their JSON value, in place of fitting new ones.
        tokenizers: Functions that transforms may import, as ``module:function``.
    """

    keep_raw_ids: bool = True
    on_dangling: Literal["error", "drop"] = "error"
    on_duplicate: Literal["error", "drop"] = "error"
    data_path: str | None = None
    fitted: Mapping[str, Any] | None = None
    tokenizers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            SettingsError: A setting is out of range.
        """
        for name in ("on_dangling", "on_duplicate"):
            if getattr(self, name) not in ("error", "drop"):
                raise SettingsError(f"{name} is {getattr(self, name)!r}; wanted error or drop")
        if not isinstance(self.keep_raw_ids, bool):
            raise SettingsError(f"keep_raw_ids is {self.keep_raw_ids!r}; wanted True or False")
        if self.data_path is not None:
            if not isinstance(self.data_path, str | os.PathLike) or not path_of(self.data_path).is_dir():
                raise SettingsError(f"data_path is {self.data_path!r}; wanted an existing folder")
            # Workers may have another working directory.
            object.__setattr__(self, "data_path", uri_of(path_of(self.data_path)))
        given: object = self.tokenizers
        if not isinstance(given, list | tuple) or not all(isinstance(name, str) for name in given):
            raise SettingsError(f"tokenizers are {given!r}; wanted a list of module:function")
        self._keep("tokenizers", tuple(given))
        if isinstance(self.fitted, Transforms):
            self._keep("fitted", self.fitted.to_json())


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesResult:
    """Result of reading tables.

    Attributes:
        graph: The graph; it passed ``Graph.check``.
        num_dropped: Edge type to number of edges dropped because an end is empty or names no node.
        num_repeated: Node type to number of rows dropped because an earlier row has the same raw id.
    """

    graph: Graph
    num_dropped: Mapping[EdgeType, int]
    num_repeated: Mapping[str, int]


def read_tables(path: str | AnyPath | Description, settings: TableSettings | None = None) -> TablesResult:
    """Read a graph from CSV, Parquet and TFRecord tables, or from tables in memory.

    Args:
        path: The file that describes the tables: JSON, or the ``.pbtxt`` of a unigraph. Paths of tables are relative
            to its folder, or to ``settings.data_path``. Or a dict with the keys of the JSON file, in which ``table``
            in place of ``files`` gives a table in memory: a DataFrame of pandas or Polars, an Arrow table, another
            object with ``__arrow_c_stream__``, or a Ray Dataset. Its paths are relative to the current folder.
        settings: Settings of the reader; ``TableSettings()`` by default.

    Raises:
        FormatError: A file is missing or damaged.
        SchemaError: The description is invalid, a table contradicts it, a raw id is repeated, or an edge names a raw
            id that no node has. The message names the file and the line or row.
        SettingsError: ``settings.data_path`` is given, and ``path`` is not a unigraph's schema.
    """
    settings = settings or TableSettings()
    metadata = read_description(path if isinstance(path, Mapping) else path_of(path), settings)
    check_tables(metadata, keep_raw_ids=settings.keep_raw_ids, is_exempt=is_unigraph(metadata.path))
    raw_ids: dict[str, RawIds] = {}
    nodes: dict[str, NodeTable] = {}
    splits: dict[str, dict[str, IntArray]] = {}
    num_repeated: dict[str, int] = {}
    saved: dict[str, SavedTransforms] = {}
    for node_type, spec in metadata.nodes.items():
        if spec.files is None:
            raw_ids[node_type] = raw_ids_of_edges(node_type, spec, metadata)
            nodes[node_type] = NodeTable(num_nodes=raw_ids[node_type].num_nodes)
        else:
            read = read_node_table(node_type, spec, spec.files, is_dropping=settings.on_duplicate == "drop")
            raw_ids[node_type], nodes[node_type], splits[node_type], num_repeated[node_type], saved[node_type] = read
            if num_repeated[node_type]:
                logger.warning("dropped %d repeated nodes of %s", num_repeated[node_type], node_type)
        check_num_rows(node_type, spec, nodes[node_type].num_nodes + num_repeated.get(node_type, 0))
        if settings.keep_raw_ids and spec.keeps_ids and spec.id_column is not None:
            nodes[node_type] = _with_raw_ids(node_type, spec, nodes[node_type], raw_ids[node_type])
    edges: dict[EdgeType, EdgeTable] = {}
    edge_splits: dict[EdgeType, dict[str, IntArray]] = {}
    num_dropped: dict[EdgeType, int] = {}
    is_dropping = settings.on_dangling == "drop"
    for edge_type, edge_spec in metadata.edges.items():
        edges[edge_type], edge_splits[edge_type], num_dropped[edge_type], saved[type_label(edge_type)] = (
            read_edge_table(edge_type, edge_spec, raw_ids, is_dropping=is_dropping)
        )
        check_num_rows(type_label(edge_type), edge_spec, edges[edge_type].num_edges + num_dropped[edge_type])
        if num_dropped[edge_type]:
            logger.warning("dropped %d dangling edges of %s", num_dropped[edge_type], type_label(edge_type))
    graph = Graph(
        nodes=nodes,
        edges=edges,
        splits={t: named for t, named in splits.items() if named},
        edge_splits={t: named for t, named in edge_splits.items() if named},
        transforms={label: features for label, features in saved.items() if features},
    )
    return TablesResult(graph=graph.check(), num_dropped=num_dropped, num_repeated=num_repeated)


def read_description(path: AnyPath | Description, settings: TableSettings) -> TablesMetadata:
    """Read the description of tables, with the fitted transforms of the settings if there are any.

    Raises:
        FormatError: The description or a table's file is missing, or the fitted transforms cannot be read.
        SchemaError: The description contradicts itself or the fitted transforms.
        SettingsError: ``data_path`` does not fit, or a transform names a function that is not in ``tokenizers``.
    """
    metadata = read_metadata(path, settings.data_path)
    fitted = None if settings.fitted is None else Transforms(settings.fitted, settings.tokenizers)

    def chosen(label: str, features: Mapping[str, FeatureSpec]) -> dict[str, FeatureSpec]:
        found = dict(features)
        for name, spec in features.items():
            if spec.transform is None:
                continue
            spec.transform.check_allowed(settings.tokenizers)
            if fitted is not None:
                chain = fitted[label].chain_of(name) if label in fitted else None
                wanted = spec.transform.to_json(with_fitted=False)
                if chain is None or chain.to_json(with_fitted=False) != wanted:
                    got = None if chain is None else chain.to_json(with_fitted=False)
                    raise SchemaError(
                        f"{metadata.path}: {label}.{name} has the transforms {wanted}; the fitted ones are {got}"
                    )
                found[name] = replace(spec, transform=chain)
        return found

    return replace(
        metadata,
        nodes={t: replace(spec, features=chosen(t, spec.features)) for t, spec in metadata.nodes.items()},
        edges={t: replace(spec, features=chosen(type_label(t), spec.features)) for t, spec in metadata.edges.items()},
    )


def saved_transforms(features: Mapping[str, SavedFeature]) -> SavedTransforms:
    """Return the JSON value of how a type's features are made; empty if none is transformed."""
    if all(feature.chain is None for feature in features.values()):
        return {}
    return {name: feature.to_json() for name, feature in features.items()}


def _with_raw_ids(node_type: str, spec: NodeTableSpec, nodes: NodeTable, raw_ids: RawIds) -> NodeTable:
    name = str(spec.id_column)
    if name in nodes.features:
        if spec.features[name].columns == (name,):  # the table already declares the raw ids as a feature
            return nodes
        raise clashing_raw_ids_error(node_type, name)
    return replace(nodes, features={name: raw_ids.as_column(), **nodes.features})


def clashing_raw_ids_error(node_type: str, name: str) -> SchemaError:
    """Build the error for a feature that has the name of the raw ids' column and other columns."""
    return SchemaError(
        f"{node_type} has a feature {name!r} that is not its column of raw ids; rename it, or read with "
        f"keep_raw_ids=False"
    )
