"""Stores: opens a dataset from a folder, a graph in memory, a cluster file or a list of servers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hopstream.dataset.copying.local_copy import folder_of
from hopstream.store.contract import Store
from hopstream.store.sources import MemorySource, Source, check_source
from hopstream.transport.location import check_scheme
from hopstream.uris import is_address, is_uri, local_path

if TYPE_CHECKING:
    from hopstream.dataset.settings import Sides
    from hopstream.store.settings import StoreSettings

__all__ = ["MemorySource", "Source", "Store", "open_graph", "open_store"]


def open_store(source: Source, settings: StoreSettings | None = None) -> Store:
    """Open a dataset from a folder, from memory or from servers.

    Args:
        source: The folder of a dataset, its URI (see ``open_dataset``), a ``cluster.json``, a list of servers such as
            ``tcp://host:7001,tls://host:7002``, a graph in memory (see ``open_graph``), or a store, which is returned
            as it is.
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
    if not isinstance(source, str | os.PathLike):
        check_source(source)
        return open_graph(source)
    if isinstance(source, str):
        check_scheme(source)
    # Imported when they are needed: a dataset on this machine is opened without the network's libraries.
    if isinstance(source, str) and is_address(source):
        from hopstream.store.cluster import open_cluster, parse_locations

        return open_cluster(parse_locations(source), settings)
    path = folder_of(source) if isinstance(source, str) and is_uri(source) else local_path(source)
    if path.suffix == ".json" and not path.is_dir():
        from hopstream.store.cluster import open_cluster, read_cluster

        return open_cluster(read_cluster(path), settings)
    from hopstream.dataset.layout import open_dataset
    from hopstream.store.local import LocalStore

    return LocalStore(open_dataset(path, verify=None if settings is None else settings.verify))


def open_graph(
    graph: MemorySource, *, direction: Sides = "in", time_attr: str | None = None, weight_attr: str | None = None
) -> Store:
    """Open a graph in memory as a store, without writing a folder.

    The store answers exactly like one of the folder that ``write_parts`` would write. Several loaders may share it.
    Features of nodes are used where they are, and must not change while the store is in use. Edges are grouped by node:
    that takes 12 bytes per edge and direction, and a copy of the features of edges.

    Args:
        graph: A ``Graph``, or a :class:`torch_geometric.data.Data` or :class:`torch_geometric.data.HeteroData`.
        direction: The direction in which loaders will follow edges: ``in``, ``out`` or ``both``.
        time_attr: The feature with times, for temporal sampling.
        weight_attr: The edge feature with weights, for weighted sampling; it takes 20 more bytes per edge.

    Raises:
        SchemaError: The graph's columns contradict each other, or hold invalid times or weights.
        IdRangeError: An edge names a node that does not exist.
        UnknownNameError: No type has the feature ``time_attr`` or ``weight_attr``.
    """
    from hopstream.graph.graph import Graph
    from hopstream.ingest.objects.pyg_data import graph_from_data
    from hopstream.preparation.in_memory import dataset_in_memory
    from hopstream.store.local import LocalStore

    found = graph if isinstance(graph, Graph) else graph_from_data(graph)
    return LocalStore(dataset_in_memory(found, direction=direction, time_attr=time_attr, weight_attr=weight_attr))
