"""Checks that damaged input ends a job with an error that names the place, and leaves no dataset."""

from __future__ import annotations

import numpy as np
import pytest

from hopstream.errors import SchemaError
from hopstream.preparation.dispatch.dispatch_job import dispatch
from tests.ingest.chunked.folders import AUTHORS, FEAT, PAPERS, Folder, make_folder
from tests.ingest.chunked.test_columns import BAD_COLUMNS
from tests.ingest.chunked.test_edges import BAD_EDGES
from tests.ingest.chunked.test_opening import REFUSALS
from tests.ingest.chunked.test_ragged import BAD as BAD_RAGGED


@pytest.fixture
def folder(tmp_path) -> Folder:
    (tmp_path / "in").mkdir()
    (tmp_path / "owners").mkdir()
    for node_type, num_nodes in (("author", AUTHORS), ("paper", PAPERS), ("place", 0)):
        np.save(tmp_path / f"owners/{node_type}.npy", np.arange(num_nodes) % 2)
    return make_folder(tmp_path / "in")


def check_refused(folder: Folder, error: type[Exception], message: str) -> None:
    work = folder.root.parent
    with pytest.raises(error, match=message):
        dispatch(folder.save(), work / "owners", work / "got", num_parts=2, num_workers=0)
    assert sorted(path.name for path in work.iterdir()) == ["in", "owners"]


def test_valid_input_is_dispatched(folder):
    work = folder.root.parent
    manifest = dispatch(folder.save(), work / "owners", work / "got", num_parts=2, num_workers=0)
    assert manifest.book.num_ids("author") == AUTHORS and (work / "got/manifest.json").is_file()


@pytest.mark.parametrize("case", REFUSALS)
def test_bad_metadata_is_refused(folder, case):
    change, error, message = REFUSALS[case]
    change(folder.metadata)
    check_refused(folder, error, message)


@pytest.mark.parametrize("case", BAD_EDGES)
def test_bad_edges_are_refused(folder, case):
    file_format, contents, error, message = BAD_EDGES[case]
    folder.set_edges(file_format, contents)
    check_refused(folder, error, message)


@pytest.mark.parametrize("case", [case for case in BAD_COLUMNS if case != "objects"])
def test_bad_features_are_refused(folder, case):
    file_format, contents, error, message = BAD_COLUMNS[case]
    folder.set_feat("numpy", [FEAT])
    folder.set_feat(file_format, contents)
    check_refused(folder, error, message)


@pytest.mark.parametrize("case", BAD_RAGGED)
def test_bad_ragged_features_are_refused(folder, case):
    contents, message = BAD_RAGGED[case]
    folder.set_feat("parquet", contents)
    check_refused(folder, SchemaError, message)


@pytest.mark.parametrize("name", ["n/1.npy", "e/2.csv", "w/1.npy"])
@pytest.mark.parametrize("kept", [0.0, 0.5, 0.8])
def test_truncated_files_are_refused_by_name(folder, name, kept):
    path = folder.root / name
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])
    check_refused(folder, ValueError, name)
