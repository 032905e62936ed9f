"""Checks that tables and chunks become, in bounded memory, the dataset of the graph in memory."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import hopstream
from hopstream.dataset.settings import PartitionSettings
from hopstream.engine.settings import WorkSettings
from hopstream.errors import IdRangeError, SchemaError, SettingsError, UnknownNameError
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.ingest.chunked import open_chunked, write_chunked
from hopstream.ingest.chunking.run import chunk_tables
from hopstream.ingest.tables import TableSettings
from hopstream.preparation import prepare as module
from hopstream.preparation.halo.settings import HaloSettings
from hopstream.preparation.plan import GROUPED_BYTES, PreparePlan, allot_phases, plan_phases
from hopstream.preparation.prepare import AssignReport, News, prepare
from hopstream.preparation.write import write_parts
from tests.dataset.graphs import community_graph
from tests.preparation.dispatch.sources import check_same

WORK = WorkSettings(memory="2GiB", num_workers=0)


def write_tables(folder: Path, rng: np.random.Generator) -> Path:
    """Tables of users with names, who follow one another."""
    folder.mkdir()
    names = [f"u{n}" for n in rng.permutation(200)]
    (folder / "users.csv").write_text("id,age\n" + "".join(f"{n},{a}\n" for a, n in enumerate(names)))
    pairs = rng.choice(names, (900, 2))
    (folder / "follows.csv").write_text("src,dst\n" + "".join(f"{a},{b}\n" for a, b in pairs))
    description = {
        "nodes": {"user": {"files": "users.csv", "id": "id"}},
        "edges": [{"type": ["user", "follows", "user"], "files": "follows.csv", "src": "src", "dst": "dst"}],
    }
    (folder / "metadata.json").write_text(json.dumps(description))
    return folder


@pytest.mark.parametrize("method", ["kaminpar", "ldg"])
def test_chunks_give_the_same_dataset_as_write_parts(tmp_path, rng, method):
    graph = community_graph(rng, 300, 2000)
    write_chunked(graph, tmp_path / "in", num_chunks=3)
    told: list[str] = []
    got = prepare(
        tmp_path / "in", tmp_path / "got", num_parts=3, method=method, direction="both", work=WORK,
        progress=lambda stage, done, total: told.append(stage),
    )  # fmt: skip
    wanted = write_parts(graph, tmp_path / "wanted", num_parts=3, method=method, direction="both")
    check_same(tmp_path / "got", tmp_path / "wanted", got, wanted)
    assert (
        list(dict.fromkeys(stage.split()[0] for stage in told)) == ["assign", "dispatch"]
        and list(tmp_path.glob(".*")) == []
    )


def test_edges_that_just_fit_in_memory_are_not_sorted_on_disk(tmp_path, rng, monkeypatch):
    graph = open_chunked(write_chunked(community_graph(rng, 30, 100), tmp_path / "in", num_chunks=1))
    settings = PartitionSettings(num_parts=3, method="ldg")
    work = allot_phases(graph, settings, WORK, None)
    num_edges = sum(edges.num_edges for edges in graph.edges.values())
    disk_bytes = []
    for left in (GROUPED_BYTES * num_edges, GROUPED_BYTES * num_edges - 1):
        monkeypatch.setattr("hopstream.preparation.plan.memory_for_edges", lambda *_, left=left: left)
        disk_bytes.append(plan_phases(graph, settings, work, None, has_owners=False)[0].disk_bytes)
    assert disk_bytes[0] == 0 < disk_bytes[1]


def test_tables_give_the_same_dataset_as_write_parts(tmp_path, rng):
    tables = write_tables(tmp_path / "tables", rng)
    options = {"num_parts": 3, "method": "ldg", "neighbor_keys": True}
    reading = TableSettings(keep_raw_ids=False)
    news: list[News] = []
    got = prepare(tables, tmp_path / "got", work=WORK, tables=reading, on_news=news.append, **options)
    first, _, second, assigned = news
    assert isinstance(first, PreparePlan) and isinstance(second, PreparePlan) and isinstance(assigned, AssignReport)
    assert [phase.name for phase in first.phases] == ["chunk", "assign", "dispatch"]
    assert [phase.input_bytes is None for phase in first.phases] == [False, True, True]
    assert [phase.is_done for phase in second.phases] == [True, False, False] and first.numbers == second.numbers
    assert all(phase.num_tasks and phase.budget_bytes for phase in second.phases[1:])
    assert assigned.num_parts == 3 and assigned.cut is not None
    wanted = write_parts(hopstream.read_graph(tables, keep_raw_ids=False), tmp_path / "wanted", **options)
    check_same(tmp_path / "got", tmp_path / "wanted", got, wanted)
    assert list(tmp_path.glob(".*")) == []


def test_prepare_resumes_after_an_interruption(tmp_path, monkeypatch, rng):
    graph = community_graph(rng, 300, 2000)
    write_chunked(graph, tmp_path / "in", num_chunks=3)

    def stop(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "dispatch_job", stop)
        with pytest.raises(KeyboardInterrupt):
            prepare(tmp_path / "in", tmp_path / "got", num_parts=2, work=WORK)
    assert not (tmp_path / "got").exists()
    (owners,) = tmp_path.glob(".got.work/*/owners/node.npy")
    before = owners.stat().st_mtime_ns
    seen = []
    real = module.dispatch_job
    monkeypatch.setattr(module, "dispatch_job", lambda *a, **k: seen.append(owners.stat().st_mtime_ns) or real(*a, **k))
    got = prepare(tmp_path / "in", tmp_path / "got", num_parts=2, work=WORK)
    assert seen == [before]
    check_same(tmp_path / "got", tmp_path / "wanted", got, write_parts(graph, tmp_path / "wanted", num_parts=2))
    assert list(tmp_path.glob(".*")) == []


def test_an_error_of_the_input_leaves_nothing(tmp_path, rng):
    graph = community_graph(rng, 50, 100)
    write_chunked(graph, tmp_path / "in", num_chunks=2, edges_format="csv")
    path = sorted((tmp_path / "in/edges").iterdir())[1]
    path.write_text(path.read_text().replace("\n", "999\n", 1))
    with pytest.raises(IdRangeError, match=f"{path.name} line 1"):
        prepare(tmp_path / "in", tmp_path / "got", num_parts=2, method="hash", work=WORK)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in"]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"weight_attr": "ww"}, UnknownNameError, "weight_attr is 'ww'; no edge type has such a feature"),
        ({"weight_attr": "age"}, UnknownNameError, "weight_attr is 'age'; no edge type has such a feature"),
        ({"weight_attr": "note"}, SchemaError, "user__follows__user.note is string; weights are"),
        ({"time_attr": "tw"}, UnknownNameError, "time_attr is 'tw'; .*; did you mean 'w'"),
        ({"time_attr": "w"}, SchemaError, r"user__follows__user.w is float32\[rows\]; times are integers"),
        ({"links": ["user__likes__user"]}, UnknownNameError, "links name edge type 'user__likes__user'"),
        ({"halo": HaloSettings(features=["user:size"])}, UnknownNameError, "no feature 'size'"),
    ],
)
@pytest.mark.parametrize("is_chunked", [False, True])
def test_names_are_checked_before_any_work(tmp_path, rng, monkeypatch, options, error, message, is_chunked):
    source = write_tables(tmp_path / "tables", rng)
    (source / "follows.csv").write_text("src,dst,w,note\nu1,u2,0.5,x\n")
    description = json.loads((source / "metadata.json").read_text())
    description["nodes"]["user"]["features"] = ["age"]
    features = {"w": {"column": "w", "dtype": "float32"}, "note": {"column": "note", "dtype": "string"}}
    description["edges"][0]["features"] = features
    (source / "metadata.json").write_text(json.dumps(description))
    if is_chunked:
        chunk_tables(source, tmp_path / "chunked", memory="2GiB", num_workers=0)
        source = tmp_path / "chunked"
    before = sorted(tmp_path.iterdir())

    def work(*_: object) -> None:
        raise AssertionError("work has begun")

    monkeypatch.setattr(module, "place_to_write", work)
    with pytest.raises(error, match=message):
        prepare(source, tmp_path / "got", num_parts=2, work=WORK, **options)
    assert sorted(tmp_path.iterdir()) == before


def test_dtypes_found_in_files_are_checked_before_assignment(tmp_path, rng, monkeypatch):
    source = write_tables(tmp_path / "tables", rng)
    description = json.loads((source / "metadata.json").read_text())
    description["nodes"]["user"]["features"] = {"name": "id"}
    (source / "metadata.json").write_text(json.dumps(description))
    monkeypatch.setattr(module, "allot_phases", None)
    with pytest.raises(SchemaError, match=r"user\.name is string; times are"):
        prepare(source, tmp_path / "got", num_parts=2, work=WORK, time_attr="name")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["tables"]


def test_bad_arguments_are_refused(tmp_path, rng):
    graph = community_graph(rng, 50, 100)
    write_chunked(graph, tmp_path / "in", num_chunks=2)
    with pytest.raises(SettingsError, match="give dispatch the folder with the part of each node, as partitions_dir"):
        prepare(tmp_path / "in", tmp_path / "got", method="file", work=WORK)
    with pytest.raises(SettingsError, match="neither tables nor a chunked graph"):
        prepare(tmp_path / "in/edges", tmp_path / "got", work=WORK)
    big = Graph(nodes={"n": NodeTable(num_nodes=1 << 24)}, edges={("n", "to", "n"): EdgeTable(
        src_keys=np.zeros(0, np.int64), dst_keys=np.zeros(0, np.int64))})  # fmt: skip
    write_chunked(big, tmp_path / "big", num_chunks=1)
    work, settings = WorkSettings(memory="1GiB"), PartitionSettings(num_parts=2, method="ldg")
    with pytest.raises(SettingsError, match=r"method 'ldg' on 16777216 nodes and 0 edges needs at least 1\.1 GB"):
        allot_phases(open_chunked(tmp_path / "big"), settings, work, None)
