"""Checks that a loader goes on if the network cuts its connections in the middle of an answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from hopstream.transport.location import Location
from tests.load.graphs import flat
from tests.ports import free_ports
from tests.stream.proxy import Proxy
from tests.stream.serving import Served, node_loader, remote_graph, serve_here

REFUSE_S = 0.3


@contextmanager
def behind_proxies(served: Served, cut_after: int, num_proxies: int) -> Iterator[tuple[list[Proxy], str]]:
    """Put proxies before the first servers; return the proxies and the locations for the loader."""
    locations = served.locations.split(",")
    with ExitStack() as stack:
        proxies = []
        for number, port in enumerate(free_ports(num_proxies)):
            address = Location.parse(locations[number])
            proxies.append(Proxy(port, (address.host, address.port), cut_after=cut_after, refuse_s=REFUSE_S))
            stack.callback(proxies[-1].close)
            locations[number] = proxies[-1].location
        yield proxies, ",".join(locations)


@pytest.mark.slow
@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("num_proxies", [1, 2])
def test_repeatedly_cut_connections_lose_no_batch(
    timed_parts: dict[int, Path], num_proxies: int, num_threads: int
) -> None:
    """All servers are behind proxies, so there is no other server while one refuses."""
    with node_loader(timed_parts[1], batch_size=4) as local:
        wanted = [flat(batch) for batch in local]
    with serve_here(timed_parts[2]) as served, behind_proxies(served, 15_000, num_proxies) as (proxies, locations):
        with node_loader(remote_graph(locations), batch_size=4, num_threads=num_threads) as loader:
            assert [flat(batch) for batch in loader] == wanted
            assert [flat(batch) for batch in loader] != wanted  # the next epoch, in another order
            assert all(proxy.num_cuts >= num_proxies for proxy in proxies)  # a failed server is asked last
        assert served.num_channels == 0
