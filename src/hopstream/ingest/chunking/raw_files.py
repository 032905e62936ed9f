"""Keeps columns on the disk between two steps.

A column is a file of its values alone, so that many tasks can read or write parts of it; the caller knows the dtype.
A folder of columns comes into its place whole.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from hopstream.arrays import Array
from hopstream.errors import StateError


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder that comes into its place when all is written; one that is there already holds the same, and stays."""
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        if folder.exists():
            shutil.rmtree(partial)
        else:
            partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def append_values(file: IO[bytes], values: Array) -> None:
    """Write an array's values at the end of a file."""
    if values.size:
        file.write(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)


def read_values(path: Path, dtype: np.dtype[Any] | type[Any], start: int, count: int, width: int = 1) -> Array:
    """Some values of a column.

    Args:
        path: The file.
        dtype: Dtype of its values.
        start: The first row.
        count: How many rows.
        width: Values in each row.

    Returns:
        dtype[count * width].

    Raises:
        StateError: The file ends before, as after a power cut.
    """
    values = np.empty(count * width, dtype)
    left = memoryview(values.view(np.uint8))  # type: ignore[arg-type]
    if not count:
        return values
    with path.open("rb", buffering=0) as file:
        file.seek(start * width * values.itemsize)
        while len(left):
            num_bytes = file.readinto(left)
            if not num_bytes:
                raise StateError(f"{path} ends before row {start + count}; remove its folder and start again")
            left = left[num_bytes:]
    return values


def write_values(path: Path, start: int, values: Array) -> None:
    """Write values into a file that is there, from a value's place on."""
    left = memoryview(np.ascontiguousarray(values).view(np.uint8))  # type: ignore[arg-type]
    offset = start * values.itemsize
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        while len(left):
            written = os.pwrite(descriptor, left, offset)
            left, offset = left[written:], offset + written
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        os.close(descriptor)


def make_file(path: Path, num_bytes: int) -> None:
    """Make a file of zeros, which takes no room until it is written to."""
    with path.open("wb") as file:
        file.truncate(num_bytes)
