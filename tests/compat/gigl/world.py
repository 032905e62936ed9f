"""Start a cluster of processes: storage machines and compute ranks.

Each process runs ``python -m tests.compat.gigl.world TASK``, where TASK is JSON. A compute rank reports its progress in
lines of JSON. Tests start clusters by ``World``.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ in ("__main__", "__mp_main__"):  # a process of a cluster, or one that it spawned
    sys.modules["pytorch_lightning"] = sys.modules["lightning"] = None  # type: ignore[assignment] # saves 1.5 s

import psutil
import torch

from hopstream.compat.gigl.distributed.graph_store import (
    GraphStoreInfo,
    RemoteDistDataset,
    build_storage_dataset,
    get_graph_store_info,
    init_compute_process,
    run_storage_server,
    shutdown_compute_process,
)
from hopstream.compat.gigl.distributed.graph_store import compute as graph_store_compute
from hopstream.compat.gigl.distributed.graph_store import dist_server as graph_store_server
from hopstream.compat.gigl.distributed.graph_store.messages import InitSamplingBackendRequest, RegisterBackendRequest
from hopstream.compat.gigl.distributed.graph_store.remote_channel import RemoteReceivingChannel
from hopstream.compat.gigl.distributed.sampler_options import KHopNeighborSamplerOptions
from hopstream.compat.gigl.src.common.types.graph_data import NodeType
from hopstream.compat.glt.distributed import dist_server, roster
from hopstream.compat.glt.distributed.options import RemoteDistSamplingWorkerOptions
from hopstream.compat.glt.sampler import NodeSamplerInput, SamplingConfig, SamplingType
from hopstream.store.settings import StoreSettings
from hopstream.transport.security import ClientSecurity, ServerSecurity
from tests.compat.gigl.ring import check_batch
from tests.ports import free_ports
from tests.store.authority import Authority

if TYPE_CHECKING:
    from hopstream.compat.gigl.distributed import DistABLPLoader, DistNeighborLoader

GONE_S, ABANDONED_S, LEASE_S = 4.0, 6.0, 3.0
RPC_S = 60
END_S = 120.0
"""Seconds that all processes of a cluster may take to exit."""

if __name__ in ("__main__", "__mp_main__"):
    roster.GONE_S, roster.ABANDONED_S, roster.PRESENT_S = GONE_S, ABANDONED_S, 0.5
    graph_store_server.LEASE_S = LEASE_S
    dist_server.SERVER_EXIT_STATUS_CHECK_INTERVAL = 0.5
    # The address of this machine's name may be one that others can reach.
    socket.gethostname = lambda: os.environ.get("WORLD_HOME", "localhost")


# --- Code of the processes --------------------------------------------------------------------------------------------


def say(**told: Any) -> None:
    """Report to the test."""
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


def cluster_info(given: dict[str, Any] | None) -> GraphStoreInfo:
    """The cluster that the task, or else the environment, describes."""
    if given is not None:
        return GraphStoreInfo(**given)
    torch.distributed.init_process_group("gloo")
    info = get_graph_store_info()
    torch.distributed.destroy_process_group()
    return info


def secured(task: dict[str, Any]) -> dict[str, Any]:
    """Store settings with the task's token, if it has one; roots are the system's."""
    if task["token"] is None:
        return {}
    return {"store_settings": StoreSettings(security=ClientSecurity(token=task["token"], server_name="store.example"))}


def serve(task: dict[str, Any]) -> int:
    """A storage machine; its exit status."""
    info = cluster_info(task["info"])
    rank = info.storage_node_rank
    torch.distributed.init_process_group(
        "gloo", world_size=info.num_storage_nodes, rank=rank,
        init_method=f"tcp://{info.storage_cluster_master_ip}:{info.storage_cluster_master_port}",
    )  # fmt: skip
    dataset = build_storage_dataset(task["folder"], "in")
    torch.distributed.destroy_process_group()
    run_storage_server(
        storage_rank=rank, cluster_info=info, dataset=dataset, num_server_sessions=task["sessions"],
        timeout_seconds=END_S, rpc_timeout=RPC_S, **secured(task), security=None if task["token"] is None else
        ServerSecurity(token=task["token"], certificate=task["pem"][0].encode(), private_key=task["pem"][1].encode()),
    )  # fmt: skip
    return 0


def new_loader(dataset: RemoteDistDataset, split: Any, batch_size: int = 3) -> DistNeighborLoader | DistABLPLoader:
    """Make the loader of one rank's share: around anchors if edges are labels, else users or nodes."""
    from hopstream.compat.gigl.distributed import DistABLPLoader, DistNeighborLoader  # import PyG, unlike servers

    rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    types = dataset.fetch_node_types()
    how: dict[str, Any] = {"batch_size": batch_size, "shuffle": True}
    if types is not None and "user" not in types:
        anchors = dataset.fetch_ablp_input(split, rank, world_size)
        return DistABLPLoader(dataset, [2, 2], anchors, use_label_edge_index_output=True, **how)
    node_type = None if types is None else NodeType("user")
    ids = dataset.fetch_node_ids(rank, world_size, split, node_type)
    return DistNeighborLoader(dataset, [2, 2], ids if node_type is None else (node_type, ids), **how)


def seeds_of(loader: Any) -> list[int]:
    """The seeds of an epoch, after a check of every batch."""
    return [seed for data in loader for seed in check_batch(data)]


def train(dataset: RemoteDistDataset) -> int:
    """Train with three loaders that are open together, made in turn and shut down in turn."""
    for split in ("train", "val"):
        loader = new_loader(dataset, split)
        next(iter(loader))
        loader.shutdown()
    train_loader, val_loader, test_loader = (new_loader(dataset, split) for split in ("train", "val", "test"))
    for epoch in range(2):
        found: dict[str, list[int]] = {"train": []}
        for number, data in enumerate(train_loader):
            found["train"] += check_batch(data)
            if number == 0:
                found["val"] = seeds_of(val_loader)
        say(epoch=epoch, **{"val": seeds_of(val_loader), **found})
    train_loader.shutdown()
    val_loader.shutdown()
    say(test=seeds_of(test_loader))
    test_loader.shutdown()
    return 0


def consume(dataset: RemoteDistDataset) -> int:
    """Take four batches, report the servers, wait for a line, and read on until the epoch ends or fails.

    With ``endlessly`` in the line, read epoch after epoch and ask all servers for their nodes until a call fails. A
    failure ends the process, as in a script that handles none. With ``in order`` in the line, loader and session are
    shut down before that.
    """
    loader = new_loader(dataset, None, batch_size=1)
    batches = iter(loader)
    seeds = [seed for _ in range(4) for seed in next(batches).batch.tolist()]
    say(servers=list(graph_store_compute.session().locations))
    how = sys.stdin.readline()
    status, started = 0, time.monotonic()
    try:
        while (data := next(batches, None)) is not None:  # a for loop would begin the next epoch
            seeds += data.batch.tolist()
        while "endlessly" in how:
            seeds_of(loader)
            dataset.fetch_node_ids()
    except Exception as error:
        say(error=type(error).__name__, message=str(error), seconds=time.monotonic() - started)
        if "in order" not in how:
            raise
        status = 1
    else:
        say(seeds=seeds)
    loader.shutdown()
    return status


def keep(dataset: RemoteDistDataset) -> int:
    """Begin an epoch of a channel on every server and wait for a line; then read the epoch to its end."""
    rank, ask = torch.distributed.get_rank(), graph_store_compute.request_server
    config = SamplingConfig(SamplingType.NODE, [2], 4, False, False, True, True, False, False, "in", 7)
    options = InitSamplingBackendRequest(
        "kept", RemoteDistSamplingWorkerOptions(), KHopNeighborSamplerOptions([2]), config
    )
    channels, wanted = [], []
    for server, ids in dataset.fetch_node_ids(rank=rank, world_size=torch.distributed.get_world_size()).items():
        wanted += ids.tolist()
        backend = ask(server, "init_sampling_backend", options)
        given = RegisterBackendRequest(backend, f"kept by {rank}", NodeSamplerInput(ids), config, 1, "1MB")
        channels.append(ask(server, "register_sampling_input", given))
        ask(server, "start_new_epoch_sampling", channels[-1], 0)
    say(has_begun=True)
    sys.stdin.readline()
    receiving, seeds = RemoteReceivingChannel([*range(len(channels))], channels), []
    with suppress(StopIteration):
        while True:
            seeds += receiving.recv()["batch"].tolist()
    for server, channel in enumerate(channels):
        ask(server, "destroy_sampling_input", channel)
    assert sorted(seeds) == sorted(wanted) and wanted
    say(has_all=True)
    return 0


def compute(task: dict[str, Any]) -> int:
    """A compute rank; its exit status."""
    status = 0
    info = cluster_info(task["info"])
    for session in range(task["sessions"]):
        init_compute_process(task["local_rank"], info, "gloo", rpc_timeout=RPC_S, **secured(task))
        session_of_all = graph_store_compute.session()  # all members are here, so answers come soon from now on
        session_of_all._meeting = replace(session_of_all._meeting, timeout_s=task["timeout"])
        session_of_all.graph._timeout_s = float(task["timeout"])
        assert torch.distributed.get_world_size() == info.compute_cluster_world_size
        dataset = RemoteDistDataset(info, task["local_rank"])
        status |= {"train": train, "consume": consume, "keep": keep}[task["work"]](dataset)
        try:
            shutdown_compute_process()
        except Exception as error:
            say(session=session, error=type(error).__name__, message=str(error))
            status = 1
        else:
            say(session=session, has_ended=True)
    return status


# --- Code of the tests ------------------------------------------------------------------------------------------------


class World:
    """The processes of one cluster."""

    def __init__(self, storage: list[subprocess.Popen[str]], ranks: list[subprocess.Popen[str]]) -> None:
        self.storage, self.ranks = storage, ranks
        self.servers: list[str] = []
        """Locations of the servers, once a rank has reported them."""

    def hear(self, rank: int) -> dict[str, Any]:
        """The next line of a rank."""
        stdout = self.ranks[rank].stdout
        assert stdout is not None
        line = stdout.readline()
        assert line, "a compute rank has ended: " + self.errors(self.ranks[rank])
        told: dict[str, Any] = json.loads(line)
        return told

    def go_on(self, rank: int, how: str = "to the end") -> None:
        """Send a waiting rank its line."""
        stdin = self.ranks[rank].stdin
        assert stdin is not None
        stdin.write(f"{how}\n")
        stdin.flush()

    def kill_server(self, rank: int) -> None:
        """Kill a running process of a session; the process of its machine then ends with an error."""
        for pid in children(self.storage[rank].pid):
            with suppress(ProcessLookupError):
                os.kill(pid, 9)

    def ends(self, process: subprocess.Popen[str]) -> int:
        """Wait for a process to end; return its exit status."""
        return process.wait(END_S)

    def errors(self, process: subprocess.Popen[str]) -> str:
        """Output on stderr of a process that has ended."""
        process.wait(END_S)
        assert process.stderr is not None
        return process.stderr.read()

    def all_processes(self) -> list[psutil.Process]:
        """All running processes, including their children."""
        found = [psutil.Process(process.pid) for process in (*self.ranks, *self.storage) if process.poll() is None]
        return found + [child for process in found for child in process.children(recursive=True)]

    def check_all_well(self) -> None:
        """Every process ends without an error."""
        for process in (*self.ranks, *self.storage):
            assert self.ends(process) == 0, self.errors(process)


def children(pid: int) -> list[int]:
    """The processes that one has spawned, without multiprocessing's resource tracker."""
    with suppress(psutil.NoSuchProcess):
        found = psutil.Process(pid).children()
        return [child.pid for child in found if not any("resource_tracker" in word for word in child.cmdline())]
    return []


@contextmanager
def running(
    folder: Path,
    *,
    num_compute: int = 1,
    processes: int = 1,
    num_storage: int = 2,
    work: str = "train",
    sessions: int = 1,
    timeout: int = RPC_S,
    of_environment: bool = False,
    home: str = "127.0.0.1",
    token: str | None = None,
) -> Iterator[World]:
    """A cluster whose processes end with the block; with a token its servers have TLS, too."""
    ready = folder.parent / f"ready-{free_ports(1)[0]}"
    authority, roots = Authority("tests"), folder.parent / "roots.pem"
    roots.write_bytes(authority.root)
    identity = authority.issue("store.example")
    ports = free_ports(6)
    info = GraphStoreInfo(
        num_storage, num_compute, home, home, home, *ports[:3], processes, *ports[3:5], str(ready)
    )  # fmt: skip
    variables = {
        "WORLD_SIZE": f"{num_storage + num_compute}", "MASTER_ADDR": home, "MASTER_PORT": f"{ports[5]}",
        "GIGL_GRAPH_STORE_NUM_COMPUTE_NODES": f"{num_compute}", "GIGL_GRAPH_STORE_READINESS_URI": str(ready),
        "WORLD_HOME": home,
        "GIGL_GRAPH_STORE_NUM_STORAGE_NODES": f"{num_storage}", "COMPUTE_CLUSTER_LOCAL_WORLD_SIZE": f"{processes}",
    }  # fmt: skip

    def start(machine: int, local_rank: int) -> subprocess.Popen[str]:
        task = {
            "info": None if of_environment else asdict(info), "folder": str(folder), "sessions": sessions,
            "local_rank": local_rank, "work": work, "timeout": timeout, "is_compute": machine < num_compute,
            "token": token, "pem": [identity.certificate.decode(), identity.key.decode()],
        }  # fmt: skip
        return subprocess.Popen(
            [sys.executable, "-m", "tests.compat.gigl.world", json.dumps(task)], text=True,
            cwd=Path(__file__).parents[3], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, **(variables if of_environment else {}), "RANK": f"{machine}",
                 "SSL_CERT_FILE": str(roots)},
        )  # fmt: skip

    world = World([], [])
    try:
        for machine in range(num_compute, num_compute + num_storage):
            world.storage.append(start(machine, 0))
        for machine in range(num_compute):
            for local_rank in range(processes):
                world.ranks.append(start(machine, local_rank))
        yield world
    finally:
        for process in (*world.ranks, *world.storage):
            for pid in [*children(process.pid), process.pid] if process.poll() is None else []:
                with suppress(ProcessLookupError):
                    os.kill(pid, 9)
            process.communicate()


if __name__ == "__main__":
    TASK = json.loads(sys.argv[1])
    sys.exit((compute if TASK["is_compute"] else serve)(TASK))
