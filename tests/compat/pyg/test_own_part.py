"""Checks that edge ids are read correctly, whether they count edges of one type or of all types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.distributed import LocalGraphStore as PygGraphStore

from hopstream.compat.pyg import DistNeighborLoader, LocalFeatureStore, LocalGraphStore, write_partitions
from hopstream.compat.pyg.own_part import read_own_part
from hopstream.errors import SchemaError, SettingsError, VersionMismatch
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from tests.compat.pyg.ranks import all_well, context, on_ranks, partition
from tests.compat.pyg.test_dist_loaders import plain_graph
from tests.ports import free_port

FEW, MANY = ("a", "few", "a"), ("a", "many", "b")
OWNERS = {"a": (np.arange(10) // 5).astype(np.int32), "b": (np.arange(100) // 50).astype(np.int32)}
"""Cut in the middle, so that a part's edges in a sorted graph are one range.

Other edges of the type overlap it.
"""


@pytest.fixture(scope="module")
def graph() -> Graph:
    rng = np.random.default_rng(3)
    return Graph(
        nodes={"a": NodeTable(num_nodes=10), "b": NodeTable(num_nodes=100)},
        edges={
            FEW: EdgeTable(src_keys=rng.integers(0, 10, 10), dst_keys=np.arange(10)),
            MANY: EdgeTable(
                src_keys=rng.integers(0, 10, 1000), dst_keys=np.arange(1000) // 10,
                features={"edge_attr": np.arange(1000.0)[:, None]},
            ),
        },
    ).check()  # fmt: skip


@pytest.fixture(scope="module")
def folder(graph: Graph, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("own-part") / "parts"
    write_partitions(graph, root, owners=OWNERS, method="file", num_parts=2)
    return root


def change_ids(store: Any, edge_type: Any, change: Any) -> None:
    (attr,) = [attr for attr in store.get_all_edge_attrs() if attr.edge_type == edge_type]
    store.put_edge_id(change(store.get_edge_id(attr)), **attr.__dict__)


@pytest.mark.parametrize("graph_store", [LocalGraphStore, PygGraphStore], ids=["ours", "pyg"])
@pytest.mark.parametrize("part", [0, 1])
def test_ids_of_either_numbering_are_keys(folder: Path, graph_store: Any, part: int) -> None:
    features = LocalFeatureStore.from_partition(folder, part)
    own = read_own_part((features, graph_store.from_partition(str(folder), part)))
    for edge_type, size in ((FEW, 10), (MANY, 1000)):
        keys = own.edges[edge_type].edge_keys
        assert keys is not None
        assert np.sort(keys).tolist() == list(range(size // 2 * part, size // 2 * (part + 1)))
    assert own.edges[MANY].features["edge_attr"][:, 0].tolist() == own.edges[MANY].edge_keys.tolist()


def test_batches_of_pygs_own_stores_name_each_edge_by_its_key(graph: Graph, folder: Path) -> None:
    port = free_port()

    def work(rank: int) -> Any:
        data = LocalFeatureStore.from_partition(folder, rank), PygGraphStore.from_partition(str(folder), rank)
        loader = DistNeighborLoader(
            data, [-1], "127.0.0.1", port, context(rank, 2), input_nodes=("b", torch.arange(100)), batch_size=100,
            rpc_timeout=20,
        )  # fmt: skip
        (batch,) = loader
        loader.close()
        return batch[MANY].e_id.sort().values.tolist()

    assert all_well(on_ranks(2, work)) == [list(range(1000))] * 2


def test_ambiguous_and_unknown_ids_are_refused(folder: Path) -> None:
    features = LocalFeatureStore.from_partition(folder, 0)
    both, neither = (LocalGraphStore.from_partition(folder, 0) for _ in range(2))
    change_ids(both, MANY, lambda ids: ids + 10)
    _add_type_of_its_own(both)  # of the first type the two numberings are the same
    with pytest.raises(SchemaError, match=r"edge ids of \[.*'back'.*\] are numbers inside .*'many'.* one of the two"):
        read_own_part((features, both))
    change_ids(neither, MANY, lambda ids: ids + 7)
    with pytest.raises(SchemaError, match=r"a__many__b has 500 edge ids in 7..506 .* edge_pb gives it 500 other edges"):
        read_own_part((features, neither))


def test_a_book_that_misses_a_type_is_refused(folder: Path) -> None:
    store = LocalGraphStore.from_partition(folder, 0)
    store.edge_pb = {FEW: store.edge_pb[FEW]}
    with pytest.raises(SettingsError, match=r"but lack .*'many'.*both must name every edge type"):
        read_own_part((LocalFeatureStore.from_partition(folder, 0), store))


def test_repeated_ids_without_types_are_refused_on_all_ranks() -> None:
    """All ids are in range on each rank; only the ranks together can find the error."""
    graph, port = plain_graph(np.random.default_rng(5)), free_port()
    owners = {"node": (np.arange(40) % 2).astype(np.int32)}

    def work(rank: int) -> Any:
        data = partition(graph, owners, rank, 2)
        if rank == 1:
            (attr,) = data[1].get_all_edge_attrs()
            data[1].put_edge_id(torch.arange(len(data[1].get_edge_id(attr))), **attr.__dict__)
            data[0].put_global_id(data[1].get_edge_id(attr), group_name=(None, None))
        return DistNeighborLoader(data, [1], "127.0.0.1", port, context(rank, 2), rpc_timeout=20)

    for error in on_ranks(2, work):
        assert isinstance(error, VersionMismatch), error
        assert "keys of the 200 edges of node__to__node are not 0..199, each once" in str(error)


def _add_type_of_its_own(store: Any) -> None:
    """A third type, numbered inside itself."""
    other = ("b", "back", "a")
    store.edge_pb = {**store.edge_pb, other: torch.zeros(3, dtype=torch.int64)}
    store.meta = {**store.meta, "edge_types": [*store.meta["edge_types"], other]}
    attr = {"edge_type": other, "layout": "coo", "is_sorted": True, "size": (100, 10)}
    store.put_edge_index(torch.tensor([[0, 1, 2], [0, 1, 2]]), **attr)
    store.put_edge_id(torch.arange(3), **attr)
