"""How are the rows of other parts that a part keeps copies of written, or compared with what was written?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

import numpy as np

from hopstream.arrays import Array, FileRecord, IntArray, offsets_of, write_blocks
from hopstream.partition.book import ends_of
from hopstream.partition.halo.record import (
    HaloCounts,
    cached_path,
    edge_column_names,
    edge_path,
    halo_root,
    node_path,
)
from hopstream.partition.halo.sources import Parts, Values, chunks_of
from hopstream.partition.layout import EdgeArrays
from hopstream.partition.paths import feature_paths
from hopstream.schema import Direction, EdgeType

ATTRIBUTES = {
    "indices.npy": "indices", "key.npy": "keys", "neighbor_key.npy": "neighbor_keys", "time.npy": "times",
    "weight_sums.npy": "weight_sums", "weight_order.npy": "weight_order", "weight_alias.npy": "weight_alias",
    "weight.npy": "weights",
}  # fmt: skip
"""File name to the field of ``EdgeArrays`` that it is copied from."""


class Sink(Protocol):
    """Takes the content of the files of halos, one file after the other."""

    def put(self, path: PurePosixPath, dtype: np.dtype[Any], shape: tuple[int, ...], blocks: Iterable[Array]) -> None:
        """Take one file, block after block; blocks are made while they are taken."""


@dataclass(frozen=True, slots=True, eq=False)
class FileSink:
    """Writes files below a folder and keeps their records."""

    root: Path
    files: dict[str, FileRecord] = field(default_factory=dict)

    def put(self, path: PurePosixPath, dtype: np.dtype[Any], shape: tuple[int, ...], blocks: Iterable[Array]) -> None:
        """Write one file."""
        self.files[str(path)] = write_blocks(self.root / path, dtype, shape, blocks)


@dataclass(frozen=True, slots=True, eq=False)
class HaloWriter:
    """Makes the files of halos of one generation."""

    parts: Parts
    generation: int
    sink: Sink

    def write(
        self,
        part: int,
        node_ids: Mapping[str, IntArray],
        features: Mapping[str, tuple[str, ...]],
        cached_ids: Mapping[str, IntArray],
    ) -> HaloCounts:
        """Write the halo of one part.

        Args:
            part: The part.
            node_ids: Node type to int64[n], ascending: nodes whose edges are copied; empty where none are.
            features: Node type to the features that are copied.
            cached_ids: Node type to int64[n], ascending: nodes whose features are copied.

        Returns:
            How much that is.
        """
        root = halo_root(part, self.generation)
        for node_type, ids in node_ids.items():
            self._write_ids(node_path(root, node_type), node_type, ids)
        edges = {}
        for owner in self.parts.book.edge_offsets if node_ids else ():
            edges[owner] = self._write_edges(edge_path(root, *owner), owner, node_ids[ends_of(*owner)[0]])
        for node_type, names in features.items():
            folder, ids = cached_path(root, node_type), cached_ids[node_type]
            self._write_ids(folder, node_type, ids)
            for name in names:
                self._write_feature(folder, node_type, name, ids)
        return HaloCounts(
            nodes={t: len(ids) for t, ids in node_ids.items()},
            edges=edges,
            cached={t: len(cached_ids[t]) for t in features},
        )

    def _write_ids(self, folder: PurePosixPath, node_type: str, ids: IntArray) -> None:
        self._write_array(folder / "id.npy", ids)
        keys = self.parts.fixed_blocks(node_type, [a.node_keys[node_type] for a in self.parts.arrays], ids)
        self.sink.put(folder / "key.npy", np.dtype(np.int64), (len(ids),), keys)

    def _write_edges(self, folder: PurePosixPath, owner: tuple[EdgeType, Direction], ids: IntArray) -> int:
        parts, ranges = self.parts, self.parts.edge_ranges[owner]
        edges = parts.edges(owner)
        indices, edge_offsets = Values([e.indices for e in edges]), parts.book.offsets(owner)
        starts, lengths = np.empty(len(ids), np.int64), np.empty(len(ids), np.int64)
        done = 0
        for chunk in chunks_of(ids):
            of_part, first, count = ranges.of(chunk, indices)
            starts[done : done + len(chunk)] = first + edge_offsets[of_part]
            lengths[done : done + len(chunk)] = count
            done += len(chunk)
        indptr = offsets_of(lengths)
        self._write_array(folder / "indptr.npy", indptr)
        self._write_array(folder / "edge_start.npy", starts)
        for name in edge_column_names(parts.manifest, *owner):
            values = Values(_columns(edges, ATTRIBUTES[name]))
            self.sink.put(folder / name, values.dtype, (int(indptr[-1]),), ranges.blocks(values, ids, indptr))
        return int(indptr[-1])

    def _write_feature(self, folder: PurePosixPath, node_type: str, name: str, ids: IntArray) -> None:
        feature = self.parts.manifest.schema.nodes[node_type][name]
        paths, ragged = feature_paths(folder, name, feature), self.parts.ragged(node_type, name)
        if ragged is None:
            columns = [arrays.node_features[node_type][name] for arrays in self.parts.arrays]
            blocks = self.parts.fixed_blocks(node_type, columns, ids)
            self.sink.put(paths[0], feature.numpy_dtype, (len(ids), *feature.shape), blocks)
            return
        ranges, values = ragged
        lengths = [ranges.of(chunk, values)[2] for chunk in chunks_of(ids)]
        offsets = offsets_of(np.concatenate(lengths) if lengths else np.empty(0, np.int64))
        shape = (int(offsets[-1]), *feature.shape)
        self.sink.put(paths[0], feature.numpy_dtype, shape, ranges.blocks(values, ids, offsets))
        self._write_array(paths[1], offsets)

    def _write_array(self, path: PurePosixPath, array: IntArray) -> None:
        self.sink.put(path, array.dtype, array.shape, chunks_of(array))


def _columns(edges: list[EdgeArrays], attribute: str) -> list[Array]:
    return [getattr(each, attribute) for each in edges]
