"""Writes a graph as a unigraph: a schema, and a table for every node set and edge set.

Rows are read and written in blocks, in key order, so only one block is in memory. The unigraph is written to a hidden
work folder beside the output folder, and renamed when it is complete.

If a feature holds the raw ids of a node type, they are copied to a memory-mapped file in key order, to look up the raw
ids of edge ends. The raw ids of a type must be distinct; that check takes 8 bytes of memory per node.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from hopstream.arrays import Array, Column, IntArray, RaggedArray, empty_column, write_text
from hopstream.checks import did_you_mean, known_names
from hopstream.dataset.copying.local_copy import source_path
from hopstream.dataset.paths import MANIFEST, path_name
from hopstream.dataset.raw_ids import can_be_ids
from hopstream.engine.atomic_folder import open_work
from hopstream.engine.settings import no_progress
from hopstream.errors import SchemaError, SettingsError, UnknownNameError, quoted
from hopstream.export.dataset_source import chunked_of_dataset
from hopstream.export.raw_ids import arrow_strings
from hopstream.export.settings import UnigraphSettings
from hopstream.graph.graph import Graph
from hopstream.ingest.chunked import is_chunked, open_chunked
from hopstream.ingest.chunked.memory import MemoryMask, chunked_of_graph
from hopstream.ingest.chunked.sources import (
    ChunkedEdges,
    ChunkedGraph,
    ChunkedNodes,
    ColumnSource,
    FeatureSource,
    RaggedSource,
)
from hopstream.ingest.chunked.writing import check_out_folder
from hopstream.ingest.chunking.buckets import append_values, hashes_of
from hopstream.ingest.raw_tables.raw_ids import NAME, strings_column
from hopstream.ingest.raw_tables.unigraph import (
    CONTEXT,
    ID,
    IDS_EXTRA,
    KEYS,
    RELATION_EXTRA,
    SOURCE,
    SPLIT_EXTRA,
    STRINGS,
    TARGET,
)
from hopstream.ingest.source_paths import check_apart, description_of
from hopstream.places.paths import AnyPath, path_of
from hopstream.places.staging import write_folder_at
from hopstream.schema import EdgeType, FeatureSchema, GraphSchema, type_label
from hopstream.tfgnn.example import ValueLists, encode_examples
from hopstream.tfgnn.graph_schema import AUXILIARY, edge_set_names, message_text, schema_message
from hopstream.tfgnn.tfrecord import RecordWriter, shard_paths

BLOCK_ROWS = 1 << 16


class WrittenIds(Protocol):
    """The raw ids of a node type, by key."""

    def take(self, keys: IntArray) -> RaggedArray:
        """Return the raw ids of nodes, as strings."""
        ...


class KeyIds:
    """Keys as raw ids: ``"0"``, ``"1"`` and so on."""

    def take(self, keys: IntArray) -> RaggedArray:
        """Return the keys of nodes, as strings."""
        return strings_column([pa.array(keys).cast(NAME)])


class StoredIds:
    """Raw ids from a feature."""

    def __init__(self, folder: Path, label: str, source: FeatureSource) -> None:
        """Copy the raw ids to files, and check that they are distinct.

        Args:
            folder: A new folder for the copy.
            label: Name of the feature in messages.
            source: The feature.

        Raises:
            SchemaError: The feature is not one string or integer per node, a raw id is empty, or two nodes have the
                same raw id.
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
                        f"{label} of node {first + int(np.argmin(lengths))} is empty; every node needs an id"
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
        """Return the stored raw ids of nodes, as strings."""
        return self._strings.take(keys)

    def _check_unique(self, label: str, hashes: Array) -> None:
        ordered = np.sort(hashes)
        repeated = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
        seen: dict[str, int] = {}
        for key in np.flatnonzero(np.isin(hashes, repeated)).tolist() if len(repeated) else ():
            raw = self._strings[key]
            if raw in seen:
                raise SchemaError(f"{label} is {quoted(raw)} of nodes {seen[raw]} and {key}; raw ids must be unique")
            seen[raw] = key


def _strings_of(source: FeatureSource) -> Iterator[RaggedArray]:
    if isinstance(source, RaggedSource):
        yield from source.blocks(0, source.num_rows)
        return
    for start in range(0, source.num_rows, BLOCK_ROWS):
        values = source.read(start, min(start + BLOCK_ROWS, source.num_rows))
        yield strings_column([pa.array(values).cast(NAME)])


SUFFIXES = {"tfrecord": ".tfrecord", "csv": ".csv", "parquet": ".parquet"}


class RowWriter(ABC):
    """Writer of one file of a table."""

    _writer: Any

    @abstractmethod
    def write(self, columns: Mapping[str, Column], num_rows: int) -> None:
        """Write rows.

        Raises:
            SchemaError: The format cannot hold a value.
        """

    def close(self) -> None:
        """Write buffered rows and close the file."""
        self._writer.close()


def check_writable(label: str, schema: FeatureSchema, settings: UnigraphSettings) -> None:
    """Check that the format of the files can hold a feature.

    Raises:
        SchemaError: The format cannot hold the feature.
    """
    if schema.dtype.startswith("complex"):
        raise SchemaError(f"{label} is {schema}; TF-GNN stores integers, reals, bools and strings; leave it out")
    if 0 in schema.shape:
        raise SchemaError(f"{label} is {schema}, which has no values; leave it out")
    if settings.format == "csv" and (schema.is_ragged or schema.shape not in ((), (1,))):
        raise SchemaError(f"{label} is {schema}; a cell of a CSV file holds one value: write tfrecord or parquet")


def open_writer(path: Path, label: str, schemas: Mapping[str, FeatureSchema], settings: UnigraphSettings) -> RowWriter:
    """Create a file of a table.

    Args:
        path: The file.
        label: Name of the table in messages.
        schemas: Column name to schema.
        settings: Settings of the writer.
    """
    if settings.format == "tfrecord":
        return _Records(path, label, schemas, is_compressed=settings.compress)
    if settings.format == "csv":
        return _Cells(path, schemas)
    return _Groups(path, schemas)


class _Records(RowWriter):
    """A TFRecord file of ``tf.Example`` messages."""

    def __init__(self, path: Path, label: str, schemas: Mapping[str, FeatureSchema], *, is_compressed: bool) -> None:
        self._label, self._schemas = label, schemas
        self._writer = RecordWriter(path, is_compressed=is_compressed)

    def write(self, columns: Mapping[str, Column], num_rows: int) -> None:
        lists = {name: self._lists(name, column, num_rows) for name, column in columns.items()}
        encoded = encode_examples(lists, num_rows)
        self._writer.write_framed(encoded.data, encoded.offsets)

    def _lists(self, name: str, column: Column, num_rows: int) -> ValueLists:
        if isinstance(column, RaggedArray) and column.is_string:
            return ValueLists(column, np.arange(num_rows + 1, dtype=np.int64))
        values, starts = (column.values, column.offsets) if isinstance(column, RaggedArray) else (column, None)
        per_item = math.prod(values.shape[1:])
        offsets = (np.arange(num_rows + 1, dtype=np.int64) if starts is None else starts) * per_item
        flat = np.ascontiguousarray(values).reshape(-1)
        if flat.dtype.kind != "f":
            as_ints = flat.view(np.int64) if flat.dtype == np.uint64 else flat.astype(np.int64, copy=False)
            return ValueLists(as_ints, offsets)
        with np.errstate(over="ignore"):
            narrow = flat.astype(np.float32, copy=False)
        if flat.dtype == np.float64:
            self._refuse_lost(name, flat, narrow)
        return ValueLists(narrow, offsets)

    def _refuse_lost(self, name: str, values: Array, narrow: Array) -> None:
        is_lost = (narrow != values) & ~np.isnan(values)
        if is_lost.any():
            value = float(values[np.argmax(is_lost)])
            raise SchemaError(
                f"{self._label}.{name} has {value!r}, which float32 cannot hold, and tf.Example has no other reals; "
                "write parquet or csv, or make the feature float32"
            )


class _Arrow(RowWriter):
    """A file that Arrow writes."""

    def __init__(self, schemas: Mapping[str, FeatureSchema]) -> None:
        self._schemas = schemas
        self._schema = pa.schema([(name, self._array(empty_column(of)).type) for name, of in schemas.items()])

    def write(self, columns: Mapping[str, Column], num_rows: int) -> None:
        del num_rows
        arrays = [self._array(columns[name]) for name in self._schemas]
        self._writer.write_table(pa.table(arrays, schema=self._schema))

    @abstractmethod
    def _array(self, column: Column) -> pa.Array: ...


class _Cells(_Arrow):
    """A CSV file with a header."""

    def __init__(self, path: Path, schemas: Mapping[str, FeatureSchema]) -> None:
        super().__init__(schemas)
        self._writer = pacsv.CSVWriter(path, self._schema)

    def _array(self, column: Column) -> pa.Array:
        if isinstance(column, RaggedArray):
            return arrow_strings(column)
        flat = np.ascontiguousarray(column).reshape(-1)
        if flat.dtype == np.bool_:  # TF-GNN reads cells of a bool feature as integers
            flat = flat.view(np.uint8)
        return pa.array(flat.astype(np.float32) if flat.dtype == np.float16 else flat)


class _Groups(_Arrow):
    """A Parquet file."""

    def __init__(self, path: Path, schemas: Mapping[str, FeatureSchema]) -> None:
        super().__init__(schemas)
        self._writer = pq.ParquetWriter(path, self._schema, use_dictionary=False, write_page_checksum=True)

    def _array(self, column: Column) -> pa.Array:
        return arrow_of_column(column)


def arrow_of_column(column: Column) -> pa.Array:
    """Convert a column to numbers, ``large_string``, lists of fixed size or ``large_list``."""
    if isinstance(column, RaggedArray) and column.is_string:
        return arrow_strings(column)
    values = column.values if isinstance(column, RaggedArray) else column
    array = pa.array(np.ascontiguousarray(values).reshape(-1))
    for width in reversed(values.shape[1:]):
        array = pa.FixedSizeListArray.from_arrays(array, width)
    if isinstance(column, RaggedArray):
        return pa.LargeListArray.from_arrays(pa.array(np.ascontiguousarray(column.offsets)), array)
    return array


SCHEMA_FILE = "graph_schema.pbtxt"
BLOCK_BYTES = 8 << 20
Progress = Callable[[str, int, int], None]
"""Called as ``progress(stage, done, total)``."""


def write_unigraph(
    source: Graph | str | os.PathLike[str], out: str | os.PathLike[str] | AnyPath, *,
    settings: UnigraphSettings | None = None, progress: Progress | None = None, **fields: Any,
) -> AnyPath:  # fmt: skip
    """Write a graph as a unigraph: ``graph_schema.pbtxt`` and a table for every set.

    ``read_graph`` reads an equal graph from it, with types and features in the order of their names. Raw ids are from
    ``settings.ids``, or from a feature ``#id``; without both, they are keys. If a dataset has no edge keys, its edges
    are in stored order.

    Args:
        source: A graph; or the folder or URI of a dataset or of a chunked graph, which is read in pieces.
        out: The folder or its URI; it must not exist, or must be empty.
        settings: Settings of the writer.
        progress: Called as ``progress("write", done, total)`` in rows.
        fields: Fields of ``UnigraphSettings`` in place of ``settings``.

    Returns:
        The path of the schema.

    Raises:
        SettingsError: A setting is out of range or unknown, ``out`` is not empty, ``out`` and the source overlap, or
            the source is neither a dataset nor a chunked graph.
        SchemaError: A unigraph, or the format of its tables, cannot hold the graph; or raw ids are empty or repeated.
        UnknownNameError: ``ids`` names an unknown feature.
        FormatError: The source is damaged.
        ChecksumError: The checksum of a file of the dataset differs.
        StateError: Another process writes to the same folder.
    """
    if settings is not None and fields:
        raise SettingsError(f"settings and {sorted(fields)} are both given; give one of them")
    unknown = sorted(fields.keys() - UnigraphSettings.__dataclass_fields__.keys())
    if unknown:
        known = sorted(UnigraphSettings.__dataclass_fields__)
        raise SettingsError(f"unknown setting {quoted(unknown[0])}; {known_names(unknown[0], known)}")
    settings = settings or UnigraphSettings(**fields)
    place = path_of(out)
    if not isinstance(source, Graph):
        check_apart(place, {"the source": path_of(source)})
    if not isinstance(place, Path):
        write = partial(write_unigraph, source, settings=settings, progress=progress)
        return write_folder_at(place, write, SCHEMA_FILE, progress)
    with open_work(place) as work, work.new_folder(partial(check_out_folder, work.root)) as new:
        graph, edge_masks = _opened(source, work.path / "scratch")
        _Writing(graph, edge_masks, new, work.path / "scratch", settings, progress or no_progress).run()
    return Path(out) / SCHEMA_FILE


def is_read_in_pieces(source: AnyPath) -> bool:
    """Return whether a path is a dataset or a chunked graph, which ``write_unigraph`` reads in pieces."""
    return (source / MANIFEST).is_file() or _chunked_metadata(source) is not None


def _chunked_metadata(source: AnyPath) -> Path | None:
    metadata = description_of(source)
    if not isinstance(metadata, Path) or metadata.suffix != ".json" or not metadata.is_file():
        return None
    return metadata if is_chunked(metadata) else None


EdgeMasks = Mapping[EdgeType, Mapping[str, ColumnSource]]
"""Edge type to split name to mask."""


def _opened(source: Graph | str | os.PathLike[str], scratch: Path) -> tuple[ChunkedGraph, EdgeMasks]:
    """Open a source as a chunked graph, and return it with the masks of its edge splits."""
    if isinstance(source, Graph):
        if source.label_types:
            raise SchemaError("the graph has label types, which a unigraph cannot hold; write it before it is split")
        masks: EdgeMasks = {
            t: {name: MemoryMask(source.edges[t].num_edges, keys) for name, keys in of.items()}
            for t, of in source.edge_splits.items()
        }
        return chunked_of_graph(source.check()), masks
    path = source_path(source)
    if isinstance(path, Path) and (path / MANIFEST).is_file():
        return chunked_of_dataset(path, scratch)
    metadata = _chunked_metadata(path)
    if metadata is not None:
        return open_chunked(metadata), {}
    raise SettingsError(f"{path} is neither a dataset nor a chunked graph; read it with read_graph, and give the graph")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRows:
    """A table that is read by ranges of rows.

    Attributes:
        label: Its name in messages.
        stem: Common beginning of the names of its files.
        num_rows: Number of rows.
        features: Column name to feature.
        masks: Split name to mask.
        split_column: Name of the column of splits; None without splits.
        ids: Name of a column of raw ids to a function that reads the rows ``(start, stop)``.
    """

    label: str
    stem: str
    num_rows: int
    features: Mapping[str, FeatureSource]
    masks: Mapping[str, ColumnSource]
    split_column: str | None
    ids: Mapping[str, Callable[[int, int], RaggedArray]]

    @property
    def schemas(self) -> dict[str, FeatureSchema]:
        """Column name to schema."""
        held = {**dict.fromkeys(self.ids, STRINGS), **{name: of.schema for name, of in self.features.items()}}
        return held if self.split_column is None else {**held, self.split_column: STRINGS}

    @property
    def block_rows(self) -> int:
        """Number of rows that are read at once."""
        row_bytes = 64 + sum(source.row_bytes for source in self.features.values())
        return max(1, min(BLOCK_ROWS, BLOCK_BYTES // row_bytes))

    def read(self, start: int, stop: int) -> dict[str, Column]:
        """Read a range of rows."""
        columns: dict[str, Column] = {name: read(start, stop) for name, read in self.ids.items()}
        columns |= {name: source.read(start, stop) for name, source in self.features.items()}
        if self.split_column is not None:
            columns[self.split_column] = self._splits(start, stop)
        return columns

    def _splits(self, start: int, stop: int) -> RaggedArray:
        """Return the name of each row's split; empty for rows without a split.

        Raises:
            SchemaError: A row is in two splits.
        """
        codes = np.zeros(stop - start, np.int64)
        for code, (name, mask) in enumerate(self.masks.items(), 1):
            is_in = mask.read(start, stop)
            if (codes[is_in] != 0).any():
                row = int(np.argmax(is_in & (codes != 0)))
                other = list(self.masks)[int(codes[row]) - 1]
                raise SchemaError(
                    f"row {start + row} of {self.label} is in splits {other!r} and {name!r}; a column of splits "
                    "has one per row"
                )
            codes[is_in] = code
        return RaggedArray.from_strings(["", *self.masks]).take(codes)


class _Writing:
    """State of writing one unigraph."""

    def __init__(
        self, graph: ChunkedGraph, edge_masks: EdgeMasks, folder: Path, scratch: Path, settings: UnigraphSettings,
        progress: Progress,
    ) -> None:  # fmt: skip
        self._graph, self._edge_masks, self._folder, self._scratch = graph, edge_masks, folder, scratch
        self._settings, self._progress, self._done = settings, progress, 0
        self._check_names()
        self._id_features = self._find_ids()
        self._ids: dict[str, WrittenIds] = {}
        self._message = schema_message(self._declared())
        num_rows = [nodes.num_nodes for nodes in graph.nodes.values()] + [e.num_edges for e in graph.edges.values()]
        self._total = sum(num_rows)

    def run(self) -> None:
        """Write all tables, the schema last."""
        for number, (node_type, name) in enumerate(self._id_features.items()):
            source = self._graph.nodes[node_type].features[name]
            self._ids[node_type] = StoredIds(self._scratch / f"ids-{number}", f"{node_type}.{name}", source)
        for node_type, nodes in self._graph.nodes.items():
            self._write_nodes(node_type, nodes)
        for name, edge_type in edge_set_names(self._graph.schema).items():
            self._write_edges(name, edge_type, self._graph.edges[edge_type])
        write_text(self._folder / SCHEMA_FILE, message_text(self._message))

    def _check_names(self) -> None:
        """Refuse names that readers of unigraphs skip, and features that the format cannot hold."""
        schema = self._graph.schema
        sets = [*schema.nodes, *edge_set_names(schema)]
        for name in sets:
            if AUXILIARY.match(name) and name != CONTEXT:
                raise SchemaError(
                    f"type {name!r} begins with a character that TF-GNN reserves for auxiliary sets; rename it"
                )
        entities: list[str | EdgeType] = [*schema.nodes, *schema.edges]
        for entity in entities:
            features = schema.nodes[entity] if isinstance(entity, str) else schema.edges[entity]
            for name, feature in features.items():
                shown = f"{type_label(entity)}.{name}"
                if name.startswith("#") and name != ID:
                    raise SchemaError(f"{shown} begins with #, which is reserved for columns of ids; rename it")
                check_writable(shown, feature, self._settings)

    def _find_ids(self) -> dict[str, str]:
        """Return node type to the feature of its raw ids; types whose raw ids are keys are missing."""
        found = {t: ID for t, nodes in self._graph.nodes.items() if ID in nodes.features}
        for shown in self._settings.ids:
            owners = [t for t in self._graph.nodes if shown.startswith(f"{t}.")]
            named = next((t for t in owners if shown[len(t) + 1 :] in self._graph.nodes[t].features), None)
            if named is None:
                known = [f"{t}.{name}" for t, nodes in self._graph.nodes.items() for name in nodes.features]
                raise UnknownNameError(f"ids name {shown!r}; features of nodes are {known}{did_you_mean(shown, known)}")
            found[named] = shown[len(named) + 1 :]
        return found

    def _declared(self) -> GraphSchema:
        """Return the graph's schema without ids, splits and context."""
        schema = self._graph.schema
        nodes = {t: {n: f for n, f in fs.items() if n != ID} for t, fs in schema.nodes.items() if t != CONTEXT}
        return replace(schema, nodes=nodes, splits={}, edge_splits={})

    def _write_nodes(self, node_type: str, nodes: ChunkedNodes) -> None:
        is_context = node_type == CONTEXT
        ids = self._ids.setdefault(node_type, KeyIds())
        table = TableRows(
            label=node_type, stem="context" if is_context else f"nodes-{path_name(node_type)}",
            num_rows=nodes.num_nodes, features={n: of for n, of in nodes.features.items() if n != ID},
            masks=nodes.masks, split_column=_free_name(nodes.masks, nodes.features),
            ids={} if is_context else {ID: lambda start, stop: ids.take(np.arange(start, stop, dtype=np.int64))},
        )  # fmt: skip
        if is_context:
            of = {CONTEXT: {name: source.schema for name, source in table.features.items()}}
            self._message.context.CopyFrom(_context_of(of))
        extra = {} if node_type in self._id_features or is_context else {IDS_EXTRA: KEYS}
        self._write(table, self._message.context if is_context else self._message.node_sets[node_type], extra)

    def _write_edges(self, name: str, edge_type: EdgeType, edges: ChunkedEdges) -> None:
        src_type, relation, dst_type = edge_type
        masks = self._edge_masks.get(edge_type, {})
        ends = _Ends(edges)
        table = TableRows(
            label=type_label(edge_type), stem=f"edges-{path_name(name)}", num_rows=edges.num_edges,
            features=edges.features, masks=masks, split_column=_free_name(masks, edges.features),
            ids={
                SOURCE: lambda start, stop: self._ids[src_type].take(ends.read(start, stop)[0]),
                TARGET: lambda start, stop: self._ids[dst_type].take(ends.read(start, stop)[1]),
            },
        )  # fmt: skip
        self._write(table, self._message.edge_sets[name], {} if relation == name else {RELATION_EXTRA: relation})

    def _write(self, table: TableRows, message: Any, extra: Mapping[str, str]) -> None:
        """Write a table's files, and add their names to the schema."""
        num_shards, suffix = self._settings.num_shards, SUFFIXES[self._settings.format]
        name = f"{table.stem}{suffix}"
        paths = shard_paths(self._folder / name, num_shards) if num_shards > 1 else [self._folder / name]
        for shard, path in enumerate(paths):
            start, stop = (table.num_rows * n // num_shards for n in (shard, shard + 1))
            with closing(open_writer(path, table.label, table.schemas, self._settings)) as writer:
                for first in range(start, stop, table.block_rows):
                    last = min(first + table.block_rows, stop)
                    writer.write(table.read(first, last), last - first)
                    self._done += last - first
                    self._progress("write", self._done, self._total)
        message.metadata.filename = f"{name}@{num_shards}" if num_shards > 1 else name
        message.metadata.cardinality = table.num_rows
        if table.split_column is not None:
            extra = {**extra, SPLIT_EXTRA: table.split_column}
            message.features[table.split_column].CopyFrom(_string_feature())
        for key, value in extra.items():
            message.metadata.extra.add(key=key, value=value)


class _Ends:
    """Sequential reader of the keys at both ends of edges; the current block can be read again."""

    def __init__(self, edges: ChunkedEdges) -> None:
        self._source = edges.ends
        self._blocks = self._all()
        self._held: tuple[int, IntArray, IntArray] = (0, np.empty(0, np.int64), np.empty(0, np.int64))

    def read(self, start: int, stop: int) -> tuple[IntArray, IntArray]:
        """Return sources and destinations of a range of edges; ``start`` must not decrease between calls."""
        first, src, dst = self._held
        while first + len(src) < stop:
            _, more_src, more_dst = next(self._blocks)
            src, dst = (
                np.concatenate([src[start - first :], more_src]),
                np.concatenate([dst[start - first :], more_dst]),
            )
            first = start
        self._held = (first, src, dst)
        return src[start - first : stop - first], dst[start - first : stop - first]

    def _all(self) -> Iterator[tuple[int, IntArray, IntArray]]:
        for piece in self._source.pieces(1 << 20):
            yield from self._source.read(piece)


def _free_name(masks: Mapping[str, ColumnSource], features: Mapping[str, FeatureSource]) -> str | None:
    """Return a name for the column of splits that no feature has; None without splits."""
    names = (f"split{number or ''}" for number in range(len(features) + 1))
    return next(name for name in names if name not in features) if masks else None


def _string_feature() -> Any:
    return schema_message(GraphSchema(nodes={"n": {"s": STRINGS}}, edges={})).node_sets["n"].features["s"]


def _context_of(nodes: Mapping[str, Mapping[str, FeatureSchema]]) -> Any:
    """Build the ``Context`` message with the features of the node type ``#context``."""
    message = schema_message(GraphSchema(nodes=nodes, edges={}))
    for name, feature in message.node_sets[CONTEXT].features.items():
        message.context.features[name].CopyFrom(feature)
    return message.context
