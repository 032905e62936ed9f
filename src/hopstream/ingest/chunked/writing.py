"""Writes chunked graphs, each file in blocks.

The graph is written to a hidden work folder beside the output folder, and renamed when it is complete.
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
from hopstream.ingest.chunked.metadata import RAGGED, SHAPE, TRANSFORMS
from hopstream.ingest.chunked.opening import METADATA
from hopstream.ingest.chunked.sources import RaggedSource
from hopstream.ingest.objects.attributes import MASKS
from hopstream.places.paths import AnyPath, path_of
from hopstream.places.staging import write_folder_at
from hopstream.schema import EdgeType, FeatureSchema, type_label

WRITTEN_ROWS = 1 << 20
GROUP_BYTES = 16 << 20
MAX_ROW_BYTES = (1 << 31) - 1
"""Largest string that a Parquet file can hold; lists have the same limit here."""


class Rows(Protocol):
    """Rows that are read on demand; an array is a ``Rows``, too."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the values."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of rows, then the shape of one row."""
        ...

    def __getitem__(self, rows: slice, /) -> Array:
        """Read a slice of the rows."""
        ...


def write_ends(path: Path, src_keys: Rows, dst_keys: Rows, settings: ChunkSettings) -> None:
    """Write an edge file in blocks of rows."""
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
    """Write a file of a feature of fixed width in blocks of rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if settings.data_format == "numpy":
        write_blocks(path, rows.dtype, rows.shape, (rows[part] for part in _slices(rows.shape[0], _step(rows))))
    else:
        _write_feature(path, rows, is_list=settings.vector_rows)


def write_ragged(path: Path, source: RaggedSource, start: int, stop: int) -> None:
    """Write a range of rows of strings, or of lists of any length, as a Parquet file in blocks.

    Raises:
        SchemaError: A string is not UTF-8, or a row is larger than a Parquet file can hold.
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
                raise SchemaError(f"{got}; a row of parquet has at most {MAX_ROW_BYTES}")
            rows = _arrow_rows(block)
            try:
                rows.validate(full=True)
            except pa.ArrowInvalid as error:
                raise SchemaError(f"{path.name} would have a string that is not UTF-8 ({error})") from error
            writer.write_table(pa.table([rows], schema=schema))


def _arrow_rows(block: RaggedArray) -> Any:
    """Convert rows to an Arrow array of strings or lists."""
    import pyarrow as pa

    if block.is_string:
        buffers = [None, pa.py_buffer(block.offsets), pa.py_buffer(np.ascontiguousarray(block.values))]
        return pa.Array.from_buffers(pa.large_string(), len(block), buffers)
    elements = pa.array(np.ascontiguousarray(block.values).reshape(-1))
    for width in reversed(block.values.shape[1:]):
        elements = pa.FixedSizeListArray.from_arrays(elements, width)
    return pa.LargeListArray.from_arrays(pa.array(block.offsets), elements)


def _step(rows: Rows) -> int:
    """Return the number of rows to write at once."""
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
    """Write one column per value of a row, or one column of lists; the schema metadata holds the shape."""
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
    out: str | os.PathLike[str] | AnyPath,
    *,
    name: str = "graph",
    settings: ChunkSettings | None = None,
    progress: Progress | None = None,
    **fields: Any,
) -> AnyPath:
    """Write a graph as a chunked graph.

    Args:
        graph: The graph. Only node splits ``train``, ``val`` and ``test`` are possible; they become masks.
        out: The folder or its URI; it must not exist, or must be empty.
        name: ``graph_name`` of the metadata.
        settings: Settings of the writer.
        progress: Called as ``progress("write", done, total)`` in files.
        fields: Fields of ``ChunkSettings`` in place of ``settings``.

    Returns:
        The path of the metadata file. Reading it gives an equal graph.

    Raises:
        SchemaError: A chunked graph cannot hold the graph: it has splits of edges, splits of other names, label types,
            type names with a colon, or dtypes that Parquet does not have. Strings and ragged features are always
            written as Parquet.
        SettingsError: A setting is out of range or unknown, or ``out`` is not empty.
        StateError: Another process writes to the same folder.
    """
    if settings is not None and fields:
        raise SettingsError(f"settings and {sorted(fields)} are both given; give one of them")
    unknown = sorted(fields.keys() - ChunkSettings.__dataclass_fields__.keys())
    if unknown:
        raise SettingsError(
            f"unknown setting {unknown[0]!r}; {known_names(unknown[0], sorted(ChunkSettings.__dataclass_fields__))}"
        )
    settings = settings or ChunkSettings(**fields)
    graph.check()
    tables = _tables(graph, settings)
    place = path_of(out)
    if not isinstance(place, Path):
        write = partial(write_chunked, graph, name=name, settings=settings, progress=progress)
        return write_folder_at(place, write, METADATA, progress)
    with open_work(place) as work, work.new_folder(partial(check_out_folder, work.root)) as new:
        metadata, files = plan_files(
            name,
            {t: _shape(table.num_nodes, tables.nodes[t], settings) for t, table in graph.nodes.items()},
            {t: _shape(table.num_edges, tables.edges[t], settings) for t, table in graph.edges.items()},
            settings,
        )
        _write_files(new, graph, tables, files, settings, progress)
        write_metadata(new, metadata, graph.transforms)
    return Path(out) / METADATA


def check_out_folder(out: Path) -> None:
    """Raise ``SettingsError`` if an output folder exists and is not empty."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        what = "is not empty" if out.is_dir() else "is a file"
        raise SettingsError(f"{out} {what}; give a new or empty folder")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableShape:
    """Size and features of one type to write.

    Attributes:
        num_rows: Number of nodes or edges.
        features: Feature name, masks of splits included, to format.
    """

    num_rows: int
    features: Mapping[str, DataFormat]


def format_of(schema: FeatureSchema, settings: ChunkSettings) -> DataFormat:
    """Return the format of a feature's files; strings and ragged features are always Parquet."""
    return settings.data_format if schema.is_fixed_width else "parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkFile:
    """File of a chunked graph.

    Attributes:
        name: Path relative to the folder.
        entity: Node type or edge type of its rows.
        feature: Name of the feature; None for the ends of edges.
        start: First row in the type.
        stop: End row in the type, exclusive.
    """

    name: str
    entity: str | EdgeType
    feature: str | None
    start: int
    stop: int


def plan_files(
    name: str, nodes: Mapping[str, TableShape], edges: Mapping[EdgeType, TableShape], settings: ChunkSettings
) -> tuple[dict[str, Any], list[ChunkFile]]:
    """Build the metadata of a chunked graph, and list its files."""
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


def write_metadata(folder: Path, metadata: Mapping[str, Any], transforms: Mapping[str, Any]) -> None:
    """Write the metadata with the transforms of the tables; call this after all other files are written."""
    if transforms:
        metadata = {**metadata, TRANSFORMS: transforms}
    write_text(folder / METADATA, json.dumps(metadata, indent=1, ensure_ascii=False) + "\n")


def chunk_rows(num_rows: int, num_chunks: int) -> list[int]:
    """Return the number of rows of each chunk; chunks differ by one row at most."""
    share, rest = divmod(num_rows, num_chunks)
    return [share + (chunk < rest) for chunk in range(num_chunks)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tables:
    """Columns to write: type to feature name to column, masks of splits included."""

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
    """Collect the features and masks to write.

    Raises:
        SchemaError: A chunked graph cannot hold the graph.
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
    """Refuse type names with a colon, and names in ``leave_out`` that are not in ``known``.

    Raises:
        SchemaError: A name is invalid or unknown.
    """
    for name in (*node_types, *(relation for _, relation, _ in edge_types)):
        if ":" in name:
            raise SchemaError(
                f"the name of type {name!r} has a colon, which separates names in edge types of chunked graphs; "
                "rename the type"
            )
    unknown = [name for name in settings.leave_out if name not in known]
    if unknown:
        raise SchemaError(f"leave_out names {unknown[0]!r}; the graph has {list(known)}")


def check_not_masks(node_type: str, features: Iterable[str]) -> None:
    """Raise ``SchemaError`` if a node feature has the name of a mask and would be read back as a split."""
    misnamed = next((name for name in features if name in MASKS), None)
    if misnamed is not None:
        shown = f"{node_type}.{misnamed}"
        raise SchemaError(f"{shown} would be read back as split {MASKS[misnamed]!r}; add {shown!r} to leave_out")


def mask_of_split(node_type: str, split: str) -> str:
    """Return the name of the feature that stores a node split.

    Raises:
        SchemaError: No feature stores a split of this name.
    """
    if split not in MASK_OF_SPLIT:
        raise SchemaError(
            f"split {split!r} of {node_type} has no mask of its own in a chunked graph; "
            f"splits are {', '.join(MASK_OF_SPLIT)}"
        )
    return MASK_OF_SPLIT[split]


def check_writable(shown: str, schema: FeatureSchema, settings: ChunkSettings) -> None:
    """Check that the format of a feature's files can hold it.

    Raises:
        SchemaError: The feature is complex or has a dimension of 0, and is written as Parquet.
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
    """Return a portable file name: a plain name as it is, for other names a number."""
    return name if _PLAIN_NAME.fullmatch(name) else f"~{what}{number}"
