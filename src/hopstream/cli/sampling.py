"""Sampling for trainers in a server started by the command line, and its report at the end."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopstream.checks import check_int, check_seconds
from hopstream.cli.options import flag_name
from hopstream.cli.server_flags import ServerAccess
from hopstream.cli.units import printable_text
from hopstream.errors import FormatError, SettingsError, StoreTimeout, StoreUnavailable
from hopstream.stream.settings import MIN_MEMORY_BYTES, SamplingLimits
from hopstream.uris import local_path

if TYPE_CHECKING:
    from hopstream.store.answer import Operation
    from hopstream.store.cluster import Cluster
    from hopstream.store.contract import Store
    from hopstream.store.local import LocalStore
    from hopstream.store.settings import ServerLimits
    from hopstream.stream.service import SamplingService
    from hopstream.transport.security import ClientSecurity


LOG = logging.getLogger(__name__)
MIN_JOIN_S = 1.0
"""Least time for batches under way, if requests have used up the grace period."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingSource:
    """Whether a server samples, and how it reaches the parts of its peers.

    Raises:
        SettingsError: A field is out of range.
    """

    cluster: str | None = field(
        default=None,
        metadata={"help": "sample for trainers; the cluster.json or the addresses, joined by commas, of all servers"},
    )
    sample: bool = field(default=False, metadata={"help": "sample for trainers; this server must serve all parts"})
    map_local: bool = field(
        default=True, metadata={"help": "also map parts of other servers whose folder is on this machine"}
    )
    peer_timeout_s: float = field(
        default=30.0, metadata={"help": "seconds within which another server must answer a request for sampling"}
    )
    peer_ca: Path | None = field(
        default=None,
        metadata={"help": "roots that other servers' certificates must lead to, PEM; else --client-ca or the system's"},
    )
    cache_bytes: int | None = field(
        default=None,
        metadata={
            "help": "memory for cached rows of other servers, on top of --memory-bytes; if not given, none with "
            "--memory-bytes, else an eighth of the free memory"
        },
    )

    def __post_init__(self) -> None:
        """Check the numbers; servers and files are checked when they are used."""
        check_seconds("peer_timeout_s", self.peer_timeout_s)
        if self.cache_bytes is not None:
            check_int("cache_bytes", self.cache_bytes, 0, 1 << 62)

    @property
    def is_on(self) -> bool:
        """Whether the server samples."""
        return self.sample or self.cluster is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftovers:
    """Channels and threads that were left when sampling was stopped.

    Attributes:
        channels: Descriptions of the channels that still existed.
        threads: Text about threads that did not end in time; "" if all ended.
    """

    channels: Sequence[Mapping[str, Any]] = ()
    threads: str = ""

    @property
    def is_clean(self) -> bool:
        """Whether every thread has ended.

        Trainers resume interrupted channels on another server or after a restart.
        """
        return not self.threads

    @property
    def facts(self) -> list[dict[str, Any]]:
        """The channels as JSON objects."""
        return [
            {
                "channel": channel["channel"], "worker": channel["worker"], "epoch": channel["epoch"],
                "fetched": channel["num_epoch_fetched"], "steps": channel["num_own_steps"],
                "mid_epoch": channel["is_mid_epoch"],
            }
            for channel in self.channels
        ]  # fmt: skip

    def log(self) -> None:
        """Log a warning for each channel that was left, and an error for threads."""
        for left in self.facts:
            LOG.warning("%s", left_text(left))
        if self.threads:
            LOG.error("%s", self.threads)


def left_text(left: Mapping[str, Any]) -> str:
    """Format one of ``Leftovers.facts`` for people."""
    where = "in the middle of" if left["mid_epoch"] else "after"
    return (
        f"channel {left['channel']} ({printable_text(left['worker'], 60)}) was left {where} epoch {left['epoch']}: "
        f"{left['fetched']} of {left['steps']} batches fetched"
    )


class Sampler:
    """Sampling service of one server; without a service, its methods do nothing."""

    def __init__(self, service: SamplingService | None, opener: _Opener, limits: SamplingLimits | None = None) -> None:
        """Wrap a service; None if the server does not sample."""
        self._service = service
        self._opener = opener
        self._limits = limits or SamplingLimits()

    @property
    def service(self) -> SamplingService | None:
        """The sampling service, for metrics."""
        return self._service

    @property
    def operations(self) -> Mapping[str, Operation]:
        """Operations for ``StoreServer``."""
        if self._service is None:
            return {}
        return self._service.operations

    @property
    def server_limits(self) -> ServerLimits:
        """Limits for ``StoreServer``."""
        from hopstream.store.settings import ServerLimits

        limits = ServerLimits(max_request_bytes=self._limits.max_request_bytes)
        bound = self._limits.transport_bytes
        return limits if bound is None else replace(limits, max_bytes=bound)

    def serve_at(self, location: str) -> None:
        """Set the address of the own server, so that sampling does not send requests to it."""
        self._opener.location = location

    def refuse(self) -> None:
        """Refuse new channels."""
        if self._service is not None:
            self._service.refuse()

    def end(self, join_s: float) -> Leftovers:
        """Wait for batches under way, and close all channels."""
        if self._service is None:
            return Leftovers()
        channels, threads = self._service.describe(), ""
        try:
            self._service.close(max(join_s, MIN_JOIN_S))
        except StoreTimeout as error:
            threads = str(error)
        return Leftovers(channels=channels, threads=threads)


@contextmanager
def sampler_of(
    store: LocalStore, dataset: Path, source: SamplingSource, limits: SamplingLimits, access: ServerAccess
) -> Iterator[Sampler]:
    """Run the sampling service inside the context, if sampling is on.

    The first request of a trainer opens the graph.

    Raises:
        SettingsError: Parts are missing and no cluster is given, the cluster is of another dataset, or flags for
            sampling are given and it is off.
        FormatError: The cluster file is invalid.
    """
    if source.cache_bytes is None and limits.memory_bytes:
        source = replace(source, cache_bytes=0)
    opener = _Opener(store, dataset, source, access)
    _check(store, source, limits)
    if not source.is_on:
        yield Sampler(None, opener)
        return
    opener.check()
    from hopstream.engine.machine import give_back_large_blocks
    from hopstream.stream.service import SamplingService

    if limits.memory_bytes:
        give_back_large_blocks()
    service = SamplingService(opener, limits)
    try:
        yield Sampler(service, opener, limits)
    finally:
        service.close(MIN_JOIN_S)


def limit_flags(limits: SamplingLimits) -> list[str]:
    """Return limits as arguments of a command line."""
    return [word for one in fields(limits) for word in (flag_name(one.name), str(getattr(limits, one.name)))]


def _check(store: LocalStore, source: SamplingSource, limits: SamplingLimits) -> None:
    if not source.is_on and (limits != SamplingLimits() or source != SamplingSource()):
        flags = ", ".join(flag_name(name) for name in _changed(source, limits))
        raise SettingsError(f"{flags}: sampling is off; give --cluster, or --sample with all parts")
    if 0 < int(limits.memory_bytes) < MIN_MEMORY_BYTES:
        raise SettingsError(
            f"--memory-bytes is {limits.memory_bytes}; a server needs at least {MIN_MEMORY_BYTES}; give that or more, "
            "or 0 for no bound"
        )
    num_parts = store.book.num_parts
    if source.cluster is None and source.sample and len(store.parts) < num_parts:
        raise SettingsError(
            f"--sample needs the whole graph, and this server serves {len(store.parts)} of its {num_parts} parts; give "
            "--cluster with the servers of all parts"
        )


def _changed(*records: object) -> Iterator[str]:
    """Yield the names of the fields that differ from their defaults."""
    for record in records:
        for one in fields(record):  # type: ignore[arg-type]
            if getattr(record, one.name) != one.default:
                yield one.name


class _Opener:
    """Callable that opens the whole graph for sampling.

    The server's own parts come from its folder, other parts from its peers.
    """

    def __init__(self, store: LocalStore, dataset: Path, source: SamplingSource, access: ServerAccess) -> None:
        self._parts, self._dataset_id = tuple(store.parts), store.dataset_id
        self._dataset = dataset.resolve()
        self._source = source
        self._access = access
        self.location = "tcp://127.0.0.1:1"  # placeholder until the server listens

    def __call__(self) -> Store:
        """Open the graph; the service calls this again after a failure."""
        from hopstream.store.cluster import Cluster, ServerEntry, open_cluster
        from hopstream.store.settings import StoreSettings

        own = ServerEntry(location=self.location, parts=self._parts, path=self._dataset)
        cluster = self._cluster() or Cluster(dataset_id=self._dataset_id, servers=(own,))
        settings = StoreSettings(
            timeout_s=self._source.peer_timeout_s, prefer_local=self._source.map_local, security=self._security(),
            cache_bytes=self._source.cache_bytes,
        )  # fmt: skip
        return open_cluster(replace(cluster, dataset_id=self._dataset_id), settings, own=own)

    def check(self) -> None:
        """Check what can be checked without asking servers; a missing cluster file may still be written."""
        from hopstream.store.settings import StoreSettings

        StoreSettings(timeout_s=self._source.peer_timeout_s, security=self._security())
        try:
            cluster = self._cluster()
        except StoreUnavailable as error:
            LOG.warning("%s", error)
            return
        if cluster is not None and cluster.dataset_id not in (None, self._dataset_id):
            raise SettingsError(
                f"--cluster {self._source.cluster} is of dataset {cluster.dataset_id}; {self._dataset} is "
                f"{self._dataset_id}; serve the cluster's dataset, or name another cluster"
            )

    def _cluster(self) -> Cluster | None:
        """Read the cluster; its file may be written after the server started.

        Raises:
            StoreUnavailable: The file does not exist yet.
        """
        from hopstream.store.cluster import parse_locations, read_cluster

        named = self._source.cluster
        if named is None:
            return None
        if "://" in named:
            return parse_locations(named)
        try:
            return read_cluster(local_path(named))
        except FormatError as error:
            if Path(named).exists():
                raise
            raise StoreUnavailable(
                f"{named} does not exist yet, so this server cannot find the other servers; write the file, or start "
                "the servers that write it"
            ) from error

    def _security(self) -> ClientSecurity:
        """Return the security settings for requests to peers: the server's own certificate and token."""
        from hopstream.transport.security import ClientSecurity, read_pem

        own = self._access.read()
        if self._source.peer_ca is not None:
            read_pem(self._source.peer_ca)
        return ClientSecurity(
            token=own.token,
            token_file=own.token_file,
            roots=self._source.peer_ca or own.client_roots,
            certificate=own.certificate,
            private_key=own.private_key,
            is_insecure=own.is_insecure,
        )
