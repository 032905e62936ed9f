"""Datasets that these tests copy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hopstream.arrays import RaggedArray
from hopstream.dataset.manifest import Manifest
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.preparation.write import write_parts
from tests.dataset.graphs import tree_of

NUM_PARTS, NUM_PAPERS = 4, 40


def make_graph(rng_seed: int) -> Graph:
    """A graph whose parts have some ten files each."""
    rng = np.random.default_rng(rng_seed)
    titles = RaggedArray.from_strings([f"título {i}" for i in range(NUM_PAPERS)])
    src_keys, dst_keys = rng.integers(0, NUM_PAPERS, (2, 200))
    return Graph(
        nodes={
            "paper": NodeTable(num_nodes=NUM_PAPERS, features={"feat": rng.random((NUM_PAPERS, 3)), "title": titles})
        },
        edges={("paper", "cites", "paper"): EdgeTable(src_keys=src_keys, dst_keys=dst_keys)},
        splits={"paper": {"train": np.arange(0, NUM_PAPERS, 3)}},
    ).check()


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Every file of a small dataset of four parts."""
    root = tmp_path_factory.mktemp("written") / "mag"
    write_parts(make_graph(3), root, num_parts=NUM_PARTS, method="hash")
    return tree_of(root)


@pytest.fixture
def mag(written: dict[str, bytes], tmp_path: Path) -> Path:
    """The dataset in a folder of its own."""
    return write_tree(tmp_path / "mag", written)


def write_tree(root: Path, tree: dict[str, bytes]) -> Path:
    """Write these files into a folder."""
    for name, data in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def files_of(tree: dict[str, bytes], parts: tuple[int, ...]) -> dict[str, bytes]:
    """The manifest and the files of some parts."""
    folders = {f"part-{part:05d}" for part in parts}
    return {name: data for name, data in tree.items() if name == "manifest.json" or name.split("/")[0] in folders}


def without_beside(tree: dict[str, bytes]) -> dict[str, bytes]:
    """Files of a dataset except those that name places of parts or servers."""
    return {name: data for name, data in tree.items() if name not in ("roots.json", "cluster.json")}


def other_dataset(root: Path) -> Manifest:
    """Another dataset, of seven parts."""
    return write_parts(make_graph(4), root, num_parts=7, method="hash")
