"""Writer of graphs as chunked graphs, with the arguments of DGL's ``chunk_graph``.

DGL's script has no flags; its graph is part of its code. The flags here have the names of the function's arguments.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hopstream.arrays import Array, open_array
from hopstream.checks import known_names
from hopstream.compat.dgl.convert import as_graph
from hopstream.compat.dgl.graphs import DEFAULT_ETYPE, DEFAULT_NTYPE
from hopstream.compat.dgl.tools.command import DONE, Flags, run_tool, say
from hopstream.dataset.paths import MANIFEST
from hopstream.errors import FormatError, SettingsError, UnknownNameError, quoted
from hopstream.graph.graph import Graph
from hopstream.ingest import graph_from_arrays
from hopstream.ingest.chunk_settings import ChunkSettings
from hopstream.ingest.chunked import write_chunked
from hopstream.ingest.objects.attributes import MASKS
from hopstream.ingest.source_paths import METADATA, check_apart
from hopstream.load.files import read_graph
from hopstream.schema import EDGE, NODE, EdgeType
from hopstream.uris import local_path

Paths = Mapping[str, str | os.PathLike[str]]
"""Feature name to its ``.npy`` file."""


def chunk_graph(  # noqa: PLR0913, PLR0917  DGL's arguments, in its order
    g: Any,
    name: str,
    ndata_paths: Paths | Mapping[str, Paths] | None,
    edata_paths: Paths | Mapping[str, Paths] | Mapping[EdgeType, Paths] | None,
    num_chunks: int,
    output_path: str | os.PathLike[str],
    data_fmt: str = "numpy",
    edges_fmt: str = "csv",
    vector_rows: bool = False,
) -> Path:
    """Write a graph as a chunked graph.

    Args:
        g: A ``DGLGraph``, of DGL or of this package, a ``hopstream.Graph``, a PyG ``Data`` or ``HeteroData``, or a
            dataset's folder. With paths, as in DGL, its own features are not written; features come from the files,
            which are mapped, never loaded.
        name: ``graph_name`` of the metadata.
        ndata_paths: Feature name to ``.npy`` file, by node type where there are several. ``train_mask``, ``val_mask``
            and ``test_mask`` are splits. None writes the graph's own features and splits, of nodes and edges.
        edata_paths: The same by edge type: its relation, ``source:relation:destination``, or a tuple of the three.
        num_chunks: Number of files per table.
        output_path: A new or empty folder.
        data_fmt: ``numpy`` or ``parquet``, for features.
        edges_fmt: ``csv``, ``parquet`` or ``numpy``.
        vector_rows: Write Parquet features as one column of lists.

    Returns:
        The path of the metadata.

    Raises:
        SettingsError: A format is unknown, ``output_path`` is not empty, or only one of the two sets of paths is None.
        UnknownNameError: Paths name a type that does not exist, or a relation of several edge types.
        FormatError: A file is missing or is no ``.npy``.
        SchemaError: A file has another number of rows than its type.
    """
    output_path = local_path(output_path)
    graph = as_graph(g)
    settings = ChunkSettings(
        num_chunks=num_chunks, data_format=data_fmt, edges_format=edges_fmt, vector_rows=vector_rows  # type: ignore[arg-type]
    )  # fmt: skip
    if (ndata_paths is None) != (edata_paths is None):
        raise SettingsError("ndata_paths and edata_paths are files of features, or both None for the graph's own")
    if ndata_paths is not None and edata_paths is not None:
        graph = _with_features(graph, ndata_paths, edata_paths)
    write_chunked(graph, output_path, name=name, settings=settings)
    return output_path / METADATA


def _with_features(graph: Graph, ndata_paths: Mapping[Any, Any], edata_paths: Mapping[Any, Any]) -> Graph:
    """Return a graph with the same nodes and edges and only the features of files."""
    nodes = {_node_type(graph, t): _open(paths) for t, paths in _by_type(ndata_paths, graph.nodes).items()}
    edges = {_edge_type(graph, t): _open(paths) for t, paths in _by_type(edata_paths, graph.edges).items()}
    return graph_from_arrays(
        {t: (table.src_keys, table.dst_keys) for t, table in graph.edges.items()},
        num_nodes={t: table.num_nodes for t, table in graph.nodes.items()},
        node_features={t: {name: a for name, a in of.items() if name not in MASKS} for t, of in nodes.items()},
        edge_features=edges,
        splits={t: {MASKS[name]: a for name, a in of.items() if name in MASKS} for t, of in nodes.items()},
    )


def _by_type(paths: Mapping[Any, Any], types: Iterable[object]) -> Mapping[Any, Paths]:
    """Return paths by type; a graph with one type may have paths without it."""
    if all(isinstance(value, Mapping) for value in paths.values()):
        return paths
    known = list(types)
    if len(known) != 1:
        raise SettingsError(f"paths are given by name alone, and the graph has {len(known)} types; give them by type")
    return {known[0]: paths}


def _node_type(graph: Graph, node_type: str) -> str:
    name = NODE if node_type == DEFAULT_NTYPE and node_type not in graph.nodes else node_type
    if name not in graph.nodes:
        raise UnknownNameError(f"ndata_paths name node type {node_type!r}; {known_names(node_type, graph.nodes)}")
    return name


def _edge_type(graph: Graph, given: str | EdgeType) -> EdgeType:
    """Return the edge type that a tuple, a text or an unambiguous relation names."""
    names = tuple(given.split(":")) if isinstance(given, str) else given
    found = [t for t in graph.edges if names in (t, (t[1],))]
    if not found and given in (DEFAULT_ETYPE, ":".join(DEFAULT_ETYPE), DEFAULT_ETYPE[1]):
        found = [t for t in graph.edges if t == EDGE]
    if len(found) != 1:
        what = "is the relation of several edge types" if found else "is not an edge type"
        raise UnknownNameError(
            f"edata_paths name {quoted(given)}, which {what}; known: {[':'.join(t) for t in graph.edges]}"
        )
    return found[0]


def _open(paths: Paths) -> dict[str, Array]:
    missing = [(name, path) for name, path in paths.items() if not local_path(path).is_file()]
    if missing:
        raise FormatError(f"{missing[0][1]} is not a file; it was given for feature {missing[0][0]!r}")
    return {name: open_array(local_path(path)) for name, path in paths.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tool; return its exit status."""
    flags = Flags("chunk_graph", "Write a graph as a chunked graph.")
    flags.add_argument("graph", type=Path, help="any source of hopstream.read_graph, or a dataset")
    flags.add_argument("--name", help="name of the graph in the metadata; default: the name of the folder")
    for flag, what in (("--ndata", "TYPE/NAME=FILE.npy"), ("--edata", "SRC:RELATION:DST/NAME=FILE.npy")):
        flags.add_argument(
            flag, action="append", default=[], metavar=what, help="a feature in place of the graph's own"
        )
    flags.add_argument("--num-chunks", type=int, default=4, help="number of files per table")
    flags.add_argument("--output-path", type=Path, required=True, help="the new folder to write to")
    flags.add_argument("--data-fmt", default="numpy", help="numpy or parquet")
    flags.add_argument("--edges-fmt", default="csv", help="csv, parquet or numpy")
    flags.add_argument("--vector-rows", action="store_true", help="parquet features as one column of lists")
    return run_tool(_run, flags, arguments)


def _run(given: argparse.Namespace) -> int:
    check_apart(given.output_path, {"the source": given.graph})
    is_own = not given.ndata and not given.edata
    graph = given.graph if (given.graph / MANIFEST).is_file() else read_graph(given.graph)
    path = chunk_graph(
        graph, given.name or given.output_path.resolve().name,
        None if is_own else _paths_of("--ndata", given.ndata), None if is_own else _paths_of("--edata", given.edata),
        given.num_chunks, given.output_path, given.data_fmt, given.edges_fmt, given.vector_rows,
    )  # fmt: skip
    say("done", str(path))
    return DONE


def _paths_of(flag: str, words: Sequence[str]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for word in words:
        entity, slash, rest = word.partition("/")
        name, equals, path = rest.partition("=")
        if not (slash and equals and entity and name and path):
            raise SettingsError(f"{flag} is {word!r}; wanted type/name=file.npy")
        found.setdefault(entity, {})[name] = path
    return found


if __name__ == "__main__":
    sys.exit(main())
