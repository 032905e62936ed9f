"""Reads files of torch without running what they say.

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
from types import MappingProxyType
from typing import Any

import numpy as np

from hopstream.errors import FormatError, MissingDependencyError

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
