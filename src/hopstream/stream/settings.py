"""Settings of sampling servers."""

from __future__ import annotations

from dataclasses import dataclass, field

from hopstream.checks import Settings, check_seconds, read_integer
from hopstream.engine.machine import num_processors
from hopstream.engine.settings import read_bytes

MIN_MEMORY_BYTES = 32 << 20
"""Smallest memory bound of a server; a quarter of it is for requests and answers, enough for a few of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingLimits(Settings):
    """Limits of a sampling server: parallelism, memory and times; the constructor checks every field.

    Raises:
        SettingsError: A field is out of range.
    """

    threads: int = field(
        default=0,
        metadata={
            "help": "threads that sample for all channels together; 0 means one per processor that the process may use"
        },
    )
    max_channels: int = field(default=256, metadata={"help": "most channels at once, over all trainers"})
    credit: int = field(default=8, metadata={"help": "most batches of one channel in progress or waiting"})
    buffer_bytes: int = field(
        default=2 << 30,
        metadata={"help": "bytes of waiting batches of all channels above which no batch is made ahead"},
    )
    memory_bytes: int | str = field(
        default=0,
        metadata={"help": "bytes of requests, answers and batches together, beyond the server's memory at its start; "
                          "without room they wait or are repeated later; 0 means no limit"},
    )  # fmt: skip
    max_request_bytes: int = field(
        default=256 << 20, metadata={"help": "largest request; seeds of an input take 8 bytes each"}
    )
    lease_s: float = field(default=120.0, metadata={"help": "seconds after which an unused channel is dropped"})
    slow_s: float = field(default=10.0, metadata={"help": "seconds after which an unfinished batch is reported"})

    def __post_init__(self) -> None:
        """Check every field."""
        read_integer("threads", self.threads, 0, 1024)
        read_integer("max_channels", self.max_channels, 1, 1 << 16)
        read_integer("credit", self.credit, 1, 1 << 16)
        read_integer("buffer_bytes", self.buffer_bytes, 0, 1 << 62)
        self._keep("memory_bytes", read_bytes("memory_bytes", self.memory_bytes))
        read_integer("max_request_bytes", self.max_request_bytes, 1, 1 << 62)
        check_seconds("lease_s", self.lease_s)
        check_seconds("slow_s", self.slow_s)

    @property
    def batch_bytes(self) -> int | None:
        """Bytes for batches that wait, are made or are sent; None for no bound."""
        return int(self.memory_bytes) * 5 // 8 or None

    @property
    def transport_bytes(self) -> int | None:
        """Bytes for requests and for other answers; None for no bound."""
        return int(self.memory_bytes) // 4 or None

    @property
    def input_bytes(self) -> int | None:
        """Bytes for the inputs of channels; None for no bound."""
        return int(self.memory_bytes) // 8 or None

    @property
    def num_threads(self) -> int:
        """Number of sampling threads."""
        return self.threads or num_processors()
