"""Partition book: maps DGL's numbers of nodes and edges to parts, types and local numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from hopstream.arrays import IntArray, offsets_of
from hopstream.checks import known_names, read_integer
from hopstream.compat.dgl.graphs import DEFAULT_ETYPE, DEFAULT_NTYPE, numbered
from hopstream.compat.dgl.tensors import to_array, to_ids, to_tensor
from hopstream.errors import IdRangeError, SchemaError, SettingsError, UnknownNameError
from hopstream.schema import EdgeType

if TYPE_CHECKING:
    from torch import Tensor


class PartMetadata(TypedDict):
    """Size of one part."""

    machine_id: int
    num_nodes: int
    num_edges: int


class Ranges:
    """Ranges of the numbers of nodes or of edges, over all types and within each type.

    Attributes:
        what: ``node`` or ``edge``.
        ids: Type to its id, in ascending order of ids.
        ranges: Type to int64[num_parts, 2], ``[start, stop)`` of each part's numbers over all types.
        typed: Type to int64[num_parts + 1], the offset of each part's numbers within the type.
        all_types: int64[num_parts + 1], the offset of each part's numbers over all types.
    """

    def __init__(self, what: str, ranges: Mapping[Any, Any], ids: Mapping[Any, int], num_parts: int) -> None:
        """Check and copy the ranges; raise ``SchemaError`` unless they are consecutive."""
        self.what = what
        if sorted(ids.values()) != list(range(len(ids))) or set(ranges) != set(ids):
            raise SchemaError(f"{what} types {dict(ids)} must have ids 0..n-1, and ranges; got those of {list(ranges)}")
        self.ids = {of: ids[of] for of in sorted(ids, key=ids.__getitem__)}
        self.ranges: dict[Any, IntArray] = {}
        for of in self.ids:
            array = to_array(ranges[of], f"ranges of {of!r}")
            if array.shape != (num_parts, 2) or array.dtype.kind not in "iu":
                raise SchemaError(
                    f"ranges of {of!r} are {array.dtype}{list(array.shape)}; wanted integers[{num_parts}, 2]"
                )
            self.ranges[of] = array.astype(np.int64)
        stacked = np.stack(list(self.ranges.values()), axis=1) if ids else np.zeros((num_parts, 0, 2), np.int64)
        flat = stacked.reshape(-1, 2)
        self.starts, self.stops = flat[:, 0], flat[:, 1]
        wanted = np.concatenate([[0], self.stops[:-1]])[: len(flat)]
        wrong = np.flatnonzero((self.starts != wanted) | (self.stops < self.starts))
        if len(wrong):
            part, row = divmod(int(wrong[0]), len(ids))
            raise SchemaError(
                f"ranges of {what}s must be contiguous from 0, by part and then by type: part {part} has "
                f"{flat[wrong[0]].tolist()} of {list(self.ids)[row]!r}; wanted a range from {wanted[wrong[0]]}"
            )
        self.typed = {of: offsets_of(array[:, 1] - array[:, 0]) for of, array in self.ranges.items()}
        ends = stacked[:, :, 1].max(axis=1) if ids else np.zeros(num_parts, np.int64)
        self.all_types = np.concatenate([np.zeros(1, np.int64), ends])

    def offsets(self, of: Any) -> IntArray:
        """Return int64[num_parts + 1], each part's offset in a type, or over all types where ``of`` is None."""
        return self.all_types if of is None else self.typed[of]

    def _check(self, ids: IntArray, of: Any) -> IntArray:
        total = int(self.offsets(of)[-1])
        wrong = np.flatnonzero((ids < 0) | (ids >= total))
        if len(wrong):
            known = f"{self.what}s" if of is None else f"{self.what}s of {of!r}"
            raise IdRangeError(
                f"{self.what} {ids[wrong[0]]} in position {wrong[0]} does not exist; {known} are {numbered(0, total)}"
            )
        return ids

    def parts_of(self, ids: IntArray, of: Any) -> IntArray:
        """Return the part of each number in a type, or over all types where ``of`` is None."""
        parts: IntArray = np.searchsorted(self.offsets(of)[1:], self._check(ids, of), side="right")
        return parts

    def per_type(self, numbers: IntArray) -> tuple[IntArray, IntArray]:
        """Map numbers over all types to ids of types and numbers within the types."""
        places = np.searchsorted(self.stops, self._check(numbers, None), side="right")
        parts, types = np.divmod(places, max(1, len(self.ranges)))
        offsets = np.stack(list(self.typed.values()), axis=1) if self.typed else np.zeros((1, 1), np.int64)
        return types, numbers - self.starts[places] + offsets[parts, types]

    def over_all(self, ids: IntArray, of: Any) -> IntArray:
        """Map numbers within a type to numbers over all types."""
        parts = self.parts_of(ids, of)
        numbers: IntArray = self.ranges[of][parts, 0] + ids - self.typed[of][parts]
        return numbers


class RangePartitionBook:
    """Partition book in which each part has one range of numbers of each type.

    Numbers over all types ascend by part, then by type. Numbers of a type ascend by part. Methods accept tensors,
    arrays and lists, and return tensors.
    """

    def __init__(
        self, part_id: int, num_parts: int, node_map: Mapping[str, Any], edge_map: Mapping[EdgeType, Any],
        ntypes: Mapping[str, int], etypes: Mapping[EdgeType, int],
    ) -> None:  # fmt: skip
        """Make the book of a part.

        Args:
            part_id: The part to which local numbers refer.
            num_parts: Number of parts.
            node_map: Node type to int64[num_parts, 2], ``[start, stop)`` of its numbers over all types in each part.
            edge_map: The same by edge type.
            ntypes: Node type to its id.
            etypes: Edge type to its id.

        Raises:
            SettingsError: There is no such part.
            SchemaError: The ids of types are not 0..n-1, or the ranges are not sorted and consecutive.
        """
        part_id = read_integer("part_id", part_id)
        if not 0 <= part_id < num_parts:
            raise SettingsError(f"part_id is {part_id} of {num_parts} parts; parts are numbered 0..{num_parts - 1}")
        self._part_id = part_id
        self._num_parts = num_parts
        self._nodes = Ranges("node", node_map, ntypes, num_parts)
        self._edges = Ranges("edge", edge_map, etypes, num_parts)

    @property
    def partid(self) -> int:
        """The part."""
        return self._part_id

    @property
    def ntypes(self) -> list[str]:
        """Node types, by id."""
        return list(self._nodes.ranges)

    @property
    def etypes(self) -> list[str]:
        """Relations, by id."""
        return [etype[1] for etype in self._edges.ranges]

    @property
    def canonical_etypes(self) -> list[EdgeType]:
        """Edge types, by id."""
        return list(self._edges.ranges)

    @property
    def is_homogeneous(self) -> bool:
        """Whether the book has at most one node type and at most one edge type."""
        return len(self.ntypes) <= 1 and len(self.etypes) <= 1

    @property
    def local_ntype_offset(self) -> list[int]:
        """Offsets of the node types among the part's own nodes, and the number of own nodes at the end."""
        return self._local_offsets(self._nodes)

    @property
    def local_etype_offset(self) -> list[int]:
        """Offsets of the edge types among the part's own edges, and the number of own edges at the end."""
        return self._local_offsets(self._edges)

    def _local_offsets(self, of: Ranges) -> list[int]:
        sizes = [int(stop - start) for start, stop in (ranges[self._part_id] for ranges in of.ranges.values())]
        offsets: list[int] = offsets_of(np.array(sizes, np.int64)).tolist()
        return offsets

    def num_partitions(self) -> int:
        """Return the number of parts."""
        return self._num_parts

    def metadata(self) -> list[PartMetadata]:
        """Return the numbers of nodes and edges of each part."""
        nodes, edges = (np.diff(of.all_types).tolist() for of in (self._nodes, self._edges))
        return [
            {"machine_id": part, "num_nodes": nodes[part], "num_edges": edges[part]} for part in range(self._num_parts)
        ]

    def _num_nodes(self, ntype: str = DEFAULT_NTYPE) -> int:
        return int(self._nodes.offsets(self._node_type(ntype))[-1])

    def _num_edges(self, etype: EdgeType | str = DEFAULT_ETYPE) -> int:
        return int(self._edges.offsets(self._edge_type(etype))[-1])

    def map_to_per_ntype(self, ids: Any) -> tuple[Tensor, Tensor]:
        """Map numbers of nodes over all types to ids of types and numbers within the types."""
        types, numbers = self._nodes.per_type(to_ids(ids, "ids"))
        return to_tensor(types), to_tensor(numbers)

    def map_to_per_etype(self, ids: Any) -> tuple[Tensor, Tensor]:
        """Map numbers of edges over all types to ids of types and numbers within the types."""
        types, numbers = self._edges.per_type(to_ids(ids, "ids"))
        return to_tensor(types), to_tensor(numbers)

    def map_to_homo_nid(self, ids: Any, ntype: str) -> Tensor:
        """Map numbers of nodes of a type to numbers over all types."""
        return to_tensor(self._nodes.over_all(to_ids(ids, "ids"), self._known(ntype)))

    def map_to_homo_eid(self, ids: Any, etype: EdgeType | str) -> Tensor:
        """Map numbers of edges of a type to numbers over all types."""
        return to_tensor(self._edges.over_all(to_ids(ids, "ids"), self.to_canonical_etype(etype)))

    def nid2partid(self, nids: Any, ntype: str = DEFAULT_NTYPE) -> Tensor:
        """Return the part of each node; numbers are over all types unless ``ntype`` is given."""
        return to_tensor(self._nodes.parts_of(to_ids(nids, "nids"), self._node_type(ntype)))

    def eid2partid(self, eids: Any, etype: EdgeType | str = DEFAULT_ETYPE) -> Tensor:
        """Return the part of each edge; numbers are over all types unless ``etype`` is given."""
        return to_tensor(self._edges.parts_of(to_ids(eids, "eids"), self._edge_type(etype)))

    def partid2nids(self, partid: int, ntype: str = DEFAULT_NTYPE) -> Tensor:
        """Return the numbers of a part's nodes."""
        return self._of_part(self._nodes.offsets(self._node_type(ntype)), partid)

    def partid2eids(self, partid: int, etype: EdgeType | str = DEFAULT_ETYPE) -> Tensor:
        """Return the numbers of a part's edges."""
        return self._of_part(self._edges.offsets(self._edge_type(etype)), partid)

    def _of_part(self, offsets: IntArray, partid: int) -> Tensor:
        partid = read_integer("partid", partid)
        if not 0 <= partid < self._num_parts:
            raise IdRangeError(f"partid is {partid}; parts are numbered 0..{self._num_parts - 1}")
        return to_tensor(np.arange(offsets[partid], offsets[partid + 1]))

    def nid2localnid(self, nids: Any, partid: int, ntype: str = DEFAULT_NTYPE) -> Tensor:
        """Map numbers of this part's nodes to offsets among its own nodes.

        Raises:
            SettingsError: ``partid`` is another part.
        """
        return self._local(self._nodes.offsets(self._node_type(ntype)), to_ids(nids, "nids"), partid)

    def eid2localeid(self, eids: Any, partid: int, etype: EdgeType | str = DEFAULT_ETYPE) -> Tensor:
        """Map numbers of this part's edges to offsets among its own edges.

        Raises:
            SettingsError: ``partid`` is another part.
        """
        return self._local(self._edges.offsets(self._edge_type(etype)), to_ids(eids, "eids"), partid)

    def _local(self, offsets: IntArray, ids: IntArray, partid: int) -> Tensor:
        partid = read_integer("partid", partid)
        if partid != self._part_id:
            raise SettingsError(
                f"partid is {partid}, but this is the book of part {self._part_id}; load the book of that part"
            )
        first, stop = offsets[partid : partid + 2].tolist()
        wrong = np.flatnonzero((ids < first) | (ids >= stop))
        if len(wrong):
            raise IdRangeError(
                f"number {ids[wrong[0]]} in position {wrong[0]} is not part {partid}'s, which has "
                f"{numbered(first, stop)}"
            )
        return to_tensor(ids - first)

    def to_canonical_etype(self, etype: EdgeType | str) -> EdgeType:
        """Return the edge type that a relation names.

        Raises:
            UnknownNameError: No edge type has the relation, or several have it.
        """
        found = [t for t in self.canonical_etypes if etype in (t, t[1])]
        if len(found) > 1:
            raise UnknownNameError(f"edge type {etype!r} is ambiguous: {found}; give source, relation and destination")
        if not found:
            raise UnknownNameError(f"edge type {etype!r} does not exist; {known_names(etype, self.canonical_etypes)}")
        return found[0]

    def _known(self, ntype: str) -> str:
        if ntype not in self._nodes.ranges:
            raise UnknownNameError(f"node type {ntype!r} does not exist; {known_names(ntype, self.ntypes)}")
        return ntype

    def _node_type(self, ntype: str) -> str | None:
        return None if ntype == DEFAULT_NTYPE else self._known(ntype)

    def _edge_type(self, etype: EdgeType | str) -> EdgeType | None:
        return None if etype in (DEFAULT_ETYPE, DEFAULT_ETYPE[1]) else self.to_canonical_etype(etype)
