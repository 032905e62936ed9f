"""Tokens: a server's clients and their rights, read again when their file changes."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import stat
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, TypeVar, cast, get_args

from hopstream.errors import SettingsError
from hopstream.uris import local_path

LOG = logging.getLogger(__name__)
MAX_TOKEN_BYTES = 256
MAX_FILE_BYTES = 1 << 20
_WARNED_OF: set[Path] = set()
"""Token files for which a warning about permissions was logged; each is logged once."""

Rights = Literal["read", "admin"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Identity:
    """The client of a connection.

    Attributes:
        name: The client's name in the token file; empty without one.
        rights: ``read`` for the operations of trainers, ``admin`` for all operations.
        digest: SHA-256 of the token; empty if the server needs none.
    """

    name: str = ""
    rights: Rights = "admin"
    digest: bytes = b""

    @property
    def is_admin(self) -> bool:
        """Whether the client has admin rights."""
        return self.rights == "admin"


ANYONE = Identity()
"""Any client of a server that needs no token."""


class Watched(Generic[T]):
    """A value made from files, and made again after a change. Safe to use from many threads."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Watch files; ``value`` reads them."""
        self._paths = paths
        self._lock = threading.Lock()
        self._marks: list[object] | None = None
        self._value: T | None = None

    def value(self) -> T:
        """Return the value of the current files, or the previous value if they cannot be read any more.

        Raises:
            SettingsError: The files cannot be read, and there is no previous value.
        """
        with self._lock:
            marks = [_mark(path) for path in self._paths]
            if self._marks != marks:
                try:
                    self._value = self._make()
                except SettingsError as error:
                    if self._value is None:
                        raise
                    LOG.warning("%s; the previous content stays in use", error)
                self._marks = marks
            return cast(T, self._value)

    def __getstate__(self) -> dict[str, object]:
        """Return the state for another process, which reads the files itself."""
        return {name: value for name, value in vars(self).items() if name not in ("_lock", "_marks", "_value")}

    def __setstate__(self, state: dict[str, object]) -> None:
        """Restore the state without reading a file."""
        vars(self).update(state, _lock=threading.Lock(), _marks=None, _value=None)

    def _make(self) -> T:
        raise NotImplementedError


def _mark(path: Path) -> object:
    """Return a value that changes when a file is changed or replaced."""
    try:
        found = path.stat()
    except OSError as error:
        return error.errno
    return found.st_mtime_ns, found.st_size, found.st_ino


class Tokens(Watched[tuple[Identity, ...]]):
    """A server's clients: those of a token file, or any client with the one given token."""

    def __init__(self, token: str | None = None, path: Path | None = None) -> None:
        """Use one token with admin rights, or a file; see ``read_tokens``."""
        super().__init__([] if path is None else [path])
        self._token, self._path = token, path
        self.value()

    def find(self, token: bytes) -> Identity | None:
        """Return the client of a token, compared in constant time; None for an unknown token."""
        digest, found = _digest(token), None
        for identity in self.value():
            if hmac.compare_digest(digest, identity.digest):
                found = identity
        return found

    def _make(self) -> tuple[Identity, ...]:
        if self._path is not None:
            return read_tokens(self._path)
        return () if self._token is None else (Identity(digest=_digest(self._token.encode())),)


class TokenFile(Watched[str]):
    """Token that a client sends, from a file."""

    def __init__(self, path: Path, owner: int | None = None) -> None:
        """Read the file, now or later; see ``read_token``."""
        super().__init__([path])
        self._path, self._owner = path, owner

    def _make(self) -> str:
        return read_token(self._path, self._owner)


def read_tokens(path: Path) -> tuple[Identity, ...]:
    """Read a server's token file: one token with admin rights, or lines of ``name rights token``.

    Rights are ``read`` or ``admin``. Empty lines and lines that begin with ``#`` are ignored. Several lines may have
    the same name, for example while a token is being replaced.

    Raises:
        SettingsError: The file is missing or too large, holds no token, or has a malformed line; the message has the
            line number.
    """
    return tuple(Identity(name, rights, _digest(token.encode())) for name, rights, token in _entries(path))


def read_token(path: Path, owner: int | None = None) -> str:
    """Read a client's token from a file: the first one with admin rights, else the first one.

    Args:
        path: The file.
        owner: User id that must own it, as a regular file and not through a link; None for any file.

    Raises:
        SettingsError: See ``read_tokens``; or ``owner`` does not own the file.
    """
    entries = _entries(path, owner)
    return next((token for _, rights, token in entries if rights == "admin"), entries[0][2])


def _entries(path: Path, owner: int | None = None) -> list[tuple[str, Rights, str]]:
    """Return name, rights and token of every line with a token."""
    lines = [(number, line.split()) for number, line in enumerate(_read(path, owner).splitlines(), 1)]
    lines = [(number, words) for number, words in lines if words and not words[0].startswith("#")]
    if not lines:
        raise SettingsError(f"token file {path} holds no token")
    if len(lines) == 1 and len(lines[0][1]) == 1:
        ((_, (token,)),) = lines
        check_token(token)
        return [("", "admin", token)]
    found: list[tuple[str, Rights, str]] = []
    line_of: dict[str, int] = {}
    for number, words in lines:  # messages do not quote words, because one of them is a token
        where = f"{path}:{number}"
        if len(words) != 3:
            raise SettingsError(
                f"{where} has {len(words)} word{'s' if len(words) > 1 else ''}; a token file is one token alone, or "
                "lines of: name read|admin token"
            )
        name, rights, token = words
        if rights not in get_args(Rights):
            raise SettingsError(
                f"{where} has a second word that is neither read nor admin; write: name read|admin token"
            )
        try:
            check_token(token)
        except SettingsError as error:
            raise SettingsError(f"{where}: {error}") from error
        if token in line_of:
            raise SettingsError(f"{where} has the token of line {line_of[token]}; give each line a token of its own")
        line_of[token] = number
        found.append((name, cast(Rights, rights), token))
    return found


def check_token(token: str | None) -> None:
    """Raise ``SettingsError`` if a text cannot be a token."""
    if token is None:
        return
    if not token or not all("!" <= character <= "~" for character in token):
        raise SettingsError("a token must be one or more printable ASCII characters without spaces")
    if len(token) > MAX_TOKEN_BYTES:
        raise SettingsError(f"a token has at most {MAX_TOKEN_BYTES} characters, got {len(token)}")


def _read(path: Path, owner: int | None) -> str:
    """Read a token file, and warn once if all users can read it."""
    flags = os.O_RDONLY if owner is None else os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # open() waits for no pipe
    try:
        with open(local_path(path), "rb", opener=lambda name, _: os.open(name, flags)) as file:
            found = os.fstat(file.fileno())  # of the open file, because its path may be replaced meanwhile
            mode = found.st_mode
            if owner is not None and not (stat.S_ISREG(mode) and found.st_uid == owner):
                raise SettingsError(
                    f"token file {path} is not used: it is not a regular file of the user who wrote the cluster file"
                )
            text = file.read(MAX_FILE_BYTES + 1).decode("ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"token file {path} cannot be read: {error}") from error
    if len(text) > MAX_FILE_BYTES:
        raise SettingsError(f"token file {path} has more than {MAX_FILE_BYTES} bytes")
    if stat.S_ISREG(mode) and mode & stat.S_IROTH and path not in _WARNED_OF:
        _WARNED_OF.add(path)
        LOG.warning("token file %s can be read by every user of the machine; run chmod 600 %s", path, path)
    return text


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
