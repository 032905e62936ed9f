"""Converter between arrays and tensors; it imports torch when it makes the first tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hopstream.arrays import Array, IntArray
from hopstream.errors import MissingDependencyError, SchemaError
from hopstream.ingest.user_columns import MAX_KEY, as_array

if TYPE_CHECKING:
    from torch import Tensor


def to_tensor(array: Array) -> Tensor:
    """Convert an array to a tensor, which shares its memory if the array is writable and contiguous.

    Raises:
        MissingDependencyError: torch is not installed.
        SchemaError: The array holds neither numbers nor booleans.
    """
    if array.dtype.kind not in "biufc":
        raise SchemaError(f"an array of {array.dtype} is given; tensors hold numbers and booleans")
    try:
        import torch
    except ImportError as error:
        raise MissingDependencyError("DGL's names give tensors; pip install 'hopstream[pyg]'") from error
    return torch.from_numpy(array if array.flags.writeable and array.flags.c_contiguous else np.array(array))


def to_tensors(arrays: dict[Any, Array]) -> dict[Any, Tensor]:
    """Convert a dict of arrays to tensors."""
    return {name: to_tensor(array) for name, array in arrays.items()}


def to_array(value: Any, where: str) -> Array:
    """Convert a tensor, an array or a list to an array.

    Raises:
        SchemaError: The value is none of these.
    """
    if not isinstance(value, list | tuple | range | int):
        return as_array(value, where)
    try:
        return np.asarray(value)
    except (ValueError, TypeError, OverflowError) as error:  # rows of several lengths, tensors among numbers
        raise SchemaError(f"{where} is a {type(value).__name__} that is not an array: {error}") from error


def to_ids(value: Any, where: str) -> IntArray:
    """Convert ids to int64[n]; one integer becomes a list of one.

    Raises:
        SchemaError: The ids are not integers in one dimension.
    """
    array = np.atleast_1d(to_array(value, where))
    if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
        raise SchemaError(f"{where} is {array.dtype}{list(array.shape)}; wanted integers in one dimension")
    if array.dtype == np.uint64 and int(array.max(initial=0)) > MAX_KEY:
        raise SchemaError(f"{where} has {array.max()}; ids are at most {MAX_KEY}")
    return array.astype(np.int64, copy=False)
