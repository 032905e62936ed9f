"""``DistGraph``: a served dataset, or one on this machine, with the names of DGL's distributed graph.

Nodes and edges are numbered by key: the numbers that the graph had before it was cut. DGL has new numbers here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import Array, IntArray
from hopstream.checks import known_names, read_integer
from hopstream.compat.dgl.convert import dgl_names
from hopstream.compat.dgl.graphs import DEFAULT_NTYPE
from hopstream.compat.dgl.part_files import mask_name
from hopstream.compat.dgl.tensors import to_ids, to_tensor
from hopstream.dataset.paths import MANIFEST
from hopstream.errors import IdRangeError, SettingsError, UnknownNameError
from hopstream.ingest.source_paths import is_dgl_config
from hopstream.load.rank_splits import rank_nodes
from hopstream.schema import EdgeType
from hopstream.store import Source, Store, open_store
from hopstream.store.contract import KEY, FetchRequest

if TYPE_CHECKING:
    from torch import Tensor

    from hopstream.store.settings import StoreSettings


@dataclass(frozen=True, slots=True)
class DistTensor:
    """A feature of all nodes of a type; rows are fetched from the parts that own them.

    Attributes:
        store: The graph's store.
        node_type: The node type, as the dataset names it.
        name: The feature.
    """

    store: Store
    node_type: str
    name: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of nodes, and shape of a row."""
        return (len(self), *self.store.schema.nodes[self.node_type][self.name].shape)

    @property
    def dtype(self) -> Any:
        """The dtype, as a tensor's."""
        return self[np.empty(0, np.int64)].dtype

    def __len__(self) -> int:
        """Return the number of nodes."""
        return self.store.book.num_ids(self.node_type)

    def __getitem__(self, nodes: Any) -> Tensor:
        """Return the rows of some nodes: int[n] keys, or a slice of keys.

        Raises:
            IdRangeError: There is no such node.
        """
        keys = np.arange(len(self))[nodes] if isinstance(nodes, slice) else to_ids(nodes, "nodes")
        ids = self.store.lookup(self.node_type, keys)
        request = FetchRequest(entity=self.node_type, names=(self.name,), ids=ids)
        return to_tensor(cast(Array, self.store.fetch([request])[0][self.name]))


class _Data(Mapping[str, Any]):
    """Data of the nodes of a type: features as ``DistTensor``, splits as masks."""

    def __init__(self, store: Store, node_type: str) -> None:
        self._store, self._type = store, node_type
        features = store.schema.nodes[node_type]
        self._features = [name for name, feature in features.items() if feature.is_fixed_width]
        self._splits = {mask_name(split): split for split in store.schema.splits.get(node_type, ())}

    def __getitem__(self, name: str) -> Any:
        if name in self._splits:
            keys = self._store.split(self._type, self._splits[name])
            return _mask(self._store.book.num_ids(self._type), keys)
        if name not in self._features:
            raise UnknownNameError(f"nodes of {self._type!r} have no data {name!r}; {known_names(name, list(self))}")
        return DistTensor(self._store, self._type, name)

    def __iter__(self) -> Iterator[str]:
        return iter([*self._features, *self._splits])

    def __len__(self) -> int:
        return len(self._features) + len(self._splits)


class _EdgeData(Mapping[str, Any]):
    """Data of the edges of a type: the masks of its splits."""

    def __init__(self, store: Store, edge_type: EdgeType) -> None:
        self._store, self._type = store, edge_type
        self._splits = {mask_name(split): split for split in store.schema.edge_splits.get(edge_type, ())}

    def __getitem__(self, name: str) -> Any:
        if name not in self._splits:
            raise UnknownNameError(
                f"edges of {self._type} have no data {name!r} here; {known_names(name, list(self._splits))}; features "
                "of edges are data of blocks: NeighborSampler(…, prefetch_edge_feats=[…])"
            )
        return _mask(self._store.book.num_edges(self._type), self._store.edge_split(self._type, self._splits[name]))

    def __iter__(self) -> Iterator[str]:
        return iter(self._splits)

    def __len__(self) -> int:
        return len(self._splits)


def _mask(num_rows: int, keys: IntArray) -> Tensor:
    mask = np.zeros(num_rows, np.bool_)
    mask[keys] = True
    return to_tensor(mask)


@dataclass(frozen=True, slots=True)
class _OfType:
    data: Mapping[str, Any]


class DistGraph:
    """A graph whose parts are on this machine or on servers; read-only.

    Attributes:
        store: The open dataset, a source for every loader.
        graph_name: The graph's name.
    """

    def __init__(
        self, graph_name: str, gpb: None = None, part_config: Source | None = None,
        *, store_settings: StoreSettings | None = None,
    ) -> None:  # fmt: skip
        """Open the dataset.

        Args:
            graph_name: A name for messages; DGL finds servers by it.
            gpb: None: ``get_partition_book`` gives the book.
            part_config: The folder of a dataset, a ``cluster.json``, addresses of servers, an open store, or DGL's JSON
                file in the folder of a dataset, as ``dispatch_data`` writes it.
            store_settings: Deadline, token and certificates for servers.

        Raises:
            SettingsError: ``gpb`` is given, ``part_config`` is not, or it is DGL's JSON file without a dataset.
            FormatError: ``part_config`` is no dataset and no cluster file.
            StoreError: A server cannot be reached, or refused to answer.
        """
        if gpb is not None:
            raise SettingsError("gpb is given; the dataset has its own book: leave it out")
        if part_config is None:
            raise SettingsError("part_config is not given; name the dataset's folder, cluster.json or servers")
        if isinstance(part_config, str | Path) and "://" not in str(part_config) and is_dgl_config(Path(part_config)):
            folder = Path(part_config).parent
            if not (folder / MANIFEST).is_file():
                raise SettingsError(
                    f"{part_config} is DGL's JSON file without a dataset beside it; make one with hopstream ingest "
                    f"{part_config} --out DATASET, and give its folder"
                )
            part_config = folder
        self.graph_name = graph_name
        self.store = open_store(part_config, store_settings)
        self._owns_store = self.store is not part_config
        self._node_names, self._edge_names = dgl_names(self.store.schema)

    @property
    def ntypes(self) -> list[str]:
        """Node types."""
        return list(self._node_names.values())

    @property
    def canonical_etypes(self) -> list[EdgeType]:
        """Edge types, as source, relation and destination."""
        return list(self._edge_names.values())

    @property
    def etypes(self) -> list[str]:
        """Relations."""
        return [t[1] for t in self._edge_names.values()]

    def node_type(self, ntype: str | None = None) -> str:
        """Return the dataset's name of a node type; the type is optional in a graph with one node type.

        Raises:
            UnknownNameError: There is no such type, or it is not given and there are several.
        """
        found = [ours for ours, theirs in self._node_names.items() if ntype in (None, theirs)]
        if len(found) != 1:
            raise UnknownNameError(f"node type is {ntype!r}; {known_names(ntype, self.ntypes)}")
        return found[0]

    def edge_type(self, etype: EdgeType | str | None = None) -> EdgeType:
        """Return the dataset's name of an edge type or relation; optional in a graph with one edge type.

        Raises:
            UnknownNameError: There is no such type, or it is not given or ambiguous and there are several.
        """
        found = [ours for ours, theirs in self._edge_names.items() if etype in (None, theirs, theirs[1])]
        if len(found) != 1:
            raise UnknownNameError(f"edge type is {etype!r}; {known_names(etype, self.canonical_etypes)}")
        return found[0]

    def num_nodes(self, ntype: str | None = None) -> int:
        """Return the number of nodes of a type, or of all types."""
        types = self._node_names if ntype is None else [self.node_type(ntype)]
        return sum(self.store.book.num_ids(t) for t in types)

    def num_edges(self, etype: EdgeType | str | None = None) -> int:
        """Return the number of edges of a type, or of all types."""
        types = self._edge_names if etype is None else [self.edge_type(etype)]
        return sum(self.store.book.num_edges(t) for t in types)

    number_of_nodes, number_of_edges = num_nodes, num_edges

    @property
    def nodes(self) -> Mapping[str, Any]:
        """Data by node type: ``g.nodes["paper"].data["feat"]``."""
        return {theirs: _OfType(_Data(self.store, ours)) for ours, theirs in self._node_names.items()}

    @property
    def edges(self) -> Mapping[EdgeType | str, Any]:
        """Data by edge type or relation: ``g.edges["cites"].data["train_mask"]``."""
        found: dict[EdgeType | str, Any] = {}
        for ours, theirs in self._edge_names.items():
            found[theirs] = _OfType(_EdgeData(self.store, ours))
            if self.etypes.count(theirs[1]) == 1:
                found[theirs[1]] = found[theirs]
        return found

    @property
    def ndata(self) -> Mapping[str, Any]:
        """Data of the nodes of a graph with one node type."""
        return _Data(self.store, self.node_type())

    @property
    def edata(self) -> Mapping[str, Any]:
        """Data of the edges of a graph with one edge type."""
        return _EdgeData(self.store, self.edge_type())

    def get_partition_book(self) -> DistBook:
        """Return the book, which maps nodes to parts."""
        return DistBook(self)

    def close(self) -> None:
        """Close the dataset, unless it was given as an open store."""
        if self._owns_store:
            self.store.close()

    def __enter__(self) -> DistGraph:
        """Return the graph; the ``with`` block closes it."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close the dataset."""
        self.close()

    def __repr__(self) -> str:
        """Return the numbers of nodes and edges."""
        nodes = {t: self.num_nodes(t) for t in self.ntypes}
        edges = {t: self.num_edges(t) for t in self.canonical_etypes}
        return f"DistGraph({self.graph_name!r}, num_nodes={nodes}, num_edges={edges})"


@dataclass(frozen=True, slots=True)
class DistBook:
    """The part of each node of a ``DistGraph``, by key.

    Attributes:
        graph: The graph.
    """

    graph: DistGraph

    def num_partitions(self) -> int:
        """Return the number of parts."""
        return self.graph.store.book.num_parts

    def nid2partid(self, nids: Any, ntype: str = DEFAULT_NTYPE) -> Tensor:
        """Return int64[n], the part of each node.

        Raises:
            IdRangeError: There is no such node.
        """
        store, node_type = self.graph.store, self.graph.node_type(ntype)
        parts = store.book.parts_of(node_type, store.lookup(node_type, to_ids(nids, "nids")))
        return to_tensor(parts.astype(np.int64))

    def partid2nids(self, partid: int, ntype: str = DEFAULT_NTYPE) -> Tensor:
        """Return int64[n], the keys of a part's nodes.

        Raises:
            IdRangeError: There is no such part.
        """
        partid = read_integer("partid", partid)
        store, node_type = self.graph.store, self.graph.node_type(ntype)
        if not 0 <= partid < self.num_partitions():
            raise IdRangeError(f"partid is {partid}; parts are numbered 0..{self.num_partitions() - 1}")
        first, stop = store.book.offsets(node_type)[partid : partid + 2].tolist()
        request = FetchRequest(entity=node_type, names=(KEY,), ids=np.arange(first, stop))
        return to_tensor(cast(Array, store.fetch([request])[0][KEY]))

    def share(self, mask: NDArray[np.bool_], ntype: str, rank: int, num_trainers: int) -> IntArray:
        """Return int64[n], the keys of one trainer's share of the nodes in a mask, mostly of its own parts."""
        seeds = (self.graph.node_type(ntype), mask)
        return rank_nodes(
            self.graph.store, seeds, rank=rank, world_size=num_trainers, by="locality", remainder="uneven"
        )  # fmt: skip
