"""Flags of verbs that run servers or connect to them: tokens and certificates, logs, metrics.

No flag takes a token itself, because every user of the machine can read command lines. A token is in a file, or in the
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
    """Files of a server's certificate and required credentials; changed files are read again."""

    tls_cert: Path | None = field(default=None, metadata={"help": "certificate chain that the server shows, PEM"})
    tls_key: Path | None = field(default=None, metadata={"help": "private key of the certificate, PEM"})
    client_ca: Path | None = field(
        default=None,
        metadata={"help": "roots that clients' certificates must lead to, PEM; without it no certificate is required"},
    )
    token_file: Path | None = field(
        default=None,
        metadata={
            "help": "file of the token that clients must send, or of a line 'name read|admin token' for each of them; "
            + _ELSE_VARIABLE
        },
    )
    insecure: bool = field(
        default=False,
        metadata={"help": "listen at addresses that other machines can reach, without TLS or without a token"},
    )

    def read(self) -> ServerSecurity:
        """Check the files, and return the security settings.

        Raises:
            SettingsError: A file cannot be read, is not PEM or has an invalid line of tokens, or one file of a pair is
                missing.
        """
        from hopstream.transport.security import ServerSecurity

        _check_pair(self.tls_cert, self.tls_key)
        if self.client_ca is not None and self.tls_cert is None:
            raise SettingsError("--client-ca is only for TLS; give --tls-cert and --tls-key too")
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
    """Files of a client's credentials and of the roots that it trusts; changed files are read again."""

    server_ca: Path | None = field(
        default=None, metadata={"help": "roots that servers' certificates must lead to, PEM; else the system's"}
    )
    tls_cert: Path | None = field(default=None, metadata={"help": "certificate chain to show to servers, PEM"})
    tls_key: Path | None = field(default=None, metadata={"help": "private key of the certificate, PEM"})
    token_file: Path | None = field(default=None, metadata={"help": "file of the token to send; " + _ELSE_VARIABLE})

    def read(self) -> ClientSecurity:
        """Check the files, and return the security settings.

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
    """Return the token in the environment variable; None if it is not set.

    Raises:
        SettingsError: The variable is set and empty.
    """
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not token and TOKEN_VARIABLE in os.environ:
        raise SettingsError(f"the environment variable {TOKEN_VARIABLE} is empty; set it to a token, or unset it")
    return token or None


LEVELS = ("debug", "info", "warning", "error")
MAX_LINE = 2000
"""Most characters of a line of the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """Level and format of the log. The constructor checks every field.

    Raises:
        SettingsError: A field is out of range.
    """

    log_json: bool = field(default=False, metadata={"help": "write log records to stderr as one JSON object per line"})
    log_level: Literal["debug", "info", "warning", "error"] = field(
        default="warning", metadata={"help": "the lowest level of records that are written"}
    )

    def __post_init__(self) -> None:
        """Check the level."""
        check_choice("log_level", self.log_level, LEVELS)


class TextFormatter(logging.Formatter):
    """Formatter of log records for people.

    Text from clients can neither control the terminal nor fake a record: control characters are replaced, and all lines
    but the first are indented.
    """

    def __init__(self) -> None:
        """Use a format of level and message; an exception follows below."""
        super().__init__("%(levelname)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name that logging calls
        """Return the first line, and all other lines indented."""
        return _printable_lines(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the name that logging calls
        """Return the traceback, indented."""
        return "  " + _printable_lines(super().formatException(ei))


class JsonFormatter(logging.Formatter):
    """Formatter of log records as JSON objects of one line."""

    def __init__(self) -> None:
        """Start without a server's address."""
        super().__init__()
        self.server: str | None = None
        """Address of the server; None until it listens."""

    def format(self, record: logging.LogRecord) -> str:
        """Return an object in one line.

        Its keys are ``time``, ``level``, ``logger``, ``message``, ``server``, and ``exception`` if there is one.
        """
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
    """Write the library's log records to stderr inside the context.

    The caller sets the formatter's ``server``.
    """
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
    """Address of the endpoint for metrics and health. The constructor checks every field.

    Raises:
        SettingsError: A field is out of range.
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
            raise SettingsError("--metrics-host is given without --metrics-port; give both")


@contextmanager
def watched_early(settings: WatchSettings) -> Iterator[Endpoint | None]:
    """Open the metrics endpoint while the server starts, which may take minutes if kernels are compiled.

    Raises:
        StoreUnavailable: Listening fails, for example because the port is in use.
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
    """Serve the server's metrics at the endpoint inside the context.

    The context gives the URL, or None without an endpoint.
    """
    if endpoint is None:
        yield None
        return
    from hopstream.stream.metrics import MetricsServer

    with MetricsServer(LOOPBACK, 0, server, service, endpoint=endpoint) as answering:
        yield answering.location
