"""Stores: opens a dataset from a folder, a cluster file or a list of servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopstream.store.contract import Store
from hopstream.store.sources import Source, check_source
from hopstream.transport.location import check_scheme
from hopstream.uris import local_path

if TYPE_CHECKING:
    from hopstream.store.settings import StoreSettings

__all__ = ["Source", "Store", "open_store"]


def open_store(source: Source, settings: StoreSettings | None = None) -> Store:
    """Open a dataset from a folder or from servers.

    Args:
        source: The folder of a dataset, a ``cluster.json``, a list of servers such as
            ``tcp://host:7001,tls://host:7002``, or a store, which is returned as it is.
        settings: Check of local files; deadline and security of requests to servers.

    Returns:
        A store over all parts. The caller closes it, unless ``source`` is a store.

    Raises:
        FormatError: The folder is not a dataset, the file is not a cluster file, or ``settings.verify`` found damage.
        ChecksumError: The manifest is not the one that was written, or with ``settings.verify`` another file is not.
        SettingsError: The source has another type, or a location cannot be parsed.
        StoreTimeout: A server did not answer in time.
        StoreUnavailable: A server is unreachable, or no server holds some part.
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
    from hopstream.dataset.layout import open_dataset
    from hopstream.store.local import LocalStore

    return LocalStore(open_dataset(path, verify=None if settings is None else settings.verify))
