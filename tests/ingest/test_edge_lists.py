"""Does a text file with an edge on each line become the graph that it says?"""

from __future__ import annotations

import gzip

import numpy as np
import pytest

import hopstream
from hopstream.cli import main
from hopstream.errors import FormatError, IdRangeError, SchemaError, SettingsError
from hopstream.ingest.edge_lists import graph_from_edge_list
from hopstream.schema import EDGE, NODE

SNAP = "# Directed graph\r\n# FromNodeId\tToNodeId\r\n0\t4\r\n4\t1\r\n1\t1\r\n0\t4\r\n"


def ends(graph):
    return list(zip(graph.edges[EDGE].src_keys.tolist(), graph.edges[EDGE].dst_keys.tolist(), strict=True))


@pytest.mark.parametrize("name", ["a.txt", "a.edgelist", "a.txt.gz"])
def test_a_file_of_snap(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(gzip.compress(SNAP.encode()) if name.endswith(".gz") else SNAP.encode())
    for graph in (graph_from_edge_list(path), hopstream.read_graph(path)):
        assert ends(graph) == [(0, 4), (4, 1), (1, 1), (0, 4)]
        assert graph.nodes[NODE].num_nodes == 5 and not graph.nodes[NODE].features
    assert hopstream.read_graph(path, num_nodes=9).nodes[NODE].num_nodes == 9
    with pytest.raises(IdRangeError, match="4"):
        graph_from_edge_list(path, num_nodes=4)


def test_values_become_features(tmp_path):
    weighted = tmp_path / "w.csv"
    weighted.write_text("0,1,0.5\n1,0,2\n")
    graph = graph_from_edge_list(weighted)
    assert ends(graph) == [(0, 1), (1, 0)] and graph.edges[EDGE].features["weight"].tolist() == [0.5, 2]
    named = tmp_path / "n.tsv"
    named.write_text("% KONECT\nfrom\tto\ttime\tsign\tkind\n1\t2\t7\t-1\ta\n2\t0\t8\t1\tb\n")
    features = graph_from_edge_list(named, has_header=True).edges[EDGE].features
    assert features["time"].tolist() == [7, 8] and features["kind"].tolist() == ["a", "b"]
    named.write_text("0|1|7|2\n")
    assert set(graph_from_edge_list(named, columns=["a", "b"]).edges[EDGE].features) == {"a", "b"}
    with pytest.raises(SchemaError, match=r"has 2 columns after source and target, and columns names \['a'\]"):
        graph_from_edge_list(named, columns=["a"])


@pytest.mark.parametrize(("cells", "raw"), [
    ([("70", "5"), ("5", "-3"), ("70", "70")], [-3, 5, 70]),
    ([("zoë", "b"), ("b", "70"), ("zoë", "zoë")], ["70", "b", "zoë"]),
])  # fmt: skip
def test_raw_ids_get_keys_in_their_order(tmp_path, cells, raw):
    path = tmp_path / "raw.txt"
    path.write_text("".join(f"{source} {target}\n" for source, target in cells))
    graph = hopstream.read_graph(path, ids="raw")
    found = graph.nodes[NODE].features["raw_id"].tolist()
    assert found == raw
    named = [tuple(str(found[key]) for key in pair) for pair in ends(graph)]
    assert named == cells
    with pytest.raises((SchemaError, IdRangeError), match="keys are"):
        graph_from_edge_list(path)


def test_many_lines_keep_their_order(tmp_path, rng):
    pairs = rng.integers(0, 50_000, (300_000, 2))  # some blocks of what reads them
    path = tmp_path / "many.txt"
    np.savetxt(path, pairs, fmt="%d", header="many", delimiter="\t")
    graph = graph_from_edge_list(path)
    assert np.array_equal(np.stack([graph.edges[EDGE].src_keys, graph.edges[EDGE].dst_keys], axis=1), pairs)
    raw = graph_from_edge_list(path, ids="raw")
    names = raw.nodes[NODE].features["raw_id"]
    assert np.array_equal(names, np.unique(pairs)) and np.array_equal(names[raw.edges[EDGE].src_keys], pairs[:, 0])


@pytest.mark.parametrize(("text", "options", "error", "message"), [
    ("# nothing\n", {}, SchemaError, "has no line that is no comment"),
    ("", {}, SchemaError, "has no line that is no comment"),
    ("0 1\n2\n", {}, FormatError, "cannot be read as an edge list"),
    ("0 1\n# later\n", {}, (FormatError, SchemaError), "a.txt"),
    ("0,1\n2,\n", {}, SchemaError, "row 1 has no value in column 'f1'"),
    ("a b\n", {}, SchemaError, "source is string, in row 0 'a'; keys are integers: give ids='raw'"),
    ("0 1\n", {"delimiter": ","}, SchemaError, "one column between ','"),
    ("01\n", {}, SettingsError, "give the one character between values"),
    ("0 1\n", {"ids": "rows"}, SettingsError, "it must be keys or raw"),
    ("0 1\n", {"ids": "raw", "num_nodes": 3}, SettingsError, "leave it out"),
    ("0 1 2\n", {"columns": "w"}, SettingsError, "wanted a list of names"),
    ("0 1\n", {"separator": ","}, SettingsError, "edge lists have no option 'separator'"),
    ("0 -1\n", {}, IdRangeError, "destination 0 is -1"),
])  # fmt: skip
def test_what_is_no_edge_list_is_refused(tmp_path, text, options, error, message):
    path = tmp_path / "a.txt"
    path.write_text(text)
    with pytest.raises(error, match=message):
        hopstream.read_graph(path, **options)


def test_damaged_and_missing_files(tmp_path):
    with pytest.raises(FormatError, match="is missing"):
        hopstream.read_graph(tmp_path / "none.txt")
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(SNAP.encode())[:-9])
    with pytest.raises(FormatError, match="cannot be read as an edge list"):
        hopstream.read_graph(tmp_path / "cut.txt.gz")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe 1\n0 1\n")
    with pytest.raises((FormatError, SchemaError), match=r"bytes\.txt"):
        hopstream.read_graph(tmp_path / "bytes.txt")


def test_the_command_reads_edge_lists(tmp_path, capsys):
    (tmp_path / "web.txt").write_text(SNAP)
    assert main(["partition", str(tmp_path / "web.txt"), "--parts", "2", "--out", str(tmp_path / "p")]) == 0
    assert "read    edges    1 node type, 1 edge type, 4 edges" in capsys.readouterr().out
    assert ends(hopstream.read_dataset(tmp_path / "p")) == [(0, 4), (4, 1), (1, 1), (0, 4)]
