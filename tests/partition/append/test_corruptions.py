"""Is what is wrong with a delta found and named, where checksums are made to fit it?"""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest

from hopstream.errors import FormatError
from hopstream.partition.audit.run import verify_dataset
from hopstream.partition.layout import open_dataset, read_manifest
from tests.partition.append.graphs import written
from tests.partition.audit.forging import edit, forge, load

ROWS = "part-00000/delta-00003/edge/user__rates__movie/in"
OWNER = (("user", "rates", "movie"), "in")


@pytest.fixture(scope="module")
def origin(tmp_path_factory):
    root = tmp_path_factory.mktemp("origin") / "d"
    written(root, 2, 3)
    return root


@pytest.fixture
def root(origin, tmp_path):
    shutil.copytree(origin, tmp_path / "d")
    return tmp_path / "d"


def swap(array):
    array[[0, 1]] = array[[1, 0]]


def drop_first(array):
    array[0] = array[1]


def shift(array):
    array[-1] += 1


@pytest.mark.parametrize(
    ("name", "change", "kind", "refusal"),
    [
        ("row.npy", swap, "order", "rows do not ascend"),
        ("row.npy", lambda rows: rows + 1000, "ranges", "rows lie in"),
        ("node_key.npy", shift, "book", "node key"),
        ("indptr.npy", swap, "ranges", "indptr"),
        ("indices.npy", drop_first, "edges", None),
        ("key.npy", drop_first, "edges", None),
        ("neighbor_key.npy", shift, "neighbors", "neighbor key"),
        ("time.npy", lambda times: times - 1, "times", "time"),
        ("weight_sums.npy", lambda sums: sums + 1, "weights", "weight sums"),
        ("features/rating.npy", lambda ratings: ratings + 1, "graph", "weight sums"),
    ],
)
def test_damage_is_found(root, name, change, kind, refusal):
    edit(root, f"{ROWS}/{name}", change)
    found = verify_dataset(root)
    assert kind in {finding.kind for finding in found.findings}, [str(finding) for finding in found.findings]
    assert any("delta-00003" in str(finding) or finding.kind in ("graph", "edges") for finding in found.findings)
    if refusal is not None:
        with pytest.raises(FormatError, match=refusal):
            open_dataset(root, verify=True)


def test_flipped_bytes_are_found(root):
    path = root / ROWS / "indices.npy"
    data = bytearray(path.read_bytes())
    data[-1] ^= 4
    path.write_bytes(data)
    assert "checksums" in {finding.kind for finding in verify_dataset(root).findings}


def test_a_row_that_is_claimed_for_another_node_is_found(root):
    """Its node then has the edges of another, and the other its old ones."""
    folder = ROWS.replace("rates__movie", "knows__user")
    rows = load(root, f"{folder}/row.npy")
    free = np.setdiff1d(np.arange(rows[-1]), rows)[-1]
    at = int(np.searchsorted(rows, free))
    edit(root, f"{folder}/row.npy", lambda rows: np.concatenate([rows[:at], [free], rows[at + 1 :]]))
    assert {"book", "edges"} <= {finding.kind for finding in verify_dataset(root).findings}


def test_an_overlay_that_is_forgotten_is_found(root):
    manifest = read_manifest(root)
    *older, newest = manifest.book.deltas
    kept = {owner: overlays for owner, overlays in newest.overlays.items() if owner != OWNER}
    files = {name: record for name, record in manifest.files.items() if not name.startswith(ROWS.rpartition("/")[0])}
    with pytest.raises(FormatError, match="edges; user__rates__movie/in has"):
        replace(manifest.book, deltas=(*older, replace(newest, overlays=kept)))
    assert len(files) < len(manifest.files)


def test_missing_and_foreign_files_are_named(root):
    (root / ROWS / "key.npy").rename(root / ROWS / "keys.npy")
    found = [str(finding) for finding in verify_dataset(root).findings]
    assert any(f"{ROWS}/key.npy" in text and "is missing" in text for text in found)
    assert any(f"{ROWS}/keys.npy" in text and "no file of this dataset" in text for text in found)


def test_what_forges_nothing_is_whole(root):
    forge(root, {})
    assert verify_dataset(root).is_ok
