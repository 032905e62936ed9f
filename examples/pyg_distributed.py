"""Trains a script for ``torch_geometric.distributed`` on partitions of several machines.

    python examples/pyg_distributed.py            # a graph without types
    python examples/pyg_distributed.py --typed    # a graph with types

The script makes a small graph, writes PyG's partition files to two folders, one per machine, and starts a process for
each. The processes could run on two machines: each loads its own folder only. In their code, only the import of
``hopstream.compat.pyg`` differs from PyG's.
"""

from __future__ import annotations

import argparse
import shutil
import socket
import subprocess
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GraphSAGE, to_hetero

from hopstream.compat.pyg import DistContext, DistNeighborLoader, LocalFeatureStore, LocalGraphStore, Partitioner

NUM_CLASSES, NUM_PAPERS, NUM_AUTHORS, NUM_CITATIONS = 4, 600, 200, 4000
NUM_RANKS, NUM_EPOCHS = 2, 8
TIMEOUT_S = 60
LIMIT_S = 240
WRITES, WRITTEN, CITES = ("author", "writes", "paper"), ("paper", "rev_writes", "author"), ("paper", "cites", "paper")


def make_graph(is_typed: bool) -> Data | HeteroData:
    """Make a graph of papers of four fields, which mostly cite their own field; features are noisy fields."""
    generator = torch.Generator().manual_seed(0)
    fields = torch.randint(NUM_CLASSES, (NUM_PAPERS,), generator=generator)
    by_field = torch.argsort(fields)
    near = (torch.randn(NUM_CITATIONS, generator=generator) * NUM_PAPERS / 16).long()
    places = torch.randint(NUM_PAPERS, (NUM_CITATIONS,), generator=generator)
    cites = torch.stack([by_field[places], by_field[(places + near) % NUM_PAPERS]])
    noise = torch.randn(NUM_PAPERS, 16, generator=generator)
    x = torch.nn.functional.one_hot(fields, 16) + 1.5 * noise
    if not is_typed:
        return Data(x=x, y=fields, edge_index=torch.cat([cites, cites.flip(0)], dim=1))
    authors = torch.randint(NUM_AUTHORS // NUM_CLASSES, (3 * NUM_PAPERS,), generator=generator) * NUM_CLASSES
    papers = torch.arange(3 * NUM_PAPERS) % NUM_PAPERS
    writes = torch.stack([authors + fields[papers], papers])
    data = HeteroData()
    data["paper"].x, data["paper"].y = x, fields
    data["author"].x = torch.randn(NUM_AUTHORS, 16, generator=generator)
    data[CITES].edge_index, data[WRITES].edge_index, data[WRITTEN].edge_index = cites, writes, writes.flip(0)
    return data


def prepare(folder: Path, is_typed: bool) -> list[Path]:
    """Partition the graph; make each machine a folder with its own part and the maps of all parts."""
    data = make_graph(is_typed)
    everything = folder / "partitions"
    Partitioner(data, NUM_RANKS, everything, rng_seed=0).generate_partition()
    train = torch.randperm(NUM_PAPERS, generator=torch.Generator().manual_seed(1))
    hosts = [folder / f"host{rank}" for rank in range(NUM_RANKS)]
    for rank, host in enumerate(hosts):
        others = [f"part_{other}" for other in range(NUM_RANKS) if other != rank]
        shutil.copytree(everything, host / "partitions", ignore=shutil.ignore_patterns(*others))
        # All ranks get equally many nodes, because DDP needs equally many steps on all ranks.
        torch.save(train[: NUM_PAPERS // 2][rank::NUM_RANKS].clone(), host / "train.pt")
        torch.save(train[NUM_PAPERS // 2 :][rank::NUM_RANKS].clone(), host / "test.pt")
    shutil.rmtree(everything)
    return hosts


class OfPapers(torch.nn.Module):
    """Wrapper of a model of a typed graph that returns its output for papers only."""

    def __init__(self, model: torch.nn.Module) -> None:
        """Wrap a model."""
        super().__init__()
        self.model = model

    def forward(
        self, x_dict: dict[str, torch.Tensor], edge_index_dict: dict[tuple[str, str, str], torch.Tensor]
    ) -> torch.Tensor:
        """Return the model's output for papers."""
        return self.model(x_dict, edge_index_dict)["paper"]


class Rank:
    """Trainer of one machine."""

    def __init__(self, rank: int, folder: Path, ports: list[int], is_typed: bool) -> None:
        """Load the machine's own partition, and join the other ranks."""
        dist.init_process_group(
            "gloo", rank=rank, world_size=NUM_RANKS, init_method=f"tcp://127.0.0.1:{ports[0]}",
            timeout=timedelta(seconds=TIMEOUT_S),
        )  # fmt: skip
        root = folder / "partitions"
        graph_store = LocalGraphStore.from_partition(root, rank)
        feature_store = LocalFeatureStore.from_partition(root, rank)
        context = DistContext(
            rank=rank, global_rank=rank, world_size=NUM_RANKS, global_world_size=NUM_RANKS, group_name="pyg-distributed"
        )
        self.is_typed = is_typed
        self.loaders = {}
        for name, port in zip(("train", "test"), ports[1:], strict=True):
            nodes = torch.load(folder / f"{name}.pt", weights_only=True)
            self.loaders[name] = DistNeighborLoader(
                data=(feature_store, graph_store),
                num_neighbors=[10, 5],
                master_addr="127.0.0.1",
                master_port=port,
                current_ctx=context,
                input_nodes=("paper", nodes) if is_typed else nodes,
                batch_size=50,
                shuffle=name == "train",
                async_sampling=True,
                concurrency=2,
                rpc_timeout=TIMEOUT_S,
            )
        torch.manual_seed(0)
        model = GraphSAGE(-1 if is_typed else 16, 32, num_layers=2, out_channels=NUM_CLASSES)
        if is_typed:
            model = OfPapers(to_hetero(model, (["paper", "author"], [CITES, WRITES, WRITTEN])))
            with torch.no_grad(), self.loaders["train"] as batches:  # lazy layers take their sizes from a batch
                batch = next(batches)
                model(batch.x_dict, batch.edge_index_dict)
        # The last layer's authors are not trained.
        self.model = DistributedDataParallel(model, find_unused_parameters=is_typed)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)

    def scores(self, batch: Data | HeteroData) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the model's scores of a batch's seeds, and their labels."""
        if not self.is_typed:
            return self.model(batch.x, batch.edge_index)[: batch.batch_size], batch.y[: batch.batch_size]
        papers = batch["paper"]
        out = self.model(batch.x_dict, batch.edge_index_dict)
        return out[: papers.batch_size], papers.y[: papers.batch_size]

    def train(self) -> float:
        """Train one epoch; return the mean loss."""
        self.model.train()
        losses = []
        for batch in self.loaders["train"]:
            self.optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(*self.scores(batch))
            loss.backward()
            self.optimizer.step()
            losses.append(float(loss.detach()))
        return sum(losses) / len(losses)

    @torch.no_grad()
    def test(self) -> float:
        """Compute the accuracy over the test nodes of all ranks."""
        self.model.eval()
        counts = torch.zeros(2)
        for batch in self.loaders["test"]:
            scores, right = self.scores(batch)
            counts += torch.tensor([(scores.argmax(-1) == right).sum(), len(right)])
        dist.all_reduce(counts)
        return float(counts[0] / counts[1])

    def is_alike(self) -> bool:
        """Whether all ranks have equal models, as averaged gradients should give."""
        own = torch.cat([parameter.detach().flatten() for parameter in self.model.parameters()])
        others = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(others, own)
        return all(torch.equal(own, other) for other in others)

    def close(self) -> None:
        """Wait for the other ranks, then shut down."""
        for loader in self.loaders.values():
            loader.close()
        dist.destroy_process_group()


def run_rank(rank: int, folder: Path, ports: list[int], is_typed: bool, wanted: float) -> int:
    """Train and test; return 0 if the accuracy is high enough and all ranks have equal models."""
    torch.set_num_threads(1)
    here = Rank(rank, folder, ports, is_typed)
    for epoch in range(NUM_EPOCHS):
        loss = here.train()
        accuracy = here.test()
        if rank == 0:
            print(f"epoch {epoch}: loss {loss:.3f}, test accuracy {accuracy:.3f}", flush=True)
    is_alike = here.is_alike()
    here.close()
    return 0 if accuracy >= wanted and is_alike else 1


def free_ports(count: int) -> list[int]:
    """Find free ports of this machine."""
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def main() -> int:
    """Prepare and start both ranks, or run as one of them; return 0 if the accuracy is high enough."""
    parser = argparse.ArgumentParser(description="Train GraphSAGE on PyG's partition files, one process per partition.")
    parser.add_argument("--typed", action="store_true", help="papers and authors in place of papers alone")
    parser.add_argument("--wanted", type=float, default=0.65, help="test accuracy below which the script fails")
    parser.add_argument("--rank", type=int, help="be this rank; the script starts itself with it")
    parser.add_argument("--folder", type=Path, help="what the rank has on its machine")
    parser.add_argument("--ports", type=int, nargs=3, help="of DDP, and of the two loaders; free ones by default")
    arguments = parser.parse_args()
    if arguments.rank is not None:
        return run_rank(arguments.rank, arguments.folder, arguments.ports, arguments.typed, arguments.wanted)
    with tempfile.TemporaryDirectory() as folder:
        hosts = prepare(Path(folder), arguments.typed)
        ports = [str(port) for port in arguments.ports or free_ports(3)]
        typed = ["--typed"] if arguments.typed else []
        ranks = [
            subprocess.Popen(
                [sys.executable, __file__, "--rank", str(rank), "--folder", str(host), "--ports", *ports, "--wanted",
                 str(arguments.wanted), *typed]
            )
            for rank, host in enumerate(hosts)
        ]  # fmt: skip
        try:
            return max(abs(process.wait(LIMIT_S)) for process in ranks)
        finally:
            for process in ranks:
                process.kill()
                process.wait()


if __name__ == "__main__":
    sys.exit(main())
