"""Checks that storage machines prepare given tables once, and again after the tables changed."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopstream.compat.gigl.distributed.graph_store import build_storage_dataset, storage_utils
from hopstream.compat.gigl.utils.data_splitters import DistNodeSplitter
from hopstream.dataset.settings import PartitionSettings
from hopstream.engine.settings import WorkSettings
from hopstream.errors import FormatError, SchemaError, SettingsError, StateError
from hopstream.ingest.from_arrays import graph_from_arrays
from hopstream.preparation.write import write_parts
from tests.preparation.test_prepare import write_tables

WORK = WorkSettings(memory="2GiB", num_workers=0)
WAIT_S = 60.0


GRAPH = graph_from_arrays({("user", "follows", "user"): np.zeros((2, 1), np.int64)}, num_nodes={"user": 200})


def prepare_soon(source: Path, out: Path, *, settings: PartitionSettings, work: WorkSettings | None) -> None:
    """Replace ``prepare``: write a dataset with the same numbers of users and parts."""
    write_parts(GRAPH, out, num_parts=settings.num_parts, method="hash", direction=settings.direction)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The memory given to each preparation; datasets are made without the tables."""
    found: list[Any] = []
    monkeypatch.setattr(storage_utils, "prepare", lambda *a, **k: (found.append(k["work"]), prepare_soon(*a, **k))[1])
    return found


def built(source: Path, world_size: int, **options: Any) -> list[Path]:
    """Build the datasets of all machines together; check that they hold every user once; return folders."""

    def build(rank: int) -> tuple[Path, list[int]]:
        dataset = build_storage_dataset(source, "in", rank=rank, world_size=world_size, work=WORK, **options)
        keys = dataset.own_keys("user").tolist()
        assert set(dataset.store.directions) == {"in", "out"} and len(dataset.parts) == 1
        dataset.close()
        return dataset.folder, keys

    with ThreadPoolExecutor(world_size) as pool:
        found = list(pool.map(build, range(world_size), timeout=WAIT_S))
    assert sorted(key for _, keys in found for key in keys) == list(range(200))
    return [folder for folder, _ in found]


def test_machines_prepare_tables_once(tmp_path: Path, rng: np.random.Generator, calls: list[Any]) -> None:
    source = write_tables(tmp_path / "tables", rng)
    first = built(source, 3)
    assert calls == [WORK] and len(set(first)) == 1
    assert first[0].parent == source.parent and first[0].name.startswith(f"{source.name}.hopstream-")
    assert built(source, 3) == first and len(calls) == 1
    assert built(source, 2)[0] != first[0] and len(calls) == 2
    users = tmp_path / "tables" / "users.csv"
    os.utime(users, ns=(1, 1))
    assert built(source, 3)[0] != first[0] and len(calls) == 3


def test_the_caller_chooses_place_and_settings(tmp_path: Path, rng: np.random.Generator) -> None:
    tables = write_tables(tmp_path / "tables", rng) / "metadata.json"
    settings = PartitionSettings(num_parts=2, method="hash", direction="both", neighbor_keys=True)
    (folder, same) = built(tables, 2, prepared=tmp_path / "kept" / "here", settings=settings)
    assert folder == same and folder.parent == tmp_path / "kept" / "here"
    assert folder.name.startswith("metadata.json.hopstream-")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "tables"]


def test_unusable_input_is_refused(tmp_path: Path, rng: np.random.Generator) -> None:
    def build(source: Path, **options: Any) -> None:
        build_storage_dataset(source, "in", rank=0, world_size=1, work=WORK, **options)

    with pytest.raises(FormatError, match="nothing is missing"):
        build(tmp_path / "nothing")
    tables = write_tables(tmp_path / "tables", rng)
    with pytest.raises(ValueError, match="name columns of splits in the description of the tables"):
        build(tables, splitter=DistNodeSplitter())
    (tables / "follows.csv").write_text("src,dst\nnobody,u0\n")
    with pytest.raises(SchemaError, match="nobody"):
        build(tables)
    assert [path.name for path in tmp_path.iterdir()] == ["tables"]


def test_a_failed_preparation_raises_immediately(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables, calls = write_tables(tmp_path / "tables", rng), []

    def fail(*_: Any, **__: Any) -> None:
        calls.append(1)
        raise StateError("another call was ended here")

    monkeypatch.setattr(storage_utils, "prepare", fail)
    with pytest.raises(StateError, match="another call was ended here"):
        build_storage_dataset(tables, "in", rank=0, world_size=1, timeout_seconds=0.5)
    assert len(calls) == 1 and [path.name for path in tmp_path.iterdir()] == ["tables"]


def test_only_the_same_tables_are_waited_for(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one dataset is prepared, another one in the same folder is prepared too."""
    first, second = write_tables(tmp_path / "first", rng), write_tables(tmp_path / "second", rng)
    others = [first, second]

    def build(source: Path) -> None:
        build_storage_dataset(source, "in", rank=0, world_size=1, work=WORK, timeout_seconds=0.3).close()

    def prepare(source: Path, out: Path, **options: Any) -> None:
        if others:
            with pytest.raises(StateError, match=r"first\.hopstream-\w+ has been prepared by another process"):
                build(others.pop(0))
            build(others.pop(0))
        prepare_soon(source, out, **options)

    monkeypatch.setattr(storage_utils, "prepare", prepare)
    build(first)
    names = sorted(path.name.rpartition("-")[0] or path.name for path in tmp_path.iterdir())
    assert names == ["first", "first.hopstream", "second", "second.hopstream"] and not others


@pytest.mark.parametrize(
    ("told", "options"),
    [
        ("'sideways'; it must be 'in' or 'out'", {"sample_edge_direction": "sideways"}),
        ("max_labels_per_anchor_node is 0", {"max_labels_per_anchor_node": 0}),
        ("rank is 2", {"rank": 2}),
        ("rank is -1", {"rank": -1}),
        ("world_size is 0", {"world_size": 0}),
        ("num_parts is 1; ", {"settings": PartitionSettings(num_parts=1, direction="both")}),
        ("direction is 'out'; ", {"settings": PartitionSettings(num_parts=2, direction="out")}),
    ],
)
def test_wrong_settings_are_refused_before_tables_are_prepared(
    told: str, options: dict[str, Any], tmp_path: Path, rng: np.random.Generator, calls: list[Any]
) -> None:
    given = {"sample_edge_direction": "in", "rank": 0, "world_size": 2, "work": WORK, **options}
    with pytest.raises(SettingsError, match=told):
        build_storage_dataset(write_tables(tmp_path / "tables", rng), **given)
    assert calls == []
