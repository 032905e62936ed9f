"""Is the graph in a folder of OGB's the one that ``graph_from_ogb`` makes of the arrays that ``ogb`` gives of it?"""

from __future__ import annotations

import gzip

import numpy as np
import pytest

import hopstream
from hopstream.cli import main
from hopstream.errors import FormatError, MissingDependencyError, SchemaError, SettingsError
from hopstream.graph.graph import Graph
from hopstream.ingest.chunked import write_chunked
from hopstream.ingest.ogb import graph_from_ogb
from hopstream.ingest.ogb_folder import is_ogb_folder, read_ogb_folder
from hopstream.schema import EDGE, NODE
from tests.conftest import mapped_file
from tests.ingest import ogb_folders as layouts

LAYOUTS = (layouts.plain, layouts.typed, layouts.plain_npz, layouts.typed_npz)


def canonical(graph: Graph) -> dict:
    """A graph as lists, whatever the order of its types and features."""
    nodes = {t: (of.num_nodes, _lists(of.features)) for t, of in graph.nodes.items()}
    edges = {t: (of.src_keys.tolist(), of.dst_keys.tolist(), _lists(of.features)) for t, of in graph.edges.items()}
    splits = {t: {name: keys.tolist() for name, keys in of.items()} for t, of in graph.splits.items()}
    return {"nodes": nodes, "edges": edges, "splits": splits}


def _lists(features) -> dict:
    return {name: (str(array.dtype), repr(array.tolist())) for name, array in sorted(features.items())}


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
def test_every_layout_is_the_graph_that_ogb_gives(tmp_path, rng, layout):
    arrays, labels, split_idx = layout(tmp_path / "d", rng)
    wanted = canonical(graph_from_ogb(arrays, labels, split_idx))
    found = read_ogb_folder(tmp_path / "d")
    if layout is layouts.typed:  # labels that are not whole are told apart from those that are
        assert found.nodes["paper"].features["y"].dtype == np.int64
    assert canonical(found) == wanted
    assert canonical(hopstream.read_graph(tmp_path / "d")) == wanted
    assert is_ogb_folder(tmp_path / "d") and not is_ogb_folder(tmp_path)


@pytest.mark.parametrize(("name", "inverse_edges", "is_doubled"), [
    ("ogbn_products", None, True), ("ogbn_products", False, False), ("ogbn_arxiv", None, False), ("mine", True, True),
])  # fmt: skip
def test_reverses_follow_their_edges(tmp_path, rng, name, inverse_edges, is_doubled):
    arrays, _, _ = layouts.plain(tmp_path / name, rng)
    edges = read_ogb_folder(tmp_path / name, inverse_edges=inverse_edges).edges[EDGE]
    if not is_doubled:
        assert edges.num_edges == 14
        return
    assert np.array_equal([edges.src_keys[::2], edges.dst_keys[::2]], arrays["edge_index"])
    assert np.array_equal([edges.dst_keys[1::2], edges.src_keys[1::2]], arrays["edge_index"])
    assert np.array_equal(edges.features["feat"][1::2], arrays["edge_feat"])
    assert edges.features["weight"].tolist() == np.repeat(arrays["edge_weight"], 2).tolist()


def test_mag240m_is_mapped_and_chunked(tmp_path, rng):
    arrays, _, _ = layouts.mapped(tmp_path / "mag", rng)
    graph = read_ogb_folder(tmp_path / "mag", num_nodes=layouts.NUM_NODES)
    assert canonical(graph) == canonical(graph_from_ogb(arrays))
    for array in (graph.nodes["paper"].features["feat"], graph.edges[layouts.CITES].dst_keys):
        assert mapped_file(array) is not None
    write_chunked(graph, tmp_path / "chunks", num_chunks=3)
    assert canonical(hopstream.read_graph(tmp_path / "chunks")) == canonical(graph)
    with pytest.raises(SettingsError, match=r"meta.pt is not there; give num_nodes"):
        read_ogb_folder(tmp_path / "mag")
    (tmp_path / "mag/meta.pt").write_bytes(b"")
    with pytest.raises(MissingDependencyError, match=r"use hopstream.graph_from_ogb_folder"):
        read_ogb_folder(tmp_path / "mag")


def test_several_splits_are_chosen_from(tmp_path, rng):
    layouts.plain(tmp_path, rng)
    layouts.split_keys(tmp_path / "split" / "random", 4)
    with pytest.raises(SettingsError, match=r"split is None; .* has \['random', 'time'\]"):
        read_ogb_folder(tmp_path)
    with pytest.raises(SettingsError, match="split is 'hash'"):
        read_ogb_folder(tmp_path, split="hash")
    graph = hopstream.read_graph(tmp_path, split="random")
    assert graph.splits[NODE]["train"].tolist() == [0, 2]


def test_what_contradicts_itself_is_refused(tmp_path, rng):
    layouts.plain(tmp_path, rng)
    raw = tmp_path / "raw"

    def check(name, rows, error, message):
        before = (raw / name).read_bytes()
        layouts.table(raw / name, rows)
        with pytest.raises(error, match=message):
            read_ogb_folder(tmp_path)
        (raw / name).write_bytes(before)

    check("num-node-list.csv.gz", [4, 5], SchemaError, "counts the nodes of 2 graphs")
    check("num-node-list.csv.gz", [8], SchemaError, "9 rows")
    check("node_year.csv.gz", ["new"] * 9, SchemaError, "column 0 is string; wanted numbers")
    check("edge.csv.gz", [[1, 2, 3]], SchemaError, "wanted two integers on each line")
    (raw / "edge.csv.gz").write_bytes(gzip.compress(b"1,2\n3\n"))
    with pytest.raises(FormatError, match=r"edge.csv.gz cannot be read as gzipped CSV"):
        read_ogb_folder(tmp_path)
    (raw / "num-node-list.csv.gz").unlink()
    with pytest.raises(FormatError, match=r"num-node-list.csv.gz is missing"):
        read_ogb_folder(tmp_path)
    with pytest.raises(FormatError, match="is no folder of OGB's"):
        read_ogb_folder(tmp_path / "raw")
    with pytest.raises(SettingsError, match="OGB's folders have no option 'ignore'"):
        hopstream.read_graph(tmp_path, ignore="all")


def test_the_command_reads_folders(tmp_path, rng, capsys):
    layouts.typed(tmp_path / "ogbn_mag", rng)
    assert main(["partition", str(tmp_path / "ogbn_mag"), "--parts", "2", "--out", str(tmp_path / "p")]) == 0
    assert "read    ogb      2 node types, 2 edge types, 19 edges" in capsys.readouterr().out
    assert main(["verify", str(tmp_path / "p"), "--against", str(tmp_path / "ogbn_mag")]) == 0
