"""Checks that exactly the nodes in other parts than a folder of owners says are reported."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import hopstream
from hopstream.assign.run import assign_folder
from hopstream.cli import main
from hopstream.errors import FormatError, IdRangeError, SchemaError
from tests.conftest import make_typed_graph


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A dataset of three parts, and the folder of owners that it was cut by."""
    root = tmp_path_factory.mktemp("owners")
    graph = make_typed_graph(np.random.default_rng(3))
    assign_folder(graph, root / "owners", num_parts=3, method="random", rng_seed=2)
    hopstream.write_parts(graph, root / "parts", num_parts=3, method="file", owners=root / "owners")
    return root


@pytest.fixture
def owners(written, tmp_path):
    shutil.copytree(written / "owners", tmp_path / "owners")
    return tmp_path / "owners"


def change(owners, rows, to=None):
    """Move papers to the next part, or to a given one; return their former parts."""
    owner = np.load(owners / "paper.npy")
    before = owner[rows].tolist()
    owner[rows] = (owner[rows] + 1) % 3 if to is None else to
    np.save(owners / "paper.npy", owner)
    return before


def test_the_original_owners_verify(written, owners):
    report = hopstream.verify_dataset(written / "parts", owners=owners)
    without = hopstream.verify_dataset(written / "parts")
    assert report.is_ok and report.checks["nodes"].num_checked == 2 * without.checks["nodes"].num_checked
    shutil.rmtree(owners)
    shutil.copytree(written / "owners", owners, ignore=shutil.ignore_patterns("*.npy"))
    assert hopstream.verify_dataset(written / "parts", owners=owners).is_ok


def test_nodes_in_other_parts(written, owners, capsys):
    before = change(owners, [8, 33])
    report = hopstream.verify_dataset(written / "parts", owners=owners)
    (finding,) = report.findings
    assert (finding.kind, finding.where, finding.count) == ("nodes", "paper", 2)
    assert finding.places == tuple(
        f"key {key} (part {part}, not {(part + 1) % 3})" for key, part in zip((8, 33), before, strict=True)
    )
    one = hopstream.verify_dataset(written / "parts", owners=owners, parts=[before[0]])
    assert sum(found.count for found in one.findings) == before.count(before[0])
    assert main(["verify", str(written / "parts"), "--owners", str(owners)]) == 1
    assert "paper: is in another part than in the folder of owners (2 places): key 8" in capsys.readouterr().out


def test_files_beside_the_owners(written, owners):
    lines = (owners / "paper.txt").read_text().splitlines()
    lines[7] = str((int(lines[7]) + 1) % 3)
    (owners / "paper.txt").write_text("\n".join(lines) + "\n")
    meta = (owners / "partition_meta.json").read_text()
    (owners / "partition_meta.json").write_text(meta.replace('"num_parts": 3', '"num_parts": 4'))
    found = hopstream.verify_dataset(written / "parts", owners=owners).findings
    assert {(finding.kind, finding.where, finding.count) for finding in found} == {
        ("nodes", "paper.txt", 1), ("nodes", "partition_meta.json", 1),
    }  # fmt: skip


def test_invalid_owner_folders_are_refused(written, owners):
    change(owners, [0], to=3)
    with pytest.raises(IdRangeError, match=r"paper.npy\[0\] is 3; parts are numbered 0..2"):
        hopstream.verify_dataset(written / "parts", owners=owners)
    np.save(owners / "paper.npy", np.zeros(59, np.int32))
    with pytest.raises(SchemaError, match="one integer for each of 60 nodes"):
        hopstream.verify_dataset(written / "parts", owners=owners)
    with pytest.raises(FormatError, match="is not a folder"):
        hopstream.verify_dataset(written / "parts", owners=owners / "none")
