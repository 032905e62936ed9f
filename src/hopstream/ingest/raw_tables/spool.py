"""Writes tables in memory as Parquet files with the JSON file that describes them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from hopstream.arrays import write_text
from hopstream.engine.atomic_folder import open_work
from hopstream.errors import FormatError, SchemaError, SettingsError
from hopstream.ingest.chunked.writing import check_out_folder
from hopstream.ingest.raw_tables.files import read_batches
from hopstream.ingest.raw_tables.metadata import Description, EdgeTableSpec, NodeTableSpec, TableFiles, described_tables
from hopstream.places.paths import AnyPath, path_of
from hopstream.places.staging import write_folder_at
from hopstream.uris import local_path

GROUP_BYTES = 16 << 20
"""Approximate bytes of a row group."""
METADATA = "metadata.json"


def write_tables(description: Description, out: str | os.PathLike[str] | AnyPath) -> AnyPath:
    """Write tables in memory as Parquet files and the ``metadata.json`` that describes them.

    ``read_graph``, ``prepare`` and ``hopstream.dataset.chunk_tables`` read the folder as they read the tables. Each
    table is read once, in batches; columns that the description does not name are left out.

    Args:
        description: See ``read_tables``; every table is in memory.
        out: The folder or its URI; it must not exist, or must be empty.

    Returns:
        The path of ``metadata.json``.

    Raises:
        SchemaError: The description contradicts itself, or a table lacks a column.
        FormatError: A table cannot be converted to Arrow, or a Parquet file cannot hold one of its columns.
        SettingsError: A table of the description is in files, or ``out`` is not empty.
        StateError: Another process writes to the same folder.
    """
    place = path_of(out)
    if not isinstance(place, Path):
        return write_folder_at(place, partial(write_tables, description), METADATA, None)
    with open_work(place) as work, work.new_folder(partial(check_out_folder, work.root)) as new:
        _write(description, new)
    return place / METADATA


@contextmanager
def tables_on_disk(description: Description, out: str | os.PathLike[str]) -> Iterator[Path]:
    """Write tables in memory to a hidden folder beside ``out``, and remove it at the end.

    See ``write_tables``.

    Yields:
        The path of ``metadata.json``.
    """
    place = local_path(out)
    with open_work(place.with_name(f"{place.name}.tables")) as work:
        work.clear()
        try:
            yield _write(description, work.path / "tables")
        finally:
            work.clear()


def _write(description: Description, folder: Path) -> Path:
    metadata = described_tables(description)
    folder.mkdir(exist_ok=True)
    nodes = dict(cast(dict[str, dict[str, Any]], description["nodes"]))
    for number, (node_type, spec) in enumerate(metadata.nodes.items()):
        if spec.files is not None:
            ids = [spec.id_column] if spec.id_column is not None else []
            name = _write_table(folder, f"nodes-{number}.parquet", spec.files, _columns(spec, ids))
            nodes[node_type] = _in_file(nodes[node_type], name)
    edges = list(cast(list[dict[str, Any]], description.get("edges", [])))
    for number, edge_spec in enumerate(metadata.edges.values()):
        columns = _columns(edge_spec, [edge_spec.src_column, edge_spec.dst_column])
        name = _write_table(folder, f"edges-{number}.parquet", edge_spec.files, columns)
        edges[number] = _in_file(edges[number], name)
    try:
        text = json.dumps({"nodes": nodes, "edges": edges}, indent=1)
    except (TypeError, ValueError) as error:
        raise SchemaError(f"the description of tables cannot be written as JSON: {error}") from error
    write_text(folder / METADATA, text)
    return folder / METADATA


def _columns(spec: NodeTableSpec | EdgeTableSpec, ids: Sequence[str]) -> list[str]:
    splits = [spec.split_column] if spec.split_column is not None else []
    named = [*ids, *(column for feature in spec.features.values() for column in feature.columns), *splits]
    return list(dict.fromkeys(named))


def _in_file(fields: dict[str, Any], name: str) -> dict[str, Any]:
    return {"files": name, **{key: value for key, value in fields.items() if key != "table"}}


def _write_table(folder: Path, name: str, files: TableFiles, columns: Sequence[str]) -> str:
    """Write the rows of a table in memory to a Parquet file, and return its name."""
    if files.table is None:
        raise SettingsError(
            f"{files.paths[0]} is a file, but other tables of the description may be in memory; give only tables in "
            "memory, or a metadata.json that describes only files"
        )
    writer: pq.ParquetWriter | None = None
    try:
        for rows in _groups(files, columns):
            if writer is None:
                writer = pq.ParquetWriter(folder / name, rows.schema, write_page_checksum=True)
            writer.write_table(rows, max(1, GROUP_BYTES * len(rows) // max(1, rows.nbytes)))
    except pa.ArrowException as error:
        raise FormatError(f"{files.paths[0]} cannot be written as parquet: {error}") from error
    finally:
        if writer is not None:
            writer.close()
    return name


def _groups(files: TableFiles, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Read a table in groups of about ``GROUP_BYTES`` or of one batch; of no rows, one group."""
    waiting, is_empty = list[pa.RecordBatch](), True
    for batch in read_batches(files, columns):
        waiting.append(pa.RecordBatch.from_pydict(batch.columns or {"row": pa.nulls(batch.num_rows)}))
        if sum(rows.nbytes for rows in waiting) >= GROUP_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting, is_empty = [], False
    if waiting:
        yield pa.Table.from_batches(waiting)
    elif is_empty:
        yield pa.table({name: pa.nulls(0) for name in columns or ["row"]})
