"""Run a compute rank in a process of its own.

``python -m tests.stream.consume LOCATIONS BATCHES`` takes some batches, reports it, and waits until its input ends or
it is killed. With ``LOCATIONS RANK WORLD_SIZE`` it takes an epoch per line of input.
"""

from __future__ import annotations

import sys
import threading

from tests.stream.serving import digest_of, node_loader, remote_graph

PACE_S = 0.01
"""Seconds that a step of training takes."""


def take_some(locations: str, num_batches: int) -> None:
    loader = node_loader(remote_graph(locations), rank=3, world_size=4)
    iterator = iter(loader)
    for _ in range(num_batches):
        next(iterator)
    print("waiting", flush=True)  # noqa: T201
    sys.stdin.read()
    loader.close()


def take_epochs(locations: str, rank: int, world_size: int) -> None:
    """Take the epoch that each line of input names, and write digests of its batches.

    A line holds the epoch and the batch at which to halt. An empty line lets the epoch go on.
    """
    graph = remote_graph(locations)
    while line := sys.stdin.readline():
        epoch, halt_at = map(int, line.split())
        with node_loader(graph, rank=rank, world_size=world_size, num_threads=1 + rank % 2) as loader:
            loader.set_epoch(epoch)
            digests = []
            for number, batch in enumerate(loader):
                if number == halt_at:
                    print("halted", flush=True)  # noqa: T201
                    sys.stdin.readline()
                elif number > halt_at:
                    threading.Event().wait(PACE_S)
                digests.append(digest_of(batch))
        print(*digests, flush=True)  # noqa: T201


if __name__ == "__main__":
    if len(sys.argv) == 3:
        take_some(sys.argv[1], int(sys.argv[2]))
    else:
        take_epochs(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
