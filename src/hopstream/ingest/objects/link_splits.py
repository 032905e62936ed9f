"""Converts the three data objects of PyG's ``RandomLinkSplit`` to label types with splits.

Links to predict are not edges of the objects: those for validation and testing were removed from ``edge_index``, and
negative links never were in it. They become label types, as ``hold_out_links`` makes them. Loaders do not follow label
types, and take their edges as ``edge_label_index``:

- Positive links are edges of ``(src, relation_label, dst)``. If their labels are not all 1, these are the feature
  ``label``; the name ``edge_label`` is taken by batches.
- Negative links, if any, are edges of ``(src, relation_negative, dst)``.
- The links of the three objects are the splits ``train``, ``val`` and ``test``.

``pos_edge_label_index`` and ``neg_edge_label_index`` tell positive from negative links. In ``edge_label``, 0 means
negative if PyG drew negative links, and class 0 if it did not; see ``_negatives``.

Messages follow the edges of the object for training. PyG's object for testing also has the links for validation as
edges; the graph does not.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from hopstream.arrays import Array, IntArray
from hopstream.errors import SchemaError
from hopstream.graph.graph import EdgeTable, Graph
from hopstream.ingest.user_columns import as_array, as_keys
from hopstream.schema import EdgeType, reverse_by_name, type_label

LOG = logging.getLogger(__name__)

SPLITS = ("train", "val", "test")
LINKS = frozenset(f"{kind}edge_label{end}" for kind in ("", "pos_", "neg_") for end in ("", "_index"))
Attributes = Mapping[str, object]
Pairs = tuple[IntArray, Array]
"""Keys of sources and destinations, int64[2, n], and labels, dtype[n]."""


def with_links(graph: Graph, objects: Sequence[Mapping[EdgeType, Attributes]]) -> Graph:
    """Add the links of three data objects to the graph of the first.

    Args:
        graph: The graph of the object for training.
        objects: Edge type to attributes, for the objects for training, validation and testing.

    Raises:
        SchemaError: The objects differ in edge types, have no links, or have labels that are not one number per link.
        IdRangeError: A link names a node that does not exist.
    """
    if any(of.keys() != objects[0].keys() for of in objects):
        known = [[type_label(t) for t in of] for of in objects]
        raise SchemaError(f"the data objects have the edge types {known}; give three splits of one graph")
    edges, splits, label_types = dict(graph.edges), dict(graph.edge_splits), dict(graph.label_types)
    for edge_type in objects[0]:
        found = _signed_links(graph, edge_type, [of[edge_type] for of in objects])
        if not any(len(labels) for of in found for _, labels in of):
            continue
        reverse = _reverse(graph, edge_type)
        for kind, end in enumerate(("label", "negative")):
            sets = [pairs[kind] for pairs in found]
            if not sum(len(labels) for _, labels in sets):
                continue
            new = (edge_type[0], f"{edge_type[1]}_{end}", edge_type[2])
            if new in edges:
                raise SchemaError(
                    f"edge type {type_label(new)}, which should receive the links, exists already; rename it"
                )
            edges[new], splits[new] = _table(sets, has_labels=kind == 0)
            label_types[new] = (edge_type,) if reverse in (None, edge_type) else (edge_type, reverse)
    if len(edges) == len(graph.edges):
        raise SchemaError(
            "no data object has edge_label_index; give one object, or what RandomLinkSplit returns, with the default "
            "key='edge_label'"
        )
    return replace(graph, edges=edges, edge_splits=splits, label_types=label_types).check()


def _table(sets: Sequence[Pairs], *, has_labels: bool) -> tuple[EdgeTable, dict[str, IntArray]]:
    """Build an edge table of the links of all sets, and the edge keys of each set."""
    src_keys, dst_keys = np.concatenate([pairs for pairs, _ in sets], axis=1)
    labels = np.concatenate([labels for _, labels in sets if len(labels)])
    features = {"label": labels} if has_labels and not (labels == 1).all() else {}
    ends = np.cumsum([0, *(len(labels) for _, labels in sets)])
    keys = {name: np.arange(ends[k], ends[k + 1]) for k, name in enumerate(SPLITS) if ends[k] < ends[k + 1]}
    return EdgeTable(src_keys=src_keys, dst_keys=dst_keys, features=features), keys


def _reverse(graph: Graph, edge_type: EdgeType) -> EdgeType | None:
    """Return the edge type that holds the reverses, or None.

    It is found by its name or by comparing the edges.
    """
    named = reverse_by_name(edge_type, graph.edges)
    if named not in (None, edge_type):
        return named
    others = [t for t in graph.edges if t != edge_type and t[::2] == edge_type[::-2]]
    num_dst, table = graph.nodes[edge_type[2]].num_nodes, graph.edges[edge_type]
    wanted = np.sort(_codes((table.src_keys, table.dst_keys), num_dst)) if others else np.empty(0, np.int64)
    for other in others:
        back = graph.edges[other]
        if np.array_equal(wanted, np.sort(_codes((back.dst_keys, back.src_keys), num_dst))):
            return other
    if others and named is None:
        LOG.warning(
            "no edge type has the reverses of the edges of %s, so edges of %s are sampled while its links are "
            "predicted; if one has them, give exclude_links=[%s, that type], or reverse_types=, to the loader",
            type_label(edge_type),
            ", ".join(map(type_label, others)),
            edge_type,
        )
    return named


def _codes(ends: Iterable[IntArray], num_dst: int) -> IntArray:
    """Return int64[n], one distinct number for each pair of keys."""
    src_keys, dst_keys = ends
    codes: IntArray = src_keys.astype(np.int64) * num_dst + dst_keys
    return codes


def _signed_links(graph: Graph, edge_type: EdgeType, objects: Sequence[Attributes]) -> list[tuple[Pairs, Pairs]]:
    """Return the positive and the negative links of one type for each object."""
    label = type_label(edge_type)
    given = [{kind: _given(label, of, kind) for kind in ("", "pos_", "neg_")} for of in objects]
    edges = [as_array(of["edge_index"], f"{label}.edge_index") for of in objects]
    negatives = _negatives(label, given, edges, graph.nodes[edge_type[2]].num_nodes)
    found = []
    for of, is_negative in zip(given, negatives, strict=True):
        pairs, labels = of[""]
        sides = (("pos_", ~is_negative), ("neg_", is_negative))
        found.append(tuple(_joined((pairs[:, chosen], labels[chosen]), of[kind]) for kind, chosen in sides))
    has_negatives = {len(negative[1]) > 0 for positive, negative in found if len(positive[1])}
    if len(has_negatives) == 2 and any((positive[1] != 1).any() for positive, _ in found):
        LOG.warning(
            "labels of %s differ in meaning between splits, because RandomLinkSplit increments them only in splits "
            "with negatives; add negatives to all three objects or to none",
            label,
        )
    return cast("list[tuple[Pairs, Pairs]]", found)


def _joined(first: Pairs, second: Pairs) -> Pairs:
    """Concatenate links; an empty side does not change the dtype of the labels."""
    if not len(first[1]) or not len(second[1]):
        return first if len(first[1]) else second
    return np.concatenate([first[0], second[0]], axis=1), np.concatenate([first[1], second[1]])


def _negatives(label: str, given: Sequence[Mapping[str, Pairs]], edges: Sequence[Array], num_dst: int) -> list[Array]:
    """Return for each object a mask of the links in ``edge_label`` that are negative, not of class 0.

    PyG draws negative links from pairs without an edge, and puts them last. Positive links for training and validation
    are edges of some object, which tells them from negative ones. Positive links for testing are edges of no object, so
    there the order and the other objects decide.

    Raises:
        SchemaError: Negative links and class 0 cannot be told apart.
    """
    zeros = [of[""][1] == 0 for of in given]
    if not any(of.any() for of in zeros):
        return zeros
    positive = [of[""][0][:, ~zero] for of, zero in zip(given, zeros, strict=True)] + [of["pos_"][0] for of in given]
    known = [_codes(pairs, num_dst) for pairs in (*edges, *positive)]
    found, is_class = [], False
    for name, of, zero in zip(SPLITS, given, zeros, strict=True):
        codes = _codes(of[""][0][:, zero], num_dst)
        is_edge = np.any([np.isin(codes, those) for those in known], axis=0)
        is_last = bool(zero[len(zero) - len(codes) :].all()) and not zero.all()
        if len(codes):
            is_mixed = is_edge.any() and not is_edge.all()
            is_unclear = is_mixed if name != "test" else is_class and is_last and not is_edge.any()
            if is_unclear:
                raise SchemaError(
                    f"{label}.edge_label of the object for {name} has {len(codes)} links with label 0, which may be "
                    "negatives or links of class 0; split with RandomLinkSplit(split_labels=True)"
                )
            is_class = bool(is_edge.any()) or (is_class and not is_last)
        found.append(zero if not is_class else np.zeros_like(zero))
    return found


def _given(label: str, attributes: Attributes, kind: str) -> Pairs:
    """Return the links of one kind with their labels; the default label is 1."""
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
            f"{label}.{name} is {labels.dtype}{list(labels.shape)}; wanted one number for each of {keys.shape[1]} links"
        )
    return keys, labels
