"""Anchors with their labels as seeds of loaders, and GiGL's form of labels in a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from hopstream.compat.gigl.src.common.types.graph_data import EdgeType
from hopstream.compat.gigl.types.graph import (
    label_edge_type_to_message_passing_edge_type,
    message_passing_to_negative_label,
    message_passing_to_positive_label,
    reverse_edge_type,
)
from hopstream.compat.glt.distributed.graph_facts import DEFAULT_EDGE_TYPE, DEFAULT_NODE_TYPE, GraphFacts
from hopstream.compat.glt.distributed.loading import form_of, make_loader
from hopstream.compat.glt.sampler import NodeSamplerInput, SamplingConfig, places_given
from hopstream.errors import SchemaError
from hopstream.load.service import BatchService
from hopstream.load.setup import SubgraphLoader
from hopstream.sample.ppr_settings import PPRSettings
from hopstream.schema import Direction
from hopstream.schema import EdgeType as Types
from hopstream.store.contract import Store

POSITIVE_LABEL_METADATA_KEY = "gigl_positive_labels."
NEGATIVE_LABEL_METADATA_KEY = "gigl_negative_labels."
NODE_PACKED_FEATURES_METADATA_KEY = "node_packed_features"
EDGE_PACKED_FEATURES_METADATA_KEY = "edge_packed_features"


@dataclass(eq=False)
class ABLPNodeSamplerInput(NodeSamplerInput):
    """Anchors, and the label nodes of each.

    Attributes:
        node: int64[n], ids of anchors.
        input_type: Node type of the anchors.
        positive_label_by_edge_types: Edge type to int64[n, m]; row ``i`` has the positives of anchor ``i``, padded with
            -1.
        negative_label_by_edge_types: The same for negatives.

    Raises:
        SchemaError: ``node`` is no list of ids, or labels do not have one row per anchor.
    """

    input_type: str | None = field()
    positive_label_by_edge_types: Mapping[EdgeType, Tensor]
    negative_label_by_edge_types: Mapping[EdgeType, Tensor]

    def __post_init__(self) -> None:
        """Convert labels to tensors, and check that they have one row per anchor."""
        super().__post_init__()
        for name in ("positive_label_by_edge_types", "negative_label_by_edge_types"):
            labels = {edge_type: torch.as_tensor(rows) for edge_type, rows in getattr(self, name).items()}
            setattr(self, name, labels)
            for edge_type, rows in labels.items():
                if rows.dim() != 2 or len(rows) != len(self):
                    raise SchemaError(
                        f"labels of {tuple(edge_type)} are {rows.dtype}{list(rows.shape)}; wanted int64[{len(self)}, m]"
                    )

    def __getitem__(self, index: Any) -> ABLPNodeSamplerInput:
        """Return the anchors at some indices with their labels."""
        places = places_given(index, self.node)
        positives, negatives = (
            {edge_type: rows[places] for edge_type, rows in labels.items()}
            for labels in (self.positive_label_by_edge_types, self.negative_label_by_edge_types)
        )
        return ABLPNodeSamplerInput(self.node[places], self.input_type, positives, negatives)

    def share_memory(self) -> Self:
        """Move ids and labels to memory that other processes can map; return the same input."""
        for rows in (*self.positive_label_by_edge_types.values(), *self.negative_label_by_edge_types.values()):
            rows.share_memory_()  # type: ignore[no-untyped-call]
        return super().share_memory()


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelForm:
    """Converter of a batch to GiGL's form of labels and names of attributes.

    Attributes:
        form: Function that renames the other attributes.
        supervision: The dataset's supervision edge types to the user's.
        as_index: Return labels as int64[2, n]; otherwise as a dict of each anchor's position to int64[k].
        anchor_type: The dataset's node type of anchors.
    """

    form: Callable[[Data | HeteroData], Data | HeteroData]
    supervision: Mapping[Types, EdgeType]
    as_index: bool
    anchor_type: str

    def __call__(self, data: Data | HeteroData) -> Data | HeteroData:
        """Return a batch with GiGL's names, which shares the tensors."""
        found = {name: self._taken(data, name) for name in ("y_positive", "y_negative")}
        num_anchors = int((data if isinstance(data, Data) else data[self.anchor_type])["batch_size"])
        made = self.form(data)
        for name, by_type in found.items():
            shown = {t: pairs if self.as_index else _by_anchor(pairs, num_anchors) for t, pairs in by_type.items()}
            if shown:
                made[name] = shown if len(self.supervision) > 1 else next(iter(shown.values()))
        return made

    def _taken(self, data: Data | HeteroData, name: str) -> dict[EdgeType, torch.Tensor]:
        """Take int64[2, n] of every supervision edge type with labels from the batch's edge types."""
        if isinstance(data, Data):
            value = data.get(name, {})
            by_type = value if isinstance(value, dict) else dict.fromkeys(self.supervision, value)
        else:
            by_type = {own: data[own].pop(name) for own in self.supervision if name in data[own]}
        return {shown: by_type[own] for own, shown in self.supervision.items() if own in by_type}


def _by_anchor(pairs: torch.Tensor, num_anchors: int) -> dict[int, torch.Tensor]:
    """Map each anchor's position to the positions of its labels; pairs are grouped by anchor, ascending."""
    counts = torch.bincount(pairs[0], minlength=num_anchors)
    return dict(enumerate(torch.split(pairs[1], counts.tolist())))


def make_ablp_loader(
    source: Store | BatchService,
    facts: GraphFacts,
    config: SamplingConfig,
    given: ABLPNodeSamplerInput,
    *,
    as_index: bool = True,
    ppr: PPRSettings | None = None,
    **options: Any,
) -> SubgraphLoader:
    """Make a loader of anchors; batches have the attributes of ``LabelForm`` and ``BatchForm``.

    Args:
        source: A store of the whole graph, or servers that sample.
        facts: Facts of the graph.
        config: Settings of sampling.
        given: Anchors, and their labels by edge types of labels, which lead from anchors to label nodes.
        as_index: As for ``LabelForm``.
        ppr: Settings of personalised PageRank around anchors and label nodes; None samples hop by hop.
        **options: As for ``make_loader``, and ``exclude_labels`` as for ``ABLPLoader``.

    Raises:
        SettingsError: A setting is refused.
        IdRangeError: An anchor or a label is no node.
    """
    supervision, label_direction = _own_types(facts, given)
    labels = {own: _labels_of(given, shown) for own, shown in supervision.items()}
    form = label_form(facts, config, given, ppr, as_index=as_index)
    seeds = NodeSamplerInput(given.node, _shown_anchor_type(facts, given))
    return make_loader(
        source, facts, config, seeds, ppr=ppr, labels=labels, label_direction=label_direction, transform=form, **options
    )


def label_form(
    facts: GraphFacts, config: SamplingConfig, given: ABLPNodeSamplerInput, ppr: PPRSettings | None, *, as_index: bool
) -> LabelForm:
    """Return the converter of batches of anchors with labels."""
    supervision, _ = _own_types(facts, given)
    anchor_type = facts.node_type(_shown_anchor_type(facts, given))
    return LabelForm(
        form=form_of(facts, config, ppr), supervision=supervision, as_index=as_index, anchor_type=anchor_type
    )


def _shown_anchor_type(facts: GraphFacts, given: ABLPNodeSamplerInput) -> str | None:
    return None if facts.kind == "homogeneous" else given.input_type


def _labels_of(given: ABLPNodeSamplerInput, shown: EdgeType) -> tuple[Any, Any]:
    """Return int64[n, m] positives and int64[n, k] negatives, or None without negatives, of an edge type."""
    positives = given.positive_label_by_edge_types[message_passing_to_positive_label(shown)]
    negatives = given.negative_label_by_edge_types.get(message_passing_to_negative_label(shown))
    return positives.numpy(), None if negatives is None else negatives.numpy()


def _own_types(facts: GraphFacts, given: ABLPNodeSamplerInput) -> tuple[dict[Types, EdgeType], Direction]:
    """Return the dataset's names of supervision edge types, and the direction from anchors to labels.

    If the dataset has only their reverses, anchors are destinations. Types that the dataset lacks keep their names.
    """
    supervision = [label_edge_type_to_message_passing_edge_type(t) for t in given.positive_label_by_edge_types]
    own = {_own_type(facts, edge_type): edge_type for edge_type in supervision}
    turned = {reverse_edge_type(t): shown for t, shown in own.items()}
    edges = facts.schema.edges
    return (turned, "in") if all(t in edges for t in turned) and not any(t in edges for t in own) else (own, "out")


def _own_type(facts: GraphFacts, edge_type: EdgeType) -> Types:
    is_untyped = facts.kind == "homogeneous"
    for known in facts.schema.edges:
        if edge_type in (known, DEFAULT_EDGE_TYPE if is_untyped else facts.shown_edge(known)):
            return known
    src, dst = (
        facts.node_type(None if is_untyped and t == DEFAULT_NODE_TYPE else t) for t in (edge_type[0], edge_type[2])
    )
    return (src, edge_type[1], dst)
