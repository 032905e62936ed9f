"""Link classification on Bitcoin-OTC from two servers: predicts negative ratings.

    python examples/bitcoin_otc.py FOLDER

FOLDER holds ``nodes.csv`` and ``edges.csv`` of folder ``dataset/snap/bitcoin-otc`` in https://github.com/kuzudb/kuzu;
they may be compressed (``.csv.gz``). The data are SNAP's (https://snap.stanford.edu/data/soc-sign-bitcoin-otc.html),
which states no licence. Traders rate their trust in each other from -10 to 10. A row of ``edges.csv``, which has no
header, has the rating trader, the rated trader, the rating, and a time in seconds.

A model predicts whether a rating of the last fifth is negative. It sees earlier ratings, drawn in proportion to
``rating + 11``, which are also features of edges. The figure is the area under the ROC curve; 0.5 is chance. Three
baselines are printed too: the mean of the ratings that the rated trader received before, the mean of the ratings that
the rating trader gave before, and the sum of both. The exit status is 0 if the model is better than all of them.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name that everyone who uses torch knows
from auc import roc_auc
from gather import Gather, log_age
from sage import stage_line
from served import served
from tables import read_tables
from torch import Tensor, nn
from torch_geometric.data import HeteroData

import hopstream
from hopstream.graph import EdgeTable, Graph

RATES, RATED_BY = ("trader", "rates", "trader"), ("trader", "rev_rates", "trader")
NUM_NEIGHBORS = {RATES: [30, 3], RATED_BY: [30, 0]}
"""First hop: the ratings that an end received and gave. Second hop: the ratings that these traders received."""
NUM_HOPS = 2


def describe_tables(files: Mapping[str, str]) -> dict[str, Any]:
    """Describe the columns of the tables, which have no headers."""
    features = {
        "rating": {"column": "rating", "dtype": "float32"},
        "seconds": {"column": "seconds", "dtype": "float64"},
    }
    columns = {"columns": ["from", "to", "rating", "seconds"], "src": "from", "dst": "to", "features": features}
    return {
        "nodes": {"trader": {"files": files["nodes"], "columns": ["id"], "id": "id"}},
        "edges": [{"type": RATES, "files": files["edges"], **columns}],
    }


def read_bitcoin_otc(folder: Path) -> Graph:
    """Read traders and ratings in both directions, split in the order of time."""
    graph = read_tables(folder, ("nodes", "edges"), describe_tables)
    read = graph.edges[RATES]
    ratings, seconds = np.asarray(read.features["rating"]), np.asarray(read.features["seconds"])
    features = {
        "rating": ratings,
        "weight": ratings + 11,  # 1 for the lowest rating, 21 for the highest: only weights above 0 can be drawn
        "time": np.floor(seconds).astype(np.int64),
    }
    edges = {
        RATES: EdgeTable(src_keys=read.src_keys, dst_keys=read.dst_keys, features=features),
        RATED_BY: EdgeTable(src_keys=read.dst_keys, dst_keys=read.src_keys, features=features),
    }
    graph = replace(graph, edges=edges).check()
    return hopstream.split_links(graph, RATES, method="time", time_attr="time", val=0.0, test=0.2)


class Trust(nn.Module):
    """Model that represents traders by their ratings, and scores a rating by both of its ends."""

    def __init__(self, width: int = 32) -> None:
        """Make two layers; traders have no features."""
        super().__init__()
        self.trader = nn.Parameter(torch.zeros(width))
        self.given = nn.ModuleList([Gather(width, num_values=3) for _ in range(NUM_HOPS)])
        self.giving = nn.ModuleList([Gather(width, num_values=3) for _ in range(NUM_HOPS)])
        self.last = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, batch: HeteroData) -> Tensor:
        """One score per rating of the batch; higher scores mean negative ratings."""
        links, of_link = batch[RATES], batch["trader"].batch
        now = links.edge_label_time[of_link]
        states = self.trader.expand(len(of_link), -1)
        edges = {}
        for edge_type in (RATES, RATED_BY):
            of_type = batch[edge_type]
            age = log_age(of_type.time, now[of_type.edge_index[1]])
            values = torch.stack([of_type.rating / 10, (of_type.rating < 0).float(), age], dim=1)
            edges[edge_type] = (of_type.edge_index, values, len(of_link))
        for given, giving in zip(self.given, self.giving, strict=True):
            states = states + given(states, *edges[RATES]) + giving(states, *edges[RATED_BY])
        src, dst = links.edge_label_index
        return self.last(torch.cat([states[src], states[dst]], dim=1))[:, 0]


def link_loader(source: Path, graph: Graph, split: str, **options: bool | int) -> hopstream.LinkNeighborLoader:
    """Load ratings with labels, 1 for negative ones, and the earlier ratings of both ends."""
    ratings = np.asarray(graph.edges[RATES].features["rating"])
    return hopstream.LinkNeighborLoader(
        source,
        NUM_NEIGHBORS,
        (RATES, split),
        batch_size=512,
        edge_label=(ratings[graph.edge_splits[RATES][split]] < 0).astype(np.float32),
        time_attr="time",
        time_inclusive=False,
        weight_attr="weight",
        node_features=[],
        edge_features=["rating", "time"],
        edge_keys=False,
        **options,
    )


def train(source: Path, graph: Graph, num_epochs: int, rng_seed: int) -> Trust:
    """Train a model."""
    torch.manual_seed(rng_seed)
    model = Trust()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    with link_loader(source, graph, "train", shuffle=True, rng_seed=rng_seed) as loader:
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, num_epochs * len(loader))
        for _ in range(num_epochs):
            for batch in loader:
                loss = F.binary_cross_entropy_with_logits(model(batch), batch[RATES].edge_label)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
    return model.eval()


@torch.no_grad()
def test(model: Trust, source: Path, graph: Graph) -> float:
    """Area under the ROC curve on the later ratings."""
    scores, labels = [], []
    with link_loader(source, graph, "test") as loader:
        for batch in loader:
            scores.append(model(batch).numpy())
            labels.append(batch[RATES].edge_label.numpy())
    return roc_auc(np.concatenate(scores), np.concatenate(labels))


def plain_methods(graph: Graph) -> dict[str, float]:
    """Figures of the baselines; traders without earlier ratings get the mean of training ratings."""
    edges, splits = graph.edges[RATES], graph.edge_splits[RATES]
    ratings, times = np.asarray(edges.features["rating"], np.float64), np.asarray(edges.features["time"])
    unknown = ratings[splits["train"]].mean()
    means = {
        "received": earlier_means(edges.dst_keys, ratings, times, unknown)[splits["test"]],
        "given": earlier_means(edges.src_keys, ratings, times, unknown)[splits["test"]],
    }
    means["both"] = means["received"] + means["given"]
    return {name: roc_auc(-mean, ratings[splits["test"]] < 0) for name, mean in means.items()}


def earlier_means(keys: np.ndarray, ratings: np.ndarray, times: np.ndarray, unknown: float) -> np.ndarray:
    """float64[n], the mean of a trader's ratings before each rating; ``unknown`` if there are none."""
    means = np.full(len(keys), unknown)
    order = np.lexsort((times, keys))
    for own in np.split(order, np.flatnonzero(np.diff(keys[order])) + 1):
        num_earlier = np.searchsorted(times[own], times[own])
        sums = np.concatenate([[0.0], np.cumsum(ratings[own])])[num_earlier]
        has_earlier = num_earlier > 0
        means[own[has_earlier]] = sums[has_earlier] / num_earlier[has_earlier]
    return means


def main() -> int:
    """Run the example; return 0 if the model is better than chance and all baselines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where nodes.csv and edges.csv are")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--rng-seed", type=int, default=0)
    values = parser.parse_args()
    torch.set_num_threads(1)  # servers and the loader need the other cores
    with TemporaryDirectory(prefix="hopstream-bitcoin-otc-") as name:
        parts = Path(name) / "parts"
        graph = read_bitcoin_otc(values.folder)
        num_traders, ratings = graph.nodes["trader"].num_nodes, np.asarray(graph.edges[RATES].features["rating"])
        counts = f"{num_traders:,} traders, {len(ratings):,} ratings, {int((ratings < 0).sum()):,} negative"
        print(stage_line("read", counts))
        hopstream.write_parts(graph, parts, num_parts=2, time_attr="time", weight_attr="weight")
        with served(parts) as cluster:
            started = time.perf_counter()
            model = train(cluster, graph, values.epochs, values.rng_seed)
            trained = time.perf_counter()
            print(stage_line("train", f"{values.epochs} epochs from 2 servers", trained - started))
            found = test(model, cluster, graph)
            num_tested = len(graph.edge_splits[RATES]["test"])
            print(stage_line("test", f"{num_tested:,} later ratings", time.perf_counter() - trained))
    plain = plain_methods(graph)
    known = ", ".join(f"{name} {value:.3f}" for name, value in plain.items())
    print(stage_line("result", f"ROC AUC {found:.3f}; means of earlier ratings: {known}; chance 0.500"))
    return 0 if found > max(*plain.values(), 0.5) else 1


if __name__ == "__main__":
    sys.exit(main())
