"""Does a process that ends without closing its loader still serve until the others are done?"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.compat.pyg.ranks import free_port

RANK = """
import sys
import numpy as np, torch
from hopstream.compat.pyg import DistNeighborLoader
from tests.compat.pyg.ranks import context, owners_of, partition
from tests.compat.pyg.test_dist_loaders import plain_graph

rank, port = int(sys.argv[1]), int(sys.argv[2])
graph = plain_graph(np.random.default_rng(1))
loader = DistNeighborLoader(
    partition(graph, owners_of(graph, 2), rank, 2), [-1], "127.0.0.1", port, context(rank, 2),
    input_nodes=torch.arange(40), rpc_timeout=60, batch_size=4,
)
print(sum(1 for _ in range(1 + 40 * rank) for _ in loader))
"""


@pytest.mark.slow
def test_who_ends_early_serves_until_the_others_end() -> None:
    port = str(free_port())
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), port], cwd=Path(__file__).parents[3], text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        told = [process.communicate(timeout=120) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [process.returncode for process in ranks] == [0, 0], told
    assert [int(out) for out, _ in told] == [10, 410]
