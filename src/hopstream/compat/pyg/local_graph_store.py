"""Graph store of one part under PyG's interface."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import EdgeAttr, GraphStore
from torch_geometric.data.graph_store import EdgeLayout
from torch_geometric.utils import sort_edge_index

from hopstream.checks import known_names, read_integer
from hopstream.compat.pyg.id_values import check_ids, id_list_given, ids_given
from hopstream.compat.pyg.partition_files import (
    EdgeParts,
    NodeParts,
    PartitionInfo,
    check_owned,
    ids_of,
    ids_of_type,
    load_partition_info,
    offsets_of_types,
    read_part_file,
    size_of,
)
from hopstream.errors import FormatError, SchemaError, StateError, UnknownNameError
from hopstream.ingest.user_columns import MAX_KEY
from hopstream.schema import EdgeType
from hopstream.uris import local_path


class LocalGraphStore(GraphStore):  # type: ignore[misc]  # torch_geometric has no types
    """The edges of one part, and the parts of all nodes and edges, as PyG's ``GraphStore``.

    An edge belongs to the part of its destination. Its ends are ids in the whole graph, within their node types.
    ``edge_id`` is its id in the whole graph, within its edge type.

    Attributes:
        num_partitions: Number of parts.
        partition_idx: Number of this part.
        node_pb: int64[num_nodes], the part of each node, or a dict of these by node type; None if unknown.
        edge_pb: int64[num_edges], the part of each edge, or a dict of these by edge type; None if unknown.
        meta: Contents of ``META.json``, at least ``is_hetero``, or None.
        is_sorted: Whether edges are sorted by destination; None if unknown.
    """

    def __init__(self) -> None:
        """Make an empty store of one part."""
        super().__init__()
        self._edge_index: dict[tuple[Any, str], Any] = {}
        self._edge_attr: dict[tuple[Any, str], EdgeAttr] = {}
        self._edge_id: dict[tuple[Any, str], Tensor] = {}
        self.num_partitions = 1
        self.partition_idx = 0
        self.node_pb: NodeParts | None = None
        self.edge_pb: EdgeParts | None = None
        self.meta: dict[str, Any] | None = None
        self.is_sorted: bool | None = None

    @staticmethod
    def key(attr: EdgeAttr) -> tuple[Any, str]:
        """Return the key of edges: their type and layout."""
        return attr.edge_type, attr.layout.value

    def get_partition_ids_from_nids(self, ids: Tensor, node_type: str | None = None) -> Tensor:
        """Return the part of each node.

        Args:
            ids: int64[n] ids in the whole graph, within the node type.
            node_type: The node type; None in a graph without types.

        Raises:
            StateError: The parts of nodes are unknown.
            UnknownNameError: There is no such node type.
            SchemaError: ``ids`` holds no ids.
            IdRangeError: No node has the id.
        """
        return parts_of(self.node_pb, "node", ids, node_type)

    def get_partition_ids_from_eids(self, eids: Tensor, edge_type: EdgeType | None = None) -> Tensor:
        """Return the part of each edge; arguments and errors are those of ``get_partition_ids_from_nids``."""
        return parts_of(self.edge_pb, "edge", eids, edge_type)

    def put_edge_id(self, edge_id: Tensor, *args: Any, **kwargs: Any) -> bool:
        """Set the ids of edges, int64[num_edges], in the order of their edge index."""
        self._edge_id[self.key(self._edge_attr_cls.cast(*args, **kwargs))] = id_list_given(edge_id, "edge_id")
        return True

    def get_edge_id(self, *args: Any, **kwargs: Any) -> Tensor | None:
        """Return the ids of edges, or None."""
        return self._edge_id.get(self.key(self._edge_attr_cls.cast(*args, **kwargs)))

    def remove_edge_id(self, *args: Any, **kwargs: Any) -> bool:
        """Remove the ids of edges; return whether there were any."""
        return self._edge_id.pop(self.key(self._edge_attr_cls.cast(*args, **kwargs)), None) is not None

    def get_all_edge_attrs(self) -> list[EdgeAttr]:
        """Return type, layout, size and order of every edge index."""
        return list(self._edge_attr.values())

    def _put_edge_index(self, edge_index: Any, edge_attr: EdgeAttr) -> bool:
        what = f"edge_index of {edge_attr.edge_type or 'the graph'}"
        if not isinstance(edge_index, tuple | list | Tensor) or len(edge_index) != 2:
            raise SchemaError(f"{what} is {type(edge_index).__name__}; wanted two tensors")
        first, second = (id_list_given(ends, what) for ends in edge_index)
        if edge_attr.layout == EdgeLayout.COO and len(first) != len(second):
            raise SchemaError(f"{what} has {len(first)} sources and {len(second)} destinations")
        self._edge_index[self.key(edge_attr)] = edge_index if isinstance(edge_index, Tensor) else (first, second)
        self._edge_attr[self.key(edge_attr)] = edge_attr
        return True

    def _get_edge_index(self, edge_attr: EdgeAttr) -> Any:
        return self._edge_index.get(self.key(edge_attr))

    def _remove_edge_index(self, edge_attr: EdgeAttr) -> bool:
        self._edge_attr.pop(self.key(edge_attr), None)
        return self._edge_index.pop(self.key(edge_attr), None) is not None

    @classmethod
    def from_data(cls, edge_id: Tensor, edge_index: Tensor, num_nodes: int, is_sorted: bool = False) -> LocalGraphStore:
        """Make a store of the edges of a graph without types.

        Args:
            edge_id: int64[num_edges], the id of each edge in the whole graph.
            edge_index: int64[2, num_edges], sources and destinations.
            num_nodes: Number of nodes of the whole graph.
            is_sorted: Whether edges are sorted by destination; otherwise they are sorted here.

        Raises:
            SchemaError: The number of ids differs from the number of edges, or they are no ids.
            SettingsError: ``num_nodes`` is no valid count.
        """
        store = cls()
        store.meta = {"is_hetero": False}
        store._put(edge_id, edge_index, (num_nodes, num_nodes), is_sorted)
        return store

    @classmethod
    def from_hetero_data(
        cls,
        edge_id_dict: Mapping[EdgeType, Tensor],
        edge_index_dict: Mapping[EdgeType, Tensor],
        num_nodes_dict: Mapping[str, int],
        is_sorted: bool = False,
    ) -> LocalGraphStore:
        """Make a store of the edges of a graph with types; arguments are those of ``from_data``, by type.

        Raises:
            SchemaError: The number of ids differs from the number of edges, or they are no ids.
            SettingsError: A number of nodes is no valid count.
            UnknownNameError: A type with edges lacks its ids or its number of nodes.
        """
        store = cls()
        store.meta = {"is_hetero": True}
        for edge_type, edge_index in edge_index_dict.items():
            src, _, dst = edge_type
            edge_id = _of_type(edge_id_dict, edge_type, "edge_id_dict")
            size = tuple(_of_type(num_nodes_dict, t, "num_nodes_dict") for t in (src, dst))
            store._put(edge_id, edge_index, size, is_sorted, edge_type)
        return store

    @classmethod
    def from_partition(cls, root: str | Path, pid: int) -> LocalGraphStore:
        """Read one part of PyG's partition files; see ``hopstream.compat.pyg.partition_files``.

        Raises:
            FormatError: A file is missing, damaged, or contradicts the others.
            IdRangeError: There is no such part.
        """
        return cls._of_part(local_path(root), load_partition_info(root, pid))

    @classmethod
    def _of_part(cls, root: Path, info: PartitionInfo) -> LocalGraphStore:
        """Read the part that ``info`` describes; see ``from_partition``."""
        store = cls()
        meta, store.num_partitions, pid, store.node_pb, edge_parts = info
        store.meta, store.edge_pb, store.partition_idx = meta, edge_parts, pid
        graph = read_part_file(root, pid, "graph.pt", edge_parts)
        if not graph:
            books = edge_parts.values() if meta["is_hetero"] else [edge_parts]
            if not any(bool((parts == pid).any()) for parts in books):
                return store
        if graph is None:
            raise FormatError(f"{root}: part {pid} has no graph.pt, which holds its edges")
        is_sorted = bool(meta.get("is_sorted", False))
        if not meta["is_hetero"]:
            store._put_part(f"{root}: graph.pt of part {pid}", graph, is_sorted, None, (edge_parts, None))
            return store
        counts = {t: len(parts) for t, parts in edge_parts.items()}
        starts = offsets_of_types(counts)
        for edge_type, edges in graph.items():
            where = f"{root}: {edge_type} in graph.pt of part {pid}"
            if edge_type not in counts or not isinstance(edges, dict):
                raise FormatError(f"{where}: wanted a dictionary for each of the edge types {list(counts)}")
            if not edges and not bool((edge_parts[edge_type] == pid).any()):
                continue
            store._put_part(where, edges, is_sorted, edge_type, (edge_parts[edge_type], starts[edge_type]))
        return store

    def _put_part(
        self, where: str, edges: dict[str, Any], is_sorted: bool, edge_type: EdgeType | None,
        map_and_start: tuple[Tensor, int | None],
    ) -> None:  # fmt: skip
        """Store the contents of a file for one edge type.

        ``map_and_start`` has the part of each edge, and the type's first number where edges of all types are numbered
        together.
        """
        parts, start = map_and_start
        row, col, edge_id = (ids_of(where, edges, name) for name in ("row", "col", "edge_id"))
        if not len(row) == len(col) == len(edge_id):
            raise FormatError(f"{where}: row, col and edge_id have {len(row)}, {len(col)} and {len(edge_id)} values")
        if start is not None:
            edge_id = ids_of_type(where, edge_id, start, len(parts))
        check_owned(where, edge_id, parts, self.partition_idx)
        size = size_of(where, edges)
        for name, ids, num_nodes in (("row", row, size[0]), ("col", col, size[1])):
            if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < num_nodes:
                raise FormatError(
                    f"{where}: {name} has ids in {int(ids.min())}..{int(ids.max())}; by size they must be "
                    f"0..{num_nodes - 1}"
                )
        self._put(edge_id, torch.stack([row, col]), size, is_sorted, edge_type)

    def _put(
        self, edge_id: Tensor, edge_index: Tensor, size: tuple[int, ...], is_sorted: bool,
        edge_type: EdgeType | None = None,
    ) -> None:  # fmt: skip
        of = f"of {edge_type or 'the graph'}"
        edge_id, edge_index = id_list_given(edge_id, f"edge_id {of}"), ids_given(edge_index, f"edge_index {of}")
        if edge_index.shape != (2, len(edge_id)):
            raise SchemaError(
                f"edge_index {of} is {list(edge_index.shape)} and there are {len(edge_id)} edge ids; wanted [2, number "
                "of ids]"
            )
        # PyG's documentation passes fewer nodes than edges refer to, so the two are not compared
        size = tuple(read_integer(f"num_nodes {of}", number, 0, MAX_KEY) for number in size)
        if not is_sorted:
            edge_index, edge_id = sort_edge_index(edge_index, edge_id, sort_by_row=False)
        attr = {"edge_type": edge_type, "layout": "coo", "size": size, "is_sorted": True}
        self.put_edge_index(edge_index, **attr)
        self.put_edge_id(edge_id, **attr)
        self.is_sorted = True


def parts_of(parts: Any, what: str, ids: Tensor, of_type: Any) -> Tensor:
    """Return the part of each node or edge.

    Args:
        parts: int64[n], or a dict of these by type, or None if unknown.
        what: ``node`` or ``edge``, for messages.
        ids: int64[m] ids.
        of_type: The type; None in a graph without types.

    Raises:
        StateError: The parts are unknown.
        UnknownNameError: There is no such type.
        SchemaError: ``ids`` holds no ids.
        IdRangeError: No node or edge has the id.
    """
    if parts is None:
        raise StateError(f"the parts of {what}s are not known; use from_partition, or set {what}_pb")
    if isinstance(parts, Mapping):
        parts = _of_type(parts, of_type, f"the parts of {what}s")
    ids = check_ids(ids_given(ids, "index"), len(parts), "index", f"{what.removesuffix('_feat')}s")
    found: Tensor = parts[ids]
    return found


def _of_type(values: Mapping[Any, Any], of_type: Any, where: str) -> Any:
    if of_type not in values:
        raise UnknownNameError(f"{where}: type {of_type!r} does not exist; {known_names(of_type, values)}")
    return values[of_type]
