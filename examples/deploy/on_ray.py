"""Starts servers and trainers on a Ray cluster, with certificates made for the run.

    python examples/deploy/on_ray.py parts/mag --parts 4 --trainers 8

Every node that holds the dataset's folder has the custom resource ``graph``, one for each server that it may run. One
actor per part runs a server, and stops it when the actor ends; trainers are tasks that load batches from all servers.

Servers and trainers authenticate each other by certificates, and their connections are encrypted. Ray sends task
arguments unencrypted unless it was set up with TLS, so no argument is secret: each process makes its own key, which
never leaves its node, and sends a certificate request to an authority made for this run, which signs it. Every node
needs the command ``openssl``.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import ray

import hopstream

START_S, STOP_S, TRAIN_S, SIGN_S = 300.0, 30.0, 3600.0, 60.0
DAYS = 30
"""Validity of certificates: longer than a run."""
AUTHORITY = """
[req]
distinguished_name = name
x509_extensions = extensions
[name]
[extensions]
basicConstraints = critical, CA:TRUE, pathlen:0
keyUsage = critical, keyCertSign
subjectKeyIdentifier = hash
"""
MEMBER = """
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
authorityKeyIdentifier = keyid
subjectAltName = IP:{host}
"""
NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


def openssl(folder: Path, *words: str) -> None:
    """Run ``openssl`` in a folder."""
    done = subprocess.run(["openssl", *words], cwd=folder, capture_output=True, text=True, timeout=SIGN_S)
    if done.returncode:
        raise RuntimeError(f"openssl {words[0]} failed: {done.stderr}")


class Authority:
    """Signs certificates of servers and trainers of one run."""

    def __init__(self) -> None:
        """Make the private key, which stays in this process."""
        self._folder = TemporaryDirectory()  # readable only by this user
        self._path = Path(self._folder.name)
        (self._path / "config").write_text(AUTHORITY)
        openssl(
            self._path, "req", "-x509", *NEW_KEY, "-keyout", "ca.key", "-out", "ca.pem", "-days", str(DAYS),
            "-config", "config", "-subj", "/CN=hopstream on Ray",
        )  # fmt: skip

    def sign(self, request: str, host: str) -> tuple[str, str]:
        """Sign a certificate request for an IP address; return the certificate and the root."""
        (self._path / "request.pem").write_text(request)
        (self._path / "extensions").write_text(MEMBER.format(host=host))
        openssl(
            self._path, "x509", "-req", "-in", "request.pem", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
            "-days", str(DAYS), "-extfile", "extensions", "-out", "member.pem",
        )  # fmt: skip
        return (self._path / "member.pem").read_text(), (self._path / "ca.pem").read_text()


def write_certificate(folder: Path, host: str, sign: Callable[[str, str], tuple[str, str]]) -> None:
    """Make ``own.key``, and get ``own.pem`` signed and the root as ``ca.pem``, in a private folder."""
    (folder / "config").write_text(AUTHORITY)
    openssl(
        folder, "req", "-new", *NEW_KEY, "-keyout", "own.key", "-out", "request.pem", "-config", "config",
        "-subj", "/CN=member",
    )  # fmt: skip
    certificate, root = sign((folder / "request.pem").read_text(), host)
    (folder / "own.pem").write_text(certificate)
    (folder / "ca.pem").write_text(root)


def signed_by(authority: ray.actor.ActorHandle) -> Callable[[str, str], tuple[str, str]]:
    """Return a function that lets the actor sign a request."""
    return lambda request, host: ray.get(authority.sign.remote(request, host), timeout=SIGN_S)


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
        """Return the address at which the server will listen."""
        return f"tls://{self._host}:{self._port}"

    def start(self, cluster: str, authority: ray.actor.ActorHandle) -> None:
        """Start the server and wait until it is ready; it accepts clients with a certificate of the authority."""
        folder = Path(self._folder.name)
        write_certificate(folder, self._host, signed_by(authority))
        self._process = subprocess.Popen(
            [
                sys.executable, "-m", "hopstream.cli", "serve", self._parts, "--parts", str(self._part),
                "--location", self.location(), "--cluster", cluster, "--tls-cert", str(folder / "own.pem"),
                "--tls-key", str(folder / "own.key"), "--client-ca", str(folder / "ca.pem"), "--stop-on-eof", "--json",
            ],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        ready = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not ready:
            raise RuntimeError(f"the server of part {self._part} ended with {self._process.wait()}; Ray's logs say why")
        json.loads(ready)

    def stop(self) -> int:
        """Stop the server; return its exit status."""
        self._process.terminate()
        return self._process.wait(STOP_S)


@ray.remote(num_cpus=1)
def train(cluster: str, authority: ray.actor.ActorHandle, rank: int, world_size: int) -> int:
    """Load one epoch of batches; return the number of their seeds."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_certificate(folder, ray.util.get_node_ip_address(), signed_by(authority))
        security = hopstream.ClientSecurity(
            roots=folder / "ca.pem", certificate=folder / "own.pem", private_key=folder / "own.key"
        )
        graph = hopstream.RemoteGraph(cluster, settings=hopstream.StoreSettings(security=security))
        with hopstream.NeighborLoader(
            graph, [10, 5], batch_size=256, shuffle=True, rank=rank, world_size=world_size, collate="numpy"
        ) as loader:
            return sum(batch.batch_size for batch in loader)


def check_room(num_cpus: float, num_servers: int) -> None:
    """Exit if the cluster has too few resources, for which Ray would wait forever."""
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
    authority = ray.remote(Authority).options(num_cpus=0).remote()
    parts = str(Path(options.dataset).absolute())  # actors work in folders of their own
    servers = [Server.options(num_cpus=options.server_cpus).remote(parts, part) for part in range(options.parts)]
    cluster = ",".join(ray.get([server.location.remote() for server in servers], timeout=START_S))
    ray.get([server.start.remote(cluster, authority) for server in servers], timeout=START_S)
    started = time.monotonic()
    trainers = [train.remote(cluster, authority, rank, options.trainers) for rank in range(options.trainers)]
    seeds = ray.get(trainers, timeout=TRAIN_S)
    print(f"{sum(seeds)} seeds on {options.trainers} trainers in {time.monotonic() - started:.1f} s")
    statuses = ray.get([server.stop.remote() for server in servers], timeout=2 * STOP_S)
    print("exit statuses of servers:", statuses)
    ray.shutdown()


if __name__ == "__main__":
    main()
