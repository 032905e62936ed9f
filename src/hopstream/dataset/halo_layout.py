"""Opens the halo of a part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from hopstream.arrays import Array, Column, IntArray, RaggedArray, open_array
from hopstream.dataset.halo_record import Halo, cached_path, edge_column_names, edge_path, halo_root, node_path
from hopstream.dataset.layout import Dataset, EdgeArrays
from hopstream.dataset.paths import feature_paths
from hopstream.dataset.stored_columns import weights_of
from hopstream.dataset.verify import check_ascending
from hopstream.errors import FormatError
from hopstream.schema import Direction, EdgeType, FeatureSchema


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CachedArrays:
    """Nodes of one type with copied features.

    Attributes:
        ids: int64[n], ascending.
        keys: int64[n].
        features: Feature name to column of n rows.
    """

    ids: IntArray
    keys: IntArray
    features: Mapping[str, Column]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HaloArrays:
    """The halo of one part, all memory maps.

    Attributes:
        part: Number of the part.
        node_ids: Node type to int64[n], ids of the nodes whose edges are copied, ascending; empty without ``hops``.
        node_keys: Node type to int64[n], the keys of these nodes.
        edges: (edge type, direction) to the copied edges, with the copied features.
        edge_starts: (edge type, direction) to int64[n], the id of the first edge of each node.
        cached: Node type to the nodes with copied features.
    """

    part: int
    node_ids: Mapping[str, IntArray]
    node_keys: Mapping[str, IntArray]
    edges: Mapping[tuple[EdgeType, Direction], EdgeArrays]
    edge_starts: Mapping[tuple[EdgeType, Direction], IntArray]
    cached: Mapping[str, CachedArrays]


def open_halo(dataset: Dataset, part: int) -> HaloArrays | None:
    """Map the halo of one part; return None if the dataset has no halo.

    Raises:
        FormatError: A file is missing, truncated, or contradicts the manifest.
    """
    halo = dataset.manifest.halo
    return None if halo is None else _Opening(dataset, halo, part).open()


@dataclass(frozen=True, slots=True, eq=False)
class _Opening:
    dataset: Dataset
    halo: Halo
    part: int

    def open(self) -> HaloArrays:
        counts, root = self.halo.parts[self.part], halo_root(self.part, self.halo.generation)
        return HaloArrays(
            part=self.part,
            node_ids={t: self._ids(node_path(root, t), t) for t in counts.nodes},
            node_keys={t: self._array(node_path(root, t) / "key.npy") for t in counts.nodes},
            edges={(t, d): self._edges(edge_path(root, t, d), t, d) for t, d in counts.edges},
            edge_starts={(t, d): self._array(edge_path(root, t, d) / "edge_start.npy") for t, d in counts.edges},
            cached={t: self._cached(cached_path(root, t), t) for t in counts.cached},
        )

    def _array(self, path: PurePosixPath) -> Array:
        return open_array(self.dataset.root / path, self.halo.files[str(path)])

    def _ids(self, folder: PurePosixPath, node_type: str) -> IntArray:
        ids = self._array(folder / "id.npy")
        num_ids = self.dataset.manifest.book.num_ids(node_type)
        check_ascending(f"{self.dataset.root / folder / 'id.npy'}: ids", ids, 0, num_ids)
        return ids

    def _edges(self, folder: PurePosixPath, edge_type: EdgeType, direction: Direction) -> EdgeArrays:
        manifest, chosen = self.dataset.manifest, self.halo.edge_features.get(edge_type, ())
        names = edge_column_names(manifest, edge_type, direction, chosen)
        columns = {name.removesuffix(".npy"): self._array(folder / name) for name in names}
        indptr = self._array(folder / "indptr.npy")
        if indptr[0] != 0 or indptr[-1] != len(columns["indices"]):
            raise FormatError(
                f"{self.dataset.root / folder}/indptr.npy must ascend from 0 to {len(columns['indices'])}"
            )
        features = self._columns(folder, manifest.schema.edges[edge_type], chosen)
        return EdgeArrays(
            indptr=indptr,
            indices=columns["indices"],
            keys=columns.get("key"),
            features=features,
            times=columns.get("time"),
            weights=columns.get("weight", weights_of(features, manifest.weight_attr)),
            weight_sums=columns.get("weight_sums"),
            weight_order=columns.get("weight_order"),
            weight_alias=columns.get("weight_alias"),
            neighbor_keys=columns.get("neighbor_key"),
        )

    def _cached(self, folder: PurePosixPath, node_type: str) -> CachedArrays:
        columns = self._columns(folder, self.dataset.manifest.schema.nodes[node_type], self.halo.features[node_type])
        return CachedArrays(ids=self._ids(folder, node_type), keys=self._array(folder / "key.npy"), features=columns)

    def _columns(
        self, folder: PurePosixPath, features: Mapping[str, FeatureSchema], names: Iterable[str]
    ) -> dict[str, Column]:
        columns: dict[str, Column] = {}
        for name in names:
            values, *offsets = map(self._array, feature_paths(folder, name, features[name]))
            columns[name] = RaggedArray(values, offsets[0], features[name].is_string) if offsets else values
            if offsets and (offsets[0][0] != 0 or offsets[0][-1] != len(values)):
                raise FormatError(
                    f"{self.dataset.root / folder}: offsets of {name} must ascend from 0 to {len(values)}"
                )
        return columns
