"""Compile the kernels of test servers once, before tests that limit the time of a server's start.

``python -m tests.warm`` leaves them in numba's cache, where the tests' workers and their servers find them. Without it
the first server of a run compiles them, which takes a minute on two cores, and longer where others use them too.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from hopstream.dataset.layout import open_dataset
from hopstream.store.answer import warm_up
from hopstream.store.local import LocalStore
from tests.stream.serving import node_loader, remote_graph, serve_here, write_timed_parts


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        parts = write_timed_parts(Path(folder), [1, 2])
        with LocalStore(open_dataset(parts[2]), [0]) as store:
            warm_up(store)
        with serve_here(parts[2]) as served:
            for source in (parts[1], parts[2], remote_graph(served.locations)):
                with node_loader(source, batch_size=24) as loader:
                    assert len(list(loader)) == 5


if __name__ == "__main__":
    main()
