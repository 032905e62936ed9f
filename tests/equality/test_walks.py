"""Checks that walks are the same over any parts, however many are taken at a time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.sample.walks import random_walks
from tests.processes import ServerPool
from tests.topologies import TOPOLOGIES, YARDSTICK, Places, Written, settled

TO = ("node", "to", "node")
CITES, WRITES = ("paper", "cites", "paper"), ("author", "writes", "paper")
MODES = {
    "uniform": ("plain", {"walk_length": 12}),
    "backwards": ("plain", {"walk_length": 12, "direction": "in"}),
    "weighted": ("plain", {"walk_length": 12, "weight_attr": "weight"}),
    "restarting": ("plain", {"walk_length": 12, "restart_prob": 0.25}),
    "node2vec": ("plain", {"walk_length": 8, "p": 0.25, "q": 4.0}),
    "node2vec, outwards and weighted": ("plain", {"walk_length": 8, "p": 4.0, "q": 0.25, "weight_attr": "weight"}),
    "node2vec, mostly exact": ("plain", {"walk_length": 5, "p": 1e-3, "q": 1e3, "weight_attr": "weight"}),
    "metapath": ("typed", {"metapath": [WRITES, CITES, (WRITES, "in")], "walk_length": 9}),
    "weighted metapath": ("typed", {"metapath": [WRITES, CITES], "weight_attr": "weight"}),
}


def _graphs() -> dict[str, Graph]:
    rng = np.random.default_rng(17)
    plain = Graph(
        nodes={"node": NodeTable(num_nodes=300)},
        edges={
            TO: EdgeTable(
                src_keys=(rng.random(2400) ** 2 * 300).astype(np.int64),
                dst_keys=(rng.random(2400) ** 3 * 300).astype(np.int64),
                features={"weight": np.where(rng.random(2400) < 0.1, 0.0, rng.random(2400)).astype(np.float32)},
            )
        },
    )
    typed = Graph(
        nodes={"paper": NodeTable(num_nodes=200), "author": NodeTable(num_nodes=70)},
        edges={
            CITES: EdgeTable(src_keys=rng.integers(0, 200, 900), dst_keys=rng.integers(0, 200, 900)),
            WRITES: EdgeTable(
                src_keys=rng.integers(0, 70, 400), dst_keys=rng.integers(0, 190, 400),
                features={"weight": rng.integers(0, 9, 400)},
            ),
        },
    )  # fmt: skip
    return {"plain": plain.check(), "typed": typed.check()}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory, server_pool: ServerPool) -> Iterator[dict[str, Places]]:
    graphs = {name: Written(graph, {"direction": "both", "weight_attr": "weight"}) for name, graph in _graphs().items()}
    with settled(tmp_path_factory.mktemp("walks"), graphs, server_pool) as found:
        yield found


def _in_turn() -> Iterator[Any]:
    """Each mode in one topology, in rotation; slow runs add the others."""
    for (number, mode), (place, topology) in product(enumerate(MODES), enumerate(TOPOLOGIES)):
        marks = [] if place == number % len(TOPOLOGIES) else [pytest.mark.slow]
        yield pytest.param(mode, topology, marks=marks, id=f"{mode}-{topology}")


@pytest.mark.parametrize(("mode", "topology"), [*_in_turn()])
def test_walks_are_equal(places: dict[str, Places], mode: str, topology: str) -> None:
    name, options = MODES[mode]
    options = {**options, "walks_per_node": 3, "rng_seed": 6}
    with places[name].open(YARDSTICK) as store:
        wanted = random_walks(store, None, **options)
    assert (wanted[:, 1:] >= 0).sum() > len(wanted), "walks that all end at once compare nothing"
    for batch_size in (1 << 16, 97) if "local" in topology else (1 << 16,):
        with places[name].open(topology) as store:
            walks = random_walks(store, None, **options, batch_size=batch_size)
        assert np.array_equal(walks, wanted), f"batch_size = {batch_size}"
