"""Graph tensors, and conversions between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from hopstream.arrays import IntArray, offsets_of
from hopstream.checks import known_words
from hopstream.compat.tfgnn.pieces import Adjacency, Context, EdgeSet, NodeSet
from hopstream.compat.tfgnn.specs import EDGES, HIDDEN_STATE, NODES, GraphTensorSpec, TensorSpec, get_aux_type_prefix
from hopstream.errors import SchemaError, UnknownNameError
from hopstream.tfgnn.graph_tensor import EdgePieces, GraphPieces, NodePieces
from hopstream.tfgnn.values import FeatureValues

Piece = TypeVar("Piece", Context, NodeSet, EdgeSet)
Set = TypeVar("Set", NodeSet, EdgeSet)


class _Sets(dict[str, Any]):
    """Sets by name; the error for an unknown name lists the known ones."""

    def __init__(self, what: str, sets: Mapping[str, Any]) -> None:
        super().__init__(sets)
        self._what = what

    def __missing__(self, name: str) -> Any:
        raise UnknownNameError(f"{self._what} {name!r} does not exist; {known_words(name, self)}")

    def __reduce__(self) -> Any:
        return _Sets, (self._what, dict(self))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class GraphTensor:
    """A graph of one or several components, or a batch of such graphs. Immutable.

    Attributes:
        context: Features of components.
        node_sets: Node sets by name.
        edge_sets: Edge sets by name.
    """

    context: Context
    node_sets: Mapping[str, NodeSet]
    edge_sets: Mapping[str, EdgeSet]

    def __post_init__(self) -> None:
        """Wrap the sets, so that errors for unknown names list the known ones."""
        object.__setattr__(self, "node_sets", _Sets("node set", self.node_sets))
        object.__setattr__(self, "edge_sets", _Sets("edge set", self.edge_sets))

    @classmethod
    def from_pieces(
        cls, context: Context | None = None, node_sets: Mapping[str, NodeSet] | None = None,
        edge_sets: Mapping[str, EdgeSet] | None = None,
    ) -> GraphTensor:  # fmt: skip
        """Make a graph tensor from its pieces; sizes and indices become int64 if those of any piece are.

        Args:
            context: Features of components; none if None.
            node_sets: Node sets by name.
            edge_sets: Edge sets by name.

        Raises:
            SchemaError: Pieces have different numbers of graphs or components, or edges refer to nodes that do not
                exist.
        """
        nodes, edges = dict(node_sets or {}), dict(edge_sets or {})
        sets: list[NodeSet | EdgeSet] = [*nodes.values(), *edges.values()]
        if context is None:
            shape = sets[0].sizes.shape if sets else (1,)
            context = Context(sizes=np.ones(shape, sets[0].sizes.dtype if sets else np.int32))
        shapes = {
            "context": context.sizes.shape,
            **{f"node set {name!r}": of.sizes.shape for name, of in nodes.items()},
            **{f"edge set {name!r}": of.sizes.shape for name, of in edges.items()},
        }
        for what, shape in shapes.items():
            if shape != context.sizes.shape:
                wanted = list(context.sizes.shape)
                raise SchemaError(f"{what} has sizes of shape {list(shape)}; those of the context are {wanted}")
        for name, edge_set in edges.items():
            _check_ends(name, edge_set, nodes)
        all_sizes = [context.sizes, *(of.sizes for of in sets)]
        dtypes = {sizes.dtype for sizes in all_sizes} | {a.dtype for e in edges.values() for a in e.adjacency.flat}
        dtype = np.result_type(*dtypes)
        return cls(
            context=_as_dtype(context, dtype),
            node_sets={name: _as_dtype(of, dtype) for name, of in nodes.items()},
            edge_sets={name: _edges_as_dtype(of, dtype) for name, of in edges.items()},
        )

    def __repr__(self) -> str:
        """Return sets, counts and features, one line per set."""
        lines = [f"  context: {self.total_num_components} components{_features_text(self.context)}"]
        for name, nodes in self.node_sets.items():
            lines.append(f"  node set {name!r}: {nodes.total_size:,} nodes{_features_text(nodes)}")
        for name, edges in self.edge_sets.items():
            ends = f"{edges.adjacency.source_name!r} -> {edges.adjacency.target_name!r}"
            lines.append(f"  edge set {name!r}, {ends}: {edges.total_size:,} edges{_features_text(edges)}")
        return "\n".join([f"GraphTensor(shape={self.shape}", *lines, ")"])

    @property
    def rank(self) -> int:
        """1 for a batch of graphs, otherwise 0."""
        return self.context.rank

    @property
    def shape(self) -> tuple[int, ...]:
        """``(num_graphs,)`` for a batch, otherwise ``()``."""
        return self.context.shape

    @property
    def indices_dtype(self) -> np.dtype[Any]:
        """The dtype of sizes and indices, int32 or int64."""
        return self.context.sizes.dtype

    @property
    def num_components(self) -> Any:
        """Number of components of the graph; int64[num_graphs] for a batch."""
        return self.context.num_components

    @property
    def total_num_components(self) -> int:
        """Number of components of all graphs."""
        return self.context.total_num_components

    @property
    def spec(self) -> GraphTensorSpec:
        """Shapes and dtypes of the graph tensor."""
        return GraphTensorSpec(
            context_spec=self.context.spec,
            node_sets_spec={name: of.spec for name, of in self.node_sets.items()},
            edge_sets_spec={name: of.spec for name, of in self.edge_sets.items()},
        )

    def replace_features(
        self, context: Mapping[str, Any] | None = None, node_sets: Mapping[str, Mapping[str, Any]] | None = None,
        edge_sets: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> GraphTensor:  # fmt: skip
        """Return the same graph with other features; each named set gets exactly the given features.

        Args:
            context: Features of components by name; None keeps the old ones.
            node_sets: Features by node set; other sets keep theirs.
            edge_sets: Features by edge set; other sets keep theirs.

        Raises:
            SchemaError: There is no such set, or a feature has values of another number of items.
        """
        return GraphTensor(
            context=self.context if context is None else self.context.replace_features(context),
            node_sets=_replaced(self.node_sets, node_sets or {}, "node set"),
            edge_sets=_replaced(self.edge_sets, edge_sets or {}, "edge set"),
        )

    def remove_features(
        self, context: Iterable[str] | None = None, node_sets: Mapping[str, Iterable[str]] | None = None,
        edge_sets: Mapping[str, Iterable[str]] | None = None,
    ) -> GraphTensor:  # fmt: skip
        """Return the same graph without some features.

        Args:
            context: Names of context features.
            node_sets: Names of features by node set.
            edge_sets: Names of features by edge set.

        Raises:
            SchemaError: There is no such set or feature.
        """
        return GraphTensor(
            context=_without(self.context, context or (), "context"),
            node_sets=_all_without(self.node_sets, node_sets or {}, "node set"),
            edge_sets=_all_without(self.edge_sets, edge_sets or {}, "edge set"),
        )

    def merge_batch_to_components(self) -> GraphTensor:
        """Merge the graphs of a batch to components of one graph; indices count from the first node of all."""
        if not self.rank:
            return self
        edge_sets = {}
        for name, edges in self.edge_sets.items():
            ends = edges.adjacency
            counts = edges.sizes.sum(axis=1)
            sources, targets = (
                flat + np.repeat(self._first_nodes(node_set), counts).astype(flat.dtype)
                for flat, node_set in zip(ends.flat, (ends.source_name, ends.target_name), strict=True)
            )
            merged = replace(ends, flat=(sources, targets), num_edges=len(sources))
            edge_sets[name] = replace(edges, sizes=edges.sizes.reshape(-1), adjacency=merged)
        return GraphTensor(
            context=replace(self.context, sizes=self.context.sizes.reshape(-1)),
            node_sets={name: replace(of, sizes=of.sizes.reshape(-1)) for name, of in self.node_sets.items()},
            edge_sets=edge_sets,
        )

    def pieces(self) -> GraphPieces:
        """Convert the graph, or the batch, to the records that ``hopstream.tfgnn`` encodes."""
        num_graphs = self.shape[0] if self.rank else 1
        num_components = self.context.sizes.shape[-1]
        return GraphPieces(
            component_offsets=np.arange(num_graphs + 1, dtype=np.int64) * num_components,
            context=self.context.items,
            node_sets={
                name: NodePieces(sizes=_flat64(of.sizes), features=of.items) for name, of in self.node_sets.items()
            },
            edge_sets={
                name: EdgePieces(
                    sizes=_flat64(of.sizes), source=_flat64(of.adjacency.flat[0]), target=_flat64(of.adjacency.flat[1]),
                    source_set=of.adjacency.source_name, target_set=of.adjacency.target_name, features=of.items,
                )
                for name, of in self.edge_sets.items()
            },
        )  # fmt: skip

    @classmethod
    def of_pieces(cls, pieces: GraphPieces, *, is_batch: bool = False, indices_dtype: Any = np.int32) -> GraphTensor:
        """Make a graph tensor from records of ``hopstream.tfgnn`` or ``hopstream.export``.

        Args:
            pieces: One graph, or several.
            is_batch: Make a batch, even of one graph.
            indices_dtype: dtype of sizes and indices, int32 or int64.

        Raises:
            SchemaError: Graphs of a batch have different numbers of components, or there are several graphs without
                ``is_batch``.
        """
        counts = np.diff(pieces.component_offsets)
        if len(np.unique(counts)) > 1:
            raise SchemaError(f"graphs have {counts.tolist()} components; those of a batch must have the same number")
        if not is_batch and len(counts) != 1:
            raise SchemaError(f"there are {len(counts)} graphs; a graph tensor of several is a batch")
        shape = (len(counts), int(counts[0]) if len(counts) else 1) if is_batch else (int(counts[0]),)

        def sizes(flat: IntArray) -> IntArray:
            return flat.reshape(shape).astype(indices_dtype)

        return cls(
            context=Context(sizes=np.ones(shape, indices_dtype), items=pieces.context),
            node_sets={
                name: NodeSet(sizes=sizes(of.sizes), items=of.features) for name, of in pieces.node_sets.items()
            },
            edge_sets={
                name: EdgeSet(
                    sizes=sizes(of.sizes), items=of.features,
                    adjacency=_adjacency_of(of, pieces.item_offsets(of.sizes) if is_batch else None, indices_dtype),
                )
                for name, of in pieces.edge_sets.items()
            },
        )  # fmt: skip

    def _first_nodes(self, node_set: str) -> IntArray:
        """Return int64[num_graphs], the offset of each graph's nodes in a batch."""
        return offsets_of(self.node_sets[node_set].sizes.sum(axis=1))[:-1]


def _flat64(array: IntArray) -> IntArray:
    return array.reshape(-1).astype(np.int64, copy=False)


def _adjacency_of(edges: EdgePieces, offsets: IntArray | None, dtype: Any) -> Adjacency:
    flat = (edges.source.astype(dtype), edges.target.astype(dtype))
    num_edges = len(edges.source) if offsets is None else np.diff(offsets)
    return Adjacency(source_name=edges.source_set, target_name=edges.target_set, flat=flat, num_edges=num_edges)


def _check_ends(name: str, edges: EdgeSet, nodes: Mapping[str, NodeSet]) -> None:
    ends = edges.adjacency
    for end, node_set, flat in zip(("source", "target"), (ends.source_name, ends.target_name), ends.flat, strict=True):
        if node_set not in nodes:
            known = ", ".join(nodes) or "none"
            raise SchemaError(f"edge set {name!r} has {end} {node_set!r}, which is not a node set; known: {known}")
        num_nodes = np.repeat(nodes[node_set].sizes.sum(axis=-1, keepdims=edges.rank == 0), ends.num_edges)
        wrong = np.flatnonzero((flat < 0) | (flat >= num_nodes))
        if len(wrong):
            at = int(wrong[0])
            raise SchemaError(
                f"edge set {name!r}: {end} {flat[at]} of edge {at} is not a node; {node_set!r} has {num_nodes[at]}"
            )


def _as_dtype(piece: Piece, dtype: np.dtype[Any]) -> Piece:
    return replace(piece, sizes=piece.sizes.astype(dtype, copy=False))


def _edges_as_dtype(edges: EdgeSet, dtype: np.dtype[Any]) -> EdgeSet:
    source, target = (flat.astype(dtype, copy=False) for flat in edges.adjacency.flat)
    return replace(_as_dtype(edges, dtype), adjacency=replace(edges.adjacency, flat=(source, target)))


def _check_names(names: Iterable[str], known: Mapping[str, Any], what: str) -> None:
    for name in names:
        if name not in known:
            raise SchemaError(f"{what} {name!r} does not exist; {known_words(name, known)}")


def _replaced(sets: Mapping[str, Set], features: Mapping[str, Mapping[str, Any]], what: str) -> dict[str, Set]:
    _check_names(features, sets, what)
    return {name: of.replace_features(features[name]) if name in features else of for name, of in sets.items()}


def _without(piece: Piece, names: Iterable[str], where: str) -> Piece:
    removed = [names] if isinstance(names, str) else list(names)
    _check_names(removed, piece.items, f"{where}: feature")
    return replace(piece, items={name: values for name, values in piece.items.items() if name not in removed})


def _all_without(sets: Mapping[str, Set], names: Mapping[str, Iterable[str]], what: str) -> dict[str, Set]:
    _check_names(names, sets, what)
    return {name: _without(of, names.get(name, ()), f"{what} {name!r}") for name, of in sets.items()}


def _features_text(piece: Context | NodeSet | EdgeSet) -> str:
    specs = ((name, TensorSpec.of(values)) for name, values in piece.items.items())
    return "".join(f", {name} {spec.dtype}{list(spec.shape)}" for name, spec in specs)


def homogeneous(  # noqa: PLR0913 - what TF-GNN's own takes, by the same names
    source: Any, target: Any, *, node_features: Any = None, edge_features: Any = None,
    context_features: Mapping[str, Any] | None = None, node_set_name: str = NODES, edge_set_name: str = EDGES,
    node_set_sizes: Any = None, edge_set_sizes: Any = None,
) -> GraphTensor:  # fmt: skip
    """Make a graph of one node set and one edge set.

    Args:
        source: int[num_edges], the source of each edge.
        target: int[num_edges], the target of each edge.
        node_features: Features of nodes by name, or a single one, which gets the name ``hidden_state``.
        edge_features: Features of edges, likewise.
        context_features: Features of components by name.
        node_set_name: Name of the node set.
        edge_set_name: Name of the edge set.
        node_set_sizes: int[num_components]; None for one component, whose size is the number of rows of a node feature.
        edge_set_sizes: int[num_components]; None for one component with all edges.

    Raises:
        SchemaError: The number of nodes is unknown, or numbers do not fit each other.
    """
    nodes, edges = _by_name(node_features), _by_name(edge_features)
    if node_set_sizes is None:
        if not nodes:
            raise SchemaError("neither node_features nor node_set_sizes gives the number of nodes")
        node_set_sizes = [FeatureValues.of(next(iter(nodes.values()))).num_items]
    sizes = [len(source)] if edge_set_sizes is None else edge_set_sizes
    adjacency = Adjacency.from_indices((node_set_name, source), (node_set_name, target))
    return GraphTensor.from_pieces(
        Context.from_fields(features=context_features, sizes=np.ones(len(sizes), np.int32)),
        {node_set_name: NodeSet.from_fields(features=nodes, sizes=node_set_sizes)},
        {edge_set_name: EdgeSet.from_fields(features=edges, sizes=sizes, adjacency=adjacency)},
    )


def get_homogeneous_node_and_edge_set_name(graph: GraphTensor | GraphTensorSpec) -> tuple[str, str]:
    """Return the names of the only node set and edge set; auxiliary sets such as ``_readout`` are ignored.

    Raises:
        SchemaError: There is none, or there are several.
    """
    spec = graph.spec if isinstance(graph, GraphTensor) else graph
    node_sets = [name for name in spec.node_sets_spec if get_aux_type_prefix(name) is None]
    edge_sets = [name for name in spec.edge_sets_spec if get_aux_type_prefix(name) is None]
    if len(node_sets) != 1 or len(edge_sets) != 1:
        raise SchemaError(f"there are node sets {node_sets} and edge sets {edge_sets}; wanted one of each")
    return node_sets[0], edge_sets[0]


def _by_name(features: Any) -> Mapping[str, Any]:
    if features is None:
        return {}
    return features if isinstance(features, Mapping) else {HIDDEN_STATE: features}
