"""Reader of ids and rows that a user passes to the stores of a part."""

from __future__ import annotations

import reprlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hopstream.errors import IdRangeError, SchemaError


def ids_given(value: Any, what: str) -> Tensor:
    """Read ids as int64 of any shape from a tensor, an array, a list or one integer.

    Args:
        value: The user's value.
        what: Name of the value in messages, for example ``index``.

    Raises:
        SchemaError: The value is none of these.
    """
    try:
        ids = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SchemaError(f"{what} is {reprlib.repr(value)}; wanted ids: int64[n]") from error
    if ids.numel() and (ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool):
        raise SchemaError(f"{what} is {ids.dtype}{list(ids.shape)}; wanted ids: int64[n]")
    return ids.long()


def id_list_given(value: Any, what: str) -> Tensor:
    """Read ids as int64[n]; errors are those of ``ids_given``."""
    ids = ids_given(value, what)
    if ids.dim() != 1:
        raise SchemaError(f"{what} is {ids.dtype}{list(ids.shape)}; wanted ids: int64[n]")
    return ids


def check_ids(ids: Tensor, num_ids: int, what: str, of: str) -> Tensor:
    """Check the range of ids and return them.

    Args:
        ids: int64 of any shape.
        num_ids: Number of ids; valid ids are ``0..num_ids-1``.
        what: Name of the ids in messages, for example ``index``.
        of: The kind of the items, for example ``nodes``.

    Raises:
        IdRangeError: An id is out of range.
    """
    if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < num_ids:
        there = f"0..{num_ids - 1}" if num_ids else "none"
        raise IdRangeError(f"{what} has ids in {int(ids.min())}..{int(ids.max())}; {of} are {there}")
    return ids


def rows_given(value: Any, what: str) -> Tensor:
    """Read a tensor or an array with a row for each node or edge, as a tensor.

    Raises:
        SchemaError: ``value`` is neither, or has no dimension.
    """
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        value = torch.from_numpy(value)
    if not isinstance(value, Tensor) or value.dim() == 0:
        got = "a single number" if isinstance(value, Tensor) else type(value).__name__
        raise SchemaError(f"{what} is {got}; wanted a tensor with a row for each")
    return value
