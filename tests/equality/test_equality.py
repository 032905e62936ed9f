"""Are batches bit-equal, wherever the parts are, however many threads work, and after a resume?

One process over one part is the yardstick. Keys, edges, edge keys and every column of every type must be the same bytes
over 3 and 4 parts in one process, over servers, over a trainer that holds one part and asks for the rest, over any
number of threads, and after a resume in the middle of an epoch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopstream.arrays import RaggedArray
from hopstream.dataset.layout import open_dataset
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.load.batch import MiniBatch
from hopstream.load.loader import NeighborLoader
from hopstream.preparation.write import write_parts
from hopstream.store.contract import Store
from hopstream.store.local import LocalStore
from hopstream.store.remote import RemoteStore
from hopstream.store.routed import RoutedStore
from hopstream.store.settings import StoreSettings
from tests.conftest import make_typed_graph
from tests.processes import ServerPool

CITES, WRITES = ("paper", "cites", "paper"), ("author", "writes", "paper")
TOPOLOGIES = [
    "3 local parts",
    "4 local parts",
    "4 servers",
    "3 servers",
    "2 servers of 4 parts",
    "1 part here, 3 asked",
]
NUM_THREADS = [0, 1, 4]
ELSEWHERE = list(itertools.product(TOPOLOGIES, NUM_THREADS))


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
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Path]:
    """Every graph in 1, 3 and 4 parts; three parts are cut so that some hops touch only some of the owners."""
    root = tmp_path_factory.mktemp("equality")
    written = {}
    for name, case in CASES.items():
        for num_parts in (1, 3, 4):
            folder = root / f"{name}-{num_parts}"
            owners = {
                t: (np.arange(table.num_nodes) * num_parts // max(1, table.num_nodes)).astype(np.int32)
                for t, table in case.graph.nodes.items()
            }
            options = {"method": "file", "owners": owners} if num_parts == 3 else {"method": "random", "rng_seed": 5}
            write_parts(case.graph, folder, num_parts=num_parts, **options)
            written[name, num_parts] = folder
    return written


SERVED = {
    "4 servers": (4, [[0], [1], [2], [3]]),
    "3 servers": (3, [[0], [1], [2]]),
    "2 servers of 4 parts": (4, [[0, 2], [1, 3]]),
}


class Sources:
    """Opens a graph in a topology; servers are processes of their own and are asked for every part they hold."""

    def __init__(self, folders: dict[tuple[str, int], Path], pool: ServerPool, stack: ExitStack) -> None:
        self.folders = folders
        self.locations: dict[tuple[str, str], list[str]] = {}
        for topology, (num_parts, parts) in SERVED.items():
            served = stack.enter_context(pool.serve([folders[name, num_parts] for name in CASES], parts))
            for name, locations in zip(CASES, served, strict=True):
                self.locations[name, topology] = locations

    @contextmanager
    def open(self, name: str, topology: str) -> Iterator[Store]:
        """The store of one topology, closed with its threads at the end."""
        with ExitStack() as stack:
            if topology in SERVED:
                yield stack.enter_context(self._routed(self.locations[name, topology]))
            elif topology == "1 part here, 3 asked":
                here = LocalStore(open_dataset(self.folders[name, 4]), [0])
                yield stack.enter_context(self._routed(self.locations[name, "4 servers"][1:], here))
            else:
                dataset = open_dataset(self.folders[name, int(topology[0])])
                yield stack.enter_context(LocalStore(dataset))

    @staticmethod
    def _routed(locations: list[str], *here: Store) -> RoutedStore:
        settings = StoreSettings(prefer_local=False)
        return RoutedStore([*here, *(RemoteStore(location, settings) for location in locations)])


@pytest.fixture(scope="module")
def sources(folders: dict[tuple[str, int], Path], server_pool: ServerPool) -> Iterator[Sources]:
    """All servers, running."""
    with ExitStack() as stack:
        yield Sources(folders, server_pool, stack)


@pytest.fixture(scope="module")
def wanted(sources: Sources) -> dict[str, list[MiniBatch]]:
    """Two epochs of each graph from one part in this process and thread."""
    return {name: _two_epochs(sources, "1 local part", name, num_threads=0) for name in CASES}


def _in_turn() -> Iterator[Any]:
    """Each graph in each topology with one number of threads, which take turns; with the others in slow runs."""
    for (place, (topology, num_threads)), (shift, name) in itertools.product(enumerate(ELSEWHERE), enumerate(CASES)):
        turn = (place // len(NUM_THREADS) + shift) % len(NUM_THREADS)
        marks = [] if NUM_THREADS[turn] == num_threads else [pytest.mark.slow]
        yield pytest.param(name, topology, num_threads, marks=marks, id=f"{name}-{topology}-{num_threads}")


@pytest.mark.parametrize(("name", "topology", "num_threads"), [*_in_turn()])
def test_batches_are_bit_equal(
    sources: Sources, wanted: dict[str, list[MiniBatch]], name: str, topology: str, num_threads: int
) -> None:
    found = _two_epochs(sources, topology, name, num_threads=num_threads)
    assert len(found) == len(wanted[name]) > 8
    for ours, theirs in zip(found, wanted[name], strict=True):
        assert_equal(ours, theirs)


@pytest.mark.parametrize("topology", ["1 local part", "3 servers", "4 servers"])
@pytest.mark.parametrize("name", CASES)
def test_a_resumed_loader_goes_on_bit_equal(
    sources: Sources, wanted: dict[str, list[MiniBatch]], name: str, topology: str
) -> None:
    """Stopped after three batches with more under way, and resumed in a new loader, over one part and over servers."""
    with sources.open(name, "4 local parts") as store, _loader(store, name, num_threads=2) as first:
        begun = list(itertools.islice(first, 3))
        state = first.state_dict()
    with sources.open(name, topology) as store, _loader(store, name, num_threads=4) as second:
        second.load_state_dict(state)
        resumed = [*second, *second]
    assert len(begun) + len(resumed) == len(wanted[name])
    for ours, theirs in zip([*begun, *resumed], wanted[name], strict=True):
        assert_equal(ours, theirs)


@pytest.mark.parametrize("name", CASES)
def test_ranks_share_the_batches_of_one_process(
    sources: Sources, wanted: dict[str, list[MiniBatch]], name: str
) -> None:
    """Three ranks, each with its own loader, together give the batches that one process gives."""
    by_index: dict[int, MiniBatch] = {}
    for rank in range(3):
        options = {"rank": rank, "world_size": 3, "remainder": "uneven"}
        with sources.open(name, "4 servers") as store, _loader(store, name, num_threads=1, **options) as loader:
            by_index.update({batch.index: batch for batch in loader})
    num_batches = len(wanted[name]) // 2
    assert sorted(by_index) == list(range(num_batches))
    for index, theirs in enumerate(wanted[name][:num_batches]):
        assert_equal(by_index[index], theirs)


def test_batches_differ_between_epochs_and_seeds(sources: Sources) -> None:
    """The comparison of this file can fail."""
    batches = _two_epochs(sources, "1 local part", "homogeneous", num_threads=0)
    other = _two_epochs(sources, "1 local part", "homogeneous", num_threads=0, rng_seed=4)
    for ours, theirs in [(batches[0], batches[len(batches) // 2]), (batches[0], other[0])]:
        with pytest.raises(AssertionError):
            assert_equal(ours, theirs)


def _loader(store: Store, name: str, **options: object) -> NeighborLoader:
    return NeighborLoader(store, shuffle=True, collate="numpy", **{"rng_seed": 3, **CASES[name].options, **options})


def _two_epochs(sources: Sources, topology: str, name: str, **options: object) -> list[MiniBatch]:
    with sources.open(name, topology) as store, _loader(store, name, **options) as loader:
        return [*loader, *loader]


def assert_equal(ours: MiniBatch, theirs: MiniBatch) -> None:
    """Every array of two batches has the same dtype, shape and bytes."""
    assert (ours.seed_type, ours.num_sampled_nodes, ours.num_sampled_edges) == (
        theirs.seed_type,
        theirs.num_sampled_nodes,
        theirs.num_sampled_edges,
    )
    _assert_same("input_ids", ours.input_ids, theirs.input_ids)
    for field in ("node_keys", "edge_index", "edge_keys"):
        ours_by_type, theirs_by_type = getattr(ours, field), getattr(theirs, field)
        assert list(ours_by_type) == list(theirs_by_type)
        for owner in ours_by_type:
            _assert_same(f"{field}[{owner}]", ours_by_type[owner], theirs_by_type[owner])
    for field in ("node_features", "edge_features"):
        for owner, columns in getattr(ours, field).items():
            others = getattr(theirs, field)[owner]
            assert set(columns) == set(others)
            for name, column in columns.items():
                _assert_same(f"{owner}.{name}", column, others[name])


def _assert_same(where: str, ours: object, theirs: object) -> None:
    if isinstance(ours, RaggedArray):
        assert isinstance(theirs, RaggedArray)
        _assert_same(f"{where}.values", ours.values, theirs.values)
        _assert_same(f"{where}.offsets", ours.offsets, theirs.offsets)
        return
    assert isinstance(ours, np.ndarray)
    assert isinstance(theirs, np.ndarray)
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), where
    assert ours.tobytes() == theirs.tobytes(), where
