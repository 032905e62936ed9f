"""Checks that a folder of parts is written whole, reads back, and is refused where it is wrong."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import hopstream
from hopstream.assign.owners import META, AssignMeta, read_meta, read_owners
from hopstream.assign.run import assign_folder, assign_owners
from hopstream.dataset.settings import PartitionSettings
from hopstream.errors import FormatError, IdRangeError, SchemaError, SettingsError
from hopstream.graph.graph import Graph, NodeTable

HASHED = PartitionSettings(num_parts=12, method="hash")


def sizes_of(graph: Graph) -> dict[str, int]:
    return {t: table.num_nodes for t, table in graph.nodes.items()}


def test_a_folder_is_read_back(tmp_path, typed_graph: Graph):
    folder = tmp_path / "deep" / "parts"
    found = assign_folder(typed_graph, folder, HASHED)
    wanted = {t: owner.tolist() for t, owner in found.owners.items()}
    names = [f"{t}{suffix}" for t in wanted for suffix in (".npy", ".txt")]
    assert sorted(entry.name for entry in folder.iterdir()) == sorted([*names, META])
    assert json.loads((folder / META).read_text()) == {"version": "1.0.0", "num_parts": 12, "algo_name": "hash"}
    assert read_meta(folder) == AssignMeta(num_parts=12, method="hash")
    assert (folder / "paper.txt").read_text().split() == list(map(str, wanted["paper"]))
    for suffix in (".none", ".npy"):  # both kinds of files, then the text alone
        for path in folder.glob(f"*{suffix}"):
            path.unlink()
        owners, num_parts = read_owners(folder, sizes_of(typed_graph))
        assert num_parts == 12 and {t: owner.tolist() for t, owner in owners.items()} == wanted
    chosen = PartitionSettings(num_parts=12, method="file")
    assert assign_owners(typed_graph, chosen, folder)["author"].tolist() == wanted["author"]
    manifest = hopstream.write_parts(typed_graph, tmp_path / "set", num_parts=12, owners=folder)
    assert sum(manifest.report.nodes) == sum(map(len, wanted.values()))


def test_types_with_odd_names_and_without_nodes(tmp_path):
    graph = Graph(nodes={"a/../b": NodeTable(num_nodes=3), "none": NodeTable(num_nodes=0)})
    found = assign_folder(graph, tmp_path / "parts", HASHED)
    assert all(path.parent == tmp_path / "parts" for path in tmp_path.rglob("*.npy"))
    owners, _ = read_owners(tmp_path / "parts", sizes_of(graph), 12)
    assert {t: owner.tolist() for t, owner in owners.items()} == {"a/../b": found.owners["a/../b"].tolist(), "none": []}


def test_the_number_of_parts_is_inferred_without_meta(tmp_path):
    (tmp_path / "a.txt").write_text("0\n2\n")
    np.save(tmp_path / "b.npy", np.array([4, 0], np.uint8))
    owners, num_parts = read_owners(tmp_path, {"a": 2, "b": 2})
    assert num_parts == 5 and owners["b"].tolist() == [4, 0]
    assert read_owners(tmp_path, {"a": 2, "b": 2}, 9)[1] == 9


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("{", FormatError, "is not JSON"),
        ("[1]", FormatError, "is list; it must be an object"),
        ('{"num_parts": "3"}', FormatError, "has num_parts '3'; it must be an integer from 1 to 99999"),
        ('{"num_parts": 0}', FormatError, "has num_parts 0"),
        ('{"num_parts": true}', FormatError, "has num_parts True"),
        ('{"num_parts": 3, "version": "2.0.0"}', FormatError, "has version '2.0.0'; this version reads 1.0.0"),
        ('{"num_parts": 3, "version": 1}', FormatError, "has version 1"),
        ('{"num_parts": 3, "algo_name": 7}', FormatError, "algo_name 7; it must be a string"),
        ('{"num_parts": 4}', SettingsError, "is for 4 parts, but num_parts is 3"),
        ('{"num_parts": 2}', IdRangeError, r"a.txt\[1\] is 2; parts are numbered 0..1"),
    ],
)
def test_wrong_meta_is_refused(tmp_path, text, error, message):
    (tmp_path / "a.txt").write_text("0\n2\n")
    (tmp_path / META).write_text(text)
    asked = 3 if error is SettingsError else None
    with pytest.raises(error, match=message):
        read_owners(tmp_path, {"a": 2}, asked)


@pytest.mark.parametrize("value", [-1, 1 << 40])
def test_parts_out_of_range_are_refused_without_meta_too(tmp_path, value):
    np.save(tmp_path / "a.npy", np.array([0, value]))
    with pytest.raises(IdRangeError, match=re.escape(str(value))):
        read_owners(tmp_path, {"a": 2})
    with pytest.raises(SchemaError, match="for each of 3 nodes"):
        read_owners(tmp_path, {"a": 3}, 4)


def test_only_folders_of_parts_are_replaced(tmp_path, typed_graph: Graph):
    out = tmp_path / "parts"
    assign_folder(typed_graph, out, HASHED)
    with pytest.raises(SettingsError, match="holds parts of nodes; give overwrite=True"):
        assign_folder(typed_graph, out, HASHED)
    assign_folder(typed_graph, out, PartitionSettings(num_parts=2, method="random"), overwrite=True)
    assert read_meta(out) == AssignMeta(num_parts=2, method="random")
    (out / "thesis.tex").write_text("mine")
    with pytest.raises(SettingsError, match=r"holds 'thesis.tex', so it is not a folder of parts"):
        assign_folder(typed_graph, out, HASHED, overwrite=True)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(SettingsError, match="is a file"):
        assign_folder(typed_graph, tmp_path / "file", HASHED, overwrite=True)
    with pytest.raises(SettingsError, match="assigns nothing"):
        assign_folder(typed_graph, tmp_path / "new", PartitionSettings(method="file"))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file", "parts"]


def test_nothing_is_left_when_assignment_fails(tmp_path, typed_graph: Graph):
    out = tmp_path / "parts"
    assign_folder(typed_graph, out, HASHED)
    chosen = PartitionSettings(num_parts=2, method="ldg", balance_ntypes=("paper=nothing",))
    with pytest.raises(KeyError, match="nothing"):
        assign_folder(typed_graph, out, chosen, overwrite=True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["parts"]
    assert read_meta(out) == AssignMeta(num_parts=12, method="hash")
