"""Writes the rows of a halo, or compares them with what was written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

import numpy as np

from hopstream.arrays import Array, FileRecord, IntArray, write_blocks
from hopstream.dataset.book import ends_of
from hopstream.dataset.halo_record import (
    HaloCounts,
    cached_path,
    edge_column_names,
    edge_path,
    halo_root,
    node_path,
)
from hopstream.dataset.layout import EdgeArrays
from hopstream.dataset.paths import feature_paths
from hopstream.preparation.halo.node_sets import NodeSet, chunks_of
from hopstream.preparation.halo.sources import Parts, RowRanges, Values
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
        node_ids: Mapping[str, NodeSet | IntArray],
        features: Mapping[str, tuple[str, ...]],
        cached_ids: Mapping[str, NodeSet | IntArray],
    ) -> HaloCounts:
        """Write the halo of one part.

        Args:
            part: The part.
            node_ids: Node type to the nodes whose edges are copied, a set or int64[n], ascending; empty where none are.
            features: Node type to the features that are copied.
            cached_ids: Node type to the nodes whose features are copied, likewise.

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

    def _write_ids(self, folder: PurePosixPath, node_type: str, nodes: NodeSet | IntArray) -> None:
        int64, shape = np.dtype(np.int64), (len(nodes),)
        self.sink.put(folder / "id.npy", int64, shape, chunks_of(nodes))
        keys = self.parts.fixed_blocks(node_type, [a.node_keys[node_type] for a in self.parts.arrays], nodes)
        self.sink.put(folder / "key.npy", int64, shape, keys)

    def _write_edges(self, folder: PurePosixPath, owner: tuple[EdgeType, Direction], nodes: NodeSet | IntArray) -> int:
        parts, ranges = self.parts, self.parts.edge_ranges[owner]
        edges = parts.edges(owner)
        indices, edge_offsets = Values([e.indices for e in edges]), parts.book.offsets(owner)

        def starts() -> Iterator[Array]:
            for ids in chunks_of(nodes):
                of_part, first, _ = ranges.of(ids, indices)
                yield first + edge_offsets[of_part]

        num_edges = self._write_offsets(folder / "indptr.npy", ranges, indices, nodes)
        self.sink.put(folder / "edge_start.npy", np.dtype(np.int64), (len(nodes),), starts())
        for name in edge_column_names(parts.manifest, *owner):
            values = Values(_columns(edges, ATTRIBUTES[name]))
            self.sink.put(folder / name, values.dtype, (num_edges,), ranges.blocks(values, nodes))
        return num_edges

    def _write_feature(self, folder: PurePosixPath, node_type: str, name: str, nodes: NodeSet | IntArray) -> None:
        feature = self.parts.manifest.schema.nodes[node_type][name]
        paths, ragged = feature_paths(folder, name, feature), self.parts.ragged(node_type, name)
        if ragged is None:
            columns = [arrays.node_features[node_type][name] for arrays in self.parts.arrays]
            blocks = self.parts.fixed_blocks(node_type, columns, nodes)
            self.sink.put(paths[0], feature.numpy_dtype, (len(nodes), *feature.shape), blocks)
            return
        ranges, values = ragged
        num_elements = self._write_offsets(paths[1], ranges, values, nodes)
        shape = (num_elements, *feature.shape)
        self.sink.put(paths[0], feature.numpy_dtype, shape, ranges.blocks(values, nodes))

    def _write_offsets(self, path: PurePosixPath, ranges: RowRanges, values: Values, nodes: NodeSet | IntArray) -> int:
        """Write where the items of each row begin in the halo; return how many there are."""
        total = 0

        def offsets() -> Iterator[Array]:
            nonlocal total
            yield np.zeros(1, np.int64)
            for ids in chunks_of(nodes):
                ends = total + np.cumsum(ranges.of(ids, values)[2])
                total = int(ends[-1])
                yield ends

        blocks = offsets()
        self.sink.put(path, np.dtype(np.int64), (len(nodes) + 1,), blocks)
        for _ in blocks:  # a sink need not take them all
            pass
        return total


def _columns(edges: list[EdgeArrays], attribute: str) -> list[Array]:
    return [getattr(each, attribute) for each in edges]
