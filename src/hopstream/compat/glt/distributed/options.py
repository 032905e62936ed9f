"""How many workers sample for a loader, and how far ahead, in GraphLearn-for-PyTorch's words.

Sampling here needs no process groups of its own: ``worker_devices``, ``master_addr``, ``master_port``,
``num_rpc_threads``, ``glt_graph``, ``workload_type`` and ``use_all2all`` are accepted and have no effect, and
``master_addr`` and ``master_port`` need not be set.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hopstream.checks import check_seconds, read_integer
from hopstream.errors import SettingsError

MAX_WORKER_CONCURRENCY = 32
"""Batches in flight per worker, at most; more are taken for as many."""
MAX_WORKERS = 1 << 16
WORKER_BUFFER_MB = 64
"""Megabytes of buffer per worker, where none are given."""


@dataclass(slots=True)
class CollocatedDistSamplingWorkerOptions:
    """Sampling in the loader's own process.

    Attributes:
        master_addr: No effect.
        master_port: No effect.
        num_rpc_threads: No effect.
        rpc_timeout: Seconds within which a store must answer.
        num_workers: Always 1.
        worker_concurrency: Always 1.

    Raises:
        SettingsError: ``rpc_timeout`` is no number of seconds above 0.
    """

    master_addr: str | None = None
    master_port: str | int | None = None
    num_rpc_threads: int | None = None
    rpc_timeout: float = 180
    num_workers: int = field(default=1, init=False)
    worker_concurrency: int = field(default=1, init=False)

    def __post_init__(self) -> None:
        """Check the deadline."""
        check_seconds("rpc_timeout", self.rpc_timeout)


@dataclass(slots=True)
class MpDistSamplingWorkerOptions:
    """Sampling beside the loop that trains; here by threads of the same process.

    Attributes:
        num_workers: Workers that make batches.
        worker_devices: No effect.
        worker_concurrency: Batches in flight per worker; numbers outside 1..32 are taken for the nearest inside.
        master_addr: No effect.
        master_port: No effect.
        num_rpc_threads: No effect.
        rpc_timeout: Seconds within which a store must answer.
        channel_size: Bytes, or a text such as ``"64MB"``; None for 64 MB per worker.
        pin_memory: Batches are put into pinned memory.
        channel_capacity: Batches ready or in flight, at most: ``num_workers * worker_concurrency``.

    Raises:
        SettingsError: A number is outside what it may be.
    """

    num_workers: int = 1
    worker_devices: Any = None
    worker_concurrency: int = 4
    master_addr: str | None = None
    master_port: str | int | None = None
    num_rpc_threads: int | None = None
    rpc_timeout: float = 180
    channel_size: int | str | None = None
    pin_memory: bool = False
    channel_capacity: int = field(init=False)

    def __post_init__(self) -> None:
        """Check numbers, and fill in what follows from others."""
        self.num_workers, self.worker_concurrency = _read_workers(self.num_workers, self.worker_concurrency)
        check_seconds("rpc_timeout", self.rpc_timeout)
        self.channel_capacity = self.num_workers * self.worker_concurrency
        if self.channel_size is None:
            self.channel_size = _default_size(self.num_workers)


@dataclass(slots=True)
class RemoteDistSamplingWorkerOptions:
    """Sampling on servers.

    Attributes:
        server_rank: Number of a server, or numbers of several, which are checked to be there; batches are dealt out to
            all servers.
        num_workers: Workers on each server.
        worker_devices: No effect.
        worker_concurrency: Batches in flight per worker; numbers outside 1..32 are taken for the nearest inside.
        master_addr: No effect.
        master_port: No effect.
        num_rpc_threads: No effect.
        rpc_timeout: Seconds within which a server must answer.
        buffer_size: Bytes that a server keeps ready, or a text such as ``"64MB"``; None for 64 MB per worker.
        prefetch_size: Fetches in flight per server.
        worker_key: What servers know this loader by; loaders of several clients with one key share their seeds.
        glt_graph: No effect.
        workload_type: No effect.
        use_all2all: No effect.
        buffer_capacity: Batches ready or in flight on a server, at most: ``num_workers * worker_concurrency``.

    Raises:
        SettingsError: A number is outside what it may be, or more is fetched ahead than a server keeps ready.
    """

    server_rank: int | list[int] | None = None
    num_workers: int = 1
    worker_devices: Any = None
    worker_concurrency: int = 4
    master_addr: str | None = None
    master_port: str | int | None = None
    num_rpc_threads: int | None = None
    rpc_timeout: float = 180
    buffer_size: int | str | None = None
    prefetch_size: int = 4
    worker_key: str | None = None
    glt_graph: Any = None
    workload_type: str | None = None
    use_all2all: bool = False
    buffer_capacity: int = field(init=False)

    def __post_init__(self) -> None:
        """Check numbers, and fill in what follows from others."""
        self.num_workers, self.worker_concurrency = _read_workers(self.num_workers, self.worker_concurrency)
        check_seconds("rpc_timeout", self.rpc_timeout)
        if isinstance(self.server_rank, list | tuple):
            self.server_rank = [read_integer("server_rank", rank, 0) for rank in self.server_rank]
        elif self.server_rank is not None:
            self.server_rank = read_integer("server_rank", self.server_rank, 0)
        self.buffer_capacity = self.num_workers * self.worker_concurrency
        if self.buffer_size is None:
            self.buffer_size = _default_size(self.num_workers)
        self.prefetch_size = read_integer("prefetch_size", self.prefetch_size, 1)
        if self.prefetch_size > self.buffer_capacity:
            raise SettingsError(
                f"prefetch_size is {self.prefetch_size}, and num_workers * worker_concurrency are "
                f"{self.buffer_capacity}; fetch no more ahead than servers keep ready"
            )


AllDistSamplingWorkerOptions = (
    CollocatedDistSamplingWorkerOptions | MpDistSamplingWorkerOptions | RemoteDistSamplingWorkerOptions
)


def _read_workers(num_workers: object, worker_concurrency: object) -> tuple[int, int]:
    concurrency = read_integer("worker_concurrency", worker_concurrency)
    return read_integer("num_workers", num_workers, 1, MAX_WORKERS), min(max(concurrency, 1), MAX_WORKER_CONCURRENCY)


def _default_size(num_workers: int) -> str:
    return f"{num_workers * WORKER_BUFFER_MB}MB"
