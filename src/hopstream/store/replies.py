"""Readers of answers: assemble the frames of an answer and check that it fits the request.

A client does not trust a server. Pieces must arrive in order and cover every row once, arrays must have the dtypes and
shapes that follow from the request, and ids must be in range.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hopstream.arrays import Array, Column, IntArray, RaggedArray, is_within, offsets_of
from hopstream.buffers import BufferPool
from hopstream.dataset.book import ends_of
from hopstream.errors import FormatError
from hopstream.kernels.memory import address_of
from hopstream.schema import FeatureSchema
from hopstream.store.contract import FetchRequest, SampleReply, SampleRequest, Store
from hopstream.store.requests import column_feature, neighbor_dtype
from hopstream.store.wire import Piece, Run
from hopstream.transport.messages import ArraySpec, Frame, dtype_name, empty_arrays


class PieceReader(ABC):
    """Reader of the pieces of frames and their arrays, in the required order."""

    takes_runs = False
    """Whether the elements of one row may arrive in several pieces."""

    def __init__(self, num_rows: Sequence[int]) -> None:
        """Expect ``num_rows[i]`` rows for request ``i``."""
        self._num_rows = num_rows
        self._done = [0] * len(num_rows)
        self._open: Run | None = None
        self._asked: Sequence[Piece] = ()
        self._arrays: list[Array] = []
        self._placed: list[Piece] | None = None

    def place(self, header: dict[str, Any], specs: Sequence[ArraySpec]) -> Sequence[Array]:
        """Check the pieces of a frame, and return the arrays to read it into.

        Raises:
            FormatError: The pieces are not the expected ones.
        """
        self._placed = self._read_pieces(header)
        return self.arrays_for(self._placed, specs)

    def arrays_for(self, pieces: Sequence[Piece], specs: Sequence[ArraySpec]) -> Sequence[Array]:
        """Return arrays of these dtypes and shapes; subclasses may return rows of the final columns."""
        return empty_arrays(specs)

    @abstractmethod
    def take(self, frame: Frame) -> None:
        """Check a frame and keep its content."""

    def expect(self, asked: Sequence[Piece]) -> None:
        """Set the pieces that the next call asks for; requests in its answer are numbered by them."""
        self._asked = asked

    def pieces(self, frame: Frame) -> list[Piece]:
        """Return the pieces of a frame, numbered by request; ``array`` then returns their arrays.

        Raises:
            FormatError: The pieces are not the expected ones.
        """
        pieces, self._placed = self._placed, None
        self._arrays = list(frame.arrays[::-1])
        return self._read_pieces(frame.header) if pieces is None else pieces

    def _read_pieces(self, header: dict[str, Any]) -> list[Piece]:
        value = header.get("pieces")
        if not isinstance(value, list):
            raise FormatError("a frame of the answer names no pieces")
        return [self._piece(entry) for entry in value]

    def array(self, dtypes: Sequence[str], shape: tuple[int | None, ...]) -> Array:
        """Return the next array of the frame.

        Raises:
            FormatError: The frame has no further array, or the array has another dtype or shape (None: any length).
        """
        if not self._arrays:
            raise FormatError("a frame of the answer has fewer arrays than its pieces need")
        array = self._arrays.pop()
        is_fitting = array.shape == shape or (
            len(array.shape) == len(shape)
            and all(want is None or want == got for want, got in zip(shape, array.shape, strict=True))
        )
        if dtype_name(array.dtype) not in dtypes or not is_fitting:
            raise FormatError(
                f"the answer holds {array.dtype}{list(array.shape)}; "
                f"the request implies {'|'.join(dtypes)}{list(shape)}"
            )
        return array

    def check_complete(self) -> None:
        """Raise ``FormatError`` unless all rows have arrived."""
        for request, (done, wanted) in enumerate(zip(self._done, self._num_rows, strict=True)):
            if done != wanted:
                raise FormatError(f"the answer ended after {done} of {wanted} rows of request {request}")

    def _piece(self, entry: object) -> Piece:
        if (
            not isinstance(entry, list)
            or len(entry) not in ((3, 6) if self.takes_runs else (3,))
            or not all(type(n) is int for n in entry)
        ):
            raise FormatError(f"piece {str(entry)[:100]} is not [request, start, rows] or such a list with a run")
        index, start, num_rows = entry[:3]
        if not 0 <= index < len(self._asked):
            raise FormatError(f"the answer has a piece of request {index}; only {len(self._asked)} requests were sent")
        asked = self._asked[index]
        piece = Piece(asked.request, asked.start + start, num_rows)
        done = self._done[piece.request]
        if start < 0 or num_rows < 1 or piece.start != done or start + num_rows > asked.num_rows:
            raise FormatError(f"piece {entry} is not the next one; {done} rows of request {piece.request} have arrived")
        if len(entry) == 6:
            return replace(piece, run=self._run_of(piece, entry))
        if self._open is not None:
            raise FormatError(f"piece {entry} comes before row {done} of request {piece.request} is complete")
        self._done[piece.request] += num_rows
        return piece

    def _run_of(self, piece: Piece, entry: list[int]) -> Run:
        """Return the range of elements in a piece; the row counts as done after its last range."""
        run = Run(*entry[3:])
        before = self._open or Run(0, 0, run.total)
        is_next = run.first == before.first + before.num and run.total == before.total
        if piece.num_rows != 1 or not is_next or run.num < 1 or run.first + run.num > run.total:
            raise FormatError(
                f"piece {entry} is not the next run of its row; {before.first + before.num} elements have arrived"
            )
        self._open = run
        if run.first + run.num == run.total:
            self._open = None
            self._done[piece.request] += 1
        return run


class SampleReader(PieceReader):
    """Reader of an answer to ``sample``."""

    takes_runs = True

    def __init__(self, store: Store, requests: Sequence[SampleRequest]) -> None:
        """Expect an answer to these requests."""
        super().__init__([len(request.ids) for request in requests])
        self._store = store
        self._requests = requests
        self._runs: list[list[SampleReply]] = [[] for _ in requests]

    def take(self, frame: Frame) -> None:
        """Check a frame and keep its neighbours."""
        for piece in self.pieces(frame):
            request = self._requests[piece.request]
            self._runs[piece.request].append(self._reply(request, self._counts(request, piece)))

    def result(self) -> list[SampleReply]:
        """Return all replies."""
        self.check_complete()
        return [self._joined(request, runs) for request, runs in zip(self._requests, self._runs, strict=True)]

    def _counts(self, request: SampleRequest, piece: Piece) -> tuple[Array, int]:
        """Return the counts of rows that a piece completes, and the number of neighbours in the piece."""
        run = piece.run
        if run is None:
            counts = self.array(("int32",), (piece.num_rows,))
        else:
            most = min(self._store.book.num_ids((request.edge_type, request.direction)), np.iinfo(np.int32).max)
            if run.total > most:
                raise FormatError(f"the answer reports {run.total} neighbours of one node; at most {most} are possible")
            counts = np.array([run.total], np.int32)
        if int(counts.min()) < 0 or (request.count >= 0 and int(counts.max()) > request.count):
            raise FormatError(f"counts are {int(counts.min())}..{int(counts.max())}; they must be 0..{request.count}")
        if run is None:
            return counts, int(counts.sum(dtype=np.int64))
        return counts if run.first + run.num == run.total else counts[:0], run.num

    def _reply(self, request: SampleRequest, counted: tuple[Array, int]) -> SampleReply:
        """Read the arrays of a piece; a row in several pieces has its count in the last piece."""
        counts, total = counted
        edges = (request.edge_type, request.direction)
        neighbors = self.array(("uint32", "int64"), (total,))
        _check_range("neighbour", neighbors, self._store.book.num_ids(ends_of(*edges)[1]))
        edge_ids = edge_keys = None
        if request.wants_edge_ids:
            edge_ids = self.array(("int64",), (total,))
            _check_range("edge", edge_ids, self._store.book.num_ids(edges))
        if request.wants_edge_keys:
            edge_keys = self.array(("int64",), (total,))
        return SampleReply(counts=counts, neighbor_ids=neighbors, edge_ids=edge_ids, edge_keys=edge_keys)

    def _joined(self, request: SampleRequest, runs: Sequence[SampleReply]) -> SampleReply:
        if len(runs) == 1:
            return runs[0]
        none = np.empty(0, np.int64)
        if not runs:
            dtype = neighbor_dtype(self._store.book, request.edge_type, request.direction)
            return SampleReply(
                counts=none.astype(np.int32), neighbor_ids=none.astype(dtype),
                edge_ids=none if request.wants_edge_ids else None, edge_keys=none if request.wants_edge_keys else None,
            )  # fmt: skip
        columns = zip(*(run.columns() for run in runs), strict=True)
        neighbor_ids, *numbers = (np.concatenate(of_runs) for of_runs in columns)
        return SampleReply(
            counts=np.concatenate([run.counts for run in runs]), neighbor_ids=neighbor_ids,
            edge_ids=numbers.pop(0) if request.wants_edge_ids else None,
            edge_keys=numbers.pop(0) if request.wants_edge_keys else None,
        )  # fmt: skip


class FetchReader(PieceReader):
    """Reader of an answer to ``fetch``; it reads rows of fixed width directly to their destination."""

    def __init__(self, store: Store, requests: Sequence[FetchRequest], buffers: BufferPool) -> None:
        """Expect an answer to these requests; ``buffers`` allocates columns without ``out``."""
        super().__init__([len(request.ids) if request.names else 0 for request in requests])
        self._features = [{name: column_feature(store, r.entity, name) for name in r.names} for r in requests]
        self._columns = [
            {
                name: _target(feature, name, request, buffers)
                for name, feature in features.items()
                if feature.is_fixed_width
            }
            for request, features in zip(requests, self._features, strict=True)
        ]
        self._runs: list[dict[str, list[tuple[IntArray, Array]]]] = [
            {name: [] for name, feature in features.items() if not feature.is_fixed_width}
            for features in self._features
        ]

    def arrays_for(self, pieces: Sequence[Piece], specs: Sequence[ArraySpec]) -> Sequence[Array]:
        """Return slices of the columns if all columns of all pieces have a fixed width."""
        wanted = [(piece, name, f) for piece in pieces for name, f in self._features[piece.request].items()]
        if len(wanted) != len(specs) or not all(f.is_fixed_width for _, _, f in wanted):
            return empty_arrays(specs)
        for (piece, _, feature), (dtype, shape) in zip(wanted, specs, strict=True):
            if dtype != feature.numpy_dtype or shape != (piece.num_rows, *feature.shape):
                return empty_arrays(specs)  # ``take`` will refuse them
        return [self._columns[piece.request][name][piece.rows] for piece, name, _ in wanted]

    def take(self, frame: Frame) -> None:
        """Check a frame and store its rows."""
        for piece in self.pieces(frame):
            for name, feature in self._features[piece.request].items():
                if feature.is_fixed_width:
                    self._place(piece, name, feature)
                else:
                    self._keep_run(piece, name, feature)

    def result(self) -> list[dict[str, Column]]:
        """Return one dict of columns per request."""
        self.check_complete()
        return [
            {name: self._column(i, name, feature) for name, feature in features.items()}
            for i, features in enumerate(self._features)
        ]

    def _place(self, piece: Piece, name: str, feature: FeatureSchema) -> None:
        rows = self.array((dtype_name(feature.numpy_dtype),), (piece.num_rows, *feature.shape))
        out = self._columns[piece.request][name][piece.rows]
        if address_of(rows) != address_of(out):
            out[...] = rows

    def _keep_run(self, piece: Piece, name: str, feature: FeatureSchema) -> None:
        lengths = self.array(("int64",), (piece.num_rows,))
        if int(lengths.min()) < 0:
            raise FormatError(f"{name} has a row of {int(lengths.min())} elements")
        values = self.array((dtype_name(feature.numpy_dtype),), (None, *feature.shape))
        if sum(lengths.tolist()) != len(values):
            raise FormatError(
                f"the rows of {name} hold {sum(lengths.tolist())} elements; the answer brings {len(values)}"
            )
        self._runs[piece.request][name].append((lengths, values))

    def _column(self, request: int, name: str, feature: FeatureSchema) -> Column:
        if feature.is_fixed_width:
            return self._columns[request][name]
        runs = self._runs[request][name]
        lengths = np.concatenate([run[0] for run in runs] or [np.empty(0, np.int64)])
        values = np.concatenate([run[1] for run in runs] or [np.empty((0, *feature.shape), feature.numpy_dtype)])
        return RaggedArray(values, offsets_of(lengths), feature.is_string)


class RowsReader(PieceReader):
    """Reader of an answer with one int64 per row and column."""

    def __init__(self, num_rows: int, *stops: int | None, first: int = 0, what: str = "row") -> None:
        """Expect ``num_rows`` values in ``[first, stop)`` per column; a ``stop`` of None allows any value."""
        super().__init__([num_rows])
        self._first, self._stops, self._what = first, stops, what
        self._columns: list[IntArray] = [np.empty(num_rows, np.int64) for _ in stops]

    def take(self, frame: Frame) -> None:
        """Check a frame and store its values."""
        for piece in self.pieces(frame):
            for stop, column in zip(self._stops, self._columns, strict=True):
                values = self.array(("int64",), (piece.num_rows,))
                if stop is not None:
                    _check_range(self._what, values, stop, self._first)
                column[piece.rows] = values

    def result(self) -> list[IntArray]:
        """Return the columns, int64[num_rows] each."""
        self.check_complete()
        return self._columns


class SplitReader:
    """Reader of an answer to ``split`` or ``edge_split``; the first frame holds the number of keys."""

    def __init__(self, stop: int) -> None:
        """Expect ascending keys below ``stop``."""
        self._stop = stop
        self._rows: RowsReader | None = None

    def place(self, header: dict[str, Any], specs: Sequence[ArraySpec]) -> Sequence[Array]:
        """Return new arrays to read a frame into."""
        return empty_arrays(specs) if self._rows is None else self._rows.place(header, specs)

    def take(self, frame: Frame) -> None:
        """Check a frame and keep its keys."""
        if self._rows is not None:
            self._rows.take(frame)
            return
        num_keys = frame.header.get("num_keys")
        if type(num_keys) is not int or not 0 <= num_keys <= self._stop:
            raise FormatError(f"the server reports a split of {str(num_keys)[:50]} keys; the type has {self._stop}")
        self._rows = RowsReader(num_keys, self._stop)
        self._rows.expect([Piece(0, 0, num_keys)])

    def result(self) -> IntArray:
        """Return the keys, int64[n], ascending."""
        if self._rows is None:
            raise FormatError("the answer to a split has no num_keys")
        (keys,) = self._rows.result()
        if bool(np.any(keys[1:] <= keys[:-1])):
            raise FormatError("the keys of the split do not ascend")
        return keys


def _target(feature: FeatureSchema, name: str, request: FetchRequest, buffers: BufferPool) -> Array:
    given: Mapping[str, Array] = request.out or {}
    return given[name] if name in given else buffers.take((len(request.ids), *feature.shape), feature.numpy_dtype)


def _check_range(what: str, ids: Array, stop: int, first: int = 0) -> None:
    if not is_within(ids, first, stop):
        raise FormatError(f"the answer has a {what} id outside {first}..{stop - 1}")
