"""Anchors with their labels as what a loader samples around, and what samplers call labels in their messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor

from hopstream.compat.gigl.src.common.types.graph_data import EdgeType
from hopstream.compat.glt.sampler import NodeSamplerInput, places_given
from hopstream.errors import SchemaError

POSITIVE_LABEL_METADATA_KEY = "gigl_positive_labels."
NEGATIVE_LABEL_METADATA_KEY = "gigl_negative_labels."
NODE_PACKED_FEATURES_METADATA_KEY = "node_packed_features"
EDGE_PACKED_FEATURES_METADATA_KEY = "edge_packed_features"


@dataclass(eq=False)
class ABLPNodeSamplerInput(NodeSamplerInput):
    """Anchors, and the label nodes of each.

    Attributes:
        node: int64[n], ids of anchors.
        input_type: Their node type.
        positive_label_by_edge_types: Edge type to int64[n, m]; row ``i`` has the positives of anchor ``i``, then -1.
        negative_label_by_edge_types: The same of negatives.

    Raises:
        SchemaError: ``node`` is no list of ids, or labels have no row for each anchor.
    """

    input_type: str | None = field()
    positive_label_by_edge_types: Mapping[EdgeType, Tensor]
    negative_label_by_edge_types: Mapping[EdgeType, Tensor]

    def __post_init__(self) -> None:
        """Make labels tensors, and check that they have a row for each anchor."""
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
        """The anchors of some places with their labels, as for nodes."""
        places = places_given(index, self.node)
        positives, negatives = (
            {edge_type: rows[places] for edge_type, rows in labels.items()}
            for labels in (self.positive_label_by_edge_types, self.negative_label_by_edge_types)
        )
        return ABLPNodeSamplerInput(self.node[places], self.input_type, positives, negatives)

    def share_memory(self) -> Self:
        """Move ids and labels to memory that other processes can map; returns the same input."""
        for rows in (*self.positive_label_by_edge_types.values(), *self.negative_label_by_edge_types.values()):
            rows.share_memory_()  # type: ignore[no-untyped-call]
        return super().share_memory()
