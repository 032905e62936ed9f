"""Security: tokens and certificates of servers and clients.

A server that other machines can reach needs TLS, and a token or client certificates. Loopback addresses and Unix
sockets need neither. Tokens and certificates in files are read again when the files change.
"""

from __future__ import annotations

import logging
import ssl
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from hopstream.checks import Settings
from hopstream.errors import AccessDenied, SettingsError
from hopstream.transport.location import Location
from hopstream.transport.tokens import TokenFile, Tokens, Watched, check_token
from hopstream.uris import local_path

LOG = logging.getLogger(__name__)
Pem = bytes | Path
"""A PEM certificate chain, key or roots, or the path of its file."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ServerSecurity(Settings):
    """A server's certificate, and the tokens or certificates that it accepts.

    Attributes:
        token: Token that clients must send when they connect; it has admin rights.
        token_file: In place of ``token``: a file of one token, or of lines ``name read|admin token``.
        certificate: PEM chain of the server's certificate; needs ``private_key``.
        private_key: PEM.
        client_roots: PEM roots that client certificates must lead to (mTLS); None requires no certificate.
        is_insecure: Listen anywhere without TLS or token, after a warning in the log.

    Raises:
        SettingsError: A file cannot be read, is not PEM or holds no token, or one field of a pair is missing.
    """

    token: str | None = None
    token_file: Path | None = None
    certificate: Pem | None = None
    private_key: Pem | None = None
    client_roots: Pem | None = None
    is_insecure: bool = False
    tokens: Tokens | None = field(init=False, default=None, compare=False)
    _context: _Context | None = field(init=False, default=None, compare=False)

    def __post_init__(self) -> None:
        """Check the fields, and read the files."""
        _check(self, "server", "client_roots")
        if self.token_file is not None:
            self._keep("token_file", local_path(self.token_file))
        if self.client_roots is not None and self.certificate is None:
            raise SettingsError("client certificates can be required only with TLS; give certificate and private key")
        if self.token is not None or self.token_file is not None:
            self._keep("tokens", Tokens(self.token, self.token_file))
        if self.certificate is not None:
            context = _Context(self.certificate, self.private_key, self.client_roots, is_server=True)
            self._keep("_context", context)

    @property
    def has_tls(self) -> bool:
        """Whether the server has a certificate, and so uses TLS."""
        return self.certificate is not None

    def check_bind(self, location: Location) -> None:
        """Check that the server may listen at a location.

        Raises:
            AccessDenied: Other machines could reach the server without TLS, or without a token or client certificate.
            SettingsError: The location's scheme and the certificate contradict each other.
        """
        if location.has_tls != self.has_tls:
            scheme = "tls://" if self.has_tls else "tcp://"
            raise SettingsError(f"{location} contradicts the security settings; listen at {scheme} instead")
        is_guarded = location.has_tls and (self.tokens is not None or self.client_roots is not None)
        if location.is_loopback or is_guarded:
            return
        if not self.is_insecure:
            raise AccessDenied(
                f"{location} can be reached from other machines; give TLS and a token (or client certificates), "
                "listen at 127.0.0.1, or allow it with insecure"
            )
        LOG.warning(
            "INSECURE: %s can be reached from other machines %s; anyone who reaches it reads the whole graph",
            location, "without a token" if self.tokens is None else "and is sent its token in the clear",
        )  # fmt: skip

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context, from the current files; None without TLS.

        Raises:
            SettingsError: The certificate and the key are not PEM, or do not belong together.
        """
        return None if self._context is None else self._context.value()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ClientSecurity(Settings):
    """A client's token and certificate, and the roots that it trusts.

    Attributes:
        token: Token that is sent to every server.
        token_file: In place of ``token``: a file with the token; see ``read_token``.
        token_owner: User id that must own ``token_file`` whenever it is read; None for any owner.
        roots: PEM roots that the server's certificate must lead to; None trusts the system's, which the environment
            variables ``SSL_CERT_FILE`` and ``SSL_CERT_DIR`` replace.
        certificate: PEM chain of the client's certificate (mTLS); needs ``private_key``.
        private_key: PEM.
        server_name: Name in the server's certificate, if it is not the location's host.
        is_insecure: Allow sending the token unencrypted to other machines.

    Raises:
        SettingsError: A file cannot be read, or one field of a pair is missing.
    """

    token: str | None = None
    token_file: Path | None = None
    token_owner: int | None = None
    roots: Pem | None = None
    certificate: Pem | None = None
    private_key: Pem | None = None
    server_name: str | None = None
    is_insecure: bool = False
    _token_file: TokenFile | None = field(init=False, default=None, compare=False)
    _context: _Context | None = field(init=False, default=None, compare=False)

    def __post_init__(self) -> None:
        """Check the fields, and read the files."""
        _check(self, "client", "roots")
        if self.token_file is not None:
            self._keep("token_file", local_path(self.token_file))
            self._keep("_token_file", TokenFile(self.token_file, self.token_owner))
            self.current_token()
        context = _Context(self.certificate, self.private_key, self.roots, is_server=False)
        self._keep("_context", context)
        if self.certificate is not None or self.roots is not None:
            context.value()

    @property
    def has_token(self) -> bool:
        """Whether a token is sent."""
        return self.token is not None or self.token_file is not None

    def current_token(self) -> str | None:
        """Return the token, from the current file.

        Raises:
            SettingsError: The file cannot be read.
        """
        return self.token if self._token_file is None else self._token_file.value()

    def check_location(self, location: Location) -> None:
        """Refuse to send a token unencrypted to another machine.

        Raises:
            AccessDenied: The location is on another machine and has no TLS.
        """
        if self.has_token and not (location.has_tls or location.is_loopback or self.is_insecure):
            raise AccessDenied(f"the token would go to {location} in the clear; use tls://, or allow it with insecure")

    def context(self) -> ssl.SSLContext:
        """Return the TLS context, from the current files.

        Raises:
            SettingsError: The certificate and the key are not PEM, or do not belong together.
        """
        assert self._context is not None  # noqa: S101 - made with the record
        return self._context.value()


class _Context(Watched[ssl.SSLContext]):
    """A TLS 1.3 context made from files or bytes."""

    def __init__(self, certificate: Pem | None, key: Pem | None, roots: Pem | None, *, is_server: bool) -> None:
        super().__init__([one for one in (certificate, key, roots) if isinstance(one, Path)])
        self._certificate, self._key, self._roots, self._is_server = certificate, key, roots, is_server

    def _make(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if self._is_server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        try:
            if self._certificate is not None and self._key is not None:
                _load_chain(context, self._certificate, self._key)
            if self._roots is not None:
                context.load_verify_locations(cadata=_pem(self._roots).decode("ascii"))
                context.verify_mode = ssl.CERT_REQUIRED
            elif not self._is_server:
                context.load_default_certs()
        except (OSError, ValueError) as error:
            if isinstance(error, SettingsError):
                raise
            raise SettingsError(
                f"TLS cannot be set up ({error}); are the certificate, the key and the roots PEM, and do certificate "
                "and key belong together?"
            ) from error
        if self._is_server:
            context.num_tickets = 0  # sessions are not resumed
        return context


def _load_chain(context: ssl.SSLContext, certificate: Pem, key: Pem) -> None:
    """Load a certificate and its key into a context.

    OpenSSL reads files only, so bytes are written to a temporary file.
    """
    with ExitStack() as stack:
        context.load_cert_chain(str(_pem_file(certificate, stack)), str(_pem_file(key, stack)))


def _pem_file(given: Pem, stack: ExitStack) -> Path:
    """Return the path of a PEM file; bytes go to a private temporary file that is removed with the stack."""
    if isinstance(given, Path):
        read_pem(given)
        return local_path(given)
    path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hopstream-")), "file.pem")
    path.touch(mode=0o600)
    path.write_bytes(given)
    return path


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


def _check(record: ServerSecurity | ClientSecurity, who: str, roots: str) -> None:
    """Raise ``SettingsError`` if PEM or a token is malformed, or if fields contradict each other."""
    for name in ("certificate", "private_key", roots):
        given = getattr(record, name)
        if given is not None and not isinstance(given, bytes | Path):
            raise SettingsError(f"{name} is a {type(given).__name__}; give the Path of a PEM file, or its bytes")
    check_token(record.token)
    if record.token is not None and record.token_file is not None:
        raise SettingsError("a token and a token file were given; give one of them")
    if (record.certificate is None) != (record.private_key is None):
        raise SettingsError(f"a {who}'s certificate and private key must be given together; only one was given")


def _pem(given: Pem) -> bytes:
    return read_pem(given) if isinstance(given, Path) else given
