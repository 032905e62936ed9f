"""Routed store: sends each part of a request to a store that holds it, and merges the answers.

A request is split by owner, all owners are asked at once, and the answers are merged by the positions that the split
recorded, so the order of arrival does not matter. Any replica of a part may answer. If one fails, the next one is
asked; draws are a pure function of the request, so it gives the same answer.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar, cast

import numpy as np

from hopstream.arrays import Column, IntArray
from hopstream.dataset.book import ends_of, entity_label
from hopstream.errors import (
    AccessDenied,
    FormatError,
    HopstreamError,
    IdRangeError,
    SettingsError,
    StoreError,
    StoreTimeout,
    StoreUnavailable,
    VersionMismatch,
)
from hopstream.schema import Direction, EdgeType, type_label
from hopstream.store.contract import (
    FetchRequest,
    Kind,
    Links,
    Pending,
    SampleReply,
    SampleRequest,
    Store,
    TrafficCounts,
)
from hopstream.store.fetch_stitching import FetchPlanner, FetchStitch
from hopstream.store.halo import HaloStore
from hopstream.store.local import LocalStore
from hopstream.store.remote import RemoteStore, describe_fetch, describe_sample, parts_label
from hopstream.store.requests import (
    check_edge_split,
    check_entity,
    check_find_edges,
    check_keys,
    check_links,
    check_split,
    has_own_times,
)
from hopstream.store.row_cache import close_row_cache, open_row_cache
from hopstream.store.settings import StoreSettings
from hopstream.store.stitching import (
    Question,
    RowsStitch,
    SampleStitch,
    SplitStitch,
    Stitch,
    Traffic,
)
from hopstream.transport.connection import TOKEN_REMEDY, ask_again_if_busy
from hopstream.transport.failures import ANSWERED

T = TypeVar("T")
FEW_KEYS = 64
"""Most keys of a lookup whose ids are kept."""
MAX_KNOWN = 1 << 16
"""Most keys of a node type whose ids are kept; about 10 MB."""
MAX_PINGING = 64
"""Servers that are pinged at once; more servers share the deadline in rounds."""
Explain = Callable[[HopstreamError, Sequence[int]], HopstreamError]
"""Function that maps an error, and the parts that no store could serve, to the error to raise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GonePeer:
    """Server that does not answer.

    Attributes:
        location: Address of the server.
        reason: Error of the ping, in one line.
        lost_parts: Its parts that no answering store serves.
    """

    location: str
    reason: str
    lost_parts: tuple[int, ...]


class RoutedStore(Store):
    """All parts of a dataset, each held by one or more stores. Safe to use from many threads."""

    def __init__(
        self, stores: Sequence[Store], settings: StoreSettings | None = None, explain: Explain | None = None
    ) -> None:
        """Take over stores of one dataset; ``close`` closes them.

        Args:
            stores: Stores that together hold every part. Local stores are asked before remote ones. Stores whose parts
                are unknown are asked last, after a request for their parts.
            settings: Deadline, first replica and bytes of the cache.
            explain: Adds what the caller knows about the reason to an error for parts that no store serves.

        Raises:
            VersionMismatch: The stores are of different datasets.
            StoreUnavailable: No store holds some part.
        """
        settings = settings or StoreSettings()
        self._stores = sorted(stores, key=lambda store: isinstance(store, RemoteStore))
        self._timeout_s = settings.timeout_s
        self._explain = explain or (lambda error, _: error)
        if not self._stores:
            raise StoreUnavailable("no store was given; a routed store needs one for every part")
        check_same_dataset(self._stores)
        self.take_facts(self._stores[0])
        self.parts = tuple(range(self.book.num_parts))
        missing = sorted(set(self.parts).difference(*(store.parts for store in self._stores)))
        if missing:
            raise StoreUnavailable(f"no store holds {parts_label(missing)}; start a server for it")
        self._replicas = [_replicas(self._stores, part, settings.first_replica) for part in self.parts]
        self._halo = _open_halo(self._stores)
        self._traffic = Traffic()
        self._known_ids: dict[str, dict[int, int]] = {}
        self._known_lock = threading.Lock()
        here = [part for store in self._stores if not isinstance(store, RemoteStore) for part in store.parts]
        self.asks_servers = len(here) < len(self.parts)
        cache_bytes = cast("int | None", settings.cache_bytes)
        self.cache = open_row_cache(self.dataset_id, cache_bytes) if self.asks_servers else None
        self.keeps_rows = self.cache is not None
        if self.cache is not None:
            self._release = weakref.finalize(self, close_row_cache, self.dataset_id)
        self._planner = FetchPlanner(self, self._halo, self.cache, here)

    def submit_sample(self, requests: Sequence[SampleRequest]) -> Pending[list[SampleReply]]:
        """Ask all owners to draw neighbours; see ``Store.sample``."""
        return self._start(SampleStitch(self, requests, self._traffic, self._halo), lambda: describe_sample(requests))

    def submit_fetch(self, requests: Sequence[FetchRequest]) -> Pending[list[dict[str, Column]]]:
        """Ask all owners for rows; see ``Store.fetch``."""
        stitch = FetchStitch(self._planner, requests, self._traffic, self._fetch_rest)
        return self._start(stitch, lambda: describe_fetch(requests))

    def _fetch_rest(self, request: FetchRequest) -> dict[str, Column]:
        stitch = FetchStitch(self._planner, [request], self._traffic)
        return self._answer(stitch, lambda: describe_fetch([request]))[0]

    def announce_fetch(self, requests: Sequence[FetchRequest]) -> list[Any]:
        """Announce rows to the cache; see ``Store.announce_fetch``."""
        return self._planner.announce(requests)

    def lookup(self, node_type: str, keys: IntArray) -> IntArray:
        """Return the ids of nodes given by key, local ones without a request; see ``Store.lookup``.

        Ids of small lookups are kept, because a program that scores nodes as requests arrive asks for some of them
        again and again.
        """
        keys = np.ascontiguousarray(keys, np.int64)
        check_keys(self, node_type, keys)
        if len(keys) > FEW_KEYS:
            return self._look_up(node_type, keys)
        known, asked = self._known_ids.setdefault(node_type, {}), keys.tolist()
        found = [known.get(key, -1) for key in asked]
        if -1 in found:
            found = self._look_up(node_type, keys).tolist()
            with self._known_lock:
                known.update(zip(asked, found, strict=True))
                while len(known) > MAX_KNOWN:
                    del known[next(iter(known))]
        return np.array(found, np.int64)

    def _look_up(self, node_type: str, keys: IntArray) -> IntArray:
        ids = np.full(len(keys), -1, np.int64)
        for store in self._stores:
            if isinstance(store, LocalStore):
                np.maximum(ids, store.find_own(node_type, keys), out=ids)
        (others,) = np.nonzero(ids < 0)
        asked = keys[others]
        offsets = self.book.key_offsets(node_type)
        stitch = RowsStitch(asked, offsets, lambda at: ("lookup", node_type, asked[at]), self._traffic)
        ids[others] = self._answer(stitch, lambda: f"lookup({node_type}, {len(asked)} keys)")[0]
        return ids

    def split(self, node_type: str, name: str) -> IntArray:
        """Return the keys of a split; see ``Store.split``."""
        check_split(self, node_type, name)
        stitch = SplitStitch(self.book.key_offsets(node_type), "split", node_type, name)
        return self._answer(stitch, lambda: f"split({node_type}, {name})")

    def edge_split(self, edge_type: EdgeType, name: str) -> IntArray:
        """Return the edge keys of a split; see ``Store.edge_split``."""
        check_edge_split(self, edge_type, name)
        stitch = SplitStitch(self.book.link_offsets(edge_type), "edge_split", edge_type, name)
        return self._answer(stitch, lambda: f"edge_split({type_label(edge_type)}, {name})")

    def degrees(self, edge_type: EdgeType, direction: Direction, ids: IntArray) -> IntArray:
        """Return the number of edges of each id; see ``Store.degrees``."""
        ids = np.ascontiguousarray(ids, np.int64)
        entity = (edge_type, direction)
        check_entity(self, entity)
        self.book.check_ids(ends_of(*entity)[0], ids)
        return self._by_node(
            entity, ids, lambda halo, rows, _: halo.degrees(entity, rows), lambda at: ("degrees", *entity, ids[at]),
            lambda: f"degrees({entity_label(entity)}, {len(ids)} ids)",
        )  # fmt: skip

    def find_edges(self, edge_type: EdgeType, direction: Direction, ids: IntArray, neighbor_ids: IntArray) -> IntArray:
        """Return the ids of edges between pairs of nodes; see ``Store.find_edges``."""
        ids, others = np.ascontiguousarray(ids, np.int64), np.ascontiguousarray(neighbor_ids, np.int64)
        entity = (edge_type, direction)
        check_find_edges(self, *entity, ids, others)
        return self._by_node(
            entity, ids, lambda halo, rows, at: halo.find_edges(entity, rows, others[at]),
            lambda at: ("find_edges", *entity, ids[at], others[at]),
            lambda: f"find_edges({entity_label(entity)}, {len(ids)} pairs)",
        )  # fmt: skip

    def _by_node(
        self,
        entity: tuple[EdgeType, Direction],
        ids: IntArray,
        of_halo: Callable[[HaloStore, IntArray, IntArray], IntArray],
        of_store: Callable[[IntArray], Question],
        describe: Callable[[], str],
    ) -> IntArray:
        """Return a number per node, int64[n], from a local halo or from the nodes' owners.

        Args:
            entity: Edge type and direction.
            ids: int64[n], checked.
            of_halo: Computes the numbers of rows of the halo, given the rows and their positions.
            of_store: Makes the operation for the ids at some positions.
            describe: Formats the operation for messages.
        """
        rows = None if self._halo is None else self._halo.find_nodes(entity, ids)
        offsets = self.book.offsets(ends_of(*entity)[0])
        if self._halo is None or rows is None:
            return self._answer(RowsStitch(ids, offsets, of_store, self._traffic), describe)[0]
        (near,), (far,) = np.nonzero(rows >= 0), np.nonzero(rows < 0)
        numbers = np.empty(len(ids), np.int64)
        stitch = RowsStitch(ids[far], offsets, lambda at: of_store(far[at]), self._traffic)
        numbers[far] = self._answer(stitch, describe)[0]
        numbers[near] = of_halo(self._halo, rows[near], near)
        self._traffic.add("other", TrafficCounts(halo_ids=len(near), halo_bytes=8 * len(near)))
        return numbers

    def links(self, edge_type: EdgeType, edge_keys: IntArray) -> Links:
        """Return end nodes and times of edges given by key; see ``Store.links``."""
        keys = np.ascontiguousarray(edge_keys, np.int64)
        check_links(self, edge_type, keys)
        width = 3 if has_own_times(self, edge_type) else 2
        stitch = RowsStitch(
            keys, self.book.link_offsets(edge_type), lambda at: ("links", edge_type, keys[at]), self._traffic, width,
        )  # fmt: skip
        return Links.of(self._answer(stitch, lambda: f"links({type_label(edge_type)}, {len(keys)} edges)"))

    def traffic(self) -> dict[Kind, TrafficCounts]:
        """Return the traffic of servers, halos and the cache since the store was opened, by kind."""
        return self._traffic.counts()

    def peer_failures(self) -> dict[str, int]:
        """Return the failed attempts at each server since the store was opened, by location, without pings."""
        return {peer.location: self._traffic.num_failures(peer.location) for peer in self._peers()}

    def gone_peers(self, timeout_s: float) -> list[GonePeer]:
        """Ping all servers at once, and return those that do not answer.

        Args:
            timeout_s: Time limit in total.

        Raises:
            StateError: The process was forked since the store was opened.
        """
        peers = self._peers()
        if not peers:
            return []
        num_rounds = -(-len(peers) // MAX_PINGING)
        with ThreadPoolExecutor(min(len(peers), MAX_PINGING), thread_name_prefix="hopstream-ping") as pool:
            reasons = list(pool.map(lambda peer: _ping(peer, timeout_s / num_rounds), peers))
        answering = {part for store in self._stores if not isinstance(store, RemoteStore) for part in store.parts}
        answering.update(part for peer, reason in zip(peers, reasons, strict=True) if not reason for part in peer.parts)
        return [
            GonePeer(location=peer.location, reason=reason, lost_parts=tuple(sorted(set(peer.parts) - answering)))
            for peer, reason in zip(peers, reasons, strict=True)
            if reason
        ]

    def explain_damage(self, error: FormatError | IdRangeError) -> FormatError | IdRangeError:
        """Return an error that names the damaged file if it is on this machine; see ``Store.explain_damage``."""
        here = [store for store in self._stores if isinstance(store, LocalStore)]
        return here[0].explain_damage(error) if here else super().explain_damage(error)

    def close(self) -> None:
        """Close all stores; a second call does nothing. Safe to call while other threads use the store."""
        for store in self._stores:
            store.close()
        if self.cache is not None:
            self._release()

    def _peers(self) -> list[RemoteStore]:
        return [store for store in self._stores if isinstance(store, RemoteStore)]

    def _start(self, stitch: Stitch[T], describe: Callable[[], str]) -> Pending[T]:
        asking = _Asking(self, stitch, describe)
        asking.begin()
        return asking

    def _answer(self, stitch: Stitch[T], describe: Callable[[], str]) -> T:
        return self._start(stitch, describe).result()


class _Asking(Generic[T]):
    """Request under way at several stores.

    Every attempt at a replica has a share of the time left. So a replica that hangs leaves time for the others.
    """

    def __init__(self, routed: RoutedStore, stitch: Stitch[T], describe: Callable[[], str]) -> None:
        self._stitch = stitch
        self._stores, self._replicas = routed._stores, routed._replicas
        self._describe, self._explain = describe, routed._explain
        self._traffic, self._dataset_id = routed._traffic, routed.dataset_id
        self._ends = time.monotonic() + routed._timeout_s
        self._untried: dict[int, list[int]] = {part: list(self._replicas[part]) for part in stitch.parts()}
        self._failures: dict[int, list[HopstreamError]] = {part: [] for part in self._untried}
        self._under_way: list[tuple[int, list[int], Callable[[], None]]] = []
        self._were_busy: dict[int, set[int]] = {part: set() for part in self._untried}

    def begin(self) -> None:
        """Ask the first replica of each part; local work is done first, while servers answer."""
        self._ask(list(self._untried))
        self._under_way.append((-1, [], self._stitch.ask_here))

    def result(self) -> T:
        """Do the local work, wait for the servers, and ask other replicas after failures."""
        fatal: Exception | None = None
        while self._under_way:
            index, parts, finish = self._under_way.pop()
            try:
                finish()
                self._prefer(index, parts)
            except (StoreTimeout, StoreUnavailable) as error:
                self._traffic.add_failure(self._stores[index])
                for part in parts:
                    self._failures[part].append(error)
                    ask_again_if_busy(error, index, self._untried[part], self._were_busy[part])
                fatal = fatal or self._given_up(parts)
                if fatal is None:
                    self._ask(parts)
            except Exception as error:  # wait for the other answers: they may use the caller's arrays
                if parts and isinstance(error, StoreError):  # without parts it was the halo or the cache
                    self._traffic.add_failure(self._stores[index])
                fatal = fatal or error
        if fatal is not None:
            self._stitch.fail()
            raise fatal
        return self._stitch.result()

    def _ask(self, parts: Sequence[int]) -> None:
        """Ask the next replica of each part; local work comes last, because ``result`` pops from the end."""
        groups: dict[int, list[int]] = {}
        here: list[tuple[int, list[int], Callable[[], None]]] = []
        for part in parts:
            index = self._untried[part].pop(0)
            if part in self._stores[index].parts:
                groups.setdefault(index, []).append(part)
            else:
                self._under_way.append((index, [part], partial(self._ask_unknown, index, part)))
        for index, group in groups.items():
            store = self._stores[index]
            if isinstance(store, RemoteStore):
                is_last = not all(self._num_known(part) for part in group)
                remote = store.with_timeout(self._share_s(group), is_patient=is_last, is_checked=True)
                self._under_way.append((index, group, self._stitch.start(remote, group)))
            else:
                here.append((index, group, self._stitch.start(store, group)))
        self._under_way += here

    def _ask_unknown(self, index: int, part: int) -> None:
        """Ask a server whether it serves a part, and if so send it the request."""
        server = cast(RemoteStore, self._stores[index])
        if part not in server.parts:
            server.ask_facts(self._share_s([part]))
        if server.facts.dataset_id != self._dataset_id:
            raise StoreUnavailable(
                f"{server.label} serves dataset {server.facts.dataset_id}; wanted {self._dataset_id}: restart "
                "it with that dataset"
            )
        if part not in server.parts:
            raise StoreUnavailable(f"{server.label} does not serve {parts_label([part])}")
        self._untried[part].insert(0, index)
        self._ask([part])

    def _share_s(self, parts: Sequence[int]) -> float:
        """Return the time limit of an attempt: the time left, shared equally with the untried replicas."""
        left_s = max(1e-3, self._ends - time.monotonic())
        return left_s / (1 + max(self._num_known(part) for part in parts))

    def _num_known(self, part: int) -> int:
        """Return the number of untried replicas of a part; servers of unknown parts do not count."""
        return sum(part in self._stores[index].parts for index in self._untried[part])

    def _prefer(self, index: int, parts: Sequence[int]) -> None:
        """Make the replica that answered after a failover the first choice of its parts."""
        for part in parts:
            if self._failures[part]:
                others = [replica for replica in self._replicas[part] if replica != index]
                self._replicas[part] = [index, *others]

    def _given_up(self, parts: Sequence[int]) -> HopstreamError | None:
        """Return the error to raise if some part has no replica or no time left."""
        is_late = time.monotonic() >= self._ends
        lost = [part for part in parts if is_late or not self._untried[part]]
        return self._explain(self._error_of(lost), lost) if lost else None

    def _error_of(self, lost: Sequence[int]) -> HopstreamError:
        """Combine the errors of all replicas of a part that could not be served."""
        failures = self._failures[lost[0]]
        if len(failures) == 1:
            return failures[0]
        kind = StoreTimeout if any(isinstance(error, StoreTimeout) for error in failures) else StoreUnavailable
        tried = "; ".join(str(error) for error in failures)
        error = kind(f"no replica of {parts_label(lost)} answered {self._describe()}: {tried}")
        for failure in failures:
            for note in getattr(failure, "__notes__", []):
                error.add_note(note)
        return error


def _ping(peer: RemoteStore, timeout_s: float) -> str:
    """Return the reason why a server does not answer; empty if it does."""
    try:
        peer.ping(timeout_s)
    except AccessDenied as error:
        return own_refusal(error, f"ping {peer.location}")
    except (StoreError, SettingsError) as error:  # SettingsError: a file of the security settings became unreadable
        return str(error).partition("\n")[0]
    return ""


def own_refusal(error: AccessDenied, what: str) -> str:
    """Return the text of an error for a server whose own token a peer refuses.

    Args:
        error: The peer's refusal, or the refusal to send the token without TLS.
        what: What the server cannot do, as in ``open the graph``.
    """
    told = str(error).removesuffix(f"; {TOKEN_REMEDY}")
    origin = [note for note in getattr(error, "__notes__", []) if note.startswith(ANSWERED)]
    if told == str(error) and not origin:
        return f"the server cannot {what}: {error}"
    said = "; ".join([told, *origin])
    return (
        f"the server cannot {what}: its own token (the first admin token of its --token-file) is refused: {said}; "
        "correct that line, which the server reads again without a restart"
    )


def check_same_dataset(stores: Sequence[Store]) -> None:
    """Raise ``VersionMismatch`` unless all stores hold the same dataset."""
    for store in stores[1:]:
        if store.dataset_id != stores[0].dataset_id:
            raise VersionMismatch(
                f"{store_label(store)} holds dataset {store.dataset_id}; {store_label(stores[0])} holds "
                f"{stores[0].dataset_id}; serve the same dataset everywhere"
            )


def store_label(store: Store) -> str:
    """Format a store for messages: its parts and its address."""
    return store.label if isinstance(store, RemoteStore) else f"{parts_label(store.parts)} here"


def _open_halo(stores: Sequence[Store]) -> HaloStore | None:
    """Open the halos of local parts; None if all parts are local, none has a halo, or halos differ."""
    here = [store for store in stores if isinstance(store, LocalStore)]
    parts = sorted({part for store in here for part in store.parts})
    if len({store.halo_id for store in here}) > 1:
        return None  # folders of one dataset whose halos differ
    halos = {halo.part: halo for store in here for halo in store.open_halos()}
    if not halos or len(parts) == here[0].book.num_parts:
        return None
    return HaloStore(list(halos.values()), here[0].schema, here[0].book, parts)


def _replicas(stores: Sequence[Store], part: int, first_replica: int) -> list[int]:
    """Return the stores to ask for a part: local, remote from ``first_replica`` on, with unknown parts."""
    holding = [index for index, store in enumerate(stores) if part in store.parts]
    here = [index for index in holding if not isinstance(stores[index], RemoteStore)]
    there = holding[len(here) :]
    turn = first_replica % len(there) if there else 0
    unknown = [index for index, store in enumerate(stores) if not store.parts]
    return [*here, *there[turn:], *there[:turn], *unknown]
