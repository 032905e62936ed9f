"""S3 server in a process of its own, and a relay before it that breaks connections."""

from __future__ import annotations

import select
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from pyarrow import fs

from tests.ports import free_port

BUCKET = "graphs"
START_S, STOP_S = 60.0, 20.0
SERVE = "import sys; from moto.server import main; main(['-H', '127.0.0.1', '-p', sys.argv[1]])"


@contextmanager
def s3_server() -> Iterator[str]:
    """Serve an empty bucket, and name the server in the environment; yields the URI of the bucket."""
    port = free_port()
    with subprocess.Popen([sys.executable, "-c", SERVE, str(port)], stderr=subprocess.DEVNULL) as process:
        try:
            wait_for(f"http://127.0.0.1:{port}/moto-api/", process)
            with pytest.MonkeyPatch.context() as patch:
                name_server(patch, port)
                files, _ = fs.FileSystem.from_uri(f"s3://{BUCKET}?allow_bucket_creation=true")
                files.create_dir(BUCKET)
                yield f"s3://{BUCKET}"
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S)
            process.kill()


def name_server(patch: pytest.MonkeyPatch, port: int) -> None:
    """Let every S3 URI without an endpoint mean a server on this machine."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "nothing",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
    }.items():
        patch.setenv(name, value)


def wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until a server answers."""
    end_s = time.monotonic() + START_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=STOP_S):
                return
        except OSError:
            assert process.poll() is None, "the server ended"
            assert time.monotonic() < end_s, "the server does not answer"
            time.sleep(0.05)


class Relay:
    """Relay of TCP connections to a port, which it breaks on demand.

    Attributes:
        port: Port of the relay.
        is_broken: Close every connection at once.
        max_bytes: Bytes of answers after which one connection is closed; then None again.
        num_broken: Number of connections that were closed on purpose.
    """

    def __init__(self, to_port: int) -> None:
        self.is_broken, self.max_bytes, self.num_broken = False, None, 0
        self._to_port, self._listener = to_port, socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        """Stop to listen, and wait until all connections are closed."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.is_broken = True
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._relay, args=(client,)))
            self._threads[-1].start()

    def _relay(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._to_port)) as server, suppress(OSError):
            num_bytes = 0
            while not self.is_broken:
                for ready in select.select([client, server], [], [], 0.05)[0]:
                    data = ready.recv(1 << 16)
                    if not data:
                        return
                    num_bytes += len(data) if ready is server else 0
                    if self.max_bytes is not None and num_bytes > self.max_bytes:
                        self.max_bytes = None
                        self.num_broken += 1
                        return
                    (client if ready is server else server).sendall(data)
            self.num_broken += 1
