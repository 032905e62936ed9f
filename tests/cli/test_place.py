"""Checks that parts get from the writing command to the servers of several machines."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import hopstream
from hopstream.ingest.chunked import write_chunked
from hopstream.transfer.place import place
from tests.dataset.graphs import tree_of
from tests.ports import free_ports

NUM_NODES = 256


@pytest.fixture
def chunks(tmp_path: Path) -> list[str]:
    """The words of a ``dispatch`` of a small graph to three parts."""
    graph = hopstream.rmat_graph(8, num_features=3, num_classes=2)
    write_chunked(graph, tmp_path / "in", num_chunks=2)
    (tmp_path / "owners").mkdir()
    np.save(tmp_path / "owners" / "node.npy", np.arange(NUM_NODES) % 3)
    flags = {"--in-dir": "in", "--partitions-dir": "owners", "--out-dir": "out"}
    named = (word for flag, name in flags.items() for word in (flag, str(tmp_path / name)))
    return ["dispatch", "--workers", "0", *named]


def batches_of(source: Path, **options: object) -> list[list[list[float]]]:
    """The contents of all batches of one epoch."""
    with hopstream.NeighborLoader(source, num_neighbors=[4, 3], batch_size=32, rng_seed=7, **options) as loader:
        return [[batch.n_id.tolist(), batch.edge_index.tolist(), batch.x.tolist()] for batch in loader]


@pytest.mark.slow
def test_from_dispatch_to_batches_of_two_machines(tmp_path, chunks, run_command, processes):
    ports = free_ports(2)
    (tmp_path / "hosts").write_text("".join(f"127.0.0.1 {port}\n" for port in ports))
    roots = [tmp_path / "m0", tmp_path / "m1"]
    words = [*chunks, "--root", roots[0], "--root", roots[1], "--move", "--ip-config", tmp_path / "hosts", "--json"]
    done = run_command(*words)
    assert done.status == 0, done.err
    assert [fact["stage"] for fact in done.facts] == ["plan", "measure", "write", "done", "root", "root", "done"]
    assert [fact["parts"] for fact in done.facts if fact["stage"] == "root"] == [[0, 2], [1]]
    assert done.facts[-1]["moved"]
    assert sorted(tree_of(tmp_path / "out")) == ["cluster.json", "manifest.json", "roots.json"]
    cluster = json.loads((roots[1] / "cluster.json").read_text())
    assert [(entry["location"], entry["parts"]) for entry in cluster["servers"]] == [
        (f"tcp://127.0.0.1:{ports[0]}", [0, 2]),
        (f"tcp://127.0.0.1:{ports[1]}", [1]),
    ]
    started = [processes.start("serve", root, "--server", k, "--json") for k, root in enumerate(roots)]
    ready = [processes.wait_for_fact(server, "stage", "ready") for server in started]
    assert [fact["parts"] for fact in ready] == [[0, 2], [1]]
    run_command(*chunks[:-1], tmp_path / "whole")
    asked = hopstream.StoreSettings(prefer_local=False)
    wanted = batches_of(tmp_path / "whole")
    assert batches_of(roots[0] / "cluster.json", store_settings=asked) == wanted
    assert batches_of(tmp_path / "out" / "cluster.json") == wanted  # mapped from both roots
    for server in started:
        server.process.terminate()
        assert processes.wait_for_end(server).status == 0


def test_a_dispatch_interrupted_while_placing_resumes(tmp_path, chunks, run_command, monkeypatch):
    words = [*chunks, "--root", tmp_path / "a", "--root", tmp_path / "b", "--move"]

    def ended(*args: object, **options: object) -> None:
        def stop(stage: str, done: int, total: int) -> None:
            if done:
                raise KeyboardInterrupt

        place(*args, **{**options, "progress": stop})

    with monkeypatch.context() as patch:
        patch.setattr("hopstream.transfer.place.place", ended)
        assert run_command(*words).status == 130
    assert (tmp_path / "out/manifest.json").exists()
    monkeypatch.setattr("hopstream.preparation.dispatch.dispatch_job.dispatch", None)
    done = run_command(*words)
    assert (done.status, done.err) == (0, "")
    assert [line.split()[0] for line in done.out.splitlines()] == ["resume", "root", "root", "done"]
    hopstream.open_dataset(tmp_path / "b").verify([1])


def test_place_and_pull(tmp_path, chunks, run_command):
    assert run_command(*chunks).status == 0
    (tmp_path / "roots.txt").write_text(f"{tmp_path}/a 0-1\nfile://{tmp_path}/b 2\n")
    done = run_command("place", tmp_path / "out", "--roots", tmp_path / "roots.txt", "--workers", 0)
    assert [line.split()[0] for line in done.out.splitlines()] == ["root", "root", "done"]
    assert "3 parts in 2 roots" in done.out
    done = run_command(
        "pull", f"file://{tmp_path}/a", "--out", tmp_path / "c", "--parts", "1", "--workers", 0, "--json"
    )
    assert done.fact("stage", "done")["parts"] == [1]
    again = run_command("pull", tmp_path / "b", "--out", tmp_path / "c", "--workers", 0)
    assert "parts 1-2 of 3" in again.out
    assert run_command("verify", tmp_path / "out").status == 0
    roots = [word for k in range(3) for word in ("--root", tmp_path / f"d{k}")]
    assert run_command(*chunks, "--parts", 4, "--overwrite").status == 0
    assert run_command(*chunks, "--overwrite", *roots).status == 0
    assert run_command(*chunks, "--overwrite").status == 0  # files beside a manifest are replaced with it
    assert not (tmp_path / "out/roots.json").exists()


def test_machines_alone_make_a_cluster_file(tmp_path, chunks, run_command):
    assert run_command(*chunks).status == 0
    (tmp_path / "hosts").write_text("10.0.0.1\n10.0.0.2 7001 2\n")
    done = run_command("place", tmp_path / "out", "--ip-config", tmp_path / "hosts", "--tls")
    assert done.status == 0, done.err
    servers = json.loads((tmp_path / "out/cluster.json").read_text())["servers"]
    assert [(entry["location"], entry["parts"], entry["path"]) for entry in servers] == [
        ("tls://10.0.0.1:30050", [0, 2], str(tmp_path / "out")),
        ("tls://10.0.0.2:7001", [1], str(tmp_path / "out")),
        ("tls://10.0.0.2:7002", [1], str(tmp_path / "out")),
    ]
    refused = run_command("up", tmp_path / "out")
    assert refused.status == 2
    assert "is kept for the machines of roots.json beside it; give another --cluster-file" in refused.err


def test_local_parts_are_served(tmp_path, chunks, run_command, processes):
    assert run_command(*chunks).status == 0
    place(tmp_path / "out", [tmp_path / "a", tmp_path / "b"], num_workers=0, move=True)
    server = processes.start("serve", tmp_path / "a", "--parts", "here", "--json")
    assert processes.wait_for_fact(server, "stage", "ready")["parts"] == [0, 2]
    server.process.terminate()
    assert processes.wait_for_end(server).status == 0
    for words, message in [
        ((tmp_path / "a",), f"part-00001 is missing: roots.json lists part 1 in {tmp_path}/b"),
        ((tmp_path / "out", "--parts", "here"), "has no folder of a part"),
        ((tmp_path / "a", "--server", 0), "cluster.json is missing"),
        (("s3://u:hidden@bucket/mag",), "s3://bucket/mag holds a password"),
        (("s3://bucket/mag", "--server", 0), "s3://bucket/mag is not a folder of this machine; give --cache-dir"),
        ((tmp_path / "a", "--server", 0, "--parts", "0"), "leave out --parts and --location"),
    ]:
        refused = run_command("serve", *words)
        assert refused.status == 2
        assert message in refused.err


def test_parts_are_pulled_and_served(tmp_path, chunks, run_command, processes):
    assert run_command(*chunks).status == 0
    words = ("serve", f"file://{tmp_path}/out", "--cache-dir", tmp_path / "cache", "--parts", "0,2", "--json")
    for _ in range(2):
        server = processes.start(*words)
        assert processes.wait_for_fact(server, "stage", "ready")["parts"] == [0, 2]
        server.process.terminate()
        assert processes.wait_for_end(server).status == 0
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == ["manifest.json", "part-00000", "part-00002"]


def test_bad_options_are_refused(tmp_path, chunks, run_command):
    (tmp_path / "hosts").write_text("10.0.0.1 many\n")
    (tmp_path / "roots").write_text("/a 1 2\n")
    (tmp_path / "three").write_text("10.0.0.1\n10.0.0.2\n10.0.0.3\n")
    (tmp_path / "holds").mkdir()
    (tmp_path / "holds" / "notes.txt").touch()
    for more, message in [
        (["--root", "nope://u:hidden@host/x"], "nope://host/x cannot be opened"),
        (["--roots", tmp_path / "roots"], "roots:1 has 3 words"),
        (["--roots", tmp_path / "roots", "--root", "/a"], "--root and --roots are both given"),
        (["--ip-config", tmp_path / "hosts"], "hosts:1 has the port 'many'"),
        (["--move"], "--move needs places"),
        (["--root", tmp_path / "r", "--root", tmp_path / "r"], "are one folder"),
        (["--root", tmp_path / "r", "--root", tmp_path / "r" / "s"], "another root"),
        (["--root", tmp_path / "out" / "x", "--root", tmp_path / "r"], "contains the other"),
        (["--root", tmp_path / "in" / "r"], "the chunked graph"),
        (["--root", tmp_path / "holds"], "holds 'notes.txt', which does not belong to a dataset"),
        ([word for k in range(9) for word in ("--root", tmp_path / f"r{k}")], "9 roots are given for"),
        (
            ["--root", tmp_path / "a", "--root", tmp_path / "b", "--ip-config", tmp_path / "three"],
            "3 machines for 2 roots",
        ),
        (["--tls"], "--tls is for the servers of --ip-config"),
    ]:
        refused = run_command(*chunks, *more)
        assert (refused.status, refused.out) == (2, "")
        assert message in refused.err
        assert "hidden" not in refused.err
        assert not (tmp_path / "out").exists()
    assert run_command(*chunks).status == 0
    for words, message in [
        (["place", tmp_path / "out"], "there is nothing to do; give --root, --roots or --ip-config"),
        (["pull", tmp_path / "out", "--out", tmp_path / "c", "--parts", "all"], "--parts is 'all'"),
        (["pull", tmp_path / "out", "--out", tmp_path / "c", "--parts", "3"], "has no part 3"),
    ]:
        refused = run_command(*words)
        assert (refused.status, refused.out) == (2, "")
        assert message in refused.err
