"""Asks the server that owns a rank's share, or another that can answer in its place.

Every part has one owner, the server listed first of those that serve it, so that all ranks agree on what each of them
takes, whatever server is up. What an owner has can be asked of any server that can read the same parts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import Any, TypeVar

import numpy as np

from hopstream.arrays import IntArray
from hopstream.errors import FormatError, StateError, StoreError, StoreTimeout, StoreUnavailable
from hopstream.store.channel import Channel, ask_again_if_busy
from hopstream.store.cluster import Cluster
from hopstream.store.remote import RemoteStore
from hopstream.store.security import Location
from hopstream.store.settings import StoreSettings
from hopstream.store.wire import Frame, encode_frame
from hopstream.stream.runs import Piece
from hopstream.stream.sharding import ServerSlice, compute_server_assignments

T = TypeVar("T")
MAX_ASKING = 16
"""Servers that one question is put to at once."""


class Owners:
    """Puts one question to the servers that own a rank's share of the answer. Safe to use from many threads."""

    def __init__(self, cluster: Cluster, settings: StoreSettings) -> None:
        """Remember where the servers are; nothing is asked yet."""
        self._cluster = cluster
        self._settings = settings
        self._lock = threading.Lock()
        self._is_closed = False
        self._parts_of_servers: list[tuple[int, ...]] = []
        self._channels: list[Channel] = []

    def ask(
        self, question: Mapping[str, Any], share: tuple[int, int], limits: Mapping[str, int]
    ) -> dict[int, dict[str, IntArray]]:
        """Ask every server that owns some of a rank's share for its slice.

        Args:
            question: Header of the request, without parts and slice.
            share: The rank and the number of ranks.
            limits: Names of the answer's columns; their numbers are from 0 to below these.

        Returns:
            Number of a server in the cluster to its columns by name, int64[n] each.

        Raises:
            StoreError: A server that is needed cannot be reached, or refused to answer.
            FormatError: An answer makes no sense.
        """
        parts_of_servers = self._parts()
        owners = owners_of(parts_of_servers)
        servers = list(owners)
        rank, num_ranks = share
        assigned = compute_server_assignments(len(servers), num_ranks, rank)
        slices = [replace(one, server_rank=servers[place]) for place, one in assigned.items()]

        def ask_one(one: ServerSlice) -> dict[str, IntArray]:
            parts = owners[one.server_rank]
            header = {**question, "parts": list(parts), "server_slice": asdict(one)}
            return self._ask_any(header, candidates_for(one.server_rank, parts, parts_of_servers), limits)

        return dict(zip([one.server_rank for one in slices], self._at_once(slices, ask_one), strict=True))

    def close(self) -> None:
        """Disconnect; a second call does nothing. Calls under way end at once."""
        with self._lock:
            self._is_closed = True
            channels, self._channels = self._channels, []
        for channel in channels:
            channel.close()

    def _ask_any(self, header: Mapping[str, Any], untried: list[int], limits: Mapping[str, int]) -> dict[str, IntArray]:
        """Ask one server after the other until one answers, within the deadline of one request."""
        ends = time.monotonic() + self._settings.timeout_s
        request, op = encode_frame(header), str(header["op"])
        failure: StoreError | None = None
        were_busy: set[int] = set()
        while untried:
            reader = _ColumnsReader(limits)
            left_s = max(1e-3, ends - time.monotonic()) / min(2, len(untried))
            number = untried.pop(0)
            try:
                self._channel(number).call(request, left_s, op, reader, is_patient=not untried)
                return reader.result()
            except (StoreTimeout, StoreUnavailable) as error:
                failure = failure or error
                ask_again_if_busy(error, number, untried, were_busy)
        assert failure is not None  # noqa: S101 - there was a server to ask
        raise failure

    def _parts(self) -> list[tuple[int, ...]]:
        """The parts that each server serves. Ranks must agree on them, so servers that must be asked must answer."""
        with self._lock:
            self._check_open()
            if self._parts_of_servers:
                return self._parts_of_servers
        entries = self._cluster.servers
        unknown = [entry.location for entry in entries if not entry.parts]
        told = dict(zip(unknown, self._at_once(unknown, self._ask_parts), strict=True))
        with self._lock:
            self._parts_of_servers = [entry.parts or told[entry.location] for entry in entries]
            return self._parts_of_servers

    def _ask_parts(self, location: str) -> tuple[int, ...]:
        with RemoteStore(location, self._settings) as store:
            return store.parts

    def _channel(self, number: int) -> Channel:
        with self._lock:
            self._check_open()
            if not self._channels:
                locations = [Location.parse(entry.location) for entry in self._cluster.servers]
                self._channels = [Channel(location, self._settings) for location in locations]
            return self._channels[number]

    def _check_open(self) -> None:
        if self._is_closed:
            raise StateError("the graph was closed; make another RemoteGraph to ask it")

    def _at_once(self, items: Sequence[Any], ask: Callable[[Any], T]) -> list[T]:
        """Ask for several things at once; answers are in their order."""
        if not items:
            return []
        with ThreadPoolExecutor(min(len(items), MAX_ASKING)) as pool:
            return list(pool.map(ask, items))


def owners_of(parts_of_servers: Sequence[Sequence[int]]) -> dict[int, tuple[int, ...]]:
    """Number of a server to the parts that it owns; those that own none are left out."""
    taken: set[int] = set()
    owners: dict[int, tuple[int, ...]] = {}
    for number, parts in enumerate(parts_of_servers):
        own = tuple(part for part in parts if part not in taken)
        taken.update(own)
        if own:
            owners[number] = own
    return owners


def candidates_for(owner: int, parts: Sequence[int], parts_of_servers: Sequence[Sequence[int]]) -> list[int]:
    """Servers to ask for some parts: their owner, then, where all have replicas, those that serve most of them."""
    others = [number for number in range(len(parts_of_servers)) if number != owner]
    replicated = {part for number in others for part in parts_of_servers[number]}
    if not replicated.issuperset(parts):
        return [owner]
    return [owner, *sorted(others, key=lambda number: -len(set(parts).intersection(parts_of_servers[number])))]


class _ColumnsReader:
    """Puts the columns of an answer together."""

    def __init__(self, limits: Mapping[str, int]) -> None:
        """Expect columns by name, of numbers from 0 to below a limit each."""
        self._limits = limits
        self._pieces: dict[str, list[IntArray]] = {name: [] for name in limits}
        self._num_in_runs = dict.fromkeys(limits, 0)
        self._num_rows: object = None

    def take(self, frame: Frame) -> None:
        """Keep the pieces of a frame."""
        names = frame.header.get("columns")
        is_known = isinstance(names, list) and all(isinstance(name, str) and name in self._limits for name in names)
        if not isinstance(names, list) or not is_known or len(names) != len(frame.arrays):
            raise FormatError(f"an answer's frame brings columns {str(names)[:100]}; known: {list(self._limits)}")
        for place, name in enumerate(names):
            piece = np.array(frame.array(place, ("int64",)))
            if frame.header.get("runs") is True:
                piece = self._expanded(name, piece)
            if len(piece) and (int(piece.min()) < 0 or int(piece.max()) >= self._limits[name]):
                raise FormatError(f"column {name!r} of an answer has numbers outside 0..{self._limits[name] - 1}")
            self._pieces[name].append(piece)
        self._num_rows = frame.header.get("num_rows", self._num_rows)

    def _expanded(self, name: str, bounds: IntArray) -> IntArray:
        """The keys of runs: start, stop, start, stop, …, which are no more than their column can have."""
        starts, stops, limit = bounds[0::2], bounds[1::2], self._limits[name]
        has_order = len(starts) == len(stops) and (starts < stops).all() and (stops[:-1] <= starts[1:]).all()
        if not has_order or (len(bounds) and (bounds[0] < 0 or bounds[-1] > limit)):
            raise FormatError(f"column {name!r} of an answer has runs that do not ascend in 0..{limit - 1}")
        self._num_in_runs[name] += int((stops - starts).sum())
        if self._num_in_runs[name] > limit:
            raise FormatError(f"column {name!r} of an answer has {self._num_in_runs[name]} numbers of {limit} in runs")
        return Piece(bounds, is_runs=True).expand()

    def result(self) -> dict[str, IntArray]:
        """The columns, once all frames are there."""
        columns = {name: np.concatenate([np.empty(0, np.int64), *pieces]) for name, pieces in self._pieces.items()}
        num_rows = {name: len(column) for name, column in columns.items()}
        if self._num_rows != num_rows:
            raise FormatError(f"an answer has columns of {num_rows} rows, and says that they have {self._num_rows}")
        return columns
