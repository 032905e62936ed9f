"""Counts what is asked of other servers, and what halos here answer."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Literal

from hopstream.arrays import Column, RaggedArray
from hopstream.store.contract import SampleReply

Kind = Literal["sample", "fetch", "other"]
KINDS: tuple[Kind, ...] = ("sample", "fetch", "other")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficCounts:
    """What was asked of one kind: ``sample``, ``fetch``, or anything else (degrees, keys, links).

    Attributes:
        remote_requests: Requests to other servers; one asks for all parts and types that a server is asked for at once.
        remote_ids: Nodes and edges they were asked for; one that is asked for in several columns counts once.
        remote_bytes: Bytes of the arrays that they answered.
        halo_ids: Nodes and edges of other parts that a halo here answered for; a node of which a halo has the key and
            not the features that were asked for as well counts here and there.
        halo_bytes: Bytes of the arrays that it answered.
    """

    remote_requests: int = 0
    remote_ids: int = 0
    remote_bytes: int = 0
    halo_ids: int = 0
    halo_bytes: int = 0

    @property
    def halo_share(self) -> float:
        """Share of the nodes and edges of other parts that halos answered for; 0 where there were none."""
        total = self.remote_ids + self.halo_ids
        return self.halo_ids / total if total else 0.0


class Traffic:
    """Counts what a routed store asks of others and of halos. Safe to use from many threads."""

    def __init__(self) -> None:
        """Count from nothing."""
        self._lock = threading.Lock()
        self._counts: dict[Kind, TrafficCounts] = {kind: TrafficCounts() for kind in KINDS}

    def add(self, kind: Kind, more: TrafficCounts) -> None:
        """Count some more."""
        with self._lock:
            before = self._counts[kind]
            self._counts[kind] = TrafficCounts(
                remote_requests=before.remote_requests + more.remote_requests,
                remote_ids=before.remote_ids + more.remote_ids,
                remote_bytes=before.remote_bytes + more.remote_bytes,
                halo_ids=before.halo_ids + more.halo_ids,
                halo_bytes=before.halo_bytes + more.halo_bytes,
            )

    def counts(self) -> dict[Kind, TrafficCounts]:
        """What was counted so far, by kind."""
        with self._lock:
            return dict(self._counts)


def reply_bytes(reply: SampleReply) -> int:
    """Bytes of the arrays of an answer."""
    return reply.counts.nbytes + reply.neighbor_ids.nbytes + (0 if reply.edge_ids is None else reply.edge_ids.nbytes)


def column_bytes(column: Column, num_rows: int) -> int:
    """Bytes of some rows of a column; all of a ragged one."""
    if isinstance(column, RaggedArray):
        return column.values.nbytes + column.offsets.nbytes
    return num_rows * (column.nbytes // max(1, len(column)))
