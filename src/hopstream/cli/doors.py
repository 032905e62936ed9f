"""Addresses for the servers of ``up``: private Unix sockets, or loopback ports with a token."""

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
"""Prefix of the names of folders for sockets."""
TOKEN_BYTES = 32
LONGEST_NAME = "01234567/1234567"
"""As long as the longest path of a socket after the prefix."""


class Doors:
    """Addresses and token of the servers.

    The context creates the socket folder or the token file, and removes it at the end.

    Attributes:
        token_file: The file of the token, created or given; None if the token is not in a file, or none is required.
    """

    def __init__(self, cluster_file: Path, *, has_sockets: bool, token_file: Path | None, asks_token: bool) -> None:
        """Check the token file; nothing is created yet.

        Args:
            cluster_file: The file by which clients find the servers.
            has_sockets: Servers listen at Unix sockets, which need no token; if False, at TCP ports, which do.
            token_file: The file of the token, or None.
            asks_token: False admits every user of the machine.

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
        """The token file that the cluster file names, or None.

        The cluster file names a token file only if that is in the same folder and no symbolic link.
        """
        path = self.token_file
        return None if path is None or path.parent != self._cluster_file.parent or path.is_symlink() else path

    def flags(self, number: int) -> list[str]:
        """Return the command-line flags of one server."""
        location = [] if self._folder is None else ["--location", f"unix://{self._folder / str(number)}"]
        return location + ([] if self.token_file is None else ["--token-file", str(self.token_file)])

    def environment(self) -> dict[str, str]:
        """Return the environment of the servers; without the token's variable if no token is required."""
        left_out = None if self._asks_token else TOKEN_VARIABLE
        return {name: value for name, value in os.environ.items() if name != left_out}

    def __enter__(self) -> Doors:
        """Create the folder for sockets, or the token file.

        Raises:
            SettingsError: No folder with a path short enough for sockets can be created.
        """
        if self._has_sockets:
            self._folder = _socket_folder()
        if self._makes_token:
            self.token_file = _make_token(self._cluster_file)
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Remove the created folder or token file."""
        if self._folder is not None:
            rmtree(self._folder, ignore_errors=True)
        if self._makes_token and self.token_file is not None:
            self.token_file.unlink(missing_ok=True)


def _socket_folder() -> Path:
    """Create a folder for sockets that only this user can enter.

    Its path must be short enough for Unix sockets.

    Raises:
        SettingsError: No such folder can be created.
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
    raise SettingsError("a folder for Unix sockets cannot be made; set XDG_RUNTIME_DIR to one, or give --bind tcp")


def _make_token(cluster_file: Path) -> Path:
    """Write a new token to a file beside the cluster file that only this user can read."""
    path = cluster_file.with_name(f"{cluster_file.name}.{secrets.token_hex(4)}{TOKEN_SUFFIX}")
    path.touch(mode=0o600, exist_ok=False)
    path.write_text(secrets.token_hex(TOKEN_BYTES) + "\n", encoding="ascii")
    return path


def remove_made(cluster_file: Path, cluster: Cluster) -> None:
    """Remove the token file and the empty socket folder of a cluster whose command was killed."""
    from hopstream.transport.location import Location

    token = cluster.token_file
    if token is not None and is_made_token(token.name, cluster_file.name):
        token.unlink(missing_ok=True)
    for folder in {Path(Location.parse(entry.location).path).parent for entry in cluster.servers}:
        if folder.name.startswith(FOLDER_PREFIX):
            with suppress(OSError):
                folder.rmdir()
