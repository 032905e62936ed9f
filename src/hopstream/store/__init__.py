"""Which store answers for a source: a folder, a cluster file, or a list of servers?"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from hopstream.store.contract import Store

if TYPE_CHECKING:
    from hopstream.store.settings import StoreSettings

__all__ = ["Source", "Store", "open_store"]

Source = str | os.PathLike[str] | Store
"""What ``open_store`` takes."""


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
        SettingsError: A location cannot be read.
        StoreTimeout: A server gave no answer in time.
        StoreUnavailable: A server cannot be reached, or no server holds some part.
        AccessDenied: A server refused the token or certificate.
        VersionMismatch: Servers serve different datasets, or speak another version of the protocol.
    """
    if isinstance(source, Store):
        return source
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
