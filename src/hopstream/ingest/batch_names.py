"""Refuses features whose names PyG batches use for themselves, before anything is written.

Tables of unigraphs and chunked graphs may have such features: they are DGL's or TF-GNN's, whose users export them.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping

from hopstream.errors import SchemaError
from hopstream.graph.graph import Graph
from hopstream.ingest.raw_tables.metadata import TablesMetadata
from hopstream.schema import (
    ATTACHED_ATTRIBUTES,
    EDGE,
    EDGE_ATTRIBUTES,
    NODE,
    NODE_ATTRIBUTES,
    PPR_ATTRIBUTES,
    EdgeType,
    type_label,
)

LOG = logging.getLogger(__name__)


def check_batch_names(features: Mapping[str | EdgeType, Iterable[str]], *, is_exempt: bool = False) -> None:
    """Check the names of features by node type and edge type, and name those that only some loaders refuse in the log.

    Args:
        features: Type to names of features.
        is_exempt: The source may have features of any name; those that every loader refuses are named in the log too.

    Raises:
        SchemaError: A batch has an attribute of its own of this name.
    """
    is_untyped = features.keys() <= {NODE, EDGE}
    attached: list[str] = []
    for entity, names in features.items():
        own = NODE_ATTRIBUTES if isinstance(entity, str) else EDGE_ATTRIBUTES
        hidden = sorted((NODE_ATTRIBUTES | EDGE_ATTRIBUTES if is_untyped else own).intersection(names))
        if hidden and not is_exempt:
            where = "the graph" if is_untyped else type_label(entity)
            raise SchemaError(
                f"{where} has a feature {hidden[0]!r}, which is the name of an attribute of every batch; rename or "
                "remove it"
            )
        some = sorted((ATTACHED_ATTRIBUTES | PPR_ATTRIBUTES).intersection(names))
        attached += [f"{type_label(entity)}.{name}" for name in (*hidden, *some)]
    if attached:
        LOG.warning(
            "features %s have names that loaders attach to PyG batches, and those loaders refuse them; leave them out "
            "with node_features or edge_features of the loader, or use collate='numpy'",
            ", ".join(attached),
        )


def check_graph(graph: Graph, *, is_exempt: bool = False) -> None:
    """Check the features of a graph as ``check_batch_names`` does.

    Raises:
        SchemaError: As there.
    """
    features: dict[str | EdgeType, Iterable[str]] = {t: nodes.features for t, nodes in graph.nodes.items()}
    features |= {t: edges.features for t, edges in graph.edges.items()}
    check_batch_names(features, is_exempt=is_exempt)


def check_tables(
    metadata: TablesMetadata, *, keep_raw_ids: bool, leave_out: Collection[str] = (), is_exempt: bool = False
) -> None:
    """Check the features that tables will have with ``check_batch_names``; ``leave_out`` has those that they will not.

    Raises:
        SchemaError: As there.
    """
    names: dict[str | EdgeType, list[str]] = {}
    for node_type, spec in metadata.nodes.items():
        raw_ids = [spec.id_column] if keep_raw_ids and spec.keeps_ids and spec.id_column is not None else []
        names[node_type] = [name for name in (*raw_ids, *spec.features) if f"{node_type}.{name}" not in leave_out]
    for edge_type, edges in metadata.edges.items():
        names[edge_type] = [name for name in edges.features if f"{type_label(edge_type)}.{name}" not in leave_out]
    check_batch_names(names, is_exempt=is_exempt)
