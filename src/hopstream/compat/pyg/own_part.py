"""Reader of PyG's local stores as the part of one rank.

``LocalGraphStore`` and ``LocalFeatureStore``, PyG's or Hopstream's, hold the edges and features of a partition under
global ids, and books with the partition of each node. This module reads them as an ``OwnPart`` and checks it. It sends
no request to other ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import Array, IntArray, find_sorted, to_array
from hopstream.errors import IdRangeError, SchemaError, SettingsError
from hopstream.schema import EDGE, NODE, EdgeType, type_label

TIME_NAMES = ("time",)
"""Tensors of nodes that every part of PyG's files holds for the whole graph."""
_REMEDY = "LocalGraphStore.from_partition sets it, or set it yourself"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OwnEdges:
    """Edges of one type whose destinations a part owns, in any order.

    Attributes:
        src_keys: int64[num_edges], keys of sources, which may belong to any part.
        dst_keys: int64[num_edges], keys of destinations, all of this part.
        edge_keys: int64[num_edges], keys of the edges in the whole graph, or None if unknown. A node's edges are stored
            in the order of their keys, or without keys in the given order.
        features: Feature name to column of num_edges rows.
    """

    src_keys: IntArray
    dst_keys: IntArray
    edge_keys: IntArray | None
    features: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OwnPart:
    """Part of a graph that one rank holds.

    Attributes:
        part: Number of the part.
        num_parts: Number of parts.
        owners: Node type to int32[num_nodes], the part of each node of the whole graph, by key.
        node_features: Node type to feature name to column; row ``i`` is the part's ``i``-th node in the order of keys.
        edges: Edge type to the edges into the part's nodes.
        time_attr: The feature that holds times, or None.
        node_times: Node type to integer[num_nodes], the times of all nodes of the whole graph, for types with times.
            The time of an edge is that of its source.
    """

    part: int
    num_parts: int
    owners: Mapping[str, NDArray[np.int32]]
    node_features: Mapping[str, Mapping[str, Array]]
    edges: Mapping[EdgeType, OwnEdges]
    time_attr: str | None = None
    node_times: Mapping[str, Array] = field(default_factory=dict)


def read_own_part(data: Any, time_attr: str | None = None, label_type: str | None = None) -> OwnPart:
    """Read the part of one rank from two stores.

    Edges whose destination belongs to another partition are dropped.

    Args:
        data: ``(feature_store, graph_store)``.
        time_attr: The tensor of nodes or edges that holds times, or None.
        label_type: The node type of a single tensor of labels, in a graph with types.

    Raises:
        SettingsError: ``data`` are not two such stores, or one lacks its books.
        SchemaError: A tensor has another number of rows than its ids, or an id is missing.
        IdRangeError: A number of a part or node is out of range.
    """
    stores = _Stores(data, time_attr)
    part = OwnPart(
        part=stores.part, num_parts=stores.num_parts, owners=stores.owners, edges=stores.edges(),
        node_features=stores.node_features(label_type), time_attr=time_attr, node_times=stores.node_times(),
    )  # fmt: skip
    timed = {*part.node_times, *(t for t, edges in part.edges.items() if time_attr in edges.features)}
    if time_attr is not None and not timed and any(len(edges.src_keys) for edges in part.edges.values()):
        raise SettingsError(
            f"time_attr is {time_attr!r}, and no tensor of nodes or edges has that name; the feature store has "
            f"{sorted({name for _, name in stores.tensors})}"
        )
    return part


def store_pair(data: Any) -> tuple[Any, Any]:
    """Return the feature store and the graph store of ``data``.

    Raises:
        SettingsError: ``data`` are not two such stores.
    """
    is_pair = isinstance(data, tuple | list) and len(data) == 2
    if not is_pair or not hasattr(data[0], "get_all_tensor_attrs") or not hasattr(data[1], "get_all_edge_attrs"):
        shown = tuple(type(one).__name__ for one in data) if is_pair else type(data).__name__
        raise SettingsError(
            f"data is {shown}; give (feature_store, graph_store): a LocalFeatureStore, a LocalGraphStore"
        )
    return data[0], data[1]


class _Stores:
    """Reader of the two stores.

    Attributes:
        part: Number of the partition.
        num_parts: Number of partitions.
        owners: Node type to the partition of each node.
        tensors: (node or edge type, name) to tensor.
    """

    def __init__(self, data: Any, time_attr: str | None) -> None:
        self._features, self._graph = store_pair(data)
        self._time_attr = time_attr
        graph, books = self._graph, getattr(self._graph, "node_pb", None)
        if books is None:
            raise SettingsError(f"graph_store.node_pb is None; it must name the partition of each node; {_REMEDY}")
        self._meta = graph.meta or {}
        self._is_hetero = bool(self._meta.get("is_hetero", isinstance(books, Mapping)))
        if self._is_hetero != isinstance(books, Mapping):
            wanted = "a dict, node type to tensor" if self._is_hetero else "a tensor"
            raise SettingsError(f"graph_store.node_pb is a {type(books).__name__}; by its meta it must be {wanted}")
        self.part, self.num_parts = int(graph.partition_idx), int(graph.num_partitions)
        if not 0 <= self.part < self.num_parts:
            raise IdRangeError(
                f"graph_store.partition_idx is {self.part}; partitions are numbered 0..{self.num_parts - 1}"
            )
        self.tensors: dict[tuple[str | EdgeType, str], Array] = {}
        for attr in self._features.get_all_tensor_attrs():
            tensor = self._features.get_tensor(group_name=attr.group_name, attr_name=attr.attr_name, index=None)
            if tensor is not None:
                self.tensors[_owner_of(attr.group_name), attr.attr_name] = to_array(tensor)
        books = books if self._is_hetero else {NODE: books}
        self.owners: dict[str, NDArray[np.int32]] = {}
        for node_type in (self._is_hetero and self._meta.get("node_types")) or books:
            owners = to_array(books[node_type])
            _check_range(f"node_pb of {node_type!r}", owners, self.num_parts, "partitions")
            self.owners[str(node_type)] = owners.astype(np.int32, copy=False)

    def node_features(self, label_type: str | None) -> dict[str, dict[str, Array]]:
        """Return every tensor of nodes, with one row per node of the partition in the order of keys."""
        found: dict[str, dict[str, Array]] = {node_type: {} for node_type in self.owners}
        for (entity, name), values in self.tensors.items():
            if isinstance(entity, str) and entity in found:
                found[entity][name] = self._own_nodes(entity, name, values)
        labels = getattr(self._features, "labels", None)
        if labels is not None and not isinstance(labels, Mapping):
            labels = {label_type if self._is_hetero else NODE: labels}
        for node_type, of_type in (labels or {}).items():
            if node_type in found and "y" not in found[node_type]:
                found[node_type]["y"] = self._own_nodes(node_type, "labels", to_array(of_type), is_whole=True)
        return found

    def node_times(self) -> dict[str, Array]:
        """Return node type to the times of all nodes, for types with times."""
        found = {}
        for entity, owners in self.owners.items():
            times = self.tensors.get((entity, self._time_attr or ""))
            if times is None:
                continue
            if len(times) != len(owners):
                raise SchemaError(
                    f"{entity}.{self._time_attr} has {len(times)} rows; the graph has {len(owners)} nodes of the type: "
                    "every rank needs the times of all of them, because an edge is as late as the node that it comes "
                    "from"
                )
            found[entity] = times
        return found

    def edges(self) -> dict[EdgeType, OwnEdges]:
        """Return the edges into nodes of the partition, by edge type.

        Raises:
            SettingsError: Edges are not in PyG's ``coo`` layout.
            SchemaError: Ends and ids of edges differ in number.
        """
        given = {}
        for attr in self._graph.get_all_edge_attrs():
            layout = getattr(attr.layout, "value", attr.layout)
            if layout != "coo":
                raise SettingsError(f"edges of {attr.edge_type} have layout {layout!r}; give 'coo': [2, num_edges]")
            row, col = self._graph.get_edge_index(attr)
            ids = self._graph.get_edge_id(attr)
            edge_type = _owner_of(attr.edge_type, is_edge=True)
            if not len(row) == len(col) or (ids is not None and len(ids) != len(col)):
                raise SchemaError(
                    f"edges of {type_label(edge_type)} have {len(row)} sources, {len(col)} destinations and "
                    f"{'no' if ids is None else len(ids)} ids; give one of each per edge"
                )
            given[edge_type] = (to_array(row), to_array(col), None if ids is None else to_array(ids))
        keys = self._edge_keys(given)
        order = self._meta.get("edge_types") if self._is_hetero else None
        wanted = [t for t in map(tuple, order or ()) if t in given]
        return {t: self._own_edges(t, *given[t][:2], keys[t]) for t in dict.fromkeys((*wanted, *given))}

    def _ids(self, entity: str | EdgeType) -> IntArray | None:
        """Return the global ids of the rows of a type's tensors, or None if the feature store lacks them."""
        group: Any = entity
        if not self._is_hetero:
            group = None if isinstance(entity, str) else (None, None)
        ids = self._features.get_global_id(group)
        return None if ids is None else to_array(ids).astype(np.int64, copy=False)

    def _own_nodes(self, node_type: str, name: str, values: Array, *, is_whole: bool = False) -> Array:
        owners = self.owners[node_type]
        (keys,) = np.nonzero(owners == self.part)
        ids = None if is_whole or name in (*TIME_NAMES, self._time_attr) else self._ids(node_type)
        if ids is None or len(ids) != len(values):
            if len(values) != len(owners):
                raise SchemaError(
                    f"{node_type}.{name} has {len(values)} rows, beside {_shown(ids)} and {len(owners)} nodes in the "
                    "graph; give a row per global id (put_global_id), or one per node of the graph"
                )
            return values[keys]
        return _rows_of(f"{node_type}.{name}", "node", keys, ids, values)

    def _own_edges(self, edge_type: EdgeType, row: Array, col: Array, keys: IntArray | None) -> OwnEdges:
        num_sources = len(self.owners[edge_type[0]])
        _check_range(f"sources of {type_label(edge_type)}", row, num_sources, f"nodes of {edge_type[0]!r}")
        places = self._own_places(edge_type, col)
        own_keys = None if keys is None else keys[places]
        ids = self._ids(edge_type)
        columns: dict[str, Array] = {}
        for (entity, name), values in self.tensors.items():
            if entity != edge_type:
                continue
            where = f"{type_label(edge_type)}.{name}"
            if ids is not None and len(ids) == len(values):
                if own_keys is None:
                    raise SchemaError(
                        f"{where} has global ids and the edges of {type_label(edge_type)} have none, so its rows "
                        "cannot be matched to edges; give the edges their ids too (put_edge_id)"
                    )
                columns[name] = _rows_of(where, "edge", own_keys, ids, values)
            elif len(values) == len(col):
                columns[name] = values[places]
            else:
                raise SchemaError(
                    f"{where} has {len(values)} rows, beside {_shown(ids)} and {len(col)} edges of the partition; give "
                    "a row per edge of edge_index, or per global id (put_global_id)"
                )
        return OwnEdges(
            src_keys=row[places].astype(np.int64, copy=False), dst_keys=col[places].astype(np.int64, copy=False),
            edge_keys=own_keys, features=columns,
        )  # fmt: skip

    def _edge_keys(self, given: Mapping[EdgeType, tuple[Array, Array, Array | None]]) -> Mapping[EdgeType, Any]:
        """Return the keys of edges, their numbers within their type, or None if unknown.

        Ids in PyG's stores are either such numbers, or they number the edges of all types in sequence, as ``graph.pt``
        does. The book decides between the two, because it says which edges lead to the part's own nodes.
        """
        books = self._graph.edge_pb
        ids = {t: None if of is None else of.astype(np.int64, copy=False) for t, (_, _, of) in given.items()}
        if not self._is_hetero or not isinstance(books, Mapping):
            return ids
        order = [tuple(t) for t in self._meta.get("edge_types") or books]
        lost = [t for t in {*order, *ids} if t not in books or t not in order]
        if lost:
            raise SettingsError(
                f"graph_store.edge_pb and its meta have {sorted({*order} & {*books})} but lack {sorted(lost)}; both "
                f"must name every edge type of the whole graph; {_REMEDY}"
            )
        starts = dict(zip(order, np.cumsum([0, *(len(books[t]) for t in order[:-1])]).tolist(), strict=True))
        booked = {t: np.flatnonzero(to_array(books[t]) == self.part) for t in ids}
        led = {t: None if of is None else np.sort(of[self._own_places(t, given[t][1])]) for t, of in ids.items()}
        for first_of in (dict.fromkeys(starts, 0), starts):
            if all(of is None or np.array_equal(of - first_of[t], booked[t]) for t, of in led.items()):
                return {t: None if of is None else of - first_of[t] for t, of in ids.items()}
        raise SchemaError(_unlike(led, starts, booked))

    def _own_places(self, edge_type: EdgeType, col: Array) -> IntArray:
        """Return the indices of edges into nodes of the partition."""
        num_nodes = len(self.owners[edge_type[2]])
        if len(col) and not 0 <= int(col.min()) <= int(col.max()) < num_nodes:
            raise SchemaError(
                f"edges of {type_label(edge_type)} lead to nodes {int(col.min())}..{int(col.max())} of "
                f"{edge_type[2]!r}; node_pb has 0..{num_nodes - 1}; edge indices are global ids"
            )
        return np.flatnonzero(self.owners[edge_type[2]][col] == self.part)


def _unlike(
    led: Mapping[EdgeType, IntArray | None], starts: Mapping[EdgeType, int], booked: Mapping[EdgeType, IntArray]
) -> str:
    """Describe ids that fit neither of the two numberings; name the first type that does not fit."""
    told = [(t, of) for t, of in led.items() if of is not None]
    single = {t for t, of in told if np.array_equal(of, booked[t])}
    through = {t for t, of in told if np.array_equal(of - starts[t], booked[t])}
    bad = next((t for t, _ in told if t not in single | through), None)
    if bad is None:
        return (
            f"edge ids of {sorted(single - through)} are numbers inside their type, and those of "
            f"{sorted(through - single)} number the edges of all types consecutively; use one of the two for all types"
        )
    ids = dict(told)[bad]
    shown = f"{len(ids)} edge ids" + (f" in {int(ids[0])}..{int(ids[-1])}" if len(ids) else "")
    return (
        f"{type_label(bad)} has {shown} of edges that lead to nodes of the partition; edge_pb gives it "
        f"{len(booked[bad])} other edges, counted inside the type, or from {starts[bad]} if all types are numbered "
        "consecutively; give the ids and the edge_pb of one cut, in which the owner of its destination owns an edge"
    )


def _shown(ids: IntArray | None) -> str:
    return "no global ids" if ids is None else f"{len(ids)} global ids"


def _rows_of(where: str, what: str, wanted: IntArray, ids: IntArray, values: Array) -> Array:
    """Return the rows of values for the ids in ``wanted``; ``ids`` are the ids of all rows."""
    order = np.argsort(ids, kind="stable")
    places = find_sorted(ids[order], wanted)
    (missing,) = np.nonzero(places < 0)
    if len(missing):
        raise SchemaError(
            f"{where} has no row for {what} {int(wanted[missing[0]])}, which the partition owns; global ids are "
            "numbers inside their type; torch_geometric's own LocalFeatureStore.from_partition numbers the nodes of "
            "all types consecutively: use hopstream.compat.pyg's"
        )
    found = order[places]
    rows: Array = values if np.array_equal(found, np.arange(len(values))) else values[found]
    return rows


def _check_range(what: str, values: Array, num: int, of: str) -> None:
    """Refuse values outside ``0..num-1``."""
    if len(values) and not 0 <= int(values.min()) <= int(values.max()) < num:
        row = int(np.flatnonzero((values < 0) | (values >= num))[0])
        raise IdRangeError(f"{what}[{row}] is {int(values[row])}; {of} are numbered 0..{num - 1}")


def _owner_of(group: Any, *, is_edge: bool = False) -> Any:
    """Return the name of a type in the schema."""
    if group is None:
        return EDGE if is_edge else NODE
    if isinstance(group, tuple | list):
        return EDGE if group[0] is None else tuple(group)
    return group
