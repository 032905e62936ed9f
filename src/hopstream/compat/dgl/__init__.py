"""DGL's names: ``hopstream.compat.dgl`` in place of ``dgl``.

Write ``import hopstream.compat.dgl as dgl`` in place of ``import dgl``. Graphs hold data and have no message passing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hopstream.compat.dgl import data, dataloading, distributed
    from hopstream.compat.dgl.blocks import block_arrays, to_blocks
    from hopstream.compat.dgl.convert import from_networkx, from_scipy
    from hopstream.compat.dgl.graphs import EID, ETYPE, NID, NTYPE, DGLGraph, graph, heterograph

__all__ = [
    "EID",
    "ETYPE",
    "NID",
    "NTYPE",
    "DGLGraph",
    "block_arrays",
    "data",
    "dataloading",
    "distributed",
    "from_networkx",
    "from_scipy",
    "graph",
    "heterograph",
    "to_blocks",
]

_MODULES = {
    **dict.fromkeys(("from_networkx", "from_scipy"), "convert"),
    **dict.fromkeys(("block_arrays", "to_blocks"), "blocks"),
}


def __getattr__(name: str) -> object:
    """Load a name when it is first used.

    Raises:
        AttributeError: The module has no such name; the error lists its names.
    """
    if name in ("data", "dataloading", "distributed"):
        return import_module(f"hopstream.compat.dgl.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'hopstream.compat.dgl' has no attribute {name!r}; it has {', '.join(__all__)}")
    module = import_module(f"hopstream.compat.dgl.{_MODULES.get(name, 'graphs')}")
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    """Return all names, loaded or not."""
    return list(__all__)
