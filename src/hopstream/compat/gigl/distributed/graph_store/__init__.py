"""Graph-store mode: storage servers and compute processes, with GiGL's names."""

from __future__ import annotations

from typing import Any

from hopstream.compat.glt.names import find_name

_HERE = __name__
_MODULE_OF = {
    "GraphStoreInfo": "hopstream.compat.gigl.env.distributed",
    "RemoteDistDataset": f"{_HERE}.remote_dist_dataset",
    "build_storage_dataset": f"{_HERE}.storage_utils",
    "get_graph_store_info": "hopstream.compat.gigl.distributed.utils.networking",
    "init_compute_process": f"{_HERE}.compute",
    "run_storage_server": f"{_HERE}.storage_utils",
    "shutdown_compute_process": f"{_HERE}.compute",
}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    """Load a public name from its module on first use."""
    return find_name(_HERE, name, _MODULE_OF, {})
