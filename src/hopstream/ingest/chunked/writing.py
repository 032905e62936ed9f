"""Writes a graph as a chunked graph, each file a block at a time.

All is written in the work folder beside the place, and renamed when it is complete.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np

from hopstream.arrays import Array, Column, RaggedArray, column_schema, offsets_of, write_blocks, write_text
from hopstream.checks import known_names
from hopstream.engine.atomic_folder import open_work
from hopstream.errors import SchemaError, SettingsError
from hopstream.graph.graph import Graph
from hopstream.ingest.chunk_settings import ChunkSettings, DataFormat
from hopstream.ingest.chunked.memory import MemoryRagged
from hopstream.ingest.chunked.metadata import RAGGED, SHAPE
from hopstream.ingest.chunked.opening import METADATA
from hopstream.ingest.chunked.sources import RaggedSource
from hopstream.ingest.objects.attributes import MASKS
from hopstream.schema import EdgeType, FeatureSchema, type_label

WRITTEN_ROWS = 1 << 20
GROUP_BYTES = 16 << 20
MAX_ROW_BYTES = (1 << 31) - 1
"""Of a string of a Parquet file; of a list, which is written as one too, no more are taken."""


class Rows(Protocol):
    """Rows that are read when they are asked for; an array is one."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of a value."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of rows, then the shape of one."""
        ...

    def __getitem__(self, rows: slice, /) -> Array:
        """Some rows."""
        ...


def write_ends(path: Path, src_keys: Rows, dst_keys: Rows, settings: ChunkSettings) -> None:
    """Write a file of edges, a block of rows at a time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    num_rows = src_keys.shape[0]
    if settings.edges_format == "numpy":
        blocks = (np.stack([src_keys[rows], dst_keys[rows]], axis=1) for rows in _slices(num_rows, WRITTEN_ROWS))
        write_blocks(path, np.dtype(np.int64), (num_rows, 2), blocks)
    elif settings.edges_format == "parquet":
        _write_parquet(path, {"src": src_keys, "dst": dst_keys})
    else:
        _write_lines(path, src_keys, dst_keys, settings.delimiter)


def write_rows(path: Path, rows: Rows, settings: ChunkSettings) -> None:
    """Write a file of a feature, a block of rows at a time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if settings.data_format == "numpy":
        write_blocks(path, rows.dtype, rows.shape, (rows[part] for part in _slices(rows.shape[0], _step(rows))))
    else:
        _write_feature(path, rows, is_list=settings.vector_rows)


def write_ragged(path: Path, source: RaggedSource, start: int, stop: int) -> None:
    """Write some rows of strings, or of lists of any length, as a Parquet file, a block at a time.

    Raises:
        SchemaError: A string is no UTF-8, or a row is larger than a Parquet file can hold.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {} if source.is_string else {RAGGED: b"true"}
    empty = _arrow_rows(source.joined([]))
    schema = pa.schema([("string" if source.is_string else "list", empty.type)], metadata=metadata)
    with pq.ParquetWriter(path, schema, use_dictionary=False) as writer:
        for block in source.blocks(start, stop):
            if len(block) == 1 and block.values.nbytes > MAX_ROW_BYTES:
                got = f"{path.name} would have a row of {block.values.nbytes} bytes"
                raise SchemaError(f"{got}; a row of parquet has {MAX_ROW_BYTES} at most")
            rows = _arrow_rows(block)
            try:
                rows.validate(full=True)
            except pa.ArrowInvalid as error:
                raise SchemaError(f"{path.name} would have a string that is no UTF-8 ({error})") from error
            writer.write_table(pa.table([rows], schema=schema))


def _arrow_rows(block: RaggedArray) -> Any:
    """The rows as an Arrow array of strings or lists."""
    import pyarrow as pa

    if block.is_string:
        buffers = [None, pa.py_buffer(block.offsets), pa.py_buffer(np.ascontiguousarray(block.values))]
        return pa.Array.from_buffers(pa.large_string(), len(block), buffers)
    elements = pa.array(np.ascontiguousarray(block.values).reshape(-1))
    for width in reversed(block.values.shape[1:]):
        elements = pa.FixedSizeListArray.from_arrays(elements, width)
    return pa.LargeListArray.from_arrays(pa.array(block.offsets), elements)


def _step(rows: Rows) -> int:
    """How many rows are written at once."""
    row_bytes = math.prod(rows.shape[1:]) * rows.dtype.itemsize
    return max(1, min(WRITTEN_ROWS, GROUP_BYTES // max(1, row_bytes)))


def _slices(num_rows: int, step: int) -> Iterator[slice]:
    return (slice(start, min(start + step, num_rows)) for start in range(0, num_rows, step))


def _write_lines(path: Path, src_keys: Rows, dst_keys: Rows, delimiter: str) -> None:
    import pyarrow as pa
    import pyarrow.csv as pacsv

    options = pacsv.WriteOptions(include_header=False, delimiter=delimiter, quoting_style="none")
    with path.open("wb") as file:
        for rows in _slices(src_keys.shape[0], WRITTEN_ROWS):
            columns = [pa.array(np.asarray(keys[rows])) for keys in (src_keys, dst_keys)]
            pacsv.write_csv(pa.table(columns, names=["src", "dst"]), file, options)


def _write_parquet(path: Path, columns: Mapping[str, Rows]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(name, pa.from_numpy_dtype(values.dtype)) for name, values in columns.items()])
    num_rows = next(iter(columns.values())).shape[0]
    with pq.ParquetWriter(path, schema, use_dictionary=False) as writer:
        for rows in _slices(num_rows, WRITTEN_ROWS):
            arrays = [pa.array(np.asarray(values[rows])) for values in columns.values()]
            writer.write_table(pa.table(arrays, schema=schema))


def _write_feature(path: Path, array: Rows, *, is_list: bool) -> None:
    """One column, one column of lists, or one column per dimension; the shape is in the schema metadata."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    width = math.prod(array.shape[1:])
    value_type = pa.from_numpy_dtype(array.dtype)
    is_list = is_list and len(array.shape) > 1
    columns = [("vector", pa.list_(value_type))] if is_list else [(str(n), value_type) for n in range(width)]
    schema = pa.schema(columns, metadata={SHAPE: str(array.shape).encode()})
    with pq.ParquetWriter(path, schema, use_dictionary=False) as writer:
        for part in _slices(array.shape[0], _step(array)):
            rows = np.ascontiguousarray(array[part]).reshape(-1, width)
            if is_list:
                offsets = np.arange(0, rows.size + 1, width, dtype=np.int32)
                arrays = [pa.ListArray.from_arrays(pa.array(offsets), pa.array(rows.reshape(-1)))]
            else:
                arrays = [pa.array(np.ascontiguousarray(rows[:, n])) for n in range(width)]
            writer.write_table(pa.table(arrays, schema=schema))


Progress = Callable[[str, int, int], None]
"""Called as ``progress(stage, done, total)``."""
SUFFIX_OF_FORMAT = {"csv": ".csv", "numpy": ".npy", "parquet": ".parquet"}
MASK_OF_SPLIT = {split: mask for mask, split in MASKS.items()}
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}")


def write_chunked(
    graph: Graph,
    out: str | os.PathLike[str],
    *,
    name: str = "graph",
    settings: ChunkSettings | None = None,
    progress: Progress | None = None,
    **fields: Any,
) -> Path:
    """Write a graph as a chunked graph.

    Args:
        graph: The graph. Its splits must be ``train``, ``val`` and ``test`` of nodes, which become masks.
        out: The folder; it must not be there, or be empty.
        name: ``graph_name`` of the metadata.
        settings: How to write it.
        progress: Called with the number of files written.
        fields: Fields of ``ChunkSettings`` in place of ``settings``.

    Returns:
        The path of the metadata. What it describes reads back to an equal graph.

    Raises:
        SchemaError: The graph has what a chunked graph cannot hold: splits of edges or of other names, label types,
            names with a colon, or dtypes that Parquet has not; strings and ragged features are Parquet always.
        SettingsError: A setting is out of its range or unknown, or ``out`` holds something.
        StateError: Another process writes to the same place.
    """
    if settings is not None and fields:
        raise SettingsError(f"settings and {sorted(fields)} are both given; give one of them")
    unknown = sorted(fields.keys() - ChunkSettings.__dataclass_fields__.keys())
    if unknown:
        raise SettingsError(
            f"there is no setting {unknown[0]!r}; {known_names(unknown[0], sorted(ChunkSettings.__dataclass_fields__))}"
        )
    settings = settings or ChunkSettings(**fields)
    graph.check()
    tables = _tables(graph, settings)
    with open_work(out) as work, work.new_folder(partial(check_out_folder, work.root)) as new:
        metadata, files = plan_files(
            name,
            {t: _shape(table.num_nodes, tables.nodes[t], settings) for t, table in graph.nodes.items()},
            {t: _shape(table.num_edges, tables.edges[t], settings) for t, table in graph.edges.items()},
            settings,
        )
        _write_files(new, graph, tables, files, settings, progress)
        write_metadata(new, metadata)
    return Path(out) / METADATA


def check_out_folder(out: Path) -> None:
    """Raise ``SettingsError`` unless a folder to write to is missing or empty."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        what = "holds something" if out.is_dir() else "is a file"
        raise SettingsError(f"{out} {what}; give a new or empty folder")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableShape:
    """What is to be written of one type.

    Attributes:
        num_rows: Nodes or edges.
        features: Names of features, masks of splits included, to how they are written.
    """

    num_rows: int
    features: Mapping[str, DataFormat]


def format_of(schema: FeatureSchema, settings: ChunkSettings) -> DataFormat:
    """How a feature is written: strings and ragged features as Parquet always."""
    return settings.data_format if schema.is_fixed_width else "parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkFile:
    """One file of a chunked graph.

    Attributes:
        name: Its path below the folder.
        entity: The type whose rows it holds.
        feature: The feature; None for the ends of edges.
        start: Its first row among those of its type.
        stop: The row after its last.
    """

    name: str
    entity: str | EdgeType
    feature: str | None
    start: int
    stop: int


def plan_files(
    name: str, nodes: Mapping[str, TableShape], edges: Mapping[EdgeType, TableShape], settings: ChunkSettings
) -> tuple[dict[str, Any], list[ChunkFile]]:
    """The metadata of a chunked graph, and its files in the order of the metadata."""
    files: list[ChunkFile] = []
    entities: list[str | EdgeType] = [*nodes, *edges]
    folders = {entity: _file_name(type_label(entity), number, "type") for number, entity in enumerate(entities)}

    def data(stem: str, file_format: str, entity: str | EdgeType, feature: str | None, num_rows: int) -> list[str]:
        offsets = offsets_of(np.array(chunk_rows(num_rows, settings.num_chunks))).tolist()
        names = [f"{stem}-{chunk}{SUFFIX_OF_FORMAT[file_format]}" for chunk in range(settings.num_chunks)]
        for chunk, file in enumerate(names):
            start, stop = offsets[chunk : chunk + 2]
            files.append(ChunkFile(name=file, entity=entity, feature=feature, start=start, stop=stop))
        return names

    def features(folder: str, entity: str | EdgeType, table: TableShape) -> dict[str, Any]:
        return {
            feature: {
                "format": {"name": file_format},
                "data": data(
                    f"{folder}/{folders[entity]}/{_file_name(feature, number, 'feature')}",
                    file_format, entity, feature, table.num_rows,
                ),
            }
            for number, (feature, file_format) in enumerate(table.features.items())
        }  # fmt: skip

    edge_names = {edge_type: ":".join(edge_type) for edge_type in edges}
    ends_format: dict[str, Any] = {"name": settings.edges_format}
    if settings.edges_format == "csv":
        ends_format["delimiter"] = settings.delimiter
    ends = {
        edge_names[t]: {
            "format": ends_format,
            "data": data(f"edges/{folders[t]}", settings.edges_format, t, None, table.num_rows),
        }
        for t, table in edges.items()
    }
    metadata = {
        "graph_name": name,
        "node_type": list(nodes),
        "num_nodes_per_type": [table.num_rows for table in nodes.values()],
        "num_nodes_per_chunk": [chunk_rows(table.num_rows, settings.num_chunks) for table in nodes.values()],
        "edge_type": list(edge_names.values()),
        "num_edges_per_type": [table.num_rows for table in edges.values()],
        "num_edges_per_chunk": [chunk_rows(table.num_rows, settings.num_chunks) for table in edges.values()],
        "edges": ends,
        "node_data": {t: features("node_data", t, table) for t, table in nodes.items() if table.features},
        "edge_data": {edge_names[t]: features("edge_data", t, table) for t, table in edges.items() if table.features},
    }
    return metadata, files


def write_metadata(folder: Path, metadata: Mapping[str, Any]) -> None:
    """Write the metadata, last of all files."""
    write_text(folder / METADATA, json.dumps(metadata, indent=1, ensure_ascii=False) + "\n")


def chunk_rows(num_rows: int, num_chunks: int) -> list[int]:
    """How many rows each chunk has: as many as the others, or one more."""
    share, rest = divmod(num_rows, num_chunks)
    return [share + (chunk < rest) for chunk in range(num_chunks)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tables:
    """What is to be written: type to feature name to column, masks of splits included."""

    nodes: Mapping[str, Mapping[str, Column]]
    edges: Mapping[EdgeType, Mapping[str, Column]]


def _shape(num_rows: int, features: Mapping[str, Column], settings: ChunkSettings) -> TableShape:
    formats = {name: format_of(column_schema(column), settings) for name, column in features.items()}
    return TableShape(num_rows=num_rows, features=formats)


def _write_files(
    root: Path,
    graph: Graph,
    tables: _Tables,
    files: Sequence[ChunkFile],
    settings: ChunkSettings,
    progress: Progress | None,
) -> None:
    for number, file in enumerate(files, 1):
        rows = slice(file.start, file.stop)
        if file.feature is None:
            table = graph.edges[cast(EdgeType, file.entity)]
            write_ends(root / file.name, table.src_keys[rows], table.dst_keys[rows], settings)
        else:
            entity = file.entity
            features = tables.nodes[entity] if isinstance(entity, str) else tables.edges[entity]
            column = features[file.feature]
            if isinstance(column, RaggedArray):
                write_ragged(root / file.name, MemoryRagged(column), file.start, file.stop)
            else:
                write_rows(root / file.name, column[rows], settings)
        if progress:
            progress("write", number, len(files))


def _tables(graph: Graph, settings: ChunkSettings) -> _Tables:
    """The features and masks to write.

    Raises:
        SchemaError: A chunked graph cannot hold something of the graph.
    """
    if graph.label_types or any(graph.edge_splits.values()):
        what = "label types" if graph.label_types else "splits of edges"
        raise SchemaError(f"the graph has {what}, which a chunked graph cannot hold; write it before it is split")
    known = [f"{t}.{name}" for t, table in graph.nodes.items() for name in table.features]
    known += [f"{type_label(t)}.{name}" for t, table in graph.edges.items() for name in table.features]
    check_names(list(graph.nodes), list(graph.edges), known, settings)
    nodes = {}
    for node_type, table in graph.nodes.items():
        features = _writable(node_type, table.features, settings)
        check_not_masks(node_type, features)
        for split, keys in graph.splits.get(node_type, {}).items():
            mask = np.zeros(table.num_nodes, np.bool_)
            mask[keys] = True
            features[mask_of_split(node_type, split)] = mask
        nodes[node_type] = features
    return _Tables(
        nodes=nodes, edges={t: _writable(type_label(t), table.features, settings) for t, table in graph.edges.items()}
    )


def check_names(
    node_types: Sequence[str], edge_types: Sequence[EdgeType], known: Sequence[str], settings: ChunkSettings
) -> None:
    """Refuse names of types that the metadata cannot hold, and features to leave out that are not there.

    Raises:
        SchemaError: As said; ``known`` are the features there are.
    """
    for name in (*node_types, *(relation for _, relation, _ in edge_types)):
        if ":" in name:
            raise SchemaError(f"type {name!r} has a colon, which separates names in edge types of chunked graphs")
    unknown = [name for name in settings.leave_out if name not in known]
    if unknown:
        raise SchemaError(f"leave_out names {unknown[0]!r}; the graph has {list(known)}")


def check_not_masks(node_type: str, features: Iterable[str]) -> None:
    """Raise ``SchemaError`` where a feature of nodes would be read back as a split."""
    misnamed = next((name for name in features if name in MASKS), None)
    if misnamed is not None:
        shown = f"{node_type}.{misnamed}"
        raise SchemaError(f"{shown} would be read back as split {MASKS[misnamed]!r}; add {shown!r} to leave_out")


def mask_of_split(node_type: str, split: str) -> str:
    """The feature that holds a split of nodes.

    Raises:
        SchemaError: There is none for a split of this name.
    """
    if split not in MASK_OF_SPLIT:
        raise SchemaError(
            f"split {split!r} of {node_type} has no mask of its own in a chunked graph; "
            f"splits are {', '.join(MASK_OF_SPLIT)}"
        )
    return MASK_OF_SPLIT[split]


def check_writable(shown: str, schema: FeatureSchema, settings: ChunkSettings) -> None:
    """Refuse a feature that the format of its files cannot hold.

    Raises:
        SchemaError: As said.
    """
    if format_of(schema, settings) == "parquet" and (schema.dtype.startswith("complex") or 0 in schema.shape):
        remedy = "use numpy" if schema.is_fixed_width else f"add {shown!r} to leave_out"
        raise SchemaError(f"{shown} is {schema}, which parquet cannot hold; {remedy}")


def _writable(label: str, features: Mapping[str, Column], settings: ChunkSettings) -> dict[str, Column]:
    found: dict[str, Column] = {}
    for name, column in features.items():
        shown = f"{label}.{name}"
        if shown not in settings.leave_out:
            check_writable(shown, column_schema(column), settings)
            found[name] = column
    return found


def _file_name(name: str, number: int, what: str) -> str:
    """A name that any file system takes: the type's or feature's own where it is plain, or else its number."""
    return name if _PLAIN_NAME.fullmatch(name) else f"~{what}{number}"
