"""Makes a graph of arrays as the Open Graph Benchmark gives them.

They are known by the names of their keys alone; the package ``ogb`` is not needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from hopstream.arrays import IntArray
from hopstream.errors import SchemaError, quoted
from hopstream.graph.graph import Graph
from hopstream.ingest.from_arrays import graph_from_arrays
from hopstream.ingest.user_columns import ColumnLike, as_array, as_keys
from hopstream.schema import EDGE, NODE, EdgeType

NODE_PREFIX, EDGE_PREFIX = "node_", "edge_"
SPLITS = {"valid": "val"}
"""OGB's names of splits that are called otherwise here."""
_TOPOLOGY = frozenset({"edge_index", "edge_index_dict", "num_nodes", "num_nodes_dict"})


def graph_from_ogb(
    graph: Mapping[str, Any] | tuple[Mapping[str, Any], Any], labels: Any = None, split_idx: Any = None, *,
    label_name: str = "y",
) -> Graph:  # fmt: skip
    """Make a graph of what ``dataset[0]`` and ``dataset.get_idx_split()`` of OGB's node datasets return.

    ``node_feat`` becomes the feature ``feat`` of nodes, ``node_year`` becomes ``year``, and so on; ``edge_feat`` and
    ``edge_reltype`` become features of edges. Columns of one value, ``[n, 1]``, lose their second dimension, but for
    ``feat``. Split ``valid`` is called ``val``.

    Args:
        graph: ``edge_index``, ``num_nodes``, ``node_feat`` …; or, of several types, ``edge_index_dict`` by
            ``(source, relation, target)``, ``num_nodes_dict``, ``node_feat_dict`` … by type. Or the pair of it and the
            labels.
        labels: Values per node; of several types, by node type.
        split_idx: Split name to keys; of several types, to node type to keys.
        label_name: What the labels' feature is called.

    Returns:
        A graph that passed ``Graph.check``; its arrays share memory with the arguments wherever they can.

    Raises:
        SchemaError: An array has another number of rows than its type, or the arguments are not as OGB has them.
        IdRangeError: An edge or split names a node that is not there.
    """
    if isinstance(graph, tuple):
        if len(graph) != 2 or labels is not None:
            raise SchemaError("graph is a tuple; give dataset[0], the pair of a graph and its labels, or the two apart")
        graph, labels = graph
    if not isinstance(graph, Mapping):
        raise SchemaError(f"graph is {type(graph).__name__}; wanted a dict with edge_index or edge_index_dict")
    is_typed = "edge_index_dict" in graph
    if not is_typed and "edge_index" not in graph:
        raise SchemaError(f"graph has neither edge_index nor edge_index_dict; it has {sorted(graph)}")
    node_features: dict[str, dict[str, ColumnLike]] = {}
    edge_features: dict[EdgeType, dict[str, ColumnLike]] = {}
    for key, value in graph.items():
        name = key.removesuffix("_dict")
        if key in _TOPOLOGY or value is None:
            continue
        if name.startswith(NODE_PREFIX):
            _put(node_features, name.removeprefix(NODE_PREFIX), _by_type(key, value, NODE, is_typed))
        elif name.startswith(EDGE_PREFIX):
            _put(edge_features, name.removeprefix(EDGE_PREFIX), _by_type(key, value, EDGE, is_typed))
        else:
            raise SchemaError(
                f"graph has {key!r}, which is neither of nodes (node_…) nor of edges (edge_…); leave it out"
            )
    if labels is not None:
        _put(node_features, label_name, _by_type("labels", labels, NODE, is_typed))
    edges = _by_type("edge_index", graph["edge_index_dict" if is_typed else "edge_index"], EDGE, is_typed)
    num_nodes = graph.get("num_nodes_dict" if is_typed else "num_nodes")
    return graph_from_arrays(
        {_edge_type(t): pair for t, pair in edges.items()},
        num_nodes={}
        if num_nodes is None
        else {t: int(n) for t, n in _by_type("num_nodes", num_nodes, NODE, is_typed).items()},
        node_features=node_features,
        edge_features={_edge_type(t): of for t, of in edge_features.items()},
        splits=_splits(split_idx, is_typed),
    )


def _by_type(name: str, value: Any, only: Any, is_typed: bool) -> Mapping[Any, Any]:
    if is_typed != isinstance(value, Mapping):
        wanted = "a dict by type" if is_typed else "one array"
        raise SchemaError(f"{name} is {type(value).__name__}; wanted {wanted}, as the edges are given")
    return value if is_typed else {only: value}


def _edge_type(given: object) -> EdgeType:
    if not isinstance(given, tuple) or len(given) != 3:
        raise SchemaError(f"edge_index_dict has the type {quoted(given)}; wanted (source, relation, target)")
    return cast(EdgeType, given)


def _put(features: dict[Any, dict[str, ColumnLike]], name: str, columns: Mapping[Any, Any]) -> None:
    for entity, column in columns.items():
        if column is None:
            continue
        if name in features.setdefault(entity, {}):
            raise SchemaError(f"{entity!r} has two features that would be called {name!r}; give another label_name")
        array = as_array(column, f"{entity}.{name}")
        features[entity][name] = array.reshape(-1) if name != "feat" and array.shape[1:] == (1,) else array


def _splits(split_idx: Any, is_typed: bool) -> dict[str, dict[str, ColumnLike]]:
    splits: dict[str, dict[str, ColumnLike]] = {}
    for name, value in (split_idx or {}).items():
        for node_type, keys in _by_type(f"split_idx[{name!r}]", value, NODE, is_typed).items():
            if isinstance(keys, Mapping):
                raise SchemaError(f"split_idx[{name!r}] holds {sorted(keys)}; splits of links are given to split_links")
            found: IntArray = as_keys(keys, f"split {name!r} of {node_type!r}")
            splits.setdefault(node_type, {})[SPLITS.get(name, name)] = found
    return splits
