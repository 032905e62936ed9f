"""GraphSAGE model and training loop of the examples.

The same functions train in one process or in many, from a folder or from servers; only the source differs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - the name that everyone who uses torch knows
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import SAGEConv

import hopstream
from hopstream.serve import Store

Source = str | os.PathLike[str] | Store | hopstream.RemoteGraph
"""A folder of parts, a ``cluster.json``, a list of servers, an open store, or servers that sample."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of the training; the defaults are for Cora.

    Attributes:
        num_classes: Number of values of the label ``y``.
        num_neighbors: Neighbours per hop in training; the model has a layer for each hop.
        test_neighbors: Neighbours per hop in tests; -1 means all.
        batch_size: Seeds per training step, over all ranks.
        num_epochs: Number of epochs.
        hidden: Width of the hidden layers.
        dropout: Dropout probability of the inputs of each layer.
        learning_rate: Learning rate of Adam.
        weight_decay: Weight decay of Adam.
    """

    num_classes: int
    num_neighbors: tuple[int, ...] = (10, 10)
    test_neighbors: tuple[int, ...] = (-1, -1)
    batch_size: int = 64
    num_epochs: int = 40
    hidden: int = 64
    dropout: float = 0.7
    learning_rate: float = 0.01
    weight_decay: float = 5e-4


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of one training.

    Attributes:
        accuracy: Share of correctly labelled test nodes, over all ranks.
        num_steps: Training steps of each rank.
        seconds: Seconds of training and testing.
    """

    accuracy: float
    num_steps: int
    seconds: float

    def __str__(self) -> str:
        """Format the outcome in one line."""
        return f"test accuracy {self.accuracy:.3f} after {self.num_steps} steps"


class Sage(nn.Module):
    """GraphSAGE over features with rows normalised to unit length."""

    def __init__(self, num_features: int, settings: Settings) -> None:
        """Make a layer for each hop."""
        super().__init__()
        widths = [num_features, *[settings.hidden] * (len(settings.num_neighbors) - 1), settings.num_classes]
        self.layers = nn.ModuleList(map(SAGEConv, widths[:-1], widths[1:]))
        self.dropout = settings.dropout

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Scores of all nodes; scores of the seeds come first."""
        x = F.normalize(x)
        for depth, layer in enumerate(self.layers):
            x = F.dropout(x if depth == 0 else x.relu(), self.dropout, self.training)
            x = layer(x, edge_index)
        return x


def train_and_evaluate(source: Source, settings: Settings, rng_seed: int) -> Outcome:
    """Train on the split ``train`` and compute the accuracy on the split ``test``.

    Under ``torchrun`` every rank calls this function with equal arguments. Ranks share each epoch's seeds and average
    their gradients, and all get the same outcome.
    """
    started = time.perf_counter()
    model, num_steps = train(source, settings, rng_seed)
    accuracy = evaluate(model, source, settings)
    return Outcome(accuracy=accuracy, num_steps=num_steps, seconds=time.perf_counter() - started)


def train(source: Source, settings: Settings, rng_seed: int) -> tuple[nn.Module, int]:
    """Train a model; return it and the number of steps."""
    rank, world_size = rank_and_world_size()
    # Each rank has its own dropout; all start from rank 0's weights, which DDP broadcasts.
    torch.manual_seed(rng_seed * world_size + rank)
    num_steps = 0
    with hopstream.NeighborLoader(
        source, settings.num_neighbors, seeds="train", batch_size=settings.batch_size // world_size, shuffle=True,
        rank=rank, world_size=world_size, rng_seed=rng_seed,
    ) as loader:  # fmt: skip
        (num_features,) = loader.schema.feature("node", "x").shape
        model = Sage(num_features, settings)
        replica = DistributedDataParallel(model) if world_size > 1 else model
        optimizer = torch.optim.Adam(model.parameters(), settings.learning_rate, weight_decay=settings.weight_decay)
        for _ in range(settings.num_epochs):
            for batch in loader:
                scores = replica(batch.x, batch.edge_index)[: batch.batch_size]
                loss = F.cross_entropy(scores, batch.y[: batch.batch_size])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                num_steps += 1
    return model, num_steps


@torch.no_grad()
def evaluate(model: nn.Module, source: Source, settings: Settings) -> float:
    """Compute the accuracy on the test nodes, over all ranks."""
    rank, world_size = rank_and_world_size()
    model.eval()
    counts = torch.zeros(2, dtype=torch.int64)
    with hopstream.NeighborLoader(
        source, settings.test_neighbors, seeds="test", batch_size=256, rank=rank, world_size=world_size
    ) as loader:
        for batch in loader:
            labels = model(batch.x, batch.edge_index)[: batch.batch_size].argmax(dim=1)
            counts += torch.tensor([int((labels == batch.y[: batch.batch_size]).sum()), batch.batch_size])
    if world_size > 1:
        dist.all_reduce(counts)
    num_right, num_tested = counts.tolist()
    return num_right / num_tested


def rank_and_world_size() -> tuple[int, int]:
    """Rank of this process and number of ranks; ``(0, 1)`` without ``torchrun``."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def train_repeatedly(
    source: Source, settings: Settings, *, num_runs: int, wanted: float, report: Callable[[str], None]
) -> bool:
    """Train once per rng seed 0, 1, …, and report; return whether the mean accuracy is high enough."""
    outcomes = []
    for rng_seed in range(num_runs):
        outcome = train_and_evaluate(source, settings, rng_seed)
        report(stage_line("train", f"rng_seed {rng_seed}: {outcome}", outcome.seconds))
        outcomes.append(outcome)
    mean = sum(outcome.accuracy for outcome in outcomes) / num_runs
    report(stage_line("result", f"mean test accuracy {mean:.3f} over {num_runs} runs; wanted {wanted:.2f} or more"))
    return mean >= wanted


def stage_line(name: str, what: str, seconds: float | None = None) -> str:
    """Format one line of output: stage, result and seconds."""
    return f"{name:<9}  {what}" if seconds is None else f"{name:<9}  {what:<60} {seconds:6.1f} s"
