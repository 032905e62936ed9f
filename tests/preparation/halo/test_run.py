"""Checks that each part gets exactly its copies, and that failed runs change no dataset."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hopstream
from hopstream.arrays import RaggedArray
from hopstream.dataset.book import ends_of
from hopstream.dataset.halo_layout import open_halo
from hopstream.dataset.halo_record import check_halo
from hopstream.errors import FormatError, SettingsError, StateError, UnknownNameError
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.ingest.chunked import write_chunked
from hopstream.preparation.halo import run as halo_run
from hopstream.preparation.halo.reach import InclusionModel, edge_bytes
from hopstream.preparation.halo.settings import HaloSettings
from hopstream.preparation.halo.sources import NumberTables, Parts
from tests.dataset.graphs import same_column, tree_of, typed_graphs
from tests.preparation.audit.forging import OPTIONS, full_graph


@pytest.fixture(scope="module")
def origin(tmp_path_factory):
    root = tmp_path_factory.mktemp("origin") / "d"
    hopstream.write_parts(full_graph(3), root, direction="both", **OPTIONS)
    return root


@pytest.fixture
def root(origin, tmp_path):
    shutil.copytree(origin, tmp_path / "d")
    return tmp_path / "d"


def naive_reach(dataset, part, hops):
    """Node type to the ids of other parts within some hops, by sets of ids."""
    book = dataset.manifest.book
    arrays = [dataset.open_part(p) for p in range(book.num_parts)]
    frontier = {(t, i) for t, o in book.node_offsets.items() for i in range(o[part], o[part + 1])}
    own, found = set(frontier), set()
    for _ in range(hops):
        reached = set()
        for node_type, i in frontier:
            for entity, offsets in book.edge_offsets.items():
                near, far = ends_of(*entity)
                if near == node_type:
                    assert offsets is not None
                    p = int(book.parts_of(near, np.array([i]))[0])
                    edges, row = arrays[p].edges[entity], i - book.offsets(near)[p]
                    reached |= {(far, int(j)) for j in edges.indices[edges.indptr[row] : edges.indptr[row + 1]]}
        frontier = reached - own - found
        found |= frontier
    return {t: sorted(i for u, i in found if u == t) for t in book.node_offsets}


def check_truth(dataset, hops):
    """Check that each copy equals its owner's row."""
    book, schema = dataset.manifest.book, dataset.manifest.schema
    arrays = [dataset.open_part(p) for p in range(book.num_parts)]
    for part in range(book.num_parts):
        halo, wanted = open_halo(dataset, part), naive_reach(dataset, part, hops)
        has_hops = dataset.manifest.halo.edge_budget_bytes is None
        assert not has_hops or {t: ids.tolist() for t, ids in halo.node_ids.items()} == (wanted if hops else {})
        for (node_type, ids), keys in zip(halo.node_ids.items(), halo.node_keys.values(), strict=True):
            parts = book.parts_of(node_type, ids)
            rows = ids - book.offsets(node_type)[parts]
            assert keys.tolist() == [arrays[p].node_keys[node_type][r] for p, r in zip(parts, rows, strict=True)]
        for entity, edges in halo.edges.items():
            near = ends_of(*entity)[0]
            for row, i in enumerate(halo.node_ids[near].tolist()):
                p = int(book.parts_of(near, np.array([i]))[0])
                theirs, at = arrays[p].edges[entity], i - book.offsets(near)[p]
                start, stop = theirs.indptr[at : at + 2]
                ours = slice(edges.indptr[row], edges.indptr[row + 1])
                assert halo.edge_starts[entity][row] == start + book.offsets(entity)[p]
                for name in ("indices", "keys", "times", "weights", "weight_sums", "weight_order", "weight_alias",
                             "neighbor_keys"):  # fmt: skip
                    left, right = getattr(edges, name), getattr(theirs, name)
                    assert (left is None) == (right is None)
                    assert left is None or left[ours].tobytes() == right[start:stop].tobytes()
                assert set(edges.features) == set(dataset.manifest.halo.edge_features.get(entity[0], ()))
                for name, column in edges.features.items():
                    one, other = (rows_of(c, at.start, at.stop) for c, at in (
                        (column, ours), (theirs.features[name], slice(start, stop)),
                    ))  # fmt: skip
                    assert same_column(one, other)
        for node_type, cached in halo.cached.items():
            assert halo_budget(dataset) is not None or cached.ids.tolist() == wanted[node_type]
            for name, column in cached.features.items():
                assert name in schema.nodes[node_type]
                for row, i in enumerate(cached.ids.tolist()):
                    p = int(book.parts_of(node_type, np.array([i]))[0])
                    at = i - book.offsets(node_type)[p]
                    theirs = arrays[p].node_features[node_type][name]
                    assert same_column(rows_of(column, row, row + 1), rows_of(theirs, at, at + 1))


def rows_of(column, start, stop):
    return column.take(np.arange(start, stop)) if isinstance(column, RaggedArray) else np.array(column[start:stop])


def inclusion_of(parts, part, settings):
    tables = NumberTables(parts.dataset.root, 1 << 30)
    return InclusionModel(parts, settings, tables, is_expanding=True).of(part)


def halo_budget(dataset):
    return dataset.manifest.halo.budget_bytes


@pytest.mark.parametrize("hops", [1, 3])
def test_copies_are_true_and_complete(root, hops):
    report = hopstream.dataset.add_halo(root, hops=hops, features="all")
    dataset = hopstream.open_dataset(root, verify=True)
    check_truth(dataset, hops)
    assert dataset.manifest.halo.halo_id == report.manifest.halo.halo_id
    assert hopstream.verify_dataset(root).is_ok
    assert sum(dataset.manifest.halo.bytes) == sum(
        p.stat().st_size for p in root.rglob("*.npy") if "/halo/" in str(p.relative_to(root))
    )


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(graph=typed_graphs(), hops=st.integers(1, 2), num_parts=st.integers(1, 3))
def test_any_graphs_halo_is_true_and_complete(tmp_path_factory, graph, hops, num_parts):
    root = tmp_path_factory.mktemp("any") / "d"
    halo = HaloSettings(hops=hops, features="all")
    manifest = hopstream.write_parts(graph, root, num_parts=num_parts, method="random", halo=halo)
    assert (manifest.halo is None) == (num_parts == 1)
    if num_parts > 1:
        check_truth(hopstream.open_dataset(root), hops)
    assert hopstream.verify_dataset(root).is_ok


def test_the_content_is_the_same_with_and_without(root):
    before, tree = hopstream.open_dataset(root).manifest, tree_of(root)
    with_halo = hopstream.dataset.add_halo(root, hops=2, features="user:x,movie:*").manifest
    assert (with_halo.dataset_id, with_halo.graph_id) == (before.dataset_id, before.graph_id)
    assert set(with_halo.halo.features) == {"user", "movie"} and with_halo.halo.features["user"] == ("x",)
    assert {name: data for name, data in tree_of(root).items() if "/halo/" not in name} | {
        "manifest.json": tree["manifest.json"]
    } == tree
    again = hopstream.dataset.add_halo(root, hops=1).manifest
    assert (again.halo.generation, again.halo.features) == (2, {})
    assert {p.name for p in root.glob("part-*/halo/*")} == {"00002"}
    assert hopstream.dataset.add_halo(root, hops=0).manifest.halo is None
    assert tree_of(root) == tree


def test_named_edge_features_are_copied_beside_a_budget_that_does_not_count_them(root):
    halo = hopstream.dataset.add_halo(
        root, hops=2, features="user__rates__movie:rating,user:x", budget=100
    ).manifest.halo
    rates = ("user", "rates", "movie")
    assert (dict(halo.edge_features), dict(halo.features)) == ({rates: ("rating",)}, {"user": ("x",)})
    names = {name.rpartition("/")[2] for name in halo.files if "/edge/user__rates__movie/in/" in name}
    assert "rating.npy" in names and not names & {"weight.npy", "time.values.npy"}
    check_truth(hopstream.open_dataset(root, verify=True), 2)
    assert hopstream.verify_dataset(root).is_ok
    every = hopstream.dataset.add_halo(root, hops=1, budget=100).manifest.halo
    assert every.edge_features == {} and set(every.features) == {"user", "movie"}


def test_a_halo_with_edge_features_and_no_edges_is_refused(root):
    manifest = hopstream.dataset.add_halo(root, hops=1, features="all").manifest
    check_halo(manifest.halo, manifest)
    with pytest.raises(FormatError, match="the dataset does not have them to copy"):
        check_halo(replace(manifest.halo, hops=0), manifest)


def test_the_hottest_rows_are_taken_within_the_budget(root):
    dataset = hopstream.open_dataset(root)
    sizes = []
    for budget in (0, 200, 1000, "1MB"):
        report = hopstream.dataset.add_halo(dataset, hops=0, budget=budget, fanouts=[3, 2], batch_size=4)
        halo, parts = report.manifest.halo, Parts(dataset)
        for part, counts in enumerate(halo.parts):
            chances = inclusion_of(parts, part, HaloSettings(fanouts=[3, 2], batch_size=4)).sampled
            cached = open_halo(hopstream.open_dataset(root), part).cached
            taken = [chances[t][c.ids] for t, c in cached.items()]
            left = []
            for node_type, c in cached.items():
                first, stop = dataset.manifest.book.node_offsets[node_type][part : part + 2]
                others = np.setdiff1d(np.arange(len(chances[node_type])), np.r_[first:stop, c.ids])
                left.append(chances[node_type][others])
            least = min(np.concatenate(taken), default=1)
            assert least > 0 and least >= max(np.concatenate(left), default=0)
            assert counts.nodes == {} and sum(map(len, taken)) == sum(counts.cached.values())
        assert hopstream.verify_dataset(root).is_ok
        sizes.append(report.total.saved_rows)
    assert sizes[0] == 0 and sizes == sorted(sizes) and len(set(sizes)) == 4
    assert report.total.row_share == pytest.approx(1)


def test_the_edges_of_the_likeliest_expanded_nodes_are_taken_within_the_budget(root):
    saved, draws = [], {"fanouts": [3, 2], "batch_size": 4}
    for edge_budget in (0, 2500, 8000, "10MB"):
        report = hopstream.dataset.add_halo(root, hops=0, edge_budget=edge_budget, **draws)
        dataset = hopstream.open_dataset(root)
        check_truth(dataset, 0)
        parts, num_bytes = Parts(dataset), sum(r.num_bytes for r in report.manifest.halo.files.values())
        for part in range(3):
            chances, halo = inclusion_of(parts, part, HaloSettings(**draws)).expanded, open_halo(dataset, part)
            taken, left = [np.empty(0)], [np.empty(0)]
            for node_type, ids in halo.node_ids.items():
                first, stop = dataset.manifest.book.node_offsets[node_type][part : part + 2]
                others = np.setdiff1d(np.arange(len(chances[node_type])), np.r_[first:stop, ids])
                ranks = chances[node_type] / edge_bytes(parts, node_type, np.arange(len(chances[node_type])))
                taken.append(ranks[ids])
                left.append(ranks[others])
            least = min(np.concatenate(taken), default=1)
            assert least > 0 and least >= max(np.concatenate(left), default=0)
        heads = (136 + 8) * len(report.manifest.halo.files)
        assert edge_budget == "10MB" or num_bytes <= 3 * edge_budget + heads
        assert hopstream.verify_dataset(root).is_ok
        saved.append(report.total.saved_expanded)
    assert saved[0] == 0 and saved == sorted(saved) and len(set(saved)) == 4
    assert report.total.expanded_share == pytest.approx(1)


def test_nodes_that_keep_no_edges_take_no_budget_of_edges(tmp_path):
    rng = np.random.default_rng(0)
    ends = {"user": rng.integers(0, 90, 400), "item": rng.integers(0, 60, 400)}
    edges = {
        (t, "meets", "item"): EdgeTable(src_keys=keys, dst_keys=rng.integers(0, 60, 400)) for t, keys in ends.items()
    }
    nodes = {"user": NodeTable(num_nodes=90), "item": NodeTable(num_nodes=60)}
    hopstream.write_parts(Graph(nodes=nodes, edges=edges).check(), tmp_path / "d", num_parts=3, method="random")
    report = hopstream.dataset.add_halo(tmp_path / "d", hops=0, edge_budget=1000, fanouts=[3, 2], batch_size=4)
    for part in report.manifest.halo.parts:
        assert part.nodes["user"] == 0
        assert part.nodes["item"] > 0 and part.edges[("user", "meets", "item"), "in"] > 0
    assert hopstream.verify_dataset(tmp_path / "d").is_ok


def test_inclusion_is_the_chance_of_being_sampled(tmp_path):
    """Compare with a slow count, and with batches on a tree, where the model is exact for one seed."""
    graph = hopstream.graph_from_arrays(np.array([[1, 2, 3, 4, 5, 6], [0, 0, 0, 1, 1, 3]]), num_nodes=7)
    hopstream.write_parts(graph, tmp_path / "d", owners={"node": [0, 1, 1, 1, 1, 1, 1]}, num_parts=2)
    parts = Parts(hopstream.open_dataset(tmp_path / "d"))
    inclusion = inclusion_of(parts, 0, HaloSettings(fanouts=[2, 1], batch_size=1))
    assert np.allclose(inclusion.sampled["node"], [1, 2 / 3, 2 / 3, 2 / 3, 1 / 3, 1 / 3, 2 / 3])
    assert np.allclose(inclusion.expanded["node"], [1, 2 / 3, 2 / 3, 2 / 3, 0, 0, 0])


class Killed(BaseException):
    """Ends a run as an interrupt does."""


def stop(*arguments):
    raise Killed


def test_dispatch_and_write_parts_make_the_same_halo(tmp_path, monkeypatch):
    graph = full_graph(4)
    user = graph.nodes["user"]
    features = {name: column for name, column in user.features.items() if isinstance(column, np.ndarray)}
    nodes = {**graph.nodes, "user": NodeTable(num_nodes=user.num_nodes, features=features)}
    graph = replace(graph, nodes=nodes, edge_splits={}).check()
    write_chunked(graph, tmp_path / "c", num_chunks=3)
    owners = tmp_path / "owners"
    owners.mkdir()
    rng = np.random.default_rng(0)
    for node_type, nodes in graph.nodes.items():
        np.save(owners / f"{node_type}.npy", rng.integers(0, 3, nodes.num_nodes))
    options = {"num_parts": 3, "time_attr": "time", "weight_attr": "rating", "neighbor_keys": True}
    halo = HaloSettings(hops=2, features="all", budget=4000)
    job = {"num_workers": 0, "halo": halo, **options}
    with monkeypatch.context() as patch:  # ended while it writes the halo, it resumes
        patch.setattr(halo_run, "hottest", stop)
        with pytest.raises(Killed):
            hopstream.dataset.dispatch(tmp_path / "c", owners, tmp_path / "d", **job)
        assert not (tmp_path / "d").exists()
    hopstream.dataset.dispatch(tmp_path / "c", owners, tmp_path / "d", **job)
    hopstream.write_parts(graph, tmp_path / "w", owners=owners, halo=halo, **options)
    ours, theirs = tree_of(tmp_path / "w"), tree_of(tmp_path / "d")
    assert {n: d for n, d in ours.items() if n != "manifest.json"} == {
        n: d for n, d in theirs.items() if n != "manifest.json"
    }
    assert any("/halo/" in name for name in ours)
    manifests = [hopstream.open_dataset(tmp_path / name).manifest for name in "wd"]
    assert manifests[0].halo.halo_id == manifests[1].halo.halo_id


@pytest.mark.parametrize(
    ("when", "with_old"), [("while writing", False), ("before the manifest", True), ("after the manifest", True)]
)
def test_an_interrupted_run_leaves_the_old_state(root, monkeypatch, with_old, when):
    if with_old:
        hopstream.dataset.add_halo(root, hops=1, features="all")
    before = tree_of(root)

    with monkeypatch.context() as patch:
        if when == "while writing":
            patch.setattr(halo_run, "hottest", stop)
        elif when == "before the manifest":
            patch.setattr("hopstream.dataset.manifest.write_text", stop)
        else:  # the process is gone, so nothing is cleaned up
            patch.setattr(halo_run, "remove_halos", lambda root, manifest, halo: stop() if halo else None)
        with pytest.raises(Killed):
            hopstream.dataset.add_halo(root, hops=2, budget="1MB")
    if when != "after the manifest":
        assert tree_of(root) == before
    hopstream.open_dataset(root, verify=True)
    assert hopstream.dataset.add_halo(root, hops=1).manifest.halo.hops == 1
    assert hopstream.verify_dataset(root).is_ok
    assert len({p.name for p in root.glob("part-*/halo/*")}) == 1


def test_bad_options_are_refused(root):
    for wrong, told in (
        ({"hops": -1}, "hops is -1"),
        ({"hops": 1, "features": "x"}, "must be type:feature"),
        ({"features": "none", "budget": 1}, "a budget is for features"),
        ({"budget": "much"}, "budget is 'much'"),
        ({"edge_budget": "much"}, "edge_budget is 'much'"),
        ({"edge_budget": -1}, "edge_budget is -1"),
        ({"edge_budget": 1 << 63}, "edge_budget is 9223372036854775808"),
        ({"fanouts": []}, "fanouts is"),
        ({"fanouts": [-2]}, "fanouts is -2"),
        ({"batch_size": 0}, "batch_size is 0"),
    ):
        with pytest.raises(SettingsError, match=told):
            hopstream.dataset.add_halo(root, **wrong)
    with pytest.raises(SettingsError, match="features of edges are copied with the edges"):
        hopstream.dataset.add_halo(root, hops=0, features=["user__rates__movie:rating", "user:x"], budget=100)
    with pytest.raises(SettingsError, match="edge_budget is given; features of edges are copied with the edges"):
        hopstream.dataset.add_halo(root, features="user__rates__movie:rating", edge_budget=100)
    for features, told in (
        ("user:y", "has no feature 'y'"), ("nobody:x", "nobody"), ("user__rates__movie:y", "has no feature 'y'"),
    ):  # fmt: skip
        with pytest.raises(UnknownNameError, match=told):
            hopstream.dataset.add_halo(root, features=features)
        with pytest.raises(UnknownNameError, match=told):
            hopstream.write_parts(full_graph(3), root / "new", halo=HaloSettings(features=features))
    assert not (root / "new").exists()
    shutil.rmtree(root / "part-00001")
    with pytest.raises(FormatError, match="part-00001"):
        hopstream.dataset.add_halo(root, hops=1)
    assert hopstream.open_dataset(root).manifest.halo is None


def test_a_disk_that_is_full(root, monkeypatch):
    before = tree_of(root)

    def full(*arguments):
        raise OSError(28, os.strerror(28), str(root / "part-00001"))

    monkeypatch.setattr("hopstream.preparation.halo.run.write_blocks", full)
    with pytest.raises(OSError, match="No space left"):
        hopstream.dataset.add_halo(root, hops=1)
    assert tree_of(root) == before


def test_one_at_a_time(root):
    """A run is refused while another one is in progress, and does not disturb it."""
    refused = []

    def again(stage, done, total):
        try:
            hopstream.dataset.add_halo(root, hops=2)
        except StateError as error:
            refused.append(str(error))

    hopstream.dataset.add_halo(root, hops=1, progress=again)
    assert len(refused) == 4 and "another process" in refused[0]
    assert hopstream.open_dataset(root, verify=True).manifest.halo.hops == 1


def test_features_of_no_nodes_are_refused():
    with pytest.raises(SettingsError, match="give hops above 0, or a budget"):
        HaloSettings(hops=0, features="all")
    assert HaloSettings(hops=0).is_nothing and not HaloSettings(hops=0, budget="1MB").is_nothing
    assert not HaloSettings(hops=0, edge_budget="1MB").is_nothing
