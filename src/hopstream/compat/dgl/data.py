"""Names of ``dgl.data``: ``load_tensors`` and ``save_tensors``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopstream.compat.dgl.binary import read_tensor_file, write_tensor_file
from hopstream.compat.dgl.tensors import to_array, to_tensors
from hopstream.errors import SchemaError, SettingsError
from hopstream.uris import local_path

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["load_tensors", "save_tensors"]


def load_tensors(filename: str | Path, return_dgl_ndarray: bool = False) -> dict[str, Tensor]:
    """Read the tensors of a ``.dgl`` file, such as ``orig_nids.dgl``, by name.

    Raises:
        SettingsError: ``return_dgl_ndarray`` is set; this package has no DGL arrays.
        FormatError: The file is missing, damaged, or holds no tensors.
    """
    if return_dgl_ndarray:
        raise SettingsError("return_dgl_ndarray is given; there are tensors only: leave it out")
    return to_tensors(read_tensor_file(local_path(filename)))


def save_tensors(filename: str | Path, tensor_dict: Mapping[str, Any]) -> None:
    """Write tensors or arrays by name, in a form that DGL reads; a bool becomes uint8, as in DGL.

    Raises:
        SchemaError: A value is no tensor or has a dtype that DGL does not know, or a name is no string.
        OSError: The file cannot be written.
    """
    if not isinstance(tensor_dict, Mapping) or not all(isinstance(name, str) for name in tensor_dict):
        raise SchemaError(f"tensor_dict is {type(tensor_dict).__name__}; wanted a dict of tensors by name")
    write_tensor_file(local_path(filename), {name: to_array(value, name) for name, value in tensor_dict.items()})
