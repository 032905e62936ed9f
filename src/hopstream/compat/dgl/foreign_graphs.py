"""Make a ``DGLGraph`` of this package of a graph of NetworkX or a sparse matrix of SciPy."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from hopstream.arrays import Array
from hopstream.compat.dgl.graphs import DGLGraph, graph
from hopstream.errors import MissingDependencyError, SchemaError
from hopstream.ingest.objects.networkx_graphs import NetworkXLike
from hopstream.ingest.objects.sparse_matrices import SparseLike, graph_from_scipy
from hopstream.ingest.user_columns import as_column
from hopstream.schema import EDGE, NODE


def from_scipy(
    sp_mat: SparseLike, eweight_name: str | None = None, idtype: Any = None, device: Any = None
) -> DGLGraph:  # fmt: skip
    """A graph of a square sparse matrix: a stored value at row ``u`` and column ``v`` is an edge from ``u`` to ``v``.

    Args:
        sp_mat: The matrix; edges are in the order of ``tocoo()``.
        eweight_name: What the data of edges are called that hold the values; None leaves them out.
        idtype: None or ``torch.int64``.
        device: None or the main memory's, ``cpu``.

    Raises:
        SettingsError: Another ``idtype`` or ``device`` is asked for.
        SchemaError: It is no square sparse matrix.
    """
    found = graph_from_scipy(sp_mat, weight=eweight_name)
    edges = found.edges[EDGE]
    made = graph((edges.src_keys, edges.dst_keys), num_nodes=found.nodes[NODE].num_nodes, idtype=idtype,
                 device=device)  # fmt: skip
    made.edata.update(edges.features)
    return made


def from_networkx(
    nx_graph: NetworkXLike, node_attrs: Sequence[str] | None = None, edge_attrs: Sequence[str] | None = None,
    edge_id_attr_name: str | None = None, idtype: Any = None, device: Any = None,
) -> DGLGraph:  # fmt: skip
    """A graph of a NetworkX graph. Nodes are numbered in the sorted order of their names, as DGL does.

    Args:
        nx_graph: The graph; where edges have no direction, each of them is given in both.
        node_attrs: Attributes of nodes that become data: numbers, or arrays or tensors of one shape.
        edge_attrs: Attributes of edges likewise.
        edge_id_attr_name: The attribute of edges that says their numbers, 0..n-1; None: in the order of NetworkX.
        idtype: None or ``torch.int64``.
        device: None or the main memory's, ``cpu``.

    Raises:
        SettingsError: Another ``idtype`` or ``device`` is asked for.
        SchemaError: It is no such graph, names of nodes cannot be sorted, a node or an edge lacks an attribute, values
            do not fit each other, or the numbers of edges are not 0..n-1.
        MissingDependencyError: NetworkX is not installed.
    """
    names, source = _numbered(nx_graph)
    edges = [(u, v, (names[u], names[v]), of) for u, v, of in source.edges(data=True)]
    if edge_id_attr_name is not None and edges:
        numbers = _values("edge", edge_id_attr_name, [edge[2:] for edge in edges]).reshape(-1)
        order = np.argsort(numbers, kind="stable")
        if numbers[order].tolist() != list(range(len(edges))):
            raise SchemaError(f"{edge_id_attr_name!r} of edges are not 0..{len(edges) - 1}, each once")
        edges = [edges[place] for place in order.tolist()]
    ends = [np.array([edge[side] for edge in edges], np.int64) for side in (0, 1)]
    made = graph(ends, num_nodes=len(names), idtype=idtype, device=device)
    for attribute in node_attrs or ():
        made.ndata[attribute] = _values(
            "node", attribute, [(name, source.nodes[number]) for number, name in enumerate(names)]
        )
    for attribute in edge_attrs or ():
        made.edata[attribute] = _values("edge", attribute, [edge[2:] for edge in edges])
    return made


def _numbered(nx_graph: Any) -> tuple[list[Any], Any]:
    """The names of nodes, and a directed graph of their numbers, by DGL's own calls for its order of edges."""
    if not isinstance(nx_graph, NetworkXLike):
        raise SchemaError(f"nx_graph is {type(nx_graph).__name__}; wanted a NetworkX graph")
    try:
        import networkx
    except ImportError as error:
        raise MissingDependencyError(f"from_networkx needs networkx ({error}); pip install networkx") from error
    try:
        names = sorted(nx_graph.nodes)
        numbered = networkx.convert_node_labels_to_integers(nx_graph, ordering="sorted")
    except TypeError as error:
        raise SchemaError(
            f"names of nodes cannot be sorted ({error}), and DGL numbers nodes in their order; use "
            "networkx.convert_node_labels_to_integers"
        ) from error
    return names, numbered if nx_graph.is_directed() else numbered.to_directed()


def _values(what: str, attribute: str, items: Sequence[tuple[Hashable, Mapping[str, Any]]]) -> Array:
    """An attribute with a row for each node or edge; of numbers of Python in torch's dtypes."""
    missing = [called for called, attributes in items if attributes.get(attribute) is None]
    if missing:
        raise SchemaError(f"{what} {missing[0]!r} has no {attribute!r}, which all must have")
    values = [attributes[attribute] for _, attributes in items]
    column = as_column(values, attribute) if values else np.empty(0, np.float32)
    if not isinstance(column, np.ndarray):
        raise SchemaError(f"{attribute!r} of {what}s are texts, or of several shapes; wanted numbers of one shape")
    is_plain = column.dtype == np.float64 and not any(hasattr(value, "dtype") for value in values)
    return column.astype(np.float32) if is_plain else column
