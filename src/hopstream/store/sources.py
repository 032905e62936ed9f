"""Sources: names of stores, and a check of them without network access."""

from __future__ import annotations

import os

from hopstream.errors import SettingsError
from hopstream.store.contract import Store

Source = str | os.PathLike[str] | Store
"""Argument of ``open_store``."""


def check_source(source: object) -> None:
    """Raise ``SettingsError`` if a source is neither a string, nor a path, nor a store."""
    if isinstance(source, str | os.PathLike):
        return
    if type(source).__name__ == "RemoteGraph":  # by name, because ``stream`` imports this package
        raise SettingsError(
            "source is a RemoteGraph, which only loaders take; give the cluster.json or the addresses that you gave to "
            "RemoteGraph"
        )
    wanted = "the folder of a dataset, a cluster.json, an address such as tcp://host:7001, or an open store"
    if isinstance(source, list | tuple):
        raise SettingsError(
            f"source is a {type(source).__name__}; it must be {wanted}; several addresses are one str, joined by commas"
        )
    raise SettingsError(
        f"source is a {type(source).__name__}; it must be {wanted}; make a folder once with "
        "write_parts(graph, folder, num_parts=1) (read_graph(data) converts PyG's Data or HeteroData to a graph)"
    )
