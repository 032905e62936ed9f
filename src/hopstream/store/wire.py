"""Writes and reads requests and answers as bytes, in pieces that are small enough to be sent.

A message is a *frame*: a fixed prefix, a JSON header, and raw little-endian arrays that the header describes, each at
a multiple of 8 bytes from the frame's start. A request is one frame, the ticket of a Flight ``DoGet``. An answer is a
stream of frames, each the only value of a one-row record batch. Nothing on the wire is executable, and a frame's arrays
are views of the bytes received, so its header can cause no allocation.
"""

from __future__ import annotations

import json
import reprlib
import struct
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hopstream import errors
from hopstream.arrays import Array, IntArray
from hopstream.dataset.book import Entity
from hopstream.errors import FormatError, HopstreamError, RemoteError, StoreUnavailable, VersionMismatch
from hopstream.schema import NUMERIC_DTYPES, Direction, EdgeType


@dataclass(frozen=True, slots=True)
class Run:
    """Some of the elements of one row: ``first`` to ``first + num - 1`` of ``total``."""

    first: int
    num: int
    total: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of rows of one request out of several; with ``run``, only those elements of its one row."""

    request: int
    start: int
    num_rows: int
    run: Run | None = None

    @property
    def rows(self) -> slice:
        """Its rows among those of the request."""
        return slice(self.start, self.start + self.num_rows)


@dataclass(frozen=True, slots=True)
class RowCost:
    """What the rows of one request weigh, by which requests are cut.

    Attributes:
        num_rows: Rows of the request.
        row_bytes: Weight of one row, where all weigh the same.
        offsets: int64[num_rows + 1], running weight, where rows differ.
        element_bytes: Weight of one element of a row that can be cut inside; 0 where none can. What a row weighs beside
            its elements is less than one of them.
    """

    num_rows: int
    row_bytes: float
    offsets: IntArray | None = None
    element_bytes: int = 0

    def rows_within(self, start: int, budget: float) -> int:
        """How many rows from ``start`` on weigh no more than the budget."""
        if self.offsets is not None:
            return int(np.searchsorted(self.offsets, self.offsets[start] + budget, side="right")) - 1 - start
        fitting = int(budget / self.row_bytes) if self.row_bytes > 0 else self.num_rows
        return min(self.num_rows - start, fitting)

    def weight(self, start: int, num_rows: int) -> float:
        """The weight of some rows."""
        if self.offsets is not None:
            return int(self.offsets[start + num_rows] - self.offsets[start])
        return num_rows * self.row_bytes

    @property
    def total(self) -> float:
        """The weight of all rows."""
        return self.weight(0, self.num_rows)

    @property
    def heaviest(self) -> float:
        """The weight of the heaviest row."""
        if self.offsets is not None:
            return int(np.diff(self.offsets).max(initial=0))
        return self.row_bytes if self.num_rows else 0

    def runs(self, row: int, budget: float) -> list[Run]:
        """A row heavier than the budget in runs that are not, or are one element; none where it must stay whole."""
        num_elements = int(self.weight(row, 1)) // self.element_bytes if self.element_bytes else 0
        if num_elements < 2 or self.weight(row, 1) <= budget:
            return []
        step = max(1, int(budget) // self.element_bytes)
        return [Run(first, min(step, num_elements - first), num_elements) for first in range(0, num_elements, step)]


def cut_pieces(costs: Sequence[RowCost], budget: float) -> Iterator[list[Piece]]:
    """Cut requests into lists of pieces that each weigh no more than the budget, or are one row or element.

    Rows come in order; a request without rows has no piece. A run of a row's elements has a list of its own.
    """
    pieces: list[Piece] = []
    left = budget
    for request, cost in enumerate(costs):
        start = 0
        while start < cost.num_rows:
            num_rows = cost.rows_within(start, left) if left > 0 else 0
            if num_rows <= 0 and pieces:
                yield pieces
                pieces, left = [], budget
                continue
            runs = cost.runs(start, budget) if num_rows <= 0 else []
            if runs:
                yield from ([Piece(request, start, 1, run)] for run in runs)
                start += 1
                continue
            num_rows = max(1, num_rows)
            pieces.append(Piece(request, start, num_rows))
            left -= cost.weight(start, num_rows)
            start += num_rows
    if pieces:
        yield pieces


MAGIC = b"HOPS"
VERSION = 1
PREFIX = struct.Struct("<4sHHQ")
"""Magic, version, zero, bytes of the header."""
ALIGNMENT = 8
MAX_HEADER_BYTES = 16 << 20
MAX_ARRAYS = 1 << 16
MAX_FRAME_BYTES = 1 << 30
BATCH_SCHEMA = pa.schema([pa.field("frame", pa.large_binary(), nullable=False)])
SHARED_ERRORS = (
    "IdRangeError", "UnknownNameError", "SettingsError", "FormatError", "SchemaError", "VersionMismatch", "StateError",
    "ChannelLost", "StoreTimeout",
)  # fmt: skip
"""Errors that are raised again as the same class, because the asker can do something; most others become a
``RemoteError``."""

TRACEBACK_TITLE = "--- server traceback ---"

Bytes = NDArray[np.uint8]
ArraySpec = tuple[np.dtype[Any], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Frame:
    """One message.

    Attributes:
        header: The JSON header without the description of the arrays.
        arrays: Views of the frame's bytes: read-only, and not aligned where the frame itself is not.
    """

    header: dict[str, Any]
    arrays: list[Array]

    def text(self, name: str) -> str:
        """A string of the header.

        Raises:
            FormatError: It is missing or not a string.
        """
        value = self.header.get(name)
        if not isinstance(value, str):
            raise FormatError(f"header field {name!r} is {reprlib.repr(value)}; it must be a string")
        return value

    def records(self, name: str) -> list[dict[str, Any]]:
        """A list of JSON objects of the header.

        Raises:
            FormatError: It is missing or something else.
        """
        value = self.header.get(name)
        if not isinstance(value, list) or not all(isinstance(record, dict) for record in value):
            raise FormatError(f"header field {name!r} must be a list of objects, got {reprlib.repr(value)}")
        return value

    def array(self, index: object, dtypes: Sequence[str], ndim: int = 1) -> Array:
        """One of the arrays, after a check of its dtype and rank.

        Raises:
            FormatError: There is no such array, or it is another.
        """
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < len(self.arrays):
            raise FormatError(f"array {index!r} was named; the frame has {len(self.arrays)}")
        array = self.arrays[index]
        if array.dtype.name not in dtypes or array.ndim != ndim:
            wanted = f"{'|'.join(dtypes)}[{', '.join(['n'] * ndim)}]"
            raise FormatError(f"array {index} is {array.dtype}{list(array.shape)}; it must be {wanted}")
        return array


def reserve_frame(header: Mapping[str, Any], specs: Sequence[ArraySpec]) -> tuple[Bytes, list[Array]]:
    """Lay a frame out and leave its arrays to be filled in place.

    Returns:
        frame: uint8[frame bytes], the arrays' bytes not yet written.
        arrays: One writable, aligned view of the frame for each spec.
    """
    described = {**header, "arrays": [[dtype.name, list(shape)] for dtype, shape in specs]}
    text = json.dumps(described, separators=(",", ":"), allow_nan=False).encode()
    sizes = [_num_bytes(dtype, shape) for dtype, shape in specs]
    num_bytes = _padded(PREFIX.size + len(text)) + sum(_padded(size) for size in sizes)
    frame = np.empty(num_bytes, np.uint8)
    PREFIX.pack_into(cast(Any, frame.data), 0, MAGIC, VERSION, 0, len(text))
    position = _padded(PREFIX.size + len(text))
    frame[PREFIX.size : position] = 0
    frame[PREFIX.size : PREFIX.size + len(text)] = np.frombuffer(text, np.uint8)
    arrays: list[Array] = []
    for (dtype, shape), size in zip(specs, sizes, strict=True):
        arrays.append(frame[position : position + size].view(dtype).reshape(shape))
        frame[position + size : position + _padded(size)] = 0
        position += _padded(size)
    return frame, arrays


def encode_frame(header: Mapping[str, Any], arrays: Sequence[Array] = ()) -> Bytes:
    """Copy a header and arrays into a frame, uint8[frame bytes]."""
    frame, targets = reserve_frame(header, [(a.dtype, a.shape) for a in arrays])
    for target, array in zip(targets, arrays, strict=True):
        target[...] = array
    return frame


def decode_frame(data: bytes | Bytes) -> Frame:
    """Read a frame without copying its arrays.

    Raises:
        FormatError: The bytes are not a frame, or the arrays do not fill it exactly.
        VersionMismatch: The frame is of another version of the protocol.
    """
    frame = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data
    if len(frame) < PREFIX.size:
        raise FormatError(f"a frame has at least {PREFIX.size} bytes, got {len(frame)}")
    magic, version, _, header_bytes = PREFIX.unpack(frame[: PREFIX.size].tobytes())
    if magic != MAGIC:
        raise FormatError(f"a frame starts with {MAGIC!r}, got {magic!r}; the peer is not a hopstream store")
    if version != VERSION:
        raise VersionMismatch(f"the peer speaks version {version} of the wire protocol; this one speaks {VERSION}")
    if header_bytes > min(MAX_HEADER_BYTES, len(frame) - PREFIX.size):
        raise FormatError(f"the frame says its header has {header_bytes} bytes; it has {len(frame)} bytes in all")
    header = _parse_header(frame[PREFIX.size : PREFIX.size + header_bytes].tobytes())
    specs = _parse_specs(header.pop("arrays", None))
    position = _padded(PREFIX.size + header_bytes)
    wanted = position + sum(_padded(_num_bytes(dtype, shape)) for dtype, shape in specs)
    if wanted != len(frame):
        raise FormatError(f"the frame has {len(frame)} bytes; its header describes {wanted}")
    arrays: list[Array] = []
    for dtype, shape in specs:
        size = _num_bytes(dtype, shape)
        arrays.append(_shaped(frame[position : position + size].view(dtype), shape))
        position += _padded(size)
    return Frame(header, arrays)


def to_batch(frame: Bytes) -> pa.RecordBatch:
    """The record batch that carries a frame, which is not copied and must not be changed any more."""
    offsets = pa.py_buffer(np.array([0, len(frame)], np.int64))
    column = pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, pa.py_buffer(frame)])
    return pa.RecordBatch.from_arrays([column], schema=BATCH_SCHEMA)


def from_batch(batch: pa.RecordBatch) -> Bytes:
    """The bytes of the frame that a record batch carries, without copying them.

    Raises:
        FormatError: The batch carries something else.
    """
    if batch.num_rows != 1 or batch.num_columns != 1 or batch.column(0).type != pa.large_binary():
        raise FormatError(f"an answer holds one frame per batch, got {batch.num_rows} rows of {batch.schema}")
    column = batch.column(0)
    values = column.buffers()[2]
    if column.null_count or column.offset or values is None:
        raise FormatError("an answer's batch holds no frame")
    return np.frombuffer(values, np.uint8)


def encode_error(error: BaseException) -> Bytes:
    """The frame that tells a client of a failure, with the server's traceback."""
    message = str(error) or type(error).__name__
    if not isinstance(error, errors.HopstreamError):
        message = f"{type(error).__name__}: {message}"
    lines = "".join(traceback.format_exception(error))
    return encode_frame({"error": {"kind": type(error).__name__, "message": message, "traceback": lines}})


def is_askers_fault(error: BaseException) -> bool:
    """Whether a request failed because of what it asked for, and not because of the server or of the time it took."""
    return type(error).__name__ in SHARED_ERRORS and not isinstance(error, TimeoutError)


def raise_error(frame: Frame, where: str, what: str) -> None:
    """Raise the failure that a frame tells of, if it tells of one.

    Args:
        frame: Any frame of an answer.
        where: The server, as messages name it.
        what: The operation, as messages name it.

    Raises:
        HopstreamError: The server's error, of the same class where the asker was wrong, else ``RemoteError``. The
            server's traceback is with it unchanged: in the message of a ``RemoteError``, else as a note.
    """
    told = frame.header.get("error")
    if told is None:
        return
    if not isinstance(told, dict):
        raise FormatError(f"{where} told of an error in an unknown form: {str(told)[:200]}")
    kind, message, lines = str(told.get("kind")), str(told.get("message")), str(told.get("traceback", ""))
    if kind in SHARED_ERRORS:
        error: HopstreamError = getattr(errors, kind)(message)
        error.add_note(f"answered by {where} to {what}")
    elif kind == "StoreUnavailable":
        error = StoreUnavailable(f"{where} cannot answer {what}: {message}")
    else:
        raise RemoteError(f"{where} failed in {what}: {message}", lines)
    if lines:
        error.add_note(f"{TRACEBACK_TITLE}\n{lines}")
    raise error


def entity_to_json(entity: Entity) -> str | list[str]:
    """A node type as a string; an edge type and direction as a list of four."""
    return entity if isinstance(entity, str) else [*entity[0], entity[1]]


def entity_from_json(value: object) -> Entity:
    """Read what ``entity_to_json`` wrote.

    Raises:
        FormatError: The value is neither.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, list) and len(value) == 4 and all(isinstance(v, str) for v in value):
        return cast(EdgeType, tuple(value[:3])), direction_from_json(value[3])
    raise FormatError(f"{str(value)[:200]} is not a node type or [source, relation, destination, direction]")


def edge_type_from_json(value: object) -> EdgeType:
    """An edge type, which is written as a list of three.

    Raises:
        FormatError: The value is something else.
    """
    if isinstance(value, list) and len(value) == 3 and all(isinstance(v, str) for v in value):
        return cast(EdgeType, tuple(value))
    raise FormatError(f"{str(value)[:200]} is not [source, relation, destination]")


def direction_from_json(value: object) -> Direction:
    """``in`` or ``out``.

    Raises:
        FormatError: The value is neither.
    """
    if value == "in":
        return "in"
    if value == "out":
        return "out"
    raise FormatError(f"direction is {str(value)[:50]!r}; it must be 'in' or 'out'")


def _parse_header(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"the frame's header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise FormatError(f"the frame's header is a {type(header).__name__}; it must be an object")
    return header


def _refuse_constant(name: str) -> None:
    """JSON has no NaN, which compares with nothing: a wait of so many seconds would have no end."""
    raise ValueError(f"{name} is no number of JSON")


def _parse_specs(value: object) -> list[ArraySpec]:
    if not isinstance(value, list) or len(value) > MAX_ARRAYS:
        raise FormatError(f"the frame's header describes no arrays, or more than {MAX_ARRAYS}")
    return [_parse_spec(spec) for spec in value]


def _parse_spec(value: object) -> ArraySpec:
    if not isinstance(value, list) or len(value) != 2 or value[0] not in NUMERIC_DTYPES:
        raise FormatError(f"array {str(value)[:100]} is not [dtype, shape]")
    shape = value[1]
    if not isinstance(shape, list) or len(shape) > 32 or not all(type(n) is int and 0 <= n < 1 << 62 for n in shape):
        raise FormatError(f"array shape {str(shape)[:100]} must be at most 32 sizes from 0 up")
    return np.dtype(str(value[0])), tuple(shape)


def _shaped(flat: Array, shape: tuple[int, ...]) -> Array:
    try:
        return flat.reshape(shape)
    except ValueError as error:  # no bytes, yet more rows than an array may have
        raise FormatError(f"array shape {list(shape)} is too large") from error


def _num_bytes(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    num_items = 1
    for size in shape:
        num_items *= size
    return num_items * dtype.itemsize


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT
