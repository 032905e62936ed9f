"""Read access to one part of a dataset: its nodes, edges and features.

Columns are memory maps of the files. Only ``to_data`` and ``to_hetero_data`` load torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hopstream.arrays import Array, Column, IntArray
from hopstream.dataset.book import EdgeEntity, ends_of
from hopstream.dataset.halo_layout import HaloArrays, open_halo
from hopstream.dataset.key_book import KeyBook
from hopstream.dataset.layout import Dataset, EdgeArrays, PartArrays, open_dataset
from hopstream.dataset.overlays import newest_edge_ids, newest_part
from hopstream.dataset.paths import part_folder
from hopstream.errors import SettingsError
from hopstream.schema import Direction, EdgeType, GraphSchema

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch_geometric.data import Data, HeteroData


def _none() -> IntArray:
    return np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PartNodes:
    """Nodes of one type in a part: inner nodes, which it owns, and halo nodes, copies of others'.

    ``add_halo`` makes the copies; a dataset without a halo has no halo nodes.

    Attributes:
        inner_keys: int64[rows], keys (original ids) of the nodes that the part owns, ascending.
        inner_ids: int64[rows], their ids.
        features: Feature name to column of ``rows`` rows.
        masks: Split name to bool[rows]; empty if the folder of any other part is missing, because splits need all.
        halo_keys: int64[n], keys of halo nodes.
        halo_ids: int64[n], their ids.
        halo_parts: int64[n], the parts that own them.
        halo_features: Feature name to column of n rows. Empty if the halo copies edges of some nodes and features of
            others.
        part: Number of the part.
    """

    inner_keys: IntArray
    inner_ids: IntArray
    features: Mapping[str, Column]
    masks: Mapping[str, Array]
    part: int
    halo_keys: IntArray = field(default_factory=_none)
    halo_ids: IntArray = field(default_factory=_none)
    halo_parts: IntArray = field(default_factory=_none)
    halo_features: Mapping[str, Column] = field(default_factory=dict)

    @property
    def num_inner(self) -> int:
        """Number of nodes that the part owns."""
        return len(self.inner_keys)

    @property
    def keys(self) -> IntArray:
        """int64[n], keys of inner nodes, then of halo nodes."""
        return np.concatenate([self.inner_keys, self.halo_keys])

    @property
    def part_ids(self) -> IntArray:
        """int64[n], the part that owns each of ``keys``."""
        return np.concatenate([np.full(self.num_inner, self.part, np.int64), self.halo_parts])

    @property
    def is_inner(self) -> Array:
        """bool[n], whether the part owns each of ``keys``."""
        return np.arange(self.num_inner + len(self.halo_keys)) < self.num_inner


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PartEdges:
    """Edges of one type that a part holds in one direction, in stored order, without its halo's edges.

    Attributes:
        keys: int64[n], edge keys (original ids), or None if the dataset does not keep them.
        ids: int64[n], edge ids.
        src_ids: int64[n], ids of the sources.
        dst_ids: int64[n], ids of the destinations.
        src_parts: int64[n], the parts that own the sources.
        dst_parts: int64[n], the parts that own the destinations.
        src_keys: int64[n], keys of the sources. None if they are unknown: the part does not store keys of neighbours,
            and the folder of a part that owns a source is missing.
        dst_keys: int64[n], keys of the destinations, or None likewise.
        features: Feature name to column of n rows.
        times: int64[n], or None if the edges have no times.
    """

    keys: IntArray | None
    ids: IntArray
    src_ids: IntArray
    dst_ids: IntArray
    src_parts: IntArray
    dst_parts: IntArray
    src_keys: IntArray | None
    dst_keys: IntArray | None
    features: Mapping[str, Column]
    times: IntArray | None

    @property
    def is_inner(self) -> Array:
        """bool[n], whether one part owns both ends."""
        return np.equal(self.src_parts, self.dst_parts)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Partition:
    """Part of a dataset.

    Attributes:
        part: Number of the part.
        num_parts: Number of parts of the dataset.
        direction: ``in``: a part holds the edges of its destination nodes. ``out``: of its source nodes.
        schema: Types and features.
        nodes: Node type to nodes.
        edges: Edge type to edges.
    """

    part: int
    num_parts: int
    direction: Direction
    schema: GraphSchema
    nodes: Mapping[str, PartNodes]
    edges: Mapping[EdgeType, PartEdges]

    def to_data(self) -> Data:
        """Convert the inner nodes and the edges between them to PyG's ``Data``; see ``to_hetero_data``.

        Raises:
            SettingsError: The graph has types, or a feature has the name of an attribute.
            ImportError: torch or torch_geometric is not installed.
        """
        if not self.schema.is_homogeneous:
            types = f"node types {list(self.schema.nodes)} and {len(self.schema.edges)} edge types"
            raise SettingsError(f"to_data needs a graph without types; this one has {types}; use to_hetero_data")
        from hopstream.load.pyg_partition import partition_to_data

        return partition_to_data(self)

    def to_hetero_data(self) -> HeteroData:
        """Convert the inner nodes and the edges between them to PyG's ``HeteroData``.

        Edges to nodes of other parts are left out, because those nodes have no features here. ``n_id`` and ``e_id`` are
        the keys of nodes and edges, and splits become masks. Columns are copied.

        Raises:
            SettingsError: A feature has the name of an attribute.
            ImportError: torch or torch_geometric is not installed.
        """
        from hopstream.load.pyg_partition import partition_to_hetero_data

        return partition_to_hetero_data(self)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PartFeatures:
    """Features of one part.

    Attributes:
        nodes: Node type to feature name to column, one row for each node that the part owns.
        edges: Edge type to feature name to column, one row for each edge that the part holds.
    """

    nodes: Mapping[str, Mapping[str, Column]]
    edges: Mapping[EdgeType, Mapping[str, Column]]


def read_part(root: str | Path, part: int, *, direction: Direction | None = None) -> Partition:
    """Open one part of a dataset; the folders of other parts may be missing.

    Args:
        root: The dataset.
        part: Number of the part.
        direction: Direction of the edges. None: ``in`` if the dataset has it, else ``out``.

    Raises:
        UnknownNameError: The dataset has no such part.
        SettingsError: The dataset does not have the direction.
        FormatError: The folder is no dataset, or a file is missing, truncated, or contradicts the manifest.
        ChecksumError: The manifest has changed since it was written.
    """
    dataset = open_dataset(root)
    arrays = dataset.open_part(part)
    newest = newest_part(arrays)
    manifest = dataset.manifest
    direction = _direction(dataset, direction)
    book, halo = KeyBook(dataset), open_halo(dataset, part)
    return Partition(
        part=part,
        num_parts=manifest.book.num_parts,
        direction=direction,
        schema=manifest.schema,
        nodes={t: _nodes(book, arrays, halo, t) for t in manifest.schema.nodes},
        edges={
            t: _edges(book, newest, newest_edge_ids(book.ranges, arrays, (t, direction)), (t, direction))
            for t in manifest.schema.edges
        },
    )


def read_part_features(
    root: str | Path, part: int, *, load_nodes: bool = True, load_edges: bool = True, direction: Direction | None = None
) -> PartFeatures:
    """Read the features of one part as memory maps; raises the errors of ``read_part``.

    Args:
        root: The dataset.
        part: Number of the part.
        load_nodes: Read features of nodes.
        load_edges: Read features of edges.
        direction: Direction whose order the edges' features have; see ``read_part``.
    """
    dataset = open_dataset(root)
    arrays, direction = newest_part(dataset.open_part(part)), _direction(dataset, direction)
    return PartFeatures(
        nodes=arrays.node_features if load_nodes else {},
        edges={t: e.features for (t, d), e in arrays.edges.items() if d == direction} if load_edges else {},
    )


def _direction(dataset: Dataset, direction: Direction | None) -> Direction:
    known = dataset.manifest.directions
    if direction is not None and direction not in known:
        raise SettingsError(f"direction is {direction!r}; {dataset.root} has {' and '.join(known)}")
    return direction or known[0]


def _nodes(book: KeyBook, arrays: PartArrays, halo: HaloArrays | None, node_type: str) -> PartNodes:
    first, stop = book.node_range(node_type, arrays.part)
    keys = arrays.node_keys[node_type]
    halo_ids, halo_keys, halo_features = _halo_nodes(halo, node_type)
    return PartNodes(
        inner_keys=keys,
        inner_ids=np.arange(first, stop, dtype=np.int64),
        features=arrays.node_features[node_type],
        masks=_masks(book.dataset, node_type, keys),
        part=arrays.part,
        halo_keys=halo_keys,
        halo_ids=halo_ids,
        halo_parts=book.ranges.parts_of(node_type, halo_ids),
        halo_features=halo_features,
    )


def _halo_nodes(halo: HaloArrays | None, node_type: str) -> tuple[IntArray, IntArray, Mapping[str, Column]]:
    """Return ids and keys of all halo nodes of a type, and features if the halo has them for all nodes."""
    if halo is None:
        return _none(), _none(), {}
    ids, keys = halo.node_ids.get(node_type, _none()), halo.node_keys.get(node_type, _none())
    cached = halo.cached.get(node_type)
    if cached is None:
        return ids, keys, {}
    if np.array_equal(ids, cached.ids) or not len(ids):
        return cached.ids, cached.keys, cached.features
    both, rows = np.unique(np.concatenate([ids, cached.ids]), return_index=True)
    return both, np.concatenate([keys, cached.keys])[rows], {}


def _masks(dataset: Dataset, node_type: str, keys: IntArray) -> dict[str, NDArray[np.bool_]]:
    """Split name to bool mask over the keys; empty if the folder of any part is missing."""
    names, parts = dataset.manifest.schema.splits.get(node_type, ()), range(dataset.manifest.book.num_parts)
    if not names or not all((dataset.root / part_folder(part)).is_dir() for part in parts):
        return {}
    splits = [dataset.open_part(part).splits[node_type] for part in parts]
    return {name: np.isin(keys, np.concatenate([split[name] for split in splits])) for name in names}


def _edges(book: KeyBook, arrays: PartArrays, ids: IntArray, entity: EdgeEntity) -> PartEdges:
    edge_type, direction = entity
    edges = arrays.edges[entity]
    own_type, other_type = ends_of(edge_type, direction)
    rows = np.repeat(np.arange(len(edges.indptr) - 1), np.diff(edges.indptr))
    own_ids = rows + book.node_range(own_type, arrays.part)[0]
    other_ids = edges.indices.astype(np.int64)
    own_parts = np.full(len(rows), arrays.part, np.int64)
    other_parts = book.ranges.parts_of(other_type, other_ids)
    own_keys = arrays.node_keys[own_type][rows]
    other_keys = _keys_of_others(book, edges, other_type, other_parts, other_ids)
    own: tuple[IntArray, IntArray, IntArray | None] = (own_ids, own_parts, own_keys)
    other = (other_ids, other_parts, other_keys)
    (src_ids, src_parts, src_keys), (dst_ids, dst_parts, dst_keys) = (other, own) if direction == "in" else (own, other)
    return PartEdges(
        keys=None if edges.keys is None else edges.keys.astype(np.int64, copy=False),
        ids=ids,
        src_ids=src_ids,
        dst_ids=dst_ids,
        src_parts=src_parts,
        dst_parts=dst_parts,
        src_keys=src_keys,
        dst_keys=dst_keys,
        features=edges.features,
        times=edges.times,
    )


def _keys_of_others(book: KeyBook, edges: EdgeArrays, node_type: str, parts: IntArray, ids: Array) -> IntArray | None:
    if edges.neighbor_keys is not None:
        return edges.neighbor_keys.astype(np.int64)
    if not all((book.dataset.root / part_folder(part)).is_dir() for part in np.unique(parts).tolist()):
        return None
    return book.keys_of(node_type, ids)
