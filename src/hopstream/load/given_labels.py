"""Reads the label nodes of anchors that the user lists.

Whatever form they are given in becomes one ragged row of keys per anchor, checked once; they travel to servers as that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hopstream.arrays import Array, IntArray, RaggedArray, offsets_of, to_array
from hopstream.checks import check_choice
from hopstream.errors import IdRangeError, SchemaError, SettingsError
from hopstream.kernels.hashing import derive_seed
from hopstream.load.labels import LabelName, LabelNodes, Labels, Supervision, draw_labels, read_supervision
from hopstream.schema import Direction, EdgeType, GraphSchema, is_edge_type, type_label
from hopstream.store.contract import Store

PADDING = -1
"""What fills up the rows of a matrix; it may stand anywhere in them."""
LabelRows = RaggedArray | Sequence[ArrayLike] | ArrayLike
LabelsOfType = LabelRows | tuple[LabelRows, LabelRows | None]
GivenLabelsLike = Mapping[EdgeType, LabelsOfType] | Mapping[str, LabelsOfType]
"""Supervision edge type to positives, or to a tuple of positives and negatives: one row of keys per anchor each."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GivenLabels:
    """Label nodes of all anchors of a loader.

    Attributes:
        labels: The edge types, the direction and how many are drawn.
        rows: Supervision edge type and what they are, to keys: row ``i`` is of the anchor at position ``i``. Positives
            of every supervision edge type come first.
    """

    labels: Labels
    rows: Mapping[tuple[EdgeType, LabelName], RaggedArray]

    def fingerprint(self) -> str:
        """Hex digits that change when the labels do; takes about a second per gigabyte of keys."""
        digest = hashlib.blake2b(digest_size=16)
        for (edge_type, name), rows in self.rows.items():
            digest.update(f"{type_label(edge_type)}\x1f{name}\x1f{len(rows)}\x1f".encode())
            digest.update(rows.offsets.data)
            digest.update(rows.values.data)
        return digest.hexdigest()

    def to_option(self) -> dict[EdgeType, tuple[RaggedArray, RaggedArray | None]]:
        """The same labels as ``read_given_labels`` takes them, in the form that is sent to servers."""
        return {t: (self.rows[t, "y_positive"], self.rows.get((t, "y_negative"))) for t in self.labels.positive}


class GivenLabelReader:
    """Hands out labels that a user gave."""

    def __init__(self, given: GivenLabels, ids_of: Callable[[str, IntArray], IntArray]) -> None:
        """Take labels from ``given``; ``ids_of`` finds ids of a node type by key."""
        self._given = given
        self._ids_of = ids_of

    def read(self, positions: IntArray, anchor_ids: IntArray, rng_seed: int) -> list[LabelNodes]:
        """See ``LabelReader.read``; keys of one node type are looked up in one call."""
        labels = self._given.labels
        found: list[tuple[EdgeType, LabelName, IntArray, IntArray]] = []
        by_type: dict[str, list[IntArray]] = {}
        for (edge_type, name), rows in self._given.rows.items():
            taken = rows.take(positions)
            seed = derive_seed("labels", rng_seed, name, type_label(edge_type))
            drawn, counts = draw_labels(np.diff(taken.offsets), labels.max_labels, seed)
            found.append((edge_type, name, counts, taken.values[drawn]))
            by_type.setdefault(labels.label_type(edge_type), []).append(found[-1][3])
        pieces = {
            t: iter(np.split(self._ids_of(t, np.concatenate(keys)), np.cumsum([len(some) for some in keys])[:-1]))
            for t, keys in by_type.items()
        }
        return [
            LabelNodes(
                edge_type=edge_type,
                name=name,
                held_in=edge_type,
                node_type=labels.label_type(edge_type),
                counts=counts,
                ids=next(pieces[labels.label_type(edge_type)]),
            )
            for edge_type, name, counts, _ in found
        ]


def read_given_labels(
    store: Store, supervision: Supervision, given: GivenLabelsLike, direction: Direction, max_labels: int
) -> GivenLabels:
    """Check labels that the user gave against a store, and bring them into one form.

    Args:
        store: The graph's store; supervision edge types need not be in its schema, but their ends must.
        supervision: The edge types that ``given`` has labels of.
        given: See ``GivenLabelsLike``. Rows are a ``RaggedArray``, a list of arrays, or a matrix padded with -1.
        direction: ``out``: anchors are sources of supervision edges; ``in``: they are destinations.
        max_labels: Most labels of one anchor, edge type and kind; -1 for all.

    Raises:
        SettingsError: Types do not belong together, an edge type is missing or has no positives, or rows have another
            form or are not integers.
        UnknownNameError: The graph has no such edge type or node type.
        IdRangeError: A key outside 0..n-1 of the label type; the message names row and key.
    """
    check_choice("label_direction", direction, ("in", "out"))
    if not isinstance(given, Mapping):
        raise SettingsError(f"labels is a {type(given).__name__}; give supervision edge type to rows of keys")
    schema = store.schema
    labels = read_supervision(supervision, lambda one: _edge_type_of(schema, one), direction, max_labels)
    by_type = {_edge_type_of(schema, edge_type): value for edge_type, value in given.items()}
    if set(by_type) != set(labels.positive) or len(by_type) < len(given):
        raise SettingsError(
            f"labels are of {', '.join(map(type_label, by_type)) or 'no edge type'}; supervision names "
            f"{', '.join(map(type_label, labels.positive))}: give both the same edge types, each once"
        )
    kinds: dict[tuple[EdgeType, LabelName], RaggedArray] = {}
    for place, name in enumerate[LabelName](("y_positive", "y_negative")):
        for edge_type in labels.positive:
            node_type = labels.label_type(edge_type)
            where = f"labels of {type_label(edge_type)}, {('positives', 'negatives')[place]}"
            rows = _both(edge_type, by_type[edge_type])[place]
            if rows is not None:
                kinds[edge_type, name] = _read_rows(where, rows, node_type, store.book.num_ids(node_type))
    return GivenLabels(labels=labels, rows=kinds)


def check_num_rows(given: GivenLabels, num_anchors: int) -> None:
    """Raise ``SettingsError`` unless every anchor has a row."""
    for (edge_type, name), rows in given.rows.items():
        if len(rows) != num_anchors:
            raise SettingsError(
                f"labels of {type_label(edge_type)}, {name.removeprefix('y_')}s, have {len(rows)} rows; there are "
                f"{num_anchors} anchors: give each a row, an empty one where it has no labels"
            )


def _edge_type_of(schema: GraphSchema, given: object) -> EdgeType:
    """An edge type of the graph, or another one between two of its node types, as a tuple or a list."""
    named = tuple(given) if isinstance(given, list) else given
    if not is_edge_type(named):
        return schema.edge_type_of(given)
    for end in (named[0], named[2]):
        schema.check_node_type(end)
    return named


def _both(edge_type: EdgeType, given: LabelsOfType) -> tuple[LabelRows, LabelRows | None]:
    """Positives and negatives: a tuple is both, everything else is positives."""
    positives, negatives = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
    if positives is None or isinstance(positives, tuple):
        raise SettingsError(
            f"labels of {type_label(edge_type)} have no rows of positives, got a {type(positives).__name__}; give one "
            "row of keys per anchor, or a tuple of two such: positives and negatives, or None for no negatives"
        )
    return positives, negatives


def _read_rows(where: str, given: Any, node_type: str, num_nodes: int) -> RaggedArray:
    """One row of int64 keys per anchor, in arrays of their own.

    Raises:
        SettingsError: The rows are of another form, or not integers.
        IdRangeError: A key outside 0..n-1.
    """
    try:
        rows = _to_ragged(given)
    except (SchemaError, TypeError, ValueError, RuntimeError) as error:
        raise SettingsError(
            f"{where}: got a {type(given).__name__} ({error}); give a RaggedArray, a list of one-dimensional arrays, "
            f"or a matrix padded with {PADDING}, of integer keys"
        ) from error
    values = rows.values
    if len(values) and (int(values.min()) < 0 or int(values.max()) >= num_nodes):
        place = int(np.flatnonzero((values < 0) | (values >= num_nodes))[0])
        row = int(np.searchsorted(rows.offsets, place, side="right")) - 1
        hint = f"; only a matrix is padded with {PADDING}" if values[place] == PADDING else ""
        raise IdRangeError(
            f"{where}: row {row} has {values[place]}; keys of {node_type!r} are 0..{num_nodes - 1}{hint}"
        )
    return rows


def _to_ragged(given: Any) -> RaggedArray:
    """Rows of int64, whatever form they have; ``SchemaError`` where they are something else."""
    if isinstance(given, RaggedArray):
        if given.is_string:
            raise SchemaError("it has strings, not integers")
        rows = RaggedArray(_integers(to_array(given.values)), np.array(to_array(given.offsets)))
        rows.check("rows")
        return rows
    if isinstance(given, list):
        arrays = [_integers(to_array(row)) for row in given]
        values = np.concatenate(arrays) if arrays else np.empty(0, np.int64)
        return RaggedArray(values, offsets_of(np.fromiter(map(len, arrays), np.int64, len(arrays))))
    matrix = to_array(given)
    if matrix.ndim != 2:
        raise SchemaError(f"it is {matrix.dtype}{list(matrix.shape)}, which is no matrix")
    is_label = matrix != PADDING
    return RaggedArray(_integers(matrix[is_label]), offsets_of(is_label.sum(axis=1)))


def _integers(array: Array) -> IntArray:
    """A one-dimensional array as int64; an empty one has no dtype of its own."""
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise SchemaError(f"it has {array.dtype}{list(array.shape)}, not integers[n]")
    return array.astype(np.int64)
