"""Addresses, tokens and certificates of servers and clients.

A server that others can reach needs TLS, so that nobody reads along, and a token or client certificates, so that nobody
else asks. Loopback needs neither.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import socket
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyarrow import flight

from hopstream.checks import Settings
from hopstream.errors import AccessDenied, SettingsError
from hopstream.store.sources import check_scheme
from hopstream.uris import is_uri, local_path, shown_uri

SCHEMES = ("grpc", "grpc+tcp", "grpc+tls")
TOKEN_HEADER = "authorization"
LOG = logging.getLogger(__name__)
_WARNED_OF: set[Path] = set()
"""Token files that others can read, of which a warning was written: a server reads its own several times."""


@dataclass(frozen=True, slots=True)
class Location:
    """An address of a server.

    Attributes:
        host: A name or an IP address, without brackets.
        port: 0 lets the system choose.
        has_tls: The scheme is ``grpc+tls``.
    """

    host: str
    port: int
    has_tls: bool = False

    @classmethod
    def parse(cls, text: str) -> Location:
        """Read ``grpc://host:port`` or ``grpc+tls://host:port``.

        Raises:
            SettingsError: The text is neither.
        """
        check_scheme(text)
        try:
            parts = urlsplit(text)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise SettingsError(f"{text!r} is not a location ({error}); write grpc://host:port") from error
        has_rest = parts.path not in ("", "/") or parts.query or parts.fragment or "@" in parts.netloc
        if parts.scheme not in SCHEMES or not host or port is None or has_rest:
            is_elsewhere = is_uri(text) and parts.scheme not in SCHEMES
            remedy = "; a dataset that is elsewhere is copied to a folder of this machine: pull" if is_elsewhere else ""
            shown = shown_uri(text) if is_elsewhere else text
            raise SettingsError(f"{shown!r} is not a location; write grpc://host:port or grpc+tls://host:port{remedy}")
        return cls(host, port, parts.scheme == "grpc+tls")

    @property
    def is_loopback(self) -> bool:
        """Only this machine can reach the address."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def towards(self) -> Location:
        """An address of this machine, with port 0, as the machine of this location reaches it."""
        if self.is_loopback:
            return replace(self, port=0)
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:  # connecting a datagram socket sends nothing
            probe.connect((self.host, self.port))
            return Location(probe.getsockname()[0], 0, self.has_tls)

    def __str__(self) -> str:
        """The location as it is written."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"grpc{'+tls' if self.has_tls else ''}://{host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ServerSecurity(Settings):
    """What a server shows and what it asks for.

    Attributes:
        token: Clients must send it with every call.
        certificate: PEM chain that the server shows; needs ``private_key``.
        private_key: PEM.
        client_roots: PEM roots that client certificates must lead to (mTLS); None asks for none.
        is_insecure: Listen anywhere without TLS or token, after a warning in the log.
    """

    token: str | None = None
    certificate: bytes | None = None
    private_key: bytes | None = None
    client_roots: bytes | None = None
    is_insecure: bool = False

    def __post_init__(self) -> None:
        """Refuse halves."""
        _check_token(self.token)
        if (self.certificate is None) != (self.private_key is None):
            raise SettingsError("a server's certificate and private key come together, got only one of them")
        if self.client_roots is not None and self.certificate is None:
            raise SettingsError("client certificates can be asked for only with TLS; give certificate and private key")

    def check_bind(self, location: Location) -> None:
        """Allow or refuse to listen at a location.

        Raises:
            AccessDenied: Others could reach the server, and it would not know them or would talk in the clear.
            SettingsError: The location's scheme and the certificate contradict each other.
        """
        if location.has_tls != (self.certificate is not None):
            scheme = "grpc+tls://" if self.certificate is not None else "grpc://"
            raise SettingsError(f"{location} does not fit the security settings; with these, listen at {scheme}")
        is_guarded = location.has_tls and (self.token is not None or self.client_roots is not None)
        if location.is_loopback or is_guarded:
            return
        if not self.is_insecure:
            raise AccessDenied(
                f"{location} can be reached from other machines; give TLS and a token (or client certificates), "
                "listen at 127.0.0.1, or allow it with insecure"
            )
        LOG.warning(
            "INSECURE: %s can be reached from other machines %s; anyone who reaches it reads the whole graph",
            location, "without a token" if self.token is None else "and sends its token in the clear",
        )  # fmt: skip

    def flight_options(self) -> dict[str, Any]:
        """What Flight's server takes."""
        options: dict[str, Any] = {}
        if self.certificate is not None:
            options["tls_certificates"] = [(self.certificate, self.private_key)]
        if self.client_roots is not None:
            options.update(verify_client=True, root_certificates=self.client_roots)
        if self.token is not None:
            options["middleware"] = {"token": _TokenCheck(self.token)}
        return options


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ClientSecurity(Settings):
    """What a client shows and what it trusts.

    Attributes:
        token: Sent with every call.
        roots: PEM roots that the server's certificate must lead to; None trusts the system's.
        certificate: PEM chain that the client shows (mTLS); needs ``private_key``.
        private_key: PEM.
        server_name: The name that the server's certificate must carry, where it is not the location's host.
        is_insecure: Send the token in the clear to other machines.
    """

    token: str | None = None
    roots: bytes | None = None
    certificate: bytes | None = None
    private_key: bytes | None = None
    server_name: str | None = None
    is_insecure: bool = False

    def __post_init__(self) -> None:
        """Refuse halves."""
        _check_token(self.token)
        if (self.certificate is None) != (self.private_key is None):
            raise SettingsError("a client's certificate and private key come together, got only one of them")

    def check_location(self, location: Location) -> None:
        """Refuse to send a token in the clear.

        Raises:
            AccessDenied: The location has no TLS, and the token would leave this machine.
        """
        if self.token is not None and not (location.has_tls or location.is_loopback or self.is_insecure):
            raise AccessDenied(
                f"the token would go to {location} in the clear; use grpc+tls://, or allow it with insecure"
            )

    def flight_options(self, location: Location) -> dict[str, Any]:
        """What Flight's client takes."""
        if not location.has_tls:
            return {}
        options = {
            "tls_root_certs": self.roots,
            "cert_chain": self.certificate,
            "private_key": self.private_key,
            "override_hostname": self.server_name,
        }
        return {name: value for name, value in options.items() if value is not None}

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Headers of every call."""
        return [] if self.token is None else [(TOKEN_HEADER.encode(), _bearer(self.token))]


class _TokenCheck(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Refuses every call, of whatever kind, that does not carry the token."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._wanted = _bearer(token)

    def start_call(self, info: Any, headers: Mapping[str, Sequence[str | bytes]]) -> None:
        got = headers.get(TOKEN_HEADER, ())
        given = got[0] if len(got) == 1 else b""
        if not hmac.compare_digest(given.encode() if isinstance(given, str) else given, self._wanted):
            raise flight.FlightUnauthenticatedError("the token is missing or wrong")


def read_token(path: Path) -> str:
    """Read a token from a file; white space around it does not belong to it. One that all users can read is warned of.

    Raises:
        SettingsError: The file is missing or holds no token.
    """
    try:
        token = local_path(path).read_text(encoding="ascii").strip()
        mode = path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"token file {path} cannot be read: {error}") from error
    _check_token(token)
    if stat.S_ISREG(mode) and mode & stat.S_IROTH and path not in _WARNED_OF:
        _WARNED_OF.add(path)
        LOG.warning("token file %s can be read by every user of the machine; run chmod 600 %s", path, path)
    return token


def read_pem(path: Path) -> bytes:
    """Read a certificate, a private key or roots from a PEM file.

    Raises:
        SettingsError: The file is missing or is not PEM.
    """
    try:
        text = local_path(path).read_bytes()
    except OSError as error:
        raise SettingsError(f"PEM file {path} cannot be read: {error}") from error
    if b"-----BEGIN " not in text:
        raise SettingsError(f"{path} is not a PEM file; it has no '-----BEGIN' line")
    return text


def _check_token(token: str | None) -> None:
    if token is not None and not (token and all("!" <= character <= "~" for character in token)):
        raise SettingsError("a token must be one or more printable ASCII characters without spaces")


def _bearer(token: str) -> bytes:
    return b"Bearer " + token.encode()
