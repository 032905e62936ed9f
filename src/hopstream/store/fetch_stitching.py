"""Fetches over several sources: splits requests for columns by part and merges rows of all sources.

Sources are mapped files, halos, the cache and servers. Each source tells the addresses of its rows of fixed width. When
all are known, one pass copies them to their final place. Ragged columns are kept until all lengths are known, and are
then copied once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import Array, Column, IntArray, RaggedArray, offsets_of
from hopstream.kernels.row_cache import split_found
from hopstream.kernels.stitch import scatter_runs
from hopstream.schema import FeatureSchema
from hopstream.store.contract import KEY, FetchRequest, Store, TrafficCounts
from hopstream.store.halo import NO_POSITIONS, HaloStore
from hopstream.store.local import LocalStore
from hopstream.store.located import LocatedRows, Target
from hopstream.store.remote import RemoteStore
from hopstream.store.requests import check_fetch_request
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
        features = check_fetch_request(self._store, request)
        known = set(() if self.halo is None else self.halo.names(request.entity)) & features.keys()
        if known == {KEY} and len(features) > 1:  # the other columns are requested in any case, and kept in the cache
            known = set()
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
        columns: Columns of fixed width, to be filled by ``merge``.
        located: Addresses of the rows of ``columns``, except those that were copied already.
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
    located: LocatedRows
    found: Found | None = None
    found_rows: tuple[IntArray, IntArray] | None = None
    awaited: tuple[IntArray, IntArray] = (NO_POSITIONS, NO_POSITIONS)
    fresh_positions: IntArray = field(default_factory=lambda: NO_POSITIONS)
    runs: list[tuple[IntArray, Mapping[str, Column]]] = field(default_factory=list)

    @property
    def ragged_names(self) -> tuple[str, ...]:
        """The columns without a fixed width."""
        return tuple(name for name in self.share.names if name not in self.columns)

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
        """Locate or copy the rows in the cache; return their number and their bytes."""
        if self.found is None or self.found_rows is None or not len(self.found_rows[1]):
            return 0, 0
        positions, slots = self.found_rows
        num_bytes = 0
        if self.found.is_ragged:
            ragged = self.found.read(slots, self.columns, positions)
            self.runs.append((positions, ragged))
            num_bytes = sum(column_bytes(column, len(slots)) for column in ragged.values())
        else:
            self.found.locate(slots, positions, self.located)
        return len(slots), len(slots) * self.found.row_bytes + num_bytes

    def out_of(self, names: tuple[str, ...], positions: IntArray) -> dict[str, Array] | None:
        """Return the final columns if one answer, in order, has all of their rows, and no cache keeps them."""
        has_all = self.found is None and len(positions) == len(self.request.ids) and names == tuple(self.columns)
        return self.columns if has_all and np.array_equal(positions, np.arange(len(positions))) else None

    def take(self, positions: IntArray, columns: Mapping[str, Column]) -> None:
        """Locate the rows of fixed width of an answer, and keep its ragged columns for ``merge``."""
        self.runs.append((positions, columns))
        self.located.take(positions, {n: column for n, column in columns.items() if isinstance(column, np.ndarray)})

    def merge(self) -> dict[str, Column]:
        """Copy all located rows of fixed width to their destination, and merge ragged rows."""
        located = self.located
        located.copy(located.addresses, NO_POSITIONS, [Target.of(self.columns[name]) for name in located.names])
        return {
            name: self.columns[name] if feature.is_fixed_width else _stitched(self, name, feature)
            for name, feature in self.share.features.items()
        }


class FetchStitch(Stitch[list[dict[str, Column]]]):
    """Fetch requests under way over several sources."""

    def __init__(
        self, planner: FetchPlanner, requests: Sequence[FetchRequest], traffic: Traffic,
        fetch_rest: Callable[[FetchRequest], Mapping[str, Column]] | None = None,
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
        """Locate rows of fixed width of a local store; ask for all other rows."""
        is_here = isinstance(store, LocalStore)
        shares = [(work, *work.share.cut.rows(parts)) for work in self._works]
        sources = [
            (
                work,
                positions,
                FetchRequest(entity=work.request.entity, names=names, ids=ids, out=work.out_of(names, positions)),
            )
            for work, positions, ids in shares
            for names in (() if is_here else tuple(work.columns), work.ragged_names)
            if len(ids) and names
        ]
        pending = store.submit_fetch([request for _, _, request in sources])

        def finish() -> None:
            if isinstance(store, LocalStore):
                for work, positions, ids in shares:
                    store.locate(work.request.entity, ids, positions, work.located)
            answers = pending.result()
            for (work, positions, request), columns in zip(sources, answers, strict=True):
                if request.out is None:
                    work.take(positions, columns)
            if isinstance(store, RemoteStore):
                num_ids: dict[int, int] = {}  # shares of one request have the same rows, or a subset
                for work, positions, _ in sources:
                    num_ids[work.number] = max(num_ids.get(work.number, 0), len(positions))
                num_bytes = sum(
                    column_bytes(column, len(positions))
                    for (_, positions, _), columns in zip(sources, answers, strict=True)
                    for column in columns.values()
                )
                self._traffic.add_answer("fetch", store, sum(num_ids.values()), num_bytes)

        return finish

    def ask_here(self) -> None:
        """Locate the rows that the halo and the cache hold, and read their ragged columns."""
        num_ids = num_bytes = num_cached = cached_bytes = 0
        for work in self._works:
            num_rows, num_row_bytes = work.read_cached()
            num_cached += num_rows
            cached_bytes += num_row_bytes
            cut, entity = work.share.cut, work.request.entity
            positions, rows = cut.positions[cut.halo], cut.ids[cut.halo]
            if self._halo is None or not len(rows):
                continue
            self._halo.locate(entity, rows, positions, work.located)
            ragged = self._halo.fetch_ragged(entity, work.ragged_names, rows)
            work.take(positions, ragged)
            row_bytes = sum(work.share.features[name].row_bytes for name in work.columns)
            num_bytes += len(rows) * row_bytes + sum(column_bytes(column, len(rows)) for column in ragged.values())
            num_ids += len(positions)
        counts = TrafficCounts(halo_ids=num_ids, halo_bytes=num_bytes, cache_ids=num_cached, cache_bytes=cached_bytes)
        if any(counts):
            self._traffic.add("fetch", counts)

    def result(self) -> list[dict[str, Column]]:
        """Return one dict of columns per request, and hand fetched rows to the cache."""
        answers: list[dict[str, Column]] = [dict.fromkeys(request.names, NO_POSITIONS) for request in self._requests]
        for work in self._works:
            columns = work.merge()
            answers[work.number].update(columns)
            found = work.found
            if found is not None and found.is_ragged:
                if evicted := found.keep(columns, work.fresh_positions):
                    self._traffic.add("fetch", TrafficCounts(cache_evictions=evicted))
            elif found is not None:
                found.keep_located(work.fresh_positions, work.located)
            if found is not None:
                found.end()
        for work in self._works:  # after all own rows are in the cache, because other threads may wait for them
            self._read_awaited(work)
        return answers

    def _read_awaited(self, work: _Work) -> None:
        """Wait for the rows that other threads fetch, and read them; those that do not come are requested."""
        positions, slots = work.awaited
        if work.found is None or self._fetch_rest is None or not len(positions):
            return
        work.found.wait(slots)
        ids = np.asarray(work.request.ids)[positions]
        rest = self._fetch_rest(FetchRequest(entity=work.request.entity, names=tuple(work.columns), ids=ids))
        for name, column in work.columns.items():
            column[positions] = rest[name]

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
    located = LocatedRows.none(share.features, len(request.ids))
    return _Work(number=number, request=request, share=share, columns=columns, located=located)


def _stitched(work: _Work, name: str, feature: FeatureSchema) -> RaggedArray:
    lengths = np.zeros(len(work.request.ids), np.int64)
    runs = [(positions, columns[name]) for positions, columns in work.runs if name in columns]
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
