"""How is a graph written as a chunked graph?

All is written to a hidden folder beside the place, which is renamed when it is complete.
"""

from __future__ import annotations

import glob
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hopstream.arrays import Array, Column, IntArray, RaggedArray, offsets_of, write_array, write_text
from hopstream.errors import SchemaError, SettingsError
from hopstream.graph.graph import EdgeTable, Graph
from hopstream.ingest.attributes import MASKS
from hopstream.ingest.chunk_settings import ChunkSettings
from hopstream.ingest.chunked.metadata import SHAPE
from hopstream.ingest.chunked.opening import METADATA
from hopstream.schema import EdgeType, type_label

Progress = Callable[[str, int, int], None]
"""Called as ``progress(stage, done, total)``."""
SUFFIX_OF_FORMAT = {"csv": ".csv", "numpy": ".npy", "parquet": ".parquet"}
WRITTEN_ROWS = 1 << 20
GROUP_BYTES = 16 << 20
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
        SchemaError: The graph has what a chunked graph cannot hold: ragged features or strings, splits of edges or of
            other names, label types, names with a colon, or dtypes that Parquet has not.
        SettingsError: A setting is out of its range or unknown, or ``out`` holds something.
    """
    if settings is not None and fields:
        raise SettingsError(f"settings and {sorted(fields)} are both given; give one of them")
    unknown = sorted(fields.keys() - ChunkSettings.__dataclass_fields__.keys())
    if unknown:
        raise SettingsError(f"there is no setting {unknown[0]!r}; known: {sorted(ChunkSettings.__dataclass_fields__)}")
    settings = settings or ChunkSettings(**fields)
    graph.check()
    tables = _tables(graph, settings)
    root = Path(os.path.realpath(out))
    check_out_folder(root)
    partial = root.with_name(f".{root.name}.{os.getpid()}.partial")
    _remove_leftovers(root)
    try:
        partial.mkdir(parents=True)
        metadata = _Writer(partial, settings, progress).write(graph, tables, name)
        write_text(partial / METADATA, json.dumps(metadata, indent=1, ensure_ascii=False) + "\n")
        with suppress(FileNotFoundError):
            root.rmdir()
        partial.rename(root)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return Path(out) / METADATA


def _remove_leftovers(root: Path) -> None:
    """Remove what killed processes left beside a folder that they were to write."""
    for leftover in root.parent.glob(f".{glob.escape(root.name)}.*.partial"):
        number = leftover.name.split(".")[-2]
        if number.isdecimal() and not Path(f"/proc/{number}").exists():
            shutil.rmtree(leftover, ignore_errors=True)


def check_out_folder(out: Path) -> None:
    """Raise ``SettingsError`` unless a folder to write to is missing or empty."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        what = "holds something" if out.is_dir() else "is a file"
        raise SettingsError(f"{out} {what}; give a new or empty folder")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tables:
    """What is to be written: type to feature name to array, masks of splits included."""

    nodes: Mapping[str, Mapping[str, Array]]
    edges: Mapping[EdgeType, Mapping[str, Array]]


class _Writer:
    """Writes the files of one graph and counts them."""

    def __init__(self, root: Path, settings: ChunkSettings, progress: Progress | None) -> None:
        self._root = root
        self._settings = settings
        self._progress = progress
        self._num_done = 0
        self._num_files = 0

    def write(self, graph: Graph, tables: _Tables, name: str) -> dict[str, Any]:
        """Write all files; return the metadata."""
        num_tables = len(graph.edges) + sum(map(len, (*tables.nodes.values(), *tables.edges.values())))
        self._num_files = num_tables * self._settings.num_chunks
        edge_names = {t: ":".join(t) for t in graph.edges}
        owners: list[str | EdgeType] = [*graph.nodes, *graph.edges]
        folders = {owner: _file_name(type_label(owner), number, "type") for number, owner in enumerate(owners)}
        node_rows = [self._chunk_rows(table.num_nodes) for table in graph.nodes.values()]
        edge_rows = [self._chunk_rows(table.num_edges) for table in graph.edges.values()]
        return {
            "graph_name": name,
            "node_type": list(graph.nodes),
            "num_nodes_per_type": [table.num_nodes for table in graph.nodes.values()],
            "num_nodes_per_chunk": node_rows,
            "edge_type": list(edge_names.values()),
            "num_edges_per_type": [table.num_edges for table in graph.edges.values()],
            "num_edges_per_chunk": edge_rows,
            "edges": {edge_names[t]: self._edges(f"edges/{folders[t]}", table) for t, table in graph.edges.items()},
            "node_data": {
                t: self._features(f"node_data/{folders[t]}", features, graph.nodes[t].num_nodes)
                for t, features in tables.nodes.items()
                if features
            },
            "edge_data": {
                edge_names[t]: self._features(f"edge_data/{folders[t]}", features, graph.edges[t].num_edges)
                for t, features in tables.edges.items()
                if features
            },
        }

    def _chunk_rows(self, num_rows: int) -> list[int]:
        share, rest = divmod(num_rows, self._settings.num_chunks)
        return [share + (chunk < rest) for chunk in range(self._settings.num_chunks)]

    def _edges(self, stem: str, table: EdgeTable) -> dict[str, Any]:
        file_format = self._settings.edges_format
        spec: dict[str, Any] = {"name": file_format}
        if file_format == "csv":
            spec["delimiter"] = self._settings.delimiter

        def write(path: Path, start: int, stop: int) -> None:
            src_keys, dst_keys = table.src_keys[start:stop], table.dst_keys[start:stop]
            if file_format == "numpy":
                write_array(path, np.stack([src_keys, dst_keys], axis=1))
            elif file_format == "parquet":
                _write_parquet(path, {"src": src_keys, "dst": dst_keys})
            else:
                _write_lines(path, src_keys, dst_keys, self._settings.delimiter)

        return {"format": spec, "data": self._files(stem, file_format, table.num_edges, write)}

    def _features(self, folder: str, features: Mapping[str, Array], num_rows: int) -> dict[str, Any]:
        file_format = self._settings.data_format

        def write(path: Path, array: Array) -> None:
            if file_format == "numpy":
                write_array(path, array)
            else:
                _write_feature(path, array, is_list=self._settings.vector_rows)

        return {
            name: {
                "format": {"name": file_format},
                "data": self._files(
                    f"{folder}/{_file_name(name, number, 'feature')}",
                    file_format,
                    num_rows,
                    lambda path, start, stop, array=array: write(path, array[start:stop]),
                ),
            }
            for number, (name, array) in enumerate(features.items())
        }

    def _files(self, stem: str, file_format: str, num_rows: int, write: Callable[..., None]) -> list[str]:
        offsets = offsets_of(np.array(self._chunk_rows(num_rows))).tolist()
        names = [f"{stem}-{chunk}{SUFFIX_OF_FORMAT[file_format]}" for chunk in range(self._settings.num_chunks)]
        (self._root / stem).parent.mkdir(parents=True, exist_ok=True)
        for chunk, name in enumerate(names):
            write(self._root / name, offsets[chunk], offsets[chunk + 1])
            self._num_done += 1
            if self._progress:
                self._progress("write", self._num_done, self._num_files)
        return names


def _tables(graph: Graph, settings: ChunkSettings) -> _Tables:
    """The features and masks to write.

    Raises:
        SchemaError: A chunked graph cannot hold something of the graph.
    """
    if graph.label_types or any(graph.edge_splits.values()):
        what = "label types" if graph.label_types else "splits of edges"
        raise SchemaError(f"the graph has {what}, which a chunked graph cannot hold; write it before it is split")
    for name in (*graph.nodes, *(relation for _, relation, _ in graph.edges)):
        if ":" in name:
            raise SchemaError(f"type {name!r} has a colon, which separates names in edge types of chunked graphs")
    known = [f"{t}.{name}" for t, table in graph.nodes.items() for name in table.features]
    known += [f"{type_label(t)}.{name}" for t, table in graph.edges.items() for name in table.features]
    unknown = [name for name in settings.leave_out if name not in known]
    if unknown:
        raise SchemaError(f"leave_out names {unknown[0]!r}; the graph has {known}")
    nodes = {}
    for node_type, table in graph.nodes.items():
        features = _writable(node_type, table.features, settings)
        misnamed = next((name for name in features if name in MASKS), None)
        if misnamed is not None:
            shown = f"{node_type}.{misnamed}"
            raise SchemaError(f"{shown} would be read back as split {MASKS[misnamed]!r}; add {shown!r} to leave_out")
        for split, keys in graph.splits.get(node_type, {}).items():
            mask_name = MASK_OF_SPLIT.get(split)
            if mask_name is None:
                raise SchemaError(
                    f"split {split!r} of {node_type} has no mask of its own in a chunked graph; "
                    f"splits are {', '.join(MASK_OF_SPLIT)}"
                )
            features[mask_name] = np.zeros(table.num_nodes, np.bool_)
            features[mask_name][keys] = True
        nodes[node_type] = features
    return _Tables(
        nodes=nodes, edges={t: _writable(type_label(t), table.features, settings) for t, table in graph.edges.items()}
    )


def _writable(label: str, features: Mapping[str, Column], settings: ChunkSettings) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for name, column in features.items():
        shown = f"{label}.{name}"
        if shown in settings.leave_out:
            continue
        if isinstance(column, RaggedArray):
            kind = "of strings" if column.is_string else "ragged"
            raise SchemaError(
                f"{shown} is {kind}; features of chunked graphs are numbers of one shape: add {shown!r} to leave_out"
            )
        if settings.data_format == "parquet" and (column.dtype.kind == "c" or 0 in column.shape[1:]):
            raise SchemaError(f"{shown} is {column.dtype}{list(column.shape)}, which parquet cannot hold; use numpy")
        found[name] = column
    return found


def _file_name(name: str, number: int, what: str) -> str:
    """A name that any file system takes: the type's or feature's own where it is plain, or else its number."""
    return name if _PLAIN_NAME.fullmatch(name) else f"~{what}{number}"


def _write_lines(path: Path, src_keys: IntArray, dst_keys: IntArray, delimiter: str) -> None:
    import pyarrow as pa
    import pyarrow.csv as pacsv

    options = pacsv.WriteOptions(include_header=False, delimiter=delimiter, quoting_style="none")
    with path.open("wb") as file:
        for start in range(0, len(src_keys), WRITTEN_ROWS):
            columns = [pa.array(np.asarray(keys[start : start + WRITTEN_ROWS])) for keys in (src_keys, dst_keys)]
            pacsv.write_csv(pa.table(columns, names=["src", "dst"]), file, options)


def _write_parquet(path: Path, columns: Mapping[str, Array]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(name, pa.from_numpy_dtype(values.dtype)) for name, values in columns.items()])
    num_rows = len(next(iter(columns.values())))
    with pq.ParquetWriter(path, schema, use_dictionary=False) as writer:
        for start in range(0, num_rows, WRITTEN_ROWS):
            arrays = [pa.array(np.asarray(values[start : start + WRITTEN_ROWS])) for values in columns.values()]
            writer.write_table(pa.table(arrays, schema=schema))


def _write_feature(path: Path, array: Array, *, is_list: bool) -> None:
    """One column, one column of lists, or one column per dimension; the shape is in the schema metadata."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    width = math.prod(array.shape[1:])
    value_type = pa.from_numpy_dtype(array.dtype)
    is_list = is_list and array.ndim > 1
    columns = [("vector", pa.list_(value_type))] if is_list else [(str(n), value_type) for n in range(width)]
    schema = pa.schema(columns, metadata={SHAPE: str(array.shape).encode()})
    step = max(1, min(WRITTEN_ROWS, GROUP_BYTES // max(1, width * array.itemsize)))
    with pq.ParquetWriter(path, schema, use_dictionary=False) as writer:
        for start in range(0, len(array), step):
            rows = np.ascontiguousarray(array[start : start + step]).reshape(-1, width)
            if is_list:
                offsets = np.arange(0, rows.size + 1, width, dtype=np.int32)
                arrays = [pa.ListArray.from_arrays(pa.array(offsets), pa.array(rows.reshape(-1)))]
            else:
                arrays = [pa.array(np.ascontiguousarray(rows[:, n])) for n in range(width)]
            writer.write_table(pa.table(arrays, schema=schema))
