"""Checks that datasets and states of an earlier revision give the pinned batches, walks and exports.

A digest changes only on purpose: see ``tests/pinned/write.py``.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import hopstream
from hopstream.dataset import add_halo, compact, delete, reshard, verify_dataset
from hopstream.dataset.layout import open_dataset
from tests.equality import test_walks
from tests.pinned.cases import (
    DATASETS,
    DIGESTS,
    LOADERS,
    RESUMED,
    SERVED,
    STATES,
    batches_of,
    digest,
    exported_files,
    rest_of,
    served_batches,
    unpack,
    walks_of,
)

WANTED = json.loads(DIGESTS.read_text())
SAVED = json.loads(STATES.read_text())
MAX_BYTES = 400_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("pinned")
    unpack(found)
    return found


@pytest.mark.parametrize("case", LOADERS)
def test_loaders_give_the_pinned_batches(folder: Path, case: str) -> None:
    name, new_loader = LOADERS[case]
    assert digest(batches_of(new_loader(folder / name))) == WANTED[case]


@pytest.mark.parametrize("case", RESUMED)
def test_loaders_resume_from_pinned_states(folder: Path, case: str) -> None:
    name, new_loader = LOADERS[case]
    assert digest(rest_of(new_loader(folder / name), SAVED[case]["state"])) == SAVED[case]["rest"]


@pytest.mark.parametrize("case", SERVED)
def test_servers_give_the_pinned_batches(folder: Path, case: str) -> None:
    assert digest(served_batches(case, folder)) == WANTED[case]


def test_changed_datasets_of_an_earlier_revision_keep_wide_edge_keys(folder: Path, tmp_path: Path) -> None:
    """Edge keys had 64 bits; a dataset that is written again has the present width."""
    root, wide = tmp_path / "d", np.dtype(np.int64)
    shutil.copytree(folder / "nodes-plain", root)
    wanted = hopstream.read_dataset(root)
    num_nodes, (edge_type,) = wanted.nodes["node"].num_nodes, wanted.edges
    features = {name: column[:2] for name, column in wanted.edges[edge_type].features.items()}
    hopstream.append(root, edges={edge_type: (np.array([0, 1]), np.array([num_nodes - 1, 0]), features)})
    assert verify_dataset(root).is_ok
    delete(root, nodes={"node": [3]})
    assert verify_dataset(root).is_ok
    compact(root)
    add_halo(root, hops=1)
    assert verify_dataset(root).is_ok
    dataset = open_dataset(root)
    assert not dataset.manifest.has_narrow_keys
    for part in range(dataset.manifest.book.num_parts):
        assert dataset.open_part(part).edges[edge_type, "in"].keys.dtype == wide
    reshard(root, tmp_path / "new", num_parts=3)
    assert verify_dataset(tmp_path / "new").is_ok
    new = open_dataset(tmp_path / "new")
    assert new.open_part(1).edges[edge_type, "in"].keys.dtype == np.uint32
    assert new.manifest.graph_id == dataset.manifest.graph_id
    batches = [
        digest(list(hopstream.NeighborLoader(one, [4, 3], batch_size=9, shuffle=True))) for one in (root, new.root)
    ]
    assert batches[0] == batches[1]


@pytest.mark.parametrize("mode", test_walks.MODES)
def test_walks_are_the_pinned_ones(folder: Path, mode: str) -> None:
    assert digest(walks_of(mode, folder)) == WANTED[f"walks, {mode}"]


def test_exports_write_the_pinned_bytes(folder: Path, tmp_path: Path) -> None:
    assert digest(exported_files(folder, tmp_path)) == WANTED["exports"]


def test_all_cases_are_pinned_and_differ(folder: Path) -> None:
    """A digest that ignored its input would be the same for all cases."""
    cases = {*LOADERS, *(f"walks, {mode}" for mode in test_walks.MODES), "exports"}
    assert set(WANTED) == cases
    assert set(SAVED) == set(RESUMED)
    halo = {case for case in WANTED if ", halo, " in case}  # equal to those without, which is a halo's promise
    assert all(WANTED[case] == WANTED[case.replace(", halo, ", ", typed, ")] for case in halo)
    assert len({WANTED[case] for case in cases - halo}) == len(cases - halo)
    assert DATASETS.stat().st_size < MAX_BYTES
    manifests = [*folder.rglob("manifest.json")]
    assert len(manifests) == 12
    for path in manifests:
        open_dataset(path.parent)
