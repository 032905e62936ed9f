"""How does a test start a compute rank in a process of its own?

``python -m tests.stream.consume`` takes some batches, says so, and waits until its input ends or
somebody kills it.
"""

from __future__ import annotations

import sys

from tests.stream.serving import node_loader, remote_graph


def main(locations: str, num_batches: int) -> None:
    loader = node_loader(remote_graph(locations), rank=3, world_size=4)
    iterator = iter(loader)
    for _ in range(num_batches):
        next(iterator)
    print("waiting", flush=True)  # noqa: T201
    sys.stdin.read()
    loader.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
