"""Which dataset do these tests copy?"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hopstream.partition.manifest import Manifest
from hopstream.partition.write import write_parts
from tests.conftest import make_typed_graph
from tests.partition.graphs import tree_of

NUM_PARTS = 4


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Every file of a small typed dataset of four parts."""
    root = tmp_path_factory.mktemp("written") / "mag"
    write_parts(make_typed_graph(np.random.default_rng(3)), root, num_parts=NUM_PARTS, method="hash", direction="both")
    return tree_of(root)


@pytest.fixture
def mag(written: dict[str, bytes], tmp_path: Path) -> Path:
    """The dataset in a folder of its own."""
    root = tmp_path / "mag"
    for name, data in written.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def files_of(tree: dict[str, bytes], parts: tuple[int, ...]) -> dict[str, bytes]:
    """The manifest and the files of some parts."""
    folders = {f"part-{part:05d}" for part in parts}
    return {name: data for name, data in tree.items() if name == "manifest.json" or name.split("/")[0] in folders}


def without_beside(tree: dict[str, bytes]) -> dict[str, bytes]:
    """Files of a dataset but for those that say where parts lie and who serves them."""
    return {name: data for name, data in tree.items() if name not in ("roots.json", "cluster.json")}


def other_dataset(root: Path) -> Manifest:
    """Another dataset, of seven parts."""
    return write_parts(make_typed_graph(np.random.default_rng(4)), root, num_parts=7, method="hash")
