"""Checks that ``hopstream export`` and ``tfgnn-sample`` write samples and refuse bad arguments."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import RunCommand
from tests.export.worlds import digests, some_seeds, write_world


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    write_world(folder)
    (folder / "seeds.csv").write_text("\n".join(["#id", *some_seeds(20)]))
    return folder


@pytest.fixture
def world(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path, dirs_exist_ok=True)


def words_of(world: Path, *more: object) -> tuple[object, ...]:
    return (
        "export", world / "parts", "--spec", world / "spec.pbtxt", "--out", f"{world}/out/x.tfrecord@2", "--workers", 0,
        *more,
    )  # fmt: skip


def sampler_words(world: Path, *more: object) -> tuple[object, ...]:
    return (
        "tfgnn-sample", "--graph_schema", world / "parts", "--sampling_spec", world / "spec.pbtxt",
        "--output_samples", f"{world}/same/x.tfrecord@2", "--workers", 0, *more,
    )  # fmt: skip


def test_export_prints_plan_progress_and_result(run_command: RunCommand, world: Path):
    result = run_command(*words_of(world, "--seeds", world / "seeds.csv", "--seed-ids"))
    assert (result.status, result.err) == (0, "")
    lines = result.out.splitlines()
    assert [line.split()[0] for line in lines] == ["plan", "write", "speed", "clock", "done"]
    assert lines[0] == "plan    export   20 seeds in 2 shards of tfrecord"
    assert "20 subgraphs, " in lines[1] and "of a core: sample " in lines[2]
    assert lines[4] == f"done    {world}/out/x.tfrecord.pbtxt"


def test_export_prints_json_records_of_its_stages(run_command: RunCommand, world: Path):
    result = run_command(*words_of(world, "--json", "--subgraph-type", "induced"))
    assert [fact["stage"] for fact in result.facts] == ["plan", "write", "speed", "done"]
    assert result.fact("stage", "write")["subgraphs"] == 25
    assert result.fact("stage", "write")["bytes"] == sum(p.stat().st_size for p in (world / "out").glob("*-of-*"))
    for kind in ("core_seconds", "wall_seconds"):
        assert set(result.fact("stage", "speed")[kind]) == {"sample", "gather", "encode", "write"}


@pytest.mark.parametrize("edges", ["edge", "node"])
def test_the_sampler_of_tfgnn_is_the_same(run_command: RunCommand, world: Path, edges: str):
    kind = {"edge": "directional", "node": "induced"}[edges]
    assert run_command(*words_of(world, "--seeds", world / "seeds.csv", "--subgraph-type", kind)).status == 0
    more = ("--input_seeds", world / "seeds.csv", "--edge_aggregation_method", edges)
    assert run_command(*sampler_words(world, *more)).status == 0
    assert digests(world / "out") == digests(world / "same")


@pytest.mark.slow
def test_the_sampler_on_beam(run_command: RunCommand, world: Path):
    assert run_command(*words_of(world)).status == 0
    result = run_command(
        *sampler_words(world, "--workers", 1, "--runner", "DirectRunner", "--", "--direct_running_mode=in_memory")
    )
    assert (result.status, result.err) == (0, "")
    assert digests(world / "out") == digests(world / "same")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--shards", 3), "error: --out is "),
        (("--seeds", "seeds.xls"), "error: --seeds are 'seeds.xls'; the name must end in one of .csv"),
        (("--leave-out", "paper.x"), "error: --leave-out names 'paper.x'; the graph has ["),
        (("--split", "test"), "error: node type 'author' has no split 'test'"),
    ],
)
def test_bad_options_are_refused(run_command: RunCommand, world: Path, more: tuple[object, ...], message: str):
    result = run_command(*words_of(world, *more))
    assert result.status == 2 and result.err.startswith(message), result.err


def test_a_table_of_seeds_without_the_column(run_command: RunCommand, world: Path):
    (world / "bad.csv").write_text("who\nauthor 1\n")
    result = run_command(*words_of(world, "--seeds", world / "bad.csv"))
    assert result.status == 2
    assert result.err.endswith(
        "bad.csv has no column '#id' or 'id'; its columns are ['who']; rename the column, or name it with "
        "--seed-column of hopstream export\n"
    )
    assert run_command(*words_of(world, "--seeds", world / "bad.csv", "--seed-column", "who")).status == 0


def test_an_unknown_seed(run_command: RunCommand, world: Path):
    (world / "bad.csv").write_text("#id\nauthor 1\nauthor 77\n")
    result = run_command(*words_of(world, "--seeds", world / "bad.csv"))
    assert result.status == 2
    assert result.err == (
        "error: bad.csv line 3: seed 'author 77' is not a node of type author; feature '#id' of its 25 "
        "nodes does not contain it\n"
    )


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--data_path", "x"), "error: --data-path is 'x'; wanted an existing folder"),
        (
            ("--graph_schema", "tcp://h:1"),
            "error: --graph_schema is tcp://h:1, the address of a server; give a unigraph or",
        ),
        (("--graph_schema", "s3://b/x"), "error: s3://b/x is not on this machine"),
        (
            ("--sampling_spec", "tcp://h:1"),
            "error: tcp://h:1 is the address of a server; give the path of a local file",
        ),
        (("--labels", "x"), "error: --labels are ['x'], but there is no readout to move them to; give --readout"),
        (("--direct_num_workers", 2), "error: --direct_num_workers is not for this sampler: give --workers"),
        (("--edge_aggregation_method", "graph"), "error: --edge_aggregation_method is 'graph'; it must be one of"),
        (("--", "--region=x"), "error: ['--region=x'] are options of a Beam pipeline; give --runner too"),
        (("--on_dangling", "keep"), "error: --on_dangling is 'keep'; it must be one of error, drop"),
        (("--gcs_bucket", "x"), "error: No such option: --gcs_bucket"),
    ],
)
def test_sampler_flags_without_effect_are_refused(run_command: RunCommand, world: Path, more, message: str):
    result = run_command(*sampler_words(world, *more))
    assert result.status == 2 and result.err.startswith(message), result.err
    assert not (world / "same").exists()


def test_places_and_sources_that_cannot_be_are_one_line(run_command: RunCommand, world: Path):
    (world / "file").write_text("")
    result = run_command(*words_of(world, "--out", world / "file/x"))
    assert result.status == 2 and result.err.count("\n") == 1
    assert f"--out is {world}/file/x, which cannot be written" in result.err
    result = run_command(*words_of(world, "--out", "/proc/none/x"))
    assert result.status == 2 and "--out is /proc/none/x, which cannot be written" in result.err
    result = run_command(*words_of(world, "--out", world / "x.parquet"))
    assert result.status == 2 and "--file-format is tfrecord; give --file-format parquet" in result.err
    (world / "none").mkdir()
    words = ("export", world / "none", "--spec", world / "spec.pbtxt", "--out", world / "x", "--workers", 0)
    result = run_command(*words)
    assert result.status == 2 and f"hopstream partition {world}/none --direction out" in result.err


def test_the_schema_of_a_unigraph_is_not_replaced(run_command: RunCommand, world: Path):
    schema = world / "schema.pbtxt"
    schema.write_text('node_sets { key: "n" value { metadata { filename: "n.csv" } } }')
    before = schema.read_bytes()
    result = run_command(*words_of(world, "--out", schema.with_suffix(""), "--overwrite"))
    assert result.status == 2 and "is the schema of a unigraph, not of an export; give another name" in result.err
    assert schema.read_bytes() == before


def test_directions_are_named_by_flags(run_command: RunCommand, world: Path):
    assert run_command("partition", world / "parts", "--out", world / "in").status == 0
    result = run_command("export", world / "in", "--spec", world / "spec.pbtxt", "--out", world / "x", "--workers", 0)
    assert result.status == 2 and "write the parts with --direction out or --direction both" in result.err
