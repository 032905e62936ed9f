"""Checks that worker processes, servers, a Ray cluster of two nodes and Beam write the same bytes."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from hopstream.dataset.layout import open_dataset
from hopstream.engine.on_ray import ray_engine
from hopstream.export.run import export_subgraphs
from hopstream.store.local import LocalStore
from hopstream.store.server import StoreServer
from tests.export.worlds import digests, some_seeds, write_world


def check_same(world: Path, source: object, **options) -> None:
    seeds = some_seeds(300)
    for name, of, how in (("wanted", world / "parts", {"num_workers": 0}), ("got", source, options)):
        export_subgraphs(of, world / "spec.pbtxt", world / name / "x@6", seeds=seeds, rng_seed=2, seed_ids=True, **how)
    assert digests(world / "got") == digests(world / "wanted")


def test_worker_processes_with_threads(tmp_path: Path):
    check_same(write_world(tmp_path), tmp_path / "parts", num_workers=2, num_threads=2)


def test_an_export_over_servers_is_the_same(tmp_path: Path):
    """Two servers of a part or two each; blocks are made ahead by threads."""
    world = write_world(tmp_path)
    dataset = open_dataset(world / "parts")
    with ExitStack() as stack:
        stores = [stack.enter_context(LocalStore(dataset, parts)) for parts in ([0, 2], [1])]
        servers = [stack.enter_context(StoreServer(store, "tcp://127.0.0.1:0")) for store in stores]
        check_same(world, ",".join(server.location for server in servers), num_workers=0, num_threads=2)


@pytest.mark.slow
def test_an_export_on_beam_is_the_same(tmp_path: Path):
    world = write_world(tmp_path)
    options = ("--direct_num_workers=2", "--direct_running_mode=multi_threading")
    check_same(world, world / "parts", engine="beam", beam_options=options)


@pytest.mark.slow
def test_two_nodes_of_ray(ray_cluster, tmp_path: Path):
    import ray

    world = write_world(tmp_path)
    with ray_engine(ray_cluster.address):
        assert len([node for node in ray.nodes() if node["Alive"]]) == 2
        check_same(world, world / "parts", engine="ray", num_workers=4)
