"""Converts NetworkX graphs to graphs, and back."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from hopstream.arrays import Column, RaggedArray
from hopstream.checks import known_names
from hopstream.errors import MissingDependencyError, SchemaError, UnknownNameError, quoted
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.ingest.user_columns import as_column, check_graph
from hopstream.schema import EDGE, NODE, EdgeType, type_label

RELATION = EDGE[1]
MAX_INTEGER = (1 << 63) - 1
MAX_EXACT = 1 << 53
"""float64 represents all integers up to this one exactly."""
MIXABLE = ({"integer", "real"}, {"list of integer", "list of real"})
"""Sets of kinds of values that one column may mix."""


@runtime_checkable
class NetworkXLike(Protocol):
    """A NetworkX ``Graph``, ``DiGraph``, ``MultiGraph`` or ``MultiDiGraph``."""

    def is_directed(self) -> bool:
        """Return whether edges have a direction."""
        ...

    def is_multigraph(self) -> bool:
        """Return whether there may be several edges between two nodes."""
        ...

    @property
    def nodes(self) -> Any:
        """View of the nodes; calling it with ``data=True`` gives nodes with attributes."""
        ...

    @property
    def edges(self) -> Any:
        """View of the edges; calling it with ``data=True`` gives edges with attributes."""
        ...


def graph_from_networkx(
    source: NetworkXLike, *, node_type: str | None = None, edge_type: str | None = None, raw_ids: str | None = "raw_id",
    both_directions: bool = True, missing: Mapping[str, Any] | None = None,
) -> Graph:  # fmt: skip
    """Make a graph from a NetworkX graph; nodes and edges keep NetworkX's order.

    Attributes become features. All nodes (edges) of a type must have the same attributes. A value is a bool, an
    integer, a real, a string, or an array or list of numbers. A feature may mix integers and reals if no digit is lost,
    but no other kinds. Keys of parallel edges are dropped.

    Args:
        source: The graph.
        node_type: Attribute of nodes that names their type; None: all nodes are of type ``node``.
        edge_type: Attribute of edges that names their relation; None: the relation of all edges is ``to``.
        raw_ids: Name of the feature for the nodes' names, strings or integers; None drops the names.
        both_directions: For undirected graphs: add the reverses of all edges but self loops, after the edges. False:
            each edge only has the direction in which NetworkX lists it.
        missing: Attribute name to the default value for nodes and edges without the attribute.

    Raises:
        SchemaError: A node's name is neither a string nor an integer, a type has names of both kinds, a node or edge
            lacks an attribute, or an attribute has values of several kinds.
    """
    if not isinstance(source, NetworkXLike) or isinstance(source, type):
        raise SchemaError(f"source is {type(source).__name__}; wanted a NetworkX graph")
    fill = dict(missing or {})
    by_type: dict[str, list[tuple[Hashable, Mapping[str, Any]]]] = {}
    places: dict[Hashable, tuple[str, int]] = {}
    for name, attributes in source.nodes(data=True):
        of = by_type.setdefault(_type_of(attributes, node_type, NODE, f"node {quoted(name)}"), [])
        places[name] = (_type_of(attributes, node_type, NODE, f"node {quoted(name)}"), len(of))
        of.append((name, attributes))
    nodes: dict[str, NodeTable] = {}
    for t, found in by_type.items():
        features = _columns(t, [(repr(name), of) for name, of in found], node_type, fill)
        if raw_ids is not None:
            if raw_ids in features:
                raise SchemaError(
                    f"{t} has an attribute {raw_ids!r}, which is the name for raw ids; give another raw_ids="
                )
            features = {raw_ids: _names(t, [name for name, _ in found]), **features}
        nodes[t] = NodeTable(num_nodes=len(found), features=features)
    if not nodes:
        nodes[NODE] = NodeTable(num_nodes=0)
    edges = _edges(source, places, edge_type, fill, both_directions=both_directions and not source.is_directed())
    edges = edges or ({EDGE: _no_edges()} if list(nodes) == [NODE] else {})
    graph = Graph(nodes=nodes, edges=edges).check()
    check_graph(graph)
    return graph


def _no_edges() -> EdgeTable:
    return EdgeTable(src_keys=np.empty(0, np.int64), dst_keys=np.empty(0, np.int64))


def _edges(
    source: NetworkXLike, places: Mapping[Hashable, tuple[str, int]], attribute: str | None, fill: Mapping[str, Any],
    *, both_directions: bool,
) -> dict[EdgeType, EdgeTable]:  # fmt: skip
    found: dict[EdgeType, list[tuple[int, int, str, Mapping[str, Any]]]] = {}
    listed = [(u, v, of) for u, v, of in source.edges(data=True)]
    if both_directions:
        listed += [(v, u, of) for u, v, of in listed if u != v]
    for u, v, attributes in listed:
        (src_type, src), (dst_type, dst) = places[u], places[v]
        relation = _type_of(attributes, attribute, RELATION, f"edge {quoted(u)} -> {quoted(v)}")
        found.setdefault((src_type, relation, dst_type), []).append(
            (src, dst, f"{quoted(u)} -> {quoted(v)}", attributes)
        )
    return {
        t: EdgeTable(
            src_keys=np.array([src for src, *_ in of], np.int64),
            dst_keys=np.array([dst for _, dst, *_ in of], np.int64),
            features=_columns(type_label(t), [(where, one) for *_, where, one in of], attribute, fill),
        )
        for t, of in found.items()
    }


def _type_of(attributes: Mapping[str, Any], attribute: str | None, default: str, where: str) -> str:
    if attribute is None:
        return default
    value = attributes.get(attribute)
    if not isinstance(value, str) or not value:
        raise SchemaError(f"{where} has {attribute}={quoted(value)}; its type is a string")
    return value


def _names(node_type: str, names: Sequence[Hashable]) -> Column:
    """Convert the names of nodes to a column of strings or integers."""
    kinds = {_name_kind(node_type, name) for name in names}
    if len(kinds) > 1:
        raise SchemaError(
            f"{node_type} has nodes named by strings and nodes named by integers; use networkx.relabel_nodes, or "
            "raw_ids=None"
        )
    return RaggedArray.from_strings(names) if kinds == {str} else np.array(names, np.int64)


def _name_kind(node_type: str, name: Hashable) -> type:
    if isinstance(name, str):
        return str
    is_integer = isinstance(name, int | np.integer) and not isinstance(name, bool | np.bool_)
    if is_integer and -MAX_INTEGER - 1 <= int(name) <= MAX_INTEGER:  # type: ignore[call-overload]
        return int
    raise SchemaError(
        f"{node_type} has a node {quoted(name)} ({type(name).__name__}); raw ids are strings or 64-bit integers: use "
        "networkx.relabel_nodes, or raw_ids=None"
    )


def _columns(
    entity: str, rows: Sequence[tuple[str, Mapping[str, Any]]], type_attribute: str | None, fill: Mapping[str, Any]
) -> dict[str, Column]:
    """Convert the attributes of all nodes or edges of a type to columns."""
    names = dict.fromkeys(name for _, attributes in rows for name in attributes if name != type_attribute)
    columns: dict[str, Column] = {}
    for name in names:
        if not isinstance(name, str):
            raise SchemaError(f"{entity} has an attribute {name!r}; names of features are strings")
        values = []
        for where, attributes in rows:
            value = attributes.get(name)
            value = fill.get(name) if value is None else value
            if value is None:
                raise SchemaError(
                    f"{where} of {entity} has no {name!r}, which others have; give missing={{{name!r}: value}}"
                )
            values.append(value)
        kinds = {_kind(value) for value in values} - {""}
        if len(kinds) > 1 and kinds not in MIXABLE:
            first = next(
                where for (where, _), value in zip(rows, values, strict=True) if _kind(value) != _kind(values[0])
            )
            raise SchemaError(
                f"{entity}.{name} has values of several kinds: {', '.join(sorted(kinds))}, from {first} on"
            )
        if kinds == {"integer", "real"}:
            _refuse_inexact(f"{entity}.{name}", [where for where, _ in rows], values)
        columns[name] = as_column(values, f"{entity}.{name}")
    return columns


def _refuse_inexact(label: str, entities: Sequence[str], values: Sequence[Any]) -> None:
    """Refuse integers that a conversion to float64 would round."""
    for where, value in zip(entities, values, strict=True):
        if _kind(value) == "integer" and abs(int(value)) > MAX_EXACT:
            raise SchemaError(
                f"{label} has integers and reals, and float64 cannot hold {int(value)} of {where}; use one kind of "
                "number"
            )


def _kind(value: Any) -> str:
    """Return the kind of a value as a word; "" for an empty list."""
    if isinstance(value, np.ndarray) and not value.ndim:
        return _kind(value[()])
    if isinstance(value, str):
        return "string"
    if isinstance(value, bool | np.bool_):
        return "bool"
    if isinstance(value, list | tuple | np.ndarray):
        return "list of " + next((k for k in (_kind(v) for v in value) if k), "") if len(value) else ""
    if isinstance(value, int | np.integer):
        return "integer"
    return "real" if isinstance(value, float | np.floating) else type(value).__name__


def graph_to_networkx(graph: Graph, *, names: str | None = None) -> Any:
    """Convert a graph to a NetworkX ``MultiDiGraph``, for graphs small enough to look at.

    The name of a node is its key; in a graph with types, ``(type, key)``; or the value of a feature. In a graph with
    types, nodes and edges have the attribute ``type``, which for edges is the relation. Features become attributes.

    Args:
        graph: The graph.
        names: The feature whose distinct values name the nodes; None for keys.

    Raises:
        MissingDependencyError: NetworkX is not installed.
        UnknownNameError: A node type does not have the feature.
        SchemaError: Two nodes have the same name, or a graph with types has a feature ``type``.
    """
    try:
        import networkx
    except ImportError as error:
        raise MissingDependencyError(f"graph_to_networkx needs networkx ({error}); pip install networkx") from error
    made = networkx.MultiDiGraph()
    has_types = not graph.schema.is_homogeneous
    called: dict[str, list[Hashable]] = {}
    for node_type, nodes in graph.nodes.items():
        if names is not None and names not in nodes.features:
            raise UnknownNameError(f"{node_type} has no feature {names!r}; {known_names(names, nodes.features)}")
        keys: Iterable[Any] = range(nodes.num_nodes) if names is None else _listed(nodes.features[names])
        called[node_type] = [(node_type, key) for key in keys] if has_types and names is None else list(keys)
        rows = _rows(node_type, nodes.features, nodes.num_nodes, {"type": node_type} if has_types else {}, names)
        for name, attributes in zip(called[node_type], rows, strict=True):
            if name in made:
                raise SchemaError(f"{node_type} has two nodes named {quoted(name)}; choose another feature")
            made.add_nodes_from([(name, attributes)])
    for edge_type, edges in graph.edges.items():
        sources, targets = called[edge_type[0]], called[edge_type[2]]
        told = {"type": edge_type[1]} if has_types else {}
        rows = _rows(type_label(edge_type), edges.features, edges.num_edges, told, None)
        for src, dst, attributes in zip(edges.src_keys.tolist(), edges.dst_keys.tolist(), rows, strict=True):
            made.add_edges_from([(sources[src], targets[dst], attributes)])
    return made


def _rows(
    entity: str, features: Mapping[str, Column], num_rows: int, told: Mapping[str, str], left_out: str | None
) -> list[dict[str, Any]]:
    for name in told:
        if name in features:
            raise SchemaError(
                f"{entity} has a feature {name!r}, which is the name for types in NetworkX graphs; rename it"
            )
    columns = {name: _listed(column) for name, column in features.items() if name != left_out}
    return [{**told, **{name: column[row] for name, column in columns.items()}} for row in range(num_rows)]


def _listed(column: Column) -> list[Any]:
    return column.tolist()
