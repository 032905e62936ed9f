"""Parts of a dataset on disk with their halo of one hop, numbered as in DGL.

A dataset's ids are DGL's numbers of the nodes of a type: they ascend by part, then by key. So an id gives the number
over all types, and the files of the id's part, which are mapped, give the key.

[Cost] Memory: the ends, keys and numbers of the edges in and around one part. One pass over all parts first writes the
edges that leave a part to files, 40 bytes each.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import Array, IntArray, offsets_of
from hopstream.compat.dgl.binary import OrderedRows
from hopstream.compat.dgl.part_files import LocalEdges, LocalNodes, PartSource, mask_name, mask_of
from hopstream.dataset.layout import Dataset, EdgeArrays, PartArrays
from hopstream.dataset.split import split_by_owner
from hopstream.errors import SettingsError
from hopstream.schema import EdgeType

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Numbering(Generic[T]):
    """New numbers of the nodes, or of the edges, of all types.

    Attributes:
        ranges: Type to int64[num_parts, 2], ``[start, stop)`` of each part's numbers over all types.
        offsets: Type to int64[num_parts + 1], each part's offset in the numbers of the type.
        keys: Type to int64[n], the key of each number of the type.
        numbers: Type to int64[n], the number over all types of each key.
    """

    ranges: Mapping[T, IntArray]
    offsets: Mapping[T, IntArray]
    keys: Mapping[T, IntArray]
    numbers: Mapping[T, IntArray]

    def keys_of_part(self, of: T, part: int) -> IntArray:
        """Return int64[n], the ascending keys of a part's items of a type."""
        first, stop = self.offsets[of][part : part + 2]
        return self.keys[of][first:stop]


def number_by_owner(owners: Mapping[T, NDArray[np.int32]], num_parts: int) -> Numbering[T]:
    """Number the items of all types by part, then by type, then by key.

    A part without items of a type gets an empty range that starts where the range before ends.

    Args:
        owners: Type to int32[n], the part of each item, by key.
        num_parts: Number of parts.
    """
    splits = {of: split_by_owner(owner, num_parts) for of, owner in owners.items()}
    ranges = number_ranges({of: np.diff(offsets) for of, (offsets, _) in splits.items()}, num_parts)
    numbers = {}
    for of, (offsets, keys) in splits.items():
        numbers[of] = np.empty(len(keys), np.int64)
        numbers[of][keys] = np.arange(len(keys)) + np.repeat(ranges[of][:, 0] - offsets[:-1], np.diff(offsets))
    return Numbering(
        ranges=ranges,
        offsets={of: offsets for of, (offsets, _) in splits.items()},
        keys={of: keys.astype(np.int64, copy=False) for of, (_, keys) in splits.items()},
        numbers=numbers,
    )


def number_ranges(counts: Mapping[T, IntArray], num_parts: int) -> dict[T, IntArray]:
    """Map each type to int64[num_parts, 2], ``[start, stop)`` of each part's numbers over all types.

    Args:
        counts: Type to int64[num_parts], each part's number of items of the type.
        num_parts: Number of parts.
    """
    table = np.array(list(counts.values()), np.int64).reshape(len(counts), num_parts)
    starts = offsets_of(table.T.reshape(-1))[:-1].reshape(num_parts, len(counts)).T
    return {of: np.stack([starts[row], starts[row] + table[row]], axis=1) for row, of in enumerate(counts)}


RECORD = 5
"""Number of columns of an edge record: index of its type, key, number, and the numbers of its two ends."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Bookkeeping:
    """Memory maps of every part that stay open: keys of nodes and members of splits."""

    node_keys: Mapping[str, IntArray]
    splits: Mapping[str, Mapping[str, IntArray]]
    edge_splits: Mapping[EdgeType, Mapping[str, IntArray]]


class DatasetParts(PartSource):
    """Parts of a dataset, each with its halo of one hop."""

    num_hops = 1
    has_trainers = False

    def __init__(self, dataset: Dataset, scratch: Path) -> None:
        """Write the edges that leave each part to files.

        Args:
            dataset: The dataset: edges by destination, with their keys, without appended data.
            scratch: Folder for files of these edges; the caller removes them.

        Raises:
            SettingsError: The dataset is stored in another form.
            FormatError: A file is missing, truncated, or not what the manifest says.
        """
        manifest = dataset.manifest
        if "in" not in manifest.directions or not manifest.has_edge_keys or manifest.book.deltas:
            raise SettingsError(
                f"{dataset.root} must have edges by destination (direction 'in'), with keys (keep_edge_keys), and "
                "nothing appended, to be written in DGL's files; write the dataset again with these settings"
            )
        self._dataset, self._scratch = dataset, scratch
        self.schema = manifest.schema
        self.num_parts = manifest.book.num_parts
        self._node_types, self._edge_types = list(self.schema.nodes), list(self.schema.edges)
        self._id_offsets = {t: manifest.book.node_offsets[t] for t in self._node_types}
        counts = {t: np.diff(offsets) for t, offsets in self._id_offsets.items()}
        self.node_ranges = number_ranges(counts, self.num_parts)
        edge_counts = {t: np.diff(manifest.book.edge_offsets[t, "in"]) for t in self._edge_types}
        self.edge_ranges = number_ranges(edge_counts, self.num_parts)
        self._known: list[_Bookkeeping] = []
        for part in range(self.num_parts):
            arrays = dataset.open_part(part)
            self._known.append(
                _Bookkeeping(
                    node_keys=arrays.node_keys, splits=arrays.splits,
                    edge_splits={t: links.splits for t, links in arrays.links.items()},
                )
            )  # fmt: skip
            self._spill(arrays)

    def around(self, part: int) -> tuple[LocalNodes, LocalEdges]:
        """Return the nodes and edges of a part with its halo of one hop."""
        inner = np.concatenate([np.empty((RECORD, 0), np.int64), *self._records(self._dataset.open_part(part))], axis=1)
        path = self._leaving_path(part)
        leaving = np.fromfile(path, np.int64) if path.exists() else np.empty(0, np.int64)
        types, *others = np.concatenate([inner, leaving.reshape(-1, RECORD).T], axis=1)
        keys, numbers, src_numbers, dst_numbers = others
        is_inner = np.arange(len(keys)) < inner.shape[1]
        edges = LocalEdges(
            keys=keys, numbers=numbers, src_numbers=src_numbers, dst_numbers=dst_numbers, types=types, is_inner=is_inner
        )
        return self._nodes_around(part, src_numbers[is_inner], dst_numbers[~is_inner]), edges

    def node_columns(self, part: int, node_type: str) -> Iterator[tuple[str, OrderedRows]]:
        """Yield features and masks of a part's nodes of a type; rows are stored in the order of numbers."""
        arrays = self._dataset.open_part(part)
        for name, column in arrays.node_features[node_type].items():
            yield name, OrderedRows(array=cast(Array, column))  # check_schema has refused ragged ones
        for split in self.schema.splits.get(node_type, ()):
            pieces = (known.splits[node_type][split] for known in self._known)
            yield mask_name(split), OrderedRows(array=mask_of(arrays.node_keys[node_type], pieces))

    def edge_columns(self, part: int, edge_type: EdgeType) -> Iterator[tuple[str, OrderedRows]]:
        """Yield features and masks of a part's edges of a type."""
        held = self._dataset.open_part(part).edges[edge_type, "in"]
        splits = self.schema.edge_splits.get(edge_type, ())
        if not held.features and not splits:
            return
        keys = _keys_of(held)
        order = np.argsort(keys)
        for name, column in held.features.items():
            yield name, OrderedRows(array=cast(Array, column), places=order)
        for split in splits:
            pieces = (known.edge_splits[edge_type][split] for known in self._known)
            yield mask_name(split), OrderedRows(array=mask_of(keys[order], pieces))

    def _spill(self, arrays: PartArrays) -> None:
        """Append the edges that enter this part from others to the files of the parts that they leave."""
        for records in self._records(arrays):
            src_parts = np.searchsorted(self.node_ranges[self._node_types[0]][:, 0], records[3], side="right") - 1
            places = np.argsort(src_parts, kind="stable")
            bounds = np.searchsorted(src_parts[places], np.arange(self.num_parts + 1))
            for other in np.flatnonzero(np.diff(bounds)).tolist():
                if other != arrays.part:
                    with self._leaving_path(other).open("ab") as file:
                        rows = np.ascontiguousarray(records[:, places[bounds[other] : bounds[other + 1]]].T)
                        file.write(rows.data)

    def _leaving_path(self, part: int) -> Path:
        return self._scratch / f"leaving-{part}.bin"

    def _numbers(self, node_type: str, ids: Array) -> IntArray:
        """Return the number over all types of each id of a type."""
        offsets = self._id_offsets[node_type]
        parts = np.searchsorted(offsets, ids, side="right") - 1
        numbers: IntArray = ids + (self.node_ranges[node_type][:, 0] - offsets[:-1])[parts]
        return numbers

    def _records(self, arrays: PartArrays) -> Iterator[IntArray]:
        """Yield int64[RECORD, n] for each type: the edges of a part, by key."""
        for place, edge_type in enumerate(self._edge_types):
            held = arrays.edges[edge_type, "in"]
            keys = _keys_of(held)
            order = np.argsort(keys)
            records = np.empty((RECORD, len(keys)), np.int64)
            records[0], records[1] = place, keys[order]
            records[2] = self.edge_ranges[edge_type][arrays.part, 0] + np.arange(len(keys))
            records[3] = self._numbers(edge_type[0], held.indices[order])
            rows = np.repeat(np.arange(len(held.indptr) - 1), np.diff(held.indptr))[order]
            records[4] = self.node_ranges[edge_type[2]][arrays.part, 0] + rows
            yield records

    def _nodes_around(self, part: int, src_numbers: IntArray, dst_numbers: IntArray) -> LocalNodes:
        first, stop = self.node_ranges[self._node_types[0]][part, 0], self.node_ranges[self._node_types[-1]][part, 1]
        own = np.arange(first, stop)
        sources = np.unique(src_numbers[(src_numbers < first) | (src_numbers >= stop)])
        others = np.setdiff1d(dst_numbers, sources)
        located = [self._locate(numbers) for numbers in (own, sources, others)]
        keys, parts, types = (np.concatenate(arrays) for arrays in zip(*located, strict=True))
        hops = np.repeat(np.arange(3), [len(own), len(sources), len(others)])
        return LocalNodes(
            keys=keys, numbers=np.concatenate([own, sources, others]), hops=hops, parts=parts, types=types
        )

    def _locate(self, numbers: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """Return keys, parts and indices of types of nodes; their numbers must ascend."""
        ranges = np.stack([self.node_ranges[t] for t in self._node_types], axis=1).reshape(-1, 2)
        places = np.searchsorted(ranges[:, 1], numbers, side="right")
        parts, types = np.divmod(places, len(self._node_types))
        keys = np.empty(len(numbers), np.int64)
        bounds = np.searchsorted(places, np.arange(len(ranges) + 1))
        for place in np.flatnonzero(np.diff(bounds)).tolist():
            here = slice(bounds[place], bounds[place + 1])
            part, row = divmod(place, len(self._node_types))
            known = self._known[part].node_keys[self._node_types[row]]
            keys[here] = known[numbers[here] - ranges[place, 0]]
        return keys, parts, types


def _keys_of(held: EdgeArrays) -> IntArray:
    """Return int64[n], the keys of a part's edges; ``DatasetParts`` refuses datasets without them."""
    return cast(Array, held.keys).astype(np.int64, copy=False)
