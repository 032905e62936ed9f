"""Small PyG graphs for tests of PyG's files and stores."""

from __future__ import annotations

import torch
from torch_geometric.data import Data, HeteroData

WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")
NUM_NODES = {"author": 7, "paper": 12, "venue": 3}


def random_edges(num_src, num_dst, num_edges, seed):
    rng = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randint(num, (num_edges,), generator=rng) for num in (num_src, num_dst)])


def homogeneous(time=None, num_nodes=15, num_edges=40):
    """A graph without types; ``time`` is None, "node" or "edge". Values tell their row."""
    data = Data(
        x=torch.arange(num_nodes * 2.0).view(-1, 2), edge_index=random_edges(num_nodes, num_nodes, num_edges, 1)
    )
    data.edge_attr = torch.arange(num_edges * 3.0).view(-1, 3)
    times = torch.randperm(100, generator=torch.Generator().manual_seed(2))
    if time == "node":
        data.time = times[:num_nodes]
    if time == "edge":
        data.edge_time = times[:num_edges]
    return data


def heterogeneous(time=None):
    """Three node types, one without edges and features, and two edge types; features are equally wide."""
    data = HeteroData()
    times = torch.randperm(200, generator=torch.Generator().manual_seed(3))
    for place, (node_type, num_nodes) in enumerate(NUM_NODES.items()):
        data[node_type].x = torch.arange(num_nodes * 2.0).view(-1, 2) + 1000 * place
        if time == "node":
            data[node_type].time = times[place * 20 : place * 20 + num_nodes]
    for place, (edge_type, num_edges) in enumerate({WRITES: 25, CITES: 30}.items()):
        src, _, dst = edge_type
        data[edge_type].edge_index = random_edges(NUM_NODES[src], NUM_NODES[dst], num_edges, 4 + place)
        data[edge_type].edge_attr = torch.arange(num_edges * 3.0).view(-1, 3) + 1000 * place
        if time == "edge":
            data[edge_type].edge_time = times[place * 50 : place * 50 + num_edges]
    return data
