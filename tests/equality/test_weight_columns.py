"""Checks that weights of shape [E, 1] sample as those of shape [E], wherever the parts are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import hopstream
from hopstream.dataset.layout import open_dataset
from hopstream.errors import SchemaError
from hopstream.graph.graph import Graph
from hopstream.ingest.chunked.writing import write_chunked
from hopstream.load.loader import NeighborLoader
from hopstream.sample.walks import random_walks
from tests.equality.batches import Batches, compared_batches, in_places
from tests.processes import ServerPool
from tests.topologies import YARDSTICK, Places, Written, settled

WAYS = {
    "weighted": {},
    "replacing": {"replace": True},
    "top-k": {"sampling": "top_k"},
}
DERIVED = ("weight_sums.npy", "weight_order.npy", "weight_alias.npy")


def make_graph(shape: tuple[int, ...], dtype: str = "float32", num_edges: int = 900) -> Graph:
    rng = np.random.default_rng(11)
    ends = rng.integers(0, 90, (2, num_edges))
    weights = rng.integers(0, 9, num_edges).astype(dtype).reshape(num_edges, *shape)
    features = {"x": np.arange(90)}
    return hopstream.graph_from_arrays(ends, num_nodes=90, node_features=features, edge_features={"w": weights})


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory, server_pool: ServerPool) -> Iterator[dict[str, Places]]:
    shapes = {"flat": (), "column": (1,)}
    graphs = {
        name: Written(make_graph(shape), {"direction": "both", "weight_attr": "w"}) for name, shape in shapes.items()
    }
    with settled(tmp_path_factory.mktemp("weights"), graphs, server_pool) as found:
        yield found


@pytest.fixture(scope="module")
def wanted(places: dict[str, Places]) -> dict[str, Batches]:
    return {way: batches_of(places["flat"], way, YARDSTICK, 0) for way in WAYS}


def without_graph(batches: Batches) -> Batches:
    return [{name: value for name, value in batch.items() if not name.endswith(" w")} for batch in batches]


def batches_of(places: Places, way: str, topology: str, num_threads: int) -> Batches:
    with (
        places.open(topology) as store,
        NeighborLoader(
            store, [4, 3], batch_size=19, shuffle=True, collate="numpy", num_threads=num_threads, weight_attr="w",
            **WAYS[way],
        ) as loader,
    ):  # fmt: skip
        return without_graph(compared_batches(loader))


@pytest.mark.parametrize(("way", "topology", "num_threads"), [*in_places(list(WAYS))])
def test_batches_are_bit_equal(
    places: dict[str, Places], wanted: dict[str, Batches], way: str, topology: str, num_threads: int
) -> None:
    assert batches_of(places["column"], way, topology, num_threads) == wanted[way]


def test_batches_bring_the_column_in_its_shape(places: dict[str, Places]) -> None:
    graph = places["column"].written.graph
    with NeighborLoader(graph, [4], batch_size=90, weight_attr="w", collate="numpy") as loader:
        batch = next(iter(loader))
    (edge_type,) = batch.edge_keys
    weights = graph.edges[edge_type].features["w"]
    assert np.array_equal(batch.edge_features[edge_type]["w"], weights[batch.edge_keys[edge_type]])
    assert batch.edge_features[edge_type]["w"].shape[1:] == (1,)


def test_walks_with_memory(places: dict[str, Places]) -> None:
    found = [
        random_walks(places[name].folders[1], np.arange(90), walk_length=5, p=0.3, q=2.0, weight_attr="w")
        for name in ("flat", "column")
    ]
    assert np.array_equal(*found)


@pytest.mark.parametrize("dtype", ["float64", "uint8"])
def test_all_writers_write_the_same_derived_files(tmp_path: Path, dtype: str) -> None:
    options = {"weight_attr": "w", "direction": "both"}
    flat, column = make_graph((), dtype), make_graph((1,), dtype)
    hopstream.write_parts(flat, tmp_path / "flat", num_parts=2, method="hash", **options)
    hopstream.write_parts(column, tmp_path / "at once", num_parts=2, method="hash", **options)
    write_chunked(column, tmp_path / "chunks")
    hopstream.prepare(tmp_path / "chunks", tmp_path / "dispatched", num_parts=2, method="hash", **options)
    for name in ("at once", "dispatched"):
        found = sorted(path.relative_to(tmp_path / name) for path in (tmp_path / name).rglob("weight_*.npy"))
        assert {path.name for path in found} == set(DERIVED)
        for path in found:
            assert (tmp_path / name / path).read_bytes() == (tmp_path / "flat" / path).read_bytes()
        assert open_dataset(tmp_path / name, verify=True)
        hopstream.dataset.add_halo(tmp_path / name)
        assert hopstream.dataset.verify_dataset(tmp_path / name).is_ok


def test_appends_and_their_refusals(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    ends, more = rng.integers(0, 90, (2, 50)), rng.integers(1, 9, 50).astype(np.float32)
    found = []
    for name, shape in (("flat", (50,)), ("column", (50, 1))):
        hopstream.write_parts(make_graph(shape[1:]), tmp_path / name, num_parts=2, method="hash", weight_attr="w")
        hopstream.append(tmp_path / name, edges=(*ends, {"w": more.reshape(shape)}))
        assert hopstream.dataset.verify_dataset(tmp_path / name).is_ok
        with NeighborLoader(tmp_path / name, [3], batch_size=30, weight_attr="w", collate="numpy") as loader:
            found.append(without_graph(compared_batches(loader)))
    assert found[0] == found[1]
    with pytest.raises(SchemaError, match=r"w\[7\] is -1"):
        hopstream.append(tmp_path / "column", edges=(*ends, {"w": np.where(np.arange(50) == 7, -1, more)[:, None]}))


def test_weights_of_two_columns_are_refused(tmp_path: Path) -> None:
    weights = {"w": np.ones((4, 2), np.float32)}
    graph = hopstream.graph_from_arrays(np.zeros((2, 4), int), num_nodes=1, edge_features=weights)
    with pytest.raises(SchemaError, match=r"w is float32\[rows, 2\]; weights are one integer or float"):
        hopstream.write_parts(graph, tmp_path / "g", num_parts=1, weight_attr="w")
