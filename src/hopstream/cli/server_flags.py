"""Flags of verbs that run or ask servers: tokens and certificates, logs, metrics.

A token never stands on a command line, where every user of the machine can read it: it is in a file, or in the
environment variable ``HOPSTREAM_TOKEN``.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hopstream.checks import check_choice
from hopstream.cli.units import printable_text
from hopstream.errors import SettingsError

if TYPE_CHECKING:
    from hopstream.store.server import StoreServer
    from hopstream.stream.endpoint import Endpoint
    from hopstream.stream.service import SamplingService
    from hopstream.transport.security import ClientSecurity, ServerSecurity


TOKEN_VARIABLE = "HOPSTREAM_TOKEN"
_ELSE_VARIABLE = f"without it the environment variable {TOKEN_VARIABLE}, if it is set"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAccess:
    """What a server shows and asks for, as files, which are read anew when they change."""

    tls_cert: Path | None = field(default=None, metadata={"help": "certificate chain that the server shows, PEM"})
    tls_key: Path | None = field(default=None, metadata={"help": "private key of the certificate, PEM"})
    client_ca: Path | None = field(
        default=None, metadata={"help": "roots that clients' certificates must lead to, PEM; without it none is asked"}
    )
    token_file: Path | None = field(
        default=None,
        metadata={
            "help": "file of the token that clients must send, or of a line 'name read|admin token' for each of them; "
            + _ELSE_VARIABLE
        },
    )
    insecure: bool = field(
        default=False, metadata={"help": "listen where other machines can reach, without TLS or without a token"}
    )

    def read(self) -> ServerSecurity:
        """Name the files, after a first look at them.

        Raises:
            SettingsError: A file cannot be read, is not PEM or has a line of tokens that is none, or one file of a pair
                is missing.
        """
        from hopstream.transport.security import ServerSecurity

        _check_pair(self.tls_cert, self.tls_key)
        if self.client_ca is not None and self.tls_cert is None:
            raise SettingsError("--client-ca is for TLS; give --tls-cert and --tls-key too")
        security = ServerSecurity(
            token=environment_token() if self.token_file is None else None,
            token_file=self.token_file,
            certificate=self.tls_cert,
            private_key=self.tls_key,
            client_roots=self.client_ca,
            is_insecure=self.insecure,
        )
        security.context()
        return security


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientAccess:
    """What a client shows and trusts, as files, which are read anew when they change."""

    server_ca: Path | None = field(
        default=None, metadata={"help": "roots that servers' certificates must lead to, PEM; else the system's"}
    )
    tls_cert: Path | None = field(default=None, metadata={"help": "certificate chain to show to servers, PEM"})
    tls_key: Path | None = field(default=None, metadata={"help": "private key of the certificate, PEM"})
    token_file: Path | None = field(default=None, metadata={"help": "file of the token to send; " + _ELSE_VARIABLE})

    def read(self) -> ClientSecurity:
        """Name the files, after a first look at them.

        Raises:
            SettingsError: A file cannot be read, is not PEM or holds no token, or one file of a pair is missing.
        """
        from hopstream.transport.security import ClientSecurity

        _check_pair(self.tls_cert, self.tls_key)
        security = ClientSecurity(
            token=environment_token() if self.token_file is None else None,
            token_file=self.token_file,
            roots=self.server_ca,
            certificate=self.tls_cert,
            private_key=self.tls_key,
        )
        if self.server_ca is not None or self.tls_cert is not None:
            security.context()
        return security


def _check_pair(certificate: Path | None, key: Path | None) -> None:
    if (certificate is None) != (key is None):
        missing = "--tls-cert" if certificate is None else "--tls-key"
        raise SettingsError(f"--tls-cert and --tls-key go together; give {missing} too")


def environment_token() -> str | None:
    """The token of the environment; None where there is none.

    Raises:
        SettingsError: The variable is set, and empty.
    """
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not token and TOKEN_VARIABLE in os.environ:
        raise SettingsError(f"the environment variable {TOKEN_VARIABLE} is empty; set it to a token, or unset it")
    return token or None


LEVELS = ("debug", "info", "warning", "error")
MAX_LINE = 2000
"""Characters of a line that are written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """What is logged, and in which form. Every field is checked when the record is made.

    Raises:
        SettingsError: A field is outside what it accepts.
    """

    log_json: bool = field(default=False, metadata={"help": "write log records to stderr as one JSON object per line"})
    log_level: Literal["debug", "info", "warning", "error"] = field(
        default="warning", metadata={"help": "the least serious records that are written"}
    )

    def __post_init__(self) -> None:
        """Check the level."""
        check_choice("log_level", self.log_level, LEVELS)


class TextFormatter(logging.Formatter):
    """Writes a record for people; what a client wrote can neither move the cursor nor look like a record of its own."""

    def __init__(self) -> None:
        """Level and message, and below them the exception if there is one."""
        super().__init__("%(levelname)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name that logging calls
        """The first line and, indented, all others."""
        return _printable_lines(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the name that logging calls
        """The traceback, indented."""
        return "  " + _printable_lines(super().formatException(ei))


class JsonFormatter(logging.Formatter):
    """Writes a record as a JSON object in one line."""

    def __init__(self) -> None:
        """Know no server yet."""
        super().__init__()
        self.server: str | None = None
        """Where the server listens, once it does."""

    def format(self, record: logging.LogRecord) -> str:
        """The object: ``time``, ``level``, ``logger``, ``message``, ``server``, and ``exception`` if there is one."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        value = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "server": self.server,
        }
        if record.exc_info:
            value["exception"] = self.formatException(record.exc_info)
        return json.dumps(value)


def _printable_lines(text: str) -> str:
    return "\n  ".join(printable_text(line, MAX_LINE) for line in text.split("\n"))


@contextmanager
def logs_on_stderr(settings: LogSettings) -> Iterator[JsonFormatter]:
    """Write the library's log records to stderr while inside; the formatter is to be told the server's address."""
    formatter = JsonFormatter()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter if settings.log_json else TextFormatter())
    logger = logging.getLogger("hopstream")
    previous = logger.level
    logger.setLevel(settings.log_level.upper())
    logger.addHandler(handler)
    try:
        yield formatter
    finally:
        logger.removeHandler(handler)
        logger.setLevel(previous)


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
