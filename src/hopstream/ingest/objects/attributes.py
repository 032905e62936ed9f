"""Sorts named arrays into node features, edge features, splits, and attributes of the whole graph.

PyG's data objects and ``.npz`` files use the same names, and this module defines their meaning:

- ``edge_index`` is the topology and ``num_nodes`` the number of nodes. Without ``num_nodes``, the number of nodes is
  the number of rows of ``x``, ``feat``, ``pos``, ``batch``, ``node_type`` or ``n_id``; next, of an attribute with
  ``node`` in its name; next, of a mask; and last, the largest key in ``edge_index`` plus one.
- An array with a row per node is a node feature, an array with a row per edge an edge feature. If there are as many
  nodes as edges, arrays with ``edge`` in their names are edge features.
- ``train_mask``, ``val_mask`` or ``valid_mask``, and ``test_mask`` of nodes or edges become the splits ``train``,
  ``val`` and ``test``, not features. So do ``train_idx``, ``val_idx``, ``valid_idx`` and ``test_idx``, the same names
  with ``index``, and the mapping ``split_idx``, which hold keys or masks; without types they are splits of nodes.
- Attributes of the whole graph are dropped, and the reader of the source reports them: an array [2, n] with ``index``
  in its name, ``face``, ``edge_label`` beside ``edge_label_index`` (also with the prefixes ``pos_`` and ``neg_``), a
  scalar, a string, a mapping, and, without types, every array that fits neither nodes nor edges.
- A name that implies rows (``x``, ``edge_attr``, ``train_mask``, …) with the wrong number of rows is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np

from hopstream.arrays import Array, Column, RaggedArray
from hopstream.errors import SchemaError
from hopstream.graph.graph import Graph
from hopstream.ingest.from_arrays import graph_from_arrays
from hopstream.ingest.user_columns import ColumnLike, TensorLike, as_array
from hopstream.schema import EdgeType, type_label

Attributes = Mapping[str, object]

NODE_NAMES = frozenset({"x", "feat", "pos", "batch", "node_type", "n_id", "tf"})
EDGE_NAMES = frozenset({"edge_attr", "edge_weight", "edge_type", "edge_time", "e_id"})
MASKS = {"train_mask": "train", "val_mask": "val", "test_mask": "test"}
SPLIT_MASKS = MASKS | {"valid_mask": "val"}
"""Names of masks to splits, for reading attributes; only ``MASKS`` are used in other formats and for writing."""
INDEXES = {
    f"{name}_{end}": SPLIT_MASKS[f"{name}_mask"]
    for name in ("train", "val", "valid", "test") for end in ("idx", "index")
}  # fmt: skip
"""Names of arrays of keys to splits; PyG's users attach the results of OGB's ``get_idx_split`` under these names."""
WORDS_OF_SPLITS = frozenset({"train", "trn", "training", "val", "valid", "validation", "dev", "test", "tst", "testing"})
"""Words, between underscores, that suggest that a name is that of a split."""
SPLITS_ARE_CALLED = (
    "name keys of a split train_idx, val_idx or test_idx, and bool masks train_mask, val_mask or test_mask"
)
TOPOLOGY = frozenset({"edge_index", "num_nodes", "num_edges"})
SPLIT_IDX = "split_idx"
"""Name of the mapping of split name to keys that OGB's ``get_idx_split`` returns."""
ADJACENCY = ("adj_t", "adj")


@dataclass(frozen=True, slots=True)
class _Sorted:
    """Attributes sorted by kind."""

    node_features: dict[str, ColumnLike]
    edge_features: dict[str, ColumnLike]
    splits: dict[str, ColumnLike]
    edge_splits: dict[str, ColumnLike]


def graph_from_attributes(attributes: Attributes, splits: Mapping[str, ColumnLike] | None = None) -> Graph:
    """Make a graph of one node type and one edge type, ``node`` and ``(node, to, node)``.

    Args:
        attributes: Name to value.
        splits: Split name to keys or mask, in addition to those among the attributes.

    Raises:
        SchemaError: There is no ``edge_index``, an array has the wrong number of rows for its name, or the number of
            nodes is ambiguous.
        IdRangeError: An edge names a node that does not exist.
    """
    _refuse_adjacency("the graph", attributes)
    if attributes.get("edge_index") is None:
        names = ", ".join(sorted(name for name, value in attributes.items() if value is not None)) or "nothing"
        raise SchemaError(
            f"the graph has no edge_index, integers [2, num_edges]; it has {names}; for a graph without edges, give "
            "shape [2, 0]"
        )
    edge_index = as_array(attributes["edge_index"], "edge_index")
    num_edges = edge_index.shape[-1] if edge_index.ndim else 0
    num_nodes = _declared_num_nodes(attributes, num_edges)
    if num_nodes is None:
        num_nodes = int(edge_index.max()) + 1 if edge_index.size and edge_index.dtype.kind in "iu" else 0
        _refuse_ambiguous(attributes, num_nodes, num_edges)
    found = _Sorted({}, {}, dict(splits or {}), {})
    _put_index_splits(found.splits, "the graph", attributes)
    for name, value in named_columns(attributes):
        level = _level(name, _shape(value)[0], num_nodes, num_edges)
        if level is not None and name in SPLIT_MASKS:
            splits_of_level = found.splits if level == "node" else found.edge_splits
            _put_split(splits_of_level, "the graph", name, SPLIT_MASKS[name], _mask(name, value))
        elif level is not None:
            (found.node_features if level == "node" else found.edge_features)[name] = value
    return graph_from_arrays(
        edge_index,
        num_nodes=num_nodes,
        node_features=found.node_features,
        edge_features=found.edge_features,
        splits=found.splits,
        edge_splits=found.edge_splits,
    )


def graph_from_typed_attributes(
    nodes: Mapping[str, Attributes],
    edges: Mapping[EdgeType, Attributes],
    splits: Mapping[str, Mapping[str, ColumnLike]] | None = None,
    edge_splits: Mapping[EdgeType, Mapping[str, ColumnLike]] | None = None,
) -> Graph:
    """Make a graph from the attributes of each node type and each edge type.

    Args:
        nodes: Node type to attributes.
        edges: Edge type to attributes.
        splits: Node type to split name to keys or mask, in addition to those among the attributes.
        edge_splits: Edge type to split name to edge keys or mask, likewise.

    Raises:
        SchemaError: An array's number of rows differs from its type's, an edge type has no ``edge_index``, or the
            number of nodes of a type is unknown.
        IdRangeError: An edge names a node that does not exist.
    """
    num_nodes: dict[str, int | None] = {}
    node_features: dict[str, dict[str, ColumnLike]] = {}
    all_splits: dict[str, dict[str, ColumnLike]] = {}
    all_edge_splits: dict[EdgeType, dict[str, ColumnLike]] = {}
    for node_type, attributes in nodes.items():
        num_nodes[node_type] = _typed_num_nodes(node_type, attributes)
        rows = _rows_of_type(node_type, attributes, num_nodes[node_type])
        node_features[node_type] = {name: value for name, value in rows.items() if name not in SPLIT_MASKS}
        all_splits[node_type] = _typed_splits(node_type, attributes, rows, (splits or {}).get(node_type, {}))
    edge_index, edge_features = {}, {}
    for edge_type, attributes in edges.items():
        label = type_label(edge_type)
        _refuse_adjacency(label, attributes)
        if "edge_index" not in attributes:
            raise SchemaError(f"edge type {label} has no edge_index; it has {sorted(attributes)}")
        edge_index[edge_type] = array = as_array(attributes["edge_index"], f"{label}.edge_index")
        rows = _rows_of_type(label, attributes, array.shape[-1] if array.ndim else 0)
        edge_features[edge_type] = {name: value for name, value in rows.items() if name not in SPLIT_MASKS}
        all_edge_splits[edge_type] = _typed_splits(label, attributes, rows, (edge_splits or {}).get(edge_type, {}))
    return graph_from_arrays(
        cast(Mapping[EdgeType, ColumnLike], edge_index),
        num_nodes=cast(Mapping[str, int], num_nodes),
        node_features=node_features,
        edge_features=edge_features,
        splits=all_splits,
        edge_splits=all_edge_splits,
    )


def left_out(graph: Graph, attributes: Attributes, *entities: str | EdgeType) -> list[str]:
    """List the attributes of the given types that are no part of the graph."""
    read = set(TOPOLOGY)
    for entity in entities:
        is_node = isinstance(entity, str)
        table = graph.nodes[entity] if isinstance(entity, str) else graph.edges[entity]
        splits = graph.splits.get(str(entity), {}) if is_node else graph.edge_splits.get(cast(EdgeType, entity), {})
        read |= {*table.features, *(name for name, split in (SPLIT_MASKS | INDEXES).items() if split in splits)}
        read |= {SPLIT_IDX} if isinstance(attributes.get(SPLIT_IDX), Mapping) else set()
    return [name for name, value in attributes.items() if value is not None and name not in read]


def is_like_split(name: str) -> bool:
    """Return whether an attribute's name contains a word for a split, like ``idx_train`` or ``dev_mask``.

    Lists of edges do not count, for example ``train_pos_edge_index`` of PyG's older ``train_test_split_edges``.
    """
    return "edge_index" not in name and not WORDS_OF_SPLITS.isdisjoint(name.split("_"))


def features_like_splits(graph: Graph, attributes: Attributes, *entities: str | EdgeType) -> list[str]:
    """List the attributes of the given types that became bool features and are named like splits."""
    features: dict[str, Column] = {}
    for entity in entities:
        features |= (graph.nodes[entity] if isinstance(entity, str) else graph.edges[entity]).features
    are_bool = {name for name, of in features.items() if not isinstance(of, RaggedArray) and of.dtype == np.bool_}
    return [name for name in attributes if name in are_bool and is_like_split(name)]


def named_columns(attributes: Attributes) -> Iterable[tuple[str, ColumnLike]]:
    """Yield the attributes that may have a row per node or edge.

    Raises:
        SchemaError: The name of an attribute implies rows, and the value has none.
    """
    for name, value in attributes.items():
        is_label = name.endswith("edge_label") and f"{name}_index" in attributes
        is_index = "index" in name and len(_shape(value)) == 2 and _shape(value)[0] == 2
        if value is None or name in TOPOLOGY or name == "face" or name in INDEXES or is_label or is_index:
            continue
        if len(_shape(value)):
            yield name, cast(ColumnLike, value)
        elif name in (NODE_NAMES | EDGE_NAMES | set(SPLIT_MASKS)):
            raise SchemaError(f"{name} is {type(value).__name__}; wanted an array or a dense tensor with rows")


def _shape(value: object) -> tuple[int, ...]:
    """Return the shape of an array, a tensor or a list; () for other values."""
    if isinstance(value, list | tuple | RaggedArray):
        return (len(value),)
    return tuple(getattr(value, "shape", ())) if isinstance(value, np.ndarray | TensorLike) else ()


def _level(name: str, num_rows: int, num_nodes: int, num_edges: int) -> str | None:
    """Return ``node``, ``edge``, or None for the graph as a whole, by PyG's rules.

    Raises:
        SchemaError: The name implies rows, and their number is wrong.
    """
    fitting = [level for level, wanted in (("node", num_nodes), ("edge", num_edges)) if num_rows == wanted]
    promised = "edge" if name in EDGE_NAMES else "node" if name in NODE_NAMES else None
    is_of_either = name in SPLIT_MASKS or (name == "y" and num_rows != 1)
    if (promised and promised not in fitting) or (is_of_either and not fitting):
        raise SchemaError(f"{name} has {num_rows} rows; the graph has {num_nodes} nodes and {num_edges} edges")
    if promised:
        return promised
    if len(fitting) == 2:
        return "edge" if "edge" in name else "node"
    return fitting[0] if fitting else None


def _declared_num_nodes(attributes: Attributes, num_edges: int) -> int | None:
    """Return the number of nodes from the attributes; None if only edges can tell it."""
    if attributes.get("num_nodes") is not None:
        return _scalar("num_nodes", attributes["num_nodes"])
    arrays = {
        name: _shape(value)[0] for name, value in named_columns(attributes) if not isinstance(value, list | tuple)
    }
    named = [rows for name, rows in arrays.items() if name in NODE_NAMES]
    named += [rows for name, rows in arrays.items() if "node" in name]
    named += [rows for name, rows in arrays.items() if name in SPLIT_MASKS and rows != num_edges]
    if named:
        return named[0]
    sparse_size = getattr(attributes.get("edge_index"), "sparse_size", None)
    sizes = [size for size in sparse_size() if size is not None] if callable(sparse_size) else []
    return max(sizes, default=None)


def _refuse_ambiguous(attributes: Attributes, num_nodes: int, num_edges: int) -> None:
    """Refuse arrays that fit neither nodes nor edges if the number of nodes comes from the largest key.

    Such an array may have a row per node, including isolated nodes above that key.
    """
    for name, value in named_columns(attributes):
        rows = _shape(value)[0]
        if rows not in (1, num_nodes, num_edges) and not isinstance(value, list | tuple):
            raise SchemaError(
                f"{name} has {rows} rows; edge_index has {num_nodes} nodes and {num_edges} edges; set num_nodes"
            )


def _typed_num_nodes(node_type: str, attributes: Attributes) -> int | None:
    declared = _declared_num_nodes(attributes, num_edges=-1)
    if declared is not None:
        return declared
    columns = dict(named_columns(attributes))
    arrays = {name: _shape(value)[0] for name, value in columns.items() if not isinstance(value, list | tuple)}
    rows = arrays or {name: _shape(value)[0] for name, value in columns.items()}
    if len(set(rows.values())) > 1:
        raise SchemaError(
            f"attributes of node type {node_type!r} disagree on its number of nodes: {rows}; set num_nodes"
        )
    return next(iter(rows.values()), None)


def _rows_of_type(label: str, attributes: Attributes, num_rows: int | None) -> dict[str, ColumnLike]:
    """Select the attributes with ``num_rows`` rows.

    Lists of other lengths describe the type and are skipped.

    Raises:
        SchemaError: An array has another number of rows.
    """
    found: dict[str, ColumnLike] = {}
    for name, value in named_columns(attributes):
        got = _shape(value)[0]
        if got == num_rows:
            found[name] = value
        elif not isinstance(value, list | tuple):
            remedy = f"; {SPLITS_ARE_CALLED}" if is_like_split(name) else ""
            raise SchemaError(f"{label}.{name} has {got} rows; the type has {num_rows}{remedy}")
    return found


def _typed_splits(
    label: str, attributes: Attributes, rows: Mapping[str, ColumnLike], given: Mapping[str, ColumnLike]
) -> dict[str, ColumnLike]:
    """Collect the splits of one type: split name to keys or mask."""
    found: dict[str, ColumnLike] = {}
    for name, value in rows.items():
        if name in SPLIT_MASKS:
            _put_split(found, label, name, SPLIT_MASKS[name], _mask(f"{label}.{name}", value))
    _put_index_splits(found, label, attributes)
    for split, value in given.items():
        _put_split(found, label, f"{split}.split", split, value)
    return found


def _put_index_splits(splits: dict[str, ColumnLike], label: str, attributes: Attributes) -> None:
    """Add the splits that attributes give as keys or in ``split_idx``."""
    given = {name: (split, attributes.get(name)) for name, split in INDEXES.items()}
    split_idx = attributes.get(SPLIT_IDX)
    if isinstance(split_idx, Mapping):
        given |= {f"{SPLIT_IDX}[{n!r}]": (INDEXES.get(f"{n}_idx", str(n)), keys) for n, keys in split_idx.items()}
    for name, (split, value) in given.items():
        if value is None:
            continue
        array = np.array(value, None if value else np.int64) if isinstance(value, list | tuple) else value
        keys = as_array(array, f"{label}.{name}")
        if name in INDEXES and keys.ndim == 2 and len(keys) == 2:
            continue  # a list of edges, which ``left_out`` reports
        if keys.ndim != 1 or keys.dtype.kind not in "iub":
            raise SchemaError(
                f"{label}.{name} is {keys.dtype}{list(keys.shape)}; a split is keys (integers [n]) or a mask "
                "(bool[num_rows])"
            )
        _put_split(splits, label, name, split, keys)


def _put_split(splits: dict[str, ColumnLike], label: str, name: str, split: str, value: ColumnLike) -> None:
    if not np.array_equal(_sorted_keys(splits.setdefault(split, value)), _sorted_keys(value)):
        raise SchemaError(
            f"{name} of {label} is split {split!r}, but another attribute has other keys for this split; leave one out"
        )


def _sorted_keys(split: ColumnLike) -> Array:
    array = np.asarray(split)
    return np.flatnonzero(array) if array.dtype == np.bool_ else np.sort(array)


def _mask(where: str, value: ColumnLike) -> Array:
    array = as_array(np.asarray(value) if isinstance(value, list | tuple) else value, where)
    if array.dtype != np.bool_ or array.ndim != 1:
        remedy = "choose one of its columns" if array.ndim > 1 else "convert it to bool"
        raise SchemaError(f"{where} is {array.dtype}{list(array.shape)}; a split is bool[num_nodes]: {remedy}")
    return array


def _scalar(where: str, value: object) -> int:
    array = np.asarray(value) if isinstance(value, int) else as_array(value, where)
    if array.size != 1 or array.dtype.kind not in "iu":
        raise SchemaError(f"{where} is {array.dtype}{list(array.shape)}; wanted one integer")
    return int(array.reshape(-1)[0])


def _refuse_adjacency(label: str, attributes: Attributes) -> None:
    for name in ADJACENCY:
        if attributes.get(name) is not None:
            raise SchemaError(
                f"{label} has its edges in the sparse matrix {name}; convert it to edge_index first: dst, src, _ = "
                "data.adj_t.coo(); data.edge_index = torch.stack([src, dst]); del data.adj_t"
            )
