"""Checks that the verbs of ``hopstream tfgnn`` report what schemas and examples contain."""

from __future__ import annotations

import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopstream.tfgnn.example import decode_example
from hopstream.tfgnn.messages import EXAMPLE, message_class
from hopstream.tfgnn.tfrecord import RecordWriter, read_records
from tests.tfgnn.schemas import EVERYTHING, not_utf_8

SMALL = """
  node_sets { key: "paper" value { features { key: "x" value { dtype: DT_FLOAT } }
    features { key: "name" value { dtype: DT_STRING } } } }
  edge_sets { key: "cites" value { source: "paper" target: "paper" } }
"""
LISTS = {
    "nodes/paper.#size": [2], "nodes/paper.x": [0.1, float("nan")], "nodes/paper.name": [b"\xff\x00", "tä\n".encode()],
    "edges/cites.#size": [1], "edges/cites.#source": [0], "edges/cites.#target": [1],
}  # fmt: skip


def write_examples(path, *examples):
    with RecordWriter(path) as writer:
        for lists in examples:
            message = message_class(EXAMPLE)()
            for name, values in lists.items():
                kind = {bytes: "bytes_list", float: "float_list"}.get(type(values[0]), "int64_list")
                getattr(message.features.feature[name], kind).value.extend(values)
            writer.write(message.SerializeToString())
    return path


@pytest.fixture
def schema(tmp_path):
    path = tmp_path / "schema.pbtxt"
    path.write_text(SMALL)
    return path


@pytest.fixture
def examples(tmp_path):
    return write_examples(tmp_path / "e.tfrecord", LISTS, {**LISTS, "nodes/paper.x": [1.0, 2.0]}, LISTS)


def test_validate_reports_every_problem_and_remark(run_command, tmp_path):
    path = tmp_path / "s.pbtxt"
    path.write_text(
        'node_sets { key: "a" value { features { key: "#size" value { dtype: DT_INT64 } } features { key: "x" value {'
        " dtype: DT_DOUBLE shape { dim { size: 1 } } } } } } "
        'edge_sets { key: "e" value { source: "a" target: "b" } }'
    )
    result = run_command("tfgnn", "validate", path)
    assert result.status == 1 and result.err == ""
    lines = result.out.splitlines()
    assert [line.split()[0] for line in lines] == ["wrong", "wrong", "remark", "remark", "done"]
    assert "'#size'" in lines[0] and "'b', which is not a node set" in lines[1]
    assert "2 problems, 2 remarks" in lines[-1]
    facts = run_command("tfgnn", "validate", path, "--json").facts
    assert [fact["stage"] for fact in facts] == ["wrong", "wrong", "remark", "remark", "done"]
    assert (facts[-1]["problems"], facts[-1]["is_ok"]) == (2, False)


def test_validate_checks_examples(run_command, schema, examples, tmp_path):
    result = run_command("tfgnn", "validate", schema, "--examples", examples, "--json")
    assert result.status == 0 and result.fact("stage", "done")["examples"] == 3
    write_examples(
        tmp_path / "bad", LISTS, {**LISTS, "edges/cites.#target": [5]}, {**LISTS, "nodes/paper.#size": [1, 1]}
    )
    whole = (tmp_path / "bad").read_bytes()
    (tmp_path / "cut").write_bytes(whole[:-3])
    result = run_command(
        "tfgnn", "validate", schema.parent, "--examples", tmp_path / "bad", "--examples", tmp_path / "cut"
    )
    assert result.status == 1
    lines = [line for line in result.out.splitlines() if line.startswith("wrong")]
    assert len(lines) == 3
    assert lines[0].endswith(
        "bad: record 1: edges/cites.#target has index 5; paper has 2 nodes (and so is 1 other record)"
    )
    assert "bad: record 2: nodes/paper.#size" in lines[1] and "it has 2 components, wanted 1" in lines[1]
    assert "cut ends in the middle of record 2" in lines[2]
    assert (
        run_command("tfgnn", "validate", schema, "--examples", tmp_path / "bad", "--max-findings", 1).out.count("wrong")
        == 1
    )


def test_an_invalid_schema_is_a_usage_error(run_command, tmp_path):
    (tmp_path / "s.pbtxt").write_text("nodes {")
    result = run_command("tfgnn", "validate", tmp_path / "s.pbtxt")
    assert result.status == 2 and "not a GraphSchema" in result.err
    assert run_command("tfgnn", "print", tmp_path / "none").status == 2


def test_print_shows_graphs(run_command, schema, examples):
    result = run_command("tfgnn", "print", examples, "--schema", schema, "--limit", 1, "--skip", 1)
    assert result.status == 0, result.err
    lines = result.out.splitlines()
    assert lines[0].startswith("record  1 of ") and lines[1] == "node set paper, 2 nodes"
    assert any(line.split() == ["x", "float32[2]", "[1.0,", "2.0]"] for line in lines)
    assert "edge set cites, paper -> paper, 1 edge" in lines
    assert r"[b'\xff\x00', 'tä\n']" in result.out
    assert "\nrecord" not in result.out


def test_print_without_a_schema_and_as_json(run_command, schema, examples):
    assert "nodes/paper.x        float32[2]  [0.1, nan]" in run_command("tfgnn", "print", examples).out
    facts = run_command("tfgnn", "print", examples, "--limit", 0, "--json").facts
    assert [fact["record"] for fact in facts] == [0, 1, 2]
    assert facts[0]["example"]["nodes/paper.x"] == [0.1, "NaN"]
    assert facts[0]["example"]["nodes/paper.name"] == [{"base64": "/wA="}, "tä\n"]
    (fact,) = run_command("tfgnn", "print", examples, "--limit", 1, "--json", "--schema", schema).facts
    assert fact["example"]["edges/cites"] == {"#size": [1], "#source": [0], "#target": [1]}
    shown = run_command("tfgnn", "print", examples, "--limit", 1, "--max-values", 1).out
    assert "[0.1, … 1 more]" in shown


def test_print_names_a_record_that_contradicts_the_schema(run_command, schema, tmp_path):
    path = write_examples(tmp_path / "bad", LISTS, {**LISTS, "nodes/paper.x": [1.0]})
    result = run_command("tfgnn", "print", path, "--schema", schema)
    assert result.status == 2 and "bad: record 1: nodes/paper.x has 1 values" in result.err


def test_stats_are_printed_and_written_as_a_page(run_command, schema, examples, tmp_path):
    result = run_command("tfgnn", "stats", examples, "--schema", schema, "--html", tmp_path / "page.html")
    assert result.status == 0, result.err
    lines = [line.split() for line in result.out.splitlines()]
    assert lines[0][:4] == ["stats", "3", "examples", "in"]
    assert ["nodes/paper", "2", "2", "2", "█"] in [line[:5] for line in lines]
    assert ["nodes/paper.x", "float32", "3", "0", "6", "2", "0.1", "0.8", "2", "2", "0"] in lines
    page = (tmp_path / "page.html").read_text()
    assert page.count("<svg") == 3 and "nodes/paper.name" in page
    facts = run_command("tfgnn", "stats", examples, "--json").facts
    assert facts[0]["examples"] == 3 and facts[0]["not_in_schema"] == []
    feature = next(fact for fact in facts if fact.get("feature") == "nodes/paper.x")
    assert (feature["nan"], feature["min"], feature["max"]) == (2, pytest.approx(0.1), 2.0)


def test_bytes_are_plotted_over_the_range_seen(run_command, tmp_path):
    path = write_examples(tmp_path / "e", *({"context/x": [b"a" * length]} for length in (3, 1000, 5000)))
    assert run_command("tfgnn", "stats", path, "--html", tmp_path / "page.html").status == 0
    page = (tmp_path / "page.html").read_text()
    figure = page[page.index("bytes of an example") : page.index("</figure>")]
    rows = re.findall(r'row"[^>]*>([\d,]+) to ([\d,]+)</th><td[^>]*>(\d+)</td>', figure)
    ends = [(int(first.replace(",", "")), int(last.replace(",", ""))) for first, last, _ in rows]
    sizes = sorted(len(record) for record in read_records(path))
    assert [int(count) for *_, count in rows] == [sum(a <= size <= b for size in sizes) for a, b in ends]
    assert ends[0][0] <= sizes[0] and ends[-1][1] >= sizes[-1]


def test_stats_of_odd_names(run_command, tmp_path):
    path = write_examples(tmp_path / "odd", {"nodes/<b>.#size": [1], "nodes/<b>.[red]x": [1.0]})
    result = run_command("tfgnn", "stats", path, "--html", tmp_path / "page.html")
    assert result.status == 0 and "[red]x" in result.out
    assert "<b>" not in (tmp_path / "page.html").read_text()
    assert run_command("tfgnn", "stats", path, "--html", tmp_path).status == 2


def test_random_examples_are_valid_and_repeat(run_command, tmp_path):
    (tmp_path / "s.pbtxt").write_text(EVERYTHING)
    for out in ("a@2", "b@2"):
        result = run_command("tfgnn", "random", tmp_path, "--out", tmp_path / out, "--examples", 7, "--rng-seed", 3)
        assert result.status == 0, result.err
    names = ["-00000-of-00002", "-00001-of-00002"]
    assert all((tmp_path / f"a{n}").read_bytes() == (tmp_path / f"b{n}").read_bytes() for n in names)
    assert not list(tmp_path.glob(".*"))
    one = run_command("tfgnn", "random", tmp_path, "--out", tmp_path / "c", "--examples", 7, "--rng-seed", 3, "--gzip")
    assert one.status == 0
    records = [record for n in names for record in read_records(tmp_path / f"a{n}")]
    assert list(read_records(tmp_path / "c")) == records and len(records) == 7
    assert run_command("tfgnn", "validate", tmp_path, "--examples", tmp_path / "a@2").status == 0
    assert run_command("tfgnn", "random", tmp_path, "--out", tmp_path / "d", "--max-nodes", 0).status == 2


def test_random_makes_folders_and_replaces_nothing(run_command, schema, tmp_path):
    out = tmp_path / "new" / "deep" / "t@2"
    assert run_command("tfgnn", "random", schema, "--out", out).status == 0
    first = out.with_name("t-00000-of-00002")
    before = first.read_bytes()
    again = run_command("tfgnn", "random", schema, "--out", out, "--rng-seed", 9)
    assert again.status == 2 and f"{first} exists already; give --overwrite" in again.err
    assert first.read_bytes() == before
    assert run_command("tfgnn", "random", schema, "--out", out, "--rng-seed", 9, "--overwrite").status == 0
    assert first.read_bytes() != before
    for given, what in ((tmp_path / "new", "is a folder"), (schema / "x", "cannot be made")):
        refused = run_command("tfgnn", "random", schema, "--out", given, "--overwrite")
        assert refused.status == 2 and what in refused.err


def test_parquet_files_are_read_too(run_command, schema, examples, tmp_path):
    rows = [
        {k: v.tolist() if k != "nodes/paper.name" else [b"a", b"b"] for k, v in decode_example(r).items()}
        for r in read_records(examples)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "e.parquet", row_group_size=2)
    facts = run_command("tfgnn", "print", tmp_path / "e.parquet", "--json", "--schema", schema).facts
    assert [fact["example"]["nodes/paper"]["x"] for fact in facts] == [[0.1, "NaN"], [1.0, 2.0], [0.1, "NaN"]]
    assert run_command("tfgnn", "validate", schema, "--examples", tmp_path / "e.parquet").status == 0
    mixed = run_command("tfgnn", "stats", tmp_path / "e.parquet", examples)
    assert mixed.status == 2 and "is not a Parquet file, but " in mixed.err


def test_validate_reports_each_feature_once(run_command, schema, tmp_path):
    without = {name: of for name, of in LISTS.items() if name != "nodes/paper.x"}
    short = {**LISTS, "nodes/paper.name": [b"a"]}
    path = write_examples(tmp_path / "e", without, without, short, without, LISTS)
    (tmp_path / "none").touch()
    result = run_command("tfgnn", "validate", schema, "--examples", path, "--examples", tmp_path / "none")
    lines = [line for line in result.out.splitlines() if not line.startswith("done")]
    assert len(lines) == 3 and result.status == 1
    assert lines[0].startswith("remark") and lines[0].endswith("none has no examples")
    assert "record 0: nodes/paper.x is missing; 2 items of shape [] have 2 (and so are 2 other records)" in lines[1]
    assert lines[2].endswith("record 2: nodes/paper.name has 1 values; 2 items of shape [] have 2")
    assert run_command("tfgnn", "validate", schema, "--examples", tmp_path / "none").status == 0


def test_huge_shapes_are_reported(run_command, tmp_path):
    path = tmp_path / "s.pbtxt"
    feature = 'node_sets {{ key: "a" value {{ features {{ key: "x" value {{ dtype: {} shape {{ {} }} }} }} }} }}'
    for dtype in ("DT_FLOAT", "DT_STRING"):
        for dims in ("dim { size: 1099511627776 }", "dim { size: -1 } dim { size: 33554432 } dim { size: 9 }"):
            path.write_text(feature.format(dtype, dims))
            result = run_command("tfgnn", "validate", path)
            assert result.status == 0 and result.out.startswith("remark")
            assert "feature 'x' has shape [" in result.out and "values for each item" in result.out
            result = run_command("tfgnn", "random", path, "--out", tmp_path / "out", "--min-row", 1)
            assert result.status == 2 and "nodes/a.x: " in result.err and "a random graph has at most" in result.err
    assert not list(tmp_path.glob("*out*"))
    path.write_text(feature.format("DT_FLOAT", "dim { size: -2 }"))
    result = run_command("tfgnn", "validate", path)
    assert result.status == 1 and "feature 'x' has shape [-2]; sizes are 0 or more, or -1" in result.out


def test_folders_and_prefixes_of_shards_are_explained(run_command, schema, tmp_path):
    out = tmp_path / "data" / "t"
    assert run_command("tfgnn", "random", schema, "--out", f"{out}@2").status == 0
    for given, what in (
        (out, f"does not exist; there is {out}@2"),
        (out.parent, f"is a folder; name files, such as {out}@2"),
    ):
        for verb in (("validate", schema, "--examples"), ("print",), ("stats",)):
            result = run_command("tfgnn", *verb, given)
            assert result.status == 2 and f"{given} {what}" in result.err
    assert "is a folder; name files" in run_command("tfgnn", "print", tmp_path).err


def test_the_group_has_help(run_command):
    result = run_command("tfgnn", "--help")
    assert result.status == 0
    assert all(verb in result.out for verb in ("validate", "print", "stats", "random"))
    assert "tfgnn" in run_command("--help").out


def test_oversized_and_invalid_records_are_reported_one_by_one(run_command, tmp_path):
    schema = tmp_path / "s.pbtxt"
    schema.write_text(
        'node_sets { key: "a" value { features { key: "r" value { dtype: DT_INT64 shape { dim { size: -1 } } } } } }'
    )
    path = write_examples(tmp_path / "t", *({"nodes/a.#size": [size]} for size in (2, 1 << 24, 1 << 23, 2, -2)))
    with RecordWriter(tmp_path / "u") as writer:
        for record in (b"", not_utf_8(), not_utf_8()):
            writer.write(record)
    result = run_command("tfgnn", "validate", schema, "--examples", path, "--examples", tmp_path / "u")
    lines = [line for line in result.out.splitlines() if line.startswith("wrong")]
    assert result.status == 1 and len(lines) == 3
    for line, where in zip(lines, ("t: record 1:", "t: record 4:", "u: record 1:"), strict=True):
        assert where in line and line.endswith("(and so is 1 other record)") == ("4:" not in where)
    for flags in ((), ("--schema", schema)):
        result = run_command("tfgnn", "print", tmp_path / "u", *flags)
        assert result.status == 2 and "u: record 1: not a tf.Example" in result.err
    assert run_command("tfgnn", "stats", tmp_path / "u").status == 2


SPEC = """
  seed_op { op_name: "seeds" node_set_name: "paper" }
  sampling_ops { op_name: "hop1" input_op_names: "seeds" edge_set_name: "cites" sample_size: 8 }
  sampling_ops { op_name: "hop2" input_op_names: "hop1" input_op_names: "seeds" edge_set_name: "cites" sample_size: 4
    strategy: RANDOM_UNIFORM }
"""


def test_spec_prints_ops_and_the_strategies_that_the_schema_implies(run_command, tmp_path, schema):
    path = tmp_path / "spec.pbtxt"
    path.write_text(SPEC)
    result = run_command("tfgnn", "spec", path, "--schema", schema, "--json")
    assert result.status == 0
    assert [json.loads(line) for line in result.out.splitlines()] == [
        {"op": "seeds", "draws": "paper", "size": None, "strategy": "", "inputs": []},
        {"op": "hop1", "draws": "cites", "size": 8, "strategy": "RANDOM_UNIFORM", "inputs": ["seeds"]},
        {"op": "hop2", "draws": "cites", "size": 4, "strategy": "RANDOM_UNIFORM", "inputs": ["hop1", "seeds"]},
    ]
    assert "for the nodes of" in run_command("tfgnn", "spec", path).out


def test_spec_is_drawn_as_a_flowchart(run_command, tmp_path):
    path = tmp_path / "spec.pbtxt"
    path.write_text(SPEC)
    assert run_command("tfgnn", "spec", path, "--mermaid").out.splitlines() == [
        "flowchart TD",
        '    op0["seeds<br/>paper"]',
        '    op1["hop1<br/>cites<br/>at most 8"]',
        '    op2["hop2<br/>cites<br/>at most 4 RANDOM_UNIFORM"]',
        "    op0 --> op1",
        "    op1 --> op2",
        "    op0 --> op2",
    ]


def test_spec_lists_all_problems_against_a_schema(run_command, tmp_path, schema):
    path = tmp_path / "spec.pbtxt"
    path.write_text(
        SPEC.replace('edge_set_name: "cites" sample_size: 8', 'edge_set_name: "writes"').replace("paper", "book")
    )
    result = run_command("tfgnn", "spec", path, "--schema", schema)
    assert result.status == 1
    wrong = [line for line in result.out.splitlines() if line.startswith("wrong")]
    assert len(wrong) >= 2
    assert "unknown node set 'book'; known: paper" in wrong[0]
    assert "writes" in wrong[1]
