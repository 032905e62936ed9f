"""Where do tokens and certificates come from?

A token never stands on a command line, where every user of the machine can read it: it is in a file, or in the
environment variable ``HOPSTREAM_TOKEN``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hopstream.errors import SettingsError

if TYPE_CHECKING:
    from hopstream.store.security import ClientSecurity, ServerSecurity

TOKEN_VARIABLE = "HOPSTREAM_TOKEN"
_TOKEN_HELP = f"file that holds the token; without it the environment variable {TOKEN_VARIABLE}, if it is set"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAccess:
    """What a server shows and asks for, as files."""

    tls_cert: Path | None = field(default=None, metadata={"help": "certificate chain that the server shows, PEM"})
    tls_key: Path | None = field(default=None, metadata={"help": "private key of the certificate, PEM"})
    client_ca: Path | None = field(
        default=None, metadata={"help": "roots that clients' certificates must lead to, PEM; without it none is asked"}
    )
    token_file: Path | None = field(default=None, metadata={"help": _TOKEN_HELP})
    insecure: bool = field(
        default=False, metadata={"help": "listen where other machines can reach, without TLS or without a token"}
    )

    def read(self) -> ServerSecurity:
        """Read the files.

        Raises:
            SettingsError: A file cannot be read or is not PEM, a token has spaces, or one file of a pair is missing.
        """
        from hopstream.store.security import ServerSecurity, read_pem

        _check_pair(self.tls_cert, self.tls_key)
        if self.client_ca is not None and self.tls_cert is None:
            raise SettingsError("--client-ca is for TLS; give --tls-cert and --tls-key too")
        return ServerSecurity(
            token=_read_token(self.token_file),
            certificate=read_pem(self.tls_cert) if self.tls_cert else None,
            private_key=read_pem(self.tls_key) if self.tls_key else None,
            client_roots=read_pem(self.client_ca) if self.client_ca else None,
            is_insecure=self.insecure,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientAccess:
    """What a client shows and trusts, as files."""

    server_ca: Path | None = field(
        default=None, metadata={"help": "roots that servers' certificates must lead to, PEM; else the system's"}
    )
    tls_cert: Path | None = field(default=None, metadata={"help": "certificate chain to show to servers, PEM"})
    tls_key: Path | None = field(default=None, metadata={"help": "private key of the certificate, PEM"})
    token_file: Path | None = field(default=None, metadata={"help": _TOKEN_HELP})

    def read(self) -> ClientSecurity:
        """Read the files.

        Raises:
            SettingsError: A file cannot be read or is not PEM, a token has spaces, or one file of a pair is missing.
        """
        from hopstream.store.security import ClientSecurity, read_pem

        _check_pair(self.tls_cert, self.tls_key)
        return ClientSecurity(
            token=_read_token(self.token_file),
            roots=read_pem(self.server_ca) if self.server_ca else None,
            certificate=read_pem(self.tls_cert) if self.tls_cert else None,
            private_key=read_pem(self.tls_key) if self.tls_key else None,
        )


def _check_pair(certificate: Path | None, key: Path | None) -> None:
    if (certificate is None) != (key is None):
        missing = "--tls-cert" if certificate is None else "--tls-key"
        raise SettingsError(f"--tls-cert and --tls-key go together; give {missing} too")


def _read_token(path: Path | None) -> str | None:
    """The token of a file, or else of the environment; None where there is neither."""
    if path is not None:
        from hopstream.store.security import read_token

        return read_token(path)
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not token and TOKEN_VARIABLE in os.environ:
        raise SettingsError(f"the environment variable {TOKEN_VARIABLE} is empty; set it to a token, or unset it")
    return token or None
