"""Do a Ray cluster of two nodes and Beam write the same bytes?"""

from __future__ import annotations

import pytest

from hopstream.engine.on_ray import ray_engine
from hopstream.ingest.chunked import write_chunked
from hopstream.ingest.synthetic import rmat_graph
from hopstream.preparation.dispatch.dispatch_job import dispatch
from hopstream.preparation.write import write_parts
from tests.preparation.dispatch.sources import check_same, write_owners
from tests.preparation.dispatch.test_files import small_graph


def check_engine(folder, graph, rng, **options):
    owners = write_owners(folder / "owners", graph, 5, rng)
    write_chunked(graph, folder / "in", num_chunks=8, edges_format="parquet")
    got = dispatch(folder / "in", owners, folder / "got", num_parts=5, direction="both", **options)
    wanted = write_parts(graph, folder / "wanted", num_parts=5, owners=owners, direction="both")
    check_same(folder / "got", folder / "wanted", got, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("is_typed", [True, False])
def test_beam(tmp_path, rng, is_typed):
    graph = small_graph(rng) if is_typed else rmat_graph(12, edges_per_node=30, num_features=5)
    check_engine(tmp_path, graph, rng, engine="beam")


@pytest.mark.slow
@pytest.mark.parametrize("is_typed", [True, False])
def test_two_nodes_of_ray(ray_cluster, tmp_path, rng, is_typed):
    import ray

    graph = small_graph(rng) if is_typed else rmat_graph(12, edges_per_node=30, num_features=5)
    with ray_engine(ray_cluster.address):
        assert len([node for node in ray.nodes() if node["Alive"]]) == 2
        check_engine(tmp_path, graph, rng, engine="ray", num_workers=4)
