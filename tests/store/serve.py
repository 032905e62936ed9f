"""Run a server in a process of its own: ``python -m tests.store.serve`` prints its location."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from hopstream.dataset.layout import open_dataset
from hopstream.store.local import LocalStore
from hopstream.store.server import StoreServer
from hopstream.store.settings import ServerLimits
from hopstream.transport import listener
from hopstream.transport.messages import Frame
from hopstream.transport.security import ServerSecurity, read_pem
from hopstream.transport.tokens import read_token


def fail(frame: Frame) -> Iterator[Frame]:
    """An operation with a bug."""
    raise ZeroDivisionError("a bug in the server")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    parser.add_argument("--parts", default=None)
    parser.add_argument("--location", default="tcp://127.0.0.1:0")
    parser.add_argument("--token", type=Path, default=None)
    parser.add_argument("--certificate", type=Path, default=None)
    parser.add_argument("--key", type=Path, default=None)
    parser.add_argument("--client-roots", type=Path, default=None)
    parser.add_argument("--grace", type=float, default=20.0)
    parser.add_argument("--says-path", action="store_true")
    parser.add_argument("--insecure", action="store_true", help="listen where other machines can reach")
    parser.add_argument("--max-bytes", type=int, default=1 << 30)
    parser.add_argument("--max-request-bytes", type=int, default=256 << 20)
    parser.add_argument("--quiet", action="store_true", help="log errors only")
    parser.add_argument("--patient", action="store_true", help="let clients abandon any number of calls")
    given = parser.parse_args(arguments)
    if given.patient:
        listener.FREE_ABANDONED = 1 << 60
    logging.basicConfig(level=logging.ERROR if given.quiet else logging.WARNING, stream=sys.stderr)
    parts = None if given.parts is None else [int(part) for part in given.parts.split(",")]
    security = ServerSecurity(
        token=given.token and read_token(given.token),
        certificate=given.certificate and read_pem(given.certificate),
        private_key=given.key and read_pem(given.key),
        client_roots=given.client_roots and read_pem(given.client_roots),
        is_insecure=given.insecure,
    )
    limits = ServerLimits(max_bytes=given.max_bytes, max_request_bytes=given.max_request_bytes)
    with LocalStore(open_dataset(given.root), parts) as store:
        server = StoreServer(
            store, given.location, security=security, limits=limits, path=given.root if given.says_path else None,
            operations={"fail": fail},
        )  # fmt: skip
        for number in (signal.SIGTERM, signal.SIGINT):  # a test may send one before ``serve_forever`` has begun
            signal.signal(number, lambda *_: server.stop())
        print(server.location, flush=True)  # noqa: T201
        server.serve_forever(given.grace)


if __name__ == "__main__":
    main(sys.argv[1:])
