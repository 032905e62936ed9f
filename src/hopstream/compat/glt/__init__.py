"""GraphLearn-for-PyTorch's names: ``hopstream.compat.glt`` in place of ``graphlearn_torch``."""

from __future__ import annotations

from typing import Any

from hopstream.compat.glt.names import find_name

_TYPES = (
    "EdgeIndexTensor", "EdgeType", "FeaturePartitionData", "GraphPartitionData", "HeteroEdgePartitionDict",
    "HeteroFeaturePartitionData", "HeteroGraphPartitionData", "HeteroNodePartitionDict", "InputEdges", "InputNodes",
    "NodeIndex", "NodeLabel", "NodeType", "NumNeighbors", "PartitionBook", "Seeds", "Split", "TensorDataType", "as_str",
    "reverse_edge_type",
)  # fmt: skip
_MODULE_OF = {
    **{name: f"{__name__}.{name}" for name in ("distributed", "partition", "sampler", "typing")},
    **dict.fromkeys(_TYPES, f"{__name__}.typing"),
}
_REFUSED = {
    "channel": "loaders have channels of their own; iterate a loader",
    "data": "graphs and features are kept in datasets: hopstream.write_parts(hopstream.graph_from_arrays(…), folder)",
    "loader": "on one machine use hopstream.NeighborLoader and hopstream.LinkNeighborLoader",
    "utils": "ports, devices and tensors need no helpers here",
    "py_graphlearn_torch": "there is no C++ extension",
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
