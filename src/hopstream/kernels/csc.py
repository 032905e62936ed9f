"""Groups edges by one of their ends.

[Algorithm] Counting sort by the grouping end: one pass counts, one pass places. Edges of one node keep their original
    order.
[Cost] Two sequential reads of the ends and one random write per edge.
[Not chosen] ``numpy.argsort(kind="stable")``: 3 to 6 times slower on 64 M edges, and it needs an int64 copy of the
    order.
"""

from __future__ import annotations

import numpy as np

from hopstream.kernels.compiling import kernel


@kernel
def count_mapped(own_keys: np.ndarray, own_ids: np.ndarray, indptr: np.ndarray) -> None:
    """Write the running count of edges per id of the owning end.

    Args:
        own_keys: int64[num_edges], keys of the owning end.
        own_ids: integer[num_nodes], the id of each key.
        indptr: int64[num_nodes + 1], out.
    """
    indptr[:] = 0
    for i in range(len(own_keys)):
        indptr[np.uint64(own_ids[np.uint64(own_keys[i])]) + np.uint64(1)] += 1
    for row in range(1, len(indptr)):
        indptr[row] += indptr[row - 1]


@kernel
def group_mapped(
    own_keys: np.ndarray, other_keys: np.ndarray, own_ids: np.ndarray, other_ids: np.ndarray,
    cursor: np.ndarray, order: np.ndarray, indices: np.ndarray,
) -> None:  # fmt: skip
    """Renumber edges and group them by the id of the owning end, in original order inside an id.

    Doing both in one pass reads the keys in sequence. On 65 M edges of a graph with hubs it takes 1.5 s;
    grouping first, and numpy's ``ids[keys[order]]`` then, take 3.6 s and 0.8 GB more.

    Args:
        own_keys: int64[num_edges], keys of the owning end.
        other_keys: int64[num_edges], keys of the other end.
        own_ids: integer[num_own_nodes], the id of each key of the owning end's type.
        other_ids: integer[num_other_nodes], the id of each key of the other end's type.
        cursor: int64[num_own_nodes], in: the first position of each id, as ``count_mapped`` wrote it; overwritten.
        order: integer[num_edges], out: the edges' original positions, grouped.
        indices: integer[num_edges], out: ids of the other ends, grouped.
    """
    for i in range(len(own_keys)):
        row = np.uint64(own_ids[np.uint64(own_keys[i])])
        position = np.uint64(cursor[row])
        cursor[row] += 1
        order[position] = i
        indices[position] = other_ids[np.uint64(other_keys[i])]
