"""Reads graphs that torch wrote: PyG's processed files, and OGB's folders with ``.pt`` files in them.

Nothing in such a file is run; see ``load/torch_files.py``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hopstream.arrays import Array
from hopstream.errors import FormatError, HopstreamError, MissingDependencyError, SchemaError, SettingsError
from hopstream.graph.graph import Graph
from hopstream.ingest import check_options, graph_from_data
from hopstream.ingest import read_graph as read_graph_without_torch
from hopstream.ingest.objects.ogb import SPLITS
from hopstream.ingest.objects.pyg_data import DataLike, DataObjects, HeteroDataLike
from hopstream.ingest.ogb_folder import OPTIONS as OGB_OPTIONS
from hopstream.ingest.ogb_folder import SPLIT_NAMES, find_split, is_ogb_folder, read_ogb_folder
from hopstream.ingest.source_paths import METADATA
from hopstream.load.torch_files import read_torch_file
from hopstream.uris import local_path

SUFFIXES = frozenset({".pt", ".pth"})
GLOBAL_STORE = "_global_store"
"""The key that every ``HeteroData.to_dict()`` has."""


def is_torch_file(path: Path) -> bool:
    """Whether a path is, by its name, a file that torch wrote."""
    return path.suffix in SUFFIXES


def read_graph(source: str | os.PathLike[str] | DataObjects, **options: object) -> Graph:
    """Read a graph, whatever it is kept in.

    Args:
        source: An ``.npz`` file (see ``hopstream.ingest.npz``), a ``.json`` file that describes CSV and Parquet tables
            or a chunked graph (its fields tell which), a folder with such a ``metadata.json``, the ``.pbtxt`` of a
            unigraph or a folder with one, an edge list (``.txt``, ``.tsv``, ``.csv``, ``.edgelist``, ``.edges``, also
            with ``.gz``), a folder of the Open Graph Benchmark, PyG's processed ``.pt`` file, a PyG ``Data`` or
            ``HeteroData``, or the three that ``RandomLinkSplit`` returns, as a tuple.
        options: For tables, the fields of ``hopstream.ingest.tables.TableSettings``. For ``.npz`` files ``ignore``, the
            names of arrays to leave out, or ``"all"`` for all that become nothing of the graph. For edge lists and
            OGB's folders, those of ``graph_from_edge_list`` and ``graph_from_ogb_folder``.

    Returns:
        A graph that passed ``Graph.check``; its arrays may be memory maps.

    Raises:
        FormatError: The source is of no kind that is read, missing, or damaged.
        SchemaError: What it holds is no graph.
        IdRangeError: An edge or split names a node that is not there.
        SettingsError: An option is unknown to this kind of source, or out of its range.
        MissingDependencyError: A ``.pt`` file is to be read, without torch.
    """
    if isinstance(source, str | os.PathLike):
        path = local_path(source)
        if is_torch_file(path):
            check_options("PyG's files", options, ())
            return read_data_file(path)
        if path.is_dir() and is_ogb_folder(path):
            check_options("OGB's folders", options, OGB_OPTIONS)
            return graph_from_ogb_folder(path, **options)  # type: ignore[arg-type]
        _refuse_dataset_folder(path)
    return read_graph_without_torch(source, **options)


def read_data_file(path: str | os.PathLike[str]) -> Graph:
    """Make a graph of the file that PyG keeps a dataset of one graph in, such as ``processed/data.pt``.

    It holds what ``InMemoryDataset.save`` writes, ``(dict, slices, class)``, the older ``(data, slices)``, or a
    ``Data`` or ``HeteroData`` by itself, or as its ``to_dict()``. Slices may be there, if they are of one graph.

    Raises:
        FormatError: The file is missing, damaged, or holds what is not read.
        SchemaError: It holds several graphs, or what it holds is no graph.
        IdRangeError: An edge names a node that is not there.
        MissingDependencyError: torch or torch_geometric is not installed.
    """
    value = read_torch_file(path)
    if isinstance(value, tuple):
        if len(value) not in (2, 3) or (value[1] is not None and not isinstance(value[1], Mapping)):
            raise FormatError(f"{path} holds a tuple of {len(value)}; wanted PyG's (data, slices, class)")
        if _num_graphs(value[1]) > 1:
            raise SchemaError(f"{path} holds a collection of graphs; give one of them: graph_from_data(dataset[0])")
        value = value[0]
    try:
        if isinstance(value, Mapping):
            value = _data_of(path, value)
        if not isinstance(value, DataLike | HeteroDataLike):
            raise FormatError(f"{path} holds {type(value).__name__}; wanted a Data or HeteroData of PyG")
        return graph_from_data(value)
    except HopstreamError:
        raise
    except Exception as error:  # PyG takes any attributes, and stumbles over them when it is asked
        raise FormatError(f"{path} holds a data object that is damaged ({error!r})") from error


def graph_from_ogb_folder(
    folder: str | os.PathLike[str], *, split: str | None = None, inverse_edges: bool | None = None,
    num_nodes: Mapping[str, int] | None = None,
) -> Graph:  # fmt: skip
    """Make a graph of a folder that the Open Graph Benchmark downloads, as ``graph_from_ogb`` does of arrays.

    See ``hopstream.ingest.ogb_folder`` for the layouts. Arrays of MAG240M are mapped, not loaded.

    Args:
        folder: A dataset's folder, such as ``dataset/ogbn_arxiv``.
        split: The folder below ``split/``; it may be left out where there is one.
        inverse_edges: Behind each edge add its reverse, as ``ogb`` does for some datasets in CSV; None does it for
            those, by the folder's name, with or without ``_pyg`` or ``_dgl`` behind it.
        num_nodes: Node type to its nodes, for MAG240M's layout without ``meta.pt``.

    Raises:
        FormatError: A file is missing or damaged, or the folder is of no layout that is known.
        SchemaError: Files contradict each other, such as in how many nodes or edges there are, or there are several
            graphs.
        IdRangeError: An edge or split names a node that is not there.
        SettingsError: There are several splits and none is chosen, or there is none of this name; or the folder has one
            edge type in CSV, none of OGB's names, and ``inverse_edges`` is None.
        MissingDependencyError: A ``.pt`` file is to be read, without torch.
    """
    return read_ogb_folder(
        folder, split=split, inverse_edges=inverse_edges, num_nodes=num_nodes, read_torch=read_torch_file
    )


def read_ogb_links(folder: str | os.PathLike[str], *, split: str | None = None) -> dict[str, dict[str, Any]]:
    """Read the links to predict of one of OGB's link datasets, as ``get_edge_split`` returns them.

    Args:
        folder: A dataset's folder, such as ``dataset/ogbl_collab``.
        split: The folder below ``split/``; it may be left out where there is one.

    Returns:
        ``train``, ``val`` and ``test``, each OGB's names to arrays: ``edge`` and ``edge_neg`` int64[n, 2]; or
        ``source_node`` and ``target_node``; or ``head``, ``relation`` and ``tail``; and what goes with them.

    Raises:
        FormatError: A file is missing, damaged, or holds what is not read.
        SettingsError: There are several splits and none is chosen, or there is none.
        MissingDependencyError: torch is not installed.
    """
    chosen = find_split(local_path(folder), split)
    if chosen is None:
        raise SettingsError(f"{folder} has no folder split/; give that of a dataset for link prediction")
    missing = [f"{name}.pt" for name in SPLIT_NAMES if not (chosen / f"{name}.pt").is_file()]
    if missing:
        there = ", ".join(sorted(path.name for path in chosen.iterdir())) or "nothing"
        raise FormatError(
            f"{chosen} has {there}, and not {', '.join(missing)}; give the folder of a dataset for link prediction "
            "(splits of nodes come with hopstream.read_graph)"
        )
    found: dict[str, dict[str, Any]] = {}
    for name in SPLIT_NAMES:
        value = read_torch_file(chosen / f"{name}.pt")
        if not isinstance(value, dict):
            raise FormatError(f"{chosen / name}.pt holds {type(value).__name__}; wanted a dict of links")
        found[SPLITS.get(name, name)] = {str(key): _as_array(part) for key, part in value.items()}
    return found


def _num_graphs(slices: Any) -> int:
    """How many graphs a collection has whose attributes begin and end at these places; 1 where nothing says so."""
    if isinstance(slices, Mapping):
        return max(map(_num_graphs, slices.values()), default=1)
    return len(slices) - 1 if hasattr(slices, "__len__") else 1


def _refuse_dataset_folder(path: Path) -> None:
    """Name the file to give in place of the folder of one of PyG's datasets."""
    if path.is_dir() and not (path / METADATA).is_file() and not (path / "manifest.json").is_file():
        found = sorted(file for file in path.glob("processed/*.pt") if not file.name.startswith("pre_"))
        if found:
            raise FormatError(f"{path} is a folder of a PyG dataset; give the file in it: {', '.join(map(str, found))}")


def _data_of(path: str | os.PathLike[str], named: Mapping[Any, Any]) -> Any:
    """The data object that ``to_dict`` made a dict of."""
    if not all(isinstance(name, str) for name in named) and GLOBAL_STORE not in named:
        raise FormatError(
            f"{path} holds a dict of {', '.join(map(repr, named))}; wanted that of data.to_dict(), which has names or "
            f"{GLOBAL_STORE!r}"
        )
    try:
        from torch_geometric.data import Data, HeteroData
    except ImportError as error:
        raise MissingDependencyError(
            "PyG's files are read with torch_geometric; pip install 'hopstream[pyg]'"
        ) from error
    return (HeteroData if GLOBAL_STORE in named else Data).from_dict(dict(named))


def _as_array(value: Any) -> Array | Any:
    """Tensors as arrays; what is no tensor as it is."""
    return value.numpy() if hasattr(value, "numpy") else value
