"""Checks that each planted corruption is found and named, even if checksums and counts fit it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hopstream
from hopstream.dataset.layout import read_manifest
from hopstream.dataset.paths import Root, Roots
from hopstream.engine.atomic_folder import locked
from hopstream.graph.graph import NodeTable
from hopstream.ingest.chunked import write_chunked
from hopstream.preparation.audit.report import KINDS, NOTHING
from hopstream.preparation.audit.run import verify_dataset
from tests.dataset.graphs import typed_graphs
from tests.preparation.audit.forging import (
    IN,
    OPTIONS,
    RATES,
    drop_edge,
    edge_files,
    edit,
    forge,
    full_graph,
    load,
    shifted_edges,
)

USER, LINK = "node/user", "link/user__rates__movie"
OWNER = (RATES, "in")


@pytest.fixture(scope="module")
def origins(tmp_path_factory):
    """A dataset, the same without links, the same of another graph; and the graph."""
    root, graph, other = tmp_path_factory.mktemp("origin"), full_graph(5), full_graph(6)
    hopstream.write_parts(graph, root / "whole", **OPTIONS)
    hopstream.write_parts(other, root / "other", owners=owners_of(root / "whole"), **{**OPTIONS, "method": "file"})
    return root, graph


def owners_of(root):
    """Part of each node, such that another graph's files have the same shapes."""
    book = hopstream.open_dataset(root)
    owners = {t: np.empty(n[-1], np.int32) for t, n in book.manifest.book.node_offsets.items()}
    for part in range(book.manifest.book.num_parts):
        for node_type, keys in book.open_part(part).node_keys.items():
            owners[node_type][keys] = part
    return owners


@pytest.fixture
def root(origins, tmp_path):
    shutil.copytree(origins[0] / "whole", tmp_path / "d")
    return tmp_path / "d"


def flip(root, name, position=-1):
    data = bytearray((root / name).read_bytes())
    data[position] ^= 4
    (root / name).write_bytes(data)


def swap(first, second):
    def change(array):
        array[[first, second]] = array[[second, first]]

    return change


def put(position, value):
    def change(array):
        array[position] = value

    return change


def lose_edge(root):
    """Count, ranges and every column of the part agree; the links, which count 150 edges, disagree."""
    cut = drop_edge(edge_files(root, 1), 3)
    forge(root, cut, book=shifted_edges(root, OWNER, [0, 0, -1, -1]))


def double_edge(root):
    """An edge takes the place of the one after it."""
    files = edge_files(root, 1)
    indptr = files[f"part-00001/{IN}/indptr.npy"]
    row = int(np.argmax(np.diff(indptr)))
    at = int(indptr[row])
    for name, array in files.items():
        if "indptr" not in name and "weight_" not in name:
            array[at + 1] = array[at]
    forge(root, files)


def move_edge(root):
    """Move the first edge of part 0, with all its columns, to the start of part 1."""
    taken, given = edge_files(root, 0), edge_files(root, 1)
    grown = {}
    for name, array in given.items():
        if "indptr" in name:
            array[1:] += 1
            grown[name] = array
        else:
            grown[name] = np.insert(array, 0, taken[name.replace("part-00001", "part-00000")][0])
    forge(root, {**drop_edge(taken, 0), **grown}, book=shifted_edges(root, OWNER, [0, -1, 0, 0]))


def miss_key(root):
    """Replace the key of a part's last node by one of another part; keys still ascend."""
    keys = [load(root, f"part-{part:05d}/{USER}/key.npy") for part in range(3)]
    last = max(k[-1] for k in keys)
    part = next(p for p in range(3) if keys[p][-1] != last)
    edit(root, f"part-{part:05d}/{USER}/key.npy", put(-1, last))


def wrong_count(root):
    manifest = json.loads((root / "manifest.json").read_text())
    manifest["node_offsets"]["user"][-1] += 1
    (root / "manifest.json").write_text(json.dumps(manifest))


def shift_book(root):
    book = read_manifest(root).book
    offsets = book.node_offsets["user"].copy()
    offsets[1] += 1
    forge(root, {}, book=type(book)(**{
        "num_parts": 3, "node_offsets": {**book.node_offsets, "user": offsets}, "edge_offsets": book.edge_offsets
    }))  # fmt: skip


def truncate(root):
    path = root / f"part-00002/{IN}/key.npy"
    path.write_bytes(path.read_bytes()[:-16])


def stale(root, name, *, is_forged):
    other = root.parents[0] / "other"
    if is_forged:
        forge(root, {name: np.load(other / name)})
    else:
        shutil.copy(other / name, root / name)


def exchange_features(root):
    names = [f"part-0000{part}/{USER}/features/x.npy" for part in (0, 1)]
    left, right = (load(root, name) for name in names)
    rows = min(len(left), len(right))
    kept = left[:rows].copy()
    left[:rows], right[:rows] = right[:rows], kept
    forge(root, dict(zip(names, (left, right), strict=True)))


def swap_edges(root):
    """Exchange two edges of a row with all that is stored of them but weights; times or keys then descend."""
    files = edge_files(root, 0)
    indptr = files[f"part-00000/{IN}/indptr.npy"]
    at = int(indptr[int(np.argmax(np.diff(indptr)))])
    for name, array in files.items():
        if "indptr" not in name and "weight_" not in name:
            array[[at, at + 1]] = array[[at + 1, at]]
    forge(root, files)


def wrong_tags(root):
    name = f"part-00001/{USER}/features/tags.offsets.npy"
    edit(root, name, lambda offsets: offsets[::-1].copy())


def shorter_tags(root):
    """Move the boundary between two rows."""
    name = f"part-00001/{USER}/features/tags.offsets.npy"

    def change(offsets):
        row = int(np.argmax(np.diff(offsets)[:-1])) + 1
        offsets[row] -= 1

    edit(root, name, change)


def wrong_split(root):
    name = f"part-00000/{USER}/splits/train.npy"
    edit(root, name, lambda keys: np.concatenate([keys[:-1], [keys[-1] - 1]]))


X = f"part-00001/{USER}/features/x.npy"
CORRUPTIONS = {
    "flipped byte in features": (lambda r: flip(r, X), {"checksums", "graph"}, {"features"}),
    "flipped byte in features, forged": (lambda r: edit(r, X, put((2, 1), 7)), {"graph"}, {"features"}),
    "flipped byte in a header": (lambda r: flip(r, X, 60), {"files"}, set()),
    "swapped rows of features": (lambda r: edit(r, X, swap(0, 1)), {"graph"}, {"features"}),
    "swapped names": (
        lambda r: edit(r, f"part-00000/{USER}/features/name.values.npy", lambda v: v[::-1].copy()),
        {"graph"}, {"features"},
    ),
    "swapped weights": (
        lambda r: edit(r, f"part-00001/{IN}/features/rating.npy", lambda w: w[::-1].copy()),
        {"weights", "graph"}, {"features"},
    ),
    "rows of tags end elsewhere": (shorter_tags, {"graph"}, {"features"}),
    "tags without order": (wrong_tags, {"ranges"}, set()),
    "doubled edge": (double_edge, {"edges"}, set()),
    "edge in another part": (move_edge, {"ownership", "edges", "links"}, set()),
    "wrong id": (
        lambda r: edit(r, f"part-00001/{IN}/indices.npy", put(3, 0)), {"edges", "neighbors", "links", "graph"}, set()
    ),
    "id out of range": (lambda r: edit(r, f"part-00001/{IN}/indices.npy", put(3, 30)), {"ranges"}, set()),
    "node key twice": (lambda r: edit(r, f"part-00001/{USER}/key.npy", lambda k: np.array([*k[:1], *k[:-1]])),
                       {"nodes", "order", "book"}, set()),
    "node key missing": (miss_key, {"nodes"}, set()),
    "node key out of range": (lambda r: edit(r, f"part-00001/{USER}/key.npy", put(-1, 99)), {"ranges", "nodes"}, set()),
    "book of keys wrong": (lambda r: edit(r, f"part-00001/{USER}/id_of_key.npy", swap(0, 1)), {"book"}, set()),
    "edge key twice": (lambda r: edit(r, f"part-00001/{IN}/key.npy", lambda k: np.array([*k[1:2], *k[1:]])),
                       {"edges"}, set()),
    "edge key out of range": (lambda r: edit(r, f"part-00001/{IN}/key.npy", put(0, 999)), {"ranges", "edges"}, set()),
    "split key wrong": (wrong_split, {"graph"}, {"splits"}),
    "split key of the next slice": (lambda r: edit(r, f"part-00000/{USER}/splits/train.npy", put(-1, 10)),
                                   {"splits"}, {"splits"}),
    "times out of order": (lambda r: edit(r, f"part-00001/{IN}/time.npy", lambda t: t[::-1].copy()),
                           {"order", "times"}, set()),
    "times of another neighbour": (lambda r: edit(r, f"part-00001/{IN}/time.npy", lambda t: t + 1), {"times"}, set()),
    "edges of a node out of order": (swap_edges, {"order"}, set()),
    "weight sums wrong": (lambda r: edit(r, f"part-00001/{IN}/weight_sums.npy", put(4, 99)), {"weights"}, set()),
    "weight order wrong": (lambda r: edit(r, f"part-00001/{IN}/weight_order.npy", put(4, 99)), {"weights"}, set()),
    "alias wrong": (lambda r: edit(r, f"part-00001/{IN}/weight_alias.npy", put(4, 99)), {"weights"}, set()),
    "manifest count wrong": (wrong_count, {"manifest"}, set()),
    "offsets of the book shifted": (shift_book, {"manifest"}, set()),
    "lost edge": (lose_edge, {"manifest"}, set()),
    "truncated file": (truncate, {"files"}, set()),
    "missing file": (lambda r: (r / X).unlink(), {"files"}, set()),
    "missing indptr": (lambda r: (r / f"part-00001/{IN}/indptr.npy").unlink(), {"files"}, set()),
    "extra file": (lambda r: np.save(r / "part-00001" / "old.npy", np.zeros(3)), {"files"}, set()),
    "stale file": (lambda r: stale(r, X, is_forged=False), {"checksums", "graph"}, {"features"}),
    "stale file, forged": (lambda r: stale(r, X, is_forged=True), {"graph"}, {"features"}),
    "neighbour keys wrong": (lambda r: edit(r, f"part-00001/{IN}/neighbor_key.npy", lambda k: (k + 1) % 30),
                             {"neighbors"}, set()),
    "features of two parts exchanged": (exchange_features, {"graph"}, {"features"}),
    "link wrong": (lambda r: edit(r, f"part-00001/{LINK}/src_key.npy", lambda k: (k + 1) % 30), {"links"}, set()),
    "rows do not begin where they should": (
        lambda r: edit(r, f"part-00001/{IN}/indptr.npy", lambda p: np.array([*p[:1], p[1] + 1, *p[2:]])),
        {"edges", "links"}, set(),
    ),
    "indptr descends": (lambda r: edit(r, f"part-00001/{IN}/indptr.npy", put(1, 10_000)), {"ranges"}, set()),
    "graph_id of another graph": (lambda r: forge(r, {}, graph_id="0" * 32), {"graph"}, set()),
}  # fmt: skip


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_corruption_is_found_and_named(origins, root, name):
    plant, alone, with_source = CORRUPTIONS[name]
    if name.startswith("stale"):
        shutil.copytree(origins[0] / "other", root.parent / "other")
    plant(root)
    report = verify_dataset(root)
    assert not report.is_ok
    assert alone <= set(report.kinds), [str(f) for f in report.findings]
    assert {finding.kind for finding in report.findings} == set(report.kinds)
    if not with_source:
        return
    told = verify_dataset(root, against=origins[1])
    assert alone | with_source <= set(told.kinds), [str(f) for f in told.findings]


def test_a_whole_dataset_has_no_findings(origins, root):
    for against in (None, origins[1], origins[0] / "whole"):
        report = verify_dataset(root, against=against)
        assert report.is_ok and not report.findings, [str(f) for f in report.findings]
        of_source = {"schema", "features", "ownership"} if against is None else set()
        assert set(report.skipped) == {"halo"} | of_source
        done = {kind for kind, check in report.checks.items() if check.status == "ok"}
        assert done == set(KINDS) - {"halo"} - (of_source - {"ownership"})  # links show the ownership of some types


PARTLY = {
    "flipped byte in features": ({"checksums"}, {"checksums", "features"}),
    "flipped byte in features, forged": (set(), {"features"}),
    "swapped weights": ({"weights"}, {"weights", "features"}),
    "doubled edge": ({"edges"}, {"edges"}),
    "id out of range": ({"ranges"}, {"ranges"}),
    "node key twice": ({"nodes", "order"}, {"nodes", "order"}),
    "book of keys wrong": ({"book"}, {"book"}),
    "missing file": ({"files"}, {"files"}),
    "link wrong": ({"links"}, {"links"}),
}
"""Kinds of findings in the damaged part, checked alone and with the source."""


@pytest.mark.parametrize("name", PARTLY)
def test_a_corruption_is_found_in_its_part_alone(origins, root, name):
    CORRUPTIONS[name][0](root)
    for part in (0, 2):
        shutil.rmtree(root / f"part-0000{part}")
    for wanted, against in zip(PARTLY[name], (None, origins[1]), strict=True):
        report = verify_dataset(root, against=against, parts=[1])
        assert set(report.kinds) >= wanted, [str(f) for f in report.findings]
        assert wanted or report.is_ok
        assert all(finding.group in ("", "part-00001") for finding in report.findings)
        assert (report.checks["graph"].status, report.checks["halo"].status) == ("skipped", "skipped")


@pytest.mark.parametrize("parts", [[2, 1], [0, 1, 2]])
def test_parts_have_no_findings_of_missing_parts(origins, root, parts):
    for part in {0, 1, 2} - set(parts):
        shutil.rmtree(root / f"part-0000{part}")
    for against in (None, origins[1]):
        report = verify_dataset(root, against=against, parts=parts)
        assert report.is_ok, [str(f) for f in report.findings]
        of_parts = set(report.skipped) & {"nodes", "edges", "book", "graph", "times", "neighbors"}
        assert len(of_parts) == (6 if len(parts) < 3 else 0)
        assert {"nodes", "edges", "book", "times", "links"} <= {k for k, c in report.checks.items() if c.num_checked}


def test_parts_without_edge_keys(tmp_path):
    graph = full_graph(7)
    hopstream.write_parts(graph, tmp_path / "d", direction="both", **OPTIONS, keep_edge_keys=False)
    for against in (None, graph):
        report = verify_dataset(tmp_path / "d", against=against, parts=[0, 2])
        assert report.is_ok, [str(f) for f in report.findings]
        assert "edges" in report.skipped
    plain = hopstream.rmat_graph(6, edges_per_node=4)
    hopstream.write_parts(plain, tmp_path / "e", num_parts=3, method="hash", direction="both", keep_edge_keys=False)
    report = verify_dataset(tmp_path / "e", against=plain, parts=[1])
    assert report.is_ok and report.checks["edges"].num_checked > 50


def test_an_edge_redirected_to_another_part_is_found(tmp_path):
    graph = hopstream.rmat_graph(6, edges_per_node=4)
    hopstream.write_parts(graph, tmp_path / "d", num_parts=3, method="hash")
    first, stop = read_manifest(tmp_path / "d").book.node_offsets["node"][1:3]

    def lead_out(ids):
        ids[np.flatnonzero((ids >= first) & (ids < stop))[0]] = 0

    edit(tmp_path / "d", "part-00001/edge/node__to__node/in/indices.npy", lead_out)
    (finding,) = verify_dataset(tmp_path / "d", against=graph, parts=[1]).findings
    assert (finding.kind, finding.count) == ("edges", 1)
    assert verify_dataset(tmp_path / "d", against=graph, parts=[0, 2]).is_ok


def test_unknown_parts_are_refused(root):
    for parts, error, message in [
        ([3], hopstream.errors.UnknownNameError, r"has no part 3; parts are numbered 0\.\.2"),
        ([], hopstream.errors.SettingsError, "parts is empty; give some of"),
    ]:
        with pytest.raises(error, match=message):
            verify_dataset(root, parts=parts)


def test_a_list_of_roots_that_contradicts_the_dataset(root):
    dataset_id = read_manifest(root).dataset_id

    def told(entries):
        (root / "roots.json").write_text(Roots(dataset_id, tuple(entries)).to_text())
        return [str(finding) for finding in verify_dataset(root).findings]

    assert told([Root(str(root), (0, 1, 2))]) == []
    assert told([Root(str(root), (0, 2))]) == [
        "roots.json: lists no root for some parts; place the dataset again: part 1"
    ]
    assert told([Root(str(root), (0, 1, 2, 7))]) == ["roots.json: names parts that do not exist: part 7"]
    (root / "roots.json").write_text("{}")
    assert "roots.json: cannot be read" in str(verify_dataset(root).findings[0])
    dataset_id = "0" * 32  # of another state of the dataset, so it is ignored
    assert told([Root(str(root), (9,))]) == []


def test_a_root_whose_parts_lie_elsewhere_names_the_roots(root):
    text = Roots(read_manifest(root).dataset_id, (Root("/m0", (0, 1)), Root("s3://m/1", (2,)))).to_text()
    (root / "roots.json").write_text(text)
    shutil.rmtree(root / "part-00002")
    message = r"lacks parts 2 of 0\.\.2, which roots\.json lists in s3://m/1; .* with --parts 0,1, and each other"
    with pytest.raises(hopstream.errors.FormatError, match=message):
        verify_dataset(root)
    assert verify_dataset(root, parts=[0, 1]).is_ok
    (root / "roots.json").unlink()
    assert verify_dataset(root).kinds == ("files",)  # no file says that they are elsewhere


def test_findings_are_listed_part_by_part_and_file_by_file(root):
    for part in range(3):
        for name in ("splits/train", "features/x", "features/time"):
            flip(root, f"part-0000{part}/{USER}/{name}.npy")
    report = verify_dataset(root)
    assert [finding.group for finding in report.findings] == sorted(finding.group for finding in report.findings)
    for part in range(3):
        of_part = [finding.where for finding in report.findings if finding.group == f"part-0000{part}"]
        assert of_part == sorted(of_part) and len(of_part) >= 3
    few = verify_dataset(root, max_findings=4)
    assert [finding.group for finding in few.findings] == ["", "part-00000", "part-00001", "part-00002"]
    assert few.num_left_out == sum(few.left_out.values()) == len(report.findings) - 4
    assert few.checks == report.checks


def test_a_wrong_source_keeps_every_check_in_the_report(root):
    report = verify_dataset(root, against=hopstream.rmat_graph(5))
    assert set(report.checks) == set(KINDS)
    assert report.checks["features"].status == "skipped"
    assert "user is a type of the dataset only" in report.checks["features"].skipped
    assert report.checks["schema"].status == "failed" and not report.is_ok


def test_places_are_named(root):
    edit(root, f"part-00001/{IN}/neighbor_key.npy", lambda keys: (keys + 1) % 30)
    edit(root, f"part-00002/{USER}/id_of_key.npy", swap(0, 1))
    report = verify_dataset(root)
    neighbors, book = report.findings
    assert (book.kind, book.count, book.where) == ("book", 2, f"part-00002/{USER}/id_of_key.npy")
    assert book.places[0].startswith("key 20 is said to be id ")
    assert neighbors.count == report.checks["neighbors"].num_wrong > len(neighbors.places) == 5
    assert str(neighbors).endswith(", …")
    few = verify_dataset(root, max_findings=1)
    assert (few.findings, few.left_out, few.checks) == ((neighbors,), {"part-00002": 1}, report.checks)


def test_lost_edges_without_links(tmp_path):
    """Only the graph's fingerprint and the source show that the last edge is missing."""
    graph = hopstream.rmat_graph(6, edges_per_node=4)
    hopstream.write_parts(graph, tmp_path / "d", num_parts=2, method="hash", direction="out")
    owner = (("node", "to", "node"), "out")
    folder = "part-0000{}/edge/node__to__node/out"
    last = graph.edges[owner[0]].num_edges - 1
    for part in range(2):
        keys = load(tmp_path / "d", f"{folder.format(part)}/key.npy")
        if last in keys:
            names = [f"{folder.format(part)}/{name}.npy" for name in ("indptr", "indices", "key")]
            files = {name: load(tmp_path / "d", name) for name in names}
            by = [0, -1, -1] if part == 0 else [0, 0, -1]
            cut = drop_edge(files, int(np.flatnonzero(keys == last)[0]))
            forge(tmp_path / "d", cut, book=shifted_edges(tmp_path / "d", owner, by))
            break
    assert verify_dataset(tmp_path / "d").kinds == ("graph",)
    assert verify_dataset(tmp_path / "d", against=graph).kinds == ("schema", "graph")
    edit(tmp_path / "d", f"{folder.format(0)}/key.npy", put(0, last - 1))
    assert {"edges"} <= set(verify_dataset(tmp_path / "d").kinds)


@pytest.mark.parametrize("data_format", ["numpy", "parquet"])
def test_one_value_in_the_last_row_of_the_last_chunk(tmp_path, data_format):
    graph = hopstream.rmat_graph(7, edges_per_node=5, num_features=3)
    hopstream.write_parts(graph, tmp_path / "d", num_parts=3, method="hash")
    values = graph.nodes["node"].features["x"].copy()
    values[-1, -1] += 1
    other = replace(graph, nodes={"node": NodeTable(num_nodes=len(values), features={"x": values})})
    write_chunked(other, tmp_path / "c", num_chunks=3, data_format=data_format)
    report = verify_dataset(tmp_path / "d", against=tmp_path / "c")
    (finding,) = report.findings
    assert (finding.kind, finding.where, finding.count) == ("features", "node.x", 1)
    assert finding.places[0].startswith(f"key {len(values) - 1} (part ")


@pytest.mark.parametrize("direction", ["out", "both"])
def test_chunked_sources_and_small_windows(tmp_path, monkeypatch, direction):
    monkeypatch.setattr("hopstream.preparation.audit.run._window_edges", lambda *_: 37)
    graph = hopstream.rmat_graph(7, edges_per_node=5, num_features=3, num_classes=2)
    write_chunked(graph, tmp_path / "c", num_chunks=3)
    hopstream.write_parts(graph, tmp_path / "d", num_parts=3, method="random", direction=direction)
    for against in (None, tmp_path / "c", tmp_path / "c" / "metadata.json"):
        report = verify_dataset(tmp_path / "d", against=against)
        assert report.is_ok, [str(f) for f in report.findings]
        assert report.checks["edges"].num_checked == 640 * (1 + (direction == "both"))
    other = hopstream.rmat_graph(7, edges_per_node=5, num_features=3, num_classes=2, rng_seed=9)
    report = verify_dataset(tmp_path / "d", against=other)
    assert {"edges", "ownership", "features"} <= set(report.kinds)


def test_directions_that_contradict_each_other(tmp_path):
    graph = hopstream.rmat_graph(6, edges_per_node=4)
    hopstream.write_parts(graph, tmp_path / "d", num_parts=2, method="hash", direction="both")
    edit(tmp_path / "d", "part-00001/edge/node__to__node/out/indices.npy", lambda ids: (ids + 1) % 64)
    report = verify_dataset(tmp_path / "d")
    assert report.kinds == ("edges",)
    assert "joins other nodes than in/ says" in str(report.findings[0])


def test_datasets_without_edge_keys(tmp_path, monkeypatch):
    """Keys come from the source, or from links."""
    monkeypatch.setattr("hopstream.preparation.audit.run._window_edges", lambda *_: 40)
    graph = full_graph(7)
    root = tmp_path / "d"
    hopstream.write_parts(graph, root, direction="both", **OPTIONS, keep_edge_keys=False)
    alone = verify_dataset(root)
    assert alone.is_ok and alone.checks["edges"].num_checked == 600  # rates and likes have splits, so links
    assert alone.skipped["edges"][0].startswith("user__knows__user: the dataset keeps no edge keys")
    assert {"ownership", "links", "graph"} <= set(alone.skipped) and alone.checks["graph"].status == "skipped"
    report = verify_dataset(root, against=graph)
    assert report.is_ok and set(report.skipped) == {"halo"}, [str(f) for f in report.findings]
    assert report.checks["edges"].num_checked == 900
    assert report.checks["graph"].num_checked == 1
    name = "part-00001/edge/user__rates__movie/out/features/rating.npy"
    edit(root, name, lambda weights: weights[::-1].copy())
    assert {"features", "weights"} <= set(verify_dataset(root, against=graph).kinds)
    for relation, source in (("user__knows__user", graph), ("user__rates__movie", None)):
        edit(root, f"part-00001/edge/{relation}/in/indices.npy", lambda ids: (ids + 1) % 30)
        told = verify_dataset(root, against=source)
        assert any(f.kind == "edges" and f.where == f"{relation}/in" for f in told.findings)
    indptr = f"part-00000/{IN}/indptr.npy"
    row = int(np.argmax(np.diff(load(root, indptr))))
    edit(root, indptr, lambda starts: starts - (np.arange(len(starts)) == row + 1))
    told = verify_dataset(root, against=graph)
    assert any("more or fewer edges" in f.what and f.count == 2 for f in told.findings)


@settings(max_examples=12, deadline=None)
@given(graph=typed_graphs(), seed=st.integers(0, 3), keep_edge_keys=st.booleans())
def test_correct_graphs_have_no_findings(tmp_path_factory, graph, seed, keep_edge_keys):
    """Graphs with empty types, ragged features, odd names and parallel edges verify without findings."""
    root = tmp_path_factory.mktemp("any") / "d"
    sides = ("in", "out", "both")[seed % 3]
    hopstream.write_parts(
        graph, root, num_parts=3, method="random", rng_seed=seed, direction=sides, keep_edge_keys=keep_edge_keys
    )
    for against in (None, graph):
        report = verify_dataset(root, against=against)
        assert report.is_ok, [str(f) for f in report.findings]
    some = verify_dataset(root, against=graph, parts=[seed % 3])
    assert some.is_ok, [str(f) for f in some.findings]
    assert not {"nodes", "edges", "graph"} & {k for k, why in report.skipped.items() if why != (NOTHING,)}
    assert report.checks["graph"].num_checked == 1


def test_unusable_input_is_an_error(tmp_path, root):
    with pytest.raises(hopstream.errors.FormatError, match=r"manifest.json is missing"):
        verify_dataset(tmp_path / "nothing")
    with pytest.raises(hopstream.errors.FormatError, match="give what the dataset was written from"):
        verify_dataset(root, against=tmp_path / "nothing")
    with pytest.raises(hopstream.errors.SettingsError, match="memory is 'much'"):
        verify_dataset(root, memory="much")
    with locked(root), pytest.raises(hopstream.errors.StateError, match="is being changed by another process"):
        verify_dataset(root)  # or it would report files that belong there soon
