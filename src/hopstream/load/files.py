"""Reads files and graphs that torch wrote, without running code from the files.

A ``.pt`` file is a pickle. It is read with ``weights_only=True``: numbers, text, containers and tensors. On request,
numpy arrays and PyG's data objects are read too.
"""

from __future__ import annotations

import codecs
import io
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from hopstream.arrays import Array
from hopstream.errors import FormatError, HopstreamError, MissingDependencyError, SchemaError, SettingsError
from hopstream.graph.graph import Graph
from hopstream.ingest import check_options, graph_from_data
from hopstream.ingest import read_graph as read_graph_without_torch
from hopstream.ingest.objects.pyg_data import DataLike, DataObjects, HeteroDataLike
from hopstream.ingest.ogb_folder import OPTIONS as OGB_OPTIONS
from hopstream.ingest.ogb_folder import SPLIT_NAMES, SPLITS, find_split, is_ogb_folder, read_ogb_folder
from hopstream.ingest.raw_tables.metadata import Description
from hopstream.ingest.source_paths import METADATA, source_here
from hopstream.places.paths import path_of
from hopstream.uris import local_path

_LOCK = threading.Lock()
"""Held while torch's list of allowed globals is changed; the process has only one."""


def read_torch_file(
    path: str | os.PathLike[str],
    *,
    tensors_only: bool = False,
    data: bytes | None = None,
    stand_ins: Mapping[str, type] = MappingProxyType({}),
) -> Any:
    """Read the content of a ``.pt`` file into main memory.

    Args:
        path: The file.
        tensors_only: Refuse numpy arrays and PyG's data objects. A ``defaultdict``, as in PyG's ``edge_feats.pt``, is
            then read as a dictionary.
        data: Bytes to read in place of the whole file, such as a piece of it.
        stand_ins: Name of a class in the file to the class to use in its place.

    Raises:
        FormatError: The file is missing or damaged. It holds anything but numbers, text, containers, tensors, numpy
            arrays and PyG's data objects, or a tensor that is larger than its stored values.
        MissingDependencyError: torch is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingDependencyError(f"{path} is read with torch; pip install 'hopstream[pyg]'") from error
    names = list(_DICTIONARIES) if tensors_only else [*_numpy_globals(), *_pyg_globals()]
    names += [(one, name) for name, one in stand_ins.items()]
    try:
        with _named(names, beside_others=not tensors_only):
            source = path if data is None else io.BytesIO(data)
            value = torch.load(source, map_location="cpu", weights_only=True)
        tensors = list(_tensors_in(value))
    except FileNotFoundError as error:
        raise FormatError(f"{path} is missing") from error
    except torch.serialization.pickle.UnpicklingError as error:  # type: ignore[attr-defined]
        wanted = "numbers and tensors" if tensors_only else "numbers, tensors, numpy arrays and PyG's data objects"
        raise FormatError(
            f"{path} contains {_reason(error)}, which is not read because it could run code; wanted {wanted}; load the "
            "file where you trust it, and save only its tensors"
        ) from error
    except Exception as error:  # a damaged file makes torch raise anything, IndexError too
        raise FormatError(f"{path} cannot be read as a file of torch ({_reason(error)})") from error
    for tensor in tensors:
        if tensor.device.type != "cpu" or (tensors_only and tensor.layout != torch.strided):
            raise FormatError(
                f"{path} has a tensor {list(tensor.shape)} of {tensor.dtype} that is {tensor.layout} on "
                f"{tensor.device}; save dense tensors that hold their values"
            )
        if tensor.layout == torch.strided:
            check_stored(path, tensor)
    return value


def check_stored(path: str | os.PathLike[str], tensor: Any) -> None:
    """Refuse a tensor that is larger than its stored values, such as an expanded one.

    Raises:
        FormatError: The tensor is larger.
    """
    stored = tensor.untyped_storage().nbytes()
    if tensor.numel() * tensor.element_size() > stored:
        raise FormatError(
            f"{path} has a tensor {list(tensor.shape)} of {tensor.dtype} in {stored} bytes; save tensors that were "
            "expanded with .contiguous()"
        )


@contextmanager
def _named(names: list[Any], *, beside_others: bool) -> Iterator[None]:
    """Allow files to name the given globals inside the context, alone or beside already allowed ones."""
    from torch import serialization

    with _LOCK:
        others = serialization.get_safe_globals()
        serialization.clear_safe_globals()
        try:
            serialization.add_safe_globals([*others, *names] if beside_others else names)
            yield
        finally:
            own = [*others, *names]
            meanwhile = [one for one in serialization.get_safe_globals() if one not in own]  # by other threads
            serialization.clear_safe_globals()
            serialization.add_safe_globals([*others, *meanwhile])


def _tensors_in(value: Any) -> Iterable[Any]:
    """Find the tensors in nested containers and data objects, which may contain themselves."""
    waiting, seen = [value], dict[int, Any]()
    while waiting:
        one = waiting.pop()
        if isinstance(one, type) or seen.setdefault(id(one), one) is not one:
            continue
        if hasattr(one, "untyped_storage"):
            yield one
        elif isinstance(one, Mapping):
            waiting += one.values()
        elif isinstance(one, list | tuple | set):
            waiting += one
        elif hasattr(one, "to_dict"):
            waiting.append(one.to_dict())


def _reason(error: Exception) -> str:
    """Return the cause of an error of torch, without its advice to allow unsafe loading."""
    named = re.search(r"GLOBAL (\S+)", str(error))
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if "WeightsUnpickler" in line or "Unsupported" in line]
    return named[1] if named else (told or lines or [type(error).__name__])[0][:200]


def _new_dict(*_: Any) -> dict[Any, Any]:
    return {}


_DICTIONARIES: list[Any] = [(_new_dict, "collections.defaultdict"), (dict, "builtins.dict")]
"""Classes by name, to read a ``defaultdict`` as a dict: torch fills no ``defaultdict``, even if its name is allowed. If
a name is allowed for two classes, torch takes either."""


def _numpy_globals() -> list[Any]:
    """Return the globals that pickled numpy arrays name, of numpy before and after version 2."""
    functions: list[Any] = [np.array(0).__reduce__()[0], np.float64(0).__reduce__()[0]]
    named = [(function, f"numpy.core.multiarray.{function.__name__}") for function in functions]
    dtypes = {type(np.dtype(code)) for code in "?bBhHiIlLqQefdSU"}
    return [*functions, *named, np.ndarray, np.dtype, codecs.encode, *dtypes]


def _pyg_globals() -> list[Any]:
    """Return the classes in a pickled ``Data`` or ``HeteroData``; empty if PyG is not installed."""
    try:
        from torch_geometric.data import Data, HeteroData, data, storage
    except ImportError:
        return []
    parts = [storage.BaseStorage, storage.GlobalStorage, storage.NodeStorage, storage.EdgeStorage]
    return [Data, HeteroData, data.DataEdgeAttr, data.DataTensorAttr, *parts]


SUFFIXES = frozenset({".pt", ".pth"})
GLOBAL_STORE = "_global_store"
"""A key of every ``HeteroData.to_dict()``."""


def is_torch_file(path: Path) -> bool:
    """Return whether a path has a suffix of torch's files."""
    return path.suffix in SUFFIXES


def read_graph(source: str | os.PathLike[str] | Description | DataObjects, **options: object) -> Graph:
    """Read a graph from a file, a folder, tables in memory or a PyG object.

    Args:
        source: One of these:
            an ``.npz`` file (see ``hopstream.ingest.npz``);
            a ``.json`` file that describes CSV and Parquet tables or a chunked graph, or a folder with such a
            ``metadata.json``;
            the ``.pbtxt`` of a unigraph, or a folder with one;
            an edge list (``.txt``, ``.tsv``, ``.csv``, ``.edgelist``, ``.edges``, also with ``.gz``);
            a folder of the Open Graph Benchmark;
            PyG's processed ``.pt`` file;
            the URI of one of these, without OGB's folders; other sources than tables are copied to this machine once;
            a dict that describes tables in memory (see ``read_tables``);
            a PyG ``Data`` or ``HeteroData``, or the tuple of three that ``RandomLinkSplit`` returns.
        options: For tables, the fields of ``hopstream.ingest.tables.TableSettings``. For ``.npz`` files ``ignore``, the
            names of arrays to leave out, or ``"all"`` for all arrays that are no part of the graph. For edge lists and
            OGB's folders, the options of ``graph_from_edge_list`` and ``graph_from_ogb_folder``.

    Returns:
        A graph that passed ``Graph.check``; its arrays may be memory maps.

    Raises:
        FormatError: The source has an unknown format, is missing, or is damaged.
        SchemaError: Its content is no graph.
        IdRangeError: An edge or split names a node that does not exist.
        SettingsError: This kind of source has no such option, or the option is out of its range.
        MissingDependencyError: The source is a ``.pt`` file, and torch is not installed.
    """
    if isinstance(source, str | os.PathLike):
        path = source_here(path_of(source))
        if not isinstance(path, Path):
            return read_graph_without_torch(source, **options)
        if is_torch_file(path):
            check_options("PyG's files", options, ())
            return read_data_file(path)
        if path.is_dir() and is_ogb_folder(path):
            check_options("OGB's folders", options, OGB_OPTIONS)
            return graph_from_ogb_folder(path, **options)  # type: ignore[arg-type]
        _refuse_dataset_folder(path)
        source = path
    return read_graph_without_torch(source, **options)


def read_data_file(path: str | os.PathLike[str]) -> Graph:
    """Read a graph from the file of a PyG dataset of one graph, such as ``processed/data.pt``.

    The file holds ``(dict, slices, class)``, as ``InMemoryDataset.save`` writes it, the older ``(data, slices)``, or a
    ``Data`` or ``HeteroData``, also as its ``to_dict()``. Slices must be of one graph.

    Raises:
        FormatError: The file is missing, damaged, or has unknown content.
        SchemaError: The file holds several graphs, or none.
        IdRangeError: An edge names a node that does not exist.
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
    except Exception as error:  # PyG accepts any attributes, and fails only when they are read
        raise FormatError(f"{path} holds a data object that is damaged ({error!r})") from error


def graph_from_ogb_folder(
    folder: str | os.PathLike[str], *, split: str | None = None, inverse_edges: bool | None = None,
    num_nodes: Mapping[str, int] | None = None,
) -> Graph:  # fmt: skip
    """Read a graph from a folder that the Open Graph Benchmark downloads.

    See ``hopstream.ingest.ogb_folder`` for the layouts. Arrays of MAG240M are memory-mapped, not loaded.

    Args:
        folder: A dataset's folder, such as ``dataset/ogbn_arxiv``.
        split: The folder below ``split/``; not needed if there is only one.
        inverse_edges: Add the reverse of each edge behind it, as ``ogb`` does for some datasets in CSV. None does so
            for these datasets, which are known by the folder's name, also with ``_pyg`` or ``_dgl`` behind it.
        num_nodes: Node type to its number of nodes, for MAG240M's layout without ``meta.pt``.

    Raises:
        FormatError: A file is missing or damaged, or the folder has an unknown layout.
        SchemaError: Files contradict each other, for example in the number of nodes, or there are several graphs.
        IdRangeError: An edge or split names a node that does not exist.
        SettingsError: There are several splits and none is chosen, or there is none of this name. Or the folder has one
            edge type in CSV and none of OGB's names, and ``inverse_edges`` is None.
        MissingDependencyError: The folder has a ``.pt`` file, and torch is not installed.
    """
    return read_ogb_folder(
        folder, split=split, inverse_edges=inverse_edges, num_nodes=num_nodes, read_torch=read_torch_file
    )


def read_ogb_links(folder: str | os.PathLike[str], *, split: str | None = None) -> dict[str, dict[str, Any]]:
    """Read the splits of links of an OGB link dataset, as ``get_edge_split`` returns them.

    Args:
        folder: A dataset's folder, such as ``dataset/ogbl_collab``.
        split: The folder below ``split/``; not needed if there is only one.

    Returns:
        ``train``, ``val`` and ``test``, each with OGB's names to arrays: ``edge`` and ``edge_neg`` int64[n, 2]; or
        ``source_node`` and ``target_node``; or ``head``, ``relation`` and ``tail``; and further arrays of the dataset.

    Raises:
        FormatError: A file is missing, damaged, or has unknown content.
        SettingsError: There are several splits and none is chosen, or there is none.
        MissingDependencyError: torch is not installed.
    """
    chosen = find_split(local_path(folder), split)
    if chosen is None:
        raise SettingsError(f"{folder} has no folder split/; give the folder of a dataset for link prediction")
    missing = [f"{name}.pt" for name in SPLIT_NAMES if not (chosen / f"{name}.pt").is_file()]
    if missing:
        there = ", ".join(sorted(path.name for path in chosen.iterdir())) or "nothing"
        raise FormatError(
            f"{chosen} has {there} but lacks {', '.join(missing)}; give the folder of a dataset for link prediction "
            "(hopstream.read_graph reads datasets with node splits)"
        )
    found: dict[str, dict[str, Any]] = {}
    for name in SPLIT_NAMES:
        value = read_torch_file(chosen / f"{name}.pt")
        if not isinstance(value, dict):
            raise FormatError(f"{chosen / name}.pt holds {type(value).__name__}; wanted a dict of links")
        found[SPLITS.get(name, name)] = {str(key): _as_array(part) for key, part in value.items()}
    return found


def _num_graphs(slices: Any) -> int:
    """Return the number of graphs in a collection by its slices; 1 without slices."""
    if isinstance(slices, Mapping):
        return max(map(_num_graphs, slices.values()), default=1)
    return len(slices) - 1 if hasattr(slices, "__len__") else 1


def _refuse_dataset_folder(path: Path) -> None:
    """Raise ``FormatError`` for the folder of a PyG dataset; the message names the file to give."""
    if path.is_dir() and not (path / METADATA).is_file() and not (path / "manifest.json").is_file():
        found = sorted(file for file in path.glob("processed/*.pt") if not file.name.startswith("pre_"))
        if found:
            raise FormatError(f"{path} is a folder of a PyG dataset; give the file in it: {', '.join(map(str, found))}")


def _data_of(path: str | os.PathLike[str], named: Mapping[Any, Any]) -> Any:
    """Make the data object from its ``to_dict()``."""
    if not all(isinstance(name, str) for name in named) and GLOBAL_STORE not in named:
        raise FormatError(
            f"{path} holds a dict of {', '.join(map(repr, named))}; wanted the result of data.to_dict(), whose keys "
            f"are names or {GLOBAL_STORE!r}"
        )
    try:
        from torch_geometric.data import Data, HeteroData
    except ImportError as error:
        raise MissingDependencyError(
            "PyG's files are read with torch_geometric; pip install 'hopstream[pyg]'"
        ) from error
    return (HeteroData if GLOBAL_STORE in named else Data).from_dict(dict(named))


def _as_array(value: Any) -> Array | Any:
    """Convert a tensor to an array; other values are returned unchanged."""
    return value.numpy() if hasattr(value, "numpy") else value
