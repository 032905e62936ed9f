"""``DGLGraph`` of this package: nodes and edges by type, each with data by name.

It has the members that partitioning and inspection of parts need, and no message passing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hopstream.arrays import IntArray
from hopstream.checks import check_int
from hopstream.compat.dgl.tensors import to_array, to_ids, to_tensor
from hopstream.errors import IdRangeError, SchemaError, SettingsError, UnknownNameError
from hopstream.ingest.user_columns import MAX_KEY
from hopstream.schema import EdgeType, is_edge_type

if TYPE_CHECKING:
    from torch import Tensor

NID = EID = "_ID"
NTYPE = ETYPE = "_TYPE"
ALL = "__ALL__"
DEFAULT_NTYPE = "_N"
DEFAULT_ETYPE: EdgeType = ("_N", "_E", "_N")


def numbered(first: int, stop: int) -> str:
    """Format a range of numbers for messages."""
    return f"{first}..{stop - 1}" if first < stop else "none"


class Frame(MutableMapping[str, Any]):
    """Data of the nodes or edges of a type: name to tensor with a row for each of them."""

    def __init__(self, num_rows: int, what: str) -> None:
        """Start without data."""
        self.num_rows = num_rows
        self._what = what
        self._columns: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        """Return the tensor of a name."""
        if name not in self._columns:
            raise UnknownNameError(f"{self._what} have no data {name!r}; they have {list(self._columns)}")
        return self._columns[name]

    def __setitem__(self, name: str, value: Any) -> None:
        """Set the tensor of a name.

        Raises:
            SchemaError: The tensor does not have one row per node or edge.
        """
        tensor = value if hasattr(value, "detach") else to_tensor(to_array(value, name))
        if not tensor.ndim or len(tensor) != self.num_rows:
            raise SchemaError(f"{name!r} has shape {list(tensor.shape)}; there are {self.num_rows} {self._what}")
        self._columns[name] = tensor

    def __delitem__(self, name: str) -> None:
        """Remove the tensor of a name."""
        self[name]
        del self._columns[name]

    def __iter__(self) -> Iterator[str]:
        """Yield the names in the order in which they were set."""
        return iter(self._columns)

    def __len__(self) -> int:
        """Return the number of names."""
        return len(self._columns)

    def __repr__(self) -> str:
        """Return names, shapes of rows and dtypes, as DGL prints them."""
        schemes = (f"{n!r}: Scheme(shape={tuple(t.shape[1:])}, dtype={t.dtype})" for n, t in self._columns.items())
        return "{" + ", ".join(schemes) + "}"


@dataclass(frozen=True, slots=True)
class OfType:
    """Data of one type."""

    data: Frame


class NodeView:
    """``g.nodes``: data by node type; a call returns the numbers of nodes."""

    def __init__(self, graph: DGLGraph) -> None:
        """Make a view of a graph."""
        self._graph = graph

    def __getitem__(self, ntype: str) -> OfType:
        """Return the data of a node type."""
        return OfType(self._graph.node_frame(ntype))

    def __call__(self, ntype: str | None = None) -> Tensor:
        """Return int64[n], the numbers of the nodes of a type."""
        return to_tensor(np.arange(self._graph.node_frame(ntype).num_rows))


class EdgeView:
    """``g.edges``: data by edge type; a call returns the ends of edges."""

    def __init__(self, graph: DGLGraph) -> None:
        """Make a view of a graph."""
        self._graph = graph

    def __getitem__(self, etype: EdgeType | str) -> OfType:
        """Return the data of an edge type."""
        return OfType(self._graph.edge_frame(etype))

    def __call__(
        self, form: str = "uv", order: str | None = None, etype: EdgeType | str | None = None
    ) -> tuple[Tensor, ...] | Tensor:
        """Return sources and destinations of edges, their numbers, or all three, as ``form`` says.

        Args:
            form: ``uv`` for sources and destinations, ``eid`` for numbers, ``all`` for all three.
            order: ``eid`` or None; both are the order of the edges' numbers.
            etype: The edge type; optional in a graph with one edge type.
        """
        src, dst = self._graph.ends(etype)
        numbers = to_tensor(np.arange(len(src)))
        if form not in ("uv", "eid", "all") or order not in (None, "eid"):
            raise UnknownNameError(f"form is {form!r} and order {order!r}; wanted uv, eid or all, and eid or None")
        if form == "eid":
            return numbers
        ends = (to_tensor(src), to_tensor(dst))
        return ends if form == "uv" else (*ends, numbers)


class DGLGraph:
    """A graph of typed nodes and edges with data; ``graph`` and ``heterograph`` make it."""

    def __init__(self, num_nodes: Mapping[str, int], ends: Mapping[EdgeType, tuple[IntArray, IntArray]]) -> None:
        """Take the number of nodes of each type, and the ends of edges of each type.

        Raises:
            IdRangeError: An edge names a node that does not exist.
        """
        self._ends = dict(ends)
        self._node_frames = {t: Frame(number, f"nodes of {t!r}") for t, number in num_nodes.items()}
        self._edge_frames = {t: Frame(len(src), f"edges of {t!r}") for t, (src, _) in ends.items()}
        for etype, pair in ends.items():
            for ntype, numbers in zip((etype[0], etype[2]), pair, strict=True):
                wrong = np.flatnonzero((numbers < 0) | (numbers >= num_nodes[ntype]))
                if len(wrong):
                    side = "from" if numbers is pair[0] else "to"
                    raise IdRangeError(
                        f"edge {wrong[0]} of {etype!r} leads {side} node {numbers[wrong[0]]}; nodes of {ntype!r} are "
                        f"{numbered(0, num_nodes[ntype])}"
                    )

    @property
    def ntypes(self) -> list[str]:
        """Node types."""
        return list(self._node_frames)

    @property
    def canonical_etypes(self) -> list[EdgeType]:
        """Edge types, as source, relation and destination."""
        return list(self._ends)

    @property
    def etypes(self) -> list[str]:
        """Relations."""
        return [etype[1] for etype in self._ends]

    @property
    def is_homogeneous(self) -> bool:
        """Whether there is one node type and one edge type."""
        return len(self._node_frames) == len(self._ends) == 1

    def num_nodes(self, ntype: str | None = None) -> int:
        """Return the number of nodes of a type, or of all types."""
        frames = self._node_frames.values() if ntype is None else [self.node_frame(ntype)]
        return sum(frame.num_rows for frame in frames)

    def num_edges(self, etype: EdgeType | str | None = None) -> int:
        """Return the number of edges of a type, or of all types."""
        frames = self._edge_frames.values() if etype is None else [self.edge_frame(etype)]
        return sum(frame.num_rows for frame in frames)

    def in_degrees(self, v: Any = ALL, etype: EdgeType | str | None = None) -> Tensor | int:
        """Return int64[n], the number of edges of a type that enter each node.

        Args:
            v: Nodes of the destinations' type; one integer gives one count. By default all nodes.
            etype: The edge type; optional in a graph with one edge type.

        Raises:
            IdRangeError: There is no such node.
            UnknownNameError: There is no such edge type, or it is not given and there are several.
        """
        of = self.to_canonical_etype(etype)
        return self._degrees(self._ends[of][1], of[2], v)

    def out_degrees(self, u: Any = ALL, etype: EdgeType | str | None = None) -> Tensor | int:
        """Return int64[n], the number of edges of a type that leave each node; see ``in_degrees``."""
        of = self.to_canonical_etype(etype)
        return self._degrees(self._ends[of][0], of[0], u)

    def _degrees(self, ends: IntArray, ntype: str, nodes: Any) -> Tensor | int:
        num_nodes = self.num_nodes(ntype)
        counts = np.bincount(ends, minlength=num_nodes)
        if isinstance(nodes, str) and nodes == ALL:
            return to_tensor(counts)
        ids = to_ids(nodes, "nodes")
        wrong = np.flatnonzero((ids < 0) | (ids >= num_nodes))
        if len(wrong):
            there = f"nodes of {ntype!r} are {numbered(0, num_nodes)}"
            raise IdRangeError(f"node {ids[wrong[0]]} in position {wrong[0]} does not exist; {there}")
        return int(counts[ids[0]]) if isinstance(nodes, int) else to_tensor(counts[ids])

    def __getattr__(self, name: str) -> Any:
        """Raise an error that says where the rest of DGL is.

        Raises:
            AttributeError: Always.
        """
        raise AttributeError(
            f"graphs of hopstream.compat.dgl have no {name!r}: they only hold nodes, edges and data for partitioning; "
            "batches to train on come from hopstream.NeighborLoader, and the rest of DGL from dgl itself"
        )

    def to_canonical_etype(self, etype: EdgeType | str | None) -> EdgeType:
        """Return the edge type that a relation names, or the only edge type.

        Raises:
            UnknownNameError: No edge type has the relation, or several have it.
        """
        found = [t for t in self._ends if etype in (None, t[1]) or t == etype]
        if len(found) != 1:
            what = "must be given" if etype is None else f"{etype!r} names {len(found)} types"
            raise UnknownNameError(f"edge type {what}; known: {self.canonical_etypes}")
        return found[0]

    def ends(self, etype: EdgeType | str | None = None) -> tuple[IntArray, IntArray]:
        """Return int64[n] and int64[n], sources and destinations of the edges of a type."""
        return self._ends[self.to_canonical_etype(etype)]

    def node_frame(self, ntype: str | None = None) -> Frame:
        """Return the data of a node type; the type is optional in a graph with one node type.

        Raises:
            UnknownNameError: There is no such type, or it is not given and there are several.
        """
        if ntype is None and len(self._node_frames) == 1:
            return next(iter(self._node_frames.values()))
        if ntype not in self._node_frames:
            what = "must be given" if ntype is None else f"{ntype!r} is not known"
            raise UnknownNameError(f"node type {what}; known: {self.ntypes}")
        return self._node_frames[ntype]

    def edge_frame(self, etype: EdgeType | str | None = None) -> Frame:
        """Return the data of an edge type; the type is optional in a graph with one edge type."""
        return self._edge_frames[self.to_canonical_etype(etype)]

    @property
    def nodes(self) -> NodeView:
        """Data by node type."""
        return NodeView(self)

    @property
    def edges(self) -> EdgeView:
        """Data by edge type; a call returns ends of edges."""
        return EdgeView(self)

    @property
    def ndata(self) -> Frame:
        """Data of the nodes of a graph with one node type."""
        return self.node_frame()

    @property
    def edata(self) -> Frame:
        """Data of the edges of a graph with one edge type."""
        return self.edge_frame()

    def __repr__(self) -> str:
        """Return counts and data, as DGL prints them."""
        if self.is_homogeneous:
            return (
                f"Graph(num_nodes={self.num_nodes()}, num_edges={self.num_edges()},\n"
                f"      ndata_schemes={self.ndata!r}\n      edata_schemes={self.edata!r})"
            )
        nodes = {t: self.num_nodes(t) for t in self.ntypes}
        return f"Graph(num_nodes={nodes},\n      num_edges={ {t: self.num_edges(t) for t in self._ends} })"


def graph(
    data: Any, *, num_nodes: int | None = None, idtype: Any = None, device: Any = None, row_sorted: bool = False,
    col_sorted: bool = False,
) -> DGLGraph:  # fmt: skip
    """Make a graph of one node type and one edge type.

    Args:
        data: Sources and destinations: a pair of int tensors, arrays or lists, or an array of two rows.
        num_nodes: Number of nodes. By default one more than the largest number in an edge.
        idtype: None or ``torch.int64``.
        device: None or ``cpu``.
        row_sorted: Whether sources ascend. DGL uses this; it has no effect here.
        col_sorted: Whether destinations ascend. It has no effect here.

    Raises:
        SettingsError: ``idtype`` or ``device`` has another value.
        SchemaError: Sources and destinations are not integers of one length.
        IdRangeError: An edge names a node that does not exist.
    """
    del row_sorted, col_sorted
    num_nodes_dict = None if num_nodes is None else {DEFAULT_NTYPE: num_nodes}
    return heterograph({DEFAULT_ETYPE: data}, num_nodes_dict, idtype, device)


def heterograph(
    data_dict: Mapping[EdgeType, Any], num_nodes_dict: Mapping[str, int] | None = None, idtype: Any = None,
    device: Any = None,
) -> DGLGraph:  # fmt: skip
    """Make a graph of several types; types are numbered in the order of their names, as in DGL.

    Args:
        data_dict: ``(source type, relation, destination type)`` to sources and destinations.
        num_nodes_dict: Node type to its number of nodes. By default one more than the largest number in an edge.
        idtype: None or ``torch.int64``.
        device: None or ``cpu``.

    Raises:
        SettingsError: ``idtype`` or ``device`` has another value.
        SchemaError: Sources and destinations are not integers of one length.
        IdRangeError: An edge names a node that does not exist.
    """
    _check_placement(idtype, device)
    _check_types(data_dict, num_nodes_dict)
    ends = {etype: _ends_of(etype, data_dict[etype]) for etype in sorted(data_dict)}
    if num_nodes_dict is None:
        num_nodes: dict[str, int] = {}
        for (src_type, _, dst_type), pair in ends.items():
            for ntype, numbers in zip((src_type, dst_type), pair, strict=True):
                num_nodes[ntype] = max(num_nodes.get(ntype, 0), int(numbers.max(initial=-1)) + 1)
    else:
        num_nodes = dict(num_nodes_dict)
    missing = [t for src_type, _, dst_type in ends for t in (src_type, dst_type) if t not in num_nodes]
    if missing:
        raise UnknownNameError(f"num_nodes_dict has no node type {missing[0]!r}; it has {list(num_nodes)}")
    return DGLGraph({t: num_nodes[t] for t in sorted(num_nodes)}, ends)


def _check_placement(idtype: object, device: object) -> None:
    for name, value, only in (("idtype", idtype, "torch.int64"), ("device", device, "cpu")):
        if value is not None and str(value) != only:
            raise SettingsError(f"{name} is {value}; numbers are {only} here: leave it out")


def _check_types(data_dict: object, num_nodes_dict: object) -> None:
    if not isinstance(data_dict, Mapping) or not isinstance(num_nodes_dict, Mapping | None):
        raise SchemaError(
            f"a {type(data_dict).__name__} and a {type(num_nodes_dict).__name__} are given; wanted a dict of edges by "
            "edge type, and one of numbers of nodes by node type, or None"
        )
    for etype in data_dict:
        if not is_edge_type(etype):
            raise SchemaError(f"edge type is {etype!r}; wanted (source type, relation, destination type)")
    for ntype, number in (num_nodes_dict or {}).items():
        check_int(f"the number of nodes of {ntype!r}", number, 0, MAX_KEY)


def _ends_of(etype: EdgeType, data: Any) -> tuple[IntArray, IntArray]:
    is_list_of_pairs = isinstance(data, list) and any(isinstance(item, tuple) for item in data)
    if is_list_of_pairs or not hasattr(data, "__len__") or len(data) != 2:
        raise SchemaError(
            f"edges of {etype!r} are a {type(data).__name__}; wanted (sources, destinations), two int tensors, arrays "
            "or lists of one length; a list of pairs becomes that by tuple(zip(*pairs))"
        )
    src, dst = (to_ids(end, f"edges of {etype!r}") for end in data)
    if len(src) != len(dst):
        raise SchemaError(f"edges of {etype!r} have {len(src)} sources and {len(dst)} destinations")
    return src, dst
