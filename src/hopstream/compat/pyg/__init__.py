"""Names of PyG's distributed and remote interfaces.

Write ``import hopstream.compat.pyg as pyg_dist`` in place of ``import torch_geometric.distributed as pyg_dist``. A name
is loaded on first use.
"""

from __future__ import annotations

from importlib import import_module

_MODULE_OF = {
    "DatasetFeatureStore": "hopstream.compat.pyg.stores",
    "DatasetGraphStore": "hopstream.compat.pyg.stores",
    "DatasetSampler": "hopstream.compat.pyg.sampler",
    "DistContext": "hopstream.compat.pyg.rpc",
    "DistEdgeHeteroSamplerInput": "hopstream.compat.pyg.dist_neighbor_sampler",
    "DistLinkNeighborLoader": "hopstream.compat.pyg.dist_loader",
    "DistLoader": "hopstream.compat.pyg.dist_loader",
    "DistNeighborLoader": "hopstream.compat.pyg.dist_loader",
    "DistNeighborSampler": "hopstream.compat.pyg.dist_neighbor_sampler",
    "DistRole": "hopstream.compat.pyg.rpc",
    "LocalFeatureStore": "hopstream.compat.pyg.local_feature_store",
    "LocalGraphStore": "hopstream.compat.pyg.local_graph_store",
    "Partitioner": "hopstream.compat.pyg.partition_writing",
    "global_barrier": "hopstream.compat.pyg.rpc",
    "init_rpc": "hopstream.compat.pyg.rpc",
    "load_partition_info": "hopstream.compat.pyg.partition_files",
    "open_stores": "hopstream.compat.pyg.stores",
    "read_partition_folders": "hopstream.compat.pyg.partition_folders",
    "read_partitions": "hopstream.compat.pyg.partition_reading",
    "sampler_output": "hopstream.compat.pyg.sampler",
    "shutdown_rpc": "hopstream.compat.pyg.rpc",
    "to_asyncio_future": "hopstream.compat.pyg.channels",
    "write_partition_folders": "hopstream.compat.pyg.partition_folders",
    "write_partitions": "hopstream.compat.pyg.partition_writing",
}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> object:
    """Load a public name from its module on first use."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'hopstream.compat.pyg' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, loaded or not."""
    return list(__all__)
