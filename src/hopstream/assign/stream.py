"""Assigns nodes as they go by, with memory for the nodes but not for the edges."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopstream.assign.balance import Constraints
from hopstream.assign.flatten import SymmetricGraph
from hopstream.dataset.settings import PartitionSettings, Progress
from hopstream.kernels.hashing import derive_seed
from hopstream.kernels.placement import place_nodes

FENNEL_EXPONENT = 1.5


def stream_owners(
    graph: SymmetricGraph, constraints: Constraints, settings: PartitionSettings, owner: NDArray[np.int32],
    progress: Progress,
) -> None:  # fmt: skip
    """Assign the nodes that have neighbours, in place, in the order of types and keys.

    In a second pass neighbours that are still to come have the part of the first pass, and the loads are counted from
    nothing again. Source: Nishimura, Ugander, "Restreaming graph partitioning", KDD 2013.

    Args:
        graph: The graph.
        constraints: What is to be even; the first group is the weight that scores look at.
        settings: The method, its passes, the number of parts and the seed.
        owner: int32[num_nodes], -1 for nodes without a part.
        progress: Called as ``progress(method, done, total)`` in nodes, of all passes.
    """
    counts = np.zeros(settings.num_parts, np.int64)
    first_part = derive_seed("stream", settings.rng_seed) % settings.num_parts
    for number in range(settings.passes):
        loads = np.zeros(constraints.limits.shape, np.int64)
        for first, stop, neighbors in graph.blocks():
            place_nodes(
                first, stop, graph.indptr, neighbors, constraints.rows, constraints.amounts, constraints.limits,
                settings.method == "fennel", _penalty(graph, constraints), first_part, loads, owner, counts,
            )  # fmt: skip
            progress(settings.method, number * len(owner) + stop, settings.passes * len(owner))


def _penalty(graph: SymmetricGraph, constraints: Constraints) -> float:
    """What a full part costs per unit of weight, in neighbours.

    Fennel takes ``alpha * gamma * load ** (gamma - 1)`` off, with ``alpha = m * parts ** (gamma - 1) / n ** gamma``.
    For a full part, ``load = n / parts``, that is ``gamma * m / n``: half of gamma for each neighbour that a node has
    on average. With weights, ``n`` is the total weight.
    """
    return FENNEL_EXPONENT * graph.num_ends / 2 / max(1, int(constraints.totals[0]))
