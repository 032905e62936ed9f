"""Names of ``graphlearn_torch.distributed``."""

from __future__ import annotations

from typing import Any

from hopstream.compat.glt.names import find_name

_NAMES_OF = {
    "dist_client": ("async_request_server", "init_client", "request_server", "shutdown_client"),
    "dist_context": ("DistContext", "DistRole", "get_context", "init_worker_group"),
    "dist_link_neighbor_loader": ("DistLinkNeighborLoader",),
    "dist_loader": ("DistLoader",),
    "dist_neighbor_loader": ("DistNeighborLoader",),
    "dist_server": ("DistServer", "get_server", "init_server", "wait_and_shutdown_server"),
    "dist_subgraph_loader": ("DistSubGraphLoader",),
    "glt_dataset": ("DistDataset",),
    "options": (
        "AllDistSamplingWorkerOptions", "CollocatedDistSamplingWorkerOptions", "MpDistSamplingWorkerOptions",
        "RemoteDistSamplingWorkerOptions",
    ),
}  # fmt: skip
_MODULE_OF = {name: f"{__name__}.{module}" for module, names in _NAMES_OF.items() for name in names}
_NO_RPC = "processes are not connected by torch's RPC; leave the call out"
_INNER = "loaders sample themselves; make a loader"
_REFUSED = {
    **dict.fromkeys(("init_rpc", "shutdown_rpc", "rpc_is_initialized"), _NO_RPC),
    **dict.fromkeys(("get_rpc_master_addr", "get_rpc_master_port", "RpcCalleeBase", "RpcDataPartitionRouter"), _NO_RPC),
    **dict.fromkeys(("rpc_register", "rpc_request", "rpc_request_async", "rpc_sync_data_partitions"), _NO_RPC),
    **dict.fromkeys(("rpc_global_request", "rpc_global_request_async"), "use request_server or async_request_server"),
    **dict.fromkeys(("barrier", "global_barrier"), "use torch.distributed.barrier()"),
    **dict.fromkeys(("all_gather", "global_all_gather"), "use torch.distributed.all_gather_object()"),
    **dict.fromkeys(("DistGraph", "DistFeature", "PartialFeature"), "open the dataset: hopstream.open_dataset(folder)"),
    **dict.fromkeys(("DistNeighborSampler", "ConcurrentEventLoop"), _INNER),
    **dict.fromkeys(("DistMpSamplingProducer", "DistCollocatedSamplingProducer"), _INNER),
    "DistRandomPartitioner": "cut the graph with hopstream prepare TABLES --parts N, or hopstream.write_parts",
    "DistTableDataset": "make a dataset of tables with hopstream prepare TABLES --parts N",
}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    """Load a public name on first use.

    Raises:
        AttributeError: The name is missing; the error names the alternative.
    """
    return find_name(__name__, name, _MODULE_OF, _REFUSED)


def __dir__() -> list[str]:
    """Return all names, loaded or not."""
    return list(__all__)
