"""Checks that a manifest reads back, and that wrong or damaged ones are refused."""

from __future__ import annotations

import json

import numpy as np
import pytest

from hopstream import arrays
from hopstream.dataset import manifest as manifest_module
from hopstream.dataset.layout import read_manifest
from hopstream.errors import ChecksumError, FormatError
from hopstream.graph.graph import Graph
from hopstream.ingest import graph_from_arrays
from hopstream.preparation.append.run import append
from hopstream.preparation.audit.run import verify_dataset
from hopstream.preparation.halo.settings import HaloSettings
from hopstream.preparation.write import write_parts


@pytest.fixture
def root(tmp_path, typed_graph: Graph, monkeypatch):
    monkeypatch.setattr(arrays, "BLOCK_BYTES", 256)
    write_parts(typed_graph, tmp_path / "d", num_parts=2, method="random", direction="both")
    return tmp_path / "d"


def edit(root, change):
    value = json.loads((root / "manifest.json").read_text())
    change(value)
    (root / "manifest.json").write_text(json.dumps(value))


def test_a_manifest_survives_a_round_trip(root, typed_graph: Graph):
    manifest = read_manifest(root)
    assert manifest.schema == typed_graph.schema
    assert manifest.directions == ("in", "out") and manifest.book.num_parts == 2 and manifest.has_edge_keys
    assert manifest.made_by["method"] == "random" and manifest.made_by["rng_seed"] == 0
    assert manifest.made_by["version"]
    assert json.loads((root / "manifest.json").read_text()) == manifest.to_json()


def test_a_newer_format_is_named(root):
    edit(root, lambda value: value.update(format=3))
    with pytest.raises(FormatError, match=r"manifest.json has format 3; this version reads 1"):
        read_manifest(root)


def test_error_names_fields_missing_from_an_earlier_version(root):
    assert set(json.loads((root / "manifest.json").read_text())) == {
        "format", "digest", "has_narrow_keys", *manifest_module.FIELDS,
    }  # fmt: skip
    edit(root, lambda value: [value.pop(name) for name in ("has_neighbor_keys", "time_attr", "weight_attr")])
    wanted = r"manifest.json has no time_attr, weight_attr, has_neighbor_keys; an earlier .*; write the dataset again"
    with pytest.raises(FormatError, match=wanted):
        read_manifest(root)


WRITES = ["author", "writes", "paper"]
KEY_FILE = "part-00001/node/paper/key.npy"
CONTRADICTIONS = [
    (lambda v: v.pop("format"), "no format number"),
    (lambda v: v.update(format="1"), "no format number"),
    (lambda v: v.pop("schema"), "has no schema; .*write the dataset again"),
    (lambda v: v.update(num_parts=3), r"\[0, 30, 60\] must be 4 ascending ids"),
    (lambda v: v.update(num_parts=True), "num_parts is True"),
    (lambda v: v.update(num_parts=10**9), "num_parts is 1000000000"),
    (lambda v: v.update(directions=["out", "in"]), "must be in, out or both"),
    (lambda v: v["node_offsets"].pop("paper"), "id ranges are for node types"),
    (lambda v: v["node_offsets"].update(venue=[0, 0, 0]), "id ranges are for node types"),
    (lambda v: v["node_offsets"].update(paper=[0, 1, "2"]), "offsets must be integers"),
    (lambda v: v["node_offsets"].update(paper=[0, 40, 60]), "it must be int64"),
    (lambda v: v["node_offsets"].update(paper=[0, 40, 1 << 70]), "is not a manifest"),
    (lambda v: v["edge_offsets"].pop(), "id ranges of edges"),
    (lambda v: v["edge_offsets"][0].update(direction="up"), "id ranges of edges"),
    (lambda v: v["edge_offsets"][0].update(offsets=[0, 1, 2]), "it must be"),
    (lambda v: v["files"].pop(KEY_FILE), f"does not list {KEY_FILE}"),
    (lambda v: v["files"].update({"../x.npy": v["files"][KEY_FILE]}), r"lists '../x.npy'"),
    (lambda v: v["files"].update({"/etc/passwd": v["files"][KEY_FILE]}), "which is not a file of its schema"),
    (lambda v: v["files"][KEY_FILE].update(dtype="int32"), r"int32\[30\]; it must be int64"),
    (lambda v: v["files"][KEY_FILE].update(shape=[31]), r"int64\[31\]; it must be int64"),
    (lambda v: v["files"][KEY_FILE].update(crc32c="zz"), "not a file record"),
    (lambda v: v["schema"]["nodes"].update(venue={}), "id ranges are for node types"),
    (lambda v: v["schema"]["nodes"]["paper"].update(y={"dtype": "int8", "shape": [], "ragged": False}), "y.npy"),
    (lambda v: v["schema"]["nodes"]["paper"]["feat"].update(dtype="object"), "is not a manifest"),
    (lambda v: v.update(has_edge_keys=False), "lists 'part-00000/edge/"),
    (lambda v: v.update(has_edge_keys=1), "must be true or false"),
    (lambda v: v.update(has_neighbor_keys=None), "has_neighbor_keys must be true or false"),
    (lambda v: v.update(has_narrow_keys=1), "has_narrow_keys must be true or false"),
    (lambda v: v.pop("has_narrow_keys"), r"key.npy is uint32\[\d+\]; it must be int64"),
    (lambda v: v.update(has_neighbor_keys=True), "does not list part-00000/edge/.*/neighbor_key.npy"),
    (lambda v: v.update(time_attr=3), "time_attr must be the name of a feature, or null"),
    (lambda v: v.update(time_attr="year"), "does not list part-00000/edge/paper__cites__paper/in/time.npy"),
    (lambda v: v.update(time_attr="nothing"), "has content"),
    (lambda v: v.pop("weight_attr"), "has no weight_attr; .*write the dataset again"),
    (lambda v: v.update(weight_attr=["weight"]), "weight_attr must be the name of a feature, or null"),
    (lambda v: v.update(weight_attr="weight"), "does not list .*author__writes__paper/in/weight_sums.npy"),
    (lambda v: v["schema"].update(edge_splits=[{"type": WRITES, "names": []}]), "list part-00000/link/.*src_key.npy"),
    (lambda v: v["schema"].update(edge_splits=[{"type": ["a"], "names": []}]), "is not a manifest"),
    (lambda v: v["schema"].update(edge_splits={"train": 1}), "is not a manifest"),
    (lambda v: v.update(report={}), "not a partition report"),
]


@pytest.mark.parametrize(("change", "message"), CONTRADICTIONS, ids=map(str, range(len(CONTRADICTIONS))))
def test_contradictions_are_refused(root, change, message):
    edit(root, change)
    with pytest.raises(FormatError, match=message) as caught:  # ChecksumError is one
        read_manifest(root)
    assert str(root / "manifest.json") in str(caught.value)


def test_the_fingerprint_guards_the_content(root):
    whole, before = (root / "manifest.json").read_text(), read_manifest(root).dataset_id
    edit(root, lambda v: v["files"][KEY_FILE].update(crc32c="00000000"))
    with pytest.raises(ChecksumError, match=rf"has content \w+, but its dataset_id is {before}; copy the file again"):
        read_manifest(root)
    (root / "manifest.json").write_text(whole)
    edit(root, lambda v: v.update(dataset_id="0" * 32))
    with pytest.raises(ChecksumError, match=f"has content {before}, but its dataset_id is 0000"):
        read_manifest(root)
    (root / "manifest.json").write_text(whole)
    edit(root, lambda v: [v["made_by"].update(method="hash"), v.pop("digest")])
    assert read_manifest(root).dataset_id == before  # the id does not depend on how the dataset was made


def leaves(value, path=()):
    """The path of every value that is no object or list, or is an empty one."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [leaf for name, inner in entries for leaf in leaves(inner, (*path, name))]
    return found or [path]


def changed(value, path):
    """A copy with one value replaced by another of its kind."""
    *above, last = path
    inside = copy = json.loads(json.dumps(value))
    for name in above:
        inside = inside[name]
    old = inside[last]
    if isinstance(old, bool) or old is None:
        inside[last] = not old
    elif isinstance(old, list):
        old.append(1)
    elif isinstance(old, dict):
        old["x"] = 1
    else:
        inside[last] = old + (1 if isinstance(old, int | float) else "1")
    return copy


@pytest.mark.parametrize("kind", ["halo", "appended"])
def test_an_edit_of_any_value_is_noticed(tmp_path, kind):
    ends = np.arange(6), (np.arange(6) * 5 + 1) % 6
    graph = graph_from_arrays(np.stack(ends), num_nodes=6, node_features={"x": np.arange(6.0)})
    root = tmp_path / "d"
    write_parts(graph, root, num_parts=2, method="hash", halo=HaloSettings(hops=1) if kind == "halo" else None)
    if kind == "appended":
        append(root, nodes={"node": {"x": np.ones(1)}}, edges={"node__to__node": ([6, 0], [0, 6])})
    path = root / "manifest.json"
    value = json.loads(path.read_text())
    assert kind != "halo" or value["halo"]["files"]
    assert kind != "appended" or value["deltas"][0]["overlays"]
    for leaf in leaves(value):
        path.write_text(json.dumps(changed(value, leaf)))
        with pytest.raises(FormatError, match=r"manifest\.json"):  # ChecksumError is one
            read_manifest(root)
    path.write_text(json.dumps({**value, "note": "of nobody"}))
    assert verify_dataset(root).kinds == ("manifest",)


def test_earlier_revisions_wrote_no_digest_and_no_blocks(root):
    path, before = root / "manifest.json", read_manifest(root)
    value = json.loads(path.read_text())
    assert before.has_digest and any(record.pop("blocks", "") for record in value["files"].values())
    del value["digest"]
    path.write_text(json.dumps(value))
    manifest = read_manifest(root)
    assert (manifest.dataset_id, manifest.graph_id) == (before.dataset_id, before.graph_id)
    assert not manifest.has_digest
    report = verify_dataset(root)
    assert report.is_ok
    assert report.skipped["manifest"] == ("an earlier revision wrote it: made_by and report have no checksum",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("[]", "holds list"),
        ("[" * 100_000, "is not JSON"),
        ("3", "holds int"),
    ],
)
def test_invalid_json_is_refused(root, text, message):
    (root / "manifest.json").write_text(text)
    with pytest.raises(FormatError, match=message):
        read_manifest(root)


def test_bytes_that_are_not_text_and_huge_files_are_refused(root, monkeypatch):
    monkeypatch.setattr(manifest_module, "MAX_MANIFEST_BYTES", 100)
    with pytest.raises(FormatError, match="a manifest has at most 100"):
        read_manifest(root)
    monkeypatch.undo()
    (root / "manifest.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(FormatError, match="is not JSON"):
        read_manifest(root)


def test_a_folder_without_manifest_is_not_a_dataset(tmp_path):
    with pytest.raises(FormatError, match=r"is missing; .* is not a dataset"):
        read_manifest(tmp_path)
    with pytest.raises(FormatError, match="is not a dataset"):
        read_manifest(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(FormatError, match="is not a dataset"):
        read_manifest(tmp_path / "file")


def test_the_id_depends_on_the_content_only(tmp_path, typed_graph: Graph):
    one = write_parts(typed_graph, tmp_path / "a", num_parts=2, method="random", rng_seed=5)
    owners = {t: np.zeros(n.num_nodes, np.int64) for t, n in typed_graph.nodes.items()}
    for part in range(2):
        for node_type in owners:
            keys = np.load(tmp_path / f"a/part-0000{part}/node/{node_type}/key.npy")
            owners[node_type][keys] = part
    same = write_parts(typed_graph, tmp_path / "b", num_parts=2, owners=owners)
    other = write_parts(typed_graph, tmp_path / "c", num_parts=2, method="random", rng_seed=6)
    assert one.dataset_id == same.dataset_id != other.dataset_id
    assert one.made_by != same.made_by
