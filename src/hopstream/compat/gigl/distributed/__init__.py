"""Names of ``gigl.distributed``, loaded on first use."""

from __future__ import annotations

from typing import Any

from hopstream.compat.glt.names import find_name

_HERE = __name__
_MODULE_OF = {
    "DistABLPLoader": f"{_HERE}.dist_ablp_neighborloader",
    "DistDataset": "hopstream.compat.glt.distributed.dist_dataset",
    "DistNeighborLoader": f"{_HERE}.distributed_neighborloader",
    "DistributedContext": "hopstream.compat.gigl.env.distributed",
}
_PARTITIONER = (
    "datasets are cut into parts before they are served: use `hopstream prepare TABLES --parts N`, or "
    "hopstream.write_parts(graph, folder, num_parts=N), with method='hash' or owners= of your own"
)
_BUILDING = (
    "data come from Hopstream datasets, not from the TFRecords of a task's configuration: write one with `hopstream "
    "prepare TABLES --parts N` or hopstream.write_parts, and open it with graph_store.build_storage_dataset(folder, "
    "sample_edge_direction)"
)
_REFUSED = {
    "DistPartitioner": _PARTITIONER,
    "DistRangePartitioner": _PARTITIONER,
    "build_dataset": _BUILDING,
    "build_dataset_from_task_config_uri": _BUILDING,
}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    """Load a public name from its module on first use.

    Raises:
        ImportError: GiGL has the name, but this package refuses it; the error names the alternative.
        AttributeError: There is no such name.
    """
    return find_name(_HERE, name, _MODULE_OF, _REFUSED, ImportError)
