"""How are servers and trainers started on a Ray cluster?

    python examples/deploy/on_ray.py parts/mag --parts 4 --trainers 8

Every node that holds the dataset's folder has the custom resource ``graph``, one for each server that it may run. One
actor per part runs a server there and ends it with itself; trainers are tasks that take batches from all of them.
"""

from __future__ import annotations

import argparse
import json
import secrets
import socket
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import ray

import hopstream

START_S, STOP_S, TRAIN_S = 300.0, 30.0, 3600.0


@ray.remote(resources={"graph": 1})
class Server:
    """One server of one part."""

    def __init__(self, parts: str, part: int) -> None:
        """Choose where to listen."""
        self._parts, self._part = parts, part
        self._host = ray.util.get_node_ip_address()
        with socket.socket() as probe:
            probe.bind((self._host, 0))
            self._port = probe.getsockname()[1]
        self._folder = TemporaryDirectory()

    def location(self) -> str:
        """Where the server will listen."""
        return f"tcp://{self._host}:{self._port}"

    def start(self, cluster: str, token: str) -> None:
        """Start the server and wait until it is ready; --insecure is for a network that nobody else reaches."""
        token_file = Path(self._folder.name) / "token"
        token_file.touch(mode=0o600)
        token_file.write_text(token)
        self._process = subprocess.Popen(
            [
                sys.executable, "-m", "hopstream.cli", "serve", self._parts, "--parts", str(self._part),
                "--location", self.location(), "--cluster", cluster, "--token-file", str(token_file), "--insecure",
                "--stop-on-eof", "--json",
            ],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        ready = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not ready:
            raise RuntimeError(f"the server of part {self._part} ended with {self._process.wait()}; Ray's logs say why")
        json.loads(ready)

    def stop(self) -> int:
        """End the server; its exit status."""
        self._process.terminate()
        return self._process.wait(STOP_S)


@ray.remote(num_cpus=1)
def train(cluster: str, token: str, rank: int, world_size: int) -> int:
    """Take one epoch of batches; how many seeds they had."""
    settings = hopstream.StoreSettings(security=hopstream.ClientSecurity(token=token, is_insecure=True))
    graph = hopstream.RemoteGraph(cluster, settings=settings)
    with hopstream.NeighborLoader(
        graph, [10, 5], batch_size=256, shuffle=True, rank=rank, world_size=world_size, collate="numpy"
    ) as loader:
        return sum(batch.batch_size for batch in loader)


def check_room(num_cpus: float, num_servers: int) -> None:
    """Refuse what the cluster has no room for, which Ray would wait for without end."""
    room = ray.cluster_resources()
    if room.get("CPU", 0) < num_cpus or room.get("graph", 0) < num_servers:
        sys.exit(
            f"error: servers and trainers need {num_cpus:g} processors and {num_servers} of the resource graph; the "
            f"cluster has {room.get('CPU', 0):g} and {room.get('graph', 0):g}"
        )


def main() -> None:
    """Start servers, train, and stop them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset", help="folder of the dataset, on every node with the resource graph")
    parser.add_argument("--parts", type=int, required=True, help="parts of the dataset")
    parser.add_argument("--trainers", type=int, default=2)
    parser.add_argument("--server-cpus", type=float, default=2.0, help="processors of each server")
    options = parser.parse_args()
    ray.init()
    check_room(options.server_cpus * options.parts + options.trainers, options.parts)
    token = secrets.token_hex(32)
    parts = str(Path(options.dataset).absolute())  # actors work in folders of their own
    servers = [Server.options(num_cpus=options.server_cpus).remote(parts, part) for part in range(options.parts)]
    cluster = ",".join(ray.get([server.location.remote() for server in servers], timeout=START_S))
    ray.get([server.start.remote(cluster, token) for server in servers], timeout=START_S)
    started = time.monotonic()
    trainers = [train.remote(cluster, token, rank, options.trainers) for rank in range(options.trainers)]
    seeds = ray.get(trainers, timeout=TRAIN_S)
    print(f"{sum(seeds)} seeds on {options.trainers} trainers in {time.monotonic() - started:.1f} s")
    statuses = ray.get([server.stop.remote() for server in servers], timeout=2 * STOP_S)
    print("exit statuses of servers:", statuses)
    ray.shutdown()


if __name__ == "__main__":
    main()
