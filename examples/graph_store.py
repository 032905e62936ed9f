"""Trains two ranks on batches that servers sample.

    python examples/graph_store.py

Two servers on loopback hold one half of Cora each and sample; two ranks train with DistributedDataParallel on their
batches. Ranks open no folder of a dataset and no port for batches; only the source differs from ``cora_ddp.py``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
from sage import Settings, train_repeatedly
from served import FROM_SERVERS, served

import hopstream

CORA = Path(__file__).parent / "data" / "cora.npz"
TORCHRUN = [
    sys.executable,
    "-m",
    "torch.distributed.run",
    "--standalone",
    "--local-addr",
    "127.0.0.1",
    "--nproc-per-node",
    "2",
]
MEETING_S, STOP_S = 60.0, 30.0


def main() -> int:
    """Serve Cora and start the ranks, or run as one of them; return 0 if the accuracy is high enough."""
    parser = argparse.ArgumentParser(description="Train GraphSAGE on Cora from servers that sample, on two ranks.")
    parser.add_argument("--epochs", type=int, default=Settings.num_epochs)
    parser.add_argument("--wanted", type=float, default=0.76, help="test accuracy below which the script fails")
    parser.add_argument("--cluster", type=Path, help="the servers; given to the ranks by the script itself")
    arguments = parser.parse_args()
    if arguments.cluster is not None:
        return train_rank(arguments)
    with TemporaryDirectory() as folder:
        parts = Path(folder) / "cora"
        hopstream.write_parts(hopstream.read_graph(CORA), parts, num_parts=2, method="kaminpar")
        with served(parts) as cluster:
            return run_ranks(["--cluster", str(cluster), *sys.argv[1:]])


def train_rank(arguments: argparse.Namespace) -> int:
    """Train as one of the ranks that torchrun started; return 0 if the accuracy is high enough."""
    torch.set_num_threads(1)  # Cora's matrices are small, and the servers need the cores
    dist.init_process_group("gloo", timeout=timedelta(seconds=MEETING_S))
    try:
        with hopstream.RemoteGraph(arguments.cluster, settings=FROM_SERVERS) as graph:
            rank = dist.get_rank()
            is_as_wanted = train_repeatedly(
                graph, Settings(num_classes=7, num_epochs=arguments.epochs), num_runs=1, wanted=arguments.wanted,
                report=lambda line: print(line, flush=True) if rank == 0 else None,
            )  # fmt: skip
    finally:
        dist.destroy_process_group()
    return 0 if is_as_wanted else 1


def run_ranks(words: list[str]) -> int:
    """Run this script once per rank; the ranks end with this process. Return 0 if all ranks succeeded."""
    # Ranks on one machine need only loopback, and with one thread each they leave cores to the servers.
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([*TORCHRUN, __file__, *words], stdin=subprocess.DEVNULL, env=environment) as process:
        try:
            return 1 if process.wait() else 0
        finally:
            process.terminate()  # torchrun ends its ranks
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


if __name__ == "__main__":
    sys.exit(main())
