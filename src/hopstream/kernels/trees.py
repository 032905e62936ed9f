"""Packs nodes of trees into one number each, and unpacks them.

[Algorithm] A node of a tree is ``tree << tree_shift | id``, one int64, so that what relabels ids relabels pairs too.
[Cost] One pass over the data, at the speed of memory.
[Not chosen] A table keyed by two columns: every probe would compare twice as much, and the kernels that relabel would
    be there twice.
"""

from __future__ import annotations

import numpy as np

from hopstream.kernels.compiling import kernel


@kernel
def pack_neighbors(
    neighbor_ids: np.ndarray, counts: np.ndarray, trees: np.ndarray, tree_shift: int, pairs: np.ndarray
) -> None:
    """Write the pair of each neighbour: neighbours are in the tree of the node that they were drawn for.

    Args:
        neighbor_ids: uint32 or int64[sum(counts)], grouped by the node that they were drawn for.
        counts: int32[n], neighbours of each node.
        trees: int64[n], the tree of each node.
        tree_shift: Bits that ids have.
        pairs: int64[sum(counts)], out.
    """
    written = 0
    for i in range(len(counts)):
        tree = trees[i] << tree_shift
        for _ in range(counts[i]):
            pairs[np.uint64(written)] = tree | np.int64(neighbor_ids[np.uint64(written)])
            written += 1


@kernel
def unpack_pairs(pairs: np.ndarray, tree_shift: int, ids: np.ndarray, trees: np.ndarray) -> None:
    """Write the id and the tree of each pair.

    Args:
        pairs: int64[n].
        tree_shift: Bits that ids have.
        ids: int64[n], out.
        trees: int64[n], out.
    """
    mask = (np.int64(1) << tree_shift) - 1
    for i in range(len(pairs)):
        ids[i] = pairs[i] & mask
        trees[i] = pairs[i] >> tree_shift


@kernel
def group_by_tree(trees: np.ndarray, offsets: np.ndarray, order: np.ndarray, places: np.ndarray) -> None:
    """Group items by their tree, in the order that they are in.

    [Algorithm] A counting sort.

    Args:
        trees: int64[n], in ``[0, num_trees)``.
        offsets: int64[num_trees + 1], out: tree ``t`` has ``order[offsets[t]:offsets[t + 1]]``.
        order: int64[n], out: items.
        places: int64[n], out: the place of each item inside its tree.
    """
    offsets[:] = 0
    for i in range(len(trees)):
        tree = trees[i]
        places[i] = offsets[tree + 1]
        offsets[tree + 1] += 1
    for tree in range(len(offsets) - 1):
        offsets[tree + 1] += offsets[tree]
    for i in range(len(trees)):
        order[offsets[trees[i]] + places[i]] = i
