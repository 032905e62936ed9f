"""How do graph tensors become ``tf.Example`` messages, a batch at once, and how are they read back?

[Names] ``context/<feature>``, ``nodes/<set>.<feature>``, ``edges/<set>.<feature>``; ``#size``, ``#source``, ``#target``
    of sets; ``<feature>.d<k>`` are the row lengths of dimension ``k``, with the items' own as 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hopstream.arrays import Array, IntArray, RaggedArray, offsets_of
from hopstream.errors import FormatError, SchemaError
from hopstream.tfgnn.example import EncodedExamples, ValueLists, Values, decode_example, encode_examples
from hopstream.tfgnn.spec import FieldSpec, GraphSpec
from hopstream.tfgnn.values import Dim, FeatureValues

SIZE, SOURCE, TARGET = "#size", "#source", "#target"
MAX_ITEMS = 1 << 24
"""Nodes or edges of a set in one message. Rows without values take no bytes, so a message may claim any number."""
MAX_LEFT_OUT = 1 << 16
"""Rows whose lengths a message may leave out, unless it has more values than that: memory follows what it holds."""


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
        source: int64[num_edges], the node of the source set that each edge comes from, counted from the first one of
            the graph (not of the component).
        target: int64[num_edges], likewise the node of the target set that it goes to.
        source_set: The node set that edges come from.
        target_set: The node set that they go to.
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
    """The pieces of graph tensors, one or a batch of them one after the other.

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
        """How many graphs there are."""
        return len(self.component_offsets) - 1

    def item_offsets(self, sizes: IntArray) -> IntArray:
        """int64[num_graphs + 1], where the items of each graph begin in a set with these sizes."""
        return offsets_of(sizes)[self.component_offsets]


def encode_graphs(pieces: GraphPieces, *, prefix: str = "") -> EncodedExamples:
    """Write graph tensors as messages, one each.

    Raises:
        SchemaError: A set has sizes for another number of components, or a feature values for another number of items.
    """
    return encode_examples(graph_lists(pieces, prefix=prefix), pieces.num_graphs)


def graph_lists(pieces: GraphPieces, *, prefix: str = "") -> dict[str, ValueLists]:
    """The lists that the messages of graph tensors are made of, by name; each has one list per graph.

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
    """Values in one of the three dtypes that lists have: integers keep their bits, reals are rounded to float32."""
    if isinstance(flat, RaggedArray):
        return flat
    if flat.dtype.kind == "f":
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(flat, np.float32)
    return flat.view(np.int64) if flat.dtype == np.uint64 else np.ascontiguousarray(flat, np.int64)


def decode_graph(data: bytes, spec: GraphSpec, *, num_components: int | None = 1, prefix: str = "") -> GraphPieces:
    """Read the graph tensor of a spec from a message.

    Args:
        data: A ``tf.Example``.
        spec: What to look for; other features are passed over.
        num_components: How many components there are, so that empty sets may be left out; None: as many as sizes say.
        prefix: What stands before every name.

    Raises:
        FormatError: The bytes are no ``Example``, or its lists contradict the spec or each other; the error names the
            feature.
    """
    lists = decode_example(data)
    if num_components is None:
        num_components = _num_components(lists, spec, prefix)
    context = {
        name: _feature(lists, f"{prefix}context/{name}", field_spec, num_components)
        for name, field_spec in spec.context.items()
    }
    nodes: dict[str, NodePieces] = {}
    edges: dict[str, EdgePieces] = {}
    for set_name, node_spec in spec.node_sets.items():
        key = f"{prefix}nodes/{set_name}."
        sizes = _sizes(lists, key, num_components)
        nodes[set_name] = NodePieces(sizes=sizes, features=_features(lists, key, node_spec.features, int(sizes.sum())))
    for set_name, edge_spec in spec.edge_sets.items():
        key = f"{prefix}edges/{set_name}."
        sizes = _sizes(lists, key, num_components)
        num_edges = int(sizes.sum())
        ends = [
            _indices(lists, key + end, num_edges, node_set, nodes)
            for end, node_set in ((SOURCE, edge_spec.source), (TARGET, edge_spec.target))
        ]
        edges[set_name] = EdgePieces(
            sizes=sizes, source=ends[0], target=ends[1], source_set=edge_spec.source, target_set=edge_spec.target,
            features=_features(lists, key, edge_spec.features, num_edges),
        )  # fmt: skip
    return GraphPieces(
        component_offsets=np.array([0, num_components], np.int64), context=context, node_sets=nodes, edge_sets=edges
    )


def set_keys(spec: GraphSpec, prefix: str) -> Iterator[str]:
    """How the names of each set's lists begin."""
    yield from (f"{prefix}nodes/{name}." for name in spec.node_sets)
    yield from (f"{prefix}edges/{name}." for name in spec.edge_sets)


def _num_components(lists: Mapping[str, Values], spec: GraphSpec, prefix: str) -> int:
    found = {key + SIZE: len(lists[key + SIZE]) for key in set_keys(spec, prefix) if key + SIZE in lists}
    missing = [key + SIZE for key in set_keys(spec, prefix) if key + SIZE not in lists]
    if missing or not found:
        what = missing[0] if missing else "a set with sizes"
        raise FormatError(f"{what} is missing, which says how many components there are")
    if len(set(found.values())) > 1:
        raise FormatError(f"sizes are of different numbers of components: {found}")
    return next(iter(found.values()))


def _sizes(lists: Mapping[str, Values], key: str, num_components: int) -> IntArray:
    sizes = _ints(lists, key + SIZE)
    if not len(sizes):
        return np.zeros(num_components, np.int64)
    if len(sizes) != num_components:
        raise FormatError(f"{key}{SIZE} has {len(sizes)} components; wanted {num_components}")
    if int(sizes.min()) < 0:
        raise FormatError(f"{key}{SIZE} is {int(sizes.min())}; sizes are 0 or more")
    if int(sizes.max()) > MAX_ITEMS or int(sizes.sum()) > MAX_ITEMS:
        raise FormatError(f"{key}{SIZE} is {int(sizes.max())}; a message has at most {MAX_ITEMS} of a set")
    return sizes


def _ints(lists: Mapping[str, Values], key: str) -> IntArray:
    values = lists.get(key, np.empty(0, np.int64))
    if len(values) and (isinstance(values, RaggedArray) or values.dtype != np.int64):
        raise FormatError(f"{key} is a list of {kind_text(values)}; wanted int64")
    return values if isinstance(values, np.ndarray) else np.empty(0, np.int64)


def kind_text(values: Values) -> str:
    """What messages call the kind of a list."""
    return "strings" if isinstance(values, RaggedArray) else str(values.dtype)


def _indices(
    lists: Mapping[str, Values], key: str, num_edges: int, node_set: str, nodes: Mapping[str, NodePieces]
) -> IntArray:
    indices = _ints(lists, key)
    if len(indices) != num_edges:
        raise FormatError(f"{key} has {len(indices)} indices; there are {num_edges} edges")
    if node_set not in nodes:
        raise FormatError(f"{key} points at node set {node_set!r}, which the schema does not have")
    num_nodes = int(nodes[node_set].sizes.sum())
    if num_edges and not 0 <= int(indices.min()) <= int(indices.max()) < num_nodes:
        raise FormatError(
            f"{key} has indices {int(indices.min())}..{int(indices.max())}; {node_set} has {num_nodes} nodes"
        )
    return indices


def _features(
    lists: Mapping[str, Values], key: str, features: Mapping[str, FieldSpec], num_items: int
) -> dict[str, FeatureValues]:
    return {name: _feature(lists, key + name, spec, num_items) for name, spec in features.items()}


def _feature(lists: Mapping[str, Values], key: str, spec: FieldSpec, num_items: int) -> FeatureValues:
    values = lists.get(key, np.empty(0, np.int64))
    dims: list[Dim] = []
    num_rows = num_items
    for number, size in enumerate(spec.shape, 1):
        if size is not None:
            dims.append(size)
            num_rows *= size
            continue
        if num_rows > MAX_ITEMS:
            raise FormatError(f"{key} has {num_rows} rows in dimension {number}; a message has at most {MAX_ITEMS}")
        lengths = _ints(lists, f"{key}.d{number}")
        if not len(lengths) and not len(values):  # left out where all rows are empty
            if num_rows > max(MAX_LEFT_OUT, sum(map(len, lists.values()))):
                raise FormatError(f"{key}.d{number} is left out; {left_out_text()}")
            lengths = np.zeros(num_rows, np.int64)
        if len(lengths) != num_rows or (num_rows and int(lengths.min()) < 0):
            raise FormatError(f"{key}.d{number} has the lengths of {len(lengths)} rows; there are {num_rows}")
        if len(lengths) and max(int(lengths.max()), int(lengths.sum())) > MAX_ITEMS:
            longest = int(lengths.max())
            raise FormatError(f"{key}.d{number} has a row of length {longest}; a message has at most {MAX_ITEMS} rows")
        dims.append(lengths)
        num_rows = int(lengths.sum())
    if len(values) != num_rows:
        where = f"{num_items} items of shape {list(spec.shape)}"
        got = f"{key} has {len(values)} values" if key in lists else f"{key} is not there"
        raise FormatError(f"{got}; {where} have {num_rows}")
    return FeatureValues(loaded_values(key, values, spec), num_items, tuple(dims))


def left_out_text() -> str:
    """Which row lengths may be left out."""
    return f"of {MAX_LEFT_OUT} rows and more a message has the lengths, though all are 0, or as many other values"


def loaded_values(key: str, values: Values, spec: FieldSpec) -> Array | RaggedArray:
    """Values in the dtype of the spec, as ``tf.cast`` gives them."""
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


def concatenate_graphs(graphs: Sequence[GraphPieces]) -> GraphPieces:
    """Graph tensors of one spec as one batch; indices stay those of each graph.

    Raises:
        SchemaError: There are none.
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
