"""Fetches over several sources: splits requests for columns by part and merges rows of all sources.

Sources are mapped files, halos, the cache and servers. Each source writes rows of fixed width directly to their final
place. Ragged columns are kept until all lengths are known, and are then copied once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import Array, Column, IntArray, RaggedArray, offsets_of
from hopstream.kernels.row_cache import split_found
from hopstream.kernels.stitch import scatter_runs
from hopstream.schema import FeatureSchema
from hopstream.store.contract import FetchRequest, Store, TrafficCounts
from hopstream.store.halo import NO_POSITIONS, HaloStore
from hopstream.store.remote import RemoteStore
from hopstream.store.requests import check_fetch_request, column_feature
from hopstream.store.row_cache import Announcement, Found, RowCache, RowTable
from hopstream.store.stitching import Cut, Finish, Stitch, Traffic, busy_parts, column_bytes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FetchShare:
    """Columns of one request whose rows come from the same sources.

    Attributes:
        names: The columns.
        features: Their schemas.
        cut: The request's ids by part.
        is_far: bool[num_pieces + 1], whether only servers hold a piece of the cut.
        table: Table of the cache for these columns; None if the cache keeps none.
        announcement: Announcement of the rows; None if they were not announced.
    """

    names: tuple[str, ...]
    features: dict[str, FeatureSchema]
    cut: Cut
    is_far: NDArray[np.bool_]
    table: RowTable | None
    announcement: Announcement | None = None


class FetchPlanner:
    """Splitter of the fetch requests of one store by source."""

    def __init__(self, store: Store, halo: HaloStore | None, cache: RowCache | None, here: Sequence[int]) -> None:
        """Keep the sources.

        Args:
            store: The store of all parts, which checks the requests.
            halo: Halos of local parts, or None.
            cache: Cache of rows of servers, or None.
            here: The local parts.
        """
        self._store, self.halo, self.cache = store, halo, cache
        self._is_far = ~np.isin(np.arange(store.book.num_parts), here)

    def announce(self, requests: Sequence[FetchRequest]) -> list[list[FetchShare]]:
        """Split the requests of a future batch, and announce their rows to the cache."""
        cut = [self.shares(request) for request in requests]
        if self.cache is None:
            return cut
        asked = [
            (of_request, place, share.table, ids)
            for of_request in cut
            for place, share in enumerate(of_request)
            if share.table is not None and len(ids := _far_rows(share)[1])
        ]
        found = self.cache.announce([(table, ids) for _, _, table, ids in asked])
        for (of_request, place, _, _), announcement in zip(asked, found, strict=True):
            of_request[place] = replace(of_request[place], announcement=announcement)
        return cut

    def shares(self, request: FetchRequest) -> list[FetchShare]:
        """Check a request and split its columns into those in a halo and all others."""
        check_fetch_request(self._store, request)
        features = {name: column_feature(self._store, request.entity, name) for name in request.names}
        known = () if self.halo is None else self.halo.names(request.entity)
        groups: dict[bool, dict[str, FeatureSchema]] = {}
        for name, feature in features.items():
            groups.setdefault(name in known, {})[name] = feature
        return [
            self._share(request, of_group, is_known) for is_known, of_group in (groups or {False: features}).items()
        ]

    def _share(self, request: FetchRequest, features: dict[str, FeatureSchema], is_known: bool) -> FetchShare:
        book, entity = self._store.book, request.entity
        piece_parts = book.piece_parts(entity) if book.has_overlays(entity) else None
        ids = np.ascontiguousarray(request.ids, np.int64)
        rows = self.halo.find_columns(entity, ids) if is_known and self.halo is not None else None
        cut = Cut.of(ids, book.offsets(entity), piece_parts, rows)
        is_far = self._is_far if piece_parts is None else self._is_far[piece_parts]
        table = (
            self.cache.table(entity, features, book.num_ids(entity))
            if self.cache is not None and is_far.any()
            else None
        )
        return FetchShare(
            names=tuple(features), features=features, cut=cut, is_far=np.append(is_far, False), table=table
        )


def _far_rows(share: FetchShare) -> tuple[IntArray, IntArray]:
    """Return positions and ids of the rows of a share that only servers hold."""
    return share.cut.rows_of(np.flatnonzero(share.is_far))


@dataclass(slots=True, kw_only=True, eq=False)
class _Work:
    """State of one share while its rows are fetched.

    Attributes:
        number: Number of the request.
        request: The request of the share.
        share: The share.
        columns: Columns of fixed width, while they are filled.
        found: Lookup in the cache; None if the cache keeps none of these columns.
        found_rows: Positions and slots of the rows in the cache; None without ``found``.
        awaited: Positions and slots of the rows that other threads are fetching for the cache.
        fresh_positions: int64[n], positions of the rows that the cache will keep once they are fetched.
        runs: Answers with ragged columns, also from the cache, with the positions of their rows.
    """

    number: int
    request: FetchRequest
    share: FetchShare
    columns: dict[str, Array]
    found: Found | None = None
    found_rows: tuple[IntArray, IntArray] | None = None
    awaited: tuple[IntArray, IntArray] = (NO_POSITIONS, NO_POSITIONS)
    fresh_positions: IntArray = field(default_factory=lambda: NO_POSITIONS)
    runs: list[tuple[IntArray, dict[str, Column]]] = field(default_factory=list)

    def targets(self, positions: IntArray) -> IntArray:
        """Return the rows of ``columns`` to which rows of the request are written."""
        return positions if self.request.positions is None else self.request.positions[positions]

    def look_in(self, cache: RowCache, awaits: bool) -> None:
        """Look up the rows in a cache, and remove the found rows from the share's cut.

        Args:
            cache: The cache.
            awaits: Also remove the rows that other threads are fetching; else they are fetched here, too.
        """
        positions, ids = _far_rows(self.share)
        if self.share.table is None or not len(ids):
            return
        self.found = found = cache.find(self.share.table, ids, self.share.announcement)
        if not awaits:
            found.slots[found.slots < -1] = -1
        self.fresh_positions = positions[found.fresh_at]
        taken, slots, cut = np.empty(len(ids), np.int64), np.empty(len(ids), np.int64), self.share.cut
        num_found = split_found(cut.piece_starts, self.share.is_far, found.slots, cut.positions, cut.ids, taken, slots)
        taken, slots = taken[:num_found], slots[:num_found]
        is_ready = slots >= 0
        self.found_rows = taken[is_ready], slots[is_ready]
        self.awaited = taken[~is_ready], -2 - slots[~is_ready]

    def read_cached(self) -> tuple[int, int]:
        """Copy the rows in the cache to their destination; return their number and their bytes."""
        if self.found is None or self.found_rows is None or not len(self.found_rows[1]):
            return 0, 0
        positions, slots = self.found_rows
        ragged = self.found.read(slots, self.columns, self.targets(positions))
        self.runs.append((positions, ragged))
        num_bytes = sum(column_bytes(column, len(slots)) for column in ragged.values())
        return len(slots), len(slots) * self.found.row_bytes + num_bytes


class FetchStitch(Stitch[list[dict[str, Column]]]):
    """Fetch requests under way over several sources."""

    def __init__(
        self, planner: FetchPlanner, requests: Sequence[FetchRequest], traffic: Traffic,
        fetch_rest: Callable[[FetchRequest], object] | None = None,
    ) -> None:  # fmt: skip
        """Check and split the requests, look up the cache, and allocate columns without ``out``.

        Args:
            planner: The splitter.
            requests: The requests.
            traffic: Counters to add to.
            fetch_rest: Fetches rows that another thread did not fetch in time; None waits for no other thread.
        """
        self._traffic, self._halo, self._fetch_rest = traffic, planner.halo, fetch_rest
        self._requests = requests
        self._works: list[_Work] = []
        for number, request in enumerate(requests):
            shares = planner.shares(request) if request.announced is None else request.announced
            self._works += [_work(number, request, share) for share in cast(Sequence[FetchShare], shares)]
        if planner.cache is not None:
            for work in self._works:
                work.look_in(planner.cache, awaits=fetch_rest is not None)
            evicted = sum(work.found.num_evicted for work in self._works if work.found is not None)
            self._traffic.add("fetch", TrafficCounts(cache_evictions=evicted))

    def parts(self) -> list[int]:
        """Return the parts to ask: owners of rows that neither the halo nor the cache holds."""
        return busy_parts([work.share.cut for work in self._works if work.share.names])

    def start(self, store: Store, parts: Sequence[int]) -> Finish:
        """Read rows of some parts: fixed width to their destination, ragged columns for a later merge."""
        asked: list[FetchRequest] = []
        sources: list[tuple[_Work, IntArray]] = []
        for work in self._works:
            positions, ids = work.share.cut.rows(parts)
            for request in _asked(work, positions, ids):
                asked.append(request)
                sources.append((work, positions))
        pending = store.submit_fetch(asked)

        def finish() -> None:
            answers = pending.result()
            _keep(sources, asked, answers)
            if isinstance(store, RemoteStore):
                num_ids: dict[int, int] = {}  # shares of one request have the same rows, or a subset
                for work, positions in sources:
                    num_ids[work.number] = max(num_ids.get(work.number, 0), len(positions))
                self._traffic.add_answer("fetch", store, sum(num_ids.values()), _num_bytes(asked, answers))

        return finish

    def ask_here(self) -> None:
        """Read the rows that the halo and the cache hold."""
        num_ids = num_bytes = num_cached = cached_bytes = 0
        for work in self._works:
            num_rows, num_row_bytes = work.read_cached()
            num_cached += num_rows
            cached_bytes += num_row_bytes
            if self._halo is None:
                continue
            cut = work.share.cut
            positions, rows = cut.positions[cut.halo], cut.ids[cut.halo]
            asked = list(_asked(work, positions, rows))
            answers = [self._halo.fetch(one) for one in asked]
            _keep([(work, positions)] * len(asked), asked, answers)
            num_bytes += _num_bytes(asked, answers)
            num_ids += len(positions)
        counts = TrafficCounts(halo_ids=num_ids, halo_bytes=num_bytes, cache_ids=num_cached, cache_bytes=cached_bytes)
        if any(counts):
            self._traffic.add("fetch", counts)

    def result(self) -> list[dict[str, Column]]:
        """Return one dict of columns per request, and hand fetched rows to the cache."""
        answers: list[dict[str, Column]] = [dict.fromkeys(request.names, NO_POSITIONS) for request in self._requests]
        for work in self._works:
            columns: dict[str, Column] = {
                name: work.columns[name] if feature.is_fixed_width else _stitched(work, name, feature)
                for name, feature in work.share.features.items()
            }
            answers[work.number].update(columns)
            if work.found is not None:
                evicted = work.found.keep(columns, work.targets(work.fresh_positions))
                work.found.end()
                if evicted:
                    self._traffic.add("fetch", TrafficCounts(cache_evictions=evicted))
        for work in self._works:  # after all own rows are in the cache, because other threads may wait for them
            self._read_awaited(work)
        return answers

    def _read_awaited(self, work: _Work) -> None:
        """Wait for the rows that other threads fetch, and read them; those that do not come are requested."""
        positions, slots = work.awaited
        if work.found is None or self._fetch_rest is None or not len(positions):
            return
        work.found.wait(slots)
        request = replace(
            work.request, names=tuple(work.columns), ids=np.asarray(work.request.ids)[positions], announced=None,
            out=work.columns, positions=work.targets(positions),
        )  # fmt: skip
        self._fetch_rest(request)

    def fail(self) -> None:
        """Let other threads fetch the rows that this request did not get."""
        for work in self._works:
            if work.found is not None:
                work.found.end()


def _work(number: int, request: FetchRequest, share: FetchShare) -> _Work:
    """Prepare a share: fixed-width columns are the request's ``out`` arrays or new ones."""
    given = request.out or {}
    columns = {
        name: given[name] if name in given else np.empty((len(request.ids), *f.shape), f.numpy_dtype)
        for name, f in share.features.items()
        if f.is_fixed_width
    }
    return _Work(number=number, request=request, share=share, columns=columns)


def _asked(work: _Work, positions: IntArray, ids: IntArray) -> Iterator[FetchRequest]:
    """Make requests for some rows of a share: one with ``out`` for fixed-width columns, one for the rest."""
    entity, columns = work.request.entity, work.columns
    other_names = tuple(name for name in work.share.names if name not in columns)
    if len(ids) and columns:
        yield FetchRequest(entity=entity, names=tuple(columns), ids=ids, out=columns, positions=work.targets(positions))
    if len(ids) and other_names:
        yield FetchRequest(entity=entity, names=other_names, ids=ids)


def _keep(
    sources: Sequence[tuple[_Work, IntArray]], asked: Sequence[FetchRequest], answers: Sequence[dict[str, Column]]
) -> None:
    """Keep answers with ragged columns for the merge in ``result``."""
    for (work, positions), request, columns in zip(sources, asked, answers, strict=True):
        if request.out is None:
            work.runs.append((positions, columns))


def _stitched(work: _Work, name: str, feature: FeatureSchema) -> RaggedArray:
    lengths = np.zeros(len(work.request.ids), np.int64)
    runs = [(positions, columns[name]) for positions, columns in work.runs]
    for positions, column in runs:
        lengths[positions] = np.diff(column.offsets) if isinstance(column, RaggedArray) else 0
    offsets = offsets_of(lengths)
    values = np.empty((offsets[-1], *feature.shape), feature.numpy_dtype)
    width = int(np.prod(feature.shape, dtype=np.int64))
    word = f"uint{8 * min(8, values.itemsize)}"  # numba has no float16
    width *= -(-values.itemsize // 8)
    for positions, column in runs:
        if isinstance(column, RaggedArray):
            flat = np.ascontiguousarray(column.values).reshape(-1).view(word)
            scatter_runs(flat, lengths[positions], positions, offsets, width, values.reshape(-1).view(word))
    return RaggedArray(values, offsets, feature.is_string)


def _num_bytes(asked: Sequence[FetchRequest], answers: Sequence[dict[str, Column]]) -> int:
    """Return the bytes of the arrays in some answers."""
    return sum(
        column_bytes(column, len(request.ids))
        for request, columns in zip(asked, answers, strict=True)
        for column in columns.values()
    )
