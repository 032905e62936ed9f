"""Where does a server answer those who watch over it, if anywhere?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hopstream.errors import SettingsError

if TYPE_CHECKING:
    from hopstream.store.server import StoreServer
    from hopstream.stream.endpoint import Endpoint
    from hopstream.stream.service import SamplingService

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSettings:
    """Where numbers and health are asked for. Every field is checked when the record is made.

    Raises:
        SettingsError: A field is outside what it accepts.
    """

    metrics_port: int | None = field(
        default=None,
        metadata={"help": "answer /metrics, /healthz and /readyz over HTTP at this port; 0 takes a free one"},
    )
    metrics_host: str = field(
        default=LOOPBACK,
        metadata={"help": "address to answer them at; anyone who reaches it can read them"},
    )

    def __post_init__(self) -> None:
        """Check every field."""
        if self.metrics_port is not None and not 0 <= self.metrics_port < 1 << 16:
            raise SettingsError(f"metrics_port is {self.metrics_port}; ports are numbered 0..65535")
        if self.metrics_port is None and self.metrics_host != LOOPBACK:
            raise SettingsError("--metrics-host says where, and there is no --metrics-port; give both")


@contextmanager
def watched_early(settings: WatchSettings) -> Iterator[Endpoint | None]:
    """Answer for a server that is starting, if that was asked for: kernels may be compiled for minutes.

    Raises:
        StoreUnavailable: The address cannot be listened at, for example because the port is in use.
    """
    if settings.metrics_port is None:
        yield None
        return
    from hopstream.stream.endpoint import Endpoint
    from hopstream.stream.metrics import starting_pages

    with closing(Endpoint(settings.metrics_host, settings.metrics_port, starting_pages())) as endpoint:
        yield endpoint


@contextmanager
def watched(server: StoreServer, service: SamplingService | None, endpoint: Endpoint | None) -> Iterator[str | None]:
    """Answer for a server while inside, where something listens; gives the address, as ``http://127.0.0.1:9100``."""
    if endpoint is None:
        yield None
        return
    from hopstream.stream.metrics import MetricsServer

    with MetricsServer(LOOPBACK, 0, server, service, endpoint=endpoint) as answering:
        yield answering.location
