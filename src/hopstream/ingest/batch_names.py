"""Refuses features whose names PyG batches use for themselves, before anything is written.

Tables of unigraphs and chunked graphs may have such features: they are DGL's or TF-GNN's, whose users export them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from hopstream.errors import SchemaError
from hopstream.graph.graph import Graph
from hopstream.ingest.table_metadata import TablesMetadata
from hopstream.schema import EDGE, EDGE_ATTRIBUTES, NODE, NODE_ATTRIBUTES, EdgeType, type_label


def refuse_batch_names(features: Mapping[str | EdgeType, Iterable[str]]) -> None:
    """Check the names of features by node type and edge type.

    Raises:
        SchemaError: A batch has an attribute of its own of this name.
    """
    is_untyped = features.keys() <= {NODE, EDGE}
    for owner, names in features.items():
        own = NODE_ATTRIBUTES if isinstance(owner, str) else EDGE_ATTRIBUTES
        hidden = sorted((NODE_ATTRIBUTES | EDGE_ATTRIBUTES if is_untyped else own).intersection(names))
        if hidden:
            where = "the graph" if is_untyped else type_label(owner)
            raise SchemaError(
                f"{where} has a feature {hidden[0]!r}, which is the name of an attribute of every batch; rename or "
                "remove it"
            )


def named_for_batches(graph: Graph) -> Graph:
    """The graph, whose features have been checked with ``refuse_batch_names``."""
    refuse_batch_names(
        {**{t: of.features for t, of in graph.nodes.items()}, **{t: of.features for t, of in graph.edges.items()}}
    )
    return graph


def check_tables(metadata: TablesMetadata, *, keep_raw_ids: bool, leave_out: Collection[str] = ()) -> None:
    """Check the features that tables will have with ``refuse_batch_names``; ``leave_out`` has those that they will not.

    Raises:
        SchemaError: As there.
    """
    names: dict[str | EdgeType, list[str]] = {}
    for node_type, spec in metadata.nodes.items():
        raw_ids = [spec.id_column] if keep_raw_ids and spec.keeps_ids and spec.id_column is not None else []
        names[node_type] = [name for name in (*raw_ids, *spec.features) if f"{node_type}.{name}" not in leave_out]
    for edge_type, edges in metadata.edges.items():
        names[edge_type] = [name for name in edges.features if f"{type_label(edge_type)}.{name}" not in leave_out]
    refuse_batch_names(names)
