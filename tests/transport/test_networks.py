"""Tests that answers are right and in time over links that are cut, restored, slow or lossy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.preparation.write import write_parts
from tests.store.processes import ROOT, environment
from tests.transport.far import ALARM_S, CASES, LINKS, NUM_EDGES, NUM_NODES, SKIPPED, WIDTH

OWN_NETWORK = ["unshare", "--user", "--map-root-user", "--net"]


@pytest.fixture(scope="module", autouse=True)
def own_networks() -> None:
    """Skip if the system lets no user make networks."""
    try:
        words = "ip link add near0 type veth peer name far0"
        words += " && tc qdisc add dev near0 root tbf rate 1mbit burst 9kb limit 9kb"
        done = subprocess.run([*OWN_NETWORK, "sh", "-c", words], capture_output=True, text=True, timeout=20)
    except FileNotFoundError as error:
        pytest.skip(f"no network of its own: {error}")
    if done.returncode:
        pytest.skip(f"no network of its own: {done.stderr.strip()}")


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph of 8 MiB of features in two parts."""
    root = tmp_path_factory.mktemp("wide") / "parts"
    rng = np.random.default_rng(7)
    x = rng.standard_normal((NUM_NODES, WIDTH)).astype(np.float32)
    src, dst = rng.integers(0, NUM_NODES, (2, NUM_EDGES))
    graph = Graph(
        nodes={"node": NodeTable(num_nodes=NUM_NODES, features={"x": x})},
        edges={LINKS: EdgeTable(src_keys=src, dst_keys=dst)},
    )
    write_parts(graph.check(), root, num_parts=2, method="hash", direction="both")
    return root


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_over_a_link(wide: Path, case: str) -> None:
    command = [*OWN_NETWORK, sys.executable, "-m", "tests.transport.far", case, str(wide)]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=ALARM_S + 15)
    print(done.stdout)  # noqa: T201
    if done.returncode == SKIPPED:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stderr[-5000:]
