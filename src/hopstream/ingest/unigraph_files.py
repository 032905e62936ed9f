"""Which files does a name in the schema of a unigraph mean, of which format are they, and which have a header?"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from hopstream.errors import FormatError, SchemaError, SettingsError
from hopstream.ingest.table_files import first_cells
from hopstream.ingest.table_metadata import TableFiles, TableFormat
from hopstream.schema import FeatureSchema
from hopstream.tfgnn.example import decode_example
from hopstream.tfgnn.tfrecord import files_of, read_records

_FORMATS: tuple[tuple[str, TableFormat], ...] = (
    (r"[_.-]tfrecords?|\btfr\b", "tfrecord"),
    (r"[_.-]csv\b", "csv"),
    (r"[_.-](parquet|pq)\b", "parquet"),
)


def table_files(
    root: Path, where: str, filename: str, columns: Mapping[str, FeatureSchema],
    other_names: Mapping[str, tuple[str, ...]],
) -> TableFiles:  # fmt: skip
    """The files of one table.

    Args:
        root: The folder of the schema.
        where: What messages call the set.
        filename: One file, ``name@15`` for fifteen, or a pattern.
        columns: What is read, and what each column holds.
        other_names: By column, names that it may have instead.

    Raises:
        FormatError: A file, or any at all, is missing.
        SchemaError: The name leads out of the folder, or tells no format.
    """
    table_format = _format_of(where, filename)
    paths = _paths(root, where, filename)
    names, headless = None, None
    if table_format == "csv" and len(paths) > 1:
        wanted = {name for column in columns for name in (column, *other_names.get(column, ()))}
        names, headless = _headers(paths, wanted)
    return TableFiles(
        root=root, paths=tuple(paths), format=table_format, column_names=names, headless=headless,
        other_names=other_names, columns=columns if table_format == "tfrecord" else {},
    )  # fmt: skip


def _format_of(where: str, filename: str) -> TableFormat:
    name = Path(filename).name
    found = [(match.end(), of) for pattern, of in _FORMATS for match in re.finditer(pattern, name)]
    if found:
        return max(found)[1]  # what stands last: a set may be called after a format
    raise SchemaError(
        f"{where}: metadata.filename is {filename!r}, which names no format; a name has .tfrecord, .csv or .parquet "
        "in it"
    )


def _paths(root: Path, where: str, filename: str) -> list[Path]:
    shown = f"{where}: metadata.filename is {filename!r}"
    if Path(filename).is_absolute() or "://" in filename or ".." in Path(filename).parts:
        raise SchemaError(f"{shown}; files lie below the folder of the schema, without ..")
    try:
        paths = files_of(filename, root)
    except SettingsError as error:
        raise SchemaError(f"{where}: metadata.filename: {error}") from error
    except FormatError as error:
        raise FormatError(f"{shown}: {error}") from error
    for path in paths:
        if not path.resolve().is_relative_to(root.resolve()):
            raise SchemaError(f"{shown}; {path} is a link that leads out of {root}")
    return paths


def _headers(paths: Sequence[Path], wanted: set[str]) -> tuple[tuple[str, ...] | None, tuple[Path, ...]]:
    """The header that some shards of a table have, and the shards that have none: empty ones, or those of rows only."""
    firsts = {path: first_cells(path) for path in paths}
    header = next((cells for cells in firsts.values() if cells and wanted & set(cells)), None)
    if header is None:
        return None, ()
    headless = tuple(
        path for path, cells in firsts.items()
        if not cells or (len(cells) == len(header) and not set(cells) & set(header))
    )  # fmt: skip
    return tuple(header), headless


def has_column(files: TableFiles, name: str) -> bool:
    """Whether the first file of a table that is not empty has a column.

    Raises:
        FormatError: The file is damaged.
    """
    for path in files.paths:
        if files.format == "csv":
            cells = files.names_in(path) or first_cells(path)
            if cells:
                return name in cells
        elif files.format == "parquet":
            try:
                return name in pq.read_schema(path).names
            except (pa.ArrowException, OSError) as error:
                raise FormatError(f"{path} cannot be read as parquet: {error}") from error
        else:
            for record in read_records(path):
                try:
                    return name in decode_example(record)
                except FormatError as error:
                    raise FormatError(f"{path} record 0 is {error}") from error
    return False
