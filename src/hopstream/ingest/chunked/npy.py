"""Reads stretches of rows of an ``.npy`` file.

Files are read, not mapped: mapped pages count as resident memory, and rows that are read once need no map.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from hopstream.arrays import BROKEN_ARRAY_ERRORS, Array, read_header
from hopstream.errors import FormatError, SchemaError
from hopstream.schema import NUMERIC_DTYPES


@dataclass(frozen=True, slots=True, kw_only=True)
class NpyFile:
    """One ``.npy`` file whose header has been read.

    Attributes:
        path: The file.
        shown: What messages call it.
        num_rows: Length of the first dimension.
        dtype: As the file has it, of either byte order.
        shape: Shape of one row.
        is_fortran: The first dimension is the one that varies quickest.
        first_byte: Where values start.
    """

    path: Path
    shown: str
    num_rows: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_fortran: bool
    first_byte: int

    def read_into(self, start: int, out: Array) -> None:
        """Fill an array in C order, of this machine's byte order, with rows from ``start`` on.

        Raises:
            FormatError: The file is shorter than it was.
        """
        if not out.size:
            return
        is_foreign = not self.dtype.isnative
        try:
            with self.path.open("rb", buffering=0) as file:
                if self.is_fortran:
                    self._read_columns(file, start, out)
                else:
                    file.seek(self.first_byte + start * math.prod(self.shape) * self.dtype.itemsize)
                    self._fill(file, out)
        except OSError as error:
            raise FormatError(f"{self.shown} cannot be read ({error})") from error
        if is_foreign:
            out.byteswap(inplace=True)

    def _read_columns(self, file: IO[bytes], start: int, out: Array) -> None:
        columns = np.empty((math.prod(self.shape), len(out)), out.dtype)
        for number, column in enumerate(columns):
            file.seek(self.first_byte + (number * self.num_rows + start) * self.dtype.itemsize)
            self._fill(file, column)
        out[:] = columns.reshape(*reversed(self.shape), len(out)).T

    def _fill(self, file: IO[bytes], out: Array) -> None:
        room = out.reshape(-1).view(np.uint8).data
        done = 0
        while done < len(room):  # one call reads no more than 2 GB
            got = file.readinto(room[done:])  # type: ignore[attr-defined]
            if not got:
                raise FormatError(f"{self.shown} is shorter than when it was opened; was it replaced?")
            done += got


def open_npy(path: Path, shown: str) -> NpyFile:
    """Read the header of an ``.npy`` file and compare it with the file's size.

    Raises:
        FormatError: The file is damaged or truncated.
        SchemaError: Its dtype cannot be stored.
    """
    try:
        with path.open("rb") as file:
            shape, is_fortran, dtype = read_header(file)
            first_byte = file.tell()
            num_bytes = path.stat().st_size
    except BROKEN_ARRAY_ERRORS as error:
        raise FormatError(f"{shown} cannot be read as .npy ({error}); it may be truncated") from error
    wanted = first_byte + math.prod(shape) * dtype.itemsize
    if wanted != num_bytes:
        raise FormatError(f"{shown} is {num_bytes} bytes; its header says {wanted}; it may be truncated")
    if dtype.name not in NUMERIC_DTYPES:
        raise SchemaError(f"{shown} is {dtype}{list(shape)}; dtypes are {', '.join(NUMERIC_DTYPES)}")
    if not shape:
        raise SchemaError(f"{shown} is a scalar; wanted an array with one row per node or edge")
    return NpyFile(
        path=path,
        shown=shown,
        num_rows=shape[0],
        dtype=dtype,
        shape=tuple(shape[1:]),
        is_fortran=is_fortran and len(shape) > 1,
        first_byte=first_byte,
    )
