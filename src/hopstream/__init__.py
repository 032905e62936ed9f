"""Which names does Hopstream offer to the world?

Names are loaded when they are first used, so ``import hopstream`` brings in neither torch nor numba.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hopstream.graph.graph import Graph
    from hopstream.ingest import graph_from_arrays, graph_from_data, read_graph
    from hopstream.ingest.synthetic import rmat_graph
    from hopstream.load.loader import NeighborLoader
    from hopstream.partition.layout import open_dataset
    from hopstream.partition.read_back import read_dataset
    from hopstream.partition.write import write_parts
    from hopstream.store import open_store
    from hopstream.store.security import ClientSecurity
    from hopstream.store.settings import StoreSettings

__version__ = "0.1.0"

__all__ = [
    "ClientSecurity",
    "Graph",
    "NeighborLoader",
    "StoreSettings",
    "graph_from_arrays",
    "graph_from_data",
    "open_dataset",
    "open_store",
    "read_dataset",
    "read_graph",
    "rmat_graph",
    "write_parts",
]

_MODULE_OF = {
    "ClientSecurity": "hopstream.store.security",
    "Graph": "hopstream.graph.graph",
    "NeighborLoader": "hopstream.load.loader",
    "StoreSettings": "hopstream.store.settings",
    "graph_from_arrays": "hopstream.ingest",
    "graph_from_data": "hopstream.ingest",
    "open_dataset": "hopstream.partition.layout",
    "open_store": "hopstream.store",
    "read_dataset": "hopstream.partition.read_back",
    "read_graph": "hopstream.ingest",
    "rmat_graph": "hopstream.ingest.synthetic",
    "write_parts": "hopstream.partition.write",
}


def __getattr__(name: str) -> object:
    """Load a public name from its module when it is first used."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'hopstream' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return [*__all__, "__version__"]
