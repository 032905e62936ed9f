"""Records of the nodes and edges that one run of a sampling plan found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hopstream.arrays import Array, IntArray
from hopstream.schema import Direction, EdgeType


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledEdges:
    """The edges of one type in a subgraph, in the order in which they were drawn.

    Attributes:
        src_slots: int64[num_edges], positions in the source type's nodes.
        dst_slots: int64[num_edges], positions in the destination type's nodes.
        edge_ids: int64[num_edges], ids of the edges, or None where the plan did not ask for them.
        direction: The direction whose id space ``edge_ids`` belong to.
    """

    src_slots: IntArray
    dst_slots: IntArray
    edge_ids: IntArray | None
    direction: Direction


@dataclass(frozen=True, slots=True, kw_only=True)
class Subgraph:
    """Nodes and edges found by a plan; the seeds come first, then each hop in order of first occurrence.

    Every node type and every edge type of the schema is present, if only with empty arrays.

    Attributes:
        node_ids: Node type to int64[num_nodes] ids; position in this array is the node's `slot`.
        edges: Edge type to its edges.
        num_sampled_nodes: Node type to [seeds, new in hop 1, …], ``num_hops + 1`` entries.
        num_sampled_edges: Edge type to [drawn in hop 1, …], ``num_hops`` entries; None where edges are not in the order
            of hops: in bidirectional and induced subgraphs.
        trees: Node type to int64[num_nodes], the tree of each slot, where every seed grows its own; else None.
        attributes: More that was found: edge type to name to array, as batches show it.
    """

    node_ids: Mapping[str, IntArray]
    edges: Mapping[EdgeType, SampledEdges]
    num_sampled_nodes: Mapping[str, list[int]]
    num_sampled_edges: Mapping[EdgeType, list[int]] | None
    trees: Mapping[str, IntArray] | None = None
    attributes: Mapping[EdgeType, Mapping[str, Array]] = field(default_factory=dict)
