"""Checks that an OGB folder gives the graph that ``graph_from_ogb`` makes of ``ogb``'s arrays."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

import hopstream
from hopstream.cli import main
from hopstream.errors import FormatError, MissingDependencyError, SchemaError, SettingsError
from hopstream.graph.graph import Graph
from hopstream.ingest.chunked import write_chunked
from hopstream.ingest.ogb_folder import graph_from_ogb, is_ogb_folder, read_ogb_folder
from hopstream.schema import EDGE, NODE
from tests.conftest import mapped_file
from tests.ingest import ogb_folders as layouts

LAYOUTS = (layouts.plain, layouts.typed, layouts.plain_npz, layouts.typed_npz)


def canonical(graph: Graph) -> dict:
    """A graph as lists, independent of the order of its types and features."""
    nodes = {t: (of.num_nodes, _lists(of.features)) for t, of in graph.nodes.items()}
    edges = {t: (of.src_keys.tolist(), of.dst_keys.tolist(), _lists(of.features)) for t, of in graph.edges.items()}
    splits = {t: {name: keys.tolist() for name, keys in of.items()} for t, of in graph.splits.items()}
    return {"nodes": nodes, "edges": edges, "splits": splits}


def _lists(features) -> dict:
    return {name: (str(array.dtype), repr(array.tolist())) for name, array in sorted(features.items())}


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
def test_every_layout_is_the_graph_that_ogb_gives(tmp_path, rng, layout):
    arrays, labels, split_idx = layout(tmp_path / "ogbn_arxiv", rng)
    wanted = canonical(graph_from_ogb(arrays, labels, split_idx))
    found = read_ogb_folder(tmp_path / "ogbn_arxiv")
    if layout is layouts.typed:  # integer labels are distinguished from others
        assert found.nodes["paper"].features["y"].dtype == np.int64
    assert canonical(found) == wanted
    assert canonical(hopstream.read_graph(tmp_path / "ogbn_arxiv")) == wanted
    assert is_ogb_folder(tmp_path / "ogbn_arxiv") and not is_ogb_folder(tmp_path)


@pytest.mark.parametrize(("name", "inverse_edges", "is_doubled"), [
    ("ogbn_products", None, True), ("ogbn_products", False, False), ("ogbn_arxiv", None, False), ("mine", True, True),
    ("ogbn_products_pyg", None, True), ("ogbl_ddi_dgl", None, True), ("ogbn-proteins", None, True),
    ("mine", False, False), ("ogbl_citation2_pyg", None, False),
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


def test_a_name_without_known_reverses_is_refused(tmp_path, rng):
    layouts.plain(tmp_path / "mine", rng)
    with pytest.raises(SettingsError, match=r"mine is not a name of OGB's, .*; give inverse_edges=True"):
        hopstream.read_graph(tmp_path / "mine")
    (tmp_path / "ogbn_products").symlink_to(tmp_path / "mine")
    assert hopstream.read_graph(tmp_path / "ogbn_products").edges[EDGE].num_edges == 28
    layouts.plain(tmp_path / "ogbl_ddi", rng)
    (tmp_path / "link").symlink_to(tmp_path / "ogbl_ddi")
    assert hopstream.read_graph(tmp_path / "link").edges[EDGE].num_edges == 28
    layouts.plain_npz(tmp_path / "other", rng)  # ogb adds none to archives, whatever they are called
    assert hopstream.read_graph(tmp_path / "other").edges[EDGE].num_edges == 14


def test_edges_of_types_and_of_archives_are_counted(tmp_path, rng):
    layouts.typed(tmp_path / "typed", rng)
    relation = tmp_path / "typed/raw/relations/author___writes___paper"
    layouts.table(relation / "num-edge-list.csv.gz", [12])
    with pytest.raises(SchemaError, match=r"author___writes___paper/edge.csv.gz has 11 edges, but .* says 12"):
        read_ogb_folder(tmp_path / "typed")
    layouts.table(relation / "num-edge-list.csv.gz", [11])
    (tmp_path / "typed/raw/node-feat/paper/node-feat.csv.gz").unlink()
    with pytest.raises(FormatError, match=r"node-feat.csv.gz is missing, but nodetype-has-feat.csv.gz lists it"):
        read_ogb_folder(tmp_path / "typed")
    layouts.plain_npz(tmp_path / "plain_npz", rng)
    with np.load(tmp_path / "plain_npz/raw/data.npz") as file:
        arrays = dict(file)
    np.savez(tmp_path / "plain_npz/raw/data.npz", **{**arrays, "num_edges_list": np.array([13])})
    with pytest.raises(SchemaError, match=r"data.npz has 14 edges, but data.npz says 13"):
        read_ogb_folder(tmp_path / "plain_npz")
    np.savez(tmp_path / "plain_npz/raw/data.npz", **{**arrays, "num_nodes_list": np.array([10])})
    with pytest.raises(SchemaError, match="9 rows"):
        read_ogb_folder(tmp_path / "plain_npz")
    layouts.typed_npz(tmp_path / "typed_npz", rng)
    counts = {"author___writes___paper": np.array([11]), "paper___cites___paper": np.array([9])}
    np.savez(tmp_path / "typed_npz/raw/num_edges_dict.npz", **counts)
    with pytest.raises(SchemaError, match=r"edge_index_dict.npz has 8 edges, but num_edges_dict.npz says 9"):
        read_ogb_folder(tmp_path / "typed_npz")
    np.savez(tmp_path / "typed_npz/raw/num_edges_dict.npz", paper___likes___paper=np.array([1]))
    with pytest.raises(SchemaError, match=r"counts edges of .*'likes'.*, but edge_index_dict.npz has none"):
        read_ogb_folder(tmp_path / "typed_npz")


def test_types_that_are_not_counted_are_refused(tmp_path, rng):
    wanted = r"counts nodes of \['paper'\], but not of 'author'"
    layouts.typed(tmp_path / "typed", rng)
    layouts.table(tmp_path / "typed/raw/num-node-dict.csv.gz", [[7]], "paper")
    with pytest.raises(SchemaError, match=wanted):
        read_ogb_folder(tmp_path / "typed")
    layouts.table(tmp_path / "typed/raw/triplet-type-list.csv.gz", [["../author", "writes", "paper"]])
    with pytest.raises(FormatError, match="has a type with a slash in its name"):
        read_ogb_folder(tmp_path / "typed")
    layouts.typed_npz(tmp_path / "typed_npz", rng)
    np.savez(tmp_path / "typed_npz/raw/node_year.npz", venue=np.zeros((3, 1)))
    with pytest.raises(SchemaError, match=r"counts nodes of \['author', 'paper'\], but not of 'venue'"):
        read_ogb_folder(tmp_path / "typed_npz")
    layouts.mapped(tmp_path / "mag", rng)
    with pytest.raises(SchemaError, match=wanted):
        read_ogb_folder(tmp_path / "mag", num_nodes={"paper": 7})


def test_archives_of_other_things_are_refused(tmp_path, rng):
    layouts.plain_npz(tmp_path, rng)
    np.savez(tmp_path / "raw/node-label.npz", label=np.zeros(9))
    with pytest.raises(FormatError, match=r"node-label.npz has \['label'\]; wanted node_label"):
        read_ogb_folder(tmp_path)
    np.savez(tmp_path / "raw/data.npz", edge_index=np.zeros((2, 1), int), num_nodes_list=np.array(["x"]))
    with pytest.raises(SchemaError, match=r"data.npz has x; wanted a count"):
        read_ogb_folder(tmp_path)
    with pytest.raises(SettingsError, match="inverse_edges is 'no'; wanted True, False or None"):
        read_ogb_folder(tmp_path, inverse_edges="no")


def test_error_for_an_incomplete_split_lists_present_files(tmp_path, rng):
    root = tmp_path / "ogbn_arxiv"
    layouts.plain(root, rng)
    for name in ("valid", "test"):
        (root / f"split/time/{name}.csv.gz").unlink()
    with pytest.raises(FormatError, match=r"time has train.csv.gz but lacks valid.csv.gz, test.csv.gz; .*split="):
        read_ogb_folder(root)
    with pytest.raises(FormatError, match=r"has train.csv.gz but lacks train.pt, valid.pt, test.pt; .*read_graph"):
        hopstream.graph.read_ogb_links(root)
    layouts.split_keys(root / "split/random", 4)
    assert hopstream.read_graph(root, split="random").splits[NODE]["train"].tolist() == [0, 2]
    layouts.typed(tmp_path / "typed", rng)
    (tmp_path / "typed/split/time/paper/test.csv.gz").unlink()
    with pytest.raises(FormatError, match=r"paper has train.csv.gz, valid.csv.gz but lacks test.csv.gz"):
        read_ogb_folder(tmp_path / "typed")


def test_mag240m_is_mapped_and_chunked(tmp_path, rng):
    arrays, _, _ = layouts.mapped(tmp_path / "mag", rng)
    graph = read_ogb_folder(tmp_path / "mag", num_nodes=layouts.NUM_NODES)
    assert canonical(graph) == canonical(graph_from_ogb(arrays))
    for array in (graph.nodes["paper"].features["feat"], graph.edges[layouts.CITES].dst_keys):
        assert mapped_file(array) is not None
    write_chunked(graph, tmp_path / "chunks", num_chunks=3)
    assert canonical(hopstream.read_graph(tmp_path / "chunks")) == canonical(graph)
    with pytest.raises(SettingsError, match=r"meta.pt is missing; give num_nodes"):
        read_ogb_folder(tmp_path / "mag")
    (tmp_path / "mag/meta.pt").write_bytes(b"")
    with pytest.raises(MissingDependencyError, match=r"use hopstream.graph.graph_from_ogb_folder"):
        read_ogb_folder(tmp_path / "mag")


def test_one_of_several_splits_is_chosen(tmp_path, rng):
    tmp_path = tmp_path / "ogbn_arxiv"
    layouts.plain(tmp_path, rng)
    layouts.split_keys(tmp_path / "split" / "random", 4)
    with pytest.raises(SettingsError, match="has the splits random, time; choose one of them: split='random'"):
        read_ogb_folder(tmp_path)
    with pytest.raises(
        SettingsError, match=r"split is 'hash', and .* has no split of this name; give one of random, time"
    ):
        read_ogb_folder(tmp_path, split="hash")
    graph = hopstream.read_graph(tmp_path, split="random")
    assert graph.splits[NODE]["train"].tolist() == [0, 2]


def test_contradicting_files_are_refused(tmp_path, rng):
    tmp_path = tmp_path / "ogbn_arxiv"
    layouts.plain(tmp_path, rng)
    raw = tmp_path / "raw"

    def check(name, rows, error, message):
        before = (raw / name).read_bytes()
        layouts.table(raw / name, rows)
        with pytest.raises(error, match=message):
            read_ogb_folder(tmp_path)
        (raw / name).write_bytes(before)

    check("num-node-list.csv.gz", [4, 5], SchemaError, "has counts of 2 graphs")
    check("num-node-list.csv.gz", [8], SchemaError, "9 rows")
    check("num-edge-list.csv.gz", [15], SchemaError, r"edge.csv.gz has 14 edges, but num-edge-list.csv.gz says 15")
    check("num-edge-list.csv.gz", [14.5], SchemaError, r"num-edge-list.csv.gz has 14.5; wanted a count")
    check("num-edge-list.csv.gz", [7, 7], SchemaError, "has counts of 2 graphs")
    check("edge.csv.gz", [[1, 2]] * 13, SchemaError, r"edge.csv.gz has 13 edges, but num-edge-list.csv.gz says 14")
    check("node-feat.csv.gz", [[1.5]] * 8, SchemaError, "8 rows")
    check("node_year.csv.gz", ["new"] * 9, SchemaError, "column 0 is string; wanted numbers")
    check("edge.csv.gz", [[1, 2, 3]], SchemaError, "wanted two integers on each line")
    (raw / "edge.csv.gz").write_bytes(gzip.compress(b"1,2\n3\n"))
    with pytest.raises(FormatError, match=r"edge.csv.gz cannot be read as gzipped CSV"):
        read_ogb_folder(tmp_path)
    (raw / "num-node-list.csv.gz").unlink()
    with pytest.raises(FormatError, match=r"num-node-list.csv.gz is missing"):
        read_ogb_folder(tmp_path)
    with pytest.raises(FormatError, match="is not an OGB folder"):
        read_ogb_folder(tmp_path / "raw")
    with pytest.raises(SettingsError, match="OGB's folders have no option 'ignore'"):
        hopstream.read_graph(tmp_path, ignore="all")


def test_the_command_reads_folders(tmp_path, rng, capsys):
    layouts.typed(tmp_path / "ogbn_mag", rng)
    assert main(["partition", str(tmp_path / "ogbn_mag"), "--parts", "2", "--out", str(tmp_path / "p")]) == 0
    assert "read    ogb      2 node types, 2 edge types, 19 edges" in capsys.readouterr().out
    assert main(["verify", str(tmp_path / "p"), "--against", str(tmp_path / "ogbn_mag")]) == 0


def test_the_command_takes_missing_facts_as_options(tmp_path, rng, capsys):
    source, out = str(tmp_path / "mine"), ["--out", str(tmp_path / "p")]
    layouts.plain(tmp_path / "mine", rng)
    assert main(["ingest", source, *out]) == 2
    assert (
        "give --inverse-edges yes to add them, or --inverse-edges no if the files hold every" in capsys.readouterr().err
    )
    layouts.split_keys(tmp_path / "mine/split/random", 4)
    assert main(["ingest", source, *out, "--inverse-edges", "yes"]) == 2
    assert "choose one of them: --split random" in capsys.readouterr().err
    assert main(["ingest", source, *out, "--inverse-edges", "yes", "--split", "random"]) == 0
    graph = hopstream.read_dataset(tmp_path / "p")
    assert graph.edges[EDGE].num_edges == 28 and graph.splits[NODE]["train"].tolist() == [0, 2]
    assert main(["partition", source, "--out", str(tmp_path / "p2"), "--inverse-edges", "maybe"]) == 2
    assert "--inverse-edges is 'maybe'; it must be one of by-name, yes, no" in capsys.readouterr().err
    (tmp_path / "a.txt").write_text("0 1\n")
    for flag in (["--inverse-edges", "no"], ["--split", "time"]):
        assert main(["ingest", str(tmp_path / "a.txt"), *out, "--overwrite", *flag]) == 2
        assert f"{flag[0]} is only for OGB folders;" in capsys.readouterr().err
