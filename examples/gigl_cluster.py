"""Starts GiGL's storage machines and compute ranks on this machine, and ends all of them.

Scripts for GiGL get ``cluster_info`` from ``get_graph_store_info()``, on machines whose launcher set the environment.
Here all addresses are loopback, so ``run_cluster`` makes it and passes it to all processes. All ranks use
``compute_process`` and ``take_steps``.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import hopstream
from hopstream.compat.gigl.distributed.graph_store import (
    GraphStoreInfo,
    RemoteDistDataset,
    build_storage_dataset,
    init_compute_process,
    run_storage_server,
    shutdown_compute_process,
)
from hopstream.compat.gigl.distributed.utils import get_free_ports
from hopstream.graph import Graph

NUM_STORAGE, NUM_RANKS = 2, 2
LIMIT_S, STOP_S = 600.0, 10.0
HOME = "127.0.0.1"


def run_cluster(graph: Graph, compute: Callable[..., int], *arguments: Any) -> int:
    """Run two storage machines, and one compute machine with two ranks; no process outlives the call.

    Args:
        graph: The graph; each storage machine serves one half.
        compute: Function of a module that each rank runs in its own process, with its local rank, the cluster and
            ``arguments``; it returns 0 on success.
        *arguments: Further arguments of ``compute``.

    Returns:
        0 if every process ended with 0.
    """
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    # Ranks on one machine need only loopback, and with one thread each they leave cores to the storage machines.
    os.environ.update(GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")
    with TemporaryDirectory(prefix="hopstream-gigl-") as folder:
        parts = Path(folder) / "parts"
        hopstream.write_parts(graph, parts, num_parts=NUM_STORAGE, method="hash", direction="both")
        cluster_info = GraphStoreInfo(
            NUM_STORAGE, 1, HOME, HOME, HOME, *get_free_ports(3), NUM_RANKS, *get_free_ports(2), f"{folder}/ready"
        )
        context = multiprocessing.get_context("spawn")
        processes: list[BaseProcess] = [
            context.Process(
                target=run_machine, args=(1 + rank, storage_process, cluster_info, parts), name=f"storage {rank}"
            )
            for rank in range(NUM_STORAGE)
        ]
        processes += [
            context.Process(target=run_machine, args=(0, compute, rank, cluster_info, *arguments), name=f"rank {rank}")
            for rank in range(NUM_RANKS)
        ]
        try:
            for process in processes:
                process.start()
            return wait_for_all(processes)
        finally:
            end_all([process for process in processes if process.pid is not None])


def storage_process(cluster_info: GraphStoreInfo, parts: Path) -> int:
    """Serve this storage machine's parts until the ranks are done."""
    rank = cluster_info.storage_node_rank
    dataset = build_storage_dataset(parts, "in", rank=rank, world_size=cluster_info.num_storage_nodes)
    run_storage_server(rank, cluster_info, dataset, num_server_sessions=1)
    return 0


@contextmanager
def compute_process(local_rank: int, cluster_info: GraphStoreInfo) -> Iterator[RemoteDistDataset]:
    """Run as one of the ranks: connect to storage machines, and shut down with the other ranks."""
    torch.set_num_threads(1)  # the graphs are small, and storage machines need the cores
    init_compute_process(local_rank, cluster_info, compute_world_backend="gloo")
    yield RemoteDistDataset(cluster_info, local_rank)
    shutdown_compute_process()


def take_steps(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterable[Any], loss_of: Callable[..., Tensor],
    num_steps: int,
) -> None:  # fmt: skip
    """Train on ``num_steps`` batches, equally many on every rank; ``loss_of`` takes the model and a batch."""
    replica = DistributedDataParallel(model)
    for batch in islice(batches, num_steps):
        loss = loss_of(replica, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def end_loaders(loaders: Iterable[Any]) -> None:
    """Shut down this rank's loaders after all ranks have finished with theirs."""
    dist.barrier()
    for loader in loaders:
        loader.shutdown()


def run_machine(rank: int, function: Callable[..., int], *arguments: Any) -> None:
    """Run as one of the machines, or as a process of one."""
    os.setsid()  # so that a storage machine can be killed with its child processes
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    os.environ["RANK"] = str(rank)
    sys.exit(function(*arguments))


def wait_for_all(processes: list[BaseProcess]) -> int:
    """Wait until all processes have ended or one has failed; return 0 if all ended with 0 in time."""
    ends = time.monotonic() + LIMIT_S
    running = list(processes)
    while running:
        if not wait([process.sentinel for process in running], max(0.0, ends - time.monotonic())):
            print(f"error: after {LIMIT_S:g} s {', '.join(p.name for p in running)} had not ended", file=sys.stderr)
            return 1
        for process in [process for process in running if process.exitcode is not None]:
            running.remove(process)
            if process.exitcode:
                print(f"error: {process.name} ended with status {process.exitcode}", file=sys.stderr)
                return 1
    return 0


def end_all(processes: list[BaseProcess]) -> None:
    """Terminate running processes, and kill those that do not end."""
    for process in processes:
        process.terminate()
    ends = time.monotonic() + STOP_S
    for process in processes:
        process.join(max(0.0, ends - time.monotonic()))
    for process in processes:
        try:
            os.killpg(process.pid or 0, signal.SIGKILL)  # with the children of a storage machine
        except ProcessLookupError:
            continue
        process.join(STOP_S)
