"""Which store answers for a source: a folder, a cluster file, or a list of servers?"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from hopstream.errors import SettingsError
from hopstream.store.contract import Store
from hopstream.uris import local_path

if TYPE_CHECKING:
    from hopstream.store.settings import StoreSettings

# The transport writes lines of its own to stderr, which belong to no log: a port in use, a handshake that failed. What
# they say is in the errors that are raised. The variable is read when the transport is loaded, which comes later.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

__all__ = ["Source", "Store", "check_scheme", "check_source", "open_store"]

Source = str | os.PathLike[str] | Store
"""What ``open_store`` takes."""


ADDRESS = re.compile(r"[^\s/@,]+:\d{1,5}")


def check_scheme(text: str) -> None:
    """Raise ``SettingsError`` where a text is one address or several, and the scheme is missing."""
    addresses = [one.strip() for one in text.split(",")]
    if all(map(ADDRESS.fullmatch, addresses)) and not Path(text).exists():
        wanted = ",".join(f"grpc://{one}" for one in addresses)
        raise SettingsError(f"{text!r} has no scheme; write {wanted}, or grpc+tls:// where servers have TLS")


def check_source(source: object) -> None:
    """Raise ``SettingsError`` where a source is no text and no path, and so nothing that can be opened."""
    if isinstance(source, str | os.PathLike):
        return
    if type(source).__name__ == "RemoteGraph":  # of a room above this one
        raise SettingsError(
            "source is a RemoteGraph, which is for loaders; give the cluster.json, or the addresses, that you gave to "
            "RemoteGraph"
        )
    wanted = "the folder of a dataset, a cluster.json, an address such as grpc://host:7001, or an open store"
    if isinstance(source, list | tuple):
        raise SettingsError(
            f"source is a {type(source).__name__}; it must be {wanted}; several addresses are one str, joined by commas"
        )
    raise SettingsError(
        f"source is a {type(source).__name__}; it must be {wanted}; a folder is made once: "
        "write_parts(graph, folder, num_parts=1), where read_graph(data) makes the graph of PyG's Data or HeteroData"
    )


def open_store(source: Source, settings: StoreSettings | None = None) -> Store:
    """Open a dataset, wherever it is.

    Args:
        source: The folder of a dataset, a ``cluster.json``, a list of servers such as
            ``grpc://host:7001,grpc+tls://host:7002``, or a store, which is returned as it is.
        settings: How much of files on this machine is checked; deadline and security, where servers are asked.

    Returns:
        A store over all parts. Who opened it closes it.

    Raises:
        FormatError: The folder is not a dataset, or the file is not a cluster file, or ``settings.verify`` found
            damage.
        ChecksumError: The manifest, or with ``settings.verify`` a file, is not the one that was written.
        SettingsError: The source is nothing that can be opened, or a location cannot be read.
        StoreTimeout: A server gave no answer in time.
        StoreUnavailable: A server cannot be reached, or no server holds some part.
        AccessDenied: A server refused the token or certificate.
        VersionMismatch: Servers serve different datasets, or speak another version of the protocol.
    """
    if isinstance(source, Store):
        return source
    check_source(source)
    if isinstance(source, str):
        check_scheme(source)
    # Imported when they are needed: a dataset on this machine is opened without the network's libraries.
    if isinstance(source, str) and "://" in source:
        from hopstream.store.cluster import open_cluster, parse_locations

        return open_cluster(parse_locations(source), settings)
    path = local_path(source)
    if path.suffix == ".json" and not path.is_dir():
        from hopstream.store.cluster import open_cluster, read_cluster

        return open_cluster(read_cluster(path), settings)
    from hopstream.partition.layout import open_dataset
    from hopstream.store.local import LocalStore

    return LocalStore(open_dataset(path, verify=None if settings is None else settings.verify))
