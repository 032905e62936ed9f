"""Trains two ranks on temporal links from two servers that sample, and resumes in mid-epoch.

    python examples/course/08_all.py [FOLDER]

The model scores the next movie of a user above a random one, by the latest ratings before it. Two ranks train together,
save a checkpoint in the middle of the second epoch, and go on. Then two new processes resume from it. The script fails
unless their losses are equal, bit for bit, to those of the first two, and unless 80 % of the later ratings score above
the random movie.
"""

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import plots
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - the name that everyone who uses torch knows
from movies import NUM_GENRES, RATED_BY, RATES, make_movies
from processes import run_ranks, up
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import HeteroData
from torch_geometric.nn import SAGEConv

import hopstream

NUM_EPOCHS, SAVED_STEP, NUM_RANKS = 2, 45, 2
FROM_SERVERS = hopstream.StoreSettings(prefer_local=False)  # as if the servers were on other machines


class Model(nn.Module):
    """Represents movies by their features, and users by the movies that they rated last."""

    def __init__(self) -> None:
        """Make one layer per node type."""
        super().__init__()
        self.movie, self.user = nn.Linear(NUM_GENRES, 16), SAGEConv((16, 16), 16)

    def forward(self, batch: HeteroData) -> Tensor:
        """float32[num_links], score of the rated movie minus that of the random one."""
        user, movie, edges = batch["user"], batch["movie"], batch[RATED_BY]
        link_of_edge = user.batch[edges.edge_index[1]]
        assert (edges.time < user.seed_time[link_of_edge]).all()  # only ratings before the link
        movies = self.movie(movie.x)
        users = self.user((movies, movies.new_zeros(user.num_nodes, 16)), edges.edge_index)
        return (users[user.src_index] * (movies[movie.dst_pos_index] - movies[movie.dst_neg_index])).sum(dim=1)


def run_rank(rank: int, folder: Path, name: str) -> None:
    """Train and test as one rank; write the loss of each step and the share of hits."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/{name}", rank=rank, world_size=NUM_RANKS)
    model = Model()
    replica = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    options = {
        "num_neighbors": {RATED_BY: [6], "default": [0]}, "batch_size": 128, "neg_sampling": "triplet",
        "time_attr": "time", "temporal_strategy": "last", "time_inclusive": False,
        "rank": rank, "world_size": NUM_RANKS,
    }  # fmt: skip
    graph = hopstream.RemoteGraph(folder / "cluster.json", settings=FROM_SERVERS)
    train = hopstream.LinkNeighborLoader(graph, edge_label_index=(RATES, "train"), shuffle=True, **options)
    test = hopstream.LinkNeighborLoader(graph, edge_label_index=(RATES, "test"), **options)
    losses: dict[int, float] = {}
    with graph, train, test:
        step = 0
        if name == "resumed":
            saved = torch.load(folder / "checkpoint.pt")
            step = saved["step"]
            for key, value in (("model", model), ("optimizer", optimizer), ("loader", train)):
                value.load_state_dict(saved[key])
        while step < NUM_EPOCHS * len(train):
            for batch in train:  # the next epoch, or the rest of the saved one
                loss = F.softplus(-replica(batch)).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                losses[step] = loss.item()
                if step == SAVED_STEP and rank == 0:  # one state fits all ranks
                    states = {"model": model, "optimizer": optimizer, "loader": train}
                    saved = {key: value.state_dict() for key, value in states.items()}
                    torch.save({**saved, "step": step}, folder / "checkpoint.pt")
        with torch.no_grad():
            hits = torch.cat([model(batch) > 0 for batch in test]).float().mean().item()
    (folder / f"{name}-{rank}.json").write_text(json.dumps({"losses": list(losses.items()), "hits": hits}))
    dist.destroy_process_group()


def main() -> None:
    """Train, resume, compare and draw."""
    os.environ.update(GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")  # all processes are on this machine
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        hopstream.write_parts(make_movies(), folder / "parts", num_parts=2, time_attr="time")
        found = {}
        with up(folder / "parts"):
            for name in ("first", "resumed"):
                run_ranks(run_rank, NUM_RANKS, folder, name)
                files = [folder / f"{name}-{rank}.json" for rank in range(NUM_RANKS)]
                found[name] = [json.loads(file.read_text()) for file in files]
    num_steps = len(found["first"][0]["losses"])
    hits = sum(rank["hits"] for rank in found["resumed"]) / NUM_RANKS
    print(f"{num_steps} steps on {NUM_RANKS} ranks; {hits:.1%} of the later ratings score above a random movie")

    figure, axes = plots.panels("Loss of rank 0", "Loss of rank 1", width=10.0)
    for axis, first, resumed in zip(axes, found["first"], found["resumed"], strict=True):
        assert resumed == {"losses": first["losses"][SAVED_STEP:], "hits": first["hits"]}, "the resumed ranks differ"
        axis.axvline(num_steps / NUM_EPOCHS + 0.5, color=plots.GREY, linestyle=":", label="second epoch")
        axis.axvline(SAVED_STEP + 0.5, color=plots.RED, linestyle="--", label="checkpoint")
        axis.plot(*zip(*first["losses"], strict=True), color=plots.BLUE, label="first processes")
        axis.plot(*zip(*resumed["losses"], strict=True), "o", ms=3.5, color=plots.ORANGE, label="resumed processes")
        axis.set(xlabel="step", ylim=(0, 0.8))
        axis.legend(loc="lower left", fontsize=10)
    plots.save(figure, __file__)
    assert hits > 0.8, hits


if __name__ == "__main__":
    main()
