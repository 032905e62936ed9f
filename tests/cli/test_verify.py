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
