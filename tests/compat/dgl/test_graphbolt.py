"""Checks of GraphBolt's files, with a reader that makes only tensors and two classes."""

import json
import pickle
import zipfile
from collections import OrderedDict

import numpy as np
import pytest

from hopstream.compat.dgl.distributed import (
    dgl_partition_to_graphbolt,
    load_partition,
    partition_graph,
    read_partitions,
)
from hopstream.compat.dgl.graphbolt import FILE, STORAGES, GraphBoltSettings, _narrow
from hopstream.errors import FormatError, SettingsError
from tests.compat.dgl.graphs import plain_graph, some_owners, typed_graph

STORED = {"store_eids": True, "store_inner_node": True, "store_inner_edge": True}


class Made:
    """An object of a class of DGL or torch, with its state."""

    def __setstate__(self, state):
        self.state = state


class FileReader(pickle.Unpickler):
    """A reader of one file, in which pickles may name what torch needs and GraphBolt's class."""

    def __init__(self, archive, root):
        super().__init__(archive.open(f"{root}/data.pkl"))
        self.archive, self.root = archive, root

    def find_class(self, module, name):
        if (module, name) in {
            ("torch", "ScriptObject"),
            ("dgl.graphbolt.impl.fused_csc_sampling_graph", "FusedCSCSamplingGraph"),
        }:
            return Made
        dtypes = {f"{kind}Storage": dtype for dtype, kind in STORAGES.items()}
        return {
            ("collections", "OrderedDict"): OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2"): lambda storage, start, sizes, strides, *_: storage.reshape(sizes),
            **{("torch", kind): dtype for kind, dtype in dtypes.items()},
        }[module, name]

    def persistent_load(self, said):
        _, dtype, number, device, count = said
        array = np.frombuffer(self.archive.read(f"{self.root}/data/{number}"), dtype)
        assert device == "cpu" and len(array) == count
        return array


def read(path):
    """Groups of tensors of a file."""
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert archive.read("fused_csc_sampling_graph/byteorder") == b"little"
        state, name = FileReader(archive, "fused_csc_sampling_graph").load().state["_c_csc_graph"].state
    assert name == "__torch__.torch.classes.graphbolt.FusedCSCSamplingGraph"
    return state


@pytest.mark.parametrize("graph", [plain_graph(), typed_graph()], ids=["plain", "typed"])
def test_the_file_holds_the_edges_of_dgls_graph_by_destination_and_type(tmp_path, graph):
    partition_graph(
        graph, "g", 2, tmp_path, part_method="file", owners=some_owners(graph, 2), use_graphbolt=True, **STORED
    )
    is_typed = len(graph.nodes) > 1
    for part in (0, 1):
        loaded, *_, book, _, ntypes, etypes = load_partition(tmp_path / "g.json", part)
        found = read(tmp_path / f"part{part}" / FILE)
        tensors = found["independent_tensors"]
        assert tensors["version_number"].tolist() == [6199]
        assert found["node_attributes"]["_ID"].tolist() == loaded.ndata["_ID"].tolist()
        assert found["node_attributes"]["inner_node"].tolist() == loaded.ndata["inner_node"].tolist()
        eids = loaded.edata["_ID"]
        types = book.map_to_per_etype(eids)[0].tolist()
        src, dst = (end.tolist() for end in loaded.edges())
        inner = loaded.edata["inner_edge"].tolist()
        rows = zip(dst, types, src, eids.tolist(), inner, strict=True)
        by_node = np.repeat(np.arange(len(loaded.ndata["_ID"])), np.diff(tensors["indptr"]))
        type_of = tensors["type_per_edge"] if is_typed else np.zeros(len(src), np.int8)
        edge = found["edge_attributes"]
        got = list(zip(by_node, type_of, tensors["indices"], edge["_ID"], edge["inner_edge"], strict=True))
        assert sorted(rows) == sorted(got) and [row[:2] for row in got] == sorted(row[:2] for row in got)
        assert ("type_per_edge" in tensors, "node_type_to_id" in found) == (is_typed, is_typed)
        if is_typed:
            assert {t: int(number) for t, number in found["node_type_to_id"].items()} == {
                t: number for number, t in enumerate(ntypes)
            }
            assert list(found["edge_type_to_id"]) == [":".join(t) for t in etypes]


def test_parts_are_converted_later_and_read_as_before(tmp_path):
    graph = typed_graph()
    partition_graph(graph, "g", 2, tmp_path / "g", part_method="file", owners=some_owners(graph, 2))
    path = tmp_path / "g/g.json"
    before = json.loads(path.read_text())
    dgl_partition_to_graphbolt(path)
    said = json.loads(path.read_text())
    assert (said.pop("node_map_dtype"), said.pop("edge_map_dtype")) == ("int64", "int64")
    for part in (0, 1):
        assert said[f"part-{part}"].pop("part_graph_graphbolt") == f"part{part}/{FILE}"
        found = read(tmp_path / "g" / f"part{part}" / FILE)
        assert (list(found["node_attributes"]), list(found["edge_attributes"])) == (["_ID"], [])
    assert said == before
    assert read_partitions(path)[0].fingerprint() == graph.fingerprint()
    partition_graph(graph, "g", 2, tmp_path / "g", part_method="random")  # replaces all files
    assert not list(tmp_path.rglob(FILE))
    (tmp_path / "g/part1/graph.dgl").unlink()
    with pytest.raises(FormatError, match=r"graph\.dgl is missing"):
        dgl_partition_to_graphbolt(path)


def test_integers_are_stored_in_dgls_smallest_dtype():
    sizes = [_narrow(np.zeros(1, np.int64), limit, (np.int32, np.int64)).dtype for limit in (2**31 - 2, 2**31 - 1)]
    assert sizes == [np.int32, np.int64]
    with pytest.raises(SettingsError, match="store_inner_edge is 1"):
        GraphBoltSettings(use_graphbolt=True, store_inner_edge=1)
