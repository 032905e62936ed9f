"""Makes a checked graph from arrays in memory, with or without types."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import cast

import numpy as np

from hopstream.arrays import Column, IntArray
from hopstream.checks import known_names
from hopstream.errors import IdRangeError, SchemaError, UnknownNameError, quoted
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.ingest.user_columns import ColumnLike, as_array, as_column, as_keys, check_graph
from hopstream.schema import EDGE, NODE, EdgeType, is_edge_type, type_label

Columns = Mapping[str, ColumnLike]
"""Feature name to column, or split name to mask or keys."""


def graph_from_arrays(
    edges: Mapping[EdgeType, ColumnLike] | ColumnLike,
    *,
    num_nodes: Mapping[str, int] | int | None = None,
    node_features: Mapping[str, Columns] | Columns | None = None,
    edge_features: Mapping[EdgeType, Columns] | Columns | None = None,
    splits: Mapping[str, Columns] | Columns | None = None,
    edge_splits: Mapping[EdgeType, Columns] | Columns | None = None,
) -> Graph:
    """Make a graph from arrays, torch tensors, lists of strings and ragged arrays.

    If ``edges`` is one array, the graph has one node type, ``node``, and one edge type, ``(node, to, node)``, and the
    other arguments are ``{name: column}``. If ``edges`` is by edge type, they are ``{type: {name: column}}``.

    The number of nodes of a type is ``num_nodes``; without it, the number of rows of its features and masks; without
    these, the largest key among its edges plus one. In the last case, isolated nodes above that key are missing.

    Args:
        edges: Integers [2, num_edges], sources then destinations, or the two as a pair; or a mapping of edge type to
            these.
        num_nodes: Number of nodes, or numbers by node type; any type may be missing. The order of the node types is
            that of their first mention in this argument, then in ``node_features``, then in ``edges``.
        node_features: Columns of num_nodes rows. A list of arrays of different lengths becomes a ragged column. Times
            (datetime64, timestamps of pandas or Arrow) become int64 in their own unit since 1970.
        edge_features: Columns of num_edges rows.
        splits: Masks bool[num_nodes], or distinct keys in any order.
        edge_splits: Masks bool[num_edges], or distinct edge keys (column numbers of ``edges``) in any order.

    Returns:
        A graph that passed ``Graph.check``. Its arrays share memory with the arguments where possible.

    Raises:
        SchemaError: Edges are not integers, a column has the wrong number of rows or a dtype that cannot be stored, a
            split names a node or edge twice, or the number of nodes is unknown.
        IdRangeError: An edge or split has a key outside its type.
        UnknownNameError: Features or splits are given for a type that the graph does not have.
    """
    if isinstance(edges, Mapping):
        return _typed_graph(
            edges,
            _by_type(num_nodes, "num_nodes"),
            cast(Mapping[str, Columns], _columns_by_type(node_features, "node_features")),
            cast(Mapping[EdgeType, Columns], _columns_by_type(edge_features, "edge_features")),
            (
                cast(Mapping[str, Columns], _columns_by_type(splits, "splits")),
                cast(Mapping[EdgeType, Columns], _columns_by_type(edge_splits, "edge_splits")),
            ),
        )
    if isinstance(num_nodes, Mapping):
        raise SchemaError(
            "num_nodes is given by type, but edges are not; give edges as {(source, relation, target): …}"
        )
    return _typed_graph(
        {EDGE: edges},
        {} if num_nodes is None else {NODE: num_nodes},
        {NODE: _untyped(node_features, "node_features")},
        {EDGE: _untyped(edge_features, "edge_features")},
        ({NODE: _untyped(splits, "splits")}, {EDGE: _untyped(edge_splits, "edge_splits")}),
    )


def _typed_graph(
    edges: Mapping[EdgeType, ColumnLike],
    num_nodes: Mapping[str, int],
    node_features: Mapping[str, Columns],
    edge_features: Mapping[EdgeType, Columns],
    splits: tuple[Mapping[str, Columns], Mapping[EdgeType, Columns]],
) -> Graph:
    node_splits, edge_splits = splits
    ends = {edge_type: _ends(edge_type, pair) for edge_type, pair in edges.items()}
    node_types = dict.fromkeys((*num_nodes, *node_features, *(end for s, _, d in edges for end in (s, d))))
    _check_known("edge_features", edge_features, edges)
    _check_known("splits", node_splits, node_types)
    _check_known("edge_splits", edge_splits, edges)
    node_columns = {t: _as_columns(type_label(t), node_features.get(t, {})) for t in node_types}
    split_arrays = {t: {name: _as_split(t, name, v) for name, v in named.items()} for t, named in node_splits.items()}
    sizes = {
        t: _count_nodes(t, num_nodes.get(t), {**node_columns[t], **_masks(split_arrays.get(t, {}))}, ends)
        for t in node_types
    }
    graph = Graph(
        nodes={t: NodeTable(num_nodes=sizes[t], features=node_columns[t]) for t in node_types},
        edges={
            t: EdgeTable(src_keys=src, dst_keys=dst, features=_as_columns(type_label(t), edge_features.get(t, {})))
            for t, (src, dst) in ends.items()
        },
        splits={
            t: {name: _split_keys(f"split {name!r} of {t!r}", array, sizes[t]) for name, array in named.items()}
            for t, named in split_arrays.items()
            if named
        },
        edge_splits={
            t: {
                name: _split_keys(
                    f"split {name!r} of {type_label(t)}", _as_split(t, name, value), len(ends[t][0]), "edge"
                )
                for name, value in named.items()
            }
            for t, named in edge_splits.items()
            if named
        },
    )
    check_graph(graph.check())
    return graph


def _ends(edge_type: EdgeType, pair: ColumnLike) -> tuple[IntArray, IntArray]:
    """Return sources and destinations of one edge type, int64[num_edges] each."""
    if not is_edge_type(edge_type):
        raise SchemaError(f"edge type {edge_type!r} must be a (source, relation, destination) tuple")
    label = f"edges of {type_label(edge_type)}"
    if isinstance(pair, list | tuple):
        if len(pair) != 2:
            raise SchemaError(
                f"{label} are a list of {len(pair)}; give [2, num_edges] or a (sources, destinations) pair"
            )
        sources, destinations = (as_keys(cast(ColumnLike, end), f"{label}[{i}]") for i, end in enumerate(pair))
    else:
        array = as_array(pair, label)
        if array.ndim != 2 or array.shape[0] != 2:
            remedy = "transpose them" if array.ndim == 2 and array.shape[1] == 2 else "sources, then destinations"
            raise SchemaError(f"{label} are {array.dtype}{list(array.shape)}; wanted integers [2, num_edges]: {remedy}")
        sources, destinations = as_keys(array[0], f"{label}[0]"), as_keys(array[1], f"{label}[1]")
    for name, keys in (("source", sources), ("destination", destinations)):
        if len(keys) and int(keys.min()) < 0:
            row = int(np.argmax(keys < 0))
            raise IdRangeError(f"{label}: {name} {row} is {int(keys[row])}; keys are 0 or more")
    return sources, destinations


def _as_columns(label: str, columns: Columns) -> dict[str, Column]:
    return {name: as_column(value, f"{label}.{name}") for name, value in columns.items()}


def _as_split(entity: str | EdgeType, name: str, value: ColumnLike) -> Column:
    """Return a mask unchanged, and keys as int64."""
    where = f"split {name!r} of {entity!r}"
    is_list = isinstance(value, list | tuple)
    array = np.asarray(value) if is_list else as_array(value, where)
    if array.dtype != np.bool_:
        return as_keys(value, where)
    if array.ndim != 1:
        raise SchemaError(f"{where} is bool{list(array.shape)}; a mask has one dimension: choose one of its columns")
    return array


def _masks(splits: Mapping[str, Column]) -> dict[str, Column]:
    """Select the masks among splits; their length gives the number of nodes, as for features."""
    return {f"mask {name}": array for name, array in splits.items() if cast(IntArray, array).dtype == np.bool_}


def _split_keys(where: str, array: Column, num_rows: int, what: str = "node") -> IntArray:
    keys = cast(IntArray, array)
    if keys.dtype == np.bool_:
        if len(keys) != num_rows:
            raise SchemaError(f"{where} is a mask of {len(keys)} rows; the type has {num_rows}")
        return np.flatnonzero(keys).astype(np.int64, copy=False)
    keys = np.sort(keys)
    repeated = keys[1:][keys[1:] == keys[:-1]]
    if len(repeated):
        is_mask = len(keys) == num_rows and int(keys[-1]) <= 1
        remedy = ", one value per row; if it is a mask, use astype(bool)" if is_mask else ""
        raise SchemaError(f"{where} names {what} {int(repeated[0])} twice{remedy}")
    return keys


def _count_nodes(
    node_type: str,
    declared: int | None,
    columns: Mapping[str, Column],
    ends: Mapping[EdgeType, tuple[IntArray, IntArray]],
) -> int:
    if declared is not None:
        return _as_count(node_type, declared)
    rows = {name: len(column) for name, column in columns.items()}
    if len(set(rows.values())) > 1:
        raise SchemaError(f"columns of node type {node_type!r} disagree on its number of nodes: {rows}")
    if rows:
        return next(iter(rows.values()))
    keys = [k for (src, _, dst), pair in ends.items() for t, k in zip((src, dst), pair, strict=True) if t == node_type]
    largest = max((int(k.max()) for k in keys if len(k)), default=None)
    if largest is None:
        raise SchemaError(
            f"node type {node_type!r} has no features, masks or edges to count its nodes by; give num_nodes"
        )
    return largest + 1


def _as_count(node_type: str, declared: int) -> int:
    try:
        if isinstance(declared, bool):
            raise TypeError("it is a bool")
        count = operator.index(declared)
    except TypeError as error:
        raise SchemaError(f"num_nodes of {node_type!r} is {quoted(declared)}; wanted an integer") from error
    if count < 0:
        raise SchemaError(f"num_nodes of {node_type!r} is {count}; wanted 0 or more")
    return count


def _by_type(num_nodes: Mapping[str, int] | int | None, name: str) -> Mapping[str, int]:
    if num_nodes is not None and not isinstance(num_nodes, Mapping):
        raise SchemaError(f"{name} is {num_nodes!r}, but edges are given by type; give {{node type: number}}")
    return num_nodes or {}


def _columns_by_type(columns: Mapping[str, object] | Mapping[EdgeType, object] | None, name: str) -> object:
    for entity, named in (columns or {}).items():
        if not isinstance(named, Mapping):
            raise SchemaError(
                f"{name}[{entity!r}] is {type(named).__name__}; edges are given by type, so give {name} by type too"
            )
    return columns or {}


def _untyped(columns: object, name: str) -> Columns:
    found = cast(Columns, columns or {})
    for key, value in found.items():
        if isinstance(value, Mapping):
            raise SchemaError(f"{name}[{key!r}] is given by type, but edges are not; give edges by type too")
    return found


def _check_known(name: str, given: Iterable[object], known: Iterable[object]) -> None:
    for entity in given:
        if entity not in set(known):
            raise UnknownNameError(f"{name} name type {entity!r}; {known_names(entity, known)}")
