"""Streaming assignment: assigns nodes one by one, with memory for the nodes but not for the edges."""

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

    In further passes, neighbours that come later count with their part of the pass before. Loads start at 0 again.
    Source: Nishimura, Ugander, "Restreaming graph partitioning", KDD 2013.

    Args:
        graph: The graph.
        constraints: The limits; the first group is the weight that scores use.
        settings: The method, its passes, the number of parts and the seed.
        owner: int32[num_nodes], -1 for nodes without a part.
        progress: Called as ``progress(method, done, total)`` in nodes, summed over all passes.
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
    """Return the penalty of a full part per unit of weight, in neighbours.

    Fennel subtracts ``alpha * gamma * load ** (gamma - 1)``, with ``alpha = m * parts ** (gamma - 1) / n ** gamma``.
    For a full part, ``load = n / parts``, so this is ``gamma * m / n``: half of gamma for each neighbour of an average
    node. With weights, ``n`` is the total weight.
    """
    return FENNEL_EXPONENT * graph.num_ends / 2 / max(1, int(constraints.totals[0]))
