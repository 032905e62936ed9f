"""Checks that a chunked graph agrees with its metadata and files, and that flaws name their place."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hopstream import read_graph
from hopstream.errors import FormatError, HopstreamError, SchemaError, SettingsError
from hopstream.ingest.chunked import is_chunked, open_chunked
from tests.ingest.chunked.folders import FEAT, PAIRS, WEIGHT, WRITES, lines

AUTHOR_WRITES = ("author", "writes", "paper")


def test_a_chunked_graph_is_opened_and_read(folder):
    root = folder.save()
    graph = open_chunked(root)
    assert (graph.name, graph.root, graph.metadata_filename) == ("g", root, "metadata.json")
    assert {t: nodes.num_nodes for t, nodes in graph.nodes.items()} == {"author": 5, "paper": 4, "place": 0}
    assert {t: edges.num_edges for t, edges in graph.edges.items()} == {
        AUTHOR_WRITES: 7,
        ("paper", "cites", "paper"): 0,
    }
    assert list(graph.nodes["paper"].features) == ["feat"]
    found = read_graph(root)
    np.testing.assert_array_equal(found.edges[AUTHOR_WRITES].src_keys, PAIRS[:, 0])
    np.testing.assert_array_equal(found.edges[AUTHOR_WRITES].dst_keys, PAIRS[:, 1])
    np.testing.assert_array_equal(found.nodes["paper"].features["feat"], FEAT)
    np.testing.assert_array_equal(found.edges[AUTHOR_WRITES].features["weight"], WEIGHT)
    assert found.splits["paper"]["train"].tolist() == [0, 2]
    assert found.schema == graph.schema
    assert graph.edges["paper", "cites", "paper"].ends.pieces(10) == []


@pytest.mark.parametrize("kept", ["num_nodes_per_type", "num_nodes_per_chunk"])
@pytest.mark.parametrize("kept_edges", ["num_edges_per_type", "num_edges_per_chunk"])
def test_counts_by_type_or_by_chunk(folder, kept, kept_edges):
    wanted = read_graph(folder.save()).fingerprint()
    for name in ("num_nodes_per_type", "num_nodes_per_chunk", "num_edges_per_type", "num_edges_per_chunk"):
        if name not in (kept, kept_edges):
            del folder.metadata[name]
    assert read_graph(folder.save()).fingerprint() == wanted


def test_the_metadata_may_have_another_name(folder):
    (folder.save() / "metadata.json").rename(folder.root / "other.json")
    by_name = open_chunked(folder.root, "other.json")
    by_path = open_chunked(folder.root / "other.json")
    assert by_name.metadata_filename == by_path.metadata_filename == "other.json"
    assert read_graph(folder.root / "other.json").fingerprint() == by_name.load().fingerprint()
    with pytest.raises(SettingsError, match="metadata_filename"):
        open_chunked(folder.root, "../other.json")


def test_paths_may_be_absolute(folder, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    wanted = read_graph(folder.save()).fingerprint()
    (folder.root / "e").rename(elsewhere / "e")
    names = folder.metadata["edges"][WRITES]["data"]
    folder.metadata["edges"][WRITES]["data"] = [str(elsewhere / name) for name in names]
    assert read_graph(folder.save()).fingerprint() == wanted


def test_links_do_not_lead_out_of_the_folder(folder, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "x.csv"
    outside.write_text(lines(PAIRS))
    (folder.root / "link.csv").symlink_to(outside)
    folder.metadata["edges"][WRITES]["data"][0] = "link.csv"
    with pytest.raises(SchemaError, match=r"link.csv', a link that leads out of .*; give its absolute path"):
        open_chunked(folder.save())


def test_chunked_metadata_is_recognized_by_its_fields(folder, tmp_path):
    assert is_chunked(folder.save() / "metadata.json")
    tables = tmp_path / "tables.json"
    tables.write_text(json.dumps({"nodes": {}, "edges": []}))
    assert not is_chunked(tables)
    assert not is_chunked(tmp_path / "missing.json")
    tables.write_text("{")
    assert not is_chunked(tables)
    with pytest.raises(SettingsError, match="chunked graphs have no option 'keep_raw_ids'"):
        read_graph(folder.root, keep_raw_ids=False)


def test_opening_reads_no_rows(folder):
    folder.save()
    for path in (folder.root / "e").iterdir():
        path.write_bytes(b"?" * path.stat().st_size)
    assert open_chunked(folder.root).schema


def spec(**changes):
    return {"format": {"name": "numpy"}, "data": ["n/0.npy", "n/1.npy"], **changes}


def change_of(*path, to):
    """A change of one value of the metadata; ``to`` None removes it."""

    def change(metadata):
        for key in path[:-1]:
            metadata = metadata[key]
        if to is None:
            del metadata[path[-1]]
        else:
            metadata[path[-1]] = to

    return change


FEAT_AT = ("node_data", "paper", "feat")
REFUSALS = {
    "no name": (change_of("graph_name", to=None), SchemaError, "lacks 'graph_name'"),
    "name no string": (change_of("graph_name", to=3), SchemaError, "graph_name is 3; wanted a string"),
    "no edges": (change_of("edges", to=None), SchemaError, "lacks 'edges'"),
    "no node data": (change_of("node_data", to=None), SchemaError, "lacks 'node_data'"),
    "edges a list": (change_of("edges", to=[]), SchemaError, "edges is list"),
    "type twice": (change_of("node_type", to=["a", "a"]), SchemaError, "node_type has 'a' twice"),
    "types no strings": (change_of("node_type", to=[1]), SchemaError, "wanted a list of strings"),
    "two words": (change_of("edge_type", 0, to="a:b"), SchemaError, "'a:b'; wanted source:relation:destination"),
    "unknown end": (change_of("edge_type", 0, to="x:b:paper"), SchemaError, "joins node type 'x'"),
    "counts missing": (
        lambda m: [m.pop(f"num_nodes_per_{what}") for what in ("type", "chunk")],
        SchemaError,
        "has neither",
    ),
    "too few counts": (change_of("num_nodes_per_type", to=[5]), SchemaError, "num_nodes_per_type has 1 entries"),
    "negative count": (change_of("num_nodes_per_type", 0, to=-1), SchemaError, r"per_type\[0\] is -1"),
    "count no integer": (change_of("num_nodes_per_type", 0, to=5.0), SchemaError, r"per_type\[0\] is 5.0"),
    "count true": (change_of("num_nodes_per_type", 0, to=True), SchemaError, r"per_type\[0\] is True"),
    "huge count": (change_of("num_nodes_per_type", 0, to=2**63), SchemaError, "wanted an integer from 0"),
    "chunks no list": (change_of("num_nodes_per_chunk", 0, to=5), SchemaError, r"per_chunk\[0\] is 5"),
    "nodes disagree": (
        change_of("num_nodes_per_type", 0, to=6),
        SchemaError,
        "author has 6 in num_nodes_per_type, but .* adds up to 5",
    ),
    "edges disagree": (
        change_of("num_edges_per_chunk", 0, 0, to=5),
        SchemaError,
        "has 7 in num_edges_per_type, but .* adds up to 8",
    ),
    "more chunks than files": (
        change_of("num_edges_per_chunk", 0, to=[4, 0, 2, 1]),
        SchemaError,
        "lists 3 files; .* counts 4 chunks",
    ),
    "no files": (change_of("edges", WRITES, to=None), SchemaError, "lists no file; 7 edges are declared"),
    "unknown edge type": (change_of("edges", "a:b:c", to=spec()), SchemaError, "edges has 'a:b:c'"),
    "unknown node type": (change_of("node_data", "plaec", to={}), SchemaError, "node_data has 'plaec'"),
    "features no object": (
        change_of("node_data", "paper", to=[]),
        SchemaError,
        "is list; wanted an object of features",
    ),
    "spec no object": (change_of(*FEAT_AT, to="n/0.npy"), SchemaError, "wanted an object with format and data"),
    "spec without data": (change_of(*FEAT_AT, "data", to=None), SchemaError, r"is \['format'\]; wanted"),
    "spec with more": (change_of(*FEAT_AT, to=spec(dtype="int8")), SchemaError, r"'dtype', 'format'\]; wanted"),
    "data no list": (change_of(*FEAT_AT, to=spec(data="n/0.npy")), SchemaError, "wanted a list of paths"),
    "no data": (change_of(*FEAT_AT, to=spec(data=[])), SchemaError, "paper.feat lists no file"),
    "format no object": (change_of(*FEAT_AT, to=spec(format="numpy")), SchemaError, "format is 'numpy'; wanted"),
    "csv features": (change_of(*FEAT_AT, to=spec(format={"name": "csv"})), FormatError, "'csv'; wanted one of numpy"),
    "unknown format": (
        change_of("edges", WRITES, "format", "name", to="orc"),
        FormatError,
        "'orc'; wanted one of csv, parquet, numpy",
    ),
    "unknown key": (
        change_of("edges", WRITES, "format", "header", to=True),
        SchemaError,
        "unknown key 'header'",
    ),
    "long delimiter": (change_of("edges", WRITES, "format", "delimiter", to=", "), SchemaError, "delimiter is ', '"),
    "digit delimiter": (change_of("edges", WRITES, "format", "delimiter", to="1"), SchemaError, "delimiter is '1'"),
    "missing file": (change_of(*FEAT_AT, "data", 1, to="n/7.npy"), FormatError, "'n/7.npy', which does not exist"),
    "a folder": (change_of(*FEAT_AT, "data", 1, to="n"), FormatError, "'n', which does not exist"),
    "zero byte": (change_of(*FEAT_AT, "data", 1, to="n\0"), FormatError, "which does not exist"),
    "escaping": (change_of(*FEAT_AT, "data", 1, to="n/../../x.npy"), SchemaError, "without .."),
    "escaping absolutely": (change_of(*FEAT_AT, "data", 1, to="/tmp/../etc/x"), SchemaError, "without .."),
    "features of some chunks": (
        change_of(*FEAT_AT, to=spec(data=["n/1.npy"])),
        SchemaError,
        r"paper.feat has 3 rows in 1 file \(n/1.npy 3\); 4 nodes are declared",
    ),
    "edge features of some chunks": (
        change_of("edge_data", WRITES, "weight", "data", to=["w/0.npy"]),
        SchemaError,
        "has 2 rows .*; 7 edges are",
    ),
    "a mask of numbers": (
        change_of("node_data", "paper", "train_mask", to=spec()),
        SchemaError,
        "a split is bool.*choose one of its columns",
    ),
    "unprintable type": (change_of("node_type", 2, to="\n"), SchemaError, "printable characters"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_metadata_that_contradicts_itself_is_refused(folder, case):
    change, error, message = REFUSALS[case]
    change(folder.metadata)
    with pytest.raises(error, match=message):
        open_chunked(folder.save())


@pytest.mark.parametrize("text", ["", "[]", "3", '{"a": 1, "a": 2}', "\xff"])
def test_invalid_metadata_is_refused(tmp_path, text):
    (tmp_path / "metadata.json").write_text(text, encoding="latin-1")
    with pytest.raises((FormatError, SchemaError), match=r"metadata.json"):
        open_chunked(tmp_path)


def test_damaged_metadata_raises_a_hopstream_error(folder, rng):
    text = (folder.save() / "metadata.json").read_bytes()
    for _ in range(300):
        broken = bytearray(text)
        broken[int(rng.integers(len(broken)))] = int(rng.integers(256))
        (folder.root / "metadata.json").write_bytes(bytes(broken))
        try:
            open_chunked(folder.root).load()
        except HopstreamError:
            continue


def test_unknown_fields_are_ignored(folder):
    folder.metadata["made_by"] = "somebody"
    assert open_chunked(folder.save())


def test_a_folder_without_metadata(tmp_path):
    with pytest.raises(FormatError, match=r"metadata.json is missing"):
        open_chunked(tmp_path)


def test_descriptors_are_closed(folder):
    folder.save()
    before = len(list(Path("/proc/self/fd").iterdir()))
    graph = open_chunked(folder.root)
    graph.load()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
