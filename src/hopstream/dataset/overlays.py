"""What are the newest rows of a part, and how are they read?

A part's edges lie in its own arrays and, for rows that were appended to, in overlays. Whoever walks over all edges of a
part asks here which rows still stand in which piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hopstream.arrays import Array, Column, IntArray, RaggedArray, offsets_of
from hopstream.dataset.book import EdgeOwner, PartitionBook
from hopstream.dataset.layout import EdgeArrays, OverlayArrays, PartArrays


def overlay_pieces(
    book: PartitionBook, maps: Sequence[PartArrays | None], owner: EdgeOwner
) -> list[OverlayArrays | None]:
    """The overlays of an edge type and direction in the order of ``PartitionBook.overlays``, None where not here."""
    found: list[OverlayArrays | None] = []
    for overlay in book.overlays(owner):
        part = maps[overlay.part]
        found.append(None if part is None else next(o for o in part.overlays[owner] if o.delta == overlay.delta))
    return found


def edge_pieces(book: PartitionBook, maps: Sequence[PartArrays | None], owner: EdgeOwner) -> list[EdgeArrays | None]:
    """The edges of each piece of an edge type and direction, None where its part is not here."""
    overlays = overlay_pieces(book, maps, owner)
    return [m.edges[owner] if m else None for m in maps] + [o.edges if o else None for o in overlays]


@dataclass(frozen=True, slots=True, eq=False)
class RowReader:
    """The newest rows of one part, edge type and direction.

    Attributes:
        pieces: The part's own edges, then those of its overlays, oldest first.
        overlay_rows: The rows that each overlay stands for, int64[n] each, ascending.
    """

    pieces: tuple[EdgeArrays, ...]
    overlay_rows: tuple[IntArray, ...]

    @classmethod
    def of(cls, part: PartArrays, owner: EdgeOwner) -> RowReader:
        """The reader of a part's rows."""
        overlays = part.overlays.get(owner, ())
        return cls((part.edges[owner], *(o.edges for o in overlays)), tuple(o.rows for o in overlays))

    @property
    def num_rows(self) -> int:
        """Rows of the part."""
        return len(self.pieces[0].indptr) - 1

    def places(self, rows: IntArray) -> tuple[IntArray, IntArray]:
        """Which piece holds the newest of each row, and as which of its rows; int64[n] each.

        Args:
            rows: int64[n], rows of the part.
        """
        pieces, piece_rows = np.zeros(len(rows), np.int64), np.array(rows, np.int64)
        for number, touched in enumerate(self.overlay_rows, 1):
            if len(touched):
                places = np.minimum(np.searchsorted(touched, rows), len(touched) - 1)
                is_here = touched[places] == rows
                pieces[is_here], piece_rows[is_here] = number, places[is_here]
        return pieces, piece_rows

    def degrees(self, rows: IntArray) -> IntArray:
        """int64[n], the number of edges of each row."""
        pieces, piece_rows = self.places(rows)
        degrees = np.zeros(len(rows), np.int64)
        for number, edges in enumerate(self.pieces):
            here = pieces == number
            degrees[here] = edges.indptr[piece_rows[here] + 1] - edges.indptr[piece_rows[here]]
        return degrees

    def edges(self, rows: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """Where the edges of some rows are, in the order of the rows and in stored order inside them.

        Returns:
            indptr: int64[n + 1], from 0.
            pieces: int64[indptr[-1]], the piece of each edge.
            positions: int64[indptr[-1]], its position in the piece.
        """
        pieces, piece_rows = self.places(rows)
        starts, degrees = np.zeros((2, len(rows)), np.int64)
        for number, edges in enumerate(self.pieces):
            here = pieces == number
            starts[here] = edges.indptr[piece_rows[here]]
            degrees[here] = edges.indptr[piece_rows[here] + 1] - starts[here]
        indptr = offsets_of(degrees)
        positions = np.arange(int(indptr[-1]), dtype=np.int64) + np.repeat(starts - indptr[:-1], degrees)
        return indptr, np.repeat(pieces, degrees), positions

    def read(self, rows: IntArray) -> EdgeArrays:
        """All that is stored of the edges of some rows, in the order of the rows and in stored order inside them.

        Args:
            rows: int64[n], rows of the part; memory follows their edges.

        Returns:
            Edges with ``indptr`` of the rows asked for, from 0.
        """
        indptr, of_piece, positions = self.edges(rows)
        used = np.unique(of_piece).tolist() or [0]
        taken = [(np.flatnonzero(of_piece == p), positions[of_piece == p], self.pieces[p]) for p in used]
        return _gathered(indptr, taken)


_Taken = list[tuple[IntArray, IntArray, EdgeArrays]]
"""Where edges go, where they are, and in what."""


def _gathered(indptr: IntArray, taken: _Taken) -> EdgeArrays:
    """Edges that lie in several pieces, put together."""
    first, total = taken[0][2], int(indptr[-1])

    def put(columns: list[Array | None]) -> Array | None:
        if columns[0] is None:
            return None
        out = np.empty((total, *columns[0].shape[1:]), columns[0].dtype)
        for (targets, positions, _), column in zip(taken, columns, strict=True):
            if column is not None:
                out[targets] = column[positions]
        return out

    names = ("keys", "times", "weights", "weight_sums", "weight_order", "weight_alias", "neighbor_keys")
    found = {name: put([getattr(edges, name) for _, _, edges in taken]) for name in names}
    indices = put([edges.indices for _, _, edges in taken])
    features = {name: _put_column(total, [(t, p, e.features[name]) for t, p, e in taken]) for name in first.features}
    return EdgeArrays(indptr=indptr, indices=np.empty(0) if indices is None else indices, features=features, **found)


def _put_column(total: int, taken: list[tuple[IntArray, IntArray, Column]]) -> Column:
    column = taken[0][2]
    if not isinstance(column, RaggedArray):
        out = np.empty((total, *column.shape[1:]), column.dtype)
        for targets, positions, values in taken:
            if isinstance(values, np.ndarray):
                out[targets] = values[positions]
        return out
    joined = join_columns([c.take(positions) for _, positions, c in taken if isinstance(c, RaggedArray)])
    order = np.empty(total, np.int64)
    order[np.concatenate([targets for targets, _, _ in taken])] = np.arange(total)
    return joined.take(order) if isinstance(joined, RaggedArray) else joined


def join_columns(columns: Sequence[Column]) -> Column:
    """Columns of one schema, one after the other."""
    if len(columns) == 1:
        return columns[0]
    ragged = [c for c in columns if isinstance(c, RaggedArray)]
    if not ragged:
        return np.concatenate([c for c in columns if isinstance(c, np.ndarray)])
    lengths = np.concatenate([np.diff(c.offsets) for c in ragged])
    return RaggedArray(np.concatenate([c.values for c in ragged]), offsets_of(lengths), ragged[0].is_string)


def newest_part(part: PartArrays) -> PartArrays:
    """A part without overlays: where it has any, its newest rows are put together in memory."""
    if not part.overlays:
        return part
    merged = {
        owner: RowReader.of(part, owner).read(np.arange(len(edges.indptr) - 1)) if owner in part.overlays else edges
        for owner, edges in part.edges.items()
    }
    return replace(part, edges=merged, overlays={})


def newest_edge_ids(book: PartitionBook, part: PartArrays, owner: EdgeOwner) -> IntArray:
    """int64[n], the ids of the edges of a part as ``newest_part`` has them."""
    reader = RowReader.of(part, owner)
    offsets, overlays = book.offsets(owner), book.overlays(owner)
    firsts = [offsets[part.part], *(offsets[book.num_parts + i] for i, o in enumerate(overlays) if o.part == part.part)]
    _, pieces, positions = reader.edges(np.arange(reader.num_rows))
    return np.array(firsts, np.int64)[pieces] + positions
