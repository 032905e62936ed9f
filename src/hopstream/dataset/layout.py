"""Opens a dataset, and the arrays of its parts.

Opening a dataset reads the manifest. Opening a part checks that each file exists and has the dtype, shape and size of
the manifest, then memory-maps it. ``verify`` checks the content of all files. ``sample`` compares checksums of blocks.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import Array, Column, FileRecord, IntArray, RaggedArray, check_file, open_array
from hopstream.dataset.book import ends_of
from hopstream.dataset.copying.local_copy import folder_of
from hopstream.dataset.manifest import Manifest, read_manifest
from hopstream.dataset.paths import (
    MANIFEST,
    check_is_here,
    edge_folder,
    expected_files,
    feature_paths,
    is_here,
    link_folder,
    node_folder,
    overlay_folder,
    part_folder,
    split_path,
)
from hopstream.dataset.settings import Progress
from hopstream.dataset.spot_check import Verify, check_some_blocks, read_verify
from hopstream.dataset.stored_columns import weights_of
from hopstream.dataset.verify import check_across, check_ascending, check_part, needs_others
from hopstream.errors import FormatError, StateError, UnknownNameError
from hopstream.schema import Direction, EdgeType, FeatureSchema, timed_edge_types

__all__ = [
    "Dataset",
    "EdgeArrays",
    "Manifest",
    "OverlayArrays",
    "PartArrays",
    "open_dataset",
    "read_manifest",
]

LOG = logging.getLogger(__name__)
DAMAGE_SEARCH_S = 3.0
"""Time limit of the search for the damaged file that caused an error."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EdgeArrays:
    """Edges of one type in one direction that a part holds, grouped by the row of the owning end.

    Attributes:
        indptr: int64[rows + 1]; row ``r`` has the edges ``[indptr[r], indptr[r + 1])``. With times they are in the
            order of time, and equal times in original order.
        indices: uint32[edges] or int64[edges], ids of the other end.
        keys: uint32[edges] or int64[edges], original edge keys, or None if the dataset does not keep them.
        features: Feature name to column of ``edges`` rows.
        times: int64[edges], ascending inside a row, or None if the edge type has no times.
        weights: real[edges], the dataset's ``weight_attr`` feature, or None if the type has none.
        weight_sums: float64[edges], running sum of the weights inside a row, or None without weights.
        weight_order: uint32[edges], positions inside a row (0..degree-1), largest weight first and equal weights in
            stored order, or None without weights.
        weight_alias: uint64[edges], alias tables of the rows (``kernels/alias.py``), or None without weights.
        neighbor_keys: uint32[edges] or int64[edges], keys of the other end, or None if they are not stored.
    """

    indptr: IntArray
    indices: Array
    keys: Array | None
    features: Mapping[str, Column]
    times: IntArray | None = None
    weights: Array | None = None
    weight_sums: NDArray[np.float64] | None = None
    weight_order: NDArray[np.uint32] | None = None
    weight_alias: NDArray[np.uint64] | None = None
    neighbor_keys: Array | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OverlayArrays:
    """New rows of one part, edge type and direction, which replace older rows.

    Attributes:
        delta: Number of the delta that added the rows.
        rows: int64[n], the replaced rows of the part, ascending.
        node_keys: int64[n], the keys of the nodes of these rows.
        edges: All edges of the ``n`` rows. They replace those of older deltas and of the part itself.
    """

    delta: int
    rows: IntArray
    node_keys: IntArray
    edges: EdgeArrays


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinkArrays:
    """Links of one edge type that a part keeps: a slice of the edges in the order of their keys.

    Attributes:
        src_keys: int64[n], source keys of the edges ``[link_offsets[part], link_offsets[part + 1])``.
        dst_keys: int64[n], destination keys.
        times: int64[n], the edges' own times, or None if they have none.
        splits: Split name to int64[k], the edge keys of the same slice that are in the split, ascending.
    """

    src_keys: IntArray
    dst_keys: IntArray
    times: IntArray | None
    splits: Mapping[str, IntArray]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PartArrays:
    """Arrays of one part, all memory maps, for every node type, edge type and direction of the dataset.

    Attributes:
        part: Number of the part.
        node_keys: Node type to int64[rows], the key of each row, ascending.
        ids_of_keys: Node type to int64[n], ids of the keys ``[key_offsets[part], key_offsets[part + 1])``.
        splits: Node type to split name to int64[n], the keys of the same slice that are in the split, ascending.
        node_features: Node type to feature name to column of ``rows`` rows.
        edges: (edge type, direction) to edges.
        links: Edge type to links, for the edge types of ``GraphSchema.edge_splits``.
        overlays: (edge type, direction) to the part's overlays, oldest first; empty entries are missing.
    """

    part: int
    node_keys: Mapping[str, IntArray]
    ids_of_keys: Mapping[str, IntArray]
    splits: Mapping[str, Mapping[str, IntArray]]
    node_features: Mapping[str, Mapping[str, Column]]
    edges: Mapping[tuple[EdgeType, Direction], EdgeArrays]
    links: Mapping[EdgeType, LinkArrays] = field(default_factory=dict)
    overlays: Mapping[tuple[EdgeType, Direction], tuple[OverlayArrays, ...]] = field(default_factory=dict)


FileState = tuple[int, int, int]
"""Inode, time of the last change in ns, and bytes of a file."""


def file_state(path: Path) -> FileState | None:
    """Return the state of a file, which differs after it was replaced; None if it is missing."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Dataset on disk: its folder and its manifest.

    Attributes:
        root: The folder.
        manifest: The manifest of the dataset.
        state: State of the manifest's file when it was read; None for a dataset that nothing else can change.
    """

    root: Path
    manifest: Manifest
    state: FileState | None = field(default=None, kw_only=True)

    def open_part(self, part: int) -> PartArrays:
        """Memory-map the arrays of one part; the folders of other parts may be missing.

        Raises:
            UnknownNameError: The dataset has no such part.
            StateError: Another dataset has replaced this one since its manifest was read.
            FormatError: The part lies elsewhere, or a file is missing, truncated, or contradicts the manifest.
        """
        self._check_part(part)
        self._check_here(part)
        try:
            return self._open_part(part)
        finally:
            self._check_same(part)

    def _check_same(self, part: int) -> None:
        """Refuse a part whose files were replaced; an append replaces the manifest, but not the files."""
        if self.state is None or file_state(self.root / MANIFEST) == self.state:
            return
        try:
            found = read_manifest(self.root)
        except FormatError:  # between the two renames of a replacement
            found = None
        folder = f"{part_folder(part)}/"
        files = {name: record for name, record in self.manifest.files.items() if name.startswith(folder)}
        if found is None or any(found.files.get(name) != record for name, record in files.items()):
            raise StateError(f"{self.root} was replaced by another dataset after it was opened; open it again")

    def _open_part(self, part: int) -> PartArrays:
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
                (t, d): self._open_edges(edge_folder(part, t, d), t, d)
                for t in manifest.schema.edges
                for d in manifest.directions
            },
            links={t: self._open_links(part, t) for t in manifest.schema.edge_splits},
            overlays={
                entity: found
                for entity in manifest.book.edge_offsets
                if (found := tuple(self._open_overlays(part, *entity)))
            },
        )

    def verify(self, parts: Iterable[int] | None = None, progress: Progress | None = None) -> None:
        """Read every file of some or all parts, and check checksums, order, ranges and sums.

        Times, keys of neighbours and links that refer to other parts are compared among the given parts.

        Args:
            parts: The parts; None for all.
            progress: Called as ``progress("verify", done, total)``.

        Raises:
            UnknownNameError: The dataset has no such part.
            ChecksumError: A file does not match its checksum.
            FormatError: A file is missing or truncated, or arrays contradict each other.
        """
        manifest = self.manifest
        numbers = sorted(set(range(manifest.book.num_parts) if parts is None else parts))
        steps = len(numbers) + needs_others(manifest)
        for done, part in enumerate(numbers):
            if progress is not None:
                progress("verify", done, steps)
            self._check_part(part)
            for name, _ in expected_files(manifest, part):
                check_file(self.root / name, manifest.files[name])
            for name, record in manifest.halo.files_of(part).items() if manifest.halo else ():
                check_file(self.root / name, record)
            check_part(manifest, self.open_part(part))
        if needs_others(manifest):
            check_across(manifest, [self.open_part(part) for part in numbers])
        if progress is not None:
            progress("verify", steps, steps)

    def sample(self, parts: Iterable[int] | None = None, *, rng_seed: int | None = None) -> list[str]:
        """Read some blocks of every file of some parts, up to 128 MiB in all, and compare their checksums.

        The first and the last block of each file are always included. Small files are checked completely. A block is 64
        KiB; a file has checksums of up to 65 evenly spaced blocks.

        Args:
            parts: The parts; None for the parts whose folders are here.
            rng_seed: Seed of the random choice among blocks with checksums; None for a different choice each time.

        Returns:
            The files that were not checked, also logged: an earlier revision wrote them without checksums of blocks,
            and they are too large to be read completely.

        Raises:
            UnknownNameError: The dataset has no such part.
            FormatError: A file is missing.
            ChecksumError: A file does not match its checksum.
        """
        here = (part for part in range(self.manifest.book.num_parts) if is_here(self.root, part))
        files = self._files_of(set(here if parts is None else parts))
        left_out = check_some_blocks(self.root, files, rng_seed=rng_seed)
        if left_out:
            LOG.warning(
                "%s: %d files have no checksums of blocks and were not sampled, %s the first; write the dataset again, "
                "or verify it in full", self.root, len(left_out), left_out[0],
            )  # fmt: skip
        return left_out

    def find_damage(self, parts: Iterable[int]) -> str | None:
        """Describe the first damaged file of some parts, checking the smallest files first.

        Stops after ``DAMAGE_SEARCH_S`` seconds. None if no file that was read in that time is damaged.
        """
        ends = time.monotonic() + DAMAGE_SEARCH_S
        files = self._files_of(set(parts))
        for name in sorted(files, key=lambda name: files[name].num_bytes):
            if time.monotonic() > ends:
                break
            try:
                check_file(self.root / name, files[name])
            except FormatError as error:  # ChecksumError too
                return str(error)
        return None

    def _files_of(self, parts: Set[int]) -> dict[str, FileRecord]:
        """Return the records of the files of some parts, including halos."""
        for part in parts:
            self._check_part(part)
        folders = {str(part_folder(part)) for part in parts}
        return {name: r for name, r in self.manifest.all_files.items() if name.partition("/")[0] in folders}

    def check(self, verify: bool | Verify | None, parts: Iterable[int] | None = None) -> Dataset:
        """Return the dataset after an optional ``sample`` or ``verify`` of some parts.

        Args:
            verify: As of ``open_dataset``.
            parts: The parts; None for all parts, or in a sample for the parts that are here.

        Raises:
            SettingsError: ``verify`` is something else.
        """
        level = read_verify(verify)
        if level == "sample":
            self.sample(parts)
        elif level == "full":
            self.verify(parts)
        return self

    def _check_part(self, part: int) -> None:
        num_parts = self.manifest.book.num_parts
        if not 0 <= part < num_parts:
            raise UnknownNameError(f"{self.root} has no part {part}; parts are numbered 0..{num_parts - 1}")

    def _check_here(self, part: int) -> None:
        check_is_here(self.root, part, self.manifest.dataset_id)

    def _open(self, path: PurePosixPath) -> Array:
        return open_array(self.root / path, self.manifest.files[str(path)])

    def _open_overlays(self, part: int, edge_type: EdgeType, direction: Direction) -> Iterator[OverlayArrays]:
        for overlay in self.manifest.book.overlays((edge_type, direction)):
            if overlay.part == part:
                folder = overlay_folder(part, overlay.delta, edge_type, direction)
                first, stop = self.manifest.book.node_offsets[ends_of(edge_type, direction)[0]][part : part + 2]
                rows = folder / "row.npy"
                check_ascending(f"{self.root / rows}: rows", self._open(rows), 0, int(stop - first))
                yield OverlayArrays(
                    delta=overlay.delta,
                    rows=self._open(rows),
                    node_keys=self._open(folder / "node_key.npy"),
                    edges=self._open_edges(folder, edge_type, direction),
                )

    def _open_edges(self, folder: PurePosixPath, edge_type: EdgeType, direction: Direction) -> EdgeArrays:
        manifest = self.manifest
        features = manifest.schema.edges[edge_type]
        has_times = edge_type in timed_edge_types(manifest.schema, manifest.time_attr, direction)
        has_weights = manifest.weight_attr in features
        columns = self._open_columns(folder, features)
        edges = EdgeArrays(
            indptr=self._open(folder / "indptr.npy"),
            indices=self._open(folder / "indices.npy"),
            keys=self._open(folder / "key.npy") if manifest.has_edge_keys else None,
            features=columns,
            times=self._open(folder / "time.npy") if has_times else None,
            weights=weights_of(columns, manifest.weight_attr),
            weight_sums=self._open(folder / "weight_sums.npy") if has_weights else None,
            weight_order=self._open(folder / "weight_order.npy") if has_weights else None,
            weight_alias=self._open(folder / "weight_alias.npy") if has_weights else None,
            neighbor_keys=self._open(folder / "neighbor_key.npy") if manifest.has_neighbor_keys else None,
        )
        if edges.indptr[0] != 0 or edges.indptr[-1] != len(edges.indices):
            raise FormatError(f"{self.root / folder}/indptr.npy must ascend from 0 to {len(edges.indices)}")
        return edges

    def _open_links(self, part: int, edge_type: EdgeType) -> LinkArrays:
        folder, schema = link_folder(part, edge_type), self.manifest.schema
        has_times = self.manifest.time_attr in schema.edges[edge_type]
        return LinkArrays(
            src_keys=self._open(folder / "src_key.npy"),
            dst_keys=self._open(folder / "dst_key.npy"),
            times=self._open(folder / "time.npy") if has_times else None,
            splits={name: self._open(split_path(folder, name)) for name in schema.edge_splits[edge_type]},
        )

    def _open_columns(self, folder: PurePosixPath, features: Mapping[str, FeatureSchema]) -> dict[str, Column]:
        return {name: self._open_column(folder, name, feature) for name, feature in features.items()}

    def _open_column(self, folder: PurePosixPath, name: str, feature: FeatureSchema) -> Column:
        paths = feature_paths(folder, name, feature)
        values = self._open(paths[0])
        if feature.is_fixed_width:
            return values
        offsets = self._open(paths[1])
        if offsets[0] != 0 or offsets[-1] != len(values):
            raise FormatError(f"{self.root / paths[1]} must ascend from 0 to {len(values)}")
        return RaggedArray(values, offsets, feature.is_string)


def open_dataset(root: str | os.PathLike[str], *, verify: bool | Verify | None = None) -> Dataset:
    """Open a dataset; ``Dataset.open_part`` maps its parts.

    Args:
        root: The folder that ``write_parts`` wrote, or a URI of one, which is copied to this machine once; see
            ``dataset.copying.local_copy``.
        verify: ``"none"`` (or None, False) reads only the manifest. ``"sample"`` compares checksums of some blocks of
            every file of the parts that are here. It takes less than a second for up to some thousand files; see
            ``Dataset.sample``. ``"full"`` (or True) reads every file of every part and checks its checksum and content;
            see ``Dataset.verify``.

    Raises:
        FormatError: The folder is not a finished dataset of a format that this version reads, or ``verify`` found a
            file missing, truncated or contradictory.
        ChecksumError: The manifest, or with ``verify`` a file, does not match its checksum.
        SettingsError: ``verify`` is something else.
    """
    folder = folder_of(root)
    state = file_state(folder / MANIFEST)
    return Dataset(folder, read_manifest(folder), state=state).check(verify)
