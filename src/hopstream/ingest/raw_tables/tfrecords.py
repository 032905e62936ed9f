"""Reads the rows of a TFRecord file of ``tf.Example`` messages as columns of given schemas.

A message has a flat list for each column, of 64-bit integers, of float32 or of bytes. The schema says
how many values make a row, and their dtype; the file does not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hopstream.arrays import Array, IntArray, RaggedArray
from hopstream.errors import FormatError, SchemaError, quoted
from hopstream.kernels.example_lists import MISSING
from hopstream.kernels.examples import BYTES_LIST, FLOAT_LIST, INT64_LIST
from hopstream.schema import FeatureSchema
from hopstream.tfgnn.example_lists import LocatedLists, Messages, NamedLists, locate
from hopstream.tfgnn.tfrecord import read_record_blocks

KIND_NAMES = {BYTES_LIST: "strings", FLOAT_LIST: "reals", INT64_LIST: "integers"}


def read_rows(
    path: Path, shown: str, columns: Mapping[str, FeatureSchema], other_names: Mapping[str, tuple[str, ...]],
    block_bytes: int | None,
) -> Iterator[dict[str, pa.Array]]:  # fmt: skip
    """Read some columns, block by block.

    Args:
        path: The file.
        shown: What messages call it.
        columns: What each column is to hold. One of strings may also be of integers, which become their digits.
        other_names: By column, other features to take where a message has none of its name.
        block_bytes: About what a block takes; None for as much as is fast.

    Yields:
        Column name to an Arrow array of numbers, of strings, of lists, or of lists of fixed size. Without columns, one
        of nulls under an empty name tells the number of rows.

    Raises:
        FormatError: The file is damaged, or a record is no ``tf.Example``.
        ChecksumError: A record is not what was written.
        SchemaError: A record has no value for a column, or values of another kind, number or range.
    """
    names = sorted({name for column in columns for name in (column, *other_names.get(column, ()))})
    for block in read_record_blocks(path, block_bytes):
        where = _Where(shown, block.first)
        located = where.located(Messages(block.data, block.bounds), names)
        arrays = {"": pa.nulls(len(block.bounds))}
        for column, schema in columns.items():
            places = [names.index(name) for name in (column, *other_names.get(column, ()))]
            arrays[column] = _Column(where, column, schema).array(located.first_there(places))
        yield arrays


class _Where:
    """Names the records of a block in errors."""

    def __init__(self, shown: str, first: int) -> None:
        self._shown, self._first = shown, first

    def record(self, row: int) -> str:
        return f"{self._shown} record {self._first + row}"

    def located(self, messages: Messages, names: Sequence[str]) -> LocatedLists:
        try:
            return locate(messages, names)
        except FormatError as error:
            raise self.renamed(error, "is ") from error

    def renamed(self, error: FormatError, verb: str) -> FormatError:
        """An error that names a message, about its record."""
        message, _, what = str(error).removeprefix("message ").partition(": ")
        return FormatError(f"{self.record(int(message))} {verb}{what}")


class _Column:
    """A column that is read out of the messages of a block."""

    def __init__(self, where: _Where, name: str, schema: FeatureSchema) -> None:
        self._where, self._name, self._schema = where, name, schema
        is_real = schema.dtype.startswith("float")
        self._kind = BYTES_LIST if schema.is_string else FLOAT_LIST if is_real else INT64_LIST

    def array(self, located: LocatedLists) -> pa.Array:
        """The values of one list of each message."""
        try:
            (lists,) = located.read([self._kind_of(located)])
        except FormatError as error:
            raise self._where.renamed(error, f"has a damaged feature {self._name!r}: ") from error
        per_row = math.prod(self._schema.shape)
        lengths = lists.counts
        wrong = lengths % max(1, per_row) != 0 if self._schema.is_ragged else lengths != per_row
        if wrong.any():
            self._refuse_number(int(np.argmax(wrong)), lists)
        if isinstance(lists.values, RaggedArray):
            return self._strings(lists.values)
        if self._schema.is_string:
            return pa.array(lists.values).cast(pa.large_string())
        values = pa.array(self._converted(lists.values, lists.offsets))
        for width in reversed(self._schema.shape):
            values = pa.FixedSizeListArray.from_arrays(values, width)
        if self._schema.is_ragged:
            return pa.LargeListArray.from_arrays(pa.array(lists.offsets // max(1, per_row)), values)
        return values

    def _kind_of(self, located: LocatedLists) -> int:
        """The kind of all lists that are not empty."""
        kinds = np.where(located.counts[0] == 0, MISSING, located.found[0, :, 0])
        present = np.unique(kinds[kinds != MISSING]).tolist()
        if self._schema.is_string and present == [INT64_LIST]:
            return INT64_LIST
        if present and present != [self._kind]:
            other = next(kind for kind in present if kind != self._kind)
            raise SchemaError(
                f"{self._where.record(int(np.argmax(kinds == other)))}: feature {self._name!r} holds "
                f"{KIND_NAMES[other]}; the schema says {self._schema}"
            )
        return self._kind

    def _refuse_number(self, row: int, lists: NamedLists) -> None:
        place = self._where.record(row)
        if not lists.is_there[row]:
            raise SchemaError(f"{place} has no feature {self._name!r}; every row of the table has one")
        per_row = math.prod(self._schema.shape)
        wanted = f"a multiple of {per_row}" if self._schema.is_ragged else str(per_row)
        raise SchemaError(f"{place}: feature {self._name!r} has {lists.counts[row]} values; the schema says {wanted}")

    def _strings(self, strings: RaggedArray) -> pa.Array:
        buffers = [None, pa.py_buffer(strings.offsets), pa.py_buffer(strings.values)]
        array = pa.Array.from_buffers(pa.large_string(), len(strings), buffers)
        try:
            array.validate(full=True)
        except pa.ArrowInvalid as error:
            for row in range(len(strings)):
                raw = strings.values[strings.offsets[row] : strings.offsets[row + 1]].tobytes()
                try:
                    raw.decode()
                except UnicodeDecodeError:
                    raise SchemaError(
                        f"{self._where.record(row)}: feature {self._name!r} is {quoted(raw)}, which is not UTF-8; "
                        "Hopstream holds text only"
                    ) from error
            raise
        return array

    def _converted(self, values: Array, offsets: IntArray) -> Array:
        """The values as the dtype of the schema.

        Raises:
            SchemaError: The dtype cannot hold a value.
        """
        dtype: np.dtype[Any] = self._schema.numpy_dtype
        if dtype == np.bool_:
            return np.not_equal(values, 0)
        if dtype == np.uint64:  # kept bit by bit
            return values.view(np.uint64)
        with np.errstate(over="ignore"):
            converted = values.astype(dtype, copy=False)
        is_lost = np.isinf(converted) & ~np.isinf(values) if dtype.kind == "f" else converted != values
        if is_lost.any():
            place = int(np.argmax(is_lost))
            row = int(np.searchsorted(offsets, place, side="right")) - 1
            raise SchemaError(
                f"{self._where.record(row)}: feature {self._name!r} has {values[place].item()!r}, which {dtype} cannot "
                "hold; give it a wider dtype in the schema"
            )
        return converted
