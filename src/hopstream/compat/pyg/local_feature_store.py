"""Feature store of one part under PyG's interface; it looks up rows of other parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import FeatureStore, TensorAttr
from torch_geometric.data.feature_store import _FieldStatus

from hopstream.arrays import find_sorted
from hopstream.compat.pyg.id_values import check_ids, id_list_given, ids_given, rows_given
from hopstream.compat.pyg.local_graph_store import parts_of
from hopstream.compat.pyg.partition_files import (
    EdgeParts,
    NodeParts,
    PartitionInfo,
    check_owned,
    ids_of,
    load_partition_info,
    read_part_file,
    tensor_of,
)
from hopstream.errors import FormatError, IdRangeError, SchemaError, StateError, UnknownNameError
from hopstream.schema import EdgeType, type_label
from hopstream.uris import local_path

NodeOrEdgeType = str | EdgeType
EDGES = (None, None)
"""Group of edges in a graph without types; the group of nodes is None."""
RemoteLookup = Callable[[Tensor, bool, NodeOrEdgeType | None], "torch.futures.Future[Tensor]"]
"""Finds rows of other parts: takes ids, whether of nodes, and their type; returns a future of rows in the order of ids.
"""


@dataclass
class LocalTensorAttr(TensorAttr):  # type: ignore[misc]  # torch_geometric has no types
    """A tensor by group and name; without ``index``, all of its rows."""

    def __init__(
        self, group_name: Any = _FieldStatus.UNSET, attr_name: Any = _FieldStatus.UNSET, index: Any = None
    ) -> None:
        """Name a tensor."""
        super().__init__(group_name, attr_name, index)


class LocalFeatureStore(FeatureStore):  # type: ignore[misc]  # torch_geometric has no types
    """The features of the nodes and edges of one part, as PyG's ``FeatureStore``.

    A group is a node type or an edge type. In a graph without types it is None for nodes and ``(None, None)`` for
    edges. Global ids refer to the whole graph, within their type. ``time`` of nodes has a row for every node of the
    type in the whole graph, because a part needs the times of neighbours in other parts. Every other tensor has a row
    per node or edge of the part. ``get_tensor_from_global_id`` handles both.

    Attributes:
        num_partitions: Number of parts.
        partition_idx: Number of this part.
        node_feat_pb: int64[num_nodes], the part of each node; in a graph with types, a dict of these by node type.
        edge_feat_pb: int64[num_edges], the part of each edge; in a graph with types, a dict of these by edge type.
        labels: Labels of all nodes of the graph, or None.
        meta: Contents of ``META.json``, at least ``is_hetero``, or None.
        remote_lookup: Finds rows of other parts for ``lookup_features``; None limits look-ups to this part.
    """

    def __init__(self) -> None:
        """Make an empty store of one part."""
        super().__init__(tensor_attr_cls=LocalTensorAttr)
        self._tensors: dict[tuple[Any, str], Tensor] = {}
        self._of_all_nodes: set[tuple[Any, str]] = set()
        self._rows: dict[Any, _RowsOfIds] = {}
        self.num_partitions = 1
        self.partition_idx = 0
        self.node_feat_pb: NodeParts | None = None
        self.edge_feat_pb: EdgeParts | None = None
        self.labels: Tensor | None = None
        self.meta: dict[str, Any] | None = None
        self.remote_lookup: RemoteLookup | None = None

    @staticmethod
    def key(attr: TensorAttr) -> tuple[Any, str]:
        """Return the key of a tensor: its group and name."""
        return attr.group_name, attr.attr_name

    def put_global_id(self, global_id: Tensor, group_name: Any) -> bool:
        """Set the ids of a group's rows: int64[num_rows], distinct, in any order.

        Raises:
            SchemaError: The ids are not distinct integers of rank 1.
        """
        self._rows[group_name] = _RowsOfIds.of(global_id, group_name)
        return True

    def get_global_id(self, group_name: Any) -> Tensor | None:
        """Return the ids of a group's rows, or None."""
        rows = self._rows.get(group_name)
        return None if rows is None else rows.ids

    def remove_global_id(self, group_name: Any) -> bool:
        """Remove the ids of a group's rows; return whether there were any."""
        return self._rows.pop(group_name, None) is not None

    def get_tensor_from_global_id(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return rows of a tensor by the ids of their nodes or edges; arguments are those of ``get_tensor``.

        Raises:
            UnknownNameError: There is no such tensor, or its group has no ids.
            SchemaError: ``index`` holds no ids, or the number of ids differs from the number of rows.
            IdRangeError: No row of this part has the id.
        """
        attr = self._tensor_attr_cls.cast(*args, **kwargs)
        key, tensor = self.key(attr), self._known(attr)
        if attr.index is None:
            raise SchemaError(
                f"index is missing; give the ids of the rows of {key[1]!r} of {_label(key[0])} that are wanted"
            )
        ids = ids_given(attr.index, "index")
        if key in self._of_all_nodes:
            return tensor[check_ids(ids, len(tensor), "index", "nodes")]
        if key[0] not in self._rows:
            raise UnknownNameError(f"{_label(key[0])} have no global ids; known: {list(self._rows)}; use put_global_id")
        rows = self._rows[key[0]]
        if len(tensor) != len(rows.ids):
            raise SchemaError(
                f"{key[1]!r} of {_label(key[0])} has {len(tensor)} rows and there are {len(rows.ids)} global ids; put "
                "one id for each row"
            )
        return tensor[rows.find(ids)]

    def get_all_tensor_attrs(self) -> list[LocalTensorAttr]:
        """Return the group and name of every tensor."""
        return [LocalTensorAttr(*key) for key in self._tensors]

    def groups(self) -> list[Any]:
        """Return every group with ids or tensors."""
        return list(dict.fromkeys((*self._rows, *(group for group, _ in self._tensors))))

    def tensors_of(self, group: Any) -> dict[str, Tensor]:
        """Return the tensors of a group by name."""
        return {name: tensor for (of, name), tensor in self._tensors.items() if of == group}

    def is_of_all_nodes(self, group: Any, name: str) -> bool:
        """Return whether a tensor has a row for every node of the type in the whole graph."""
        return (group, name) in self._of_all_nodes

    def has_edge_attr(self) -> bool:
        """Return whether edges of any type have ``edge_attr``."""
        return any(name == "edge_attr" for _, name in self._tensors)

    def lookup_features(
        self, index: Tensor, is_node_feat: bool = True, input_type: NodeOrEdgeType | None = None
    ) -> torch.futures.Future[Tensor]:
        """Look up ``x`` of nodes or ``edge_attr`` of edges, in this part and in others.

        Args:
            index: int64[n] ids in the whole graph, within the type; any order, with repetitions.
            is_node_feat: Whether the ids are of nodes.
            input_type: The node or edge type; None in a graph without types.

        Returns:
            A future of the rows, in the order of ``index``. It holds the error if ``remote_lookup`` fails.

        Raises:
            StateError: Rows of other parts are requested and ``remote_lookup`` is not set.
            SchemaError: ``index`` is no list of ids.
            UnknownNameError: There is no such type or tensor.
            IdRangeError: No node or edge has the id.
        """
        group, index = self._group(is_node_feat, input_type), id_list_given(index, "index")
        is_here = self._owners(index, is_node_feat, input_type) == self.partition_idx
        if bool(is_here.all()):
            found: torch.futures.Future[Tensor] = torch.futures.Future()
            found.set_result(self._lookup_here(index, group, is_node_feat))
            return found
        if self.remote_lookup is None:
            row = int(torch.nonzero(~is_here)[0])
            what = "node" if is_node_feat else "edge"
            raise StateError(
                f"{what} {int(index[row])} is not in part {self.partition_idx}, the only local part; load others "
                "with a DistNeighborLoader, or set remote_lookup"
            )
        here = self._lookup_here(index[is_here], group, is_node_feat) if bool(is_here.any()) else None

        merged: torch.futures.Future[Any] = torch.futures.Future()

        def merge(remote: torch.futures.Future[Tensor]) -> None:
            try:
                rows = remote.value()
                out = rows.new_empty((len(index), *rows.shape[1:]))
                out[~is_here] = rows
                if here is not None:
                    out[is_here] = here
            except Exception as error:  # ``then`` would replace the error by a RuntimeError
                merged.set_exception(error)
            else:
                merged.set_result(out)

        self.remote_lookup(index[~is_here], is_node_feat, input_type).add_done_callback(merge)
        return merged

    def _lookup_here(self, index: Tensor, group: Any, is_node_feat: bool) -> Tensor:
        name = "x" if is_node_feat else "edge_attr"
        return self.get_tensor_from_global_id(group_name=group, attr_name=name, index=index)

    def _group(self, is_node_feat: bool, input_type: NodeOrEdgeType | None) -> Any:
        if self.meta is not None and self.meta.get("is_hetero") and input_type is None:
            raise UnknownNameError(f"input_type is missing; the graph has the types {list(self._rows)}")
        return EDGES if input_type is None and not is_node_feat else input_type

    def _owners(self, index: Tensor, is_node_feat: bool, input_type: NodeOrEdgeType | None) -> Tensor:
        parts = self.node_feat_pb if is_node_feat else self.edge_feat_pb
        if parts is None and self.num_partitions == 1:
            return torch.full((len(index),), self.partition_idx, dtype=torch.int64)
        return parts_of(parts, "node_feat" if is_node_feat else "edge_feat", index, input_type)

    def _put_tensor(self, tensor: Tensor, attr: TensorAttr) -> bool:
        if attr.index is not None:
            raise SchemaError(f"index is given for {self.key(attr)}; tensors are put as a whole")
        self._tensors[self.key(attr)] = rows_given(tensor, f"{attr.attr_name!r} of {_label(attr.group_name)}")
        self._of_all_nodes.discard(self.key(attr))
        return True

    def _get_tensor(self, attr: TensorAttr) -> Tensor | None:
        tensor = self._tensors.get(self.key(attr))
        return tensor if tensor is None or attr.index is None else tensor[attr.index]

    def _remove_tensor(self, attr: TensorAttr) -> bool:
        self._of_all_nodes.discard(self.key(attr))
        return self._tensors.pop(self.key(attr), None) is not None

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...]:
        return tuple(self._known(attr).shape)

    def _known(self, attr: TensorAttr) -> Tensor:
        group, name = key = self.key(attr)
        if key not in self._tensors:
            raise UnknownNameError(f"tensor {name!r} of {_label(group)} does not exist; known: {list(self._tensors)}")
        return self._tensors[key]

    def _put_group(self, group: Any, ids: Tensor | None, tensors: Mapping[str, Tensor | None]) -> None:
        if ids is not None:
            self.put_global_id(ids, group_name=group)
        for name, tensor in tensors.items():
            if tensor is None:
                continue
            if ids is None:
                raise SchemaError(f"{name!r} of {_label(group)} is given without ids; give the id of each row too")
            if len(rows_given(tensor, f"{name!r} of {_label(group)}")) != len(ids):
                raise SchemaError(f"{name!r} of {_label(group)} has {len(tensor)} rows and there are {len(ids)} ids")
            self.put_tensor(tensor, group_name=group, attr_name=name)

    @classmethod
    def from_data(
        cls, node_id: Tensor, x: Tensor | None = None, y: Tensor | None = None, edge_id: Tensor | None = None,
        edge_attr: Tensor | None = None,
    ) -> LocalFeatureStore:  # fmt: skip
        """Make a store of a graph without types.

        Args:
            node_id: int64[n], the id of each node in the whole graph.
            x: [n, …] features of nodes.
            y: [n, …] labels of nodes.
            edge_id: int64[m], the id of each edge in the whole graph.
            edge_attr: [m, …] features of edges.

        Raises:
            SchemaError: A tensor does not have one row per id, or ``edge_attr`` comes without ``edge_id``.
        """
        store = cls()
        store.meta = {"is_hetero": False}
        store._put_group(None, node_id, {"x": x, "y": y})
        store._put_group(EDGES, edge_id, {"edge_attr": edge_attr})
        return store

    @classmethod
    def from_hetero_data(
        cls, node_id_dict: Mapping[str, Tensor], x_dict: Mapping[str, Tensor] | None = None,
        y_dict: Mapping[str, Tensor] | None = None, edge_id_dict: Mapping[EdgeType, Tensor] | None = None,
        edge_attr_dict: Mapping[EdgeType, Tensor] | None = None,
    ) -> LocalFeatureStore:  # fmt: skip
        """Make a store of a graph with types; arguments and errors are those of ``from_data``, by type."""
        store = cls()
        store.meta = {"is_hetero": True}
        xs, ys, edge_ids, edge_attrs = (of or {} for of in (x_dict, y_dict, edge_id_dict, edge_attr_dict))
        for node_type in dict.fromkeys((*node_id_dict, *xs, *ys)):
            tensors = {"x": xs.get(node_type), "y": ys.get(node_type)}
            store._put_group(node_type, node_id_dict.get(node_type), tensors)
        for edge_type in dict.fromkeys((*edge_ids, *edge_attrs)):
            store._put_group(edge_type, edge_ids.get(edge_type), {"edge_attr": edge_attrs.get(edge_type)})
        return store

    @classmethod
    def from_partition(cls, root: str | Path, pid: int) -> LocalFeatureStore:
        """Read one part of PyG's partition files; see ``hopstream.compat.pyg.partition_files``.

        Raises:
            FormatError: A file is missing, damaged, or contradicts the others.
            IdRangeError: There is no such part.
        """
        return cls._of_part(local_path(root), load_partition_info(root, pid))

    @classmethod
    def _of_part(cls, root: Path, info: PartitionInfo) -> LocalFeatureStore:
        """Read the part that ``info`` describes; see ``from_partition``."""
        store = cls()
        store.meta, store.num_partitions, pid, store.node_feat_pb, store.edge_feat_pb = info
        store.partition_idx = pid
        is_hetero = store.meta["is_hetero"]
        for file, books, single, time in (
            ("node_feats.pt", store.node_feat_pb, None, "time"),
            ("edge_feats.pt", store.edge_feat_pb, EDGES, "edge_time"),
        ):  # fmt: skip
            where, is_of_nodes = f"{root}: {file} of part {pid}", single is None
            # In a graph with types, global_id numbers the nodes of all types together, and id those of one type.
            id_name = "id" if is_hetero and is_of_nodes else "global_id"
            found = read_part_file(root, pid, file, books) or {}
            for group, values in (found if is_hetero else {single: found}).items():
                store._put_part(where, values, group, (id_name, _parts_of(where, books, group)))
                # Edges may have a feature called time that holds the same times; they are stored once.
                if values.get(time) is not None and (is_of_nodes or "time" not in values.get("feats", {})):
                    store.put_tensor(tensor_of(where, values, time), group_name=group, attr_name=time)
                    if is_of_nodes:
                        store._of_all_nodes.add((group, time))
        return store

    def _put_part(self, where: str, values: Any, group: Any, name_and_parts: tuple[str, Tensor]) -> None:
        """Store the contents of a file for one group, which may be empty.

        ``name_and_parts`` has the name of the ids in the file, and the part of each id.
        """
        id_name, parts = name_and_parts
        if not isinstance(values, dict) or not isinstance(values.get("feats", {}), dict):
            raise FormatError(f"{where}: {type(values).__name__} for {_label(group)}; wanted a dictionary with feats")
        if not values:
            return
        given = values.get("feats", {})
        feats = {name: tensor_of(where, given, name) for name, of in given.items() if of is not None}
        ids = ids_of(where, values, id_name) if id_name in values or feats else None
        if ids is not None:
            check_owned(where, ids, parts, self.partition_idx)
        try:
            self._put_group(group, ids, feats)
        except SchemaError as error:
            raise FormatError(f"{where}: {error}") from error


def _label(group: Any) -> str:
    """Return the name of a group in messages."""
    if group is None or isinstance(group, str):
        return "nodes" if group is None else f"nodes {group!r}"
    return "edges" if group == EDGES else f"edges {type_label(group)}"


def _parts_of(where: str, parts: Any, of_type: Any) -> Tensor:
    """Return the map of parts of one type."""
    if isinstance(parts, Tensor):
        return parts
    if of_type not in parts:
        raise FormatError(f"{where} has a type {of_type!r}; the maps of parts have {list(parts)}")
    found: Tensor = parts[of_type]
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _RowsOfIds:
    """Map from ids to rows by binary search, so its memory depends only on the rows of the part.

    Attributes:
        ids: int64[num_rows], the id of each row.
        sorted_ids: int64[num_rows], the ids in ascending order.
        order: int64[num_rows], the row of each of ``sorted_ids``; None if rows are in the order of ids.
    """

    ids: Tensor
    sorted_ids: Tensor
    order: Tensor | None

    @classmethod
    def of(cls, given: Any, group: Any) -> _RowsOfIds:
        """Make the map of a group's ids."""
        ids = id_list_given(given, f"the ids of {_label(group)}")
        sorted_ids, order = torch.sort(ids)
        is_repeated = sorted_ids[1:] == sorted_ids[:-1]
        if bool(is_repeated.any()):
            raise SchemaError(f"ids of {_label(group)} name {int(sorted_ids[1:][is_repeated][0])} twice")
        is_ascending = torch.equal(sorted_ids, ids)
        return cls(ids, ids if is_ascending else sorted_ids, None if is_ascending else order)

    def find(self, ids: Tensor) -> Tensor:
        """Return the row of each id, int64 of the same shape; raise ``IdRangeError`` for an id without a row."""
        flat = ids.reshape(-1)
        places = torch.from_numpy(find_sorted(self.sorted_ids.numpy(), flat.numpy()))
        if bool((places < 0).any()):
            row = int(torch.nonzero(places < 0)[0])
            raise IdRangeError(
                f"index[{row}] is {int(flat[row])}, which is not one of the {len(self.ids)} ids of this part"
            )
        return (places if self.order is None else self.order[places]).reshape(ids.shape)
