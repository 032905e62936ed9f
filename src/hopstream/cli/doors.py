"""Doors: where the servers of ``up`` listen: Unix sockets in a private folder, or loopback ports with a new token."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from tempfile import gettempdir, mkdtemp
from typing import TYPE_CHECKING

from hopstream.cli.server_flags import TOKEN_VARIABLE, environment_token
from hopstream.dataset.paths import TOKEN_SUFFIX, is_made_token
from hopstream.errors import SettingsError

if TYPE_CHECKING:
    from hopstream.store.cluster import Cluster

FOLDER_PREFIX = "hopstream-"
"""How the names of folders for sockets begin."""
TOKEN_BYTES = 32
LONGEST_NAME = "01234567/1234567"
"""What the path of a socket has at the most behind the prefix."""


class Doors:
    """Where the servers listen and the token that they ask for; what is made for them goes with this context.

    Attributes:
        token_file: The file of the token, be it made or given; None where it is not in a file, or none is asked for.
    """

    def __init__(self, cluster_file: Path, *, has_sockets: bool, token_file: Path | None, asks_token: bool) -> None:
        """Make nothing yet.

        Args:
            cluster_file: The file by which clients find the servers.
            has_sockets: Servers listen at Unix sockets, which need no token; else at TCP ports, which do.
            token_file: The file of the token, where one is given.
            asks_token: False lets in every user of the machine.

        Raises:
            SettingsError: The token file that was given cannot be used.
        """
        self._cluster_file = cluster_file.absolute()
        self._has_sockets, self._asks_token = has_sockets, asks_token
        self._folder: Path | None = None
        self.token_file: Path | None = None
        self._makes_token = False
        if token_file is not None:
            from hopstream.transport.tokens import read_tokens

            read_tokens(token_file)
            self.token_file = token_file.absolute()
        elif asks_token:
            self._makes_token = environment_token() is None and not has_sockets

    @property
    def named_token(self) -> Path | None:
        """The token file that the cluster file names to clients: one beside it that is no link; else None."""
        path = self.token_file
        return None if path is None or path.parent != self._cluster_file.parent or path.is_symlink() else path

    def flags(self, number: int) -> list[str]:
        """Command-line flags of one server."""
        location = [] if self._folder is None else ["--location", f"unix://{self._folder / str(number)}"]
        return location + ([] if self.token_file is None else ["--token-file", str(self.token_file)])

    def environment(self) -> dict[str, str]:
        """The environment of the servers."""
        left_out = None if self._asks_token else TOKEN_VARIABLE
        return {name: value for name, value in os.environ.items() if name != left_out}

    def __enter__(self) -> Doors:
        """Make a folder for sockets, or a token.

        Raises:
            SettingsError: There is no folder whose path is short enough.
        """
        if self._has_sockets:
            self._folder = _socket_folder()
        if self._makes_token:
            self.token_file = _make_token(self._cluster_file)
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Remove what was made."""
        if self._folder is not None:
            rmtree(self._folder, ignore_errors=True)
        if self._makes_token and self.token_file is not None:
            self.token_file.unlink(missing_ok=True)


def _socket_folder() -> Path:
    """A new folder that only this user can enter, with so short a path that sockets in it can be listened at.

    Raises:
        SettingsError: There is none.
    """
    from hopstream.transport.location import MAX_SOCKET_PATH

    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    parents = ([runtime] if runtime.startswith("/") else []) + [gettempdir(), "/tmp"]
    for parent in parents:
        longest = Path(parent, FOLDER_PREFIX + LONGEST_NAME)
        if "," in parent or len(os.fsencode(longest)) > MAX_SOCKET_PATH:
            continue
        with suppress(OSError):
            return Path(mkdtemp(prefix=FOLDER_PREFIX, dir=parent))
    raise SettingsError("no folder can be made for Unix sockets; set XDG_RUNTIME_DIR to one, or give --bind tcp")


def _make_token(cluster_file: Path) -> Path:
    """Write a new token to a file of this user alone, beside the cluster file."""
    path = cluster_file.with_name(f"{cluster_file.name}.{secrets.token_hex(4)}{TOKEN_SUFFIX}")
    path.touch(mode=0o600, exist_ok=False)
    path.write_text(secrets.token_hex(TOKEN_BYTES) + "\n", encoding="ascii")
    return path


def remove_made(cluster_file: Path, cluster: Cluster) -> None:
    """Remove what was made for a cluster whose command was killed: its token, and its folder, which is empty."""
    from hopstream.transport.location import Location

    token = cluster.token_file
    if token is not None and is_made_token(token.name, cluster_file.name):
        token.unlink(missing_ok=True)
    for folder in {Path(Location.parse(entry.location).path).parent for entry in cluster.servers}:
        if folder.name.startswith(FOLDER_PREFIX):
            with suppress(OSError):
                folder.rmdir()
