"""Checks that partition files equal those of PyG, and that a graph comes back from them."""

from __future__ import annotations

import itertools
import json
import pickle
from collections import defaultdict

import numpy as np
import pytest
import torch
import torch_geometric.distributed as torch_dist
from torch_geometric.loader import ClusterData

import hopstream
import hopstream.compat.pyg as pyg_dist
from hopstream.errors import FormatError, IdRangeError, SchemaError, SettingsError, UnknownNameError
from tests.compat.pyg.graphs import CITES, NUM_NODES, WRITES, heterogeneous, homogeneous

KINDS = [(make, time) for make in (homogeneous, heterogeneous) for time in (None, "node", "edge")]


def owners_of(data, num_parts=3):
    """The part of each node by type, uneven, and nothing for the last part in one type."""
    graph = hopstream.graph_from_data(data)
    rng = np.random.default_rng(5)
    owners = {t: rng.integers(0, num_parts, nodes.num_nodes) for t, nodes in graph.nodes.items()}
    if "venue" in owners:
        owners["venue"] = np.array([0, 1, 0])
    return owners


def load(path):
    return torch.load(path, weights_only=False)


@pytest.fixture
def pygs_own(monkeypatch):
    """PyG's Partitioner, with given parts in place of METIS, which needs a library of its own."""

    def write(data, owners, root):
        cluster = torch.from_numpy(np.concatenate(list(owners.values())))
        monkeypatch.setattr(ClusterData, "_metis", lambda *_: cluster)
        torch_dist.Partitioner(data, int(cluster.max()) + 1, str(root)).generate_partition()

    return write


def by_id(value):
    """A file with rows sorted by id, an order that PyG does not keep, and without types that are empty."""
    if not isinstance(value, dict):
        return value
    ids = value.get("edge_id", value.get("global_id"))
    if ids is None:
        return {key: by_id(of) for key, of in value.items()}
    order = ids.argsort()

    def ordered(of):
        if isinstance(of, dict):
            return {key: ordered(inner) for key, inner in of.items()}
        return of[order] if isinstance(of, torch.Tensor) else of

    return {key: of if key == "time" else ordered(of) for key, of in value.items()} if len(ids) else {}


def same(left, right):
    """Whether two loaded files hold the same; what PyG writes as None or an empty dictionary is not there."""
    if isinstance(left, dict):
        left, right = ({k: v for k, v in of.items() if v is not None and v != {}} for of in (left, right))
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    return left == right


@pytest.mark.parametrize(("make", "time"), KINDS)
def test_files_are_those_that_pyg_writes(make, time, tmp_path, pygs_own):
    data = make(time)
    owners = owners_of(data)
    pygs_own(data, owners, tmp_path / "theirs")
    pyg_dist.write_partitions(hopstream.graph_from_data(data), tmp_path / "ours", owners=owners)
    theirs, ours = (
        {str(p.relative_to(tmp_path / of)): p for p in sorted((tmp_path / of).rglob("*")) if p.is_file()}
        for of in ("theirs", "ours")
    )
    assert ours.keys() == theirs.keys()
    for name, path in ours.items():
        if name.endswith(".json"):
            assert json.loads(path.read_text()) == json.loads(theirs[name].read_text())
        else:
            pair = [by_id(load(of)) for of in (path, theirs[name])]
            assert same(*pair), (name, pair)


@pytest.mark.parametrize(("make", "time"), KINDS)
def test_edges_lie_by_destination_and_time(make, time, tmp_path):
    data = make(time)
    pyg_dist.write_partitions(hopstream.graph_from_data(data), tmp_path, owners=owners_of(data))
    for part in range(3):
        graph, feats = (load(tmp_path / f"part_{part}" / f"{name}.pt") for name in ("graph", "edge_feats"))
        for edge_type in (WRITES, CITES) if make is heterogeneous else [None]:
            edges, edge_feats = (of[edge_type] if edge_type else of for of in (graph, feats))
            times = torch.zeros(len(edges["row"]))
            if time == "node":
                times = (data[edge_type[0]] if edge_type else data).time[edges["row"]]
            if time == "edge":
                times = edge_feats["edge_time"]
            keys = list(zip(edges["col"].tolist(), times.tolist(), strict=True))
            assert keys == sorted(keys)


@pytest.mark.parametrize(("make", "time"), KINDS)
def test_files_written_by_pyg_are_read(make, time, tmp_path, pygs_own):
    data = make(time)
    owners = owners_of(data)
    pygs_own(data, owners, tmp_path)
    graph, found = pyg_dist.read_partitions(tmp_path)
    assert graph.fingerprint() == hopstream.graph_from_data(data).fingerprint()
    assert {t: of.tolist() for t, of in found.items()} == {t: of.tolist() for t, of in owners.items()}


@pytest.mark.parametrize(("make", "time"), KINDS)
def test_a_dataset_survives_a_round_trip(make, time, tmp_path):
    data = make(time)
    graph = hopstream.graph_from_data(data)
    hopstream.write_parts(graph, tmp_path / "parts", owners=owners_of(data), num_parts=3)
    pyg_dist.write_partitions(tmp_path / "parts", tmp_path / "pyg")
    found, owners = pyg_dist.read_partitions(tmp_path / "pyg")
    assert found.fingerprint() == graph.fingerprint()
    hopstream.write_parts(found, tmp_path / "again", owners=owners, num_parts=3)
    again, first = (hopstream.open_dataset(tmp_path / name).manifest for name in ("again", "parts"))
    assert [vars_of(again), vars_of(first)] == [vars_of(first)] * 2


def vars_of(manifest):
    files = {name: record.crc32c for name, record in manifest.files.items()}
    return files, manifest.schema


def test_names_of_the_document_are_read(tmp_path):
    """The document says part0, edge-map and node-map."""
    data = heterogeneous()
    pyg_dist.write_partitions(hopstream.graph_from_data(data), tmp_path, owners=owners_of(data))
    for name in ("node_map", "edge_map", *(f"part_{part}" for part in range(3))):
        new = name.replace("_map", "-map").replace("part_", "part")
        (tmp_path / name).rename(tmp_path / new)
    graph, _ = pyg_dist.read_partitions(tmp_path)
    assert graph.fingerprint() == hopstream.graph_from_data(data).fingerprint()
    store = pyg_dist.LocalFeatureStore.from_partition(tmp_path, 1)
    assert store.get_tensor("paper", "x").shape[1] == 2
    pyg_dist.write_partitions(graph, tmp_path, num_parts=2, method="random", overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["META.json", "edge_map", "node_map", "part_0", "part_1"]


def test_types_have_features_of_their_own(tmp_path):
    """PyG keeps x of types that are equally wide alone, and drops all else."""
    data = heterogeneous()
    data["paper"].x = torch.rand(12, 5)
    del data["venue"].x
    data["venue"].num_nodes = 3
    data["paper"].y = torch.arange(12)
    data[CITES].time = torch.arange(30)
    graph = hopstream.graph_from_data(data)
    pyg_dist.write_partitions(graph, tmp_path, num_parts=2, method="random")
    assert pyg_dist.read_partitions(tmp_path)[0].fingerprint() == graph.fingerprint()
    pyg_dist.write_partitions(graph, tmp_path, num_parts=2, method="random", features=["x"], overwrite=True)
    schema = pyg_dist.read_partitions(tmp_path)[0].schema
    assert [list(schema.nodes[t]) for t in NUM_NODES] == [["x"], ["x"], []]
    assert [list(schema.edges[t]) for t in (WRITES, CITES)] == [[], ["time"]]
    torch_dist.LocalFeatureStore.from_partition(str(tmp_path), 0)


def test_a_graph_without_edges(tmp_path):
    graph = hopstream.graph_from_arrays(np.empty((2, 0), np.int64), num_nodes=4)
    pyg_dist.write_partitions(graph, tmp_path, num_parts=2, method="random")
    assert pyg_dist.read_partitions(tmp_path)[0].fingerprint() == graph.fingerprint()


def test_partitioner_cuts_by_metis(tmp_path):
    data = heterogeneous()
    partitioner = pyg_dist.Partitioner(data, 2, str(tmp_path / "a"))
    partitioner.generate_partition()
    partitioner.generate_partition()  # the files are replaced
    pyg_dist.Partitioner(data, 2, tmp_path / "b", rng_seed=0).generate_partition()
    (graph, owners), (_, again) = (pyg_dist.read_partitions(tmp_path / name) for name in "ab")
    assert graph.fingerprint() == hopstream.graph_from_data(data).fingerprint()
    sizes = np.bincount(np.concatenate(list(owners.values())))
    assert len(sizes) == 2 and sizes.min() >= 9
    assert {t: of.tolist() for t, of in owners.items()} == {t: of.tolist() for t, of in again.items()}


def test_partitioner_refuses_bad_arguments(tmp_path):
    data = homogeneous()
    with pytest.raises(SettingsError, match=r"num_parts is 0"):
        pyg_dist.Partitioner(data, 0, tmp_path)
    with pytest.raises(SettingsError, match=r"recursive is given, but method is 'ldg'; only metis supports it"):
        pyg_dist.Partitioner(data, 2, tmp_path, recursive=True, method="ldg")
    with pytest.raises(SettingsError, match=r"option 'seed' does not exist"):
        pyg_dist.Partitioner(data, 2, tmp_path, seed=3)
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(SettingsError, match=r"holds 'notes.txt' and is not a folder of PyG's partitions"):
        pyg_dist.Partitioner(data, 2, tmp_path)
    with pytest.raises(SchemaError, match=r"dict is neither a PyG Data nor a HeteroData"):
        pyg_dist.Partitioner({}, 2, tmp_path / "new").generate_partition()
    assert not (tmp_path / "new").exists()


def test_unwritable_graphs_are_refused(tmp_path):
    graph = hopstream.graph_from_arrays(
        {("a/b", "to", "a/b"): np.array([[0], [1]])}, node_features={"a/b": {"name": ["x", "y"]}}
    )
    with pytest.raises(SchemaError, match=r"a/b.name holds strings .*name the features to write with features"):
        pyg_dist.write_partitions(graph, tmp_path / "a", num_parts=1)
    with pytest.raises(SchemaError, match=r"'a/b' cannot be the name of a file"):
        pyg_dist.write_partitions(graph, tmp_path / "a", num_parts=1, features=[])
    with pytest.raises(UnknownNameError, match=r"no node or edge type has a feature 'z'; known: \['name'\]"):
        pyg_dist.write_partitions(graph, tmp_path / "a", num_parts=1, features=["z"])
    assert not (tmp_path / "a").exists()
    good = hopstream.graph_from_data(homogeneous())
    hopstream.write_parts(good, tmp_path / "parts", num_parts=2, method="random")
    with pytest.raises(SettingsError, match=r"num_parts is given, but a dataset already has parts"):
        pyg_dist.write_partitions(tmp_path / "parts", tmp_path / "a", num_parts=2)
    pyg_dist.write_partitions(tmp_path / "parts", tmp_path / "a")
    with pytest.raises(SettingsError, match=r"a holds PyG's partitions; give overwrite=True"):
        pyg_dist.write_partitions(tmp_path / "parts", tmp_path / "a")


@pytest.fixture
def written(tmp_path):
    data = heterogeneous("node")
    pyg_dist.write_partitions(hopstream.graph_from_data(data), tmp_path, owners=owners_of(data))
    return tmp_path


class Bomb:
    def __reduce__(self):
        return print, ("code was run",)


def test_damaged_files_are_refused(written, capsys):
    with pytest.raises(IdRangeError, match=r"part is 3; .* has the parts 0..2"):
        pyg_dist.LocalGraphStore.from_partition(written, 3)
    torch.save({"x": Bomb()}, written / "part_0" / "graph.pt")
    with pytest.raises(FormatError, match=r"graph.pt contains .*, which is not read because"):
        pyg_dist.read_partitions(written)
    (written / "part_0" / "graph.pt").write_bytes(pickle.dumps(Bomb(), protocol=2))
    with pytest.raises(FormatError, match=r"graph.pt"):
        pyg_dist.LocalGraphStore.from_partition(written, 0)
    assert "code was run" not in capsys.readouterr().out
    (written / "part_0" / "graph.pt").write_bytes(b"PK\3\4")
    with pytest.raises(FormatError, match=r"graph.pt"):
        pyg_dist.read_partitions(written)
    (written / "part_0" / "graph.pt").unlink()
    with pytest.raises(FormatError, match=r"part_0/graph.pt is missing, and part_1 has such a file"):
        pyg_dist.read_partitions(written)
    for path in written.glob("part_*/graph.pt"):
        path.unlink()
    with pytest.raises(FormatError, match=r"part 0 has no graph.pt, which holds its edges"):
        pyg_dist.LocalGraphStore.from_partition(written, 0)


def test_safe_globals_of_torch_are_kept(written):
    before = torch.serialization.get_safe_globals()
    with torch.serialization.safe_globals([defaultdict]):
        torch.save(defaultdict(dict, a={"x": torch.ones(1)}), written / "part_0" / "edge_feats.pt")
        with pytest.raises(FormatError, match=r"has a type 'a'"):
            pyg_dist.read_partitions(written)
        assert defaultdict in torch.serialization.get_safe_globals()
    assert set(torch.serialization.get_safe_globals()) == set(before) - {defaultdict}


def change(path, edit):
    value = load(path)
    edit(value)
    torch.save(value, path)


def test_contradicting_files_are_refused(written):
    feats, whole = written / "part_1" / "node_feats.pt", (written / "part_1" / "node_feats.pt").read_bytes()
    change(feats, lambda value: value["paper"]["time"].add_(1))
    with pytest.raises(FormatError, match=r"nodes 'paper': parts differ in time"):
        pyg_dist.read_partitions(written)
    feats.write_bytes(whole)
    change(feats, lambda value: value["paper"]["feats"].update(x=value["paper"]["feats"]["x"][:, :1]))
    with pytest.raises(FormatError, match=r"nodes 'paper': x is float32\[\d+, 1\] in part 1 and float32"):
        pyg_dist.read_partitions(written)
    feats.write_bytes(whole)
    change(feats, lambda value: value["paper"]["feats"].update(x=value["paper"]["feats"]["x"].bfloat16()))
    with pytest.raises(FormatError, match=r"x is torch.bfloat16, which numpy does not have"):
        pyg_dist.read_partitions(written)
    feats.write_bytes(whole)
    change(feats, lambda value: value["paper"]["feats"].clear())
    with pytest.raises(FormatError, match=r"parts have x of \d+ of 12 rows"):
        pyg_dist.read_partitions(written)
    feats.write_bytes(whole)
    torch.save(torch.zeros(12, dtype=torch.int64), written / "node_map" / "paper.pt")
    with pytest.raises(FormatError, match=r"nodes 'paper': the ids of part 0 are not the 12"):
        pyg_dist.read_partitions(written)
    torch.save(torch.full((12,), 7), written / "node_map" / "paper.pt")
    with pytest.raises(FormatError, match=r"paper.pt\[0\] is 7; parts are 0..2"):
        pyg_dist.load_partition_info(written, 0)
    (written / "node_map" / "paper.pt").unlink()
    with pytest.raises(FormatError, match=r"has no node_map/paper.pt"):
        pyg_dist.load_partition_info(written, 0)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("{", r"is not JSON"),
        ("[]", r"is list"),
        ('{"num_parts": 0, "is_hetero": false}', r"num_parts 0"),
        ('{"num_parts": 2}', r"is_hetero None"),
        ('{"num_parts": 1000000000000, "is_hetero": false}', r"num_parts 1000000000000; .* 1 to 99999"),
        ('{"num_parts": 2, "is_hetero": false, "is_sorted": "no"}', r"is_sorted 'no'"),
        ('{"num_parts": 2, "is_hetero": true, "node_types": null}', r"node_types None"),
        ('{"num_parts": 2, "is_hetero": true, "node_types": [], "edge_types": [["a"]]}', r"edge_types \[\['a'\]\]"),
    ],
)
def test_an_invalid_meta_file_is_refused(text, match, tmp_path):
    (tmp_path / "META.json").write_text(text)
    with pytest.raises(FormatError, match=match):
        pyg_dist.read_partitions(tmp_path)


def tensors_in(value, path=()):
    """Places of tensors in dictionaries in dictionaries."""
    if isinstance(value, dict):
        for key, of in value.items():
            yield from tensors_in(of, (*path, key))
    elif isinstance(value, torch.Tensor):
        yield path


def changed(value, path, change):
    if not path:
        return change(value)
    return {**value, path[0]: changed(value[path[0]], path[1:], change)}


CHANGES = {
    "reals": lambda ids: ids.float() + 0.5,
    "truth": lambda ids: ids.bool(),
    "complex": lambda ids: ids.to(torch.complex64),
    "columns": lambda ids: ids[:, None],
    "a number": lambda ids: torch.tensor(3),
    "none": lambda ids: None,
    "a list": lambda ids: ids.tolist(),
    "sparse": lambda ids: ids.to_sparse(),
    "nowhere": lambda ids: ids.to("meta"),
    "too few": lambda ids: ids[:-1],
    "too many": lambda ids: torch.cat([ids, ids[:1]]),
    "negative": lambda ids: -ids - 1,
    "huge": lambda ids: ids + 10**12,
}
"""Changes that turn ids into something else."""


@pytest.mark.parametrize("make", [homogeneous, heterogeneous])
def test_invalid_ids_are_refused(make, tmp_path):
    """Each tensor of ids is changed in four ways, which take turns."""
    graph = hopstream.graph_from_data(make())
    pyg_dist.write_partitions(graph, tmp_path, owners={t: np.arange(of.num_nodes) % 2 for t, of in graph.nodes.items()})
    num_changed, changes = 0, itertools.cycle(CHANGES.values())
    for path in sorted(tmp_path.rglob("*.pt")):
        whole, raw = load(path), path.read_bytes()
        for place in tensors_in(whole):
            if "feats" in place or (place and place[-1] in ("time", "global_id") and make is heterogeneous):
                continue  # rows, and ids that are not used for look-ups
            for change in itertools.islice(changes, 4):
                torch.save(changed(whole, place, change), path)
                with pytest.raises((FormatError, IdRangeError)):
                    pyg_dist.read_partitions(tmp_path)
                num_changed += 1
        path.write_bytes(raw)
    assert num_changed > 25


def test_swapped_part_folders_are_refused(written):
    (written / "part_0").rename(written / "aside")
    (written / "part_1").rename(written / "part_0")
    (written / "aside").rename(written / "part_1")
    with pytest.raises(FormatError, match=r"belongs to part 1, by the map of parts; is the folder that of part 0"):
        pyg_dist.LocalGraphStore.from_partition(written, 0)
    with pytest.raises(FormatError, match=r"node_feats.pt of part 1: id \d+ belongs to part 0"):
        pyg_dist.LocalFeatureStore.from_partition(written, 1)


@pytest.mark.parametrize("size", [None, "x", (12,), (2**62, 2**62), (9, 9), (True, 12)])
def test_an_invalid_size_is_refused(written, size):
    change(written / "part_1" / "graph.pt", lambda value: value[WRITES].update(size=size))
    with pytest.raises(
        FormatError, match=r"part 1: size is .*(wanted numbers|the maps of parts have \(\d+, 12\) nodes)"
    ):
        pyg_dist.read_partitions(written)


def test_a_root_other_than_a_folder_is_refused():
    for root in (None, 5):
        with pytest.raises(SettingsError, match=rf"root is {root}; give the folder to write"):
            pyg_dist.Partitioner(homogeneous(), 2, root)


def test_features_missing_from_one_part_are_refused(written, tmp_path):
    (written / "part_1" / "node_feats.pt").unlink()
    with pytest.raises(FormatError, match=r"part_1/node_feats.pt is missing, and part_0 has such a file"):
        pyg_dist.LocalFeatureStore.from_partition(written, 1)
    with pytest.raises(FormatError, match=r"part_1/node_feats.pt is missing, and part_0 has such a file"):
        pyg_dist.read_partitions(written)
    graph = hopstream.graph_from_data(homogeneous())
    owners = {"node": np.zeros(graph.nodes["node"].num_nodes, np.int64)}
    pyg_dist.write_partitions(graph, tmp_path / "uneven", owners=owners, num_parts=2)
    assert not (tmp_path / "uneven" / "part_1" / "node_feats.pt").exists()
    pyg_dist.LocalFeatureStore.from_partition(tmp_path / "uneven", 1)  # owns nothing


@pytest.mark.parametrize("make", [homogeneous, heterogeneous])
def test_masks_of_nodes_come_back_as_splits(make, tmp_path):
    data = make()
    nodes = data["paper"] if make is heterogeneous else data
    nodes.train_mask, nodes.test_mask = torch.arange(len(nodes.x)) % 3 == 0, torch.arange(len(nodes.x)) % 3 == 1
    pyg_dist.Partitioner(data, 2, tmp_path, method="random").generate_partition()
    found, _ = pyg_dist.read_partitions(tmp_path)
    assert found.fingerprint() == hopstream.graph_from_data(data).fingerprint()
    store = pyg_dist.LocalFeatureStore.from_partition(tmp_path, 1)
    group = "paper" if make is heterogeneous else None
    ids = store.get_global_id(group)
    assert torch.equal(store.get_tensor(group_name=group, attr_name="train_mask", index=None), ids % 3 == 0)


def test_times_of_unknown_nodes_are_refused(written):
    store = pyg_dist.LocalFeatureStore.from_partition(written, 0)
    for ids in ([-1], [12]):
        with pytest.raises(IdRangeError, match=r"index has ids in -?\d+..-?\d+; nodes are 0..11"):
            store.get_tensor_from_global_id(group_name="paper", attr_name="time", index=torch.tensor(ids))
