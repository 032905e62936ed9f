"""Finds the newest rows of a part: in its own arrays, or in an overlay if an append changed the row.

The parts and the overlays of an edge type and direction are its *pieces*. ``newest_spans`` alone decides which piece
has the newest edges of a row, both for mapped arrays (``RowReader``) and for files (``DatasetRows``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from hopstream.arrays import Column, IntArray, join_columns, offsets_of, take_column
from hopstream.dataset.book import EdgeEntity, PartitionBook
from hopstream.dataset.chunks import positions_of
from hopstream.dataset.layout import EdgeArrays, OverlayArrays, PartArrays


def overlay_pieces(
    book: PartitionBook, maps: Sequence[PartArrays | None], entity: EdgeEntity
) -> list[OverlayArrays | None]:
    """Return an edge type's overlays in the book's order; None for each whose part is not here."""
    found: list[OverlayArrays | None] = []
    for overlay in book.overlays(entity):
        part = maps[overlay.part]
        found.append(None if part is None else next(o for o in part.overlays[entity] if o.delta == overlay.delta))
    return found


def edge_pieces(book: PartitionBook, maps: Sequence[PartArrays | None], entity: EdgeEntity) -> list[EdgeArrays | None]:
    """Return the edges of each piece of an edge type and direction; None if its part is not here."""
    overlays = overlay_pieces(book, maps, entity)
    return [m.edges[entity] if m else None for m in maps] + [o.edges if o else None for o in overlays]


@dataclass(frozen=True, slots=True, eq=False)
class RowSpans:
    """Locations of the items of some rows; the items of one row are contiguous in one piece.

    Attributes:
        pieces: int64[n], the piece of each row.
        starts: int64[n], the position of the row's first item in that piece.
        counts: int64[n], the row's number of items.
    """

    pieces: IntArray
    starts: IntArray
    counts: IntArray


def newest_spans(
    rows: IntArray, overlay_rows: Sequence[IntArray], offsets: Callable[[int, int, int], IntArray]
) -> RowSpans:
    """Find the newest edges of some rows of a part.

    Args:
        rows: int64[n], rows of the part, ascending.
        overlay_rows: The rows of the part that each overlay replaces, int64[m] each, ascending; oldest overlay first.
        offsets: ``offsets(piece, first, stop)`` returns int64[stop - first + 1], the offsets of the edges of rows
            ``[first, stop)`` of a piece. Piece 0 is the part itself; its overlays follow.

    Returns:
        Spans in these pieces.
    """
    pieces, piece_rows = np.zeros(len(rows), np.int64), np.array(rows, np.int64)
    for piece, touched in enumerate(overlay_rows, 1):
        first, stop = np.searchsorted(touched, (rows[0], rows[-1] + 1)).tolist() if len(rows) else (0, 0)
        here, places = _shared(rows, touched[first:stop])
        pieces[here], piece_rows[here] = piece, first + places
    starts, counts = np.zeros((2, len(rows)), np.int64)
    for piece in np.flatnonzero(np.bincount(pieces)).tolist():
        here = np.flatnonzero(pieces == piece)
        first = int(piece_rows[here[0]])
        bounds = offsets(piece, first, int(piece_rows[here[-1]]) + 1)
        starts[here] = bounds[piece_rows[here] - first]
        counts[here] = bounds[piece_rows[here] - first + 1] - starts[here]
    return RowSpans(pieces, starts, counts)


def _shared(left: IntArray, right: IntArray) -> tuple[IntArray, IntArray]:
    """Return the positions of the common values of two ascending arrays, in each of them."""
    if len(left) > len(right):
        return _shared(right, left)[::-1]
    places = np.minimum(np.searchsorted(right, left), len(right) - 1)
    found = np.flatnonzero(right[places] == left)
    return found, places[found]


@dataclass(frozen=True, slots=True, eq=False)
class RowReader:
    """Reader of the newest rows of one part, edge type and direction from mapped arrays.

    Attributes:
        pieces: The part's own edges, then those of its overlays, oldest first.
        overlay_rows: The rows that each overlay replaces, int64[n] each, ascending.
    """

    pieces: tuple[EdgeArrays, ...]
    overlay_rows: tuple[IntArray, ...]

    @classmethod
    def of(cls, part: PartArrays, entity: EdgeEntity) -> RowReader:
        """Make the reader of a part's rows."""
        overlays = part.overlays.get(entity, ())
        return cls((part.edges[entity], *(o.edges for o in overlays)), tuple(o.rows for o in overlays))

    @property
    def num_rows(self) -> int:
        """Number of rows of the part."""
        return len(self.pieces[0].indptr) - 1

    def spans(self, rows: IntArray) -> RowSpans:
        """Locate the newest edges of some rows, int64[n], ascending; pieces are numbered as in ``pieces``."""
        return newest_spans(
            rows, self.overlay_rows, lambda piece, first, stop: self.pieces[piece].indptr[first : stop + 1]
        )

    def read(self, rows: IntArray) -> EdgeArrays:
        """Return all stored columns of the edges of some rows, in the order of the rows.

        Inside a row, edges stay in stored order.

        Args:
            rows: int64[n], rows of the part, ascending. Memory grows with the number of their edges.

        Returns:
            Edges with an ``indptr`` of the given rows, from 0.
        """
        spans = self.spans(rows)
        indptr = offsets_of(spans.counts)
        taken, targets = [], [np.empty(0, np.int64)]
        for piece in np.flatnonzero(np.bincount(spans.pieces)).tolist() or [0]:
            here = np.flatnonzero(spans.pieces == piece)
            taken.append((self.pieces[piece], positions_of(spans.starts[here], spans.counts[here])))
            targets.append(positions_of(indptr[here], spans.counts[here]))
        order = np.empty(int(indptr[-1]), np.int64)
        order[np.concatenate(targets)] = np.arange(len(order))

        def put(columns: Sequence[Column | None]) -> Any:
            """Join one column of the rows from all pieces; return None if the pieces lack the column."""
            if columns[0] is None:
                return None
            found = [take_column(c, places) for c, (_, places) in zip(columns, taken, strict=True) if c is not None]
            return found[0] if len(found) == 1 else take_column(join_columns(found), order)

        names = [field.name for field in fields(EdgeArrays) if field.name not in ("indptr", "features")]
        return EdgeArrays(
            indptr=indptr,
            features={n: put([edges.features[n] for edges, _ in taken]) for n in self.pieces[0].features},
            **{name: put([getattr(edges, name) for edges, _ in taken]) for name in names},
        )


def newest_part(part: PartArrays) -> PartArrays:
    """Return a part without overlays; the newest rows of a part with overlays are merged in memory."""
    if not part.overlays:
        return part
    merged = {
        entity: RowReader.of(part, entity).read(np.arange(len(edges.indptr) - 1)) if entity in part.overlays else edges
        for entity, edges in part.edges.items()
    }
    return replace(part, edges=merged, overlays={})


def newest_edge_ids(book: PartitionBook, part: PartArrays, entity: EdgeEntity) -> IntArray:
    """Return int64[n], the ids of the edges of a part in the order of ``newest_part``."""
    reader = RowReader.of(part, entity)
    spans = reader.spans(np.arange(reader.num_rows))
    first_ids = book.offsets(entity)[book.pieces_of(entity, part.part)]
    return positions_of(first_ids[spans.pieces] + spans.starts, spans.counts)
