"""Encodes batches of graph tensors as ``tf.Example`` messages, and decodes them.

[Names] ``context/<feature>``, ``nodes/<set>.<feature>``, ``edges/<set>.<feature>``; sets also have ``#size``, edge sets
    ``#source`` and ``#target``. ``<feature>.d<k>`` are the row lengths of dimension ``k``; 0 is that of the items.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hopstream.arrays import Array, IntArray, RaggedArray, offsets_of
from hopstream.errors import FormatError, SchemaError
from hopstream.tfgnn.example import EncodedExamples, ValueLists, Values, decode_examples, encode_examples
from hopstream.tfgnn.list_reader import ListReader
from hopstream.tfgnn.spec import FieldSpec, GraphSpec
from hopstream.tfgnn.values import FeatureValues

SIZE, SOURCE, TARGET = "#size", "#source", "#target"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class NodePieces:
    """A node set.

    Attributes:
        sizes: int64[num_components], nodes of each component.
        features: Values of all nodes by name.
    """

    sizes: IntArray
    features: Mapping[str, FeatureValues] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class EdgePieces:
    """An edge set.

    Attributes:
        sizes: int64[num_components], edges of each component.
        source: int64[num_edges], the source of each edge: its index among the graph's nodes of the source set, counted
            from the first node of the graph, not of the component.
        target: int64[num_edges], the target of each edge, likewise.
        source_set: Node set of the sources.
        target_set: Node set of the targets.
        features: Values of all edges by name.
    """

    sizes: IntArray
    source: IntArray
    target: IntArray
    source_set: str
    target_set: str
    features: Mapping[str, FeatureValues] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class GraphPieces:
    """The pieces of one graph tensor, or of a batch of concatenated ones.

    Attributes:
        component_offsets: int64[num_graphs + 1], the components of each graph.
        context: Values of all components by name.
        node_sets: Node sets by name.
        edge_sets: Edge sets by name.
    """

    component_offsets: IntArray
    context: Mapping[str, FeatureValues] = field(default_factory=dict)
    node_sets: Mapping[str, NodePieces] = field(default_factory=dict)
    edge_sets: Mapping[str, EdgePieces] = field(default_factory=dict)

    @property
    def num_graphs(self) -> int:
        """Number of graphs."""
        return len(self.component_offsets) - 1

    def item_offsets(self, sizes: IntArray) -> IntArray:
        """Return int64[num_graphs + 1], the offsets of each graph's items in a set with these sizes."""
        return offsets_of(sizes)[self.component_offsets]


def encode_graphs(pieces: GraphPieces, *, prefix: str = "") -> EncodedExamples:
    """Encode graph tensors as messages, one each.

    Raises:
        SchemaError: The sizes of a set do not fit the components, or the values of a feature do not fit the items.
    """
    return encode_examples(graph_lists(pieces, prefix=prefix), pieces.num_graphs)


def graph_lists(pieces: GraphPieces, *, prefix: str = "") -> dict[str, ValueLists]:
    """Convert graph tensors to the lists of their messages, by name; each name has one list per graph.

    Raises:
        SchemaError: See ``encode_graphs``.
    """
    lists: dict[str, ValueLists] = {}
    components = pieces.component_offsets
    for name, values in pieces.context.items():
        _add_feature(lists, f"{prefix}context/{name}", values, components)
    for kind, sets in (("nodes", pieces.node_sets), ("edges", pieces.edge_sets)):
        for set_name, items in sets.items():
            key = f"{prefix}{kind}/{set_name}."
            if len(items.sizes) != components[-1]:
                raise SchemaError(f"{key}{SIZE} has {len(items.sizes)} components; the graphs have {components[-1]}")
            offsets = pieces.item_offsets(items.sizes)
            lists[key + SIZE] = ValueLists(np.asarray(items.sizes, np.int64), components)
            if isinstance(items, EdgePieces):
                for end, indices in ((SOURCE, items.source), (TARGET, items.target)):
                    _add_feature(lists, key + end, FeatureValues(indices, len(indices)), offsets)
            for name, values in items.features.items():
                _add_feature(lists, key + name, values, offsets)
    return lists


def _add_feature(lists: dict[str, ValueLists], key: str, values: FeatureValues, item_offsets: IntArray) -> None:
    if values.num_items != item_offsets[-1]:
        raise SchemaError(f"{key} has values of {values.num_items} items; there are {item_offsets[-1]}")
    offsets = values.row_offsets(item_offsets)
    for number, dim in enumerate(values.dims):
        if not isinstance(dim, int):
            lists[f"{key}.d{number + 1}"] = ValueLists(dim, offsets[number])
    lists[key] = ValueLists(_stored(values.flat), offsets[-1])


def _stored(flat: Array | RaggedArray) -> Values:
    """Convert values to a dtype of lists: integers keep their bits, reals are rounded to float32."""
    if isinstance(flat, RaggedArray):
        return flat
    if flat.dtype.kind == "f":
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(flat, np.float32)
    return flat.view(np.int64) if flat.dtype == np.uint64 else np.ascontiguousarray(flat, np.int64)


def decode_graph(data: bytes, spec: GraphSpec, *, num_components: int | None = 1, prefix: str = "") -> GraphPieces:
    """Decode a graph tensor from one message; see ``decode_graphs``.

    Raises:
        FormatError: See ``decode_graphs``; the message names the feature.
    """
    try:
        return decode_graphs([data], spec, num_components=num_components, prefix=prefix)
    except FormatError as error:
        raise FormatError(str(error).removeprefix("message 0: ")) from error


def decode_graphs(
    records: Sequence[bytes], spec: GraphSpec, *, num_components: int | None = 1, prefix: str = ""
) -> GraphPieces:
    """Decode graph tensors from a batch of messages.

    Args:
        records: ``tf.Example`` messages.
        spec: The sets and features to read; other features are ignored.
        num_components: Number of components of each graph; messages may then omit empty sets. None: the lists of sizes
            tell it.
        prefix: Prefix of all names.

    Raises:
        FormatError: A message is not an ``Example``, its lists contradict the spec or each other, or messages claim far
            more items than they hold. The error names the message by its index in ``records``, and the feature.
    """
    lists = decode_examples(records, list(list_names(spec, prefix)))
    return graphs_of_lists(lists, len(records), spec, num_components=num_components, prefix=prefix)


def list_names(spec: GraphSpec, prefix: str = "") -> Iterator[str]:
    """Yield the names of the lists that graph tensors of a spec may have."""
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
    """Build graph tensors from lists that were read from messages or from the columns of a table.

    Raises:
        FormatError: See ``decode_graphs``.
    """
    reader = ListReader.of(lists, num_messages)
    if num_components is None:
        sets = (("nodes", spec.node_sets), ("edges", spec.edge_sets))
        components = reader.component_counts([f"{prefix}{kind}/{name}.{SIZE}" for kind, of in sets for name in of])
    else:
        components = np.full(num_messages, num_components, np.int64)
    context = reader.features(f"{prefix}context/", spec.context, components)
    nodes: dict[str, NodePieces] = {}
    edges: dict[str, EdgePieces] = {}
    num_nodes: dict[str, IntArray] = {}
    for set_name, node_spec in spec.node_sets.items():
        key = f"{prefix}nodes/{set_name}."
        sizes, num_nodes[set_name] = reader.sizes(key + SIZE, components)
        reader.refuse_many_nodes(key + SIZE, num_nodes[set_name])
        nodes[set_name] = NodePieces(
            sizes=sizes, features=reader.features(key, node_spec.features, num_nodes[set_name])
        )
    for set_name, edge_spec in spec.edge_sets.items():
        key = f"{prefix}edges/{set_name}."
        sizes, num_edges = reader.sizes(key + SIZE, components)
        ends = [
            reader.indices(key + end, num_edges, node_set, num_nodes)
            for end, node_set in ((SOURCE, edge_spec.source), (TARGET, edge_spec.target))
        ]
        edges[set_name] = EdgePieces(
            sizes=sizes, source=ends[0], target=ends[1], source_set=edge_spec.source, target_set=edge_spec.target,
            features=reader.features(key, edge_spec.features, num_edges),
        )  # fmt: skip
    return GraphPieces(component_offsets=offsets_of(components), context=context, node_sets=nodes, edge_sets=edges)


def concatenate_graphs(graphs: Sequence[GraphPieces]) -> GraphPieces:
    """Concatenate graph tensors of one spec to a batch; indices still count from the start of each graph.

    Raises:
        SchemaError: There are no graphs.
    """
    if not graphs:
        raise SchemaError("no graph is given, so there is nothing to make a batch of")
    first = graphs[0]
    joined = offsets_of(np.concatenate([np.diff(graph.component_offsets) for graph in graphs]))
    return GraphPieces(
        component_offsets=joined,
        context={name: FeatureValues.concatenate([graph.context[name] for graph in graphs]) for name in first.context},
        node_sets={
            name: NodePieces(
                sizes=np.concatenate([graph.node_sets[name].sizes for graph in graphs]),
                features=_joined_features([graph.node_sets[name].features for graph in graphs]),
            )
            for name in first.node_sets
        },
        edge_sets={
            name: EdgePieces(
                sizes=np.concatenate([graph.edge_sets[name].sizes for graph in graphs]),
                source=np.concatenate([graph.edge_sets[name].source for graph in graphs]),
                target=np.concatenate([graph.edge_sets[name].target for graph in graphs]),
                source_set=first.edge_sets[name].source_set,
                target_set=first.edge_sets[name].target_set,
                features=_joined_features([graph.edge_sets[name].features for graph in graphs]),
            )
            for name in first.edge_sets
        },
    )


def _joined_features(features: Sequence[Mapping[str, FeatureValues]]) -> dict[str, FeatureValues]:
    return {name: FeatureValues.concatenate([of[name] for of in features]) for name in features[0]}
