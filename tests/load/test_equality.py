"""Are batches bit-equal from one part, from four parts, and from four servers?"""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import pytest

from hopstream.dataset.layout import open_dataset
from hopstream.errors import StoreError
from hopstream.load.loader import NeighborLoader
from hopstream.store.local import LocalStore
from hopstream.store.server import StoreServer
from hopstream.store.settings import StoreSettings
from tests.conftest import make_typed_graph
from tests.load.graphs import flat, local_store, make_plain_graph

FAR = StoreSettings(prefer_local=False, timeout_s=20.0)


def serve(stack: ExitStack, folder, num_parts: int) -> list[StoreServer]:
    """One server per part, in this process."""
    servers = []
    for part in range(num_parts):
        store = stack.enter_context(LocalStore(open_dataset(folder), [part]))
        servers.append(stack.enter_context(StoreServer(store, "grpc://127.0.0.1:0")))
    return servers


@pytest.fixture(scope="module", params=["plain", "typed"])
def sources(request, tmp_path_factory):
    """One graph as one part, as four parts, and as the addresses of four servers."""
    rng = np.random.default_rng(7)
    graph = make_plain_graph(rng) if request.param == "plain" else make_typed_graph(rng)
    folder = tmp_path_factory.mktemp(request.param)
    one, four = local_store(graph, folder / "1", 1), local_store(graph, folder / "4", 4)
    with ExitStack() as stack:
        servers = serve(stack, folder / "4", 4)
        yield one, four, ",".join(server.location for server in servers)
    one.close()
    four.close()


def epochs_of(source, **settings):
    settings = {"num_threads": 2, "shuffle": True, "store_settings": FAR, **settings}
    seeds = settings.pop("seeds", "node")
    with NeighborLoader(source, {"default": [4, 3]}, seeds, 9, collate="numpy", **settings) as loader:
        return [[flat(batch) for batch in loader] for _ in range(2)]


def first_type(store) -> str:
    return next(iter(store.schema.nodes))


@pytest.mark.parametrize("settings", [{}, {"replace": True}, {"edge_keys": False}, {"num_threads": 0}])
def test_batches_are_bit_equal_from_parts_and_from_servers(sources, settings):
    one, four, addresses = sources
    seeds = (first_type(one), "train")
    wanted = epochs_of(one, seeds=seeds, **settings)
    assert epochs_of(four, seeds=seeds, **settings) == wanted
    assert epochs_of(addresses, seeds=seeds, **settings) == wanted


def test_a_state_saved_near_is_gone_on_from_far(sources):
    _, four, addresses = sources
    settings = {"collate": "numpy", "shuffle": True, "store_settings": FAR}
    near = NeighborLoader(four, {"default": [4, 3]}, (first_type(four), None), 9, **settings)
    whole = [flat(batch) for batch in near]
    near.set_epoch(0)
    iterator = iter(near)
    next(iterator)
    state = near.state_dict()
    near.close()
    with NeighborLoader(addresses, {"default": [4, 3]}, (first_type(four), None), 9, **settings) as far:
        far.load_state_dict(state)
        assert [flat(batch) for batch in far] == whole[1:]


@pytest.mark.parametrize("num_threads", [0, 1, 4])
def test_an_epoch_with_a_failure_is_the_same_from_parts_and_from_servers(sources, num_threads):
    one, four, addresses = sources
    seeds = (first_type(one), None)
    wanted = epochs_of(one, seeds=seeds)[0]
    for source in (one, four, addresses):
        failures = [ArithmeticError("no luck")]

        def transform(batch, failures=failures):
            if batch.index == 3 and failures:
                raise failures.pop()
            return batch

        options = {"shuffle": True, "store_settings": FAR, "num_threads": num_threads, "transform": transform}
        with NeighborLoader(source, {"default": [4, 3]}, seeds, 9, collate="numpy", **options) as loader:
            seen = []
            with pytest.raises(ArithmeticError, match="no luck"):
                seen.extend(flat(batch) for batch in loader)
            assert seen == wanted[:3]
            assert [flat(batch) for batch in loader] == wanted[3:]


@pytest.mark.parametrize("num_threads", [0, 2])
def test_a_server_that_goes_away_is_an_error_at_the_consumer(tmp_path, num_threads):
    local_store(make_plain_graph(np.random.default_rng(8)), tmp_path / "parts", 2).close()
    settings = StoreSettings(prefer_local=False, timeout_s=5.0)
    with ExitStack() as stack:
        servers = serve(stack, tmp_path / "parts", 2)
        addresses = ",".join(server.location for server in servers)
        options = {"collate": "numpy", "num_threads": num_threads, "prefetch": 0, "store_settings": settings}
        loader = stack.enter_context(NeighborLoader(addresses, [4, 3], None, 2, **options))
        iterator = iter(loader)
        next(iterator)
        servers[1].close(grace_s=0.0)
        with pytest.raises(StoreError) as raised:
            list(iterator)
        assert any("while batch" in note for note in raised.value.__notes__)
