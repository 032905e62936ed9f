"""Sources: names of stores, and a check of them without network access."""

from __future__ import annotations

import os
from typing import TypeGuard

from hopstream.errors import SettingsError
from hopstream.graph.graph import Graph
from hopstream.ingest.objects.pyg_data import DataLike, HeteroDataLike
from hopstream.store.contract import Store

MemorySource = Graph | DataLike | HeteroDataLike
"""A graph in memory: a ``Graph``, or PyG's ``Data`` or ``HeteroData``."""
Source = str | os.PathLike[str] | Store | MemorySource
"""Argument of ``open_store``."""


def check_source(source: object) -> None:
    """Raise ``SettingsError`` if a source is neither a location, nor a graph in memory, nor a store."""
    if isinstance(source, str | os.PathLike) or is_in_memory(source):
        return
    if type(source).__name__ == "RemoteGraph":  # by name, because ``stream`` imports this package
        raise SettingsError(
            "source is a RemoteGraph, which only loaders take; give the cluster.json or the addresses that you gave to "
            "RemoteGraph"
        )
    wanted = (
        "the folder of a dataset, a cluster.json, an address such as tcp://host:7001, an open store, or a graph in "
        "memory (Graph, Data or HeteroData)"
    )
    if isinstance(source, list | tuple):
        raise SettingsError(
            f"source is a {type(source).__name__}; it must be {wanted}; several addresses are one str, joined by commas"
        )
    kind = f"{type(source).__module__}.{type(source).__qualname__}".removeprefix("builtins.")
    raise SettingsError(f"source is a {kind}; it must be {wanted}")


def read_location(source: object) -> str:
    """Return the path or address of a source that other processes can open.

    Raises:
        SettingsError: The source is neither a string nor a path.
    """
    check_source(source)
    if isinstance(source, str | os.PathLike):
        return os.fspath(source)
    raise SettingsError(
        f"source is a {type(source).__name__} in the memory of this process, and other processes must open it; "
        "write it once with write_parts(graph, folder), and give the folder"
    )


def is_in_memory(source: object) -> TypeGuard[MemorySource]:
    """Return whether a source is a graph in memory: a ``Graph``, or PyG's ``Data`` or ``HeteroData``."""
    if isinstance(source, Store | str | os.PathLike):
        return False
    return isinstance(source, MemorySource)
