"""Converts arrays to tensors and back; torch is loaded when the first tensor is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hopstream.arrays import Array, IntArray
from hopstream.errors import MissingDependencyError, SchemaError
from hopstream.ingest.user_columns import MAX_KEY, as_array

if TYPE_CHECKING:
    from torch import Tensor


def to_tensor(array: Array) -> Tensor:
    """An array as a tensor that shares its memory where it may be written to.

    Raises:
        MissingDependencyError: torch is not installed.
        SchemaError: It holds no numbers.
    """
    if array.dtype.kind not in "biufc":
        raise SchemaError(f"an array of {array.dtype} is given; tensors hold numbers and booleans")
    try:
        import torch
    except ImportError as error:
        raise MissingDependencyError("DGL's names give tensors; pip install 'hopstream[pyg]'") from error
    return torch.from_numpy(array if array.flags.writeable and array.flags.c_contiguous else np.array(array))


def to_tensors(arrays: dict[Any, Array]) -> dict[Any, Tensor]:
    """Arrays by name as tensors."""
    return {name: to_tensor(array) for name, array in arrays.items()}


def to_array(value: Any, where: str) -> Array:
    """A tensor, an array or a list as an array.

    Raises:
        SchemaError: It is none of these.
    """
    if not isinstance(value, list | tuple | range | int):
        return as_array(value, where)
    try:
        return np.asarray(value)
    except (ValueError, TypeError, OverflowError) as error:  # rows of several lengths, tensors among numbers
        raise SchemaError(f"{where} is a {type(value).__name__} that is no array: {error}") from error


def to_ids(value: Any, where: str) -> IntArray:
    """Ids as int64[n]; one number is a list of one.

    Raises:
        SchemaError: They are no integers in one dimension.
    """
    array = np.atleast_1d(to_array(value, where))
    if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
        raise SchemaError(f"{where} is {array.dtype}{list(array.shape)}; wanted integers in one dimension")
    if array.dtype == np.uint64 and int(array.max(initial=0)) > MAX_KEY:
        raise SchemaError(f"{where} has {array.max()}; ids are at most {MAX_KEY}")
    return array.astype(np.int64, copy=False)
