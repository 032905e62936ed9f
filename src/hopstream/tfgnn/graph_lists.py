"""How are the graph tensors of many messages read at once?

As ``graph_tensor.decode_graph`` reads one, and refusing what it refuses; each check is made for all messages together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hopstream.arrays import Array, IntArray, RaggedArray, offsets_of
from hopstream.errors import FormatError
from hopstream.tfgnn.example import ValueLists
from hopstream.tfgnn.example_lists import NamedLists, decode_examples
from hopstream.tfgnn.graph_tensor import (
    MAX_ITEMS,
    MAX_LEFT_OUT,
    SIZE,
    SOURCE,
    TARGET,
    EdgePieces,
    GraphPieces,
    NodePieces,
    kind_text,
    left_out_text,
    loaded_values,
    set_keys,
)
from hopstream.tfgnn.spec import FieldSpec, GraphSpec
from hopstream.tfgnn.values import Dim, FeatureValues

MAX_BATCH_LEFT_OUT = 1 << 24
"""Rows whose lengths the messages of a batch leave out, all features together, unless they have more values."""
MAX_BATCH_NODES = 1 << 26
"""Nodes of a set in a batch, unless the messages have more values: nodes without features take no bytes."""


def decode_graphs(
    records: Sequence[bytes], spec: GraphSpec, *, num_components: int | None = 1, prefix: str = ""
) -> GraphPieces:
    """Read the graph tensors of a spec from a batch of messages.

    Args:
        records: ``tf.Example`` each.
        spec: What to look for; other features are passed over.
        num_components: How many components each graph has, so that empty sets may be left out; None: as many as sizes
            say.
        prefix: What stands before every name.

    Raises:
        FormatError: A message is no ``Example``, its lists contradict the spec or each other, or messages claim far
            more than they hold; the error names the message by its number among ``records``, and the feature.
    """
    lists = decode_examples(records, list(list_names(spec, prefix)))
    return graphs_of_lists(lists, len(records), spec, num_components=num_components, prefix=prefix)


def list_names(spec: GraphSpec, prefix: str = "") -> Iterator[str]:
    """The names of the lists that the graph tensors of a spec may have."""
    yield from _feature_names(f"{prefix}context/", spec.context)
    for kind, sets in (("nodes", spec.node_sets), ("edges", spec.edge_sets)):
        for set_name, of in sets.items():
            key = f"{prefix}{kind}/{set_name}."
            yield from (key + name for name in ((SIZE,) if kind == "nodes" else (SIZE, SOURCE, TARGET)))
            yield from _feature_names(key, of.features)


def _feature_names(key: str, features: Mapping[str, FieldSpec]) -> Iterator[str]:
    for name, spec in features.items():
        yield key + name
        yield from (f"{key}{name}.d{number}" for number in spec.ragged_dims)


def graphs_of_lists(
    lists: Mapping[str, ValueLists], num_messages: int, spec: GraphSpec, *, num_components: int | None = 1,
    prefix: str = "",
) -> GraphPieces:  # fmt: skip
    """The graph tensors of lists that have been read already, from messages or from a table's columns.

    Raises:
        FormatError: As ``decode_graphs``.
    """
    num_held = np.zeros(num_messages, np.int64)
    for of in lists.values():
        num_held += np.diff(of.offsets)
    reader = _Reader(lists, num_messages, num_held, np.zeros(num_messages, np.int64))
    if num_components is None:
        components = _component_counts(reader, spec, prefix)
    else:
        components = np.full(num_messages, num_components, np.int64)
    context = reader.features(f"{prefix}context/", spec.context, components)
    nodes: dict[str, NodePieces] = {}
    edges: dict[str, EdgePieces] = {}
    num_nodes: dict[str, IntArray] = {}
    for set_name, node_spec in spec.node_sets.items():
        key = f"{prefix}nodes/{set_name}."
        sizes, num_nodes[set_name] = reader.sizes(key, components)
        reader.refuse_many_nodes(key, num_nodes[set_name])
        nodes[set_name] = NodePieces(
            sizes=sizes, features=reader.features(key, node_spec.features, num_nodes[set_name])
        )
    for set_name, edge_spec in spec.edge_sets.items():
        key = f"{prefix}edges/{set_name}."
        sizes, num_edges = reader.sizes(key, components)
        ends = [
            reader.indices(key + end, num_edges, node_set, num_nodes)
            for end, node_set in ((SOURCE, edge_spec.source), (TARGET, edge_spec.target))
        ]
        edges[set_name] = EdgePieces(
            sizes=sizes, source=ends[0], target=ends[1], source_set=edge_spec.source, target_set=edge_spec.target,
            features=reader.features(key, edge_spec.features, num_edges),
        )  # fmt: skip
    return GraphPieces(component_offsets=offsets_of(components), context=context, node_sets=nodes, edge_sets=edges)


def _component_counts(reader: _Reader, spec: GraphSpec, prefix: str) -> IntArray:
    keys = [key + SIZE for key in set_keys(spec, prefix)]
    if not keys:
        raise FormatError("the schema has no sets, whose sizes would say how many components there are")
    counts = [reader.ints(key)[1] for key in keys]
    for key, of in zip(keys, counts, strict=True):
        refuse(of == 0, f"{key} is missing, which says how many components there are")
        refuse(of != counts[0], f"{key} and {keys[0]} are of different numbers of components")
    return counts[0]


def refuse(is_wrong: Array, what: str) -> None:
    """Raise ``FormatError`` about the first message of which something is wrong; ``is_wrong`` is bool[num_messages]."""
    if bool(np.any(is_wrong)):
        raise FormatError(f"message {int(np.argmax(is_wrong))}: {what}")


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads lists and checks them against each other. Counts and numbers are int64[num_messages].

    Attributes:
        lists: What messages hold.
        num_messages: How many messages there are.
        num_held: The values of all lists of each message.
        num_left_out: Rows whose lengths each message has left out so far; it is added to.
    """

    lists: Mapping[str, ValueLists]
    num_messages: int
    num_held: IntArray
    num_left_out: IntArray

    def ints(self, key: str) -> tuple[IntArray, IntArray]:
        """The integers of a name, and how many each message has."""
        lists = self.lists.get(key)
        if lists is None:
            return np.empty(0, np.int64), np.zeros(self.num_messages, np.int64)
        counts = np.diff(lists.offsets)
        if not len(lists.values):
            return np.empty(0, np.int64), counts
        if isinstance(lists.values, RaggedArray) or lists.values.dtype != np.int64:
            refuse(counts > 0, f"{key} is a list of {kind_text(lists.values)}; wanted int64")
            raise FormatError(f"{key} is a list of {kind_text(lists.values)}; wanted int64")
        return lists.values, counts

    def sizes(self, key: str, components: IntArray) -> tuple[IntArray, IntArray]:
        """The sizes of a set's components, and how many items each message has of the set."""
        values, counts = self.ints(key + SIZE)
        refuse((counts > 0) & (counts != components), f"{key}{SIZE} has another number of components than is wanted")
        sizes = _filled(values, counts > 0, components)
        return sizes, self._sums(key + SIZE, sizes, components)

    def indices(self, key: str, num_edges: IntArray, node_set: str, num_nodes: Mapping[str, IntArray]) -> IntArray:
        """The indices at one end of a set's edges."""
        values, counts = self.ints(key)
        refuse(counts != num_edges, f"{key} has another number of indices than there are edges")
        if node_set not in num_nodes:
            raise FormatError(f"{key} points at node set {node_set!r}, which the schema does not have")
        is_wrong = (values < 0) | (values >= np.repeat(num_nodes[node_set], counts))
        if bool(np.any(is_wrong)):
            at = int(np.argmax(is_wrong))
            m = int(np.searchsorted(np.cumsum(counts), at, side="right"))
            raise FormatError(
                f"message {m}: {key} has index {int(values[at])}; {node_set} has {int(num_nodes[node_set][m])} nodes"
            )
        return values

    def features(self, key: str, features: Mapping[str, FieldSpec], num_items: IntArray) -> dict[str, FeatureValues]:
        """The values of a set's features."""
        return {name: self._feature(key + name, spec, num_items) for name, spec in features.items()}

    def _feature(self, key: str, spec: FieldSpec, num_items: IntArray) -> FeatureValues:
        empty = ValueLists(np.empty(0, np.int64), np.zeros(self.num_messages + 1, np.int64))
        lists = self.lists.get(key, empty)
        num_values = np.diff(lists.offsets)
        dims: list[Dim] = []
        num_rows = num_items
        for number, size in enumerate(spec.shape, 1):
            if size is not None:
                dims.append(size)
                num_rows = num_rows * size
                continue
            name = f"{key}.d{number}"
            refuse(num_rows > MAX_ITEMS, f"{key} has more than {MAX_ITEMS} rows in dimension {number}")
            lengths, counts = self.ints(name)
            is_left_out = (counts == 0) & (num_values == 0)  # where all rows are empty
            refuse(~is_left_out & (counts != num_rows), f"{name} has the lengths of another number of rows")
            self._refuse_much_left_out(name, np.where(is_left_out, num_rows, 0))
            lengths = _filled(lengths, ~is_left_out, num_rows)
            dims.append(lengths)
            num_rows = self._sums(name, lengths, num_rows)
        is_wrong = num_values != num_rows
        if bool(np.any(is_wrong)):
            m = int(np.argmax(is_wrong))
            is_there = bool(lists.is_there[m]) if isinstance(lists, NamedLists) else num_values[m] > 0
            got = f"{key} has {num_values[m]} values" if is_there else f"{key} is not there"
            wanted = f"{num_items[m]} items of shape {list(spec.shape)} have {num_rows[m]}"
            raise FormatError(f"message {m}: {got}; {wanted}")
        return FeatureValues(loaded_values(key, lists.values, spec), int(num_items.sum()), tuple(dims))

    def refuse_many_nodes(self, key: str, num_nodes: IntArray) -> None:
        """Refuse more nodes of a set than a batch has room for; what is made of them takes memory for each."""
        most = max(MAX_BATCH_NODES, int(self.num_held.sum()))
        refuse(np.cumsum(num_nodes) > most, f"{key}{SIZE} makes more than {most} nodes of a batch; read fewer at once")

    def _refuse_much_left_out(self, key: str, num_rows: IntArray) -> None:
        """Refuse rows that have no bytes in the messages, where memory for their lengths would be far more than those.

        Args:
            key: The lengths.
            num_rows: Rows of the messages that leave them out.
        """
        np.add(self.num_left_out, num_rows, out=self.num_left_out)
        is_much = self.num_left_out > np.maximum(MAX_LEFT_OUT, self.num_held)
        refuse(is_much & (num_rows > 0), f"{key} is left out; {left_out_text()}")
        most = max(MAX_BATCH_LEFT_OUT, int(self.num_held.sum()))
        refuse(np.cumsum(self.num_left_out) > most, f"{key} is left out by too many messages; read fewer at once")

    def _sums(self, key: str, lengths: IntArray, counts: IntArray) -> IntArray:
        """The sum of each message's lengths, none of which may be absurd."""
        ends = offsets_of(counts)
        is_wrong = (lengths < 0) | (lengths > MAX_ITEMS)
        refuse(np.diff(offsets_of(is_wrong)[ends]) > 0, f"{key} has a number outside 0..{MAX_ITEMS}")
        sums = np.diff(offsets_of(lengths)[ends])
        refuse(sums > MAX_ITEMS, f"{key} adds up to more than {MAX_ITEMS}; a message has at most so many of a set")
        return sums


def _filled(values: IntArray, is_there: Array, counts: IntArray) -> IntArray:
    """Values of the messages that have them, and zeros for the others; ``counts`` says how many each message has."""
    if bool(np.all(is_there | (counts == 0))):
        return values
    filled = np.zeros(int(counts.sum()), np.int64)
    filled[np.repeat(is_there, counts)] = values
    return filled
