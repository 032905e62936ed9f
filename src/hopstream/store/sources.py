"""Sources: what names a store, and checks of it that need no network."""

from __future__ import annotations

import os
import re
from pathlib import Path

from hopstream.errors import SettingsError
from hopstream.store.contract import Store

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
