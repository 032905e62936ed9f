"""Checks that the command line cuts graphs as ``write_parts`` does."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from hopstream.dataset.layout import open_dataset, read_manifest
from hopstream.dataset.settings import PartitionSettings
from hopstream.graph.graph import Graph
from hopstream.preparation.write import write_parts
from tests.dataset.timed_graphs import LIKES, timed_graph


@pytest.fixture
def one(typed_graph: Graph, tmp_path: Path) -> Path:
    write_parts(typed_graph, tmp_path / "one")
    return tmp_path / "one"


def test_stages_are_shown(run_command, one: Path, tmp_path: Path):
    result = run_command("partition", one, "--parts", "3", "--out", tmp_path / "p")
    assert result.status == 0 and result.err == ""
    lines = result.out.splitlines()
    assert [line.split()[0] for line in lines] == ["read", "assign", "measure", "balance", "write", "done"]
    assert lines[0].startswith("read    dataset  3 node types, 3 edge types, 435 edges ")
    assert lines[1].startswith("assign  kaminpar 3 parts, balanced by bytes ")
    assert "% of 435 edges cut" in lines[2] and "seeds paper/train" in lines[3]
    assert lines[-1] == f"done    {tmp_path}/p/manifest.json   format 1"
    assert all(line.endswith(" peak") for line in (*lines[:3], lines[4]))
    open_dataset(tmp_path / "p", verify=True)


def test_json_has_the_same_facts(run_command, one: Path, tmp_path: Path):
    result = run_command("partition", one, "--parts", "3", "--out", tmp_path / "p", "--json")
    manifest = read_manifest(tmp_path / "p")
    assert [fact["stage"] for fact in result.facts] == ["read", "assign", "measure", "write", "done"]
    measured = result.fact("stage", "measure")
    assert measured["cut"] == manifest.report.cut.fraction and measured["balance"] == manifest.report.balance
    assert result.fact("stage", "write")["bytes"] == sum(manifest.report.bytes)
    assert result.fact("stage", "done")["dataset_id"] == manifest.dataset_id


def test_flags_are_the_settings(run_command, typed_graph: Graph, one: Path, tmp_path: Path):
    flags = "--parts 2 --method random --direction both --rng-seed 7 --no-keep-edge-keys --balance nodes"
    result = run_command(
        "partition", one, "--out", tmp_path / "p", *flags.split(), "--imbalance", "0.5", "--threads", 2
    )
    assert result.status == 0, result.err
    settings = PartitionSettings(
        num_parts=2, method="random", direction="both", rng_seed=7, keep_edge_keys=False, balance="nodes",
        imbalance=0.5, num_threads=2,
    )  # fmt: skip
    wanted = write_parts(typed_graph, tmp_path / "q", settings=settings)
    got = read_manifest(tmp_path / "p")
    assert got.dataset_id == wanted.dataset_id and dict(got.made_by) == dict(wanted.made_by)


def test_times_weights_and_links_have_flags(run_command, rng, tmp_path: Path):
    graph = timed_graph(rng)
    write_parts(graph, tmp_path / "one")
    flags = "--parts 2 --method hash --time-attr time --weight-attr rating --neighbor-keys"
    links = "--links user__knows__user --links user__rates__movie"
    result = run_command("partition", tmp_path / "one", "--out", tmp_path / "p", *flags.split(), *links.split())
    assert result.status == 0, result.err
    wanted = write_parts(
        graph, tmp_path / "q", num_parts=2, method="hash", time_attr="time", weight_attr="rating", neighbor_keys=True,
        links=("user__knows__user", "user__rates__movie"),
    )  # fmt: skip
    got = read_manifest(tmp_path / "p")
    assert got.dataset_id == wanted.dataset_id and dict(got.made_by) == dict(wanted.made_by)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--links", "user_knows_user"], "--links is ('user_knows_user',); it must be a list of edge types"),
        (["--links", "a__b__c"], "links name edge type 'a__b__c'; known: ['user__rates__movie'"),
        (["--time-attr", "when"], "--time-attr is 'when'; no node or edge type has such a feature"),
        (["--weight-attr", "number"], "movie__like__movie.number is 0"),
        (["--time-attr", "rating"], "user__rates__movie.rating is float32[rows]; times are integers"),
    ],
)
def test_bad_times_weights_and_links_are_the_users_fault(run_command, rng, tmp_path: Path, flags, message):
    graph = timed_graph(rng)
    graph.edges[LIKES].features["number"][:] = 0
    write_parts(graph, tmp_path / "one")
    result = run_command("partition", tmp_path / "one", "--out", tmp_path / "p", *flags)
    assert result.status == 2 and message in result.err
    assert not (tmp_path / "p").exists()


def test_every_setting_has_a_flag(run_command):
    shown = run_command("partition", "--help").out
    for field in fields(PartitionSettings):
        assert f"--{field.name.removeprefix('num_').replace('_', '-')} " in shown


def test_parts_of_parts(run_command, typed_graph: Graph, one: Path, tmp_path: Path):
    for source, out, count in ((one, "a", 4), (tmp_path / "a", "b", 2)):
        arguments = (source, "--out", tmp_path / out, "--parts", count, "--method", "hash")
        assert run_command("partition", *arguments).status == 0
    wanted = write_parts(typed_graph, tmp_path / "q", num_parts=2, method="hash")
    assert read_manifest(tmp_path / "b").dataset_id == wanted.dataset_id


def test_tables_are_cut_directly(run_command, tables: Path, tmp_path: Path):
    arguments = ("--parts", 2, "--method", "random", "--out", tmp_path / "p", "--on-dangling", "drop")
    result = run_command("partition", tables, *arguments)
    assert result.status == 0 and "1 dropped" in result.out
    assert read_manifest(tmp_path / "p").book.num_ids("author") == 2


def test_owners_from_files(run_command, typed_graph: Graph, one: Path, tmp_path: Path):
    (tmp_path / "owners").mkdir()
    for node_type, table in typed_graph.nodes.items():
        np.save(tmp_path / "owners" / f"{node_type}.npy", np.arange(table.num_nodes) % 2)
    arguments = (one, "--out", tmp_path / "p", "--parts", 2, "--method", "file", "--owners", tmp_path / "owners")
    assert run_command("partition", *arguments).status == 0
    keys = open_dataset(tmp_path / "p").open_part(1).node_keys["author"]
    np.testing.assert_array_equal(keys, np.arange(1, 25, 2))
    np.save(tmp_path / "owners" / "paper.npy", np.full(60, 5))
    result = run_command("partition", *arguments, "--overwrite")
    assert result.status == 2 and "parts are numbered 0..1" in result.err


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (("--method", "file"), "--method file needs --owners"),
        (("--owners", "x"), "--owners is only for --method file, and --method is kaminpar"),
        (("--method", "metis", "--owners", "x"), "--owners is only for --method file, and --method is metis"),
    ],
)
def test_owners_and_their_method_go_together(
    run_command, one: Path, tmp_path: Path, extra: tuple[str, ...], message: str
):
    result = run_command("partition", one, "--out", tmp_path / "p", *extra)
    assert result.status == 2 and message in result.err


def test_an_occupied_output_is_refused_before_the_source_is_read(run_command, one: Path, tmp_path: Path):
    (tmp_path / "broken.npz").write_text("not read")
    for verb in ("partition", "ingest"):
        result = run_command(verb, tmp_path / "broken.npz", "--out", one)
        assert (
            result.status == 2 and result.err == f"error: {one} holds a dataset; give --overwrite or another folder\n"
        )


def test_wrong_owners_leave_the_old_dataset(run_command, one: Path, tmp_path: Path):
    assert run_command("partition", one, "--out", tmp_path / "p", "--parts", 2, "--method", "hash").status == 0
    (tmp_path / "owners").mkdir()
    arguments = ("--method", "file", "--owners", tmp_path / "owners", "--overwrite", "--parts", 2)
    result = run_command("partition", one, "--out", tmp_path / "p", *arguments)
    assert result.status == 2 and "neither" in result.err
    open_dataset(tmp_path / "p", verify=True)


def test_a_folder_that_cannot_be_made_is_named(run_command, one: Path):
    result = run_command("partition", one, "--out", "/proc/nowhere")
    assert result.status == 2 and result.err.endswith("'/proc/nowhere'\n")


@pytest.mark.parametrize("out", ["one", "one/parts", "."])
def test_nothing_is_written_over_the_source(run_command, one: Path, tmp_path: Path, out: str):
    result = run_command("partition", one, "--out", tmp_path / out, "--overwrite")
    assert result.status == 2 and "; give a folder apart from the input" in result.err
    open_dataset(one, verify=True)


def test_a_damaged_dataset(run_command, one: Path, tmp_path: Path):
    (one / "part-00000/node/paper/key.npy").write_bytes(b"short")
    result = run_command("partition", one, "--out", tmp_path / "p")
    assert result.status == 2 and "key.npy" in result.err
