"""Checks that ``hopstream describe`` drafts a description that ``hopstream ingest`` reads."""

from __future__ import annotations

import json

from hopstream.dataset import read_transforms


def test_a_draft_is_written_and_read(run_command, tmp_path):
    tables = tmp_path / "tables"
    tables.mkdir()
    (tables / "users.csv").write_text("id,age\nada,36\nbo,41\n")
    (tables / "likes.csv").write_text("user_id,other_user_id,stars\nada,bo,3\nbo,ada,4\n")
    result = run_command("describe", tables)
    assert result.status == 0
    assert result.out.splitlines()[0] == "node    users    id id, 1 feature: age standard"
    assert result.out.splitlines()[1] == "edge    users__likes__users  1 feature: stars standard"
    assert f"done    {tables / 'metadata.json'}" in result.out
    assert run_command("ingest", tables, "--out", tmp_path / "d").status == 0
    assert read_transforms(tmp_path / "d")["users"].apply({"age": [36]})["age"].tolist() == [-1]
    result = run_command("describe", tables)
    assert result.status == 2 and "metadata.json exists; give --overwrite to replace it" in result.err
    result = run_command("describe", tables, "--overwrite", "--sample-rows", 1, "--json")
    facts = [json.loads(line) for line in result.out.splitlines()]
    assert facts[0] == {"stage": "node", "type": "users", "features": ["age"]} and facts[-1]["stage"] == "done"


def test_verbs_apply_the_transforms_of_a_dataset(run_command, tmp_path):
    for name, ages in (("old", "36\n41\n"), ("new", "46\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "users.csv").write_text(f"age\n{ages}")
        assert run_command("describe", tmp_path / name).status == 0
    assert run_command("ingest", tmp_path / "old", "--out", tmp_path / "d").status == 0
    result = run_command("chunk", tmp_path / "new", "--out", tmp_path / "c", "--transforms-of", tmp_path / "d")
    assert result.status == 0, result.err
    assert run_command("append", tmp_path / "d", tmp_path / "c").status == 0
    result = run_command("chunk", tmp_path / "d", "--out", tmp_path / "e", "--transforms-of", tmp_path / "d")
    assert result.status == 2 and "--transforms-of is only for tables" in result.err
