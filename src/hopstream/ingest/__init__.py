"""Reads a graph from a file, a folder or an object in memory."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path

from hopstream.checks import known_names
from hopstream.errors import FormatError, SettingsError
from hopstream.graph.graph import Graph
from hopstream.ingest.from_arrays import graph_from_arrays
from hopstream.ingest.objects.pyg_data import DataObjects, graph_from_data
from hopstream.ingest.raw_tables.metadata import Description
from hopstream.ingest.source_paths import (
    METADATA,
    NOT_READ_THERE,
    description_of,
    is_edge_list,
    is_unigraph,
    refuse_partitions,
    source_here,
)
from hopstream.places.paths import AnyPath, path_of

__all__ = ["graph_from_arrays", "graph_from_data", "read_graph"]

READABLE = (
    "an .npz file, a .json file that describes tables or a chunked graph, a folder with metadata.json, the .pbtxt of "
    "a unigraph or its folder, an edge list (.txt, .tsv, .csv, .edgelist, .edges), an OGB folder, a PyG Data or "
    "HeteroData, or a dict that describes tables in memory"
)


def read_graph(source: str | os.PathLike[str] | Description | DataObjects, **options: object) -> Graph:
    """Read a graph from any source that does not need torch.

    ``hopstream.read_graph`` also reads ``.pt``.

    Args:
        source: As in ``hopstream.load.files.read_graph``, without ``.pt`` files and folders of ``.pt`` files.
        options: As in ``hopstream.load.files.read_graph``.

    Returns:
        A graph that passed ``Graph.check``; its arrays may be memory maps.

    Raises:
        FormatError: The source is missing, damaged, or of an unsupported kind.
        SchemaError: The source does not hold a valid graph.
        IdRangeError: An edge or a split names a node that does not exist.
        SettingsError: This kind of source has no such option, or the option is out of range.
    """
    if isinstance(source, Mapping):
        return _read_tables(source, options)
    if not isinstance(source, str | os.PathLike):
        _refuse_options(options, "data objects")
        return graph_from_data(source)
    path = source_here(path_of(source))
    refuse_partitions(path)
    if path.is_dir():
        if isinstance(path, Path) and _is_ogb_folder(path):
            return _read_ogb_folder(path, options)
        path = _metadata_of(path)
    if is_unigraph(path):
        return _read_tables(path, options)
    if path.suffix == ".json":
        return _read_described(path, options)
    if not isinstance(path, Path):
        raise FormatError(f"{path} {NOT_READ_THERE if path.exists() else 'is missing'}")
    return _read_file(path, options)


def _read_described(path: AnyPath, options: dict[str, object]) -> Graph:
    from hopstream.ingest.chunked import is_chunked, open_chunked

    if is_chunked(path):
        _refuse_options(options, "chunked graphs")
        return open_chunked(path).load()
    return _read_tables(path, options)


def _read_file(path: Path, options: dict[str, object]) -> Graph:
    """Read a graph from one file; the suffix tells the format."""
    if path.suffix == ".npz":
        from hopstream.ingest.npz import read_npz

        ignore = options.pop("ignore", ())
        if options:
            raise SettingsError(f".npz files have no option {sorted(options)[0]!r}; known: ['ignore']")
        if ignore != "all" and (isinstance(ignore, str) or not isinstance(ignore, Collection)):
            raise SettingsError(f"ignore is {ignore!r}; wanted a list of names of arrays, or 'all'")
        return read_npz(path, ignore)
    if is_edge_list(path):
        from hopstream.ingest.edge_lists import OPTIONS, graph_from_edge_list

        check_options("edge lists", options, OPTIONS)
        return graph_from_edge_list(path, **options)  # type: ignore[arg-type]
    remedy = "; hopstream.read_graph reads PyG's .pt" if path.suffix == ".pt" else ""
    raise FormatError(f"{path} is not a known source; a graph is read from {READABLE}{remedy}")


def _is_ogb_folder(path: Path) -> bool:
    from hopstream.ingest.ogb_folder import is_ogb_folder

    return not (path / METADATA).is_file() and is_ogb_folder(path)


def _read_ogb_folder(path: Path, options: dict[str, object]) -> Graph:
    from hopstream.ingest.ogb_folder import OPTIONS, read_ogb_folder

    check_options("OGB's folders", options, OPTIONS)
    return read_ogb_folder(path, **options)  # type: ignore[arg-type]


def _read_tables(path: AnyPath | Description, options: dict[str, object]) -> Graph:
    from hopstream.ingest.tables import TableSettings, read_tables

    known = list(TableSettings.__dataclass_fields__)
    if unknown := sorted(options.keys() - set(known)):
        raise SettingsError(f"tables have no option {unknown[0]!r}; {known_names(unknown[0], known)}")
    return read_tables(path, TableSettings(**options)).graph  # type: ignore[arg-type]


def _metadata_of(folder: AnyPath) -> AnyPath:
    if not (folder / "manifest.json").is_file() and (path := description_of(folder)).is_file():
        return path
    if (folder / "manifest.json").is_file():
        raise FormatError(f"{folder} is a dataset; hopstream.read_dataset makes a graph of it, open_dataset opens it")
    raise FormatError(f"{folder} has no {METADATA}; a graph is read from {READABLE}")


def check_options(kind: str, options: Mapping[str, object], known: Collection[str]) -> None:
    """Raise ``SettingsError`` for an option that a kind of source does not have."""
    unknown = sorted(options.keys() - set(known))
    if unknown:
        raise SettingsError(f"{kind} have no option {unknown[0]!r}; {known_names(unknown[0], sorted(known))}")


def _refuse_options(options: dict[str, object], kind: str) -> None:
    if options:
        raise SettingsError(
            f"{kind} have no option {sorted(options)[0]!r}; only tables, .npz files, edge lists and OGB folders have "
            "options"
        )
