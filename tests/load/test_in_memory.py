"""Checks that loaders make the same batches from a graph in memory as from its folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from hopstream.arrays import RaggedArray
from hopstream.errors import IdRangeError, SettingsError, UnknownNameError
from hopstream.graph.graph import Graph, NodeTable
from hopstream.ingest import graph_from_data
from hopstream.load.layerwise import infer_layerwise
from hopstream.load.links import LinkNeighborLoader
from hopstream.load.loader import NeighborLoader
from hopstream.load.ppr import PPRLoader
from hopstream.preparation.in_memory import dataset_in_memory
from hopstream.preparation.write import write_parts
from hopstream.sample.walks import random_walks
from hopstream.store import open_graph
from hopstream.store.settings import StoreSettings
from tests.load.graphs import RATES, flat, make_timed_graph

TEMPORAL = {"time_attr": "time", "temporal_strategy": "last"}
WEIGHTED = {"weight_attr": "stars"}


@pytest.fixture
def graph(rng: np.random.Generator) -> Graph:
    return make_timed_graph(rng)


def node_loader(source: object, **options: object) -> NeighborLoader:
    return NeighborLoader(
        source, {"default": [3, 2]}, seeds=("paper", "train"), batch_size=7, shuffle=True, collate="numpy", **options
    )


@pytest.mark.parametrize("options", [{}, TEMPORAL, WEIGHTED, {"direction": "out"}, {"subgraph_type": "induced"}])
def test_batches_equal_those_of_a_folder(tmp_path: Path, graph: Graph, options: dict) -> None:
    written = {name: options[name] for name in ("time_attr", "weight_attr") if name in options}
    write_parts(graph, tmp_path / "g", num_parts=2, method="random", direction="both", **written)
    with node_loader(graph, **options) as ours, node_loader(tmp_path / "g", **options) as theirs:
        wanted = [flat(batch) for batch in theirs]
        assert [flat(batch) for batch in ours] == wanted
        assert len(wanted) > 2


def test_a_state_of_a_folder_resumes_on_the_graph(tmp_path: Path, graph: Graph) -> None:
    write_parts(graph, tmp_path / "g", num_parts=3, method="random", time_attr="time")
    with node_loader(tmp_path / "g", **TEMPORAL) as theirs, node_loader(graph, **TEMPORAL) as ours:
        whole = [flat(batch) for batch in theirs]
        batches = iter(theirs)
        next(batches)
        ours.load_state_dict(theirs.state_dict())
        assert [flat(batch) for batch in ours] == [flat(batch) for batch in batches]
        assert len(whole) > 2


def test_node_features_and_links_are_the_graphs_own_arrays(graph: Graph) -> None:
    part = dataset_in_memory(graph, direction="both").open_part(0)
    for node_type, nodes in graph.nodes.items():
        for name, column in nodes.features.items():
            kept = part.node_features[node_type][name]
            if isinstance(column, RaggedArray):
                assert np.shares_memory(kept.values, column.values)
            else:
                assert np.shares_memory(kept, column)
    assert np.shares_memory(part.links[RATES].src_keys, graph.edges[RATES].src_keys)


def test_a_loader_takes_pygs_data() -> None:
    torch.manual_seed(0)
    data = Data(x=torch.randn(50, 8), edge_index=torch.randint(50, (2, 300)), y=torch.arange(50))
    with NeighborLoader(data, [5, 3], batch_size=10) as loader:
        seen = 0
        for batch in loader:
            assert torch.equal(batch.x, data.x[batch.n_id])
            assert torch.equal(data.edge_index[:, batch.e_id], batch.n_id[batch.edge_index])
            seen += batch.batch_size
    assert seen == 50


def add_up(number: int, node_type: str, batch: HeteroData) -> torch.Tensor:
    """A layer that adds the number of a node's edges to its row."""
    rows = batch[node_type].x if number == 0 else batch[node_type].h
    rows = rows[: batch[node_type].batch_size].clone()
    for edge_type in batch.edge_types:
        if edge_type[2] == node_type:
            rows += torch.bincount(batch[edge_type].edge_index[1], minlength=len(rows))[: len(rows), None]
    return rows


def test_typed_data_for_every_loader(tmp_path: Path) -> None:
    torch.manual_seed(0)
    data = HeteroData()
    data["user"].x, data["item"].x = torch.randn(20, 3), torch.randn(30, 3)
    data["user", "buys", "item"].edge_index = torch.stack([torch.randint(20, (90,)), torch.randint(30, (90,))])
    data["item", "rev_buys", "user"].edge_index = data["user", "buys", "item"].edge_index.flip(0)
    write_parts(graph_from_data(data), tmp_path / "g", num_parts=1, links=["user__buys__item"])
    buys = ("user", "buys", "item")
    found: list[list[str]] = []
    for source in (data, tmp_path / "g"):
        with (
            LinkNeighborLoader(source, [3], edge_label_index=buys, batch_size=30, neg_sampling_ratio=1.0) as links,
            PPRLoader(source, "user", batch_size=10) as ppr,
        ):
            found.append([str(batch.to_dict()) for loader in (links, ppr) for batch in loader])
        rows = infer_layerwise(source, add_up, tmp_path / f"rows-{len(found)}", num_layers=2)
        found[-1].append(str(rows.all_rows(2, "item")))
    assert found[0] == found[1]
    assert len(found[0]) > 4


def test_walks_over_a_graph_in_memory_equal_those_over_its_folder(tmp_path: Path, graph: Graph) -> None:
    write_parts(graph, tmp_path / "g", num_parts=1, direction="both")
    walks = [random_walks(s, "user", metapath=[RATES, (RATES, "in")], walk_length=4) for s in (graph, tmp_path / "g")]
    assert np.array_equal(*walks)


def test_one_store_serves_several_loaders(graph: Graph) -> None:
    store = open_graph(graph, time_attr="time", direction="both")
    with node_loader(store) as plain, node_loader(store, **TEMPORAL) as temporal:
        assert len(list(plain)) == len(list(temporal)) > 2


def test_options_of_folders_are_refused_for_a_graph_in_memory(tmp_path: Path, graph: Graph) -> None:
    with pytest.raises(SettingsError, match=r"^verify is 'full', but the source is a graph in memory; leave it out"):
        node_loader(graph, verify="full")
    node_loader(graph, cache_bytes="1MB", store_settings=StoreSettings()).close()  # no effect, as with a folder
    with pytest.raises(UnknownNameError, match="weight_attr is 'heft'"):
        node_loader(graph, weight_attr="heft")
    with pytest.raises(IdRangeError):
        node_loader(Graph(nodes={**graph.nodes, "paper": NodeTable(num_nodes=1)}, edges=graph.edges))
    with pytest.raises(SettingsError, match="source is a dict"):
        node_loader({"x": 1})
