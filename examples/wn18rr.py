"""Link prediction on WN18RR from two servers: predicts word meanings that a relation joins.

    python examples/wn18rr.py FOLDER

FOLDER holds ``original/{train,valid,test}.txt``, plain or with ``.gz``, of folder ``WN18RR`` in
https://github.com/villmow/datasets_knowledge_embedding (MIT licence; WordNet has its own). Each line is a triple: head,
relation and tail, separated by tabs. Heads and tails are WordNet's numbers of meanings. ``text/`` has the same lines in
words; if it exists, a prediction is printed in words.

Messages follow training triples and their reverses. The triples of a training batch, and their reverses, are excluded
before neighbours are drawn. For every test triple, the tail is ranked among itself and 100 random meanings without an
edge from the head in any file. All methods rank the same meanings; equal scores share their mean rank. MRR is the mean
of 1 / rank, and hits@10 the share of ranks up to 10. There are three baselines: chance; the frequency of a meaning as
the relation's tail in training; and the same, with meanings first that have a training triple to the head, because many
of WordNet's relations hold in both directions. The exit status is 0 if the model is better than all three, by both
figures.
"""

from __future__ import annotations

import argparse
import gzip
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name that everyone who uses torch knows
from numpy.typing import NDArray
from sage import stage_line
from served import FROM_SERVERS, served
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.nn import MessagePassing

import hopstream
from hopstream.graph import Graph

RELATES, REVERSE = ("meaning", "relates", "meaning"), ("meaning", "rev_relates", "meaning")
"""Edge types of the training triples and, by its name, of their reverses; messages follow them."""
PREDICT = ("meaning", "predicted", "meaning")
"""Edge type of the triples of all files, with splits. It is declared as a label type, so messages do not follow it."""
FILES = {"train": "train", "val": "valid", "test": "test"}
NUM_NEIGHBORS = [5, 3]
NUM_CANDIDATES = 100


@dataclass(frozen=True)
class Triples:
    """Triples of all files.

    Attributes:
        offsets: WordNet's number of each meaning, as written in the files: a raw id.
        names: The name of each meaning; empty without ``text/``.
        relations: The name of each relation.
        columns: int64[3, num_triples]: heads, relations and tails of all files, as indices of the lists above.
        splits: The columns of each file.
    """

    offsets: list[str]
    names: list[str]
    relations: list[str]
    columns: NDArray[np.int64]
    splits: dict[str, NDArray[np.int64]]


def read_lines(folder: Path, name: str) -> list[list[str]]:
    """Read the triples of one file, plain or with ``.gz``."""
    plain, packed = folder / f"{name}.txt", folder / f"{name}.txt.gz"
    if not plain.exists() and not packed.exists():
        raise SystemExit(f"error: {folder} has no {plain.name} and no {packed.name}; see --help for where to get it")
    with plain.open(encoding="utf-8") if plain.exists() else gzip.open(packed, "rt", encoding="utf-8") as lines:
        return [line.rstrip("\n").split("\t") for line in lines]


def read_triples(folder: Path) -> Triples:
    """Read all files, and number meanings and relations."""
    lines = {split: read_lines(folder / "original", name) for split, name in FILES.items()}
    heads, relations, tails = np.array([line for split in FILES for line in lines[split]]).T
    offsets, places = np.unique(np.concatenate([heads, tails]), return_inverse=True)
    kinds, relation = np.unique(relations, return_inverse=True)
    names = np.full(len(offsets), "", dtype=object)
    if (folder / "text").exists():
        words = np.array([line for name in FILES.values() for line in read_lines(folder / "text", name)], dtype=object)
        names[places] = np.concatenate([words[:, 0], words[:, 2]])
    ends = np.cumsum([len(lines[split]) for split in FILES])
    return Triples(
        offsets=offsets.tolist(),
        names=names.tolist(),
        relations=kinds.tolist(),
        columns=np.stack([places[: len(heads)], relation, places[len(heads) :]]),
        splits={split: np.arange(end - len(lines[split]), end) for split, end in zip(FILES, ends, strict=True)},
    )


def graph_of(triples: Triples) -> Graph:
    """Make a graph with training triples as edges in both directions, and all triples as links to predict."""
    heads, relation, tails = triples.columns
    graph = hopstream.graph_from_arrays(
        {RELATES: (heads, tails), REVERSE: (tails, heads)},
        num_nodes={"meaning": len(triples.offsets)},
        node_features={"meaning": {"offset": triples.offsets, "name": triples.names}},
        edge_features={RELATES: {"relation": relation}, REVERSE: {"relation": relation}},
        edge_splits={RELATES: triples.splits},
    )
    return hopstream.hold_out_links(graph, RELATES, PREDICT, parallel="remove")


class RelationConv(MessagePassing):
    """Layer of messages from neighbours, each combined with the vector of its relation (as in CompGCN)."""

    def __init__(self, width: int, num_relations: int) -> None:
        """Make one vector per relation."""
        super().__init__(aggr="mean")
        self.relations = nn.Embedding(num_relations, width)
        self.linear = nn.Linear(width, width)
        nn.init.ones_(self.relations.weight)

    def forward(self, x: Tensor, edge_index: Tensor, relation: Tensor) -> Tensor:
        """float32[num_nodes, width]."""
        return self.linear(self.propagate(edge_index, x=x, seen_through=self.relations(relation)))

    def message(self, x_j: Tensor, seen_through: Tensor) -> Tensor:
        """Message of each edge."""
        return x_j * seen_through


class Model(nn.Module):
    """Model with a learned vector per meaning, two message-passing layers, and DistMult as decoder."""

    def __init__(self, num_meanings: int, num_relations: int, width: int = 64) -> None:
        """Make layers of one width."""
        super().__init__()
        self.meanings = nn.Embedding(num_meanings, width)
        self.decoder = nn.Embedding(num_relations, width)
        self.layers = nn.ModuleList(
            [nn.ModuleList([RelationConv(width, num_relations) for _ in (RELATES, REVERSE)]) for _ in range(2)]
        )
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in self.layers])
        nn.init.normal_(self.meanings.weight, std=0.1)

    def forward(self, batch: HeteroData) -> Tensor:
        """float32[num_nodes, width] of the meanings in a batch."""
        x = F.dropout(self.meanings(batch["meaning"].n_id), 0.3, self.training)
        for convs, norm in zip(self.layers, self.norms, strict=True):
            heard = norm(x)
            messages = [
                conv(heard, batch[edge_type].edge_index, batch[edge_type].relation)
                for conv, edge_type in zip(convs, (RELATES, REVERSE), strict=True)
            ]
            x = x + F.dropout(messages[0] + messages[1], 0.2, self.training)
        return x

    def queries(self, vectors: Tensor, relation: Tensor, batch: HeteroData) -> Tensor:
        """float32[batch_size, width]; the product with a tail's vector is its score."""
        return vectors[batch["meaning"].src_index] * self.decoder(relation)


def train(source: Path, relation: Tensor, model: Model, num_epochs: int, rng_seed: int) -> None:
    """Train the model to score tails above other meanings; a batch's negatives serve all of its triples."""
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    # True excludes a triple and its own reverse. A separate triple in the other direction stays in the graph, as for
    # test triples.
    with hopstream.LinkNeighborLoader(
        source, NUM_NEIGHBORS, (PREDICT, "train"), 1024, shuffle=True, rng_seed=rng_seed, exclude_links=True,
        neg_sampling=hopstream.NegativeSampling("triplet", 2),
        node_features=[], edge_features=["relation"], edge_keys=False, store_settings=FROM_SERVERS,
    ) as loader:  # fmt: skip
        for epoch in range(num_epochs):
            started, total = time.perf_counter(), 0.0
            for batch in loader:
                vectors = model(batch)
                queries = model.queries(vectors, relation[batch[PREDICT].input_id], batch)
                right = (queries * vectors[batch["meaning"].dst_pos_index]).sum(dim=1, keepdim=True)
                wrong = queries @ vectors[batch["meaning"].dst_neg_index.flatten()].T
                loss = F.cross_entropy(torch.cat([right, wrong], dim=1), torch.zeros(len(right), dtype=torch.int64))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item()
            what = f"epoch {epoch + 1}: loss {total / len(loader):.2f}, {len(loader)} batches from 2 servers"
            print(stage_line("train", what, time.perf_counter() - started), flush=True)


def ranks_of(scores: Tensor) -> Tensor:
    """float64[num_rows], rank of the first column in each row, from 1; equal scores share their mean rank."""
    above = (scores[:, 1:] > scores[:, :1]).sum(dim=1, dtype=torch.float64)
    equal = (scores[:, 1:] == scores[:, :1]).sum(dim=1, dtype=torch.float64)
    return 1 + above + equal / 2


class PlainScores:
    """Scores of the baselines, without a model."""

    def __init__(self, triples: Triples) -> None:
        """Count tails in the training triples."""
        heads, relation, tails = triples.columns[:, triples.splits["train"]].tolist()
        self.num_tails = Counter(zip(relation, tails, strict=True))
        self.pairs = set(zip(heads, tails, strict=True))

    def scores(self, head: int, relation: int, tails: list[int]) -> tuple[list[float], list[float]]:
        """Frequencies of tails for the relation, and the same with tails first that have a triple to the head."""
        counts = [float(self.num_tails[relation, tail]) for tail in tails]
        return counts, [count + 1e6 * ((tail, head) in self.pairs) for count, tail in zip(counts, tails, strict=True)]


def test_loader(source: Path, batch_size: int, **options: Any) -> hopstream.LinkNeighborLoader:
    """Load test triples with candidate tails; no candidate is a tail of the head in any file (strict)."""
    return hopstream.LinkNeighborLoader(
        source, NUM_NEIGHBORS, (PREDICT, "test"), batch_size,
        neg_sampling=hopstream.NegativeSampling("triplet", NUM_CANDIDATES, strict=True),
        store_settings=FROM_SERVERS, **options,
    )  # fmt: skip


@torch.no_grad()
def score(batch: HeteroData, relation: Tensor, model: Model) -> tuple[Tensor, Tensor]:
    """Slots int64[batch_size, candidates + 1], the true tail first, and their scores."""
    vectors = model(batch)
    tails = torch.cat([batch["meaning"].dst_pos_index[:, None], batch["meaning"].dst_neg_index], dim=1)
    return tails, (model.queries(vectors, relation, batch)[:, None] * vectors[tails]).sum(dim=2)


def evaluate(source: Path, relation: Tensor, model: Model, plain: PlainScores) -> dict[str, Tensor]:
    """Rank the tail of every test triple, by each method."""
    model.eval()
    ranks: dict[str, list[Tensor]] = {"model": [], "frequent tails": [], "frequent tails, known pairs first": []}
    with test_loader(source, 128, node_features=[], edge_features=["relation"], edge_keys=False) as loader:
        for batch in loader:
            keys, relations = batch["meaning"].n_id, relation[batch[PREDICT].input_id]
            tails, scores = score(batch, relations, model)
            heads = keys[batch["meaning"].src_index]
            rows = zip(heads.tolist(), relations.tolist(), keys[tails].tolist(), strict=True)
            counted = torch.tensor([plain.scores(*row) for row in rows])
            for of, found in zip(ranks.values(), (scores, counted[:, 0], counted[:, 1]), strict=True):
                of.append(ranks_of(found))
    return {name: torch.cat(of) for name, of in ranks.items()}


def example_line(source: Path, relation: Tensor, model: Model, relation_names: list[str]) -> str:
    """Format the first test triple and the model's best candidates in words."""
    model.eval()
    with test_loader(source, 1) as loader:
        batch = next(iter(loader))
    meanings, relations = batch["meaning"], relation[batch[PREDICT].input_id]
    tails, scores = score(batch, relations, model)
    words = [name or offset for name, offset in zip(meanings.name, meanings.offset, strict=True)]
    triple = [words[meanings.src_index], relation_names[relations].strip("_"), words[meanings.dst_pos_index]]
    best = ", ".join(words[slot] for slot in tails[0, scores[0].topk(3).indices].tolist())
    return f"{' '.join(triple)}; the model's first three: {best}"


def main() -> int:
    """Run the example; return 0 if the model is better than all baselines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where original/ is")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--rng-seed", type=int, default=0)
    values = parser.parse_args()
    torch.set_num_threads(1)  # the servers and the loader's thread need cores too
    torch.manual_seed(values.rng_seed)
    triples = read_triples(values.folder)
    graph = graph_of(triples)
    sizes = ", ".join(f"{len(of):,} {name}" for name, of in triples.splits.items())
    print(
        stage_line("read", f"{len(triples.offsets):,} meanings, {len(triples.relations)} relations; triples: {sizes}")
    )
    learned, tested = (torch.from_numpy(triples.columns[1, triples.splits[name]]) for name in ("train", "test"))
    model = Model(len(triples.offsets), len(triples.relations))
    with TemporaryDirectory(prefix="hopstream-wn18rr-") as name:
        hopstream.write_parts(graph, Path(name) / "parts", num_parts=2)
        with served(Path(name) / "parts") as cluster:
            train(cluster, learned, model, values.epochs, values.rng_seed)
            started = time.perf_counter()
            ranks = evaluate(cluster, tested, model, PlainScores(triples))
            what = f"{len(ranks['model']):,} tails, each ranked among {NUM_CANDIDATES + 1}"
            print(stage_line("test", what, time.perf_counter() - started))
            print(stage_line("example", example_line(cluster, tested, model, triples.relations)))
    return report(ranks)


def report(ranks: dict[str, Tensor]) -> int:
    """Print one line per method; return 0 if the first method is the best by both figures."""
    by_chance = 1 / torch.arange(1, NUM_CANDIDATES + 2)
    figures = {"chance": (float(by_chance.mean()), 10 / (NUM_CANDIDATES + 1))}
    for name, of in ranks.items():
        figures[name] = (float((1 / of).mean()), float((of <= 10).double().mean()))
    found = figures.pop("model")
    for name, (mrr, hits) in {**figures, "model": found}.items():
        print(stage_line("result", f"{name:<34} MRR {mrr:.3f}  hits@10 {hits:.3f}"))
    return 0 if all(ours > other for plain in figures.values() for ours, other in zip(found, plain, strict=True)) else 1


if __name__ == "__main__":
    sys.exit(main())
