"""Messages of sampling servers: encodes batches and options of loaders as JSON and arrays.

Values without a JSON form are tagged objects: ``{"tuple": […]}``, ``{"map": [[key, value], …]}``,
``{"array": number}``, ``{"float": "nan"}``, and ``{"record": name, "fields": {…}}`` for the few records that loaders
accept. The format has no other objects, so a request can create no others on a server.
"""

from __future__ import annotations

import hashlib
import json
import math
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, cast, get_args

import numpy as np

from hopstream.arrays import Array, Column, IntArray, RaggedArray, to_array
from hopstream.buffers import Buffers
from hopstream.dataset.settings import TimeUnit
from hopstream.errors import FormatError, HopstreamError, SettingsError
from hopstream.load.batch import MiniBatch, SampledBatch
from hopstream.sample.negatives import NegativeSampling
from hopstream.sample.ppr_settings import PPRSettings
from hopstream.schema import NUMERIC_DTYPES, Direction
from hopstream.store.contract import Links
from hopstream.transport.messages import Frame

RECORDS: dict[str, Callable[..., Any]] = {
    one.__name__: one for one in (Links, NegativeSampling, PPRSettings, RaggedArray)
}
"""Constructors of the records that may be sent, by the name of the dataclass. Other modules add their own."""
INPUT_OPTIONS = frozenset(
    {
        "seeds", "anchors", "labels", "input_time", "edge_label_index", "edge_label", "edge_label_time", "rank",
        "world_size", "num_batches", "seed_weights", "clusters",
    }
)  # fmt: skip
"""Options for the input of one compute rank; all other options belong to the backend and are shared."""
TIME_UNITS = frozenset((unit, 1) for unit in get_args(TimeUnit))
LONG_LIST = 256
"""Lists of more numbers are sent as an array."""
MAX_DEPTH = 32


def encode_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], list[Array]]:
    """Return a JSON object, and copies of the arrays that it names by number.

    Raises:
        SettingsError: The type of an option cannot be sent.
    """
    arrays: list[Array] = []
    return {name: _encode(name, value, arrays, MAX_DEPTH) for name, value in options.items()}, arrays


def decode_options(value: object, arrays: Sequence[Array]) -> dict[str, Any]:
    """Decode what ``encode_options`` encodes; arrays are copies.

    Raises:
        FormatError: The value is malformed.
        SettingsError: A record refuses its fields.
    """
    if not isinstance(value, dict):
        raise FormatError(f"options are a {type(value).__name__}; they must be an object")
    # Copies do not keep the memory of the request alive, and are aligned.
    copies = [np.array(array) for array in arrays]
    return {str(name): _decode(option, copies, MAX_DEPTH) for name, option in value.items()}


def recipe_digest(loader: str, options: object, arrays: Sequence[Array]) -> str:
    """Return a hex digest of a loader's class and encoded options."""
    digest = hashlib.blake2b(json.dumps([loader, options], sort_keys=True).encode(), digest_size=16)
    for array in arrays:
        digest.update(f"{array.dtype.name}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _encode(name: str, value: Any, arrays: list[Array], depth: int) -> Any:  # noqa: PLR0911 - one return per kind
    if depth == 0:
        raise SettingsError(f"{name} is nested more than {MAX_DEPTH} deep, which cannot be sent to a server")
    depth -= 1
    value = value.item() if isinstance(value, np.generic) else value
    value = value.value if isinstance(value, Enum) else value
    if type(value).__name__ == "dtype" and type(value).__module__ == "torch":
        return str(value).removeprefix("torch.")
    if value is None or isinstance(value, bool | str | int | float):
        is_json = not isinstance(value, float) or math.isfinite(value)
        return value if is_json else {"float": repr(value)}
    if isinstance(value, Mapping):
        return {"map": [[_encode(name, one, arrays, depth) for one in pair] for pair in value.items()]}
    kind = type(value).__name__  # by name, because PyG has a NegativeSampling of its own
    if kind in RECORDS and is_dataclass(value):
        found = {f.name: _encode(name, getattr(value, f.name), arrays, depth) for f in fields(value) if f.init}
        return {"record": kind, "fields": found}
    if isinstance(value, tuple):
        return {"tuple": [_encode(name, item, arrays, depth) for item in value]}
    if isinstance(value, list) and not _is_long(value):
        return [_encode(name, item, arrays, depth) for item in value]
    return _encode_array(name, value, arrays)


def _is_long(value: list[Any]) -> bool:
    return len(value) > LONG_LIST and all(isinstance(item, int | float | np.number) for item in value)


def _encode_array(name: str, value: Any, arrays: list[Array]) -> Any:
    try:
        array = to_array(value)
    except (TypeError, ValueError) as error:
        raise SettingsError(f"{name} is a {type(value).__name__}, which cannot be sent to a server: {error}") from error
    if array.dtype.kind in "US":
        return array.tolist()
    if array.dtype.kind == "M" and np.datetime_data(array.dtype) in TIME_UNITS:
        arrays.append(array.astype(array.dtype.newbyteorder("="), order="C").view(np.int64))
        return {"times": [len(arrays) - 1, np.datetime_data(array.dtype)[0]]}
    if array.dtype.name not in NUMERIC_DTYPES:
        raise SettingsError(f"{name} is a {type(value).__name__} ({array.dtype}), which cannot be sent to a server")
    arrays.append(np.array(array, array.dtype.newbyteorder("="), order="C"))
    return {"array": len(arrays) - 1}


def _decode(value: Any, arrays: Sequence[Array], depth: int) -> Any:
    if depth == 0:
        raise FormatError(f"options are nested more than {MAX_DEPTH} deep")
    if isinstance(value, list):
        return [_decode(item, arrays, depth - 1) for item in value]
    if not isinstance(value, dict):
        return value
    try:
        return _decode_tagged(value, arrays, depth - 1)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        if isinstance(error, HopstreamError):
            raise
        raise FormatError(f"{reprlib.repr(value)} is not an option: {reprlib.repr(error)}") from error


def _decode_tagged(value: dict[str, Any], arrays: Sequence[Array], depth: int) -> Any:
    if not value:
        raise FormatError("an empty object is not an option")
    tag, content = next(iter(value.items()))
    if tag == "tuple":
        return tuple(_decode(item, arrays, depth) for item in content)
    if tag == "map":
        return {_decode(key, arrays, depth): _decode(item, arrays, depth) for key, item in content}
    if tag == "array" and type(content) is int and content >= 0:
        return arrays[content]
    if tag == "times" and type(content[0]) is int and content[0] >= 0 and (content[1], 1) in TIME_UNITS:
        return arrays[content[0]].view(f"datetime64[{content[1]}]")
    if tag == "float" and content in ("nan", "inf", "-inf"):
        return float(content)
    if tag == "record":
        given = {str(name): _decode(item, arrays, depth) for name, item in value["fields"].items()}
        return RECORDS[content](**given)
    raise FormatError(f"{reprlib.repr(value)} is not an option")


DIRECTIONS: dict[str, Direction] = {one: one for one in get_args(Direction)}
FEATURE_FIELDS = ("node_features", "edge_features")
COUNT_FIELDS = ("num_sampled_nodes", "num_sampled_edges")
INT_FIELDS: dict[str, tuple[str, ...]] = {
    "batch": ("node_keys", "edge_index", "edge_keys"), "sampled": ("node_ids", "edge_index", "edge_ids", "edge_keys"),
}  # fmt: skip
"""Names of the fields with int64 arrays by type, for each kind of message."""


def encode_batch(batch: MiniBatch | SampledBatch) -> Frame:
    """Encode a batch as ``{"batch": …}``, or a batch without columns as ``{"sampled": …}``.

    The header names arrays by number.
    """
    writer, kind = _Writer(), "batch" if isinstance(batch, MiniBatch) else "sampled"
    fields: dict[str, Any] = {"epoch": batch.epoch, "index": batch.index, "seed_type": batch.seed_type}
    fields["input_ids"] = writer.add(batch.input_ids)
    for name in INT_FIELDS[kind]:
        add = writer.add_slots if name == "edge_index" else writer.add
        fields[name] = [[entity, add(array)] for entity, array in getattr(batch, name).items()]
    if isinstance(batch, MiniBatch):
        for name in FEATURE_FIELDS:
            fields[name] = [[entity, writer.columns(columns)] for entity, columns in getattr(batch, name).items()]
    else:
        fields["directions"] = [[entity, direction] for entity, direction in batch.directions.items()]
        fields["seed_keys"] = None if batch.seed_keys is None else writer.add(batch.seed_keys)
    for name in COUNT_FIELDS:
        counts = getattr(batch, name)
        fields[name] = None if counts is None else [[entity, list(map(int, of))] for entity, of in counts.items()]
    fields["trees"] = None if batch.trees is None else [[entity, writer.add(a)] for entity, a in batch.trees.items()]
    fields["attributes"] = [[entity, writer.columns(columns)] for entity, columns in batch.attributes.items()]
    return Frame({kind: fields}, writer.arrays)


def decode_batch(frame: Frame, buffers: Buffers) -> MiniBatch | SampledBatch:
    """Decode a batch; memory for ``edge_index`` comes from ``buffers``, other arrays are the frame's.

    Raises:
        FormatError: The frame holds no batch.
    """
    kind = "sampled" if "sampled" in frame.header else "batch"
    try:
        return _Reader(frame, buffers).batch(kind, cast(dict[str, Any], frame.header.get(kind)))
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"a server's message is not a batch: {reprlib.repr(error)}") from error


class _Writer:
    def __init__(self) -> None:
        self.arrays: list[Array] = []

    def add(self, array: Array) -> int:
        self.arrays.append(array)
        return len(self.arrays) - 1

    def add_slots(self, slots: IntArray) -> int:
        """Add an array of slots, as uint32 if they fit."""
        fits = slots.min(initial=0) >= 0 and slots.max(initial=0) < 1 << 32
        return self.add(slots.astype(np.uint32) if fits else slots)

    def columns(self, columns: Mapping[str, Column]) -> list[list[Any]]:
        return [[name, self._column(column)] for name, column in columns.items()]

    def _column(self, column: Column) -> Any:
        if isinstance(column, RaggedArray):
            return [self.add(column.values), self.add(column.offsets), column.is_string]
        return self.add(column)


class _Reader:
    def __init__(self, frame: Frame, buffers: Buffers) -> None:
        self._frame, self._buffers = frame, buffers
        self._taken: set[int] = set()

    def batch(self, kind: str, fields: dict[str, Any]) -> MiniBatch | SampledBatch:
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
        for name in INT_FIELDS[kind]:
            read = self._slots if name == "edge_index" else self._ints
            found[name] = {_owner(t): read(number) for t, number in fields[name]}
        if kind == "batch":
            for name in FEATURE_FIELDS:
                found[name] = {_owner(t): self._columns(columns) for t, columns in fields[name]}
            return MiniBatch(**found)
        found["directions"] = {_owner(t): DIRECTIONS[direction] for t, direction in fields["directions"]}
        found["seed_keys"] = None if fields["seed_keys"] is None else self._ints(fields["seed_keys"])
        return SampledBatch(**found)

    def _by_owner(self, pairs: list[list[Any]]) -> dict[Any, IntArray]:
        return {_owner(entity): self._ints(number) for entity, number in pairs}

    def _columns(self, pairs: list[list[Any]]) -> dict[str, Column]:
        return {str(name): self._column(column) for name, column in pairs}

    def _column(self, column: Any) -> Column:
        if isinstance(column, list):
            values, offsets, is_string = column
            return _ragged(self._array(values), self._ints(offsets), bool(is_string))
        return self._array(column)

    def _ints(self, number: Any) -> IntArray:
        return _int64(self._array(number), number)

    def _slots(self, number: Any) -> IntArray:
        slots = self._array(number)
        if slots.dtype == np.uint32:
            slots, narrow = self._buffers.take(slots.shape, np.int64), slots
            slots[...] = narrow
        return _int64(slots, number)

    def _array(self, number: Any) -> Array:
        if type(number) is not int or number < 0 or number in self._taken:  # a batch is no larger than its message
            raise FormatError(f"a batch names array {reprlib.repr(number)}, which is invalid or named twice")
        self._taken.add(number)
        return self._frame.arrays[number]


def _int64(array: Array, number: object) -> IntArray:
    if array.dtype != np.int64:
        raise FormatError(f"array {number} of a batch is {array.dtype}; it must be int64")
    return array


def _ragged(values: Array, offsets: IntArray, is_string: bool) -> RaggedArray:
    has_ends = offsets.ndim == 1 and len(offsets) and offsets[0] == 0 and offsets[-1] == len(values)
    if not has_ends or (np.diff(offsets) < 0).any():
        raise FormatError("a ragged column of a batch has offsets that do not ascend from 0 to the number of values")
    return RaggedArray(values, offsets, is_string)


def _owner(value: Any) -> Any:
    """Decode a node type, an edge type, or None for the whole batch."""
    if isinstance(value, list):
        source, relation, destination = value
        return (str(source), str(relation), str(destination))
    return value if value is None else str(value)
