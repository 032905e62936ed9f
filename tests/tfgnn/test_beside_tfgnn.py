"""Compares with the real TF-GNN 1.0.3: names and order of ops, names of files, and records.

``golden/answered.json`` is what the library answered to ``golden/asked.json``; ``--tfgnn-python`` asks again.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

import hopstream
from hopstream.cli import main
from hopstream.tfgnn.example import decode_example
from hopstream.tfgnn.graph_schema import parse_schema
from hopstream.tfgnn.spec_builder import SamplingSpecBuilder, make_sampling_spec_tree
from hopstream.tfgnn.tfrecord import read_records
from tests.export.worlds import write_world
from tests.tfgnn import programs

GOLDEN = Path(__file__).parent / "golden"
ASKED, ANSWERED = (json.loads((GOLDEN / f"{name}.json").read_text()) for name in ("asked", "answered"))
ANSWER_S = 500
EXAMPLES = Path(__file__).parents[2] / "examples"


def answers(python: str, asked: dict[str, Any]) -> dict[str, Any]:
    """Answers of the real library."""
    script = Path(__file__).with_name("real_tfgnn.py")
    ran = subprocess.run(
        [python, script], input=json.dumps(asked), capture_output=True, text=True, timeout=ANSWER_S, check=False
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def ours(program: dict[str, Any]) -> list[Any]:
    schema = parse_schema(programs.SCHEMAS[program["schema"]])
    return programs.run(program, schema, SamplingSpecBuilder, make_sampling_spec_tree)


@pytest.mark.parametrize("number", range(len(ASKED["specs"])))
def test_ops_have_the_names_and_the_order_of_tfgnn(number: int):
    assert ours(ASKED["specs"][number]) == ANSWERED["specs"][number]


def test_random_specs_equal_those_of_tfgnn(tfgnn_python: str, rng):
    asked = programs.programs(int(rng.integers(1 << 30)), 600)
    wanted = answers(tfgnn_python, {"specs": asked})["specs"]
    assert [ours(program) for program in asked] == wanted


def test_the_golden_answers_are_those_of_tfgnn(tfgnn_python: str):
    asked = {kind: ASKED[kind] for kind in ("specs", "names")}
    assert answers(tfgnn_python, asked) == {kind: ANSWERED[kind] for kind in asked}


@pytest.mark.slow
def test_the_golden_samples_are_those_of_tfgnn(tfgnn_python: str):
    assert answers(tfgnn_python, {"sampled": ASKED["sampled"]})["sampled"] == ANSWERED["sampled"]


@pytest.mark.slow
@pytest.mark.parametrize("words", [[], ["--runner"]], ids=["fit", "runner"])
def test_a_keras_model_learns_from_an_export(tfgnn_python: str, tmp_path: Path, words: list[str]):
    graph = hopstream.read_graph(EXAMPLES / "data/cora.npz")
    hopstream.write_parts(graph, tmp_path / "cora", num_parts=2, method="hash", direction="out")
    for split in ("train", "test"):
        out, spec = tmp_path / f"samples/{split}@2", EXAMPLES / "tfgnn_spec.pbtxt"
        hopstream.export_subgraphs(tmp_path / "cora", spec, out, split=split, num_workers=0)
    ran = subprocess.run(
        [tfgnn_python, EXAMPLES / "tfgnn_keras.py", tmp_path / "samples", *words],
        capture_output=True, text=True, timeout=ANSWER_S, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr[-3000:]
    (accuracy,) = re.findall(r"^test accuracy (0\.\d+) after 10 epochs", ran.stdout, re.M)
    assert float(accuracy) > 0.72


def test_files_have_the_names_of_tfgnn(tmp_path: Path):
    """Files have TF-GNN's names; names that TF-GNN would turn into a pattern are refused."""
    world = write_world(tmp_path, num_parts=1)
    words = ["tfgnn-sample", "--graph_schema", f"{world}/parts", "--sampling_spec", f"{world}/spec.pbtxt"]
    for name, names in zip(ASKED["names"], ANSWERED["names"], strict=True):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        is_pattern = "?" in names[0]
        assert main([*words, "--output_samples", f"{folder}/{name}", "--workers", "0"]) == (2 if is_pattern else 0)
        if is_pattern:
            assert not folder.exists()
        else:
            assert sorted(path.name for path in folder.iterdir() if path.suffix != ".pbtxt") == names


def test_records_equal_those_of_tfgnn(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """``#id`` is written for sets that declare it or have nothing else; ops draw uniformly by default."""
    asked, wanted = ASKED["sampled"], ANSWERED["sampled"]
    for name, text in {**asked["files"], "spec.pbtxt": asked["spec"]}.items():
        (tmp_path / name).write_text(text)
    words = ["tfgnn-sample", "--graph_schema", f"{tmp_path}/schema.pbtxt", "--sampling_spec", f"{tmp_path}/spec.pbtxt"]
    words += ["--output_samples", f"{tmp_path}/out/{asked['output']}", "--workers", "0", "--memory", "1GiB"]
    assert main(words) == 0
    assert [record.getMessage() for record in caplog.records] == [
        "ops without a strategy on edge sets without weights sample with RANDOM_UNIFORM: songs, tags, places"
    ]
    paths = sorted((tmp_path / "out").glob("x-*"))
    assert [path.name for path in paths] == wanted["files"]
    records = [values_of(record) for path in paths for record in read_records(path)]
    assert sorted(records, key=str) == wanted["records"]
    assert main([*words, "--node_ids", "--overwrite"]) == 0
    records = [values_of(record) for path in paths for record in read_records(path)]
    assert [record["nodes/user.#id"] for record in records] == [["ada"], ["bo"], ["cy"]]


def values_of(record: bytes) -> dict[str, list[Any]]:
    """Sorted values by name, without the set that the spec does not reach, which TF-GNN leaves out."""
    lists = {name: of.tolist() for name, of in sorted(decode_example(record).items()) if "/unreached." not in name}
    return {name: sorted(v.decode() if isinstance(v, bytes) else v for v in of) for name, of in lists.items()}
