"""Checks that batches through a cache of rows equal a folder's: resumes, killed servers, appends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopstream.arrays import RaggedArray, offsets_of
from hopstream.dataset.layout import open_dataset
from hopstream.errors import StoreError
from hopstream.load.links import LinkNeighborLoader
from hopstream.load.loader import NeighborLoader
from hopstream.preparation.append.run import append
from hopstream.preparation.write import write_parts
from hopstream.store.local import LocalStore
from hopstream.store.remote import RemoteStore
from hopstream.store.routed import RoutedStore
from hopstream.store.server import StoreServer
from hopstream.store.settings import StoreSettings
from tests.equality import test_equality
from tests.grown import grow
from tests.load.graphs import flat
from tests.ports import free_port
from tests.stream.serving import remote_graph, serve_here


def _ragged() -> test_equality.Case:
    """Graph with texts, lists and numbers on nodes and lists of pairs on edges.

    Some lists are empty, and some are longer than a small cache.
    """
    rng, case = np.random.default_rng(12), next(iter(test_equality.CASES.values()))

    def lists(num_rows: int, dtype: str, *shape: int, is_string: bool = False) -> RaggedArray:
        lengths = np.where(rng.random(num_rows) < 0.2, 0, rng.exponential(20, num_rows).astype(np.int64))
        lengths[rng.random(num_rows) < 0.02] = 4000
        values = rng.integers(32, 127, (lengths.sum(), *shape)).astype(dtype)
        return RaggedArray(values, offsets_of(lengths), is_string)

    ((node_type, nodes),), ((edge_type, edges),) = case.graph.nodes.items(), case.graph.edges.items()
    of_nodes = {
        "text": lists(nodes.num_nodes, "uint8", is_string=True), "y": nodes.features["y"],
        "list": lists(nodes.num_nodes, "float32"), "none": RaggedArray.from_strings([""] * nodes.num_nodes),
        "signal": lists(nodes.num_nodes, "complex128"),
    }  # fmt: skip
    of_edges = {**edges.features, "pairs": lists(edges.num_edges, "float16", 2)}
    graph = replace(
        case.graph, nodes={node_type: replace(nodes, features=of_nodes)},
        edges={edge_type: replace(edges, features=of_edges)},
    )  # fmt: skip
    return test_equality.Case(graph.check(), case.options)


CASES = {**test_equality.CASES, "ragged": _ragged()}
SIZES = [0, 300, 3000, 20_000, 1 << 24]
"""Bytes of the cache: of nothing, of a row or two, of a few rows, of some, of all."""
LOADERS: dict[str, Callable[..., Any]] = {"nodes": NeighborLoader, "links": LinkNeighborLoader}
SERVE = """
import sys
from hopstream.dataset.layout import open_dataset
from hopstream.store.local import LocalStore
from hopstream.store.server import StoreServer

folder, location, *parts = sys.argv[1:]
server = StoreServer(LocalStore(open_dataset(folder), [int(part) for part in parts]), location)
print("ready", flush=True)
sys.stdin.read()
server.close()
"""


def start(folder: Path, location: str, *parts: int) -> subprocess.Popen[str]:
    """A process that serves some parts; it is killed, or ends with its stdin."""
    words = [sys.executable, "-c", SERVE, str(folder), location, *map(str, parts)]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.communicate(timeout=30)


@pytest.fixture(scope="module", params=CASES)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path, str]]:
    """A case, its folder of four parts, and the server of three of them."""
    name = request.param
    folder = tmp_path_factory.mktemp("cached") / "parts"
    write_parts(CASES[name].graph, folder, num_parts=4, method="hash")
    location = f"tcp://127.0.0.1:{free_port()}"
    process = start(folder, location, 1, 2, 3)
    yield name, folder, location
    end(process)


def opened(folder: Path, location: str, cache_bytes: int) -> RoutedStore:
    """One part here, three asked."""
    settings = StoreSettings(prefer_local=False, cache_bytes=cache_bytes)
    return RoutedStore([LocalStore(open_dataset(folder), [0]), RemoteStore(location, settings)], settings)


def options_of(name: str, **options: Any) -> dict[str, Any]:
    return {**CASES[name].options, "shuffle": True, "collate": "numpy", "rng_seed": 3, **options}


@pytest.mark.parametrize("cache_bytes", SIZES)
@pytest.mark.parametrize("num_threads", [1, 4])
def test_epochs_and_a_resume(served: tuple[str, Path, str], cache_bytes: int, num_threads: int) -> None:
    name, folder, location = served
    with NeighborLoader(folder, num_threads=0, **options_of(name)) as near:
        wanted = [flat(batch) for _ in range(3) for batch in near]
    with opened(folder, location, cache_bytes) as store:
        with NeighborLoader(store, num_threads=num_threads, **options_of(name)) as loader:
            found = [flat(batch) for batch in loader]
            num_taken = len(loader) // 2
            batches = iter(loader)
            found += [flat(next(batches)) for _ in range(num_taken)]
            state = loader.state_dict()
        with NeighborLoader(store, num_threads=num_threads, look_ahead=5, **options_of(name)) as loader:
            loader.load_state_dict(state)
            found += [flat(batch) for _ in range(2) for batch in loader]
        counts = store.traffic()["fetch"]
        assert counts.cache_ids == 0 if cache_bytes == 0 else counts.cache_ids > 0 or cache_bytes < 20_000
        if store.cache is not None:
            held = store.cache.counts()
            assert held.num_bytes <= held.max_bytes == cache_bytes
    assert found == wanted


@pytest.mark.parametrize("cache_bytes", SIZES)
def test_trainers_of_servers_that_sample(served: tuple[str, Path, str], cache_bytes: int) -> None:
    name, folder, _ = served
    with NeighborLoader(folder, num_threads=0, **options_of(name)) as near:
        wanted = [flat(batch) for _ in range(2) for batch in near]
    with serve_here(folder) as sampling:
        graph = remote_graph(sampling.locations, cache_bytes=cache_bytes)
        with NeighborLoader(graph, num_threads=2, **options_of(name)) as loader:
            assert [flat(batch) for _ in range(2) for batch in loader] == wanted
            counts = loader.store.traffic()["fetch"]
            assert counts.cache_ids > 0 or cache_bytes < 20_000
            if counts.cache_ids:
                assert counts.cache_bytes > 32 * counts.cache_ids
            assert cache_bytes != 1 << 24 or (counts.cache_share > 0.3 and counts.cache_evictions == 0)


def test_two_loaders_share_a_cache(served: tuple[str, Path, str]) -> None:
    name, folder, location = served
    with NeighborLoader(folder, num_threads=0, **options_of(name)) as near:
        wanted = [flat(batch) for batch in near]
    with (
        opened(folder, location, 20_000) as one, opened(folder, location, 5) as other,
        NeighborLoader(one, num_threads=1, look_ahead=48, **options_of(name)) as first,
        NeighborLoader(other, num_threads=1, look_ahead=48, **options_of(name)) as second,
    ):  # fmt: skip
        assert one.cache is other.cache
        pairs = [(flat(mine), flat(yours)) for mine, yours in zip(first, second, strict=True)]
    assert pairs == list(zip(wanted, wanted, strict=True))


@pytest.mark.parametrize("cache_bytes", [0, 3000, 1 << 24])
def test_a_server_that_is_killed_and_started_again(tmp_path: Path, cache_bytes: int) -> None:
    name = "ragged"
    folder = tmp_path / "parts"
    write_parts(CASES[name].graph, folder, num_parts=4, method="hash")
    options = options_of(name, batch_size=4, num_threads=2)
    with NeighborLoader(folder, **options) as near:
        wanted = [flat(batch) for _ in range(2) for batch in near]
    location = f"tcp://127.0.0.1:{free_port()}"
    process = start(folder, location, 1, 2, 3)
    found: list[Any] = []
    with opened(folder, location, cache_bytes) as store, NeighborLoader(store, **options) as loader:
        batches = iter(loader)
        found += [flat(next(batches)) for _ in range(3)]
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=30)
        try:
            for batch in batches:  # batches that were made, or need no server
                found.append(flat(batch))
        except StoreError:
            process = start(folder, location, 1, 2, 3)
            found += [flat(batch) for batch in loader]
        else:
            process = start(folder, location, 1, 2, 3)
        found += [flat(batch) for batch in loader]
    end(process)
    assert found == wanted


def test_two_datasets_of_one_graph_share_no_cache(tmp_path: Path) -> None:
    """The two number their nodes differently, so rows of one would be wrong for the other."""
    name = "ragged"
    graph = CASES[name].graph
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder, seed in zip(folders, (1, 2), strict=True):
        write_parts(graph, folder, num_parts=4, method="random", rng_seed=seed)
    location = [f"tcp://127.0.0.1:{free_port()}" for _ in folders]
    processes = [start(folder, at, 1, 2, 3) for folder, at in zip(folders, location, strict=True)]
    found = []
    with opened(folders[0], location[0], 1 << 24) as one, opened(folders[1], location[1], 1 << 24) as other:
        assert one.cache is not other.cache
        for store in (one, other, one):
            with NeighborLoader(store, **options_of(name)) as loader:
                found.append([flat(batch) for batch in loader])
    for process in processes:
        end(process)
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("name", CASES)
def test_a_dataset_that_is_appended_to_while_a_loader_has_it_open(tmp_path: Path, name: str) -> None:
    """Interleave batches before an append, after it, and of a copy with other rows under the same ids."""
    grown = grow(CASES[name].graph, np.random.default_rng(9))
    folder, twin, step = tmp_path / "parts", tmp_path / "twin", grown.num_steps - 1
    write_parts(grown.until(step - 1), folder, num_parts=4, method="hash")
    shutil.copytree(folder, twin)
    options = options_of(name, num_threads=1)
    with ExitStack() as stack:

        def two_epochs(source: Path | RoutedStore) -> Iterator[dict[str, object]]:
            loader = stack.enter_context(NeighborLoader(source, **options))
            return (flat(batch) for _ in range(2) for batch in loader)

        def cached(folder: Path, *parts: int) -> RoutedStore:
            served = stack.enter_context(LocalStore(open_dataset(folder), parts))
            server = stack.enter_context(StoreServer(served))
            return stack.enter_context(opened(folder, server.location, 1 << 24))

        wanted = [list(two_epochs(folder))]
        stores = [cached(folder, 1, 2, 3)]
        batches = [two_epochs(stores[0])]
        found = [list(islice(batches[0], len(wanted[0]) // 4))]
        added = grown.added(step)
        append(folder, **added)
        append(twin, **{**added, "nodes": {t: negated(columns) for t, columns in added["nodes"].items()}})
        for appended in (folder, twin):
            wanted.append(list(two_epochs(appended)))
            stores.append(cached(appended, 1, 2, 3, 4))
            batches.append(two_epochs(stores[-1]))
            found.append([])
        for batch_of_each in zip_longest(*batches):
            for of_one, batch in zip(found, batch_of_each, strict=True):
                of_one += [] if batch is None else [batch]
        assert all(store.traffic()["fetch"].cache_ids > 0 for store in stores)
        assert len({id(store.cache) for store in stores}) == 3
    assert found == wanted
    assert wanted[1] != wanted[2]


def negated(columns: Any) -> Any:
    """New rows with other numbers."""
    if not isinstance(columns, dict):
        return columns  # their number alone matters
    return {name: _negated(column) for name, column in columns.items()}


def _negated(column: Any) -> Any:
    if isinstance(column, RaggedArray):
        return replace(column, values=_negated(column.values))
    return -column if column.dtype.kind == "f" else column
