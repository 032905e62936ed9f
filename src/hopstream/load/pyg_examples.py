"""Converts exported subgraphs to one ``HeteroData`` of PyG.

The subgraphs are concatenated as in PyG's ``Batch``, with ``batch`` and ``ptr`` of each node set. Auxiliary sets, such
as ``_readout``, become attributes of the whole, so that models see only the graph's own types.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from torch_geometric.data import HeteroData

from hopstream.arrays import IntArray, RaggedArray, offsets_of
from hopstream.errors import SchemaError, SettingsError
from hopstream.load.pyg import OFFSETS, to_tensor
from hopstream.tfgnn.graph_schema import AUXILIARY
from hopstream.tfgnn.graph_tensor import EdgePieces, GraphPieces
from hopstream.tfgnn.readout import READOUT, SHADOW, is_readout, readout_edge
from hopstream.tfgnn.spec import FieldSpec, GraphSpec
from hopstream.tfgnn.values import FeatureValues

if TYPE_CHECKING:
    from hopstream.load.examples import GraphBatch

NODE_NAMES = frozenset({"batch", "ptr", "num_nodes", "seed_index"})
EDGE_NAMES = frozenset({"edge_index"})
GRAPH_NAMES = frozenset({"num_graphs", "input_id", "readout", "readout_edges"})


def check_example_names(spec: GraphSpec) -> None:
    """Refuse features that would hide an attribute of a batch, or each other.

    Raises:
        SettingsError: Two attributes would have the same name.
    """
    names = [name for feature in spec.context.items() for name in _attribute_names(*feature)]
    _check_distinct_names("the context", names, GRAPH_NAMES | set(spec.node_sets), "context_features")
    for kind, sets, reserved in (("node", spec.node_sets, NODE_NAMES), ("edge", spec.edge_sets, EDGE_NAMES)):
        for set_name, of in sets.items():
            names = [name for feature in of.features.items() for name in _attribute_names(*feature)]
            taken = frozenset() if AUXILIARY.match(set_name) else reserved
            _check_distinct_names(f"{kind} set {set_name!r}", names, taken, f"{kind}_features")


def _attribute_names(name: str, field: FieldSpec) -> Iterator[str]:
    yield name
    if not field.is_string:
        yield from (_offsets_name(name, number) for number in field.ragged_dims)


def _offsets_name(name: str, number: int) -> str:
    return name + OFFSETS if number == 1 else f"{name}{OFFSETS}_{number}"


def _check_distinct_names(where: str, names: list[str], reserved: frozenset[str] | set[str], setting: str) -> None:
    for name in names:
        if name in reserved or names.count(name) > 1:
            raise SettingsError(
                f"feature {name!r} of {where} would hide another attribute of a batch; leave it out with {setting}, or "
                "use collate='numpy'"
            )


def to_hetero_data(batch: GraphBatch, *, strings: Literal["text", "bytes", "drop"], is_pinned: bool) -> HeteroData:
    """Collate graphs into one ``HeteroData``.

    Args:
        batch: The graphs.
        strings: Format of strings; ``drop`` if there are none.
        is_pinned: Put tensors into page-locked memory.

    Returns:
        The data. Each node set has its features, ``num_nodes``, ``batch`` int64[num_nodes] and ``ptr``
        int64[num_graphs + 1]; the seeds' set has ``seed_index`` int64[num_components]. Each edge set, under
        ``(source, name, target)``, has its features and ``edge_index``. The whole has the context's features,
        ``num_graphs`` and ``input_id``. For each readout it has ``readout``, the labels, and ``readout_edges``: key to
        set to int64[2, n], positions of the read items and of their predictions. A feature is a tensor; features of
        variable size are values with ``<name>_offsets``; strings are lists.

    Raises:
        SchemaError: A string is no UTF-8, with ``strings="text"``.
    """
    data = HeteroData()
    graphs = batch.graphs
    nodes = {name: graphs.item_offsets(of.sizes) for name, of in graphs.node_sets.items()}
    starts = {**nodes, **{SHADOW + name: graphs.item_offsets(of.sizes) for name, of in graphs.edge_sets.items()}}
    for name, values in graphs.context.items():
        _set(data, name, values, strings, is_pinned)
    data["num_graphs"] = graphs.num_graphs
    data["input_id"] = to_tensor(batch.input_ids, is_pinned)
    for name, of in graphs.node_sets.items():
        if AUXILIARY.match(name):
            continue
        store, ptr = data[name], nodes[name]
        store["num_nodes"] = int(ptr[-1])
        store["batch"] = to_tensor(np.repeat(np.arange(graphs.num_graphs, dtype=np.int64), np.diff(ptr)), is_pinned)
        store["ptr"] = to_tensor(ptr, is_pinned)
        if name == batch.seed_set:
            store["seed_index"] = to_tensor(offsets_of(of.sizes)[:-1].copy(), is_pinned)
        for feature, values in of.features.items():
            _set(store, feature, values, strings, is_pinned)
    for name, edges in graphs.edge_sets.items():
        if AUXILIARY.match(name):
            continue
        store = data[edges.source_set, name, edges.target_set]
        store["edge_index"] = to_tensor(_edge_index(graphs, edges, starts), is_pinned)
        for feature, values in edges.features.items():
            _set(store, feature, values, strings, is_pinned)
    for name in filter(is_readout, graphs.node_sets):
        _set_readout(data, graphs, name, starts, (strings, is_pinned))
    return data


def _edge_index(graphs: GraphPieces, edges: EdgePieces, starts: Mapping[str, IntArray]) -> IntArray:
    """Return int64[2, num_edges], the positions in the concatenated sets of all graphs."""
    num_edges = np.diff(graphs.item_offsets(edges.sizes))
    edge_index = np.empty((2, len(edges.source)), np.int64)
    for row, indices, name in ((0, edges.source, edges.source_set), (1, edges.target, edges.target_set)):
        np.add(indices, np.repeat(starts[name][:-1], num_edges), out=edge_index[row])
    return edge_index


def _set_readout(
    data: HeteroData, graphs: GraphPieces, name: str, starts: Mapping[str, IntArray], how: tuple[Any, bool]
) -> None:
    labels: dict[str, Any] = {}
    for feature, values in graphs.node_sets[name].features.items():
        _set(labels, feature, values, *how)
    found: dict[str, dict[str, Any]] = {}
    for edge_set, edges in graphs.edge_sets.items():
        of = readout_edge(edge_set)
        if of is not None and of[0] == name:
            found.setdefault(of[1], {})[edges.source_set] = to_tensor(_edge_index(graphs, edges, starts), how[1])
    tag = name.removeprefix(READOUT)
    data[f"readout{tag}"] = labels
    data[f"readout_edges{tag}"] = found


def _set(store: Any, name: str, values: FeatureValues, strings: str, is_pinned: bool) -> None:
    """Put a feature into a storage, in the forms of ``to_hetero_data``."""
    if isinstance(values.flat, RaggedArray):
        nested = values.tolist()
        store[name] = _decoded(nested, name) if strings == "text" else nested
        return
    sizes = values.row_offsets(np.array([0, values.num_items], np.int64))
    inner: list[int] = []
    for number, dim in reversed(list(enumerate(values.dims, 1))):
        if isinstance(dim, int) and len(inner) == len(values.dims) - number:
            inner.insert(0, dim)
        elif not isinstance(dim, int):
            store[_offsets_name(name, number)] = to_tensor(offsets_of(dim), is_pinned)
    num_rows = int(sizes[len(values.dims) - len(inner)][-1])
    store[name] = to_tensor(values.flat.reshape(num_rows, *inner), is_pinned)


def _decoded(value: Any, name: str) -> Any:
    if isinstance(value, list):
        return [_decoded(item, name) for item in value]
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise SchemaError(f"{name} holds {value[:40]!r}, which is not UTF-8; use strings='bytes' or 'drop'") from error
