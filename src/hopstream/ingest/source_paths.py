"""Tells the kind of source at a path, finds the file that describes tables, and checks output paths."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from hopstream.errors import FormatError, SettingsError
from hopstream.ingest.json_files import read_json
from hopstream.ingest.raw_tables.metadata import (
    DESCRIPTION,
    Description,
    TablesMetadata,
    described_tables,
    read_json_metadata,
)
from hopstream.places.paths import AnyPath, PathKind, is_below, is_remote, path_of, sorted_files
from hopstream.uris import local_path

METADATA = "metadata.json"
PYG_META = "META.json"
SCHEMA_SUFFIX = ".pbtxt"
MAX_JSON = 16
"""A folder with more JSON files than this is not searched for DGL's partitions."""
NOT_READ_THERE = "is at a URI, from which such a source is not read; copy it to this machine, or mount the bucket"
EDGE_LISTS = frozenset({".txt", ".tsv", ".csv", ".edgelist", ".edges"})


def is_unigraph(path: AnyPath) -> bool:
    """Return whether a file is, by its name, the schema of a unigraph."""
    return path.suffix == SCHEMA_SUFFIX


def is_edge_list(path: AnyPath) -> bool:
    """Return whether a path is, by its name, a text file with an edge on each line."""
    return Path(path.name.lower().removesuffix(".gz")).suffix in EDGE_LISTS


def pyg_partitions_of(path: PathKind) -> PathKind | None:
    """Return the folder of PyG's partitions, given the folder or its ``META.json``; else None."""
    meta = path if path.name == PYG_META else path / PYG_META
    return cast(PathKind, meta.parent) if meta.is_file() else None


def dgl_config_of(path: PathKind) -> PathKind | None:
    """Return the JSON file of DGL's partitions, given the file or a folder with exactly one; else None."""
    found = [path] if path.suffix == ".json" and path.is_file() else sorted_files(path, "*.json")
    if len(found) > MAX_JSON:  # none of DGL's folders
        return None
    configs = [one for one in found if is_dgl_config(one)]
    return configs[0] if len(configs) == 1 else None


def is_dgl_config(path: AnyPath) -> bool:
    """Return whether a file is the JSON file of DGL's partitions."""
    try:
        value = read_json(path)
    except FormatError:  # the reader of the source reports the error
        return False
    return isinstance(value, dict) and "part-0" in value


def are_partitions(path: AnyPath) -> bool:
    """Return whether a path holds PyG's or DGL's partitions."""
    return pyg_partitions_of(path) is not None or dgl_config_of(path) is not None


def refuse_partitions(path: AnyPath) -> None:
    """Refuse PyG's and DGL's partitions, and name the function that reads them.

    Raises:
        FormatError: The path holds PyG's or DGL's partitions.
    """
    if pyg_partitions_of(path) is not None:
        raise FormatError(f"{path} holds PyG's partitions; hopstream.compat.pyg.read_partitions reads them")
    if (config := dgl_config_of(path)) is not None:
        raise FormatError(
            f"{config} describes DGL's partitions; hopstream.compat.dgl.distributed.read_partitions reads them"
        )


def description_of(source: PathKind) -> PathKind:
    """Return the file that describes tables or a chunked graph: the given file, or the one in a folder.

    In a folder it is ``metadata.json``, or without one the only ``.pbtxt``. The file may not exist.

    Raises:
        FormatError: The folder has several ``.pbtxt`` files.
    """
    metadata = cast(PathKind, source / METADATA)
    if not source.is_dir() or metadata.is_file():
        return metadata if source.is_dir() else source
    found = sorted_files(source, f"*{SCHEMA_SUFFIX}")
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise FormatError(f"{source} has {len(found)} files *{SCHEMA_SUFFIX}: {names}; give the one that is the schema")
    return found[0] if found else metadata


def source_here(path: AnyPath) -> AnyPath:
    """Return the path to read a source from.

    Tables and unigraphs are read where they are. A file or a chunked graph at a URI is copied to the cache folder once;
    see ``places.cache``. The path of another folder is returned, for its reader to report.

    Raises:
        StateError: Another process copies it, and has made no progress for two minutes.
        OSError: A file cannot be read; the error names it.
    """
    if isinstance(path, Path):
        return path
    described = description_of(path)
    if is_unigraph(described) or not described.is_file():
        return path
    from hopstream.places.cache import copied_here, folder_copied_here  # imported here, because they load Arrow

    if described.suffix != ".json":
        return copied_here(described)
    from hopstream.ingest.chunked import is_chunked

    return folder_copied_here(described) if is_chunked(described) else path


def check_data_path(path: AnyPath, data_path: str | None) -> None:
    """Refuse a data folder for any source but a unigraph.

    Args:
        path: The file that describes tables, or any other source.
        data_path: The data folder, if one was given.

    Raises:
        SettingsError: A folder is given, and ``path`` is not a unigraph's schema.
    """
    if data_path is not None and not is_unigraph(path):
        raise SettingsError(f"data_path is only for unigraphs; {path} is not one: leave it out")


def read_metadata(path: AnyPath | Description, data_path: str | None = None) -> TablesMetadata:
    """Read and check the description of tables, and find their files.

    Args:
        path: A JSON file, the ``.pbtxt`` of a unigraph, or a description in memory.
        data_path: The folder that a unigraph's file names are relative to and must lie in; by default the folder of
            ``path``.

    Raises:
        SettingsError: ``data_path`` is given, and ``path`` is not a unigraph's schema.
        FormatError: The file is missing or damaged, or a table's file is missing.
        SchemaError: The description contradicts itself, or a path leads out of the folder.
    """
    if isinstance(path, Mapping):
        check_data_path(DESCRIPTION, data_path)
        return described_tables(path)
    check_data_path(path, data_path)
    if is_unigraph(path):
        from hopstream.ingest.raw_tables.unigraph import read_unigraph  # imported here, because it loads protobuf

        return read_unigraph(path, data_path=None if data_path is None else path_of(data_path))
    return read_json_metadata(path)


def check_apart(
    out: str | os.PathLike[str] | AnyPath, inputs: Mapping[str, str | os.PathLike[str] | AnyPath], name: str = "out"
) -> None:
    """Refuse an output path that equals an input path, contains it, or lies in it.

    Sibling folders are allowed, and so is a folder beside an input file.

    Args:
        out: The output path.
        inputs: Description of each input ("the tables") to its path, a folder or a file. The metadata file of a
            chunked graph or of partitions counts as its whole folder.
        name: The argument that gave the output path, for the message.

    Raises:
        SettingsError: The paths overlap; the message says how.
    """
    if is_remote(out):
        there = path_of(out)
        for what, of_input in inputs.items():
            source = path_of(of_input)
            if is_remote(source) and (is_below(there, source) or is_below(source, there)):
                raise SettingsError(f"one of {name}, {out}, and {of_input}, {what}, holds the other; give another URI")
        return
    target = Path(os.path.realpath(local_path(out)))
    for what, of_input in inputs.items():
        if is_remote(of_input):
            continue
        given = local_path(cast(Path, of_input))
        path = _folder_of_pieces(given) or given
        source = Path(os.path.realpath(path))
        if target == source:
            how = f"which is {what} itself"
        elif source in target.parents and not source.is_file():
            how = f"which lies in {path}, {what}"
        elif target in source.parents:
            how = f"which holds {path}, {what}"
        else:
            continue
        raise SettingsError(f"{name} is {out}, {how}; give a folder apart from the input")


def _folder_of_pieces(path: Path) -> Path | None:
    if path.suffix != ".json" or not path.is_file():
        return None
    from hopstream.ingest.chunked import is_chunked  # imported here because it loads Arrow
    from hopstream.ingest.source_paths import are_partitions

    return path.parent if are_partitions(path) or is_chunked(path) else None
