"""Access to many parts' mapped arrays from kernels by address, and prefetching.

A part is a set of mapped arrays. A kernel that works across parts takes a table of addresses and lengths, one row per
part. With a tuple of arrays, numba would compile a new kernel for every number of parts. ``array_at`` turns a row of
the table back into an array, so the bounds-checked test run checks those accesses too. It does not check
``copy_bytes``: a kernel that calls it must check the bounds itself, in every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from hopstream.kernels.compiling import inlined

ZERO: Any = np.int64(0)
"""A zero that is no literal: for a literal argument numba compiles another version of a function."""


@intrinsic
def _pointer(typing_context: Any, address: Any) -> Any:
    signature = types.voidptr(types.int64)

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return signature, emit


@inlined
def array_at(address: np.int64, length: np.int64, dtype: Any) -> np.ndarray:
    """Return the one-dimensional array of ``length`` items at an address."""
    return carray(_pointer(address), (length,), dtype)


@intrinsic
def prefetch_address(typing_context: Any, address: Any) -> Any:
    """Prefetch the cache line at an address; any address is safe."""
    signature = types.void(types.int64)

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte_pointer = ir.IntType(8).as_pointer()
        int32 = ir.IntType(32)
        function_type = ir.FunctionType(ir.VoidType(), [byte_pointer, int32, int32, int32])
        function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0i8")
        pointer = builder.inttoptr(arguments[0], byte_pointer)
        builder.call(function, [pointer, int32(0), int32(3), int32(1)])
        return context.get_dummy_value()

    return signature, emit


@intrinsic
def copy_bytes(typing_context: Any, target: Any, source: Any, num_bytes: Any) -> Any:
    """Copy bytes between addresses that do not overlap, by the ``memcpy`` of the C library."""
    signature = types.void(types.int64, types.int64, types.int64)

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to, of, size = arguments
        byte_pointer = ir.IntType(8).as_pointer()
        cgutils.raw_memcpy(builder, builder.inttoptr(to, byte_pointer), builder.inttoptr(of, byte_pointer), size, 1)
        return context.get_dummy_value()

    return signature, emit


def address_of(array: NDArray[Any]) -> int:
    """Return the address of the first item; ``array.ctypes.data`` takes several times as long."""
    address: int = array.__array_interface__["data"][0]
    return address


def address_table(arrays: Sequence[NDArray[Any] | None]) -> NDArray[np.int64]:
    """Return int64[len(arrays), 2], address and length of each array; zeros for None and empty arrays.

    The caller must keep the arrays alive while it uses the table.
    """
    table = np.zeros((len(arrays), 2), np.int64)
    for row, array in enumerate(arrays):
        if array is not None and array.size:
            table[row] = address_of(array), array.size
    return table


@inlined
def find_part(offsets: np.ndarray, identifier: np.int64) -> np.int64:
    """Find the part whose range ``[offsets[p], offsets[p + 1])`` holds an id.

    A binary search without branches: they would be mispredicted for ids of random parts, which made gathering rows of
    two parts 1.6 times as slow as of one.
    """
    part = np.int64(0)
    num_parts = np.int64(len(offsets) - 1)
    while num_parts > 1:
        half = num_parts >> 1
        part += half * np.int64(offsets[np.uint64(part + half)] <= identifier)
        num_parts -= half
    return part
