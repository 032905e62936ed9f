"""Polls the servers of a cluster for their statistics, and computes rates between two polls."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from hopstream.errors import AccessDenied, FormatError, HopstreamError
from hopstream.store.cluster import Cluster, ServerEntry
from hopstream.store.facts import StoreFacts
from hopstream.store.settings import StoreSettings
from hopstream.transport.connection import Connection
from hopstream.transport.location import Location
from hopstream.transport.messages import Frame

MAX_ASKING = 64
"""Servers that are polled at the same time."""
Numbers = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer of one server.

    Attributes:
        at: Time of the answer, by the monotonic clock.
        parts: The parts that the server serves.
        num_parts: Number of parts of the dataset.
        stats: Counters since the server started.
        totals: Numbers of its scheduler; None if it does not sample.
        channels: Its channels by number.
    """

    at: float
    parts: tuple[int, ...]
    num_parts: int
    stats: Numbers
    totals: Numbers | None = None
    channels: Mapping[int, Numbers] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """State of a server at one time.

    Attributes:
        entry: Its entry in the cluster.
        answer: Its answer; None if it did not answer.
        before: Its previous answer; None if there is none, or the server restarted since.
        reason: Why it did not answer.
        is_refused: It refused to answer, because the token lacks the rights.
    """

    entry: ServerEntry
    answer: Answer | None = None
    before: Answer | None = None
    reason: str = ""
    is_refused: bool = False

    def per_s(self, name: str) -> float:
        """Return the growth per second of a counter in ``stats``.

        The time counts from the previous answer, or without one from the server's start.
        """
        if self.answer is None:
            return 0.0
        now = float(self.answer.stats[name])
        if self.before is None:
            return _ratio(now, float(self.answer.stats["uptime_s"]))
        return _ratio(now - float(self.before.stats[name]), self.answer.at - self.before.at)

    def channel_growth(self, channel: Numbers, name: str) -> float:
        """Return the growth of a channel's counter, since the previous answer or the channel's registration."""
        known = {} if self.before is None else self.before.channels
        earlier = known.get(channel["channel"])
        return float(channel[name]) - (0.0 if earlier is None else float(earlier[name]))

    def batches_per_s(self, channel: Numbers) -> float:
        """Return the number of fetched batches of a channel per second."""
        answer, before = self.answer, self.before
        is_known = answer is not None and before is not None and channel["channel"] in before.channels
        seconds = answer.at - before.at if is_known and answer and before else float(channel["age_s"])
        return _ratio(self.channel_growth(channel, "num_fetched"), seconds)

    def sampling_share(self, channel: Numbers) -> float:
        """Return the channel's share of the server's sampling time."""
        others = () if self.answer is None else self.answer.channels.values()
        all_s = sum(self.channel_growth(one, "sampling_s") for one in others)
        return _ratio(self.channel_growth(channel, "sampling_s"), all_s)


class Survey:
    """Poller of all servers of a cluster."""

    def __init__(self, cluster: Cluster, settings: StoreSettings) -> None:
        """Prepare the connections; no server is polled yet.

        Raises:
            AccessDenied: A token would be sent in the clear.
        """
        settings = cluster.access(settings)
        self._watched = [_Watched(entry, settings) for entry in cluster.servers]
        self._pool = ThreadPoolExecutor(min(MAX_ASKING, len(self._watched)), "hopstream-top")

    def ask(self) -> list[ServerState]:
        """Poll every server; return their states in the order of the cluster."""
        return list(self._pool.map(_Watched.ask, self._watched))

    def __enter__(self) -> Survey:
        """Return the survey; no server is polled yet."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Disconnect; requests under way end by their deadline at the latest."""
        for watched in self._watched:
            watched.connection.close()
        self._pool.shutdown(cancel_futures=True)


class _Watched:
    """Server, and its last answer."""

    def __init__(self, entry: ServerEntry, settings: StoreSettings) -> None:
        self._entry = entry
        self._timeout_s = settings.timeout_s
        self.connection = Connection(Location.parse(entry.location), settings.security)
        self._facts: StoreFacts | None = None
        self._samples = True
        self._last: Answer | None = None

    def ask(self) -> ServerState:
        """Poll the server within one deadline."""
        try:
            answer = self._answer(time.monotonic() + self._timeout_s)
        except HopstreamError as error:
            self._facts, self._samples, self._last = None, True, None
            reason = str(error).splitlines()[0]
            return ServerState(entry=self._entry, reason=reason, is_refused=isinstance(error, AccessDenied))
        before, self._last = self._last, answer
        if before is not None and before.stats["uptime_s"] > answer.stats["uptime_s"]:
            before = None  # the server restarted
        return ServerState(entry=self._entry, answer=answer, before=before)

    def _answer(self, ends: float) -> Answer:
        if self._facts is None:
            self._facts = StoreFacts.from_frame(self._call("describe", "", ends))
        dataset_id, parts, num_parts = self._facts.dataset_id, self._facts.parts, self._facts.book.num_parts
        stats = self._call("stats", dataset_id, ends).header
        totals: Numbers | None = None
        channels: Sequence[Numbers] = ()
        if self._samples:
            try:
                said = self._call("describe_channels", dataset_id, ends).header
                totals, channels = said["totals"], said["channels"]
            except FormatError:  # the server does not sample; asking again would only raise its count of refusals
                self._samples = False
        return Answer(
            at=time.monotonic(), parts=parts, num_parts=num_parts, stats=stats, totals=totals,
            channels={int(one["channel"]): one for one in channels},
        )  # fmt: skip

    def _call(self, op: str, dataset_id: str, ends: float) -> Frame:
        request = Frame({"op": op, "dataset": dataset_id})
        return self.connection.ask(request, max(1e-3, ends - time.monotonic()), op)


def _ratio(amount: float, whole: float) -> float:
    return amount / whole if whole > 0 else 0.0
