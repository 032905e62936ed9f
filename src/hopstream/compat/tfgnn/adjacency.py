"""Which nodes do the edges of a graph tensor connect?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hopstream.arrays import IntArray, RaggedArray
from hopstream.compat.tfgnn.fields import Field
from hopstream.compat.tfgnn.specs import AdjacencySpec, TensorSpec
from hopstream.compat.tfgnn.tags import SOURCE, TARGET
from hopstream.errors import SchemaError, UnknownNameError
from hopstream.tfgnn.values import FeatureValues


def integers(values: Any, where: str) -> IntArray:
    """Sizes or indices as int32 or int64: arrays as they are, lists as int32 where they fit.

    Raises:
        SchemaError: They are no integers.
    """
    array = np.asarray(values)
    if not array.size:
        array = array.astype(array.dtype if array.dtype.kind == "i" else np.int32)
    if array.dtype.kind not in "iu":
        raise SchemaError(f"{where} is {array.dtype}; sizes and indices are integers")
    is_given = isinstance(values, np.ndarray)
    is_small = not array.size or -(2**31) <= int(array.min()) <= int(array.max()) < 2**31
    if array.dtype == np.int32 or (not is_given and is_small):
        return array.astype(np.int32, copy=False)
    return array.astype(np.int64, copy=False)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Adjacency:
    """Which nodes the edges of a set connect. Nodes are counted from the first one of their graph.

    Attributes:
        source_name: The node set of sources.
        target_name: The node set of targets.
        flat: int[num_edges], the sources of all graphs one after the other, and the targets.
        num_edges: How many edges there are; int64[num_graphs] of a batch.
    """

    source_name: str
    target_name: str
    flat: tuple[IntArray, IntArray]
    num_edges: int | IntArray

    @classmethod
    def from_indices(cls, source: tuple[str, Any], target: tuple[str, Any]) -> Adjacency:
        """The adjacency of edges.

        Args:
            source: The node set that edges come from, and int[num_edges], their sources; a row per graph of a batch.
            target: Likewise the node set that they go to, and their targets.

        Raises:
            SchemaError: There are more sources than targets, or fewer, or they are no integers.
        """
        sources, num_sources = _indices_of(source[1], "source")
        targets, num_targets = _indices_of(target[1], "target")
        if not np.array_equal(num_sources, num_targets):
            raise SchemaError(f"there are {num_sources} sources and {num_targets} targets; an edge has one of each")
        return cls(source_name=source[0], target_name=target[0], flat=(sources, targets), num_edges=num_sources)

    @property
    def source(self) -> Field:
        """int[num_edges], the sources; a row per graph of a batch."""
        return self[SOURCE]

    @property
    def target(self) -> Field:
        """int[num_edges], the targets; a row per graph of a batch."""
        return self[TARGET]

    def __getitem__(self, node_tag: int) -> Field:
        """The indices of ``SOURCE`` or ``TARGET``."""
        flat = self.flat[_checked(node_tag)]
        return flat if isinstance(self.num_edges, int) else FeatureValues(flat, len(self.num_edges), (self.num_edges,))

    def node_set_name(self, node_tag: int) -> str:
        """The node set of ``SOURCE`` or ``TARGET``."""
        return (self.source_name, self.target_name)[_checked(node_tag)]

    def get_indices_dict(self) -> dict[int, tuple[str, Field]]:
        """The node set and the indices of ``SOURCE`` and of ``TARGET``."""
        return {tag: (self.node_set_name(tag), self[tag]) for tag in (SOURCE, TARGET)}

    @property
    def spec(self) -> AdjacencySpec:
        """What it connects."""
        dtype = self.flat[0].dtype.name
        shape = (self.num_edges,) if isinstance(self.num_edges, int) else (len(self.num_edges), None)
        return AdjacencySpec(self.source_name, self.target_name, TensorSpec(shape, dtype))


def _checked(node_tag: int) -> int:
    if node_tag not in (SOURCE, TARGET):
        raise UnknownNameError(f"edges have no end {node_tag!r}; use SOURCE, {SOURCE}, or TARGET, {TARGET}")
    return node_tag


def _indices_of(values: Any, where: str) -> tuple[IntArray, int | IntArray]:
    """All indices, and how many edges there are: one number, or one per graph of a batch."""
    made = FeatureValues.of(values)
    if isinstance(made.flat, RaggedArray) or len(made.dims) > 1:
        got = f"{'strings' if isinstance(made.flat, RaggedArray) else made.flat.dtype}{[made.num_items, *made.shape]}"
        raise SchemaError(f"{where} is {got}; indices are integers[num_edges], of a batch a row per graph")
    is_given = isinstance(values, np.ndarray | FeatureValues | RaggedArray)
    flat = integers(made.flat if is_given else made.flat.tolist(), where)
    if not made.dims:
        return flat, len(flat)
    (dim,) = made.dims
    return flat, np.full(made.num_items, dim, np.int64) if isinstance(dim, int) else dim
