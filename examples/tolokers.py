"""Node classification on Tolokers from two servers: predicts banned crowd workers.

    python examples/tolokers.py FOLDER

FOLDER holds ``tolokers.npz`` of https://github.com/yandex-research/heterophilous-graphs (MIT licence), folder ``data``.
Nodes are workers, and edges join workers who did the same task; edges have no features. The figure is the area under
the ROC curve on the first of the ten splits; 0.5 is chance. The baseline is logistic regression on a worker's own
features. The exit status is 0 if the model is better than both.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name that everyone who uses torch knows
from auc import roc_auc
from sage import stage_line
from served import FROM_SERVERS, served
from torch import Tensor, nn
from torch_geometric.nn import SAGEConv

import hopstream
from hopstream.graph import EDGE, Graph

FANOUT = [10, 5]


def read_tolokers(folder: Path) -> Graph:
    """Read the graph with every edge in both directions, and the masks of the first split."""
    path = folder / "tolokers.npz"
    if not path.exists():
        raise SystemExit(f"error: {folder} has no {path.name}; see --help for where to get it")
    with np.load(path, allow_pickle=False) as arrays:
        edges = arrays["edges"].astype(np.int64)
        features = arrays["node_features"].astype(np.float32)
        masks = {name: np.flatnonzero(arrays[f"{name}_masks"][0]) for name in ("train", "val", "test")}
        return hopstream.graph_from_arrays(
            np.concatenate([edges, edges[:, ::-1]]).T,
            num_nodes=len(features),
            node_features={
                "x": (features - features.mean(axis=0)) / features.std(axis=0).clip(min=1e-6),
                "y": arrays["node_labels"].astype(np.int64),
            },
            splits=masks,
        )


class Sage(nn.Module):
    """GraphSAGE with two residual layers over a worker's own features."""

    def __init__(self, num_features: int, hidden: int = 64) -> None:
        """Make two layers of one width."""
        super().__init__()
        self.first = nn.Linear(num_features, hidden)
        self.layers = nn.ModuleList([SAGEConv(hidden, hidden), SAGEConv(hidden, hidden)])
        self.norms = nn.ModuleList([nn.LayerNorm(hidden), nn.LayerNorm(hidden)])
        self.last = nn.Linear(hidden, 1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """One score per node."""
        x = self.first(x).relu()
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + F.dropout(layer(norm(x), edge_index).relu(), 0.2, self.training)
        return self.last(x)[:, 0]


def logistic_regression(graph: Graph) -> float:
    """Figure of the baseline, logistic regression on a worker's own features."""
    features, splits = graph.nodes["node"].features, graph.splits["node"]
    x = torch.from_numpy(np.asarray(features["x"]))
    y = torch.from_numpy(np.asarray(features["y"])).float()
    model = nn.Linear(x.shape[1], 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=200)
    train, test = torch.from_numpy(splits["train"]), splits["test"]

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(model(x[train])[:, 0], y[train])
        loss.backward()
        return loss

    optimizer.step(closure)
    with torch.no_grad():
        scores = model(x)[:, 0].numpy()
    return roc_auc(scores[test], y.numpy()[test].astype(np.int64))


def train(source: Path, num_epochs: int, rng_seed: int) -> nn.Module:
    """Train a model."""
    torch.manual_seed(rng_seed)
    with hopstream.NeighborLoader(
        source, FANOUT, seeds="train", batch_size=512, shuffle=True, rng_seed=rng_seed, store_settings=FROM_SERVERS
    ) as loader:
        (num_features,) = loader.schema.feature("node", "x").shape
        model = Sage(num_features)
        optimizer = torch.optim.Adam(model.parameters(), 3e-3)
        for _ in range(num_epochs):
            for batch in loader:
                scores = model(batch.x, batch.edge_index)[: batch.batch_size]
                loss = F.binary_cross_entropy_with_logits(scores, batch.y[: batch.batch_size].float())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return model


@torch.no_grad()
def evaluate(model: nn.Module, source: Path) -> float:
    """Area under the ROC curve on the test split."""
    model.eval()
    scores, labels = [], []
    with hopstream.NeighborLoader(
        source, [30, 15], seeds="test", batch_size=512, store_settings=FROM_SERVERS
    ) as loader:
        for batch in loader:
            scores.append(model(batch.x, batch.edge_index)[: batch.batch_size].numpy())
            labels.append(batch.y[: batch.batch_size].numpy())
    return roc_auc(np.concatenate(scores), np.concatenate(labels))


def main() -> int:
    """Run the example; return 0 if the model is better than chance and logistic regression."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where tolokers.npz is")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--rng-seed", type=int, default=0)
    values = parser.parse_args()
    with TemporaryDirectory(prefix="hopstream-tolokers-") as name:
        graph = read_tolokers(values.folder)
        print(stage_line("read", f"{graph.nodes['node'].num_nodes:,} workers, {graph.edges[EDGE].num_edges:,} edges"))
        baseline = logistic_regression(graph)
        hopstream.write_parts(graph, Path(name) / "parts", num_parts=2)
        with served(Path(name) / "parts") as cluster:
            started = time.perf_counter()
            model = train(cluster, values.epochs, values.rng_seed)
            found = evaluate(model, cluster)
            print(stage_line("train", f"{values.epochs} epochs from 2 servers", time.perf_counter() - started))
    print(stage_line("result", f"ROC AUC {found:.3f}; logistic regression {baseline:.3f}; chance 0.500"))
    return 0 if found > max(baseline, 0.5) else 1


if __name__ == "__main__":
    sys.exit(main())
