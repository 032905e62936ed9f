"""Checks that a folder with some parts names the folders of the others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from hopstream.dataset.layout import open_dataset
from hopstream.dataset.paths import Root, Roots, is_here, parse_roots, read_roots
from hopstream.errors import FormatError, SettingsError
from hopstream.preparation.audit.run import verify_dataset
from hopstream.preparation.write import write_parts
from tests.dataset.test_manifest import changed, leaves


@pytest.fixture
def folder(typed_graph, tmp_path: Path) -> Path:
    """A dataset of two parts."""
    write_parts(typed_graph, tmp_path / "parts", num_parts=2, method="hash")
    return tmp_path / "parts"


def write_roots(folder: Path, dataset_id: str | None = None) -> Roots:
    known = dataset_id or open_dataset(folder).manifest.dataset_id
    roots = Roots(known, (Root("/nfs/m0", (0,)), Root("s3://bucket/m1", (1,)), Root("/nfs/m2", (1,))))
    (folder / "roots.json").write_text(roots.to_text())
    return roots


def test_written_roots_are_read(folder: Path):
    assert read_roots(folder) is None
    roots = write_roots(folder)
    assert read_roots(folder) == roots
    assert (roots.uris_of(0), roots.uris_of(1), roots.uris_of(2)) == (["/nfs/m0"], ["s3://bucket/m1", "/nfs/m2"], [])


def test_a_folder_with_some_parts_opens_and_names_the_others(folder: Path):
    shutil.rmtree(folder / "part-00001")
    dataset = open_dataset(folder)
    assert (is_here(folder, 0), is_here(folder, 1)) == (True, False)
    assert dataset.open_part(0).part == 0
    dataset.verify([0])
    with pytest.raises(FormatError, match=r"part-00001 is missing; write the dataset again or copy the folder$"):
        dataset.open_part(1)
    write_roots(folder)
    with pytest.raises(FormatError, match=r"lists part 1 in s3://bucket/m1 and in /nfs/m2; open it there, get it with"):
        dataset.open_part(1)
    write_roots(folder, "of-another-dataset")
    with pytest.raises(FormatError, match="write the dataset again or copy the folder"):
        dataset.open_part(1)


def test_an_edit_of_any_value_is_noticed(folder: Path):
    write_roots(folder)
    assert verify_dataset(folder).is_ok
    path = folder / "roots.json"
    value = json.loads(path.read_text())
    for leaf in leaves(value):
        path.write_text(json.dumps(changed(value, leaf)))
        (finding,) = verify_dataset(folder).findings
        assert (finding.kind, finding.where) == ("files", "roots.json")
    del value["digest"]  # as earlier revisions, and users who edit the file, write it
    path.write_text(json.dumps(value))
    assert read_roots(folder) is not None and verify_dataset(folder).is_ok


@pytest.mark.parametrize(
    "text",
    [
        "", "[", "[]", "{}", '{"format": 2}', '{"format": 1, "dataset_id": "x"}',
        '{"format": 1, "dataset_id": "x", "roots": [{"uri": "/a", "parts": ["0"]}]}',
        '{"format": 1, "dataset_id": "x", "roots": [{"uri": "/a", "parts": [true]}]}', "[" * 100_000,
    ],
)  # fmt: skip
def test_an_invalid_roots_file_is_refused(folder: Path, text: str):
    with pytest.raises(FormatError):
        parse_roots(text.encode())
    (folder / "roots.json").write_text(text)
    shutil.rmtree(folder / "part-00001")
    with pytest.raises(FormatError, match=r"roots\.json cannot be read \(.*; remove it, or place the dataset again"):
        open_dataset(folder).open_part(1)
    assert open_dataset(folder).open_part(0).part == 0


def test_roots_file_does_not_change_the_dataset_id(folder: Path, typed_graph):
    before = open_dataset(folder).manifest.dataset_id
    write_roots(folder)
    (folder / "cluster.json").write_text("{}")
    assert open_dataset(folder).manifest.dataset_id == before
    assert verify_dataset(folder).is_ok
    write_parts(typed_graph, folder, num_parts=2, method="hash", overwrite=True)
    assert not (folder / "roots.json").exists()


def test_a_cluster_file_without_roots_prevents_replacement(folder: Path, typed_graph):
    (folder / "cluster.json").write_text("{}")
    with pytest.raises(SettingsError, match=r"holds 'cluster\.json' beside a dataset"):
        write_parts(typed_graph, folder, num_parts=2, method="hash", overwrite=True)
