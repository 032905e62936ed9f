"""Form in which a mini-batch travels from the server that made it to the trainer that consumes it."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any, TypeVar, cast

import numpy as np

from hopstream.arrays import Array, Column, IntArray, RaggedArray
from hopstream.errors import FormatError
from hopstream.load.batch import MiniBatch
from hopstream.load.buffers import Buffers
from hopstream.schema import EdgeType
from hopstream.store.wire import Bytes, Frame, encode_frame

Owner = str | EdgeType | None
V = TypeVar("V")
INT_FIELDS = ("node_keys", "edge_index", "edge_keys")
FEATURE_FIELDS = ("node_features", "edge_features")
COUNT_FIELDS = ("num_sampled_nodes", "num_sampled_edges")


def encode_batch(batch: MiniBatch) -> Bytes:
    """The frame of a batch: ``{"batch": …}`` and its arrays, each named by its number."""
    writer = _Writer()
    fields: dict[str, Any] = {"epoch": batch.epoch, "index": batch.index, "seed_type": batch.seed_type}
    fields["input_ids"] = writer.add(batch.input_ids)
    for name in INT_FIELDS:
        fields[name] = [[owner, writer.add(array)] for owner, array in getattr(batch, name).items()]
    for name in FEATURE_FIELDS:
        fields[name] = [[owner, writer.columns(columns)] for owner, columns in getattr(batch, name).items()]
    for name in COUNT_FIELDS:
        counts = getattr(batch, name)
        fields[name] = None if counts is None else [[owner, list(map(int, of))] for owner, of in counts.items()]
    fields["trees"] = None if batch.trees is None else [[owner, writer.add(a)] for owner, a in batch.trees.items()]
    fields["attributes"] = [[owner, writer.columns(columns)] for owner, columns in batch.attributes.items()]
    return encode_frame({"batch": fields}, writer.arrays)


def decode_batch(frame: Frame, buffers: Buffers) -> MiniBatch:
    """Read what ``encode_batch`` wrote, into arrays of ``buffers``.

    Raises:
        FormatError: The frame holds no batch.
    """
    fields = frame.header.get("batch")
    try:
        return _Reader(frame, buffers).batch(cast(dict[str, Any], fields))
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"a server's message is no batch: {reprlib.repr(error)}") from error


class _Writer:
    def __init__(self) -> None:
        self.arrays: list[Array] = []

    def add(self, array: Array) -> int:
        self.arrays.append(array)
        return len(self.arrays) - 1

    def columns(self, columns: Mapping[str, Column]) -> list[list[Any]]:
        return [[name, self._column(column)] for name, column in columns.items()]

    def _column(self, column: Column) -> Any:
        if isinstance(column, RaggedArray):
            return [self.add(column.values), self.add(column.offsets), column.is_string]
        return self.add(column)


class _Reader:
    def __init__(self, frame: Frame, buffers: Buffers) -> None:
        self._frame = frame
        self._buffers = buffers
        self._taken: set[int] = set()

    def batch(self, fields: dict[str, Any]) -> MiniBatch:
        found: dict[str, Any] = {
            name: None if fields[name] is None else {_owner(t): [int(n) for n in of] for t, of in fields[name]}
            for name in COUNT_FIELDS
        }
        found |= {
            "epoch": int(fields["epoch"]),
            "index": int(fields["index"]),
            "seed_type": _owner(fields["seed_type"]),
            "input_ids": self._ints(fields["input_ids"]),
            "trees": None if fields["trees"] is None else self._by_owner(fields["trees"]),
            "attributes": {_owner(t): self._columns(columns) for t, columns in fields["attributes"]},
        }
        for name in INT_FIELDS:
            found[name] = self._by_owner(fields[name])
        for name in FEATURE_FIELDS:
            found[name] = {_owner(t): self._columns(columns) for t, columns in fields[name]}
        return MiniBatch(**found)

    def _by_owner(self, pairs: list[list[Any]]) -> dict[Any, IntArray]:
        return {_owner(owner): self._ints(number) for owner, number in pairs}

    def _columns(self, pairs: list[list[Any]]) -> dict[str, Column]:
        return {str(name): self._column(column) for name, column in pairs}

    def _column(self, column: Any) -> Column:
        if isinstance(column, list):
            values, offsets, is_string = column
            return _ragged(self._array(values), self._ints(offsets), bool(is_string))
        return self._array(column)

    def _ints(self, number: Any) -> IntArray:
        array = self._array(number)
        if array.dtype != np.int64:
            raise FormatError(f"array {number} of a batch is {array.dtype}; it must be int64")
        return array

    def _array(self, number: Any) -> Array:
        if type(number) is not int or number < 0 or number in self._taken:  # so it is no larger than its message
            raise FormatError(f"a batch names array {reprlib.repr(number)}, or names it twice")
        self._taken.add(number)
        sent = self._frame.arrays[number]
        array = self._buffers.take(sent.shape, sent.dtype)
        array[...] = sent
        return array


def _ragged(values: Array, offsets: IntArray, is_string: bool) -> RaggedArray:
    has_ends = offsets.ndim == 1 and len(offsets) and offsets[0] == 0 and offsets[-1] == len(values)
    if not has_ends or (np.diff(offsets) < 0).any():
        raise FormatError("a ragged column of a batch has offsets that do not ascend from 0 to the number of values")
    return RaggedArray(values, offsets, is_string)


def _owner(value: Any) -> Any:
    """A node type, an edge type, or None for the batch as a whole."""
    if isinstance(value, list):
        source, relation, destination = value
        return (str(source), str(relation), str(destination))
    return value if value is None else str(value)
