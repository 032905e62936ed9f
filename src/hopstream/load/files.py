"""Reads files and graphs that torch wrote, without running what they say.

A ``.pt`` file is a pickle. It is read with ``weights_only=True``: numbers, text, containers and tensors, and, where
they are wanted, numpy arrays and PyG's data objects.
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
from hopstream.ingest.source_paths import METADATA
from hopstream.uris import local_path

_LOCK = threading.Lock()
"""torch keeps what files may name in one list for the whole process."""


def read_torch_file(
    path: str | os.PathLike[str],
    *,
    tensors_only: bool = False,
    data: bytes | None = None,
    stand_ins: Mapping[str, type] = MappingProxyType({}),
) -> Any:
    """What a ``.pt`` file holds, in main memory.

    Args:
        path: The file.
        tensors_only: Whether numpy arrays and PyG's data objects are refused. A ``defaultdict``, as which PyG writes
            ``edge_feats.pt``, is read as a dictionary then.
        data: What is read in place of the whole file: a piece of it.
        stand_ins: Names of other classes, to the classes whose objects are made in their place.

    Raises:
        FormatError: The file is missing or damaged, or holds anything but numbers, text, containers, tensors, numpy
            arrays and PyG's data objects, or tensors that are larger than what is stored of them.
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
            f"{path} holds what is not read: {_reason(error)}; wanted {wanted}: load it where you trust it, and save "
            "its tensors alone"
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
    """Refuse a tensor that is larger than what is stored of it.

    Raises:
        FormatError: It is.
    """
    stored = tensor.untyped_storage().nbytes()
    if tensor.numel() * tensor.element_size() > stored:
        raise FormatError(
            f"{path} has a tensor {list(tensor.shape)} of {tensor.dtype} in {stored} bytes; save tensors that were "
            "expanded with .contiguous()"
        )


@contextmanager
def _named(names: list[Any], *, beside_others: bool) -> Iterator[None]:
    """Until the end, let files name this, alone or beside what PyG and others allow."""
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
    """The tensors of containers and data objects, which may hold themselves."""
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
    """The cause alone; torch says around it how to be less careful."""
    named = re.search(r"GLOBAL (\S+)", str(error))
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if "WeightsUnpickler" in line or "Unsupported" in line]
    return named[1] if named else (told or lines or [type(error).__name__])[0][:200]


def _new_dict(*_: Any) -> dict[Any, Any]:
    return {}


_DICTIONARIES: list[Any] = [(_new_dict, "collections.defaultdict"), (dict, "builtins.dict")]
"""torch fills no ``defaultdict`` even where its name is allowed; of two meanings of a name it takes either."""


def _numpy_globals() -> list[Any]:
    """What pickled numpy arrays name, in versions before and after 2."""
    functions: list[Any] = [np.array(0).__reduce__()[0], np.float64(0).__reduce__()[0]]
    named = [(function, f"numpy.core.multiarray.{function.__name__}") for function in functions]
    dtypes = {type(np.dtype(code)) for code in "?bBhHiIlLqQefdSU"}
    return [*functions, *named, np.ndarray, np.dtype, codecs.encode, *dtypes]


def _pyg_globals() -> list[Any]:
    """The classes that a ``Data`` or ``HeteroData`` is made of, where PyG is installed."""
    try:
        from torch_geometric.data import Data, HeteroData, data, storage
    except ImportError:
        return []
    parts = [storage.BaseStorage, storage.GlobalStorage, storage.NodeStorage, storage.EdgeStorage]
    return [Data, HeteroData, data.DataEdgeAttr, data.DataTensorAttr, *parts]


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
