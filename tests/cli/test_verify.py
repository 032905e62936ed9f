"""Checks that ``hopstream verify`` lists its checks and findings, and that its status agrees."""

from __future__ import annotations

import json

import numpy as np
import pytest

import hopstream
from hopstream.cli import main
from hopstream.ingest.chunked import write_chunked
from hopstream.preparation.audit.report import KINDS
from hopstream.transfer.place import place

FEATURE = "part-00001/node/node/features/x.npy"


@pytest.fixture
def written(tmp_path):
    graph = hopstream.rmat_graph(6, num_features=3, num_classes=2)
    hopstream.write_parts(graph, tmp_path / "d", num_parts=2, method="hash")
    write_chunked(graph, tmp_path / "c", num_chunks=2)
    return tmp_path


def test_a_correct_dataset_verifies(written, capsys):
    for source in ([], ["--against", str(written / "c")], ["--against", str(written / "d")]):
        assert main(["verify", str(written / "d"), *source]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].split() == ["check", "checked", "wrong", "result"]
        results = {line.split()[0]: line.rsplit("  ", 1)[-1] for line in lines[1:-1]}
        assert set(results) == set(KINDS)
        assert results["halo"] == "skipped (the dataset has no halo)"
        assert results["features"] == ("ok" if source else "skipped (no source was given to compare with)")
        assert {results[kind] for kind in ("manifest", "files", "nodes", "edges", "book", "graph")} == {"ok"}
        assert lines[-1].startswith("done    verify   nothing is wrong; not checked: ")


def test_findings_are_listed(written, capsys):
    path = written / "d" / FEATURE
    values = np.load(path)
    values[3] += 1
    np.save(path, values)
    words = ["verify", str(written / "d"), "--against", str(written / "c")]
    assert main(words) == 1
    text = capsys.readouterr().out
    assert "wrong   dataset: 2 findings\n        features  node.x: is not what the source has: key " in text
    assert "wrong   part-00001: 1 finding\n        checksums node/node/features/x.npy: has crc32c" in text
    assert "verify   3 findings; not checked: " in text
    assert main([*words, "--json", "--max-findings", "2"]) == 1
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    checks = {record["check"]: record["wrong"] for record in records if "check" in record}
    assert {name for name, wrong in checks.items() if wrong} == {"checksums", "features", "graph"}
    wrong = [record for record in records if record.get("stage") == "wrong"]
    assert [(record["group"], record.get("kind"), record.get("left_out")) for record in wrong] == [
        ("", "features", None), ("", None, 1), ("part-00001", "checksums", None),
    ]  # fmt: skip
    states = {record["check"]: (record["status"], record["skipped"]) for record in records if "check" in record}
    assert set(states) == set(KINDS)
    assert (states["features"], states["times"]) == (("failed", []), ("skipped", ["the dataset has no times"]))
    assert (records[-1]["is_ok"], records[-1]["findings"], records[-1]["left_out"]) == (False, 3, 1)
    assert "times" in records[-1]["not_checked"] and "features" not in records[-1]["not_checked"]


def test_verify_of_some_parts_names_the_roots_of_the_others(written, capsys):
    """A root with some of the parts: without ``--parts`` an error names the other roots."""
    place(written / "d", [written / "a", written / "b"], num_workers=0, move=True)
    assert main(["verify", str(written / "b")]) == 2
    error = capsys.readouterr().err
    assert f"lacks parts 0 of 0..1, which roots.json lists in {written / 'a'}" in error
    assert "verify the parts that it has with --parts 1" in error
    for words in (["--parts", "1"], ["--parts", "here"], ["--parts", "1", "--against", str(written / "c")]):
        assert main(["verify", str(written / "b"), *words]) == 0, capsys.readouterr().out
        lines = capsys.readouterr().out.splitlines()
        results = {line.split()[0]: line.rsplit("  ", 1)[-1] for line in lines[1:] if line.split()[0] in KINDS}
        assert results["files"] == results["order"] == "ok"
        assert results["edges"].startswith(
            "ok; in part skipped (only some parts are checked, so edges that are in no part"
        )
        assert results["graph"].startswith("skipped (its id covers the whole graph")
    assert main(["verify", str(written / "b"), "--parts", "here", "--json"]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {"graph", "halo"} <= set(last["not_checked"])
    for words, message in [(["--parts", "2"], "numbered 0..1"), (["--parts", "0,x"], "write numbers and ranges")]:
        assert main(["verify", str(written / "b"), *words]) == 2
        assert message in capsys.readouterr().err
    assert main(["verify", str(written / "d"), "--parts", "here"]) == 2
    assert "has no folder of a part" in capsys.readouterr().err
    (written / "b" / FEATURE).unlink()
    assert main(["verify", str(written / "b"), "--parts", "here"]) == 1
    assert "wrong   part-00001: 1 finding" in capsys.readouterr().out


def test_unusable_input_is_a_usage_error(written, capsys):
    for words, message in [
        ([str(written / "c")], "manifest.json is missing"),
        ([str(written / "d"), "--against", str(written / "no")], "is missing"),
        ([str(written / "d"), "--memory", "much"], "'much'"),
        ([str(written / "d"), "--max-findings", "0"], "max-findings"),
    ]:
        assert main(["verify", *words]) == 2
        assert message in capsys.readouterr().err


def test_verify_reads_tables_with_the_original_options(tmp_path, capsys):
    (tmp_path / "people.csv").write_text("name,age\nann,3\nbob,4\n")
    (tmp_path / "knows.csv").write_text("a,b\nann,bob\nbob,ann\nann,zed\n")
    edges = {"type": ["person", "knows", "person"], "files": "knows.csv", "src": "a", "dst": "b"}
    nodes = {"person": {"files": "people.csv", "id": "name", "features": ["age"]}}
    (tmp_path / "metadata.json").write_text(json.dumps({"nodes": nodes, "edges": [edges]}))
    source, dropping = str(tmp_path / "metadata.json"), ["--on-dangling", "drop"]
    written, again = str(tmp_path / "d"), str(tmp_path / "e")
    assert main(["partition", source, "--parts", "2", "--method", "random", "--out", written, *dropping]) == 0
    assert main(["partition", written, "--parts", "3", "--method", "hash", "--direction", "out", "--out", again]) == 0
    assert main(["verify", written, "--against", source, *dropping]) == 0
    assert main(["verify", again, "--against", written]) == 0
    capsys.readouterr()
    assert main(["verify", written, "--against", source]) == 2
    assert "no person node has" in capsys.readouterr().err
    assert main(["verify", written, "--against", source, *dropping, "--no-keep-raw-ids"]) == 1
    assert "\n        schema    person.name: is string; in the source it is missing" in capsys.readouterr().out
