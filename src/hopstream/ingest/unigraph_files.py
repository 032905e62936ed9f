"""Finds the files that a name in the schema of a unigraph means, their format, and those with a header."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from hopstream.errors import FormatError, SchemaError, SettingsError, quoted
from hopstream.ingest.table_files import first_cells
from hopstream.ingest.table_metadata import TableFiles, TableFormat
from hopstream.schema import FeatureSchema
from hopstream.tfgnn.example import decode_example
from hopstream.tfgnn.tfrecord import files_of, read_records
from hopstream.uris import is_uri

_FORMATS: tuple[tuple[str, TableFormat], ...] = (
    (r"[_.-]tfrecords?|\btfr\b", "tfrecord"),
    (r"[_.-]csv\b", "csv"),
    (r"[_.-](parquet|pq)\b", "parquet"),
)
ID_COLUMNS = {"#id": ("id",), "#source": ("source",), "#target": ("target",)}
"""What columns of ids are called here, to what else files may call them."""


def table_files(
    root: Path, where: str, filename: str, columns: Mapping[str, FeatureSchema],
    other_names: Mapping[str, tuple[str, ...]],
) -> TableFiles:  # fmt: skip
    """The files of one table.

    Args:
        root: The folder that file names are relative to, and below which they lie.
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
        marks = [name for name in columns if name in ID_COLUMNS] or list(columns)
        names, headless = _headers(paths, [{name, *other_names.get(name, ())} for name in marks])
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
        f"{where}: metadata.filename is {quoted(filename)}, which names no format; a name has .tfrecord, .csv or "
        ".parquet in it"
    )


def _paths(root: Path, where: str, filename: str) -> list[Path]:
    shown = f"{where}: metadata.filename is {quoted(filename)}"
    if is_uri(filename) or ".." in Path(filename).parts:
        raise SchemaError(f"{shown}; files are local and lie below {root}, without ..")
    if Path(filename).is_absolute():
        filename = _below(root, shown, filename)
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


def _below(root: Path, shown: str, filename: str) -> str:
    for folder in (root.absolute(), root.resolve()):
        if Path(filename).is_relative_to(folder):
            return str(Path(filename).relative_to(folder))
    raise SchemaError(f"{shown}, which does not lie below {root}; give data_path, a folder that all files lie below")


def _headers(
    paths: Sequence[Path], marks: Sequence[set[str]]
) -> tuple[tuple[str, ...] | None, tuple[Path, ...]]:  # fmt: skip
    """The header that some shards of a table have, and the shards that have none: empty ones, or those of rows only.

    A header has one name of each of ``marks``; a row may well have a cell that is a column's name.
    """
    firsts = {path: first_cells(path) for path in paths}
    headers = {path for path, cells in firsts.items() if all(names & set(cells) for names in marks)}
    if not headers:
        return None, ()
    header = next(cells for path, cells in firsts.items() if path in headers)
    headless = tuple(
        path for path, cells in firsts.items()
        if not cells or (path not in headers and len(cells) == len(header))
    )  # fmt: skip
    return tuple(header), headless


def has_column(files: TableFiles, names: tuple[str, ...]) -> bool:
    """Whether the first file of a table that is not empty has a column of one of some names.

    Raises:
        FormatError: The file is damaged.
    """
    for path in files.paths:
        if files.format == "csv":
            cells = files.names_in(path) or first_cells(path)
            if cells:
                return not set(names).isdisjoint(cells)
        elif files.format == "parquet":
            try:
                return not set(names).isdisjoint(pq.read_schema(path).names)
            except (pa.ArrowException, OSError) as error:
                raise FormatError(f"{path} cannot be read as parquet: {error}") from error
        else:
            for record in read_records(path):
                try:
                    return not set(names).isdisjoint(decode_example(record))
                except FormatError as error:
                    raise FormatError(f"{path} record 0 is {error}") from error
    return False
