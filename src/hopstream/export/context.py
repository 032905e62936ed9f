"""Which features say of a whole subgraph where it comes from?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hopstream.errors import SchemaError
from hopstream.export.raw_ids import strings_of
from hopstream.tfgnn.graph_tensor import GraphPieces
from hopstream.tfgnn.messages import pool
from hopstream.tfgnn.values import FeatureValues

SEED_ID, SAMPLE_ID = "seed_id", "sample_id"


def with_seed_ids(
    pieces: GraphPieces, seed_ids: Sequence[bytes] | None, *, sample_ids: Sequence[bytes] | None = None
) -> GraphPieces:
    """Put ``context/seed_id``, and ``context/sample_id``, into graphs.

    Args:
        pieces: Graphs of one component.
        seed_ids: The raw id of each graph's seed, or None to leave it out.
        sample_ids: The name of each graph, or None to leave it out.

    Raises:
        SchemaError: There are ids for another number of graphs, graphs have several components, or the ids already.
    """
    context = dict(pieces.context)
    for name, ids in ((SEED_ID, seed_ids), (SAMPLE_ID, sample_ids)):
        if ids is None:
            continue
        if len(ids) != pieces.num_graphs or pieces.num_graphs != pieces.component_offsets[-1]:
            raise SchemaError(
                f"context/{name}: {len(ids)} ids for {pieces.num_graphs} graphs of {pieces.component_offsets[-1]} "
                "components; give one id per graph of one component"
            )
        if name in context:
            raise SchemaError(f"context has a feature {name!r} already")
        context[name] = FeatureValues(strings_of(ids), len(ids))
    return replace(pieces, context=context)


def declare_ids(schema: Any, *names: str) -> None:
    """Say in a ``GraphSchema`` message that its graphs have ``SEED_ID`` or ``SAMPLE_ID``."""
    string = pool().FindEnumTypeByName("tensorflow.DataType").values_by_name["DT_STRING"].number
    for name in names:
        schema.context.features[name].dtype = string


def sample_id_of(seed_id: bytes, number: int) -> bytes:
    """The name of a seed's sample by number: that of the seed for the first, ``<seed>:1`` and so on for others."""
    return seed_id if number == 0 else b"%s:%d" % (seed_id, number)
