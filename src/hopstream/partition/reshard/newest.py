"""What do the rows of a dataset hold, where some of them lie in what was appended?

Positions of items and of elements are those of a part that has the newest edges of every row, one row after the other.
What the part itself, or an older delta, says of a row that has newer ones is passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from hopstream.arrays import Array, IntArray, offsets_of
from hopstream.partition.book import EdgeOwner, Owner, ends_of
from hopstream.partition.manifest import Manifest, read_manifest
from hopstream.partition.paths import overlay_folder
from hopstream.partition.reshard.rows import INDICES, ColumnFile, DatasetRows, RaggedFiles, owner_folder

GAP_BYTES = 1 << 14
"""Stretches of a file that are nearer to each other than this are read as one."""
BLOCK_ITEMS = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class _Places:
    """Where the items, or the elements, of the rows of a part are.

    Attributes:
        starts: int64[rows + 1], where those of each row begin, as they are asked for.
        pieces: int64[rows], the piece that has the row: 0 for the part, then its overlays, oldest first.
        sources: int64[rows], where they begin in that piece.
    """

    starts: IntArray
    pieces: IntArray
    sources: IntArray

    def spans(self, begin: int, end: int, max_gap: int) -> Iterator[tuple[int, int, int, IntArray, IntArray]]:
        """What to read for ``[begin, end)``: piece, first and last position in it, and which of these go where.

        Both are int64[n]: positions in what is read, and in what was asked for.
        """
        first = int(np.searchsorted(self.starts, begin, side="right")) - 1
        last = int(np.searchsorted(self.starts, end, side="left"))
        starts = np.maximum(self.starts[first:last], begin)
        counts = np.minimum(self.starts[first + 1 : last + 1], end) - starts
        sources = self.sources[first:last] + (starts - self.starts[first:last])
        for piece in np.unique(self.pieces[first:last]).tolist():
            of_piece = np.flatnonzero((self.pieces[first:last] == piece) & (counts > 0))
            from_, to, length = sources[of_piece], starts[of_piece] - begin, counts[of_piece]
            cuts = np.flatnonzero(from_[1:] - (from_ + length)[:-1] > max_gap) + 1
            for rows in np.split(np.arange(len(of_piece)), cuts):
                if len(rows):
                    begin_at, lengths = int(from_[rows[0]]), length[rows]
                    inside = np.arange(int(lengths.sum()), dtype=np.int64)
                    inside -= np.repeat(offsets_of(lengths)[:-1], lengths)
                    taken = (np.repeat(from_[rows] - begin_at, lengths) + inside).astype(np.int64, copy=False)
                    yield (
                        piece,
                        begin_at,
                        int(from_[rows[-1]] + lengths[-1]),
                        taken,
                        np.repeat(to[rows], lengths) + inside,
                    )


class NewestRows(DatasetRows):
    """The rows of a dataset that was appended to, as they are now.

    [Cost] 24 bytes for each row of a part whose rows were appended to, and 24 more for each ragged column.
    """

    def __init__(self, root: Path, manifest: Manifest) -> None:
        """Look at a dataset; nothing is read yet."""
        super().__init__(root, manifest)
        self._places: dict[tuple[EdgeOwner, int], _Places] = {}
        self._element_places: dict[tuple[Owner, int, str], _Places] = {}

    def starts(self, owner: Owner, part: int, first_row: int, stop_row: int) -> IntArray:
        """As ``DatasetRows.starts``."""
        if not self._is_changed(owner, part):
            return super().starts(owner, part, first_row, stop_row)
        return self._items(owner, part).starts[first_row : stop_row + 1]

    def num_items(self, owner: Owner, part: int) -> int:
        """How many items a part has."""
        if isinstance(owner, str):
            return super().num_items(owner, part)
        return int(self.book.edges_of_parts(owner)[part])

    def read(self, owner: Owner, part: int, column: ColumnFile, begin: int, end: int) -> Array:
        """As ``DatasetRows.read``."""
        if not self._is_changed(owner, part):
            return super().read(owner, part, column, begin, end)
        is_indices = column.name == INDICES

        def read(piece: int, first: int, stop: int) -> Array:
            name = str(self._folder(owner, part, piece) / column.name)
            values = self._read(name, first, stop, is_summed=piece == 0)
            if is_indices and not isinstance(owner, str):
                self._check_range(name, values, self.book.num_ids(ends_of(*owner)[1]))
            return values

        return _gathered(self._items(owner, part), column, begin, end, read)

    def value_starts(self, owner: Owner, part: int, column: RaggedFiles, begin: int, end: int) -> IntArray:
        """As ``DatasetRows.value_starts``."""
        if not self._is_changed(owner, part):
            return super().value_starts(owner, part, column, begin, end)
        items, elements = self._items(owner, part), self._elements(owner, part, column)
        row = min(int(np.searchsorted(items.starts, begin, side="right")) - 1, len(items.pieces) - 1)
        if begin == end:
            return elements.starts[-1:] if begin == items.starts[-1] else self._offset(owner, part, column, begin, row)
        lengths = np.zeros(end - begin, np.int64)
        for piece, first, stop, taken, targets in items.spans(begin, end, GAP_BYTES // 8):
            lengths[targets] = np.diff(self._offsets(owner, part, column, piece, first, stop))[taken]
        found: IntArray = offsets_of(lengths) + self._offset(owner, part, column, begin, row)[0]
        return found

    def read_values(self, owner: Owner, part: int, column: RaggedFiles, begin: int, end: int) -> Array:
        """As ``DatasetRows.read_values``."""
        if not self._is_changed(owner, part):
            return super().read_values(owner, part, column, begin, end)

        def read(piece: int, first: int, stop: int) -> Array:
            return self._read(str(self._folder(owner, part, piece) / column.values.name), first, stop)

        return _gathered(self._elements(owner, part, column), column.values, begin, end, read)

    def _offset(self, owner: Owner, part: int, column: RaggedFiles, item: int, row: int) -> IntArray:
        """int64[1], where the elements of an item of a row begin."""
        items, elements = self._items(owner, part), self._elements(owner, part, column)
        at = int(items.sources[row]) + item - int(items.starts[row])
        here: IntArray = self._offsets(owner, part, column, int(items.pieces[row]), at, at)
        here += int(elements.starts[row]) - int(elements.sources[row])
        return here

    def _offsets(self, owner: Owner, part: int, column: RaggedFiles, piece: int, first: int, stop: int) -> IntArray:
        """int64[stop - first + 1], where the elements of some items begin in their piece."""
        folder = self._folder(owner, part, piece)
        name = str(folder / column.offsets.name)
        offsets = self._read(name, first, stop + 1)
        self._check_ascending(name, offsets, self.manifest.files[str(folder / column.values.name)].shape[0])
        return offsets

    def _is_changed(self, owner: Owner, part: int) -> bool:
        return not isinstance(owner, str) and any(overlay.part == part for overlay in self.book.overlays(owner))

    def _folder(self, owner: Owner, part: int, piece: int) -> PurePosixPath:
        if piece == 0 or isinstance(owner, str):
            return owner_folder(part, owner)
        overlays = [overlay for overlay in self.book.overlays(owner) if overlay.part == part]
        return overlay_folder(part, overlays[piece - 1].delta, *owner)

    def _items(self, owner: Owner, part: int) -> _Places:
        """Where the newest edges of a part's rows are."""
        if isinstance(owner, str):
            raise TypeError(f"nodes of {owner} have no edges")
        if (owner, part) not in self._places:
            self._places[owner, part] = self._find_items(owner, part)
        return self._places[owner, part]

    def _find_items(self, owner: EdgeOwner, part: int) -> _Places:
        offsets = self.book.node_offsets[ends_of(*owner)[0]]
        num_rows = int(offsets[part + 1] - offsets[part])
        indptr = super().starts(owner, part, 0, num_rows)
        pieces, sources, degrees = np.zeros(num_rows, np.int64), indptr[:-1].copy(), np.diff(indptr)
        overlays = [overlay for overlay in self.book.overlays(owner) if overlay.part == part]
        for piece, overlay in enumerate(overlays, 1):
            folder = overlay_folder(part, overlay.delta, *owner)
            rows = self._read(str(folder / "row.npy"), 0, overlay.num_rows)
            self._check_range(str(folder / "row.npy"), rows, num_rows)
            indptr = self._read(str(folder / "indptr.npy"), 0, overlay.num_rows + 1)
            self._check_ascending(str(folder / "indptr.npy"), indptr, overlay.num_edges)
            pieces[rows], sources[rows], degrees[rows] = piece, indptr[:-1], np.diff(indptr)
        return _Places(offsets_of(degrees), pieces, sources)

    def _elements(self, owner: Owner, part: int, column: RaggedFiles) -> _Places:
        """Where the elements of a ragged column of a part's rows are."""
        items = self._items(owner, part)
        key = (owner, part, str(column.values.name))
        if key not in self._element_places:
            counts = np.diff(items.starts)
            begins, ends = np.empty(len(counts), np.int64), np.empty(len(counts), np.int64)
            for piece in np.unique(items.pieces).tolist():
                rows = np.flatnonzero(items.pieces == piece)
                first, last = items.sources[rows], items.sources[rows] + counts[rows]
                begins[rows] = self._offsets_at(owner, part, column, piece, first)
                ends[rows] = self._offsets_at(owner, part, column, piece, last)
            self._element_places[key] = _Places(offsets_of(ends - begins), items.pieces, begins)
        return self._element_places[key]

    def _offsets_at(self, owner: Owner, part: int, column: RaggedFiles, piece: int, positions: IntArray) -> IntArray:
        """int64[n], where the elements of some items, ascending, begin in their piece; read in blocks."""
        found = np.empty(len(positions), np.int64)
        done = 0
        while done < len(positions):
            first = int(positions[done])
            stop = int(np.searchsorted(positions, first + BLOCK_ITEMS, side="right"))
            last = int(positions[stop - 1])
            found[done:stop] = self._offsets(owner, part, column, piece, first, last)[positions[done:stop] - first]
            done = stop
        return found


def _gathered(
    places: _Places, column: ColumnFile, begin: int, end: int, read: Callable[[int, int, int], Array]
) -> Array:
    values = np.empty((end - begin, *column.shape), column.dtype)
    if not values.nbytes:
        return values
    for piece, first, stop, taken, targets in places.spans(begin, end, GAP_BYTES // column.item_bytes):
        values[targets] = read(piece, first, stop)[taken]
    return values


def open_rows(root: str | Path) -> DatasetRows:
    """The rows of the dataset in a folder, as they are now.

    Raises:
        FormatError: The folder is no finished dataset of a format that this version reads.
        ChecksumError: The manifest is not the one that was written.
    """
    manifest = read_manifest(root)
    return (NewestRows if manifest.book.deltas else DatasetRows)(Path(root), manifest)
