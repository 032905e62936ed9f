"""Checks that a wrong delta is found and named, even if checksums are made to fit it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from hopstream.dataset.layout import open_dataset, read_manifest
from hopstream.errors import FormatError
from hopstream.preparation.audit.run import verify_dataset
from tests.preparation.append.graphs import grown_graph, written
from tests.preparation.audit.forging import edit, forge, load

NEW = "part-00002"
ROWS = "part-00000/delta-00002/edge/user__rates__movie/in"
OWNER = (("user", "rates", "movie"), "in")


@pytest.fixture(scope="module")
def origin(tmp_path_factory):
    root = tmp_path_factory.mktemp("origin") / "d"
    written(root, 1, 2)
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
        ("weight_sums.npy", lambda sums: sums + 1, "weights", "weight sums"),
        ("features/rating.npy", lambda ratings: ratings + 1, "graph", "weight sums"),
    ],
)
def test_damage_is_found(root, name, change, kind, refusal):
    edit(root, f"{ROWS}/{name}", change)
    found = verify_dataset(root)
    assert kind in {finding.kind for finding in found.findings}, [str(finding) for finding in found.findings]
    assert any("delta-00002" in str(finding) or finding.kind in ("graph", "edges") for finding in found.findings)
    if refusal is not None:
        with pytest.raises(FormatError, match=refusal):
            open_dataset(root, verify=True)


@pytest.mark.parametrize(
    ("name", "change", "kinds"),
    [
        ("node/user/key.npy", drop_first, {"nodes", "order"}),
        ("node/user/id_of_key.npy", swap, {"book"}),
        ("node/user/splits/train.npy", lambda keys: keys - 1000, {"splits"}),
        ("edge/user__rates__movie/in/indices.npy", drop_first, {"edges", "links"}),
        ("link/user__rates__movie/src_key.npy", drop_first, {"edges", "links"}),
        ("link/user__rates__movie/time.npy", shift, {"links"}),
    ],
)
def test_damage_of_the_part_that_was_added_is_found(root, name, change, kinds):
    edit(root, f"{NEW}/{name}", change)
    report = verify_dataset(root)
    assert kinds <= set(report.kinds), [str(finding) for finding in report.findings]


def test_the_last_appended_value_is_compared_with_the_source(root):
    def change(values):
        values[-1, -1] += 1

    edit(root, f"{NEW}/node/user/features/x.npy", change)
    report = verify_dataset(root, against=grown_graph().graph)
    assert report.kinds == ("features", "graph")
    assert f"part {int(NEW[5:])}" in report.findings[0].places[0]


def test_rows_of_an_older_delta_in_place_of_newer_ones_are_found(root):
    """The newest row of a node is replaced by an older one, which lacks the latest edges."""
    folders = [root / ROWS.replace("delta-00002", f"delta-0000{number}") for number in (1, 2)]
    older, newer = (np.load(folder / "row.npy") for folder in folders)
    assert len(np.intersect1d(older, newer))
    shutil.rmtree(folders[1])
    shutil.copytree(folders[0], folders[1])
    assert {"files", "checksums"} & {finding.kind for finding in verify_dataset(root).findings}


def test_parts_of_an_appended_dataset_are_checked_alone(root):
    for parts in ([0], [1], [2]):
        for against in (None, grown_graph().graph):
            report = verify_dataset(root, against=against, parts=parts)
            assert report.is_ok, [str(finding) for finding in report.findings]
    edit(root, f"{ROWS}/weight_sums.npy", lambda sums: sums + 1)
    assert verify_dataset(root, parts=[0]).kinds == ("weights",)
    assert verify_dataset(root, parts=[1, 2]).is_ok


@pytest.mark.parametrize(
    ("name", "change"),
    [("digest", lambda _: "0" * 32), ("digest", lambda _: "x"), ("overlays", lambda overlays: overlays[1:])],
    ids=["another digest", "no digest", "an overlay less"],
)
def test_a_record_of_a_delta_that_was_edited_is_found(root, name, change):
    value = json.loads((root / "manifest.json").read_text())
    value["deltas"][-1][name] = change(value["deltas"][-1][name])
    (root / "manifest.json").write_text(json.dumps(value))
    report = verify_dataset(root)
    assert report.kinds == ("manifest",)
    assert report.checks["edges"].status == "skipped"


def test_flipped_bytes_are_found(root):
    path = root / ROWS / "indices.npy"
    data = bytearray(path.read_bytes())
    data[-1] ^= 4
    path.write_bytes(data)
    assert "checksums" in {finding.kind for finding in verify_dataset(root).findings}


def test_a_row_that_is_claimed_for_another_node_is_found(root):
    """The node then has the edges of another, and the other its old ones."""
    folder = ROWS.replace("rates__movie", "knows__user")
    rows = load(root, f"{folder}/row.npy")
    free = np.setdiff1d(np.arange(rows[-1]), rows)[-1]
    at = int(np.searchsorted(rows, free))
    edit(root, f"{folder}/row.npy", lambda rows: np.concatenate([rows[:at], [free], rows[at + 1 :]]))
    assert {"book", "edges"} <= {finding.kind for finding in verify_dataset(root).findings}


def test_an_unlisted_overlay_is_refused(root):
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
    assert any(f"{ROWS}/keys.npy" in text and "not a file of this dataset" in text for text in found)


def test_an_unchanged_dataset_verifies(root):
    forge(root, {})
    assert verify_dataset(root).is_ok
