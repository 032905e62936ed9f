"""Which store answers for a source: a folder, a cluster file, or a list of servers?"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from hopstream.errors import SettingsError
from hopstream.store.contract import Store

if TYPE_CHECKING:
    from hopstream.store.settings import StoreSettings

__all__ = ["Source", "Store", "check_source", "open_store"]

Source = str | os.PathLike[str] | Store
"""What ``open_store`` takes."""


def check_source(source: object) -> None:
    """Raise ``SettingsError`` where a source is no text and no path, and so nothing that can be opened."""
    if isinstance(source, str | os.PathLike):
        return
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
        settings: Deadline and security, where servers are asked.

    Returns:
        A store over all parts. Who opened it closes it.

    Raises:
        FormatError: The folder is not a dataset, or the file is not a cluster file.
        SettingsError: The source is nothing that can be opened, or a location cannot be read.
        StoreTimeout: A server gave no answer in time.
        StoreUnavailable: A server cannot be reached, or no server holds some part.
        AccessDenied: A server refused the token or certificate.
        VersionMismatch: Servers serve different datasets, or speak another version of the protocol.
    """
    if isinstance(source, Store):
        return source
    check_source(source)
    # Imported when they are needed: a dataset on this machine is opened without the network's libraries.
    if isinstance(source, str) and "://" in source:
        from hopstream.store.cluster import open_cluster, parse_locations

        return open_cluster(parse_locations(source), settings)
    path = Path(source)
    if path.suffix == ".json" and not path.is_dir():
        from hopstream.store.cluster import open_cluster, read_cluster

        return open_cluster(read_cluster(path), settings)
    from hopstream.partition.layout import open_dataset
    from hopstream.store.local import LocalStore

    return LocalStore(open_dataset(path))
