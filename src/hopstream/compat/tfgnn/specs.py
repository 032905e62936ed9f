"""Specs: dtypes and shapes of graph tensors and their pieces, and names of sets and ends of edges.

A shape starts with the number of items of the set, or None for any number. None in a later place is a ragged dimension.
Specs with equal fields are equal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from hopstream.checks import known_words
from hopstream.errors import SchemaError
from hopstream.schema import STRING
from hopstream.tfgnn.spec import EdgeSetSpec as Edges
from hopstream.tfgnn.spec import FieldSpec, GraphSpec
from hopstream.tfgnn.spec import NodeSetSpec as Nodes
from hopstream.tfgnn.values import FeatureValues

_AUXILIARY = re.compile(r"[_#!%.^~][a-zA-Z0-9_]*")
CONTEXT, NODES, EDGES = "context", "nodes", "edges"
"""Types of sets, and prefixes of the names of their features."""
SOURCE, TARGET = 0, 1
"""Ends of an edge."""
HIDDEN_STATE = "hidden_state"
"""Name of the feature that models compute."""
DEFAULT_STATE_NAME = HIDDEN_STATE
"""Older name of ``HIDDEN_STATE``."""

_KERAS = "it is for Keras models; train with PyTorch Geometric on hopstream.NeighborLoader or on exported samples"
_OPS = "it is a step of a model; use PyTorch Geometric's layers, or numpy with adjacency.source and .target"
_PADDING = "it pads graphs to the fixed sizes that TPUs need, and nothing here needs those; batch with parse_example"
_PIPELINE = "it works on tf.data pipelines; read records with read_records and batch them with parse_example"
_CHECKS = "what is made or read is always checked"
_HYPER = "edges with more than two ends cannot be written to files; use Adjacency"
_ALIASES = "it only stands for a type; write str, int, numpy.ndarray or Mapping"
_KINDS = "use isinstance with GraphTensor, numpy.ndarray, or FeatureValues, which fields of varying sizes are"
_PRINT = "print write_example(graph), or call tolist on fields"

_NAMES = {
    _KERAS: "keras models runner experimental",
    _OPS: (
        "broadcast broadcast_node_to_edges broadcast_context_to_nodes broadcast_context_to_edges pool "
        "pool_edges_to_node pool_nodes_to_context pool_edges_to_context pool_neighbors_to_node "
        "pool_neighbors_to_node_feature get_registered_reduce_operation_names mask_edges add_self_loops "
        "shuffle_features_globally combine_values reorder_nodes shuffle_nodes node_degree convert_to_line_graph "
        "softmax softmax_edges_per_node"
    ),
    _PADDING: (
        "pad_to_total_sizes assert_satisfies_size_constraints satisfies_size_constraints assert_satisfies_total_sizes "
        "satisfies_total_sizes find_tight_size_constraints learn_fit_or_skip_size_constraints SizeConstraints "
        "FeatureDefaultValues"
    ),
    _PIPELINE: "dataset_filter_with_summary dataset_from_generator",
    _CHECKS: (
        "enable_graph_tensor_inputs_validation disable_graph_tensor_inputs_validation assert_constraints "
        "check_scalar_graph_tensor check_homogeneous_graph_tensor"
    ),
    _HYPER: "HyperAdjacency HyperAdjacencySpec",
    _ALIASES: (
        "Fields FieldsSpec FieldOrFields FieldSpec FieldName SetName SetType NodeSetName EdgeSetName IncidentNodeTag "
        "IncidentNodeOrContextTag"
    ),
    _KINDS: "is_dense_tensor is_ragged_tensor is_graph_tensor",
    _PRINT: "graph_tensor_to_values",
}
REASONS = {name: reason for reason, names in _NAMES.items() for name in names.split()}
"""Name to the reason why this package lacks it."""


def reverse_tag(tag: int) -> int:
    """Return the other end of an edge.

    Raises:
        ValueError: ``tag`` is neither ``SOURCE`` nor ``TARGET``.
    """
    if tag not in (SOURCE, TARGET):
        raise ValueError(f"tag is {tag!r}; an edge has SOURCE, {SOURCE}, and TARGET, {TARGET}")
    return TARGET if tag == SOURCE else SOURCE


def get_aux_type_prefix(set_name: str) -> str | None:
    """Return the prefix of an auxiliary set's name, such as ``_readout``; None for other sets."""
    match = _AUXILIARY.match(set_name)
    return None if match is None else match[0]


def missing_name(name: str) -> AttributeError:
    """Make the error for a name that this package lacks, with the reason and the alternative."""
    if name in REASONS:
        return AttributeError(f"hopstream.compat.tfgnn has no {name!r}: {REASONS[name]}")
    return AttributeError(f"hopstream.compat.tfgnn has no {name!r}; docs/from-tfgnn.md lists the names that it has")


Shape = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and dtype of a field, like ``tf.TensorSpec`` and ``tf.RaggedTensorSpec``.

    Attributes:
        shape: Number of items first.
        dtype: A numpy name, ``bfloat16``, or ``string``.
    """

    shape: Shape
    dtype: str

    @property
    def is_ragged(self) -> bool:
        """Whether values vary in size."""
        return None in self.shape[1:]

    def is_compatible_with(self, other: TensorSpec, num_open: int = 1) -> bool:
        """Return whether values of the other spec fit this one.

        Args:
            other: The other spec; bfloat16 and float32 are equal, because both are held as float32.
            num_open: Number of outermost dimensions in which None means any size. In later ones it means a ragged
                dimension, which a uniform one does not fit.
        """
        fits = len(self.shape) == len(other.shape) and _held(self.dtype) == _held(other.dtype)
        pairs = enumerate(zip(self.shape, other.shape, strict=False))
        return fits and all(mine == theirs or (mine is None and at < num_open) for at, (mine, theirs) in pairs)

    @classmethod
    def of(cls, values: FeatureValues) -> TensorSpec:
        """Return the spec of values."""
        dtype = STRING if not isinstance(values.flat, np.ndarray) else values.flat.dtype.name
        return cls((values.num_items, *values.shape), dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PieceSpec:
    features_spec: Mapping[str, TensorSpec] = field(default_factory=dict)
    sizes_spec: TensorSpec = TensorSpec((1,), "int32")

    def __getitem__(self, name: str) -> TensorSpec:
        """Return the spec of one feature."""
        return self.features_spec[name]

    @property
    def rank(self) -> int:
        """1 for a batch of graphs, otherwise 0."""
        return len(self.sizes_spec.shape) - 1

    def _problems(self, other: _PieceSpec, where: str) -> list[str]:
        """Return the differences from another piece, one line each."""
        missing = self.features_spec.keys() ^ other.features_spec.keys()
        found = [f"{where}.{name} is in one of them only" for name in sorted(missing)]
        pairs = {n: (spec, other.features_spec[n]) for n, spec in self.features_spec.items() if n not in missing}
        for name, (mine, theirs) in {"#size": (self.sizes_spec, other.sizes_spec), **pairs}.items():
            if not mine.is_compatible_with(theirs, len(self.sizes_spec.shape)):
                got, wanted = (f"{spec.dtype}{list(spec.shape)}" for spec in (theirs, mine))
                remedy = ", from ragged_constant" if mine.is_ragged and not theirs.is_ragged else ""
                found.append(f"{where}.{name} is {got}; wanted {wanted}{remedy}")
        return found


AnyPiece = TypeVar("AnyPiece", bound=_PieceSpec)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextSpec(_PieceSpec):
    """Spec of a context: specs of its features by name; the components are the items."""

    @classmethod
    def from_field_specs(
        cls, *, features_spec: Mapping[str, TensorSpec] | None = None, shape: Sequence[int | None] = (),
        indices_dtype: Any = np.int32, num_components: int | None = 1,
    ) -> ContextSpec:  # fmt: skip
        """Make the spec of a context.

        Args:
            features_spec: Specs by name.
            shape: ``()``, or ``(num_graphs,)`` for a batch.
            indices_dtype: dtype of sizes, int32 or int64.
            num_components: Number of components per graph; None for any number.
        """
        sizes = TensorSpec((*shape, num_components), np.dtype(indices_dtype).name)
        return cls(features_spec=dict(features_spec or {}), sizes_spec=sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSetSpec(_PieceSpec):
    """Spec of a node set: specs of its features by name, and of its sizes."""

    @classmethod
    def from_field_specs(
        cls, *, features_spec: Mapping[str, TensorSpec] | None = None, sizes_spec: TensorSpec
    ) -> NodeSetSpec:
        """Make the spec of a node set."""
        return cls(features_spec=dict(features_spec or {}), sizes_spec=sizes_spec)


@dataclass(frozen=True, slots=True)
class AdjacencySpec:
    """Spec of the node sets that edges connect.

    Attributes:
        source_name: The node set of the sources.
        target_name: The node set of the targets.
        index_spec: The spec of indices.
    """

    source_name: str
    target_name: str
    index_spec: TensorSpec = TensorSpec((None,), "int32")

    @classmethod
    def from_incident_node_sets(
        cls, source_node_set: str, target_node_set: str, index_spec: TensorSpec = TensorSpec((None,), "int32")
    ) -> AdjacencySpec:
        """Make the spec of edges between two node sets."""
        return cls(source_node_set, target_node_set, index_spec)

    def node_set_name(self, node_tag: int) -> str:
        """Return the node set of ``SOURCE`` or ``TARGET``."""
        return {SOURCE: self.source_name, TARGET: self.target_name}[node_tag]


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeSetSpec(_PieceSpec):
    """Spec of an edge set: specs of its features by name, of its sizes, and of its adjacency."""

    adjacency_spec: AdjacencySpec

    @classmethod
    def from_field_specs(
        cls, *, features_spec: Mapping[str, TensorSpec] | None = None, sizes_spec: TensorSpec,
        adjacency_spec: AdjacencySpec,
    ) -> EdgeSetSpec:  # fmt: skip
        """Make the spec of an edge set."""
        return cls(features_spec=dict(features_spec or {}), sizes_spec=sizes_spec, adjacency_spec=adjacency_spec)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphTensorSpec:
    """Spec of a graph tensor: specs of its context, node sets and edge sets.

    Attributes:
        context_spec: Spec of the context.
        node_sets_spec: Specs of node sets by name.
        edge_sets_spec: Specs of edge sets by name.
    """

    context_spec: ContextSpec = field(default_factory=ContextSpec)
    node_sets_spec: Mapping[str, NodeSetSpec] = field(default_factory=dict)
    edge_sets_spec: Mapping[str, EdgeSetSpec] = field(default_factory=dict)

    @classmethod
    def from_piece_specs(
        cls, context_spec: ContextSpec | None = None, node_sets_spec: Mapping[str, NodeSetSpec] | None = None,
        edge_sets_spec: Mapping[str, EdgeSetSpec] | None = None,
    ) -> GraphTensorSpec:  # fmt: skip
        """Make the spec of a graph tensor.

        Raises:
            SchemaError: Pieces have different ranks or numbers of components, or an edge set names a node set that does
                not exist.
        """
        nodes, edges = dict(node_sets_spec or {}), dict(edge_sets_spec or {})
        pieces: list[_PieceSpec] = [*nodes.values(), *edges.values()]
        if context_spec is None:
            context_spec = ContextSpec(sizes_spec=pieces[0].sizes_spec) if pieces else ContextSpec()
        shapes = {piece.sizes_spec.shape for piece in (context_spec, *pieces)}
        if len(shapes) > 1:
            raise SchemaError(f"pieces have sizes of different shapes: {sorted(map(str, shapes))}")
        for name, edge_set in edges.items():
            for end in (edge_set.adjacency_spec.source_name, edge_set.adjacency_spec.target_name):
                if end not in nodes:
                    raise SchemaError(f"edge set {name!r} connects node set {end!r}; {known_words(end, nodes)}")
        return cls(context_spec=context_spec, node_sets_spec=nodes, edge_sets_spec=edges)

    @classmethod
    def of_graph_spec(cls, spec: GraphSpec, indices_dtype: Any = np.int32) -> GraphTensorSpec:
        """Make the spec of graph tensors of one component from the core's spec of sets and features.

        Raises:
            SchemaError: ``indices_dtype`` is neither int32 nor int64, or an edge set names a node set that is missing.
        """
        dtype = np.dtype(indices_dtype).name
        if dtype not in ("int32", "int64"):
            raise SchemaError(f"indices_dtype is {dtype}; use int32 or int64")
        sizes, indices = TensorSpec((1,), dtype), TensorSpec((None,), dtype)
        return cls.from_piece_specs(
            context_spec=ContextSpec(features_spec=_tensor_specs(spec.context, 1), sizes_spec=sizes),
            node_sets_spec={
                name: NodeSetSpec(features_spec=_tensor_specs(of.features), sizes_spec=sizes)
                for name, of in spec.node_sets.items()
            },
            edge_sets_spec={
                name: EdgeSetSpec(
                    features_spec=_tensor_specs(of.features), sizes_spec=sizes,
                    adjacency_spec=AdjacencySpec(of.source, of.target, indices),
                )
                for name, of in spec.edge_sets.items()
            },
        )  # fmt: skip

    @property
    def rank(self) -> int:
        """1 for a batch of graphs, otherwise 0."""
        return self.context_spec.rank

    @property
    def indices_dtype(self) -> np.dtype[Any]:
        """The dtype of sizes and indices, int32 or int64."""
        return np.dtype(self.context_spec.sizes_spec.dtype)

    @property
    def num_components(self) -> int | None:
        """Number of components per graph; None for any number."""
        return self.context_spec.sizes_spec.shape[-1]

    def relax(
        self, *, num_components: bool = False, num_nodes: bool = False, num_edges: bool = False
    ) -> GraphTensorSpec:
        """Return the same spec with open numbers of components, nodes or edges."""
        context = self.context_spec
        if num_components:
            context = replace(_relaxed(context, num_items=True), sizes_spec=_open(context.sizes_spec))
        nodes = {name: _relaxed(spec, num_items=num_nodes) for name, spec in self.node_sets_spec.items()}
        edges = {name: _relaxed(spec, num_items=num_edges) for name, spec in self.edge_sets_spec.items()}
        if num_components:
            nodes = {name: replace(spec, sizes_spec=context.sizes_spec) for name, spec in nodes.items()}
            edges = {name: replace(spec, sizes_spec=context.sizes_spec) for name, spec in edges.items()}
        if num_edges:
            edges = {name: replace(e, adjacency_spec=_relaxed_ends(e.adjacency_spec)) for name, e in edges.items()}
        return GraphTensorSpec(context_spec=context, node_sets_spec=nodes, edge_sets_spec=edges)

    def is_compatible_with(self, other: Any) -> bool:
        """Return whether a graph tensor, or another spec, fits this spec; None fits any size."""
        return not self.problems(other)

    def problems(self, other: Any) -> list[str]:
        """Return the differences of a graph tensor, or another spec, from this one, one line each."""
        theirs: GraphTensorSpec = getattr(other, "spec", other)
        found = self.context_spec._problems(theirs.context_spec, "context")
        kinds: tuple[tuple[str, Mapping[str, _PieceSpec], Mapping[str, _PieceSpec]], ...] = (
            ("nodes", self.node_sets_spec, theirs.node_sets_spec), ("edges", self.edge_sets_spec, theirs.edge_sets_spec)
        )  # fmt: skip
        for kind, mine, others in kinds:
            found += [f"{kind}/{name} is in one of them only" for name in sorted(mine.keys() ^ others.keys())]
            for name in mine.keys() & others.keys():
                found += mine[name]._problems(others[name], f"{kind}/{name}")
        for name in self.edge_sets_spec.keys() & theirs.edge_sets_spec.keys():
            ends, wanted = theirs.edge_sets_spec[name].adjacency_spec, self.edge_sets_spec[name].adjacency_spec
            if (ends.source_name, ends.target_name) != (wanted.source_name, wanted.target_name):
                found.append(f"edges/{name} connects other node sets")
        return sorted(found)

    def graph_spec(self) -> GraphSpec:
        """Convert to the core's spec, for encoding and decoding."""
        return GraphSpec(
            context=_field_specs(self.context_spec),
            node_sets={name: Nodes(features=_field_specs(spec)) for name, spec in self.node_sets_spec.items()},
            edge_sets={
                name: Edges(
                    source=spec.adjacency_spec.source_name, target=spec.adjacency_spec.target_name,
                    features=_field_specs(spec),
                )
                for name, spec in self.edge_sets_spec.items()
            },
        )  # fmt: skip


def _held(dtype: str) -> str:
    return "float32" if dtype == "bfloat16" else dtype


def _field_specs(piece: _PieceSpec) -> dict[str, FieldSpec]:
    return {name: FieldSpec(dtype=spec.dtype, shape=spec.shape[1:]) for name, spec in piece.features_spec.items()}


def _tensor_specs(features: Mapping[str, FieldSpec], num_items: int | None = None) -> dict[str, TensorSpec]:
    return {name: TensorSpec((num_items, *of.shape), of.dtype) for name, of in features.items()}


def _open(spec: TensorSpec) -> TensorSpec:
    return TensorSpec((*spec.shape[:-1], None), spec.dtype)


def _relaxed(piece: AnyPiece, *, num_items: bool) -> AnyPiece:
    if not num_items or piece.rank:
        return piece
    opened = {n: TensorSpec((None, *spec.shape[1:]), spec.dtype) for n, spec in piece.features_spec.items()}
    return replace(piece, features_spec=opened)


def _relaxed_ends(spec: AdjacencySpec) -> AdjacencySpec:
    return AdjacencySpec(spec.source_name, spec.target_name, _open(spec.index_spec))
