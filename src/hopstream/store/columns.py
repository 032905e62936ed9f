"""Gathers rows of a column from the parts that hold it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import Array, Column, IntArray, RaggedArray, offsets_of
from hopstream.dataset.book import Owner, PartitionBook, owner_label
from hopstream.dataset.layout import EdgeArrays, PartArrays
from hopstream.dataset.overlays import edge_pieces
from hopstream.errors import FormatError, SettingsError, UnknownNameError
from hopstream.kernels.gather import gather_elements, gather_ranges, gather_rows, word_dtype
from hopstream.kernels.memory import address_table
from hopstream.schema import FeatureSchema
from hopstream.store.contract import KEY
from hopstream.store.drawing import check_range


class ColumnTable:
    """Address tables of one column over all parts."""

    def __init__(self, feature: FeatureSchema, columns: Sequence[Column | None]) -> None:
        """Take a column of each part, None where one is not here; the caller keeps them alive."""
        self.feature = feature
        self.word = word_dtype(feature.row_bytes)
        ragged = [c if isinstance(c, RaggedArray) else None for c in columns]
        values = [c.values if isinstance(c, RaggedArray) else c for c in columns]
        self.values = address_table([None if v is None else _as_words(v, self.word) for v in values])
        self.row_offsets = address_table([None if r is None else r.offsets for r in ragged])


def _as_words(values: Array, word: np.dtype[Any]) -> NDArray[Any]:
    if not values.flags.c_contiguous:
        raise FormatError(f"a column of {values.dtype}{list(values.shape)} is not in C order; write the dataset again")
    return values.reshape(-1).view(word) if values.size else np.empty(0, word)


def piece_columns(
    book: PartitionBook, maps: Sequence[PartArrays | None], owner: Owner, name: str
) -> list[Column | None]:
    """A column of each piece of an owner's ids, None where its part is not here.

    Raises:
        UnknownNameError: Edge keys are asked for and the dataset keeps none.
    """
    if isinstance(owner, str):
        return [(m.node_keys[owner] if name == KEY else m.node_features[owner][name]) if m else None for m in maps]
    return [_edge_column(edges, owner, name) if edges else None for edges in edge_pieces(book, maps, owner)]


def _edge_column(edges: EdgeArrays, owner: Owner, name: str) -> Column:
    if name != KEY:
        return edges.features[name]
    if edges.keys is None:
        raise UnknownNameError(
            f"{owner_label(owner)}: the dataset keeps no edge keys; write the parts again with edge keys"
        )
    return edges.keys


def gather_fixed(table: ColumnTable, ids: IntArray, offsets: IntArray, out: Array | None, positions: IntArray) -> Array:
    """Rows of a column of fixed width, in ``out`` if it is given; see ``FetchRequest``.

    Args:
        table: The column.
        ids: int64[n], checked.
        offsets: int64[num_parts + 1], id ranges.
        out: Where to write, or None.
        positions: int64[n] rows of ``out`` to write, or int64[0].

    Raises:
        SettingsError: ``out`` or ``positions`` do not fit.
    """
    feature = table.feature
    if out is None:
        out = np.empty((len(ids), *feature.shape), feature.numpy_dtype)
    elif out.dtype != feature.numpy_dtype or out.shape[1:] != feature.shape or not out.flags.c_contiguous:
        raise SettingsError(f"out is {out.dtype}{list(out.shape)}; the column is {feature}, C-contiguous")
    num_rows = int(positions.max()) + 1 if len(positions) else len(ids)
    if len(out) < num_rows or (len(positions) and (len(positions) != len(ids) or int(positions.min()) < 0)):
        raise SettingsError(f"out has {len(out)} rows for {len(ids)} ids and {len(positions)} positions")
    if feature.row_bytes and len(ids):
        words = out.reshape(len(out), -1).view(table.word)
        gather_rows(ids, offsets, table.values, words, positions)
    return out


def gather_ragged(table: ColumnTable, ids: IntArray, offsets: IntArray, where: str) -> RaggedArray:
    """Rows of a ragged or string column; ``where`` names it in errors, which are those of ``ragged_ranges``."""
    feature = table.feature
    parts, starts, lengths = ragged_ranges(table, ids, offsets, where)
    total = int(lengths.sum())
    values = np.empty((total, *feature.shape), feature.numpy_dtype)
    if feature.row_bytes and total:
        words = cast(Array, values.reshape(total, -1).view(table.word))
        gather_elements(table.values, parts, starts, lengths, words)
    return RaggedArray(values, offsets_of(lengths), feature.is_string)


def ragged_ranges(
    table: ColumnTable, ids: IntArray, offsets: IntArray, where: str
) -> tuple[NDArray[np.int32], IntArray, IntArray]:
    """Part, first element and length of each row of a ragged column, int32[n], int64[n] and int64[n].

    Raises:
        FormatError: A row lies outside its file.
    """
    parts, starts = np.empty(len(ids), np.int32), np.empty(len(ids), np.int64)
    lengths = np.empty(len(ids), np.int64)
    width = table.feature.row_bytes // table.word.itemsize
    total = gather_ranges(ids, offsets, table.row_offsets, table.values, width, parts, starts, lengths)
    check_range(total, ids, where)
    return parts, starts, lengths
