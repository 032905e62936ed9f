"""Checks the graphs of text files with an edge on each line."""

from __future__ import annotations

import gzip
import tracemalloc

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
    with pytest.raises(SchemaError, match=r"has 2 columns after source and target, but columns is \['a'\]"):
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


def test_sparse_integer_ids_are_refused_as_keys(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("0 1\n1 4000000000000\n")
    with pytest.raises(
        SchemaError, match=r"the id 4000000000000 in line 2 implies 4000000000001 nodes for 2 edges, .*ids='raw'"
    ):
        hopstream.read_graph(path)
    assert hopstream.read_graph(path, ids="raw").nodes[NODE].num_nodes == 3
    path.write_text("0 1999999\n")
    with pytest.raises(SchemaError, match="implies 2000000 nodes for 1 edges"):
        hopstream.read_graph(path)
    assert hopstream.read_graph(path, num_nodes=2_000_000).nodes[NODE].num_nodes == 2_000_000
    path.write_text("0 999999\n")
    assert hopstream.read_graph(path).nodes[NODE].num_nodes == 1_000_000


@pytest.mark.parametrize("text", [
    "0  4  7\n4   1 -1\n", "  0 4 7\n  4 1 -1\n", "0 4 7 \r\n4 1 -1\t\r\n",
    "0 \t4\t 7\n4 1\t-1", "0 4\t7\n4 1\t-1\n   \n",
])  # fmt: skip
@pytest.mark.parametrize("delimiter", [None, " "])
def test_runs_of_blanks_are_one_delimiter(tmp_path, text, delimiter):
    (tmp_path / "a.txt").write_text(text, newline="")
    graph = graph_from_edge_list(tmp_path / "a.txt", delimiter=delimiter)
    assert ends(graph) == [(0, 4), (4, 1)] and graph.edges[EDGE].features["weight"].tolist() == [7, -1]


def test_blanks_within_values_between_tabs_are_kept(tmp_path):
    (tmp_path / "a.tsv").write_text("New York\tRome\t1\nRome \tNew York\t2\n")
    graph = graph_from_edge_list(tmp_path / "a.tsv", ids="raw")
    assert graph.nodes[NODE].features["raw_id"].tolist() == ["New York", "Rome"]
    assert ends(graph) == [(0, 1), (1, 0)]


def test_runs_of_blanks_over_many_blocks(tmp_path, rng):
    pairs = rng.integers(0, 90_000, (250_000, 2))
    np.savetxt(tmp_path / "many.txt", pairs, fmt="%7d")
    graph = graph_from_edge_list(tmp_path / "many.txt")
    assert np.array_equal(np.stack([graph.edges[EDGE].src_keys, graph.edges[EDGE].dst_keys], axis=1), pairs)


@pytest.mark.parametrize(("text", "options"), [
    ("source,target,w\n0,1,5\n2,1,6\n", {}),
    ("Source, Target, w\n0, 1, 5\n2, 1, 6\n", {}), ("a,b,w\n0,1,5\n2,1,6\n", {}),
    ("\ufeffw,src,dst\n5,0,1\n6,2,1\n", {}), ("0,1,5\n2,1,6\n", {"columns": ["w"]}),
    ("0,1,w\n0,1,5\n2,1,6\n", {"has_header": True}), ("source\ttarget\tw\n0\t1\t5\n2\t1\t6\n", {}),
    ("a,b,c\n0,1,5\n2,1,6\n", {"columns": ["w"]}), ('"source","target","w"\n0,1,5\n2,1,6\n', {}),
])  # fmt: skip
def test_headers_are_known(tmp_path, text, options):
    (tmp_path / "a.csv").write_text(text)
    graph = hopstream.read_graph(tmp_path / "a.csv", **options)
    assert ends(graph) == [(0, 1), (2, 1)]
    assert {name: of.tolist() for name, of in graph.edges[EDGE].features.items()} == {"w": [5, 6]}
    if not text.startswith("0,1,"):
        with pytest.raises(SchemaError):
            hopstream.read_graph(tmp_path / "a.csv", **{**options, "has_header": False})


def test_raw_ids_keep_their_spelling(tmp_path):
    (tmp_path / "a.csv").write_text("from,to\n007,b\nb,NA\n1.0,2020-01-01\ntrue,007\n99999999999999999999,b\n")
    graph = hopstream.read_graph(tmp_path / "a.csv", ids="raw")
    raw = ["007", "1.0", "2020-01-01", "99999999999999999999", "NA", "b", "true"]
    assert graph.nodes[NODE].features["raw_id"].tolist() == raw
    assert [(raw[u], raw[v]) for u, v in ends(graph)] == [
        ("007", "b"), ("b", "NA"), ("1.0", "2020-01-01"), ("true", "007"), ("99999999999999999999", "b")
    ]  # fmt: skip


def test_one_line_without_an_end_and_names_in_capitals(tmp_path):
    for name, text in (("a.TXT", b"0 1"), ("b.csv.GZ", gzip.compress(b"0,1")), ("c.Csv", b"source,target\n0,1")):
        (tmp_path / name).write_bytes(text)
        assert ends(hopstream.read_graph(tmp_path / name)) == [(0, 1)]


def test_times_keep_their_values(tmp_path):
    (tmp_path / "a.csv").write_text("idx,u,v,at,on\n5,0,1,10:20,2020-01-01T00:00:05\n")
    graph = hopstream.read_graph(tmp_path / "a.csv")
    assert ends(graph) == [(0, 1)]
    features = {name: of.tolist() for name, of in graph.edges[EDGE].features.items()}
    assert features == {"idx": [5], "at": ["10:20"], "on": ["2020-01-01T00:00:05"]}


def test_a_header_alone_is_a_graph_without_edges(tmp_path):
    (tmp_path / "a.csv").write_text("source,target,w\n")
    graph = hopstream.read_graph(tmp_path / "a.csv", num_nodes=3)
    assert graph.nodes[NODE].num_nodes == 3 and graph.edges[EDGE].num_edges == 0


def test_many_lines_keep_their_order(tmp_path, rng):
    pairs = rng.integers(0, 50_000, (300_000, 2))  # several blocks of the reader
    path = tmp_path / "many.txt"
    np.savetxt(path, pairs, fmt="%d", header="many", delimiter="\t")
    graph = graph_from_edge_list(path)
    assert np.array_equal(np.stack([graph.edges[EDGE].src_keys, graph.edges[EDGE].dst_keys], axis=1), pairs)
    raw = graph_from_edge_list(path, ids="raw")
    names = raw.nodes[NODE].features["raw_id"]
    assert np.array_equal(names, np.unique(pairs)) and np.array_equal(names[raw.edges[EDGE].src_keys], pairs[:, 0])


@pytest.mark.parametrize(("text", "options", "error", "message"), [
    ("# nothing\n", {}, SchemaError, "has only comment lines"),
    ("", {}, SchemaError, "has only comment lines"),
    ("0 1\n2\n", {}, FormatError, "cannot be read as an edge list"),
    ("0 1\n# later\n", {}, (FormatError, SchemaError), "a.txt"),
    ("0,1\n2,\n", {}, SchemaError, "line 2 has no value in column 'target'"),
    ("a b\n", {}, SchemaError, "source is not a 64-bit integer in line 1 'a'; keys are integers: give ids='raw'"),
    ("0 1\n", {"delimiter": ","}, SchemaError, "one column with delimiter ','"),
    ("01\n", {}, SettingsError, "has no .* in its first line; give the delimiter"),
    ("0 1\n", {"delimiter": "é"}, SettingsError, "give the one character"),
    ("0 1\n", {"delimiter": 3}, SettingsError, "give the one character"),
    ("0 1\n", {"num_nodes": "5"}, SettingsError, "num_nodes is '5'; wanted an integer"),
    ("0 1\n", {"num_nodes": -1}, SettingsError, "num_nodes is -1; wanted an integer"),
    ("0 1\n", {"has_header": "yes"}, SettingsError, "has_header is 'yes'"),
    ("+1 2\n", {}, SchemaError, r"in line 1 '\+1'"),
    ('a,"b\nc"\nd,e\n', {"ids": "raw"}, FormatError, "a quotation mark before 'b' is closed in another line"),
    ("%%MatrixMarket matrix coordinate real general\n3 3 1\n1 2 5\n", {}, FormatError, "is a Matrix Market file"),
    ("0 1\n", {"ids": "rows"}, SettingsError, "it must be keys or raw"),
    ("0 1\n", {"ids": "raw", "num_nodes": 3}, SettingsError, "leave it out"),
    ("0 1 2\n", {"columns": "w"}, SettingsError, "wanted a list of names"),
    ("0 1\n", {"separator": ","}, SettingsError, "edge lists have no option 'separator'"),
    ("0 -1\n", {}, IdRangeError, "target in line 1 is -1; keys are 0 or more"),
    ("# c\n\n0 1\n\n1 5\n", {"num_nodes": 5}, IdRangeError, r"target in line 5 is 5; keys are 0\.\.4, as num_nodes"),
    ("# c\n\n0 1\n\n2 x\n", {}, SchemaError, "target is not a 64-bit integer in line 5 'x'"),
    ("0 1\n1 9223372036854775808\n", {}, SchemaError, "64-bit integer in line 2 '9223372036854775808'"),
    ("0,1,2\n1,0,\n", {}, SchemaError, "line 2 has no value in column 'weight'"),
    ("0,1,2\n1,0,NA\n", {}, SchemaError, "line 2 has no value in column 'weight', but 'NA'"),
    ("a,b\n, c\n", {"ids": "raw"}, SchemaError, "line 2 has no value in column 'source'"),
    ("# c\n0 1\n\n1 2\n2 3 4\n", {}, FormatError, "line 5 has 3 values between blanks, lines before it 2"),
    ("0 1 {}\n", {}, SchemaError, "as networkx.write_edgelist writes by default"),
    ("0 1 {'w': 1, 'v': 2}\n", {}, SchemaError, "as networkx.write_edgelist writes by default"),
    (",source,target\n0,1,2\n", {}, SchemaError, r"a column has no name; .*to_csv\(index=False\)"),
    ("source,target,w,w\n0,1,2,3\n", {}, SchemaError, "'w' occurs twice"),
    ("source,target,w\n0,1\n", {}, SchemaError, "names 3 columns in its header, and its lines have 2"),
    ("ada,bo\n1,2\n", {"ids": "raw"}, SchemaError,
     "give has_header=True if the first line names the columns, else has_header=False"),
    ("a,b\nc,d\n", {}, SchemaError, "in line 1 'a'; keys are integers"),
    ("source,target\n0,1.5\n", {}, SchemaError, "target is not a 64-bit integer in line 2 '1.5'"),
    ("0,1\n", {"delimiter": "::"}, SettingsError, "delimiter is '::'; give the one character"),
    ("source,target\n", {}, SchemaError, "give num_nodes"),
])  # fmt: skip
def test_other_files_than_edge_lists_are_refused(tmp_path, text, options, error, message):
    path = tmp_path / "a.txt"
    path.write_text(text)
    with pytest.raises(error, match=message):
        hopstream.read_graph(path, **options)


@pytest.mark.parametrize("begin", [b"", b"0 1\n1 2\n2 3\n"])
def test_a_line_without_an_end_takes_no_memory(tmp_path, begin):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(begin + b"0" * (64 << 20), 1))
    tracemalloc.start()
    try:
        with pytest.raises(
            FormatError, match=r"a\.txt\.gz cannot be read as an edge list \(a line has more than 1048576"
        ):
            hopstream.read_graph(path)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


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


def test_the_command_reads_raw_ids(tmp_path, capsys):
    (tmp_path / "a.csv").write_text("from,to\nzoe,bo\nbo,ada\n")
    assert main(["ingest", str(tmp_path / "a.csv"), "--out", str(tmp_path / "p")]) == 2
    assert "give --raw-ids for other names" in capsys.readouterr().err
    assert main(["ingest", str(tmp_path / "a.csv"), "--out", str(tmp_path / "p"), "--raw-ids"]) == 0
    assert hopstream.read_dataset(tmp_path / "p").nodes[NODE].features["raw_id"].tolist() == ["ada", "bo", "zoe"]
    assert main(["ingest", str(tmp_path / "p"), "--out", str(tmp_path / "q"), "--raw-ids"]) == 2
    assert "--raw-ids is only for edge lists;" in capsys.readouterr().err


def test_the_command_names_columns(tmp_path, capsys):
    (tmp_path / "trust.csv").write_text("6|2|4|1289\n6|5|2|1290\n")
    arguments = ["ingest", str(tmp_path / "trust.csv"), "--out", str(tmp_path / "p")]
    assert main(arguments) == 2
    assert "has 2 columns after source and target, but columns is []; give a name for each with --columns" in (
        capsys.readouterr().err
    )
    named = ["--columns", "rating, when", "--edge-delimiter", "|", "--header", "no", "--nodes", "9"]
    assert main([*arguments, *named]) == 0
    graph = hopstream.read_dataset(tmp_path / "p")
    features = graph.edges[EDGE].features
    assert graph.nodes[NODE].num_nodes == 9
    assert {name: of.tolist() for name, of in features.items()} == {"rating": [4, 2], "when": [1289, 1290]}
    for flag in (["--columns", "a"], ["--edge-delimiter", "|"], ["--header", "no"], ["--nodes", "9"]):
        assert main(["ingest", str(tmp_path / "p"), "--out", str(tmp_path / "q"), *flag]) == 2
        assert f"{flag[0]} is only for edge lists;" in capsys.readouterr().err


def test_names_that_only_look_like_integers_stay_apart(tmp_path):
    (tmp_path / "zip.txt").write_text("00123 123\n0123 9\n")
    graph = hopstream.read_graph(tmp_path / "zip.txt", ids="raw")
    assert graph.nodes[NODE].features["raw_id"].tolist() == ["00123", "0123", "123", "9"]
    assert ends(graph) == [(0, 2), (1, 3)]


@pytest.mark.parametrize(
    ("text", "ids", "words"),
    [
        ("a b\n# more\nc d\n", "raw", r"line 2 starts with '#', like a comment"),
        ("# head\na b\n% x\n", "raw", r"line 3 starts with '%', like a comment"),
        ("0\tr1\t1\n1\tr2\t0\n", "keys", r"target is not a 64-bit integer"),
        ("a\tlikes\tb\nb\tlikes\tc\n", "raw", r"has a text column after source and target \('b', …\)"),
        ("0 1 18446744073709551615\n1 0 3\n", "keys", r"column 'weight' in line 1 is 18446744073709551615"),
    ],
)
def test_ambiguous_lines_are_refused(text, ids, words, tmp_path):
    (tmp_path / "e.txt").write_text(text)
    with pytest.raises(SchemaError, match=words):
        hopstream.read_graph(tmp_path / "e.txt", ids=ids)


def test_reals_may_be_large(tmp_path):
    (tmp_path / "e.txt").write_text("0 1 1e30\n1 0 2.5\n")
    assert hopstream.read_graph(tmp_path / "e.txt").edges[EDGE].features["weight"].tolist() == [1e30, 2.5]


@pytest.mark.parametrize("encoding", ["utf-16-be", "utf-16-le"])
def test_error_names_utf_16_text(tmp_path, encoding):
    path = tmp_path / "edges.csv"
    path.write_bytes("\ufeff0,1\n1,2\n".encode(encoding))
    with pytest.raises(FormatError, match=r"is text in UTF-16; write it again in UTF-8"):
        hopstream.read_graph(path)
