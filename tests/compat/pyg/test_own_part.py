"""Are the numbers of a partition's edges read as they are meant, whichever of PyG's two ways they have?"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch_geometric.distributed as torch_dist

from hopstream.compat.pyg import LocalFeatureStore, LocalGraphStore, write_partitions
from hopstream.compat.pyg.own_part import read_own_part
from hopstream.errors import SchemaError
from hopstream.graph.graph import Graph
from hopstream.ingest import graph_from_arrays

FEW, MANY = ("a", "few", "a"), ("a", "many", "b")


@pytest.fixture
def folder(tmp_path: Path) -> tuple[Graph, Path]:
    """Ten edges of one type and then a thousand, of which each part owns a range: numbers over all types fit each."""
    rng = np.random.default_rng(5)
    edges = {
        FEW: rng.integers(0, 10, (2, 10)),
        MANY: np.stack([rng.integers(0, 10, 1000), np.arange(1000) // 10]),
    }
    graph = graph_from_arrays(edges, num_nodes={"a": 10, "b": 100}, node_features={"a": {"x": np.ones((10, 2))}})
    owners = {"a": np.arange(10) // 5, "b": np.arange(100) // 50}
    write_partitions(graph, tmp_path / "p", owners=owners, method="file", num_parts=2)
    return graph, tmp_path / "p"


@pytest.mark.filterwarnings("ignore:.*deprecated")
@pytest.mark.parametrize("stores", [LocalGraphStore, torch_dist.LocalGraphStore], ids=["ours", "PyG"])
def test_keys_are_numbers_of_the_type(folder: tuple[Graph, Path], stores: type) -> None:
    graph, root = folder
    found = {FEW: [], MANY: []}
    for part in (0, 1):
        own = read_own_part((LocalFeatureStore.from_partition(root, part), stores.from_partition(str(root), part)))
        for edge_type, edges in own.edges.items():
            found[edge_type].append(edges.edge_keys)
            assert np.array_equal(graph.edges[edge_type].src_keys[edges.edge_keys], edges.src_keys)
            assert np.array_equal(graph.edges[edge_type].dst_keys[edges.edge_keys], edges.dst_keys)
    for edge_type, keys in found.items():
        assert np.array_equal(np.sort(np.concatenate(keys)), np.arange(graph.edges[edge_type].num_edges))


def test_numbers_of_neither_way_are_refused(folder: tuple[Graph, Path]) -> None:
    _, root = folder
    store = LocalGraphStore.from_partition(root, 1)
    (attr,) = (one for one in store.get_all_edge_attrs() if one.edge_type == MANY)
    store.put_edge_id(torch.arange(len(store.get_edge_id(attr))) + 3, attr)
    with pytest.raises(SchemaError, match=r"a__many__b that lead to nodes of partition 1 have 500 ids, 3\.\.502"):
        read_own_part((LocalFeatureStore.from_partition(root, 1), store))
