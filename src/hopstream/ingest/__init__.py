"""How does whatever holds a graph (a file, a folder, an object in memory) become a ``Graph``?"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from hopstream.errors import FormatError, SettingsError
from hopstream.graph.graph import Graph
from hopstream.ingest.build import graph_from_arrays
from hopstream.ingest.data import DataLike, HeteroDataLike, graph_from_data
from hopstream.ingest.described import METADATA, description_of, is_unigraph

__all__ = ["graph_from_arrays", "graph_from_data", "read_graph"]

READABLE = (
    "an .npz file, a .json file that describes tables or a chunked graph, a folder with metadata.json, the .pbtxt of a "
    "unigraph or its folder, or a PyG Data or HeteroData"
)


def read_graph(source: str | os.PathLike[str] | DataLike | HeteroDataLike, **options: object) -> Graph:
    """Read a graph, whatever it is kept in.

    Args:
        source: An ``.npz`` file (see ``hopstream.ingest.npz``), a ``.json`` file that describes CSV and Parquet tables
            or a chunked graph (its fields tell which), a folder with such a ``metadata.json``, the ``.pbtxt`` of a
            unigraph or a folder with one, or a PyG ``Data`` or ``HeteroData``.
        options: For tables, the fields of ``hopstream.ingest.tables.TableSettings``. For ``.npz`` files ``ignore``, the
            names of arrays to leave out, or ``"all"`` for all that become nothing of the graph.

    Returns:
        A graph that passed ``Graph.check``; its arrays may be memory maps.

    Raises:
        FormatError: The source is of no kind that is read, missing, or damaged.
        SchemaError: What it holds is no graph.
        IdRangeError: An edge or split names a node that is not there.
        SettingsError: An option is unknown to this kind of source, or out of its range.
    """
    if not isinstance(source, str | os.PathLike):
        _refuse_options(options, "data objects")
        return graph_from_data(source)
    path = Path(source)
    if path.is_dir():
        path = _metadata_of(path)
    if is_unigraph(path):
        return _read_tables(path, options)
    if path.suffix == ".npz":
        from hopstream.ingest.npz import read_npz

        ignore = options.pop("ignore", ())
        if options:
            raise SettingsError(f".npz files have no option {sorted(options)[0]!r}; known: ['ignore']")
        if ignore != "all" and (isinstance(ignore, str) or not isinstance(ignore, Collection)):
            raise SettingsError(f"ignore is {ignore!r}; wanted a list of names of arrays, or 'all'")
        return read_npz(path, ignore)
    if path.suffix == ".json":
        from hopstream.ingest.chunked import is_chunked, open_chunked

        if is_chunked(path):
            _refuse_options(options, "chunked graphs")
            return open_chunked(path).load()
        return _read_tables(path, options)
    raise FormatError(f"{path} is not read; a graph is read from {READABLE}")


def _read_tables(path: Path, options: dict[str, object]) -> Graph:
    from hopstream.ingest.tables import TableSettings, read_tables

    known = list(TableSettings.__dataclass_fields__)
    if not options.keys() <= set(known):
        raise SettingsError(f"tables have no option {sorted(options.keys() - set(known))[0]!r}; known: {known}")
    return read_tables(path, TableSettings(**options)).graph  # type: ignore[arg-type]


def _metadata_of(folder: Path) -> Path:
    if not (folder / "manifest.json").is_file() and (path := description_of(folder)).is_file():
        return path
    if (folder / "manifest.json").is_file():
        raise FormatError(f"{folder} is a dataset; hopstream.read_dataset makes a graph of it, open_dataset opens it")
    raise FormatError(f"{folder} has no {METADATA}; a graph is read from {READABLE}")


def _refuse_options(options: dict[str, object], kind: str) -> None:
    if options:
        raise SettingsError(f"{kind} have no option {sorted(options)[0]!r}; only tables and .npz files have options")
