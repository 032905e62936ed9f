"""Locations: addresses of servers, as ``tcp://host:port``, ``tls://host:port`` or ``unix:///path``."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from hopstream.errors import SettingsError
from hopstream.uris import is_uri, shown_uri

SCHEMES = {"tcp": False, "tls": True, "grpc": False, "grpc+tcp": False, "grpc+tls": True}
"""Schemes of hosts with ports, and whether they mean TLS: ``grpc://`` is read as ``tcp://``, ``grpc+tls://`` as
``tls://``."""
MAX_SOCKET_PATH = 107
"""Largest number of bytes in a Unix socket's path."""
WANTED = "tcp://host:port, tls://host:port or unix:///path"
_ADDRESS = re.compile(r"[^\s/@,]+:\d{1,5}")


@dataclass(frozen=True, slots=True)
class Location:
    """An address of a server.

    Attributes:
        host: A name or an IP address, without brackets; empty for a Unix socket.
        port: Port; 0 lets the system choose.
        has_tls: The connection is encrypted by TLS.
        path: Path of a Unix socket; empty for a host.
    """

    host: str
    port: int
    has_tls: bool = False
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> Location:
        """Parse ``tcp://host:port``, ``tls://host:port`` or ``unix:///path``.

        Raises:
            SettingsError: The text has none of these forms, or the path of a socket is too long.
        """
        check_scheme(text)
        if text.startswith("unix://"):
            return cls._of_socket(text)
        try:
            parts = urlsplit(text)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise SettingsError(f"{text!r} is not a location ({error}); write tcp://host:port") from error
        has_rest = parts.path not in ("", "/") or parts.query or parts.fragment or "@" in parts.netloc
        if parts.scheme not in SCHEMES or not host or port is None or has_rest:
            is_elsewhere = is_uri(text) and parts.scheme not in SCHEMES
            remedy = "; copy a remote dataset to a folder of this machine first: hopstream pull" if is_elsewhere else ""
            shown = shown_uri(text) if is_elsewhere else text
            raise SettingsError(f"{shown!r} is not a location; write {WANTED}{remedy}")
        return cls(host, port, SCHEMES[parts.scheme])

    @classmethod
    def _of_socket(cls, text: str) -> Location:
        path = text.removeprefix("unix://")
        if not path.startswith("/") or "," in path or len(os.fsencode(path)) > MAX_SOCKET_PATH:
            raise SettingsError(
                f"{text!r} is not a location; write unix:// and an absolute path without commas, of at most "
                f"{MAX_SOCKET_PATH} bytes"
            )
        return cls("", 0, path=path)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        if self.path or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def towards(self) -> Location:
        """Return the address of this machine that the machine of this location can reach, with port 0."""
        if self.is_loopback:
            return Location("127.0.0.1", 0) if self.path else replace(self, port=0)
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:  # connecting a datagram socket sends nothing
            probe.connect((self.host, self.port))
            return Location(probe.getsockname()[0], 0, self.has_tls)

    def __str__(self) -> str:
        """Format the location as ``parse`` reads it."""
        if self.path:
            return f"unix://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tls' if self.has_tls else 'tcp'}://{host}:{self.port}"


def check_scheme(text: str) -> None:
    """Raise ``SettingsError`` if a text is one or several addresses without a scheme."""
    addresses = [one.strip() for one in text.split(",")]
    if all(map(_ADDRESS.fullmatch, addresses)) and not Path(text).exists():
        wanted = ",".join(f"tcp://{one}" for one in addresses)
        raise SettingsError(f"{text!r} has no scheme; write {wanted}, or tls:// if servers have TLS")
