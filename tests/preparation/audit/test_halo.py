"""Checks that each planted corruption of a halo is found, even if checksums and counts fit it."""

from __future__ import annotations

import json
import shutil
from dataclasses import fields, replace

import numpy as np
import pytest

import hopstream
from hopstream.arrays import write_array
from hopstream.dataset.halo_record import Halo, HaloCounts
from hopstream.errors import FormatError
from hopstream.preparation.halo import reach, run
from hopstream.preparation.halo.reach import hottest
from hopstream.preparation.halo.sources import NodeBitmap, Parts
from tests.preparation.audit.forging import IN, OPTIONS, full_graph, load

USER = "part-00001/halo/00001/node/user"
EDGES = f"part-00001/halo/00001/{IN}"
CACHED = "part-00001/halo/00001/cached/user"


@pytest.fixture(scope="module")
def origin(tmp_path_factory):
    root = tmp_path_factory.mktemp("origin") / "d"
    hopstream.write_parts(full_graph(5), root, **OPTIONS)
    hopstream.dataset.add_halo(root, hops=1, features="all")
    return root


@pytest.fixture
def root(origin, tmp_path):
    shutil.copytree(origin, tmp_path / "d")
    return tmp_path / "d"


def forge(root, arrays, **changes):
    """Write files of the halo, and the manifest so that it agrees."""
    manifest = hopstream.open_dataset(root).manifest
    records = {name: write_array(root / name, array) for name, array in arrays.items()}
    values = {f.name: getattr(manifest.halo, f.name) for f in fields(Halo) if f.init}
    halo = Halo(**{**values, "files": {**manifest.halo.files, **records}, **changes})
    replace(manifest, halo=halo).write(root)


def edit(root, name, change):
    array = load(root, name)
    changed = change(array.copy())
    assert not np.array_equal(array, changed)
    forge(root, {name: changed})


def put(position, value):
    def change(array):
        array[position] = value
        return array

    return change


def drop_node(root):
    """Remove a node and its features; all counts agree."""
    names = [f"{CACHED}/{name}.npy" for name in ("id", "key", "features/x")]
    arrays = {name: load(root, name)[:-1] for name in names}
    for name in ("tags", "name"):
        offsets = load(root, f"{CACHED}/features/{name}.offsets.npy")[:-1]
        arrays[f"{CACHED}/features/{name}.offsets.npy"] = offsets
        values = load(root, f"{CACHED}/features/{name}.values.npy")[: offsets[-1]]
        arrays[f"{CACHED}/features/{name}.values.npy"] = values
    others = [n for n in hopstream.open_dataset(root).manifest.halo.files if n.startswith(CACHED)]
    arrays |= {n: load(root, n)[:-1] for n in others if n not in arrays}
    parts = list(hopstream.open_dataset(root).manifest.halo.parts)
    cached = {**parts[1].cached, "user": parts[1].cached["user"] - 1}
    parts[1] = HaloCounts(nodes=parts[1].nodes, edges=parts[1].edges, cached=cached)
    forge(root, arrays, parts=tuple(parts))


def own_node(root):
    """Replace a node in a part's halo by a node of the part itself."""
    manifest = hopstream.open_dataset(root).manifest
    first = int(manifest.book.node_offsets["user"][1])
    ids = load(root, f"{USER}/id.npy")
    ids[int(np.searchsorted(ids, first)) % len(ids)] = first
    forge(root, {f"{USER}/id.npy": np.sort(ids)})


def move_an_end(offsets):
    """Move the boundary between two rows by one item."""
    offsets[int(np.argmax(np.diff(offsets)[1:])) + 1] += 1
    return offsets


def flip(root, name):
    data = bytearray((root / name).read_bytes())
    data[-1] ^= 4
    (root / name).write_bytes(data)


CORRUPTIONS = {
    "ids without order": lambda r: edit(r, f"{USER}/id.npy", lambda ids: ids[::-1]),
    "id twice": lambda r: edit(r, f"{USER}/id.npy", lambda ids: np.array([*ids[:1], *ids[:-1]])),
    "id out of range": lambda r: edit(r, f"{USER}/id.npy", put(-1, 1 << 40)),
    "id of the part's own": own_node,
    "node is missing": drop_node,
    "wrong key": lambda r: edit(r, f"{USER}/key.npy", put(0, 77)),
    "wrong neighbour": lambda r: edit(r, f"{EDGES}/indices.npy", lambda ids: (ids + 1) % 5),
    "wrong edge key": lambda r: edit(r, f"{EDGES}/key.npy", put(0, 77)),
    "wrong edge ids": lambda r: edit(r, f"{EDGES}/edge_start.npy", lambda ids: ids + 1),
    "rows end elsewhere": lambda r: edit(r, f"{EDGES}/indptr.npy", lambda p: np.array([*p[:1], p[1] + 1, *p[2:]])),
    "wrong time": lambda r: edit(r, f"{EDGES}/time.npy", lambda times: times + 1),
    "wrong weight": lambda r: edit(r, f"{EDGES}/features/rating.npy", put(0, 77)),
    "wrong feature of an edge": lambda r: edit(r, f"{EDGES}/features/time.npy", put(1, 77)),
    "wrong alias": lambda r: edit(r, f"{EDGES}/weight_alias.npy", put(0, 77)),
    "wrong feature": lambda r: edit(r, f"{CACHED}/features/x.npy", put((0, 1), 77)),
    "wrong string": lambda r: edit(r, f"{CACHED}/features/name.values.npy", put(0, 66)),
    "wrong key of a copy": lambda r: edit(r, f"{CACHED}/key.npy", put(0, 77)),
    "rows of tags end elsewhere": lambda r: edit(r, f"{CACHED}/features/tags.offsets.npy", move_an_end),
    "two copies change places": lambda r: edit(r, f"{CACHED}/features/x.npy", lambda x: x[[1, 0, *range(2, len(x))]]),
    "last value of the last copy": lambda r: edit(r, f"{CACHED}/features/x.npy", put((-1, -1), 77)),
    "hops say more than there is": lambda r: forge(r, {}, hops=2),
    "more than the budget": lambda r: forge(r, {}, budget_bytes=100),
}


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_corruption_is_found(root, name):
    CORRUPTIONS[name](root)
    report = hopstream.verify_dataset(root)
    assert report.kinds == ("halo",), [str(f) for f in report.findings]
    assert all("/halo/" in finding.where for finding in report.findings)


@pytest.mark.parametrize("name", ["ids without order", "id of the part's own"])
def test_lists_of_nodes_are_checked_in_their_part_alone(root, name):
    assert hopstream.verify_dataset(root, parts=[1]).is_ok
    CORRUPTIONS[name](root)
    for part in (0, 2):
        shutil.rmtree(root / f"part-0000{part}")
    report = hopstream.verify_dataset(root, parts=[1])
    assert report.kinds == ("halo",)
    assert report.skipped["halo"] == ("copies cannot be compared with rows of parts that are not checked",)


def test_a_true_halo_has_no_findings(root):
    report = hopstream.verify_dataset(root)
    assert report.is_ok and set(report.skipped) == {"schema", "features", "ownership"}
    assert report.checks["halo"].num_checked > 500


def test_changed_missing_and_foreign_files_are_found(root):
    flip(root, f"{CACHED}/features/x.npy")
    assert set(hopstream.verify_dataset(root).kinds) == {"checksums", "halo"}
    (root / f"{EDGES}/indices.npy").unlink()
    report = hopstream.verify_dataset(root)
    assert {"files", "checksums", "halo"} == set(report.kinds)
    with pytest.raises(FormatError):
        hopstream.open_dataset(root, verify=True)
    np.save(root / "part-00000" / "halo" / "old.npy", np.zeros(3))
    assert "part-00000/halo/old.npy" in {f.where for f in hopstream.verify_dataset(root).findings}


CONTRADICTIONS = {
    "no parts": (lambda h: h.pop("parts"), "not a record"),
    "a part less": (lambda h: h["parts"].pop(), "has content"),
    "other hops": (lambda h: h.update(hops=5), "has content"),
    "other features": (lambda h: h["features"].update(user=["y"]), "has content"),
    "a negative count": (lambda h: h["parts"][0]["nodes"].update(user=-1), "not a count"),
    "no files": (lambda h: h["files"].clear(), "has content"),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_manifest_that_contradicts_itself_is_refused(root, name):
    change, told = CONTRADICTIONS[name]
    value = json.loads((root / "manifest.json").read_text())
    change(value["halo"])
    (root / "manifest.json").write_text(json.dumps(value))
    with pytest.raises(FormatError, match=told):
        hopstream.open_dataset(root)


def test_a_forged_record_must_still_fit_the_dataset(root):
    manifest = hopstream.open_dataset(root).manifest
    for changes, told in (
        ({"files": {}}, "does not list"),
        ({"files": {**manifest.halo.files, "../x.npy": next(iter(manifest.halo.files.values()))}}, r"\.\./x\.npy"),
        ({"features": {"user": ("y",)}}, "the dataset does not have them"),
        ({"edge_features": {("user", "rates", "movie"): ("y",)}}, "the dataset does not have them"),
        ({"features": {}}, "the counts of the halo of part"),
        ({"generation": 2}, "does not list"),
    ):
        forge(root, {}, **changes)
        with pytest.raises(FormatError, match=told):
            hopstream.open_dataset(root)
        manifest.write(root)


def lose_half(mark):
    """Mark the neighbours of every other node only."""
    return lambda parts, owner, ids, marks: mark(parts, owner, ids[::2], marks)


def test_a_writer_that_loses_neighbors_is_found(root, monkeypatch):
    """The same fault in the writer and in all code that shares it."""
    monkeypatch.setattr(Parts, "mark", lose_half(Parts.mark))
    hopstream.dataset.add_halo(root, hops=1, features="all")
    report = hopstream.verify_dataset(root)
    assert report.kinds == ("halo",)
    assert {"lacks nodes within 1 hops"} == {finding.what for finding in report.findings}


def test_a_writer_that_loses_a_last_node_is_found(root, monkeypatch):
    true = reach.nodes_within

    def without_last(parts, part, hops):
        found = true(parts, part, hops)
        ids = found["user"].ids()
        found["user"].marks[ids[-1] >> 6] ^= np.uint64(1) << np.uint64(ids[-1] & 63)
        return found

    for module in (reach, run):
        monkeypatch.setattr(module, "nodes_within", without_last)
    hopstream.dataset.add_halo(root, hops=2)
    findings = hopstream.verify_dataset(root).findings
    assert [(f.where, f.what, f.count) for f in findings] == [
        (f"part-0000{part}/halo/00002/node/user/id.npy", "lacks nodes within 2 hops", 1) for part in range(3)
    ]


def choose_nothing(parts, part, sampled, features, budget, **how):
    return {t: NodeBitmap.empty(len(sampled[t])) for t in features}


def choose_the_coldest(parts, part, sampled, features, budget, **how):
    return hottest(parts, part, {t: (c > 0) / np.maximum(c, 1e-9) for t, c in sampled.items()}, features, budget, **how)


def choose_too_few(parts, part, sampled, features, budget, **how):
    return hottest(parts, part, sampled, features, budget // 2, **how)


def choose_too_many(parts, part, sampled, features, budget, **how):
    return hottest(parts, part, sampled, features, budget * 2, **how)


def forget_a_type(parts, part, sampled, features, budget, **how):
    chosen = hottest(parts, part, sampled, {"user": features["user"]}, budget, **how)
    return {t: chosen.get(t, NodeBitmap.empty(len(sampled[t]))) for t in features}


SELECTIONS = {
    choose_nothing: "holds 0 bytes, and the likeliest row",
    choose_the_coldest: "lacks rows that are likelier",
    choose_too_few: "must be used up",
    choose_too_many: "BUDGET are allowed",
    forget_a_type: "lacks rows that are likelier",
}


@pytest.mark.parametrize("kind", ["budget", "edge_budget"])
def test_a_selection_that_is_not_the_likeliest_is_found(tmp_path, monkeypatch, kind):
    """Nodes of both types may be sampled along edges of both directions, and not all fit."""
    root = tmp_path / "d"
    hopstream.write_parts(full_graph(5), root, direction="both", **OPTIONS)
    options = {"features": "user:x,movie:*", "budget": 300, "fanouts": [2, 1], "batch_size": 3}
    if kind == "edge_budget":
        options = {"edge_budget": 8000, "fanouts": [2, 1], "batch_size": 3}
    hopstream.dataset.add_halo(root, hops=0, **options)
    assert hopstream.verify_dataset(root).is_ok
    for number, (choose, told) in enumerate(SELECTIONS.items(), 2):
        for module in (reach, run):
            monkeypatch.setattr(module, "hottest", choose)
        hopstream.dataset.add_halo(root, hops=0, **options)
        report = hopstream.verify_dataset(root)
        assert report.kinds == ("halo",), choose
        wanted = told.replace("BUDGET", str(options[kind]))
        assert any(wanted in finding.what for finding in report.findings), choose
        folder = "cached" if kind == "budget" else "node"
        places = {f"part-0000{part}/halo/{number:05d}/{folder}" for part in range(3)}
        assert {finding.where for finding in report.findings} <= places


@pytest.mark.parametrize("budget", [0, 90, 1 << 40])
def test_true_selections_have_no_findings(root, budget):
    hopstream.dataset.add_halo(root, hops=1, budget=budget, fanouts=[3, 2], batch_size=4)
    assert hopstream.verify_dataset(root).is_ok


def test_an_empty_fan_out_in_the_model_is_found(root):
    hopstream.dataset.add_halo(root, hops=0, budget=600)
    forge(root, {}, fanouts=())
    findings = hopstream.verify_dataset(root).findings
    assert {"fanouts is" in finding.what for finding in findings} == {True}
