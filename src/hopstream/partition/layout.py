"""How is a dataset opened, and what is in one of its parts?

Opening reads the manifest; opening a part maps its files after checking that each is there and has the dtype, shape and
size that the manifest says. What is inside the files is checked by ``verify``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from hopstream.arrays import Array, Column, IntArray, RaggedArray, check_file, open_array
from hopstream.errors import FormatError, SchemaError, UnknownNameError
from hopstream.partition.book import ends_of, owner_label
from hopstream.partition.manifest import Manifest, read_manifest
from hopstream.partition.paths import edge_folder, expected_files, feature_paths, node_folder, split_path
from hopstream.partition.write import write_parts
from hopstream.schema import Direction, EdgeType, FeatureSchema

__all__ = ["Dataset", "EdgeArrays", "Manifest", "PartArrays", "open_dataset", "read_manifest", "write_parts"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EdgeArrays:
    """Edges of one type that a part holds in one direction, grouped by the row of the owning end.

    Attributes:
        indptr: int64[rows + 1]; row ``r`` has the edges ``[indptr[r], indptr[r + 1])``, in original order.
        indices: uint32[edges] or int64[edges], ids of the other end.
        keys: int64[edges], original edge keys, or None where the dataset does not keep them.
        features: Feature name to column of ``edges`` rows.
    """

    indptr: IntArray
    indices: Array
    keys: IntArray | None
    features: Mapping[str, Column]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PartArrays:
    """The arrays of one part, all memory maps. Every node type, edge type and direction of the dataset is present.

    Attributes:
        part: Number of the part.
        node_keys: Node type to int64[rows], the key of each row, ascending.
        ids_of_keys: Node type to int64[n], ids of the keys ``[key_offsets[part], key_offsets[part + 1])``.
        splits: Node type to split name to int64[n], the keys of the same slice that are in the split, ascending.
        node_features: Node type to feature name to column of ``rows`` rows.
        edges: (edge type, direction) to edges.
    """

    part: int
    node_keys: Mapping[str, IntArray]
    ids_of_keys: Mapping[str, IntArray]
    splits: Mapping[str, Mapping[str, IntArray]]
    node_features: Mapping[str, Mapping[str, Column]]
    edges: Mapping[tuple[EdgeType, Direction], EdgeArrays]


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """A dataset on disk: its folder and its manifest.

    Attributes:
        root: The folder.
        manifest: What the dataset says of itself.
    """

    root: Path
    manifest: Manifest

    def open_part(self, part: int) -> PartArrays:
        """Map the arrays of one part; the folders of other parts need not be there.

        Raises:
            UnknownNameError: The dataset has no such part.
            FormatError: A file is missing, truncated, or not what the manifest says.
        """
        self._check_part(part)
        manifest = self.manifest
        nodes = {t: node_folder(part, t) for t in manifest.schema.nodes}
        return PartArrays(
            part=part,
            node_keys={t: self._open(folder / "key.npy") for t, folder in nodes.items()},
            ids_of_keys={t: self._open(folder / "id_of_key.npy") for t, folder in nodes.items()},
            splits={
                t: {name: self._open(split_path(folder, name)) for name in manifest.schema.splits.get(t, ())}
                for t, folder in nodes.items()
            },
            node_features={t: self._open_columns(nodes[t], fs) for t, fs in manifest.schema.nodes.items()},
            edges={
                (t, d): self._open_edges(edge_folder(part, t, d), fs)
                for t, fs in manifest.schema.edges.items()
                for d in manifest.directions
            },
        )

    def verify(self, parts: Iterable[int] | None = None) -> None:
        """Read every file of some parts, or of all, and check checksums, order and ranges.

        Raises:
            UnknownNameError: The dataset has no such part.
            ChecksumError: A file is not the one that was written.
            FormatError: A file is missing or truncated, or offsets, ids or keys contradict each other.
        """
        manifest = self.manifest
        for part in range(manifest.book.num_parts) if parts is None else parts:
            self._check_part(part)
            for name, _ in expected_files(
                manifest.schema, manifest.book, manifest.directions, manifest.has_edge_keys, part
            ):
                check_file(self.root / name, manifest.files[name])
            _check_arrays(manifest, self.open_part(part))

    def _check_part(self, part: int) -> None:
        num_parts = self.manifest.book.num_parts
        if not 0 <= part < num_parts:
            raise UnknownNameError(f"{self.root} has no part {part}; parts are numbered 0..{num_parts - 1}")

    def _open(self, path: PurePosixPath) -> Array:
        return open_array(self.root / path, self.manifest.files[str(path)])

    def _open_edges(self, folder: PurePosixPath, features: Mapping[str, FeatureSchema]) -> EdgeArrays:
        edges = EdgeArrays(
            indptr=self._open(folder / "indptr.npy"),
            indices=self._open(folder / "indices.npy"),
            keys=self._open(folder / "key.npy") if self.manifest.has_edge_keys else None,
            features=self._open_columns(folder, features),
        )
        if edges.indptr[0] != 0 or edges.indptr[-1] != len(edges.indices):
            raise FormatError(f"{self.root / folder}/indptr.npy must lead from 0 to {len(edges.indices)}")
        return edges

    def _open_columns(self, folder: PurePosixPath, features: Mapping[str, FeatureSchema]) -> dict[str, Column]:
        return {name: self._open_column(folder, name, feature) for name, feature in features.items()}

    def _open_column(self, folder: PurePosixPath, name: str, feature: FeatureSchema) -> Column:
        paths = feature_paths(folder, name, feature)
        values = self._open(paths[0])
        if feature.is_fixed_width:
            return values
        offsets = self._open(paths[1])
        if offsets[0] != 0 or offsets[-1] != len(values):
            raise FormatError(f"{self.root / paths[1]} must lead from 0 to {len(values)}")
        return RaggedArray(values, offsets, feature.is_string)


def open_dataset(root: str | Path, *, verify: bool = False) -> Dataset:
    """Open a dataset; its parts are mapped by ``Dataset.open_part``.

    Args:
        root: The folder that ``write_parts`` wrote.
        verify: Read every file of every part and check its checksum and content.

    Raises:
        FormatError: The folder is not a finished dataset of a format that this version reads, or ``verify`` found a
            file missing, truncated or contradictory.
        ChecksumError: The manifest, or with ``verify`` a file, is not the one that was written.
    """
    dataset = Dataset(Path(root), read_manifest(root))
    if verify:
        dataset.verify()
    return dataset


def _check_arrays(manifest: Manifest, arrays: PartArrays) -> None:
    """What kernels trust: ascending offsets, and keys and ids inside their ranges."""
    where = f"part {arrays.part}"
    book = manifest.book
    for node_type, keys in arrays.node_keys.items():
        num_nodes = book.num_ids(node_type)
        _check_range(f"{where}: keys of {node_type}", keys, num_nodes)
        if bool(np.any(keys[1:] <= keys[:-1])):
            raise FormatError(f"{where}: keys of {node_type} do not ascend")
        _check_range(f"{where}: ids of keys of {node_type}", arrays.ids_of_keys[node_type], num_nodes)
        for split, split_keys in arrays.splits[node_type].items():
            _check_range(f"{where}: split {split!r} of {node_type}", split_keys, num_nodes)
        _check_columns(f"{where}: {node_type}", arrays.node_features[node_type])
    for owner, edges in arrays.edges.items():
        label = f"{where}: {owner_label(owner)}"
        if bool(np.any(edges.indptr[1:] < edges.indptr[:-1])):
            raise FormatError(f"{label}: indptr does not ascend")
        _check_range(f"{label}: indices", edges.indices, book.num_ids(ends_of(*owner)[1]))
        if edges.keys is not None:
            _check_range(f"{label}: keys", edges.keys, book.num_ids(owner))
        _check_columns(label, edges.features)


def _check_range(where: str, values: Array, stop: int) -> None:
    if len(values) and (int(values.min()) < 0 or int(values.max()) >= stop):
        raise FormatError(f"{where} lie in {int(values.min())}..{int(values.max())}; they must be in 0..{stop - 1}")


def _check_columns(where: str, columns: Mapping[str, Column]) -> None:
    for name, column in columns.items():
        if isinstance(column, RaggedArray):
            try:
                column.check(f"{where}.{name}")
            except SchemaError as error:
                raise FormatError(str(error)) from error
