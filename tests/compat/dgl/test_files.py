"""Checks that DGL's files are written as DGL writes them, and that damaged ones are refused."""

import numpy as np
import pytest

from hopstream.compat.dgl import graph_files
from hopstream.compat.dgl.binary import DglWriter, read_tensor_file, write_tensor_file
from hopstream.compat.dgl.graph_files import PlainGraph, read_graph_file, write_graph_file
from hopstream.errors import FormatError, SchemaError

# Output of dgl 1.1.3 for save_tensors(path, {"m": torch.tensor([True, False])}).
ONE_MASK = bytes.fromhex(
    "3f44a23fbe9f5add 0100000000000000 0100000000000000 0100000000000000 6d"
    "3fa1b496f0405edd 0000000000000000 0100000000000000 01000000 01080100 0200000000000000 0200000000000000 0100"
)


def test_tensor_files_are_dgls_byte_for_byte(tmp_path):
    write_tensor_file(tmp_path / "m.dgl", {"m": np.array([True, False])})
    assert (tmp_path / "m.dgl").read_bytes() == ONE_MASK
    assert read_tensor_file(tmp_path / "m.dgl")["m"].tolist() == [1, 0]


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint8", "uint32", "float16", "float32", "float64", "complex64"])
@pytest.mark.parametrize("shape", [(3,), (0, 4), (2, 3, 1), ()])
def test_arrays_survive_a_round_trip(tmp_path, dtype, shape):
    array = np.arange(int(np.prod(shape))).astype(dtype).reshape(shape)
    write_tensor_file(tmp_path / "t.dgl", {"a/x": array, "ü": array[..., None][..., :0]})
    found = read_tensor_file(tmp_path / "t.dgl")
    assert found["a/x"].dtype == array.dtype and np.array_equal(found["a/x"], array) and list(found) == ["a/x", "ü"]
    found["a/x"][...] = 0  # its memory is the reader's own


def test_text_and_long_floats_are_refused(tmp_path):
    with pytest.raises(SchemaError, match="<U1"):
        write_tensor_file(tmp_path / "t.dgl", {"a": np.array(["x"])})
    with pytest.raises(SchemaError, match=np.dtype(np.longdouble).name):
        write_tensor_file(tmp_path / "t.dgl", {"a": np.zeros(2, np.longdouble)})


def a_graph():
    return PlainGraph(
        num_nodes=4, src=np.array([0, 3, 3, 1]), dst=np.array([1, 0, 2, 1]), ndata={"_ID": np.arange(4)},
        edata={"w": np.arange(4.0)},
    )  # fmt: skip


def test_graphs_survive_a_round_trip(tmp_path):
    write_graph_file(tmp_path / "g.dgl", a_graph())
    found = read_graph_file(tmp_path / "g.dgl")
    assert found.num_nodes == 4 and found.src.tolist() == [0, 3, 3, 1] and found.dst.tolist() == [1, 0, 2, 1]
    assert found.ndata["_ID"].tolist() == [0, 1, 2, 3] and found.edata["w"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("code", [graph_files.CSR, graph_files.CSC])
def test_edges_in_rows_are_read_in_the_order_of_their_ids(tmp_path, monkeypatch, code):
    graph = a_graph()
    own, other = (graph.src, graph.dst) if code == graph_files.CSR else (graph.dst, graph.src)
    order = np.argsort(own, kind="stable")
    indptr = np.concatenate([[0], np.cumsum(np.bincount(own, minlength=4))])
    raw, uint64, array = DglWriter.raw, DglWriter.uint64, DglWriter.array
    rows = iter([indptr, other[order], order])

    def write_uint64(self, *values):
        changed = {graph_files.COO | graph_files.NEW_CODE: code | graph_files.NEW_CODE}
        uint64(self, *({**changed, graph_files.COO_MAGIC: graph_files.CSR_MAGIC}.get(value, value) for value in values))

    def write_array(self, values, where):
        array(self, next(rows) if where.endswith((" src", " dst", " ids")) else values, where)

    monkeypatch.setattr(DglWriter, "uint64", write_uint64)
    monkeypatch.setattr(DglWriter, "array", write_array)
    monkeypatch.setattr(DglWriter, "raw", lambda self, data: raw(self, b"\0" if data == b"\0\0" else data))
    write_graph_file(tmp_path / "g.dgl", graph)
    found = read_graph_file(tmp_path / "g.dgl")
    assert found.src.tolist() == [0, 3, 3, 1] and found.dst.tolist() == [1, 0, 2, 1]


@pytest.mark.parametrize("kind", ["tensors", "graph"])
def test_damage_is_reported_without_allocating_memory(tmp_path, kind):
    path = tmp_path / "f.dgl"
    read = read_tensor_file if kind == "tensors" else read_graph_file
    with pytest.raises(FormatError, match="is missing"):
        read(path)
    if kind == "tensors":
        write_tensor_file(path, {"a": np.arange(6).reshape(2, 3)})
    else:
        write_graph_file(path, a_graph())
    whole = path.read_bytes()
    first = 0 if kind == "tensors" else graph_files.HEAD_BYTES
    for size in {*range(0, 32, 5), *range(first, len(whole), 7)}:
        path.write_bytes(whole[:size])
        with pytest.raises(FormatError):
            read(path)
    for place in range(first, len(whole), 1 if kind == "tensors" else 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            read(path)
        except FormatError:
            continue


@pytest.mark.parametrize("num_bytes", [1, 8, 20, 32])
def test_a_graph_file_without_its_end_is_refused(tmp_path, num_bytes):
    path = tmp_path / "g.dgl"
    write_graph_file(path, a_graph())
    path.write_bytes(path.read_bytes()[:-num_bytes])
    with pytest.raises(FormatError, match=r"g\.dgl"):
        read_graph_file(path)
