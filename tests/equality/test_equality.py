"""Checks that batches are bit-equal over any parts and threads, and after a resume.

One process over one part is the yardstick. Keys, edges, edge keys and every column of every type must be the same bytes
over 3 and 4 parts in one process, over servers, over a trainer that holds one part and asks for the rest, over any
number of threads, and after a resume in the middle of an epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import pytest

from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.load.loader import NeighborLoader
from hopstream.store.contract import Store
from tests.conftest import make_typed_graph
from tests.equality.batches import PLACES, Batches
from tests.load.graphs import flat
from tests.processes import ServerPool
from tests.topologies import YARDSTICK, Places, Written, settled

CITES, WRITES = ("paper", "cites", "paper"), ("author", "writes", "paper")


@dataclass(frozen=True)
class Case:
    """A graph and how it is sampled."""

    graph: Graph
    options: dict


def _homogeneous() -> Case:
    rng = np.random.default_rng(7)
    num_nodes, num_edges = 400, 3000
    graph = Graph(
        nodes={
            "node": NodeTable(
                num_nodes=num_nodes,
                features={
                    "x": rng.standard_normal((num_nodes, 25)).astype(np.float32),
                    "y": rng.integers(0, 5, num_nodes),
                },
            )
        },
        edges={
            ("node", "to", "node"): EdgeTable(
                src_keys=rng.integers(0, num_nodes, num_edges),
                dst_keys=(rng.random(num_edges) ** 3 * num_nodes).astype(np.int64),
                features={"edge_attr": rng.standard_normal((num_edges, 3)).astype(np.float64)},
            )
        },
        splits={"node": {"train": np.arange(0, num_nodes, 2)}},
    ).check()
    return Case(graph, {"num_neighbors": [6, 4, 3], "seeds": "train", "batch_size": 23})


def _heterogeneous() -> Case:
    graph = make_typed_graph(np.random.default_rng(8), num_papers=300, num_authors=90)
    num_neighbors = {CITES: [4, 3], WRITES: [-1, 2], "default": [1, 1]}
    return Case(graph, {"num_neighbors": num_neighbors, "seeds": ("paper", "train"), "batch_size": 17})


CASES = {"homogeneous": _homogeneous(), "heterogeneous": _heterogeneous()}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory, server_pool: ServerPool) -> Iterator[dict[str, Places]]:
    graphs = {name: Written(case.graph) for name, case in CASES.items()}
    with settled(tmp_path_factory.mktemp("equality"), graphs, server_pool) as found:
        yield found


@pytest.fixture(scope="module")
def wanted(places: dict[str, Places]) -> dict[str, Batches]:
    """Two epochs of each graph from one part in this process and thread."""
    return {name: _two_epochs(places, YARDSTICK, name, num_threads=0) for name in CASES}


@pytest.mark.parametrize(("topology", "num_threads"), PLACES)
@pytest.mark.parametrize("name", CASES)
def test_batches_are_bit_equal(
    places: dict[str, Places], wanted: dict[str, Batches], name: str, topology: str, num_threads: int
) -> None:
    assert len(wanted[name]) > 8
    assert _two_epochs(places, topology, name, num_threads=num_threads) == wanted[name]


@pytest.mark.parametrize("topology", [YARDSTICK, "4 servers"])
@pytest.mark.parametrize("name", CASES)
def test_a_resumed_loader_is_bit_equal(
    places: dict[str, Places], wanted: dict[str, Batches], name: str, topology: str
) -> None:
    """Stop after three batches while others are sampled, and resume in a new loader, also over servers."""
    with places[name].open("4 local parts") as store, _loader(store, name, num_threads=2) as first:
        begun = [flat(batch) for batch in islice(first, 3)]
        state = first.state_dict()
    with places[name].open(topology) as store, _loader(store, name, num_threads=4) as second:
        second.load_state_dict(state)
        assert begun + [flat(batch) for _ in range(2) for batch in second] == wanted[name]


@pytest.mark.parametrize("name", CASES)
def test_ranks_share_the_batches_of_one_process(
    places: dict[str, Places], wanted: dict[str, Batches], name: str
) -> None:
    """Three ranks, each with its own loader, together give the batches that one process gives."""
    by_index = {}
    for rank in range(3):
        options = {"rank": rank, "world_size": 3, "remainder": "uneven"}
        with places[name].open("4 servers") as store, _loader(store, name, num_threads=1, **options) as loader:
            by_index.update({batch.index: flat(batch) for batch in loader})
    assert [by_index[index] for index in range(len(by_index))] == wanted[name][: len(wanted[name]) // 2]


def test_batches_differ_between_epochs_and_seeds(places: dict[str, Places], wanted: dict[str, Batches]) -> None:
    """Check that this file's comparison can fail."""
    batches = wanted["homogeneous"]
    other = _two_epochs(places, YARDSTICK, "homogeneous", num_threads=0, rng_seed=4)
    assert batches[0] != other[0]
    assert {**batches[0], "epoch": 1} != batches[len(batches) // 2]


def _loader(store: Store, name: str, **options: object) -> NeighborLoader:
    return NeighborLoader(store, shuffle=True, collate="numpy", **{"rng_seed": 3, **CASES[name].options, **options})


def _two_epochs(places: dict[str, Places], topology: str, name: str, **options: object) -> Batches:
    with places[name].open(topology) as store, _loader(store, name, **options) as loader:
        return [flat(batch) for _ in range(2) for batch in loader]
