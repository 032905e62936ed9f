"""Does ``hopstream verify`` say what it checked and what is wrong, and end with the status that says so?"""

from __future__ import annotations

import json

import numpy as np
import pytest

import hopstream
from hopstream.cli import main
from hopstream.ingest.chunked import write_chunked

FEATURE = "part-00001/node/node/features/x.npy"


@pytest.fixture
def written(tmp_path):
    graph = hopstream.rmat_graph(6, num_features=3, num_classes=2)
    hopstream.write_parts(graph, tmp_path / "d", num_parts=2, method="hash")
    write_chunked(graph, tmp_path / "c", num_chunks=2)
    return tmp_path


def test_nothing_is_wrong(written, capsys):
    for source in ([], ["--against", str(written / "c")], ["--against", str(written / "d")]):
        assert main(["verify", str(written / "d"), *source]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].split() == ["check", "checked", "wrong"]
        assert all(line.endswith(" ok") for line in lines[1:-1])
        assert lines[-1].startswith("done    verify   nothing is wrong")


def test_what_is_wrong(written, capsys):
    path = written / "d" / FEATURE
    values = np.load(path)
    values[3] += 1
    np.save(path, values)
    words = ["verify", str(written / "d"), "--against", str(written / "c")]
    assert main(words) == 1
    text = capsys.readouterr().out
    assert f"wrong   checksums  {FEATURE}: has crc32c" in text
    assert "wrong   features node.x: is not what the source has: key " in text
    assert "3 findings" in text
    assert main([*words, "--json", "--max-findings", "2"]) == 1
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    checks = {record["check"]: record["wrong"] for record in records if "check" in record}
    assert {name for name, wrong in checks.items() if wrong} == {"checksums", "features", "graph"}
    assert [record["kind"] for record in records if record.get("stage") == "wrong"] == ["checksums", "features"]
    assert (records[-1]["is_ok"], records[-1]["findings"], records[-1]["left_out"]) == (False, 3, 1)


def test_what_cannot_be_checked(written, capsys):
    for words, message in [
        ([str(written / "c")], "manifest.json is missing"),
        ([str(written / "d"), "--against", str(written / "no")], "is missing"),
        ([str(written / "d"), "--memory", "much"], "'much'"),
        ([str(written / "d"), "--max-findings", "0"], "max-findings"),
    ]:
        assert main(["verify", *words]) == 2
        assert message in capsys.readouterr().err


def test_tables_are_read_as_they_were(tmp_path, capsys):
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
    assert "wrong   schema   person.name: is string; in the source it is not there" in capsys.readouterr().out
