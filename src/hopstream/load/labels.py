"""Reads the label nodes of anchors, from edges of the store or from the user's lists.

A loader calls the interface ``LabelReader``; ``StoredLabels`` and ``GivenLabelReader`` implement it. A user's lists are
checked once and become one ragged row of keys per anchor. Servers get them in that form.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, cast

import numpy as np
from numpy.typing import ArrayLike

from hopstream.arrays import Array, IntArray, RaggedArray, find_sorted, offsets_of, to_array
from hopstream.checks import check_choice, read_integer
from hopstream.errors import IdRangeError, SchemaError, SettingsError
from hopstream.kernels.hashing import derive_seed
from hopstream.schema import Direction, EdgeType, GraphSchema, is_edge_type, type_label
from hopstream.store.contract import MAX_COUNT, SampleReply, SampleRequest, Store
from hopstream.store.whole import keeps_edge_keys

Supervision = EdgeType | str | Sequence[EdgeType] | Sequence[str]
Negatives = Mapping[EdgeType, EdgeType] | Mapping[str, str] | EdgeType | str | None
LabelName = Literal["y_positive", "y_negative"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Labels:
    """Edge types of label nodes, their direction and their limits.

    Attributes:
        positive: Supervision edge types.
        negative: Supervision edge type to the edge type of its negatives, if it has one.
        direction: ``out``: anchors are sources of supervision edges; ``in``: they are destinations.
        max_labels: Most labels of one anchor and edge type, drawn uniformly; -1 for all.
        edge_keys: Supervision edge type to int64[n], ascending keys of its edges that are labels; empty if all edges
            are labels.
    """

    positive: tuple[EdgeType, ...]
    negative: Mapping[EdgeType, EdgeType]
    direction: Direction
    max_labels: int
    edge_keys: Mapping[EdgeType, IntArray] = field(default_factory=dict)

    @property
    def edge_types(self) -> tuple[EdgeType, ...]:
        """Distinct edge types that hold labels."""
        return tuple(dict.fromkeys((*self.positive, *self.negative.values())))

    def anchor_type(self, edge_type: EdgeType) -> str:
        """Return the node type of the anchors of an edge type."""
        return edge_type[0] if self.direction == "out" else edge_type[2]

    def label_type(self, edge_type: EdgeType) -> str:
        """Return the node type of the label nodes of an edge type."""
        return edge_type[2] if self.direction == "out" else edge_type[0]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LabelNodes:
    """Label nodes of the anchors of one batch.

    Attributes:
        edge_type: The supervision edge type.
        name: The batch's attribute for these labels: ``y_positive`` or ``y_negative``.
        held_in: The edge type that holds their links: the supervision edge type, or the edge type of its negatives.
        node_type: Type of the label nodes.
        counts: int[n], number of labels of each anchor.
        ids: int64[counts.sum()], ids of the label nodes, grouped by anchor.
    """

    edge_type: EdgeType
    name: LabelName
    held_in: EdgeType
    node_type: str
    counts: IntArray
    ids: IntArray


class LabelReader(Protocol):
    """Reader of the label nodes of anchors. Not thread-safe."""

    def read(self, positions: IntArray, anchor_ids: IntArray, rng_seed: int) -> list[LabelNodes]:
        """Read the label nodes of anchors: positives of every supervision edge type, then negatives.

        Args:
            positions: int64[n], positions of the anchors in the loader's input.
            anchor_ids: int64[n], their ids.
            rng_seed: 64 bits; equal seeds give equal draws of labels.
        """
        ...


class StoredLabels:
    """Reader of labels from edges of the store, with one call for all edge types."""

    def __init__(self, store: Store, labels: Labels) -> None:
        """Read ``labels`` from ``store``."""
        self._store = store
        self._labels = labels

    def read(self, positions: IntArray, anchor_ids: IntArray, rng_seed: int) -> list[LabelNodes]:
        """Draw the labels of anchors from their supervision edges; ``positions`` are not used."""
        labels = self._labels
        requests = [
            SampleRequest(
                edge_type=edge_type,
                direction=labels.direction,
                ids=anchor_ids,
                count=-1 if edge_type in labels.edge_keys else labels.max_labels,
                rng_seed=derive_seed("labels", rng_seed, type_label(edge_type)),
                wants_edge_keys=edge_type in labels.edge_keys,
            )
            for edge_type in labels.edge_types
        ]
        replies = dict(zip(labels.edge_types, self._store.sample(requests), strict=True))
        for request in requests:
            if request.edge_type in labels.edge_keys:
                replies[request.edge_type] = self._of_split(request, replies[request.edge_type])
        positives: list[tuple[EdgeType, LabelName, EdgeType]] = [(t, "y_positive", t) for t in labels.positive]
        negatives: list[tuple[EdgeType, LabelName, EdgeType]] = [
            (t, "y_negative", held_in) for t, held_in in labels.negative.items()
        ]
        return [
            LabelNodes(
                edge_type=edge_type,
                name=name,
                held_in=held_in,
                node_type=labels.label_type(held_in),
                counts=replies[held_in].counts.astype(np.int64),
                ids=replies[held_in].neighbor_ids.astype(np.int64),
            )
            for edge_type, name, held_in in (*positives, *negatives)
        ]

    def _of_split(self, request: SampleRequest, reply: SampleReply) -> SampleReply:
        """Keep the labels whose edges are in the split, at most ``max_labels`` per anchor, in stored order."""
        labels = self._labels
        wanted = labels.edge_keys[request.edge_type]
        kept = np.flatnonzero(find_sorted(wanted, cast(IntArray, reply.edge_keys)) >= 0)
        counts = np.bincount(np.repeat(np.arange(len(reply.counts)), reply.counts)[kept], minlength=len(reply.counts))
        drawn, counts = draw_labels(counts, labels.max_labels, request.rng_seed)
        return SampleReply(counts=counts.astype(np.int32), neighbor_ids=reply.neighbor_ids[kept[drawn]])


def draw_labels(counts: IntArray, max_labels: int, rng_seed: int) -> tuple[IntArray, IntArray]:
    """Draw at most ``max_labels`` labels of each anchor, uniformly and without replacement.

    Draws depend on the order of anchors and labels, so this order must be the same for any number of parts and servers.

    Args:
        counts: int64[n], labels of each anchor.
        max_labels: Most labels of one anchor; -1 for all.
        rng_seed: 64 bits.

    Returns:
        int64[m], ascending positions of the drawn labels among all labels, and int64[n], drawn labels of each anchor.
    """
    num_labels = int(counts.sum())
    if max_labels < 0:
        return np.arange(num_labels), counts
    anchors = np.repeat(np.arange(len(counts)), counts)
    ranks = np.lexsort((np.random.default_rng(rng_seed).random(num_labels), anchors))
    is_drawn = np.arange(num_labels) - offsets_of(counts)[anchors] < max_labels
    return np.sort(ranks[is_drawn]), np.minimum(counts, max_labels)


def read_labels(
    store: Store, supervision: Supervision, negatives: Negatives, direction: Direction, max_labels: int
) -> Labels:
    """Check the user's edge types of labels against a store.

    Raises:
        SettingsError: Types do not match, the dataset does not hold the direction, or ``max_labels`` is out of range.
        UnknownNameError: The graph has no such edge type.
    """
    check_choice("label_direction", direction, ("in", "out"))
    if direction not in store.directions:
        raise SettingsError(
            f"labels follow edges {direction!r}; the dataset holds {'|'.join(store.directions)}; write the parts again "
            "with direction 'both', or choose the other label_direction with anchors at the edges' other end"
        )
    labels = read_supervision(supervision, store.schema.edge_type_of, direction, max_labels)
    positive = labels.positive
    negative = _read_negatives(store.schema, positive, negatives)
    for edge_type, other in negative.items():
        if edge_type not in positive:
            raise SettingsError(f"negatives names {edge_type!r}; the supervision edge types are {list(positive)}")
        if (edge_type[0], edge_type[2]) != (other[0], other[2]) or other in positive:
            raise SettingsError(f"negatives pairs {edge_type!r} with {other!r}; give another edge type between the two")
    return replace(labels, negative=negative)


def read_supervision(
    supervision: Supervision, edge_type_of: Callable[[Any], EdgeType], direction: Direction, max_labels: int
) -> Labels:
    """Check the settings that stored and given labels share.

    Raises:
        SettingsError: There is no edge type, one is given twice, anchors have different types, or ``max_labels`` is out
            of range.
        UnknownNameError: ``edge_type_of`` knows no such edge type.
    """
    max_labels = read_integer("max_labels", max_labels, -1, MAX_COUNT)
    if max_labels == 0:
        raise SettingsError("max_labels is 0, so there would be no labels; give -1 for all, or 1 and above")
    positive = tuple(map(edge_type_of, _as_list(supervision)))
    if not positive or len(set(positive)) < len(positive):
        raise SettingsError(f"supervision is {supervision!r}; give one edge type or several, each once")
    labels = Labels(positive=positive, negative={}, direction=direction, max_labels=max_labels)
    if len({labels.anchor_type(t) for t in positive}) > 1:
        raise SettingsError(f"supervision edge types {list(positive)} have different types of anchors; use two loaders")
    return labels


def labels_of_split(store: Store, labels: Labels, split: str) -> Labels:
    """Restrict positive labels to an edge split.

    Raises:
        UnknownNameError: A supervision edge type has no such split.
        SettingsError: The split is empty, or the dataset keeps no edge keys.
    """
    if not isinstance(split, str):
        raise SettingsError(
            f"label_split is {split!r}; give the name of a split of the supervision edge types, or None"
        )
    if not keeps_edge_keys(store, labels.direction):
        raise SettingsError("label_split needs edge keys, and the dataset keeps none; write the parts again with them")
    edge_keys = {t: np.asarray(store.edge_split(t, split), np.int64) for t in labels.positive}
    for edge_type, keys in edge_keys.items():
        if not len(keys):
            raise SettingsError(f"split {split!r} of {type_label(edge_type)} is empty, so there would be no labels")
    return replace(labels, edge_keys=edge_keys)


def _read_negatives(
    schema: GraphSchema, positive: tuple[EdgeType, ...], negatives: Negatives
) -> dict[EdgeType, EdgeType]:
    """Map supervision edge types to the edge types of their negatives."""
    if negatives is None:
        return {}
    if isinstance(negatives, Mapping):
        return {schema.edge_type_of(t): schema.edge_type_of(other) for t, other in negatives.items()}
    if len(positive) == 1:
        return {positive[0]: schema.edge_type_of(negatives)}
    raise SettingsError(f"negatives is {negatives!r}; with several supervision edge types give a mapping of them")


def _as_list(supervision: Supervision) -> list[Any]:
    """Return a list of edge types; a tuple of three strings is one edge type.

    Raises:
        SettingsError: The value is no edge type and no list.
    """
    if not isinstance(supervision, str | Sequence):
        raise SettingsError(f"supervision is {supervision!r}; give the edge type, or types, whose edges are labels")
    if isinstance(supervision, str):
        return [supervision]
    values = list(supervision)
    return [supervision] if is_edge_type(supervision) else values


PADDING = -1
"""Fills up the rows of a matrix; may be at any position of a row."""
LabelRows = RaggedArray | Sequence[ArrayLike] | ArrayLike
LabelsOfType = LabelRows | tuple[LabelRows, LabelRows | None]
GivenLabelsLike = Mapping[EdgeType, LabelsOfType] | Mapping[str, LabelsOfType]
"""Supervision edge type to positives, or to a tuple of positives and negatives: one row of keys per anchor each."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GivenLabels:
    """Label nodes of all anchors of a loader, as the user gave them.

    Attributes:
        labels: Edge types, direction and limits.
        rows: Supervision edge type and ``y_positive`` or ``y_negative``, to keys: row ``i`` belongs to the anchor at
            position ``i``. Positives of all supervision edge types come first.
    """

    labels: Labels
    rows: Mapping[tuple[EdgeType, LabelName], RaggedArray]

    def fingerprint(self) -> str:
        """Return the digest of the labels in hex digits; takes about a second per gigabyte of keys."""
        digest = hashlib.blake2b(digest_size=16)
        for (edge_type, name), rows in self.rows.items():
            digest.update(f"{type_label(edge_type)}\x1f{name}\x1f{len(rows)}\x1f".encode())
            digest.update(rows.offsets.data)
            digest.update(rows.values.data)
        return digest.hexdigest()

    def to_option(self) -> dict[EdgeType, tuple[RaggedArray, RaggedArray | None]]:
        """Return the labels as an argument of ``read_given_labels``; servers get this form."""
        return {t: (self.rows[t, "y_positive"], self.rows.get((t, "y_negative"))) for t in self.labels.positive}


class GivenLabelReader:
    """Reader of labels from the user's lists."""

    def __init__(self, given: GivenLabels, ids_of: Callable[[str, IntArray], IntArray]) -> None:
        """Take labels from ``given``; ``ids_of`` finds ids of a node type by key."""
        self._given = given
        self._ids_of = ids_of

    def read(self, positions: IntArray, anchor_ids: IntArray, rng_seed: int) -> list[LabelNodes]:
        """Draw the labels of anchors from the given ones; one call looks up all keys of a node type."""
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
    """Check the user's labels against a store, and convert them to ragged rows.

    Args:
        store: The graph's store; supervision edge types need not be in its schema, but their node types must.
        supervision: The edge types of ``given``.
        given: See ``GivenLabelsLike``. Rows are a ``RaggedArray``, a list of arrays, or a matrix padded with -1.
        direction: ``out``: anchors are sources of supervision edges; ``in``: they are destinations.
        max_labels: Most labels of one anchor and edge type, for positives and for negatives; -1 for all.

    Raises:
        SettingsError: Types do not match, an edge type is missing or has no positives, or rows have another form or are
            not integers.
        UnknownNameError: The graph has no such edge type or node type.
        IdRangeError: A key is outside 0..n-1 of the label type; the message names row and key.
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
                f"labels of {type_label(edge_type)}, {name.removeprefix('y_')}s, have {len(rows)} rows for "
                f"{num_anchors} anchors; give one row per anchor, an empty row for an anchor without labels"
            )


def _edge_type_of(schema: GraphSchema, given: object) -> EdgeType:
    """Return an edge type of the graph, or check that a new one joins two of its node types."""
    named = tuple(given) if isinstance(given, list) else given
    if not is_edge_type(named):
        return schema.edge_type_of(given)
    for end in (named[0], named[2]):
        schema.check_node_type(end)
    return named


def _both(edge_type: EdgeType, given: LabelsOfType) -> tuple[LabelRows, LabelRows | None]:
    """Split given labels into positives and negatives; anything but a tuple of two is positives."""
    positives, negatives = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
    if positives is None or isinstance(positives, tuple):
        raise SettingsError(
            f"labels of {type_label(edge_type)} have no rows of positives, got a {type(positives).__name__}; give one "
            "row of keys per anchor, or a tuple of two such: positives and negatives, or None for no negatives"
        )
    return positives, negatives


def _read_rows(where: str, given: Any, node_type: str, num_nodes: int) -> RaggedArray:
    """Convert to one row of int64 keys per anchor, in new arrays, and check the range of keys.

    Raises:
        SettingsError: The rows have another form, or are not integers.
        IdRangeError: A key is outside 0..n-1.
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
    """Convert given rows to int64; raise ``SchemaError`` for other values."""
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
        raise SchemaError(f"it is {matrix.dtype}{list(matrix.shape)}, which is not a matrix")
    is_label = matrix != PADDING
    return RaggedArray(_integers(matrix[is_label]), offsets_of(is_label.sum(axis=1)))


def _integers(array: Array) -> IntArray:
    """Convert a one-dimensional array of integers to int64; an empty array may have any dtype."""
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise SchemaError(f"it has {array.dtype}{list(array.shape)}, not integers[n]")
    return array.astype(np.int64)
