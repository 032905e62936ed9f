"""What do the rows of a dataset hold, where some of them lie in what was appended?

Positions of items and of elements are those of a part that has the newest edges of every row, one row after the other.
What the part itself, or an older delta, says of a row that has newer ones is passed over.

[Memory] Where rows are is worked out for a stretch of rows at a time, from the offsets of the part and the rows of its
    overlays in the stretch. What stays is where every ``STEP_ROWS``-th row begins, and every ``STEP_ROWS``-th row of an
    overlay, so that a stretch can be found from a row or from a position.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import Array, IntArray, offsets_of
from hopstream.dataset.book import EdgeOwner, Overlay, Owner, ends_of
from hopstream.dataset.manifest import Manifest, read_manifest
from hopstream.dataset.paths import overlay_folder
from hopstream.dataset.roots import check_is_here
from hopstream.dataset.rows import INDICES, ColumnFile, DatasetRows, RaggedFiles, owner_folder
from hopstream.kernels.gather import word_dtype
from hopstream.kernels.segments import scatter_rows

GAP_BYTES = 1 << 14
"""Stretches of a file that are nearer to each other than this are read as one."""
BLOCK_ITEMS = 1 << 20
STEP_ROWS = 1 << 12
WINDOW_ROWS = 1 << 16
"""Rows that are looked at together where nobody says how many."""
MAX_ROWS = 1 << 18
"""Rows of all windows that are kept together; a window that is larger is kept alone."""


@dataclass(frozen=True, slots=True, eq=False)
class _Places:
    """Where the items, or the elements, of rows that follow each other are.

    Attributes:
        starts: int64[rows + 1], where those of each row begin, as they are asked for.
        pieces: int32[rows], the piece that has the row: 0 for the part, then its overlays, oldest first.
        sources: int64[rows], where they begin in that piece.
    """

    starts: IntArray
    pieces: NDArray[np.int32]
    sources: IntArray

    def cover(self, begin: int, end: int) -> bool:
        """All positions of ``[begin, end)`` are in these rows."""
        return bool(self.starts[0] <= begin and end <= self.starts[-1])

    def gather(self, begin: int, end: int, max_gap: int, read: Callable[[int, int, int], Array], values: Array) -> None:
        """Fill in what these rows have of ``[begin, end)``.

        Args:
            begin: The position of the first value.
            end: One past that of the last.
            max_gap: Values that may be read for nothing between two rows.
            read: ``read(piece, first, stop)``, values of a piece.
            values: ``[end - begin, ...]``, out.
        """
        first = max(0, int(np.searchsorted(self.starts, begin, side="right")) - 1)
        last = min(len(self.pieces), int(np.searchsorted(self.starts, end, side="left")))
        starts = np.maximum(self.starts[first:last], begin)
        counts = np.minimum(self.starts[first + 1 : last + 1], end) - starts
        sources = self.sources[first:last] + (starts - self.starts[first:last])
        word = word_dtype(values.nbytes // len(values))
        out = values.reshape(-1).view(word)
        for piece in np.unique(self.pieces[first:last]).tolist():
            rows = np.flatnonzero((self.pieces[first:last] == piece) & (counts > 0))
            if not len(rows):
                continue
            at, lengths, targets = sources[rows], counts[rows], starts[rows] - begin
            # However many short gaps there are, no more is read at a time than was asked for and one row.
            reaches = (at - at[0]) // (end - begin)
            is_cut = (at[1:] - (at + lengths)[:-1] > max_gap) | (reaches[1:] != reaches[:-1])
            cuts = [0, *(np.flatnonzero(is_cut) + 1).tolist(), len(rows)]
            for low, high in itertools.pairwise(cuts):
                span = slice(low, high)
                here = read(piece, int(at[low]), int(at[high - 1] + lengths[high - 1]))
                flat = here.reshape(-1).view(word)
                scatter_rows(at[span] - at[low], targets[span], lengths[span], len(out) // len(values), flat, out)


@dataclass(frozen=True, slots=True, eq=False)
class _Window:
    """Where rows ``[first_row, stop_row)`` of a part are, and the elements of ragged columns that were asked for."""

    first_row: int
    stop_row: int
    items: _Places
    elements: dict[str, _Places] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class _NewRows:
    """The rows of one overlay: every ``STEP_ROWS``-th, and how many there are."""

    folder: PurePosixPath
    overlay: Overlay
    steps: IntArray


class NewestRows(DatasetRows):
    """The rows of a dataset that was appended to, as they are now.

    [Cost] 20 bytes for each of up to ``MAX_ROWS`` rows, and 16 more for each ragged column.
    """

    def __init__(self, root: Path, manifest: Manifest) -> None:
        """Look at a dataset; nothing is read yet."""
        super().__init__(root, manifest)
        self._windows: dict[tuple[EdgeOwner, int], _Window] = {}
        self._new_rows: dict[tuple[EdgeOwner, int], list[_NewRows]] = {}
        self._item_steps: dict[tuple[EdgeOwner, int], IntArray] = {}
        self._element_steps: dict[tuple[EdgeOwner, int, str], IntArray] = {}

    def starts(self, owner: Owner, part: int, first_row: int, stop_row: int) -> IntArray:
        """As ``DatasetRows.starts``."""
        if isinstance(owner, str) or not self._overlays(owner, part):
            return super().starts(owner, part, first_row, stop_row)
        return self._window(owner, part, first_row, stop_row).items.starts

    def num_items(self, owner: Owner, part: int) -> int:
        """How many items a part has."""
        if isinstance(owner, str):
            return super().num_items(owner, part)
        return int(self.book.edges_of_parts(owner)[part])

    def read(self, owner: Owner, part: int, column: ColumnFile, begin: int, end: int) -> Array:
        """As ``DatasetRows.read``."""
        if isinstance(owner, str) or not self._overlays(owner, part):
            return super().read(owner, part, column, begin, end)
        num_others = self.book.num_ids(ends_of(*owner)[1])

        def read(piece: int, first: int, stop: int) -> Array:
            name = str(self._folder(owner, part, piece) / column.name)
            values = self._read(name, first, stop, is_summed=piece == 0)
            if column.name == INDICES:
                self._check_range(name, values, num_others)
            return values

        values = np.empty((end - begin, *column.shape), column.dtype)
        if values.nbytes:
            for window in self._covering(owner, part, None, begin, end):
                window.items.gather(begin, end, GAP_BYTES // column.item_bytes, read, values)
        return values

    def value_starts(self, owner: Owner, part: int, column: RaggedFiles, begin: int, end: int) -> IntArray:
        """As ``DatasetRows.value_starts``; of no items it is any position."""
        if isinstance(owner, str) or not self._overlays(owner, part):
            return super().value_starts(owner, part, column, begin, end)

        def read(piece: int, first: int, stop: int) -> Array:
            return np.diff(self._offsets(owner, part, column, piece, first, stop))

        lengths, start = np.zeros(end - begin, np.int64), -1
        if begin < end:
            for window in self._covering(owner, part, None, begin, end):
                if start < 0 and window.items.cover(begin, begin + 1):
                    start = self._element_of(owner, part, column, window, begin)
                window.items.gather(begin, end, GAP_BYTES // 8, read, lengths)
        found: IntArray = offsets_of(lengths)
        found += max(0, start)
        return found

    def read_values(self, owner: Owner, part: int, column: RaggedFiles, begin: int, end: int) -> Array:
        """As ``DatasetRows.read_values``."""
        if isinstance(owner, str) or not self._overlays(owner, part):
            return super().read_values(owner, part, column, begin, end)

        def read(piece: int, first: int, stop: int) -> Array:
            return self._read(str(self._folder(owner, part, piece) / column.values.name), first, stop)

        values = np.empty((end - begin, *column.values.shape), column.values.dtype)
        if values.nbytes:
            for window in self._covering(owner, part, column, begin, end):
                places = self._elements(owner, part, column, window)
                places.gather(begin, end, GAP_BYTES // column.values.item_bytes, read, values)
        return values

    def _overlays(self, owner: EdgeOwner, part: int) -> list[Overlay]:
        return [overlay for overlay in self.book.overlays(owner) if overlay.part == part]

    def _folder(self, owner: EdgeOwner, part: int, piece: int) -> PurePosixPath:
        if piece == 0:
            return owner_folder(part, owner)
        return overlay_folder(part, self._overlays(owner, part)[piece - 1].delta, *owner)

    def _num_rows(self, owner: EdgeOwner, part: int) -> int:
        offsets = self.book.node_offsets[ends_of(*owner)[0]]
        return int(offsets[part + 1] - offsets[part])

    def _covering(
        self, owner: EdgeOwner, part: int, column: RaggedFiles | None, begin: int, end: int
    ) -> Iterator[_Window]:
        """Windows that have all positions of items, or of elements of a column, in ``[begin, end)``."""
        window = self._windows.get((owner, part))
        if window is not None:
            places = window.items if column is None else self._elements(owner, part, column, window)
            if places.cover(begin, end):
                yield window
                return
        steps = self._steps(owner, part) if column is None else self._steps_of_elements(owner, part, column)
        first = int(np.searchsorted(steps, begin, side="right")) - 1
        stop = int(np.searchsorted(steps, end, side="left"))
        for first_row in range(first * STEP_ROWS, stop * STEP_ROWS, WINDOW_ROWS):
            stop_row = min(first_row + WINDOW_ROWS, stop * STEP_ROWS, self._num_rows(owner, part))
            yield self._window(owner, part, first_row, stop_row)

    def _window(self, owner: EdgeOwner, part: int, first_row: int, stop_row: int) -> _Window:
        """Some rows of a part; they are kept for what is asked next."""
        key = (owner, part)
        window = self._windows.pop(key, None)
        if window is None or (window.first_row, window.stop_row) != (first_row, stop_row):
            num_kept = sum(kept.stop_row - kept.first_row for kept in self._windows.values())
            while self._windows and num_kept + stop_row - first_row > MAX_ROWS:
                oldest = self._windows.pop(next(iter(self._windows)))
                num_kept -= oldest.stop_row - oldest.first_row
            window = _Window(first_row, stop_row, self._items(owner, part, first_row, stop_row))
        self._windows[key] = window
        return window

    def _items(self, owner: EdgeOwner, part: int, first_row: int, stop_row: int) -> _Places:
        """Where the newest edges of some rows are."""
        step = first_row // STEP_ROWS
        start = int(self._steps(owner, part)[step])
        skipped = first_row - step * STEP_ROWS
        places = self._placed(owner, part, step * STEP_ROWS, stop_row, start)
        return _Places(places.starts[skipped:], places.pieces[skipped:], places.sources[skipped:])

    def _placed(self, owner: EdgeOwner, part: int, first_row: int, stop_row: int, start: int) -> _Places:
        """Where the newest edges of some rows are, if those of the first begin at ``start``."""
        indptr = super().starts(owner, part, first_row, stop_row)
        pieces, sources, degrees = np.zeros(stop_row - first_row, np.int32), indptr[:-1].copy(), np.diff(indptr)
        for piece, new in enumerate(self._rows_of_overlays(owner, part), 1):
            first_entry, rows = self._entries(new, first_row, stop_row)
            if not len(rows):
                continue
            name = str(new.folder / "indptr.npy")
            indptr = self._read(name, first_entry, first_entry + len(rows) + 1)
            self._check_ascending(name, indptr, new.overlay.num_edges)
            rows -= first_row
            pieces[rows], sources[rows], degrees[rows] = piece, indptr[:-1], np.diff(indptr)
        starts: IntArray = offsets_of(degrees)
        starts += start
        return _Places(starts, pieces, sources)

    def _entries(self, new: _NewRows, first_row: int, stop_row: int) -> tuple[int, IntArray]:
        """Which of a stretch of rows an overlay has, and the place of the first of them in it."""
        low = max(0, int(np.searchsorted(new.steps, first_row)) - 1) * STEP_ROWS
        high = min(int(np.searchsorted(new.steps, stop_row)) * STEP_ROWS, new.overlay.num_rows)
        if low >= high:
            return low, np.empty(0, np.int64)
        rows = self._read(str(new.folder / "row.npy"), low, high)
        begin, end = np.searchsorted(rows, (first_row, stop_row)).tolist()
        return low + begin, rows[begin:end]

    def _rows_of_overlays(self, owner: EdgeOwner, part: int) -> list[_NewRows]:
        """The rows of each overlay of a part, which are read once.

        Raises:
            FormatError: They do not ascend, or are not rows of the part.
        """
        key = (owner, part)
        if key not in self._new_rows:
            num_rows, found = self._num_rows(owner, part), []
            for overlay in self._overlays(owner, part):
                folder = overlay_folder(part, overlay.delta, *owner)
                name, last, steps = str(folder / "row.npy"), -1, [np.empty(0, np.int64)]
                for begin in range(0, overlay.num_rows, WINDOW_ROWS):
                    rows = self._read(name, begin, min(begin + WINDOW_ROWS, overlay.num_rows))
                    self._check_range(name, rows, num_rows)
                    if int(rows[0]) <= last or bool(np.any(rows[1:] <= rows[:-1])):
                        self._fail(name, "rows must ascend, each once")
                    last = int(rows[-1])
                    steps.append(rows[::STEP_ROWS].copy())
                found.append(_NewRows(folder, overlay, np.concatenate(steps)))
            self._new_rows[key] = found
        return self._new_rows[key]

    def _steps(self, owner: EdgeOwner, part: int) -> IntArray:
        """int64[n + 1], where the items of every ``STEP_ROWS``-th row begin, and where those of the last one end."""
        key = (owner, part)
        if key not in self._item_steps:
            steps, total = [], 0
            for first_row, stop_row in self._stretches_of_rows(owner, part):
                starts = self._placed(owner, part, first_row, stop_row, total).starts
                steps.append(starts[:-1:STEP_ROWS].copy())
                total = int(starts[-1])
            self._item_steps[key] = np.concatenate([*steps, np.array([total], np.int64)])
        return self._item_steps[key]

    def _steps_of_elements(self, owner: EdgeOwner, part: int, column: RaggedFiles) -> IntArray:
        """The same for the elements of a ragged column."""
        key = (owner, part, str(column.values.name))
        if key not in self._element_steps:
            steps, total = [], 0
            for first_row, stop_row in self._stretches_of_rows(owner, part):
                items = self._items(owner, part, first_row, stop_row)
                starts = self._elements_placed(owner, part, column, items, total).starts
                steps.append(starts[:-1:STEP_ROWS].copy())
                total = int(starts[-1])
            self._element_steps[key] = np.concatenate([*steps, np.array([total], np.int64)])
        return self._element_steps[key]

    def _stretches_of_rows(self, owner: EdgeOwner, part: int) -> Iterator[tuple[int, int]]:
        num_rows = self._num_rows(owner, part)
        for first_row in range(0, num_rows, WINDOW_ROWS):
            yield first_row, min(first_row + WINDOW_ROWS, num_rows)

    def _elements(self, owner: EdgeOwner, part: int, column: RaggedFiles, window: _Window) -> _Places:
        """Where the elements of a ragged column of the rows of a window are."""
        name = str(column.values.name)
        if name not in window.elements:
            step = window.first_row // STEP_ROWS
            start = int(self._steps_of_elements(owner, part, column)[step])
            skipped = window.first_row - step * STEP_ROWS
            items = self._items(owner, part, step * STEP_ROWS, window.stop_row) if skipped else window.items
            places = self._elements_placed(owner, part, column, items, start)
            window.elements[name] = _Places(places.starts[skipped:], places.pieces[skipped:], places.sources[skipped:])
        return window.elements[name]

    def _elements_placed(self, owner: EdgeOwner, part: int, column: RaggedFiles, items: _Places, start: int) -> _Places:
        """Where the elements of some rows are, if those of the first begin at ``start``."""
        counts = np.diff(items.starts)
        bounds = np.empty((len(counts), 2), np.int64)
        for piece in np.unique(items.pieces).tolist():
            rows = np.flatnonzero(items.pieces == piece)
            positions = np.stack([items.sources[rows], items.sources[rows] + counts[rows]], axis=1)
            bounds[rows] = self._offsets_at(owner, part, column, piece, positions.reshape(-1)).reshape(-1, 2)
        starts: IntArray = offsets_of(bounds[:, 1] - bounds[:, 0])
        starts += start
        return _Places(starts, items.pieces, bounds[:, 0].copy())

    def _element_of(self, owner: EdgeOwner, part: int, column: RaggedFiles, window: _Window, item: int) -> int:
        """Where the elements of an item of a window begin."""
        items, elements = window.items, self._elements(owner, part, column, window)
        row = int(np.searchsorted(items.starts, item, side="right")) - 1
        at = int(items.sources[row]) + item - int(items.starts[row])
        here = self._offsets(owner, part, column, int(items.pieces[row]), at, at)
        return int(here[0]) + int(elements.starts[row]) - int(elements.sources[row])

    def _offsets(self, owner: EdgeOwner, part: int, column: RaggedFiles, piece: int, first: int, stop: int) -> IntArray:
        """int64[stop - first + 1], where the elements of some items begin in their piece."""
        folder = self._folder(owner, part, piece)
        name = str(folder / column.offsets.name)
        offsets = self._read(name, first, stop + 1)
        self._check_ascending(name, offsets, self.manifest.files[str(folder / column.values.name)].shape[0])
        return offsets

    def _offsets_at(
        self, owner: EdgeOwner, part: int, column: RaggedFiles, piece: int, positions: IntArray
    ) -> IntArray:
        """int64[len(positions)], where the elements of some items, ascending, begin in their piece; read in blocks."""
        found = np.empty(len(positions), np.int64)
        done = 0
        while done < len(positions):
            first = int(positions[done])
            stop = int(np.searchsorted(positions, first + BLOCK_ITEMS, side="right"))
            last = int(positions[stop - 1])
            found[done:stop] = self._offsets(owner, part, column, piece, first, last)[positions[done:stop] - first]
            done = stop
        return found


def open_rows(root: str | Path) -> DatasetRows:
    """The rows of the dataset in a folder, as they are now.

    Raises:
        FormatError: The folder is no finished dataset of a format that this version reads, or a part is not in it.
        ChecksumError: The manifest is not the one that was written.
    """
    manifest = read_manifest(root)
    for part in range(manifest.book.num_parts):
        check_is_here(Path(root), part, manifest.dataset_id)
    return (NewestRows if manifest.book.deltas else DatasetRows)(Path(root), manifest)
