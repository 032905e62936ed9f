"""Checks that the stores of PyG's page on distributed training run with the import changed.

The tests take the page's own blocks, where the page is there.
"""

from __future__ import annotations

import asyncio
import os.path as osp
import re
import textwrap
from pathlib import Path

import pytest
import torch

import hopstream
import hopstream.compat.pyg as pyg_dist
from tests.compat.pyg.graphs import heterogeneous, homogeneous

PAGES = list((Path(__file__).parents[3].parent / "shared" / "seeds").glob("000_*.txt"))
EDGE_INDEX = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])


needs_page = pytest.mark.skipif(not PAGES, reason="the page is not part of the project")


def blocks_of(page):
    """Indented blocks after ``.. code-block:: python``, with the import changed."""
    found = re.findall(r"^\.\. code-block:: python\n\n((?:    .*\n|\n)+)", page.read_text(), re.M)
    return [textwrap.dedent(block).replace("torch_geometric.distributed", "hopstream.compat.pyg") for block in found]


@needs_page
def test_the_code_of_the_page_runs(monkeypatch):
    blocks = [block for block in blocks_of(PAGES[0]) if "import LocalGraphStore" in block or "import Local" in block]
    assert len(blocks) == 4
    found = []
    for block in blocks:
        names = {}
        exec(block, names)
        found.append(names)
    assert found[0]["feature_store"].get_tensor(None, "x").shape == (3, 4)
    assert found[1]["graph_store"].get_all_edge_attrs()[0].edge_type == ("v0", "e0", "v1")
    assert torch.equal(found[2]["retrieved_edge_index"], EDGE_INDEX)
    assert found[2]["graph_store"].get_all_edge_attrs() == []
    assert asyncio.run(found[3]["get_node_features"]()).shape == (1, 64)


@needs_page
@pytest.mark.parametrize("make", [homogeneous, heterogeneous])
def test_the_page_loads_partitions_of_the_partitioner(make, tmp_path):
    (block,) = [block for block in blocks_of(PAGES[0]) if "LocalGraphStore.from_partition(" in block]
    pyg_dist.Partitioner(make(), 2, str(tmp_path / "toy-partitions"), method="random").generate_partition()
    torch.save(torch.arange(3), tmp_path / "label.pt")
    names = {
        "osp": osp, "root_dir": str(tmp_path), "dataset_name": "toy", "node_rank": 1, "torch": torch,
        "node_label_file": tmp_path / "label.pt", "LocalGraphStore": pyg_dist.LocalGraphStore,
        "LocalFeatureStore": pyg_dist.LocalFeatureStore,
    }  # fmt: skip
    exec(block, names)
    feature_store, graph_store = names["partition_data"]
    assert (graph_store.partition_idx, feature_store.num_partitions) == (1, 2)
    assert (
        hopstream.graph_from_data(make()).fingerprint()
        == pyg_dist.read_partitions(tmp_path / "toy-partitions")[0].fingerprint()
    )
