"""Reads what a user gives to the stores of a part as ids or as rows."""

from __future__ import annotations

import reprlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hopstream.errors import IdRangeError, SchemaError


def ids_given(value: Any, what: str) -> Tensor:
    """Ids, int64 of any shape: a tensor, an array, a list or one integer.

    Args:
        value: What was given.
        what: What messages call it, for example ``index``.

    Raises:
        SchemaError: It is none of these.
    """
    try:
        ids = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SchemaError(f"{what} is {reprlib.repr(value)}; wanted ids: int64[n]") from error
    if ids.numel() and (ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool):
        raise SchemaError(f"{what} is {ids.dtype}{list(ids.shape)}; wanted ids: int64[n]")
    return ids.long()


def id_list_given(value: Any, what: str) -> Tensor:
    """int64[n], ids in one dimension; as ``ids_given``."""
    ids = ids_given(value, what)
    if ids.dim() != 1:
        raise SchemaError(f"{what} is {ids.dtype}{list(ids.shape)}; wanted ids: int64[n]")
    return ids


def check_ids(ids: Tensor, num_ids: int, what: str, of: str) -> Tensor:
    """The same ids.

    Args:
        ids: int64 of any shape.
        num_ids: How many there are: they are ``0..num_ids-1``.
        what: What messages call them, for example ``index``.
        of: What they are ids of, for example ``nodes``.

    Raises:
        IdRangeError: One of them is of nothing.
    """
    if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < num_ids:
        there = f"0..{num_ids - 1}" if num_ids else "none"
        raise IdRangeError(f"{what} has ids in {int(ids.min())}..{int(ids.max())}; {of} are {there}")
    return ids


def rows_given(value: Any, what: str) -> Tensor:
    """A tensor, or an array as one, with a row for each node or edge.

    Raises:
        SchemaError: It is none.
    """
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        value = torch.from_numpy(value)
    if not isinstance(value, Tensor) or value.dim() == 0:
        got = "a single number" if isinstance(value, Tensor) else type(value).__name__
        raise SchemaError(f"{what} is {got}; wanted a tensor with a row for each")
    return value
