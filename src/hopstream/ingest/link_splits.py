"""Make edge types and splits of the links that PyG's ``RandomLinkSplit`` attaches to three data objects.

Links to predict are no edges of the objects: those for validation and testing have left ``edge_index``, and negative
ones never were there. So they become supervision edge types, as ``hold_out_links`` makes them, which loaders do not
follow and take as ``edge_label_index``:

- Links whose label is above 0, or that have none, are edges of ``(src, relation_label, dst)``, with their labels as the
  feature ``edge_label`` where these are not all 1.
- Links of label 0 are edges of ``(src, relation_negative, dst)``, where there are any.
- Each object's links are a split: ``train``, ``val`` and ``test``, in this order.

Messages follow the edges of the object for training. PyG's object for testing has the links for validation among its
edges too; these are no edges here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from hopstream.arrays import Array, IntArray
from hopstream.errors import SchemaError
from hopstream.graph.graph import EdgeTable, Graph
from hopstream.ingest.columns import as_array, as_keys
from hopstream.schema import EdgeType, reverse_by_name, type_label

SPLITS = ("train", "val", "test")
LINKS = frozenset(f"{kind}edge_label{end}" for kind in ("", "pos_", "neg_") for end in ("", "_index"))
Attributes = Mapping[str, object]
Pairs = tuple[IntArray, Array]
"""Keys of sources and destinations, int64[2, n], and labels, [n]."""


def with_links(graph: Graph, objects: Sequence[Mapping[EdgeType, Attributes]]) -> Graph:
    """Add the links of three data objects to the graph of the first.

    Args:
        graph: The graph of the object for training.
        objects: Edge type to attributes, of training, validation and testing.

    Raises:
        SchemaError: The objects have other edge types, no links, or labels that are not one number per link.
        IdRangeError: A link names a node that is not there.
    """
    if any(of.keys() != objects[0].keys() for of in objects):
        known = [[type_label(t) for t in of] for of in objects]
        raise SchemaError(f"the data objects have the edge types {known}; give three splits of one graph")
    edges, splits, label_types = dict(graph.edges), dict(graph.edge_splits), dict(graph.label_types)
    for edge_type in objects[0]:
        found = [_links_of(type_label(edge_type), of[edge_type]) for of in objects]
        reverse = reverse_by_name(edge_type, graph.edges)
        for kind, end in enumerate(("label", "negative")):
            sets = [pairs[kind] for pairs in found]
            if not sum(len(labels) for _, labels in sets):
                continue
            new = (edge_type[0], f"{edge_type[1]}_{end}", edge_type[2])
            if new in edges:
                raise SchemaError(f"edge type {type_label(new)} is there already, and links are to be kept in it")
            edges[new], splits[new] = _table(sets, has_labels=kind == 0)
            label_types[new] = (edge_type,) if reverse in (None, edge_type) else (edge_type, reverse)
    if len(edges) == len(graph.edges):
        raise SchemaError("no data object has links; give one object, or what RandomLinkSplit returns, with its labels")
    return replace(graph, edges=edges, edge_splits=splits, label_types=label_types).check()


def _table(sets: Sequence[Pairs], *, has_labels: bool) -> tuple[EdgeTable, dict[str, IntArray]]:
    """The links of all sets as edges, and the keys of each set."""
    src_keys, dst_keys = np.concatenate([pairs for pairs, _ in sets], axis=1)
    labels = np.concatenate([labels for _, labels in sets])
    features = {"edge_label": labels} if has_labels and not (labels == 1).all() else {}
    ends = np.cumsum([0, *(len(labels) for _, labels in sets)])
    keys = {name: np.arange(ends[k], ends[k + 1]) for k, name in enumerate(SPLITS) if ends[k] < ends[k + 1]}
    return EdgeTable(src_keys=src_keys, dst_keys=dst_keys, features=features), keys


def _links_of(label: str, attributes: Attributes) -> tuple[Pairs, Pairs]:
    """The positive and the negative links of one type in one object."""
    pairs, labels = _given(label, attributes, "")
    positive, negative = _given(label, attributes, "pos_"), _given(label, attributes, "neg_")
    is_link = labels > 0
    return (
        (np.concatenate([pairs[:, is_link], positive[0]], axis=1), np.concatenate([labels[is_link], positive[1]])),
        (np.concatenate([pairs[:, ~is_link], negative[0]], axis=1), np.concatenate([labels[~is_link], negative[1]])),
    )


def _given(label: str, attributes: Attributes, kind: str) -> Pairs:
    """The links of one kind with a label each; of those that have none it is 1."""
    name = f"{kind}edge_label"
    index = attributes.get(f"{name}_index")
    if index is None:
        return np.empty((2, 0), np.int64), np.empty(0, np.float32)
    pairs = as_array(index, f"{label}.{name}_index")
    if pairs.ndim != 2 or len(pairs) != 2:
        raise SchemaError(f"{label}.{name}_index is {pairs.dtype}{list(pairs.shape)}; wanted integers [2, n]")
    keys = np.stack([as_keys(end, f"{label}.{name}_index") for end in pairs])
    given = attributes.get(name)
    labels = np.ones(keys.shape[1], np.float32) if given is None else as_array(given, f"{label}.{name}")
    if labels.shape != keys.shape[1:]:
        raise SchemaError(
            f"{label}.{name} is {labels.dtype}{list(labels.shape)}; wanted a number for each of {keys.shape[1]} links"
        )
    return keys, labels
