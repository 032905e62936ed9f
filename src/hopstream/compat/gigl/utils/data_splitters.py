"""Splitters of nodes and anchors into training, validation and testing, and labels of anchors.

A split depends only on the hash of an id. So ranks agree on splits without a process group, and new nodes do not move
existing ones. Sizes of splits match the shares on average.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast, get_args, overload, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from hopstream.checks import check_choice, is_number, known_names, read_integer
from hopstream.compat.gigl.src.common.types.graph_data import EdgeType, NodeType
from hopstream.compat.gigl.types.graph import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    message_passing_to_negative_label,
    message_passing_to_positive_label,
    reverse_edge_type,
)
from hopstream.compat.pyg.id_values import check_ids, id_list_given, ids_given
from hopstream.errors import SchemaError, SettingsError, UnknownNameError
from hopstream.graph.splits import TEST, TRAIN, VAL, SplitSettings, places_of_keys
from hopstream.schema import NODE, Direction

PADDING_NODE = torch.tensor(-1, dtype=torch.int64)
"""Padding of shorter rows of labels."""
MAX_LABELS_PER_ANCHOR_NODE_RUNTIME_ARG = "max_labels_per_anchor_node"
Split = tuple[Tensor, Tensor, Tensor]
"""Ids for training, validation and testing, int64 each."""
HashFunction = Callable[[Tensor], Tensor]


@runtime_checkable
class NodeSplitter(Protocol):
    """Splitter of nodes."""

    def __call__(self, *args: Any, **kwargs: Any) -> Split | Mapping[NodeType, Split]:
        """Return the splits of ids, or splits by node type for ids by node type."""


@runtime_checkable
class NodeAnchorLinkSplitter(Protocol):
    """Splitter of the anchors of links."""

    def __call__(self, *args: Any, **kwargs: Any) -> Split | Mapping[NodeType, Split]:
        """Return the splits of the anchors of edges, or splits by node type for edges by edge type."""

    @property
    def should_convert_labels_to_edges(self) -> bool:
        """Whether labels have separate edge types."""


@dataclass(frozen=True)
class DistNodeSplitter:
    """Splitter of nodes by a hash of their ids.

    Attributes:
        num_val: The share for validation.
        num_test: The share for testing.
        hash_function: int64[n] ids to int64[n]; nodes with equal values get the same split. None for the ids. The
            values are hashed again, so their distribution does not matter.

    Raises:
        SettingsError: A share is negative, or nothing is left for training.
    """

    num_val: float = 0.1
    num_test: float = 0.1
    hash_function: HashFunction | None = None

    def __post_init__(self) -> None:
        """Check the shares."""
        _settings(self.num_val, self.num_test)

    @overload
    def __call__(self, node_ids: Tensor) -> Split: ...
    @overload
    def __call__(self, node_ids: Mapping[NodeType, Tensor]) -> dict[NodeType, Split]: ...
    def __call__(self, node_ids: Tensor | Mapping[NodeType, Tensor]) -> Split | dict[NodeType, Split]:
        """Split ids, int64[n], or ids by node type; keep their order and repetitions.

        Raises:
            SchemaError: A value is no list of ids.
        """
        if isinstance(node_ids, Mapping):
            return {node_type: _split(self, node_type, ids) for node_type, ids in node_ids.items()}
        return _split(self, DEFAULT_HOMOGENEOUS_NODE_TYPE, node_ids)


@dataclass(frozen=True)
class DistNodeAnchorLinkSplitter:
    """Splitter of the anchors of links; an anchor keeps all its labels.

    Attributes:
        sampling_direction: ``out``: anchors are the sources of edges; ``in``: their destinations.
        num_val: The share for validation.
        num_test: The share for testing.
        hash_function: As for ``DistNodeSplitter``.
        supervision_edge_types: Edge types with labels; None in a graph with one edge type.
        should_convert_labels_to_edges: Labels have separate edge types, with names as in ``gigl.types.graph``, and are
            reversed for the direction ``in``. Otherwise the supervision edge types hold the labels.

    Raises:
        SettingsError: A field is out of its range.
    """

    sampling_direction: Literal["in", "out"] | str
    num_val: float = 0.1
    num_test: float = 0.1
    hash_function: HashFunction | None = None
    supervision_edge_types: Sequence[EdgeType | tuple[str, str, str]] | None = None
    should_convert_labels_to_edges: bool = True

    def __post_init__(self) -> None:
        """Check the shares and the direction."""
        check_choice("sampling_direction", self.sampling_direction, get_args(Direction))
        _settings(self.num_val, self.num_test)

    @property
    def labeled_edge_types(self) -> list[EdgeType]:
        """Edge types whose edges have anchors."""
        given = self.supervision_edge_types or [DEFAULT_HOMOGENEOUS_EDGE_TYPE]
        supervision = [EdgeType(*cast(EdgeType, edge_type)) for edge_type in given]
        if not self.should_convert_labels_to_edges:
            return supervision
        to_labels = (message_passing_to_positive_label, message_passing_to_negative_label)
        labeled = [to_label(edge_type) for to_label in to_labels for edge_type in supervision]
        return labeled if self.sampling_direction == "out" else [reverse_edge_type(one) for one in labeled]

    @overload
    def __call__(self, edge_index: Tensor) -> Split: ...
    @overload
    def __call__(self, edge_index: Mapping[EdgeType, Tensor]) -> dict[NodeType, Split]: ...
    def __call__(self, edge_index: Tensor | Mapping[EdgeType, Tensor]) -> Split | dict[NodeType, Split]:
        """Split the anchors of edges, int64[2, n], or of edges by edge type, of types with labels.

        Returns:
            The splits of the anchors, each id once, ascending; for edges by edge type, by the anchors' node type.

        Raises:
            SchemaError: A value is no list of edges.
            SettingsError: No edge type has labels.
        """
        end: Literal[0, 2] = 0 if self.sampling_direction == "out" else 2
        labeled, anchors = self.labeled_edge_types, dict[NodeType, list[Tensor]]()
        by_type = edge_index if isinstance(edge_index, Mapping) else {labeled[0]: edge_index}
        for edge_type, edges in by_type.items():
            if edge_type in labeled:
                anchors.setdefault(edge_type[end], []).append(_edges(edges)[end // 2])
        if not anchors:
            raise SettingsError(f"edges are of {list(by_type)}; wanted some of {labeled}, which have labels")
        splits = {
            node_type: _split(self, node_type, torch.cat(ids).unique())  # type: ignore[no-untyped-call]
            for node_type, ids in anchors.items()
        }
        return splits if isinstance(edge_index, Mapping) else next(iter(splits.values()))


def validate_max_labels_per_anchor_node(max_labels_per_anchor_node: int | None) -> int | None:
    """Check and return the limit of labels; None means no limit.

    Raises:
        SettingsError: The limit is no integer of at least 1.
    """
    if max_labels_per_anchor_node is None:
        return None
    return read_integer(MAX_LABELS_PER_ANCHOR_NODE_RUNTIME_ARG, max_labels_per_anchor_node, 1)


def get_max_labels_per_anchor_node_from_runtime_args(runtime_args: Mapping[str, str]) -> int | None:
    """Return the limit of labels from the arguments of a run, or None.

    Raises:
        SettingsError: The limit is no integer of at least 1.
    """
    text = runtime_args.get(MAX_LABELS_PER_ANCHOR_NODE_RUNTIME_ARG)
    try:
        return validate_max_labels_per_anchor_node(None if text is None else int(text))
    except ValueError as error:
        name = MAX_LABELS_PER_ANCHOR_NODE_RUNTIME_ARG
        raise SettingsError(f"{name} is {text!r}; it must be an integer, 1 or above") from error


def get_labels_for_anchor_nodes(
    dataset: Any,
    node_ids: Tensor,
    positive_label_edge_type: tuple[str, str, str],
    negative_label_edge_type: tuple[str, str, str] | None = None,
    max_labels_per_anchor_node: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Return the labels of anchors.

    Args:
        dataset: Its ``graph`` maps each edge type to an object with ``topo.indptr``, int64[num_anchors + 1], and
            ``topo.indices``, int64[num_labels]: arrays or tensors.
        node_ids: int64[n], anchors.
        positive_label_edge_type: The edge type of positives.
        negative_label_edge_type: The edge type of negatives, or None.
        max_labels_per_anchor_node: Limit of labels per anchor and edge type, in stored order.

    Returns:
        Positives int64[n, m] and negatives int64[n, k], or None without an edge type of negatives; see
        ``padded_labels``. Anchors beyond ``indptr`` of negatives have no negatives.

    Raises:
        SettingsError: The dataset has one edge type, or the limit is no integer of at least 1.
        UnknownNameError: There is no such edge type; also a ``KeyError``.
        IdRangeError: An anchor is beyond ``indptr`` of positives; also an ``IndexError``.
    """
    if not isinstance(dataset.graph, Mapping):
        raise SettingsError("the dataset has one edge type without a name; labels need edge types of their own")
    node_ids = id_list_given(node_ids, "node_ids")
    indptr, indices = _topology(dataset.graph, positive_label_edge_type)
    check_ids(node_ids, len(indptr) - 1, "node_ids", f"anchors of {tuple(positive_label_edge_type)}")
    positives = padded_labels(node_ids, indptr, indices, max_labels_per_anchor_node)
    if negative_label_edge_type is None:
        return positives, None
    return positives, padded_labels(
        node_ids, *_topology(dataset.graph, negative_label_edge_type), max_labels_per_anchor_node
    )


def padded_labels(anchors: Tensor, indptr: Tensor, indices: Tensor, max_labels: int | None = None) -> Tensor:
    """Return labels of anchors as rows of equal length.

    Args:
        anchors: int64[n], rows of ``indptr``; anchors beyond it have no labels.
        indptr: int64[num_rows + 1]; row ``i`` has the labels ``indices[indptr[i]:indptr[i + 1]]``.
        indices: int64[num_labels].
        max_labels: Limit of labels per anchor, in order. None for no limit.

    Returns:
        int64[n, m], where ``m`` is the largest number of labels of an anchor; shorter rows are padded with -1.

    Raises:
        SettingsError: ``max_labels`` is no integer of at least 1.
    """
    max_labels = validate_max_labels_per_anchor_node(max_labels)
    starts, ends = (indptr[rows.clamp(max=len(indptr) - 1)] for rows in (anchors, anchors + 1))
    counts = (ends - starts).clamp(min=0, max=max_labels)
    turns = torch.arange(int(counts.max()) if len(counts) else 0)
    is_there = turns < counts.unsqueeze(1)
    labels = torch.full(is_there.shape, int(PADDING_NODE))
    labels[is_there] = indices[(starts.unsqueeze(1) + turns)[is_there]]
    return labels


def select_ssl_positive_label_edges(
    edge_index: Tensor, positive_label_percentage: float, *, generator: torch.Generator | None = None
) -> Tensor:
    """Draw a share of edges without replacement, as labels for self-supervised training.

    Args:
        edge_index: int64[2, n].
        positive_label_percentage: The share, from 0 to 1; the number of edges is rounded down.
        generator: The generator; None for torch's default.

    Returns:
        int64[2, m].

    Raises:
        SettingsError: The share is outside 0 to 1.
        SchemaError: ``edge_index`` has another shape.
    """
    share = positive_label_percentage
    if not is_number(share) or not 0 <= share <= 1:
        raise SettingsError(f"positive_label_percentage is {share!r}; it must be a number from 0 to 1")
    edges = _edges(edge_index)
    num_edges = edges.shape[1]
    return edges[:, torch.randperm(num_edges, generator=generator)[: int(num_edges * share)]]


def _settings(num_val: float, num_test: float) -> SplitSettings:
    settings = SplitSettings(val=num_val, test=num_test, method="hash")
    if num_val + num_test >= 1:
        raise SettingsError(f"num_val is {num_val} and num_test {num_test}; together they must be below 1")
    return settings


def _split(splitter: DistNodeSplitter | DistNodeAnchorLinkSplitter, node_type: str, given: Tensor) -> Split:
    """Return the ids of each split, in the given order."""
    ids = id_list_given(given, "node_ids")
    keys = ids
    if splitter.hash_function is not None:
        keys = id_list_given(splitter.hash_function(ids), "what hash_function returns")
        if len(keys) != len(ids):
            raise SchemaError(f"hash_function returns {len(keys)} numbers for {len(ids)} ids; wanted one for each")
    # Nodes without a type and nodes of the default type are the same nodes.
    name = NODE if node_type == DEFAULT_HOMOGENEOUS_NODE_TYPE else node_type
    settings = _settings(splitter.num_val, splitter.num_test)
    places = torch.from_numpy(places_of_keys(name, np.ascontiguousarray(keys.cpu().numpy()), settings)).to(ids.device)
    return ids[places == TRAIN], ids[places == VAL], ids[places == TEST]


def _edges(given: Tensor) -> Tensor:
    """Check and return int64[2, n]."""
    edges = ids_given(given, "edge_index")
    if edges.dim() != 2 or len(edges) != 2:
        raise SchemaError(f"edge_index is {edges.dtype}{list(edges.shape)}; wanted int64[2, n]")
    return edges


def _topology(graph: Mapping[Any, Any], edge_type: tuple[str, str, str]) -> tuple[Tensor, Tensor]:
    """Return offsets and ids of the labels of an edge type."""
    if edge_type not in graph:
        raise UnknownNameError(f"the dataset has no edge type {tuple(edge_type)}; {known_names(edge_type, graph)}")
    topology = graph[edge_type].topo
    return torch.as_tensor(topology.indptr), torch.as_tensor(topology.indices)
