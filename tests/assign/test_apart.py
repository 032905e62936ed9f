"""Checks that every way to prepare a dataset refuses folders nested in each other."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import hopstream
from hopstream.assign.run import assign_folder
from hopstream.assign.source import open_dataset_source
from hopstream.engine.settings import WorkSettings
from hopstream.errors import SettingsError
from hopstream.ingest.chunked import open_chunked, write_chunked
from hopstream.ingest.chunking.run import chunk_tables
from hopstream.preparation.compact import compact

HASH = {"num_parts": 2, "method": "hash"}


@pytest.fixture
def mag(tmp_path: Path) -> Path:
    """Folder with what users of DGL have: a chunked graph, its parts, a dataset and tables."""
    graph = hopstream.rmat_graph(6, num_features=2)
    write_chunked(graph, tmp_path / "chunked", num_chunks=2)
    assign_folder(open_chunked(tmp_path / "chunked"), tmp_path / "2parts", **HASH)
    hopstream.write_parts(graph, tmp_path / "set", **HASH)
    tables = tmp_path / "tables"
    tables.mkdir()
    (tables / "users.csv").write_text("id\n7\n9\n")
    (tables / "knows.csv").write_text("a,b\n7,9\n")
    nodes = {"user": {"files": "users.csv", "id": "id"}}
    edges = [{"type": ["user", "knows", "user"], "files": "knows.csv", "src": "a", "dst": "b"}]
    (tables / "metadata.json").write_text(json.dumps({"nodes": nodes, "edges": edges}))
    return tmp_path


def dispatch(mag: Path, out: str) -> None:
    hopstream.dataset.dispatch(mag / "chunked", mag / "2parts", mag / out, num_workers=0, overwrite=True)


def reshard(mag: Path, out: str) -> None:
    hopstream.dataset.reshard(mag / "set", mag / out, partitions_dir=mag / "2parts", num_workers=0, overwrite=True)


def prepare(mag: Path, out: str) -> None:
    hopstream.prepare(mag / "chunked", mag / out, work=WorkSettings(num_workers=0), overwrite=True, **HASH)


def prepare_tables(mag: Path, out: str) -> None:
    hopstream.prepare(mag / "tables", mag / out, work=WorkSettings(num_workers=0), overwrite=True, **HASH)


def write(mag: Path, out: str) -> None:
    graph = open_chunked(mag / "chunked").load()
    hopstream.write_parts(graph, mag / out, num_parts=2, owners=mag / "2parts", overwrite=True)


def assign(mag: Path, out: str) -> None:
    assign_folder(open_chunked(mag / "chunked"), mag / out, overwrite=True, **HASH)


def assign_dataset(mag: Path, out: str) -> None:
    assign_folder(open_dataset_source(mag / "set"), mag / out, overwrite=True, **HASH)


def chunk(mag: Path, out: str) -> None:
    chunk_tables(mag / "tables", mag / out, num_workers=0)


READS = [
    (dispatch, "chunked"), (dispatch, "2parts"), (reshard, "set"), (reshard, "2parts"), (prepare, "chunked"),
    (prepare_tables, "tables"), (write, "2parts"), (assign, "chunked"), (assign_dataset, "set"), (chunk, "tables"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "read"), READS)
def test_folders_in_each_other_are_refused_and_left_alone(mag: Path, make: Callable[[Path, str], None], read: str):
    before = sorted(mag.rglob("*"))
    for out, how in ((read, "itself"), (f"{read}/new", f"which lies in {mag / read}, the"), (".", "which holds ")):
        with pytest.raises(SettingsError, match=f"{how}.*; give a folder apart from the input"):
            make(mag, out)
        assert sorted(mag.rglob("*")) == before


def test_owners_in_the_dataset_that_is_replaced(mag: Path):
    with pytest.raises(SettingsError, match=r"which holds .*/set/owners, the folder of owners"):
        compact(mag / "set", partitions_dir=mag / "set/owners")


def test_assigning_needs_a_number_of_parts(mag: Path):
    with pytest.raises(SettingsError, match="num_parts is missing"):
        assign_folder(open_chunked(mag / "chunked"), mag / "new", method="hash")
    assert not (mag / "new").exists()
