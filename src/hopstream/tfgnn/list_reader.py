"""Converts the lists of ``tf.Example`` messages to sizes, indices and features of graph tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hopstream.arrays import Array, IntArray, RaggedArray, offsets_of
from hopstream.errors import FormatError
from hopstream.tfgnn.example import NamedLists, ValueLists, Values
from hopstream.tfgnn.spec import FieldSpec
from hopstream.tfgnn.values import Dim, FeatureValues

MAX_ITEMS = 1 << 24
"""Most nodes or edges of a set in one message. The limit is needed because items without values take no bytes, so a
small message could claim any number."""
MAX_LEFT_OUT = 1 << 16
"""Most rows whose lengths a message may omit, or its number of values if that is larger. So the memory for a message is
bounded by its size."""
MAX_BATCH_LEFT_OUT = 1 << 24
"""Most rows whose lengths the messages of a batch may omit in all features, or their number of values if larger."""
MAX_BATCH_NODES = 1 << 26
"""Most nodes of a set in a batch, or the number of values if larger: nodes without features take no bytes."""


def _refuse(is_wrong: Array, what: Callable[[int], str]) -> None:
    """Raise ``FormatError`` for the first message that is wrong; ``is_wrong`` is bool[num_messages]."""
    if is_wrong.any():
        number = int(np.argmax(is_wrong))
        raise FormatError(f"message {number}: {what(number)}")


@dataclass(frozen=True, slots=True)
class ListReader:
    """Reader of lists of messages; checks them against each other. Counts are int64[num_messages].

    Attributes:
        lists: List name to the lists of all messages.
        num_messages: Number of messages.
        num_held: Number of values in all lists of each message.
        num_left_out: Rows whose lengths each message omits, summed up while reading.
    """

    lists: Mapping[str, ValueLists]
    num_messages: int
    num_held: IntArray
    num_left_out: IntArray

    @classmethod
    def of(cls, lists: Mapping[str, ValueLists], num_messages: int) -> ListReader:
        """Build a reader for the lists of messages, by name."""
        num_held = np.zeros(num_messages, np.int64)
        for of in lists.values():
            num_held += of.counts
        return cls(lists, num_messages, num_held, np.zeros(num_messages, np.int64))

    def ints(self, key: str) -> tuple[IntArray, IntArray]:
        """Return the integers of a list, and how many each message has.

        Raises:
            FormatError: The list is not int64.
        """
        lists = self.lists.get(key)
        if lists is None:
            return np.empty(0, np.int64), np.zeros(self.num_messages, np.int64)
        counts = lists.counts
        if not len(lists.values):
            return np.empty(0, np.int64), counts
        if isinstance(lists.values, RaggedArray) or lists.values.dtype != np.int64:
            text = f"{key} is a list of {kind_text(lists.values)}; wanted int64"
            _refuse(counts > 0, lambda m: text)
            raise FormatError(text)
        return lists.values, counts

    def component_counts(self, keys: Sequence[str]) -> IntArray:
        """Return the number of components of each message, from the lists of sizes of all sets.

        Raises:
            FormatError: A list of sizes is missing, or two disagree.
        """
        if not keys:
            raise FormatError("the schema has no sets, so the number of components is unknown")
        _, wanted = self.ints(keys[0])
        for key in keys:
            self._check_components(key, wanted, keys[0])
        return wanted

    def _check_components(self, key: str, wanted: IntArray, other: str) -> None:
        _, counts = self.ints(key)
        _refuse(counts == 0, lambda m: f"{key} is missing, so the number of components is unknown")
        _refuse(
            counts != wanted,
            lambda m: f"{key} and {other} are of different numbers of components: {counts[m]} and {wanted[m]}",
        )

    def sizes(self, key: str, components: IntArray) -> tuple[IntArray, IntArray]:
        """Return the sizes of a set's components, and its number of items in each message."""
        values, counts = self.ints(key)
        _refuse(
            (counts > 0) & (counts != components),
            lambda m: f"{key} has {counts[m]} components; wanted {components[m]}",
        )
        sizes = _filled(values, counts > 0, components)
        return sizes, self._sums(key, sizes, components)

    def indices(self, key: str, num_edges: IntArray, node_set: str, num_nodes: Mapping[str, IntArray]) -> IntArray:
        """Return the node indices at one end of a set's edges, after a check of their range."""
        values, counts = self.ints(key)
        _refuse(counts != num_edges, lambda m: f"{key} has {counts[m]} indices; there are {num_edges[m]} edges")
        if node_set not in num_nodes:
            raise FormatError(f"{key} points at node set {node_set!r}, which the schema does not have")
        is_wrong = (values < 0) | (values >= np.repeat(num_nodes[node_set], counts))
        if is_wrong.any():
            at = int(np.argmax(is_wrong))
            m = _message_of(at, counts)
            raise FormatError(
                f"message {m}: {key} has index {int(values[at])}; {node_set} has {int(num_nodes[node_set][m])} nodes"
            )
        return values

    def features(self, key: str, features: Mapping[str, FieldSpec], num_items: IntArray) -> dict[str, FeatureValues]:
        """Return the values of a set's features."""
        return {name: self._feature(key + name, spec, num_items) for name, spec in features.items()}

    def _feature(self, key: str, spec: FieldSpec, num_items: IntArray) -> FeatureValues:
        empty = ValueLists(np.empty(0, np.int64), np.zeros(self.num_messages + 1, np.int64))
        lists = self.lists.get(key, empty)
        num_values = lists.counts
        dims: list[Dim] = []
        num_rows = num_items
        for number, size in enumerate(spec.shape, 1):
            if size is not None:
                dims.append(size)
                num_rows = num_rows * size
                continue
            lengths = self._row_lengths(key, number, num_rows, num_values)
            dims.append(lengths)
            num_rows = self._sums(f"{key}.d{number}", lengths, num_rows)
        is_wrong = num_values != num_rows
        if is_wrong.any():
            m = int(np.argmax(is_wrong))
            is_there = bool(lists.is_there[m]) if isinstance(lists, NamedLists) else num_values[m] > 0
            got = f"{key} has {num_values[m]} values" if is_there else f"{key} is missing"
            wanted = f"{num_items[m]} items of shape {list(spec.shape)} have {num_rows[m]}"
            raise FormatError(f"message {m}: {got}; {wanted}")
        return FeatureValues(_loaded_values(key, lists.values, spec), int(num_items.sum()), tuple(dims))

    def _row_lengths(self, key: str, number: int, num_rows: IntArray, num_values: IntArray) -> IntArray:
        """Return the row lengths of a dimension that varies; zeros for messages that omit them."""
        name = f"{key}.d{number}"
        _refuse(
            num_rows > MAX_ITEMS,
            lambda m: f"{key} has {num_rows[m]} rows in dimension {number}; a message has at most {MAX_ITEMS}",
        )
        lengths, counts = self.ints(name)
        is_left_out = (counts == 0) & (num_values == 0)  # allowed if all rows are empty
        _refuse(
            ~is_left_out & (counts != num_rows),
            lambda m: f"{name} has lengths of {counts[m]} rows; there are {num_rows[m]}",
        )
        self._refuse_much_left_out(name, np.where(is_left_out, num_rows, 0))
        return _filled(lengths, ~is_left_out, num_rows)

    def refuse_many_nodes(self, key: str, num_nodes: IntArray) -> None:
        """Refuse batches with too many nodes of a set, because each node takes memory after decoding."""
        most = max(MAX_BATCH_NODES, int(self.num_held.sum()))
        _refuse(
            np.cumsum(num_nodes) > most,
            lambda m: f"{key} makes more than {most} nodes of a batch; read fewer at once",
        )

    def _refuse_much_left_out(self, key: str, num_rows: IntArray) -> None:
        """Refuse messages that omit the lengths of too many rows.

        Decoding them would take far more memory than the messages.

        Args:
            key: Name of the list of lengths.
            num_rows: Number of rows in each message that omits the lengths, 0 for other messages.
        """
        np.add(self.num_left_out, num_rows, out=self.num_left_out)
        is_much = self.num_left_out > np.maximum(MAX_LEFT_OUT, self.num_held)
        _refuse(
            is_much & (num_rows > 0),
            lambda m: (
                f"{key} is left out; a message with more than {MAX_LEFT_OUT} rows must have their lengths, even if "
                "all are 0, or as many other values"
            ),
        )
        most = max(MAX_BATCH_LEFT_OUT, int(self.num_held.sum()))
        _refuse(
            np.cumsum(self.num_left_out) > most,
            lambda m: f"{key} is left out by too many messages; read fewer at once",
        )

    def _sums(self, key: str, lengths: IntArray, counts: IntArray) -> IntArray:
        """Return the sum of each message's lengths.

        Raises:
            FormatError: A length or a sum is outside 0..``MAX_ITEMS``.
        """
        is_wrong = (lengths < 0) | (lengths > MAX_ITEMS)
        if is_wrong.any():
            at = int(np.argmax(is_wrong))
            raise FormatError(
                f"message {_message_of(at, counts)}: {key} has the number {int(lengths[at])}, outside 0..{MAX_ITEMS}"
            )
        ends = offsets_of(lengths)[offsets_of(counts)]
        sums = ends[1:] - ends[:-1]
        _refuse(
            sums > MAX_ITEMS,
            lambda m: f"{key} adds up to {sums[m]}; a message has at most {MAX_ITEMS} of a set",
        )
        return sums


def _message_of(place: int, counts: IntArray) -> int:
    """Return the message that holds the value at an index, given the number of values of each message."""
    return int(np.searchsorted(np.cumsum(counts), place, side="right"))


def _filled(values: IntArray, is_there: Array, counts: IntArray) -> IntArray:
    """Insert zeros for messages without values.

    ``counts`` is the number of values of each message in the result.
    """
    if (is_there | (counts == 0)).all():
        return values
    filled = np.zeros(int(counts.sum()), np.int64)
    filled[np.repeat(is_there, counts)] = values
    return filled


def kind_text(values: Values) -> str:
    """Return the kind of a list as a word for messages."""
    return "strings" if isinstance(values, RaggedArray) else str(values.dtype)


def _loaded_values(key: str, values: Values, spec: FieldSpec) -> Array | RaggedArray:
    """Convert values to the dtype of the spec, like ``tf.cast``.

    Raises:
        FormatError: The list is of a kind that does not fit the dtype.
    """
    if not len(values):
        return RaggedArray.from_strings([]) if spec.is_string else np.empty(0, spec.numpy_dtype)
    wanted = "strings" if spec.is_string else "float32" if spec.numpy_dtype.kind == "f" else "int64"
    if kind_text(values) != wanted:
        raise FormatError(f"{key} is a list of {kind_text(values)}; {spec.dtype} is stored as {wanted}")
    if isinstance(values, RaggedArray):
        return values
    if spec.dtype == "uint64":
        return values.view(np.uint64)
    with np.errstate(over="ignore"):
        return values.astype(spec.numpy_dtype, copy=False)
