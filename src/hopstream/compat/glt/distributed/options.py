"""Options of sampling workers, with GraphLearn-for-PyTorch's names.

Sampling needs no process groups. So ``worker_devices``, ``master_addr``, ``master_port``, ``num_rpc_threads``,
``glt_graph``, ``workload_type`` and ``use_all2all`` are accepted without effect, and ``master_addr`` and
``master_port`` are optional.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hopstream.checks import check_seconds, read_integer
from hopstream.errors import SettingsError

MAX_WORKER_CONCURRENCY = 32
"""Limit of batches in flight per worker; higher numbers are reduced to it."""
MAX_WORKERS = 1 << 16
WORKER_BUFFER_MB = 64
"""Default buffer in megabytes per worker."""


@dataclass(slots=True)
class CollocatedDistSamplingWorkerOptions:
    """Options of sampling in the loader's own process.

    Attributes:
        master_addr: No effect.
        master_port: No effect.
        num_rpc_threads: No effect.
        rpc_timeout: Deadline in seconds for answers of a store.
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
    """Options of sampling beside the training loop, in threads of the same process.

    Attributes:
        num_workers: Number of threads that make batches.
        worker_devices: No effect.
        worker_concurrency: Batches in flight per worker; clamped to 1..32.
        master_addr: No effect.
        master_port: No effect.
        num_rpc_threads: No effect.
        rpc_timeout: Deadline in seconds for answers of a store.
        channel_size: Bytes, or a text such as ``"64MB"``; None for 64 MB per worker.
        pin_memory: Copy batches to pinned memory.
        channel_capacity: Limit of batches ready or in flight: ``num_workers * worker_concurrency``.

    Raises:
        SettingsError: A number is out of its range.
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
        """Check the numbers, and compute the derived fields."""
        self.num_workers, self.worker_concurrency = _read_workers(self.num_workers, self.worker_concurrency)
        check_seconds("rpc_timeout", self.rpc_timeout)
        self.channel_capacity = self.num_workers * self.worker_concurrency
        if self.channel_size is None:
            self.channel_size = _default_size(self.num_workers)


@dataclass(slots=True)
class RemoteDistSamplingWorkerOptions:
    """Options of sampling on servers.

    Attributes:
        server_rank: Number of a server, or numbers of several, which must exist; all servers make batches anyway.
        num_workers: Workers on each server.
        worker_devices: No effect.
        worker_concurrency: Batches in flight per worker; clamped to 1..32.
        master_addr: No effect.
        master_port: No effect.
        num_rpc_threads: No effect.
        rpc_timeout: Deadline in seconds for answers of a server.
        buffer_size: Buffer in bytes on a server, or a text such as ``"64MB"``; None for 64 MB per worker.
        prefetch_size: Fetches in flight per server.
        worker_key: Name of this loader on servers; loaders of several clients with the same key share their seeds.
        glt_graph: No effect.
        workload_type: No effect.
        use_all2all: No effect.
        buffer_capacity: Limit of batches ready or in flight on a server: ``num_workers * worker_concurrency``.

    Raises:
        SettingsError: A number is out of its range, or ``prefetch_size`` exceeds ``buffer_capacity``.
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
        """Check the numbers, and compute the derived fields."""
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
