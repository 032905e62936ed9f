"""DGL's names: ``hopstream.compat.dgl`` in place of ``dgl``.

Write ``import hopstream.compat.dgl as dgl`` in place of ``import dgl``. Graphs hold data and have no message passing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hopstream.compat.dgl import data, distributed
    from hopstream.compat.dgl.convert import from_networkx, from_scipy
    from hopstream.compat.dgl.graphs import EID, ETYPE, NID, NTYPE, DGLGraph, graph, heterograph

__all__ = [
    "EID",
    "ETYPE",
    "NID",
    "NTYPE",
    "DGLGraph",
    "data",
    "distributed",
    "from_networkx",
    "from_scipy",
    "graph",
    "heterograph",
]

_IN_CONVERT = ("from_networkx", "from_scipy")


def __getattr__(name: str) -> object:
    """Load a name when it is first used.

    Raises:
        AttributeError: The module has no such name; the error lists its names.
    """
    if name in ("data", "distributed"):
        return import_module(f"hopstream.compat.dgl.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'hopstream.compat.dgl' has no attribute {name!r}; it has {', '.join(__all__)}")
    module = import_module(f"hopstream.compat.dgl.{'convert' if name in _IN_CONVERT else 'graphs'}")
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    """Return all names, loaded or not."""
    return list(__all__)
