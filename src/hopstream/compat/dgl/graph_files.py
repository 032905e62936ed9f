"""Reader and writer of a part's graph without types, ``graph.dgl``, as ``dgl.save_graphs`` writes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hopstream.arrays import Array, IntArray
from hopstream.compat.dgl.binary import DglReader, DglWriter, open_file

FILE_MAGIC = 0xDD2E4FF046B4A13F
TYPED_MAGIC = 0xDD589FBE35224ABF
META_MAGIC = 0xDD3C5FFE20046ABF
UNIT_MAGIC = 0xDD2E60F0F6B4A127
COO_MAGIC = 0xDD61FFD305DFF127
CSR_MAGIC = 0xDD6CD31205DFF127

VERSION = 2
TYPED = 2
HEAD_BYTES = 4096
COO, CSR, CSC, ALL = 1, 2, 4, 7
NEW_CODE = 1 << 32
"""Flag of a code that is a set of bits; older files have an enumerated number without the flag."""
OLD_CODES = {0: COO, 1: COO, 2: CSR, 3: CSC}
ITEM_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlainGraph:
    """A graph without types, as a DGL file holds it.

    Attributes:
        num_nodes: Number of nodes.
        src: int64[num_edges], sources.
        dst: int64[num_edges], destinations.
        ndata: Name to array with a row per node.
        edata: Name to array with a row per edge.
    """

    num_nodes: int
    src: IntArray
    dst: IntArray
    ndata: Mapping[str, Array] = field(default_factory=dict)
    edata: Mapping[str, Array] = field(default_factory=dict)


def write_graph_file(path: Path, graph: PlainGraph) -> None:
    """Write a graph for ``dgl.load_graphs``; DGL may build any of its sparse formats from the file."""
    with path.open("wb") as file:
        writer = DglWriter(file)
        writer.uint64(FILE_MAGIC, VERSION, TYPED, 1)
        writer.raw(bytes(HEAD_BYTES - writer.position))
        writer.uint64(writer.position + 16, 0)  # where the graph begins, and the number of labels
        start = writer.position
        writer.uint64(TYPED_MAGIC)
        _write_meta(writer)
        writer.uint64(1, UNIT_MAGIC, COO | NEW_CODE, ALL | NEW_CODE)
        _write_meta(writer)
        writer.uint64(COO_MAGIC, graph.num_nodes, graph.num_nodes)
        for name, array in (("src", graph.src), ("dst", graph.dst), ("ids", np.empty(0, np.int64))):
            writer.array(array.astype(np.int64, copy=False), f"{path} {name}")
        writer.raw(bytes(2))  # flags: neither sources nor destinations are sorted
        writer.uint64(1, graph.num_nodes)
        for arrays in (graph.ndata, graph.edata):
            writer.uint64(1)
            writer.arrays(arrays, str(path))
        for name in ("_N", "_E"):
            writer.uint64(1)
            writer.name(name)
        writer.uint64(*_ending(start))


def read_graph_file(path: Path) -> PlainGraph:
    """Read the first graph of a file, in any of DGL's sparse formats.

    Raises:
        FormatError: The file is missing, damaged, of another kind, or the graph has several types.
    """
    with open_file(path, "the graph of a part") as file:
        reader = DglReader(file, path)
        reader.magic(FILE_MAGIC, "a file of graphs")
        version, kind, num_graphs = (reader.uint64() for _ in range(3))
        if (version, kind) != (VERSION, TYPED) or num_graphs < 1:
            reader.refuse(f"has version {version}, kind {kind} and {num_graphs} graphs")
        reader.seek(HEAD_BYTES)
        start = reader.uint64()
        reader.seek(start)
        reader.magic(TYPED_MAGIC, "a graph")
        _skip_meta(reader)
        if reader.count(ITEM_BYTES) != 1:
            reader.refuse("has a graph of several edge types")
        num_nodes, src, dst = _read_edges(reader)
        for _ in range(reader.count(8)):
            reader.uint64()
        (ndata,) = (reader.arrays() for _ in range(_one(reader)))
        (edata,) = (reader.arrays() for _ in range(_one(reader)))
        for _ in ("node types", "edge types"):
            for _ in range(reader.count(8)):
                reader.name()
        _check_ending(reader, start, num_graphs)
        for where, arrays, num_rows in (("node", ndata, num_nodes), ("edge", edata, len(src))):
            for name, array in arrays.items():
                if not array.ndim or len(array) != num_rows:
                    reader.refuse(f"has {where} data {name!r} {array.shape} for {num_rows} {where}s")
        return PlainGraph(num_nodes=num_nodes, src=src, dst=dst, ndata=ndata, edata=edata)


def _ending(start: int) -> tuple[int, ...]:
    """Return the trailer of a file with one graph: the list of offsets of graphs, with its size in bytes."""
    return 16, 1, start, 16


def _check_ending(reader: DglReader, start: int, num_graphs: int) -> None:
    if num_graphs == 1 and tuple(reader.uint64() for _ in range(4)) != _ending(start):
        reader.refuse("has no trailer of a DGL file")


def _one(reader: DglReader) -> int:
    number = reader.count(8)
    if number != 1:
        reader.refuse(f"has data of {number} types")
    return number


def _write_meta(writer: DglWriter) -> None:
    """Write the metagraph in CSR form: one node type and one edge type."""
    writer.uint64(META_MAGIC, CSR_MAGIC, 1, 1)
    for values in ([0, 1], [0], [0]):
        writer.array(np.array(values, np.int64), "types")
    writer.raw(bytes(1))


def _skip_meta(reader: DglReader) -> None:
    reader.magic(META_MAGIC, "a graph of types")
    _skip_matrix(reader)


def _skip_matrix(reader: DglReader) -> None:
    reader.magic(CSR_MAGIC, "a matrix in rows")
    reader.raw(16)
    for _ in range(3):
        reader.array()
    reader.raw(1)


def _read_edges(reader: DglReader) -> tuple[int, IntArray, IntArray]:
    """Return the number of nodes, and sources and destinations in the order of edge ids."""
    reader.magic(UNIT_MAGIC, "the edges of a type")
    code, _ = reader.uint64(), reader.uint64()
    saved = code & 0xFFFFFFFF if code >= NEW_CODE else OLD_CODES.get(code, 0)
    if not saved & ALL:
        reader.refuse(f"has edges in the unknown format {code:#x}")
    _skip_meta(reader)
    if saved & COO:
        reader.magic(COO_MAGIC, "a list of edges")
        num_nodes = _square(reader)
        src, dst, ids = _integers(reader), _integers(reader), _integers(reader)
        reader.raw(2)
    else:
        reader.magic(CSR_MAGIC, "a matrix in rows")
        num_nodes = _square(reader)
        indptr, others, ids = _integers(reader), _integers(reader), _integers(reader)
        reader.raw(1)
        lengths = np.diff(indptr)
        if (
            len(indptr) != num_nodes + 1
            or indptr[0]
            or indptr.min() < 0
            or lengths.min(initial=0) < 0
            or indptr[-1] != len(others)
        ):
            reader.refuse("has edges in rows that do not add up")
        rows = np.repeat(np.arange(num_nodes), lengths)
        src, dst = (rows, others) if saved & CSR else (others, rows)
    if saved not in (COO, CSR, CSC):  # the other formats hold the same edges
        _skip_others(reader, saved)
    if len(src) != len(dst):
        reader.refuse(f"has {len(src)} sources and {len(dst)} destinations of edges")
    if len(ids):
        if len(ids) != len(src) or not np.array_equal(np.sort(ids), np.arange(len(src))):
            reader.refuse("has ids of edges that are not 0..n-1")
        order = np.argsort(ids)
        src, dst = src[order], dst[order]
    if any(len(e) and not 0 <= e.min() <= e.max() < num_nodes for e in (src, dst)):
        reader.refuse(f"has edges to nodes outside 0..{num_nodes - 1}")
    return num_nodes, src, dst


def _skip_others(reader: DglReader, saved: int) -> None:
    first = next(code for code in (COO, CSR, CSC) if saved & code)
    for code in (CSR, CSC):
        if saved & code and code != first:
            _skip_meta(reader)
            _skip_matrix(reader)


def _square(reader: DglReader) -> int:
    num_columns, num_rows = reader.uint64(), reader.uint64()
    if num_columns != num_rows:
        reader.refuse(f"has {num_rows} sources and {num_columns} destinations; a part has one kind of nodes")
    return num_rows


def _integers(reader: DglReader) -> IntArray:
    array = reader.array()
    if array.ndim != 1 or array.dtype.kind not in "iu":
        reader.refuse(f"has {array.dtype}{list(array.shape)} where ids are wanted")
    return array.astype(np.int64, copy=False)
