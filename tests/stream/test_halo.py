"""Checks that sampling servers use the halo of their part, make the same batches, and report it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import hopstream
from hopstream.dataset.layout import open_dataset
from hopstream.load.loader import NeighborLoader
from hopstream.store.cluster import ServerEntry, open_cluster, parse_locations
from hopstream.store.local import LocalStore
from hopstream.store.server import StoreServer
from hopstream.stream.metrics import MetricsServer
from hopstream.stream.service import SamplingService
from hopstream.stream.settings import SamplingLimits
from tests.load.graphs import flat
from tests.stream.serving import SETTINGS, remote_graph, write_timed_parts
from tests.stream.test_metrics import Numbers


def test_servers_that_sample(tmp_path: Path):
    folders = write_timed_parts(tmp_path, [1, 2])
    dataset = open_dataset(folders[2])
    options = {"seeds": ("paper", "train"), "batch_size": 13, "collate": "numpy", "num_threads": 1}
    with NeighborLoader(folders[1], [3, 2], **options) as loader:
        wanted = [flat(batch) for batch in loader]
    hopstream.dataset.add_halo(dataset, hops=1, features="all")
    services: list[SamplingService] = []
    servers: list[StoreServer] = []

    def opener(part: int):
        def open_graph():
            locations = ",".join(server.location for server in servers)
            own = ServerEntry(location=servers[part].location, parts=(part,), path=folders[2])
            return open_cluster(parse_locations(locations), SETTINGS, own=own)

        return open_graph

    with ExitStack() as stack:
        for part in range(2):
            services.append(SamplingService(opener(part), SamplingLimits(threads=1)))
            store = stack.enter_context(LocalStore(dataset, [part]))
            servers.append(StoreServer(store, operations=services[part].operations))
            stack.callback(servers[part].close)
            stack.callback(services[part].close)
        watched = stack.enter_context(MetricsServer("127.0.0.1", 0, servers[0], services[0]))
        assert services[0].report()["traffic"] == {}
        with NeighborLoader(
            remote_graph(",".join(s.location for s in servers), cache_bytes=0), [3, 2], **options
        ) as loader:
            assert [flat(batch) for batch in loader] == wanted
        numbers = Numbers(watched.location)
        for kind in ("sample", "fetch"):
            hits = numbers.of("hopstream_cache_hits_total", cache=f"halo_{kind}")
            assert hits == numbers.of("hopstream_halo_ids_total", kind=kind) > 0
            misses = numbers.of("hopstream_cache_misses_total", cache=f"halo_{kind}")
            assert misses == numbers.of("hopstream_remote_ids_total", kind=kind)
        assert numbers.of("hopstream_halo_bytes_total", kind="fetch") > 0
        assert numbers.of("hopstream_remote_requests_total", kind="sample") == 0
