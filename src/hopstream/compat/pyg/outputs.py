"""Turns a sampled subgraph into what PyG's samplers return."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from hopstream.load.batch import MiniBatch
from hopstream.load.pyg import to_tensor
from hopstream.schema import EDGE, NODE, EdgeType

Output: TypeAlias = SamplerOutput | HeteroSamplerOutput


def sampler_output(batch: MiniBatch, is_homogeneous: bool) -> Output:
    """A sampled subgraph as PyG's samplers return it; tensors share the memory of the batch's arrays.

    Args:
        batch: The subgraph, as loaders make it with ``collate="numpy"``. Features in it are left aside.
        is_homogeneous: Return a ``SamplerOutput``, of the only node and edge type.

    Returns:
        ``node`` are keys, seeds first; ``row`` and ``col`` positions in them; ``edge`` edge keys, or None where the
        batch has none; ``batch`` the tree of each node in disjoint subgraphs; ``metadata`` what PyG's loaders look for:
        ``(input_id, seed_time)`` of nodes, ``(input_id, edge_label_index, edge_label, edge_label_time)`` of links, and
        ``(input_id, src_index, dst_pos_index, dst_neg_index, seed_time)`` of triplets, with None for what is not there.
    """
    node = {t: to_tensor(keys, False) for t, keys in batch.node_keys.items()}
    row = {t: to_tensor(edge_index[0], False) for t, edge_index in batch.edge_index.items()}
    col = {t: to_tensor(edge_index[1], False) for t, edge_index in batch.edge_index.items()}
    edge = {t: to_tensor(batch.edge_keys[t], False) if t in batch.edge_keys else None for t in batch.edge_index}
    trees = None if batch.trees is None else {t: to_tensor(of, False) for t, of in batch.trees.items()}
    num_edges = batch.num_sampled_edges
    if not is_homogeneous:
        return HeteroSamplerOutput(
            node=node,
            row=row,
            col=col,
            edge=edge,
            batch=trees,
            num_sampled_nodes=dict(batch.num_sampled_nodes),
            num_sampled_edges=None if num_edges is None else dict(num_edges),
            metadata=_metadata(batch),
        )
    none = torch.empty(0, dtype=torch.int64)
    return SamplerOutput(
        node=node[NODE],
        row=row.get(EDGE, none),
        col=col.get(EDGE, none),
        edge=edge.get(EDGE),
        batch=None if trees is None else trees[NODE],
        num_sampled_nodes=batch.num_sampled_nodes[NODE],
        num_sampled_edges=None if num_edges is None else num_edges.get(EDGE, []),
        metadata=_metadata(batch),
    )


def _metadata(batch: MiniBatch) -> tuple[Any, ...]:
    """What PyG's loaders attach to a batch, in the order in which they look for it."""
    input_ids = to_tensor(batch.input_ids, False)
    if isinstance(batch.seed_type, str):
        return (input_ids, _attribute(batch, batch.seed_type, "seed_time"))
    src_type, _, dst_type = batch.seed_type
    if "dst_pos_index" not in batch.attributes.get(dst_type, {}):
        names = ("edge_label_index", "edge_label", "edge_label_time")
        return (input_ids, *(_attribute(batch, batch.seed_type, name) for name in names))
    wanted = (
        (src_type, "src_index"),
        (dst_type, "dst_pos_index"),
        (dst_type, "dst_neg_index"),
        (dst_type, "seed_time"),
    )
    return (input_ids, *(_attribute(batch, owner, name) for owner, name in wanted))


def _attribute(batch: MiniBatch, owner: str | EdgeType, name: str) -> Any:
    value = batch.attributes.get(owner, {}).get(name)
    return None if value is None else to_tensor(value, False)
