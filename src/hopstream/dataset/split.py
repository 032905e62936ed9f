"""Assigns an id to each node and edge, and groups edges by the part that owns them.

Ids of a type are numbered part by part, and inside a part in the order of keys. Edges are grouped by the id of the end
that owns them. So the edges of a part are one contiguous range, and the edges of one node keep their original order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import Array, IntArray, offsets_of
from hopstream.dataset.book import ends_of, number_dtype
from hopstream.errors import IdRangeError
from hopstream.graph.graph import EdgeTable
from hopstream.kernels.adjacency import count_mapped, group_mapped
from hopstream.schema import Direction, EdgeType


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeSplit:
    """New numbering of the nodes of one type.

    Attributes:
        offsets: int64[num_parts + 1], the range of ids that each part owns.
        keys: integer[num_nodes], the key of each id; ascending inside a part.
        ids_of_keys: integer[num_nodes], the id of each key.
    """

    offsets: IntArray
    keys: Array
    ids_of_keys: Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EdgeSplit:
    """Grouping of the edges of one type in one direction.

    Attributes:
        offsets: int64[num_parts + 1], the range of edge ids that each part owns.
        indptr: int64[num_nodes + 1], the range of edge ids of each id of the owning end.
        indices: uint32[num_edges] or int64[num_edges], the id of the other end by edge id.
        keys: integer[num_edges], the edge key by edge id; ascending inside a row, until ``sort_by_time``.
    """

    offsets: IntArray
    indptr: IntArray
    indices: Array
    keys: Array


def split_by_owner(owner: NDArray[np.int32], num_parts: int) -> tuple[IntArray, Array]:
    """Group node keys by the part that owns them.

    Args:
        owner: int32[num_nodes]. ``owner[k]`` is the part of the node with key ``k``, in ``[0, num_parts)``.
        num_parts: Number of parts.

    Returns:
        offsets: int64[num_parts + 1]; part ``p`` owns ``order[offsets[p]:offsets[p + 1]]``.
        order: integer[num_nodes], keys, ascending inside each part.

    Raises:
        IdRangeError: ``owner`` holds a value outside ``[0, num_parts)``.
    """
    if len(owner) and (int(owner.min()) < 0 or int(owner.max()) >= num_parts):
        row = int(np.flatnonzero((owner < 0) | (owner >= num_parts))[0])
        raise IdRangeError(f"owner[{row}] is {int(owner[row])}; parts are numbered 0..{num_parts - 1}")
    offsets = offsets_of(np.bincount(owner, minlength=num_parts))
    # A stable sort of 16-bit numbers is a radix sort, which is linear.
    sortable = owner.astype(np.uint16) if num_parts <= 1 << 16 else owner
    return offsets, np.argsort(sortable, kind="stable")


def split_nodes(owner: NDArray[np.int32], num_parts: int) -> NodeSplit:
    """Renumber the nodes of one type; see ``split_by_owner``."""
    offsets, keys = split_by_owner(owner, num_parts)
    ids_of_keys = np.empty(len(owner), number_dtype(len(owner)))
    ids_of_keys[keys] = np.arange(len(owner), dtype=ids_of_keys.dtype)
    return NodeSplit(offsets=offsets, keys=keys, ids_of_keys=ids_of_keys)


def split_edges(
    edges: EdgeTable, edge_type: EdgeType, direction: Direction, nodes: Mapping[str, NodeSplit]
) -> EdgeSplit:
    """Group the edges of one type by the id of the end that owns them.

    Args:
        edges: The edges.
        edge_type: Their type.
        direction: ``in`` groups by the destination, ``out`` by the source.
        nodes: Node type to the new numbering of its nodes.
    """
    own_keys, other_keys = (edges.dst_keys, edges.src_keys) if direction == "in" else (edges.src_keys, edges.dst_keys)
    own, other = (nodes[t] for t in ends_of(edge_type, direction))
    indptr = np.zeros(len(own.ids_of_keys) + 1, np.int64)
    count_mapped(own_keys, own.ids_of_keys, indptr)
    indices = np.empty(edges.num_edges, other.ids_of_keys.dtype)
    keys = np.empty(edges.num_edges, number_dtype(edges.num_edges))
    group_mapped(own_keys, other_keys, own.ids_of_keys, other.ids_of_keys, indptr[:-1].copy(), keys, indices)
    return EdgeSplit(offsets=indptr[own.offsets], indptr=indptr, indices=indices, keys=keys)
