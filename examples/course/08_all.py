"""Trains on a typed, temporal graph from two servers that sample, on two ranks, with a resume in mid-epoch.

    python examples/course/08_all.py [FOLDER]

Users rate movies of a genre that they like, and change their taste at some time. Two ranks learn to score the next rated
movie above a random one, from the latest ratings before it. They save a checkpoint in the middle of the second epoch and
go on. Two new processes resume from it. The script fails unless their losses are equal, bit for bit, to those of the
first two, and unless 85 % of the later ratings score above the random movie.
"""

import json
import os
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import plots
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - the name that everyone who uses torch knows
from servers import up
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import HeteroData
from torch_geometric.nn import SAGEConv

import hopstream

RATES, RATED_BY = ("user", "rates", "movie"), ("movie", "rev_rates", "user")
NUM_USERS, NUM_MOVIES, NUM_GENRES, NUM_RATINGS = 300, 240, 6, 9000
NUM_EPOCHS, SAVED_STEP, NUM_RANKS = 2, 50, 2
FROM_SERVERS = hopstream.StoreSettings(prefer_local=False)  # as if the servers were on other machines


def make_graph() -> hopstream.Graph:
    """Draw ratings: nine of ten are of the genre that the user likes at the time."""
    rng = np.random.default_rng(0)
    users, times = rng.integers(0, NUM_USERS, NUM_RATINGS), rng.integers(0, 1000, NUM_RATINGS)
    likes, change = rng.integers(0, NUM_GENRES, (NUM_USERS, 2)), rng.integers(300, 900, NUM_USERS)
    genres = np.where(rng.random(NUM_RATINGS) < 0.9, likes[users, (times >= change[users]) * 1], 0)
    movies = genres + NUM_GENRES * rng.integers(0, NUM_MOVIES // NUM_GENRES, NUM_RATINGS)
    x = np.eye(NUM_GENRES, dtype=np.float32)[np.arange(NUM_MOVIES) % NUM_GENRES]
    graph = hopstream.graph_from_arrays(
        {RATES: (users, movies), RATED_BY: (movies, users)},
        num_nodes={"user": NUM_USERS, "movie": NUM_MOVIES},
        node_features={"movie": {"x": x + rng.normal(0, 0.3, x.shape).astype(np.float32)}},
        edge_features={RATES: {"time": times}, RATED_BY: {"time": times}},
    )
    return hopstream.split_links(graph, RATES, method="time", time_attr="time", val=0, test=0.1)


class Model(nn.Module):
    """Users by the movies that they rated last, movies by their features; scores are products."""

    def __init__(self) -> None:
        """Make one layer per node type."""
        super().__init__()
        self.movie, self.user = nn.Linear(NUM_GENRES, 16), SAGEConv((16, 16), 16)

    def forward(self, batch: HeteroData) -> Tensor:
        """float32[num_links], score of the rated movie minus that of the random one."""
        edges, links = batch[RATED_BY], batch["user"].seed_time
        assert (edges.time < links[batch["user"].batch[edges.edge_index[1]]]).all()  # nothing from the future
        movies = self.movie(batch["movie"].x)
        users = self.user((movies, movies.new_zeros(batch["user"].num_nodes, 16)), edges.edge_index)
        better, worse = movies[batch["movie"].dst_pos_index], movies[batch["movie"].dst_neg_index]
        return (users[batch["user"].src_index] * (better - worse)).sum(dim=1)


def run_rank(rank: int, folder: Path, name: str, resumes: bool) -> None:
    """Train and test as one rank; write the loss of each step and the hits of the test."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/{name}", rank=rank, world_size=NUM_RANKS)
    model = Model()
    replica = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses: dict[int, float] = {}
    options = {
        "num_neighbors": {RATED_BY: [6], RATES: [0]}, "batch_size": 64, "neg_sampling": "triplet", "rank": rank,
        "world_size": NUM_RANKS, "time_attr": "time", "temporal_strategy": "last", "time_inclusive": False,
    }  # fmt: skip
    with hopstream.RemoteGraph(folder / "cluster.json", settings=FROM_SERVERS) as graph:
        train = hopstream.LinkNeighborLoader(graph, edge_label_index=(RATES, "train"), shuffle=True, **options)
        step, last_step = 0, NUM_EPOCHS * len(train)
        if resumes:
            saved = torch.load(folder / "checkpoint.pt")
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            train.load_state_dict(saved["loader"])
            step = saved["step"]
        with train:
            while step < last_step:
                for batch in train:  # the next epoch, or the rest of the saved one
                    loss = F.softplus(-replica(batch)).mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    step += 1
                    losses[step] = loss.item()
                    if step == SAVED_STEP and rank == 0 and not resumes:
                        states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                        torch.save({**states, "loader": train.state_dict(), "step": step}, folder / "checkpoint.pt")
        with torch.no_grad(), hopstream.LinkNeighborLoader(graph, edge_label_index=(RATES, "test"), **options) as test:
            hits = torch.cat([model(batch) > 0 for batch in test]).float().mean().item()
    (folder / f"{name}-{rank}.json").write_text(json.dumps({"losses": list(losses.items()), "hits": hits}))
    dist.destroy_process_group()


def run_ranks(folder: Path, name: str, *, resumes: bool) -> list[dict]:
    """Run two rank processes to their end; return what they wrote."""
    context = get_context("spawn")
    ranks = [context.Process(target=run_rank, args=(rank, folder, name, resumes)) for rank in range(NUM_RANKS)]
    try:
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(120)
            assert process.exitcode == 0, f"a rank of {name} ended with {process.exitcode}"
    finally:
        for process in ranks:
            process.kill()
    return [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in range(NUM_RANKS)]


def main() -> None:
    """Run the ranks twice, compare them and draw their losses."""
    os.environ.update(GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")  # all processes are on this machine
    with TemporaryDirectory() as name:
        folder = Path(name)
        hopstream.write_parts(make_graph(), folder / "parts", num_parts=2, time_attr="time")
        with up(folder / "parts"):
            whole = run_ranks(folder, "whole", resumes=False)
            resumed = run_ranks(folder, "resumed", resumes=True)
    hits = sum(rank["hits"] for rank in resumed) / NUM_RANKS
    num_steps = len(whole[0]["losses"])
    print(f"{num_steps} steps on {NUM_RANKS} ranks; {hits:.1%} of later ratings score above a random movie")

    figure, axes = plots.panels("Loss of rank 0", "Loss of rank 1", width=10.0)
    for axis, first, second in zip(axes, whole, resumed, strict=True):
        axis.axvline(num_steps / NUM_EPOCHS + 0.5, color=plots.GREY, linewidth=1, linestyle=":", label="second epoch")
        axis.axvline(SAVED_STEP + 0.5, color=plots.RED, linestyle="--", label="checkpoint")
        axis.plot(*zip(*first["losses"], strict=True), color=plots.BLUE, label="first processes")
        axis.plot(*zip(*second["losses"], strict=True), "o", ms=4, color=plots.ORANGE, label="resumed processes")
        axis.set(xlabel="step", ylim=(0, None))
        axis.legend(loc="lower left", fontsize=10)
    plots.save(figure, __file__)
    for first, second in zip(whole, resumed, strict=True):
        assert second["losses"] == first["losses"][SAVED_STEP:], "the resumed ranks differ"
        assert second["hits"] == first["hits"]
    assert hits > 0.85, hits


if __name__ == "__main__":
    main()
