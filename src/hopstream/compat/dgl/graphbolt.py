"""Writer of a part's graph in GraphBolt's file, ``fused_csc_sampling_graph.pt``.

The file is a ZIP archive of raw tensors and of a pickle, ``data.pkl``, which names GraphBolt's class and the tensors.
DGL reads it with ``torch.load``. The pickle always has the same form. So this module writes its opcodes itself, from
integers, names and tensors alone. No module reads a pickle.
"""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np

from hopstream.arrays import Array, offsets_of, written_whole
from hopstream.checks import Settings
from hopstream.compat.dgl.graph_files import PlainGraph
from hopstream.compat.dgl.graphs import EID, NID
from hopstream.compat.dgl.loading import check_own_edges, read_part_graph
from hopstream.compat.dgl.part_config import GRAPHBOLT_GRAPH, PartConfig, label_of, read_config
from hopstream.errors import SettingsError

FILE = "fused_csc_sampling_graph.pt"
ROOT = Path(FILE).stem
CLASS = "__torch__.torch.classes.graphbolt.FusedCSCSamplingGraph"
VERSION = 6199
"""Number that GraphBolt checks when it reads its class; the same in DGL 2.1 and 2.4."""
STORAGES = {"int8": "Char", "uint8": "Byte", "int16": "Short", "int32": "Int", "int64": "Long"}
SMALL, SMALLEST = (np.int32, np.int64), (np.int8, np.int16, np.int32, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphBoltSettings(Settings):
    """Whether to write GraphBolt's files, and what they hold besides each node's number over all parts.

    Attributes:
        use_graphbolt: Write the files.
        store_eids: Store the number of each edge over all parts, as DGL needs to return data of edges.
        store_inner_node: Store whether the part owns each node.
        store_inner_edge: Store whether the part owns each edge.
    """

    use_graphbolt: bool = False
    store_eids: bool = False
    store_inner_node: bool = False
    store_inner_edge: bool = False

    def __post_init__(self) -> None:
        """Raise ``SettingsError`` if a value is no flag, or is set without ``use_graphbolt``."""
        self._read_flags(GraphBoltSettings)
        for name in self.field_names():
            if getattr(self, name) and not self.use_graphbolt:
                raise SettingsError(f"{name} is set, which concerns GraphBolt's files: set use_graphbolt too")


NO_GRAPHBOLT = GraphBoltSettings()


def dgl_partition_to_graphbolt(
    part_config: str | Path, *, store_eids: bool = False, store_inner_node: bool = False, store_inner_edge: bool = False
) -> None:  # fmt: skip
    """Write ``fused_csc_sampling_graph.pt`` beside the graph of each part, and name it in the JSON file.

    One part is in memory at a time. The JSON file comes last.

    Args:
        part_config: The JSON file of parts that DGL or ``partition_graph`` wrote.
        store_eids: See ``GraphBoltSettings``, as for the next two.
        store_inner_node: Store whether the part owns each node.
        store_inner_edge: Store whether the part owns each edge.

    Raises:
        FormatError: A file is missing, damaged, or has contents that do not fit the JSON file.
        SettingsError: A flag is no boolean.
    """
    settings = GraphBoltSettings(
        use_graphbolt=True, store_eids=store_eids, store_inner_node=store_inner_node, store_inner_edge=store_inner_edge
    )
    config = read_config(part_config)
    parts = []
    for part, files in enumerate(config.parts):
        graph = read_part_graph(config, part)
        check_own_edges(config, part, graph, may_lack=True)
        path = config.beside(part, FILE)
        with written_whole(path) as partial:
            write_graphbolt_file(partial, graph, config, settings)
        parts.append({**files, GRAPHBOLT_GRAPH: (Path(files["part_graph"]).parent / FILE).as_posix()})
    replace(config, parts=tuple(parts)).write()


def write_graphbolt_file(path: Path, graph: PlainGraph, config: PartConfig, settings: GraphBoltSettings) -> None:
    """Write the graph of a part for ``dgl.distributed.load_partition(…, use_graphbolt=True)``.

    The edges of each node are in the order of their types, then of ``graph``, as GraphBolt's sampling by type needs.

    Args:
        path: The file.
        graph: The part's graph, with the data of ``part_graph``.
        config: Types and their ranges of numbers.
        settings: Data to store.
    """
    nodes, edges = config.nodes, config.edges
    tensors: dict[str, Array] = {"version_number": np.array([VERSION])}
    is_typed = len(nodes.ids) > 1 or len(edges.ids) > 1
    if is_typed:
        types, _ = edges.per_type(graph.edata[EID].astype(np.int64))
        order = np.lexsort((types, graph.dst))
        type_per_edge = {"type_per_edge": _narrow(types[order], len(edges.ids), SMALLEST)}
    else:
        order, type_per_edge = np.argsort(graph.dst, kind="stable"), {}
    indptr = offsets_of(np.bincount(graph.dst, minlength=graph.num_nodes))
    tensors["indptr"] = _narrow(indptr, len(order), SMALL)
    tensors["indices"] = _narrow(graph.src[order], graph.num_nodes, SMALL)
    state: dict[str, Mapping[str, Array]] = {"independent_tensors": tensors | type_per_edge}
    if is_typed:
        state["node_type_to_id"] = {t: np.array(number) for t, number in nodes.ids.items()}
        state["edge_type_to_id"] = {label_of(t): np.array(number) for t, number in edges.ids.items()}
    stored = {NID: graph.ndata[NID].astype(np.int64)}
    if settings.store_inner_node:
        stored["inner_node"] = graph.ndata["inner_node"].astype(np.uint8)
    state["node_attributes"] = stored
    stored = {EID: graph.edata[EID][order].astype(np.int64)} if settings.store_eids else {}
    if settings.store_inner_edge:
        stored["inner_edge"] = graph.edata["inner_edge"][order].astype(np.uint8)
    state["edge_attributes"] = stored
    _write_archive(path, state)


def _narrow(array: Array, limit: int, dtypes: tuple[type, ...]) -> Array:
    """Convert integers to the first dtype whose largest value is above ``limit``, as DGL does."""
    return array.astype(next(dtype for dtype in dtypes if limit < np.iinfo(dtype).max))


def _write_archive(path: Path, state: Mapping[str, Mapping[str, Array]]) -> None:
    arrays = [array for group in state.values() for array in group.values()]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        entries = {
            "data.pkl": _pickled(state), "byteorder": b"little", "version": b"3\n",
            **{f"data/{number}": np.ascontiguousarray(array).reshape(-1).data for number, array in enumerate(arrays)},
        }  # fmt: skip
        for name, content in entries.items():
            with archive.open(zipfile.ZipInfo(f"{ROOT}/{name}"), "w", force_zip64=True) as file:
                file.write(cast(bytes, content))


def _pickled(state: Mapping[str, Mapping[str, Array]]) -> bytes:
    """Return the pickle, of protocol 2, that makes GraphBolt's graph of ``data/0``, ``data/1``, …."""
    groups, number = bytearray(), 0
    for name, group in state.items():
        groups += _text(name) + b"}("  # an empty dict, and a mark before its items
        for member, array in group.items():
            groups += _text(member) + _tensor(array, number)
            number += 1
        groups += b"u"  # set the items since the mark
    made = b")\x81"  # an object of the class, made of an empty tuple
    graph = _global("dgl.graphbolt.impl.fused_csc_sampling_graph", "FusedCSCSamplingGraph") + made
    script_object = _global("torch", "ScriptObject") + made + b"}(" + bytes(groups) + b"u" + _text(CLASS) + b"\x86b"
    return b"\x80\x02" + graph + b"}" + _text("_c_csc_graph") + script_object + b"sb."


def _tensor(array: Array, number: int) -> bytes:
    storage = b"(" + _text("storage") + _global("torch", f"{STORAGES[array.dtype.name]}Storage")
    storage += _text(str(number)) + _text("cpu") + _integer(array.size) + b"tQ"
    sizes, strides = b"(" + b"".join(map(_integer, array.shape)) + b"t", b"(" + _integer(1) * array.ndim + b"t"
    hooks = _global("collections", "OrderedDict") + b")R"
    return (
        _global("torch._utils", "_rebuild_tensor_v2") + b"(" + storage + _integer(0) + sizes + strides + b"\x89"
        + hooks + b"tR"
    )  # fmt: skip


def _global(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def _text(text: str) -> bytes:
    encoded = text.encode()
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def _integer(number: int) -> bytes:
    return b"\x8a\x08" + struct.pack("<q", number)
