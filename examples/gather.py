"""Message passing along edges with features and ages."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.utils import scatter

DAY_S = 24 * 3600.0


class Gather(nn.Module):
    """Layer over the mean message, from neighbours' states and edge values, and the number of edges."""

    def __init__(self, width: int, num_values: int) -> None:
        """Make the layer for states of one width and ``num_values`` values per edge."""
        super().__init__()
        self.message = nn.Sequential(nn.Linear(width + num_values, width), nn.ReLU())
        self.node = nn.Sequential(nn.Linear(width + 1, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, states: Tensor, edge_index: Tensor, values: Tensor, num_nodes: int) -> Tensor:
        """float32[num_nodes, width] of the destinations; ``values`` are float32[num_edges, num_values]."""
        src, dst = edge_index
        messages = self.message(torch.cat([states[src], values], dim=1))
        counts = scatter(torch.ones(len(dst)), dst, dim_size=num_nodes, reduce="sum")
        mean = scatter(messages, dst, dim_size=num_nodes, reduce="mean")
        return self.node(torch.cat([mean, torch.log1p(counts)[:, None]], dim=1))


def log_age(times: Tensor, now: Tensor) -> Tensor:
    """float32[num_edges], shifted logarithm of the age of edges in days; arguments are in seconds."""
    return torch.log1p((now - times) / DAY_S) - 4.0
