"""How does a graph tensor say which seed it was grown from?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hopstream.export.sample_ids import byte_strings
from hopstream.tfgnn.graph_tensor import GraphPieces
from hopstream.tfgnn.values import FeatureValues

SEED_ID = "seed_id"
"""The context feature that holds the raw id of the seed."""


def with_seed_ids(pieces: GraphPieces, seed_ids: Sequence[bytes] | None) -> GraphPieces:
    """Graph tensors of one component with ``context/seed_id``, or as they are where there are no ids.

    Args:
        pieces: n graphs of one component each.
        seed_ids: n raw ids as bytes, or None.
    """
    if seed_ids is None:
        return pieces
    return replace(pieces, context={**pieces.context, SEED_ID: FeatureValues.of(byte_strings(seed_ids))})
