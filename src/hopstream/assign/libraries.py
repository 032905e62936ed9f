"""Cuts graphs with KaMinPar and METIS, and states how much memory assignment needs."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import IntArray, offsets_of
from hopstream.assign.flatten import SymmetricGraph
from hopstream.dataset.settings import PartitionSettings
from hopstream.engine.settings import Needs
from hopstream.errors import MissingDependencyError, SettingsError
from hopstream.kernels.hashing import derive_seed

# A bit of ParHiP's first word is set for each thing that the file omits.
NO_EDGE_WEIGHTS = 1
NEIGHBORS_32_BIT = 8
PARHIP_HEADER_BYTES = 24

CONTEXT, BIG_CONTEXT = "fast", "terapart"
"""KaMinPar's presets.

``fast`` takes half the time of the default, at a cut 0.3 % worse to 0.5 % better. On a compressed graph ``terapart``
takes two thirds of the memory of ``fast`` and twice its time.
"""
BIG_ENDS = 1 << 26
"""Graphs with more neighbours than this are held compressed: 0.6 of the memory, at up to twice the time."""

BLOCK_NODES = 1 << 20

_KAMINPAR_LOCK = threading.Lock()  # KaMinPar has one seed per process


def cut_with_kaminpar(
    graph: SymmetricGraph, weights: IntArray, settings: PartitionSettings, scratch: Path | None
) -> NDArray[np.int32]:
    """Return int32[num_connected], the part of each node that has neighbours.

    KaMinPar reads graphs only from files. The file is unlinked, so it vanishes with its handle even if the process is
    killed. With one thread the result depends on the arguments alone; with more threads it differs between runs.

    KaMinPar holds a big graph compressed, as TeraPart does: neighbours as gaps of varying length. Then even runs with
    one thread may differ: KaMinPar 3.7.3 returns one of a few cuts, depending on the address of the compressed graph.
    Source: Salwasser, Seemaier, Gottesbüren, Sanders, "Tera-scale multilevel graph partitioning", IPDPS 2025.

    Args:
        graph: The graph.
        weights: int64[num_connected], at least 1, the weight of each node that has neighbours.
        settings: Number and weights of parts, imbalance, rng_seed, number of threads.
        scratch: Folder on whose disk the file is made; None for the system's temporary folder.

    Raises:
        MissingDependencyError: KaMinPar is not installed.
        SettingsError: The installed KaMinPar is built for 32-bit ids.
    """
    try:
        import kaminpar
    except ImportError as error:
        raise MissingDependencyError("method 'kaminpar' needs the package kaminpar: pip install kaminpar") from error
    if not getattr(kaminpar, "__64bit__", False):  # a 32-bit build ends the process at 64-bit offsets
        raise SettingsError("the installed kaminpar is built for 32-bit ids; use one built for 64-bit ids, or metis")
    is_big = graph.num_ends > BIG_ENDS
    with _KAMINPAR_LOCK:
        with tempfile.TemporaryFile(dir=scratch) as file:
            write_parhip(file, graph, weights)
            loaded = kaminpar.load_graph(f"/dev/fd/{file.fileno()}", kaminpar.GraphFileFormat.PARHIP, compress=is_big)
        kaminpar.reseed(_library_seed(settings))
        solver = kaminpar.KaMinPar(settings.num_threads, kaminpar.context_by_name(BIG_CONTEXT if is_big else CONTEXT))
        if not settings.part_weights:
            parts = solver.compute_partition(loaded, settings.num_parts, settings.imbalance)
        else:
            total = int(weights.sum()) * (1 + settings.imbalance)
            heaviest = int(weights.max())
            limits = [max(round(share * total), heaviest) for share in settings.shares]
            parts = solver.compute_partition(loaded, limits)
        return np.array(parts, np.int32)


def write_parhip(file: IO[bytes], graph: SymmetricGraph, weights: IntArray) -> None:
    """Write the nodes that have neighbours, with weights, in the format that KaMinPar reads.

    [Format] Three uint64 (flags, nodes, directed edges), num_nodes + 1 uint64 byte offsets from the start of the file,
    the neighbours as uint32, the node weights as int64. Source: KaHIP user guide, and KaMinPar's ``parhip_parser.cc``.
    [Cost] 16 bytes per node, and a block of neighbours.
    [Not chosen] ``tofile``: on a full disk its error says only "2000 requested and 1021 written".
    """
    positions = graph.connected()
    file.write(np.array([NO_EDGE_WEIGHTS | NEIGHBORS_32_BIT, len(positions), graph.num_ends], np.uint64).data)
    begin = PARHIP_HEADER_BYTES + 8 * (len(positions) + 1)
    for start in range(0, len(positions), BLOCK_NODES):
        file.write((graph.indptr[positions[start : start + BLOCK_NODES]] * 4 + begin).astype(np.uint64).data)
    file.write(np.array([graph.num_ends * 4 + begin], np.uint64).data)
    compact = _compact(graph, positions, np.dtype(np.uint32))
    for _, _, neighbors in graph.blocks():
        file.write(compact[neighbors].data)
    file.write(np.ascontiguousarray(weights, np.int64).data)
    file.flush()


def cut_with_metis(graph: SymmetricGraph, weights: IntArray, settings: PartitionSettings) -> NDArray[np.int32]:
    """Return int32[num_connected], the part of each node that has neighbours.

    The result depends on the arguments alone.

    Args:
        graph: The graph.
        weights: int64[num_connected], at least 1, the weight of each node that has neighbours.
        settings: Number and weights of parts, imbalance, objective, rng_seed.

    Raises:
        MissingDependencyError: pymetis is not installed.
        SettingsError: The installed METIS counts edges in 32 bits and the graph has too many.
    """
    try:
        import pymetis
    except ImportError as error:
        raise MissingDependencyError("method 'metis' needs the package pymetis: pip install pymetis") from error
    dtype = np.dtype(pymetis.zero_copy_dtype())
    limit = int(np.iinfo(dtype).max)
    if graph.num_ends > limit:
        raise SettingsError(f"the installed metis takes at most {limit} edge ends, got {graph.num_ends}; use kaminpar")
    objective = pymetis.ObjType.VOL if settings.objective == "volume" else pymetis.ObjType.CUT
    options = pymetis.Options(
        seed=_library_seed(settings), ufactor=max(1, round(1000 * settings.imbalance)), objtype=objective
    )
    positions = graph.connected()
    indptr = offsets_of(graph.indptr[positions + 1] - graph.indptr[positions])
    neighbors, compact = np.empty(graph.num_ends, dtype), _compact(graph, positions, dtype)
    for first, stop, block in graph.blocks():
        neighbors[graph.indptr[first] : graph.indptr[stop]] = compact[block]
    adjacency = pymetis.CSRAdjacency(indptr.astype(dtype, copy=False), neighbors)
    fitted = fit_weights(weights, limit // 4).astype(dtype, copy=False)
    # pymetis's default for up to 8 parts is recursive bisection. It does not use the allowed imbalance and cut 0.3 to
    # 0.9 % more edges (an R-MAT and a community graph, 4 and 16 parts), so only ``settings.recursive`` turns it on.
    # pymetis takes one weight per node and silently reads only the first of several. The caller balances the other
    # loads afterwards.
    shares = list(settings.shares) if settings.part_weights else None
    result = pymetis.part_graph(
        settings.num_parts, adjacency, vweights=fitted, tpwgts=shares, recursive=settings.recursive, options=options
    )
    return np.array(result.vertex_part, np.int32)


def fit_weights(weights: IntArray, limit: int) -> IntArray:
    """Scale weights down, to 1 at least, so that their sum stays near or below a limit."""
    total = int(weights.sum())
    return weights if total <= limit else np.maximum(1, (weights * (limit / total)).astype(np.int64))


def _compact(graph: SymmetricGraph, positions: IntArray, dtype: np.dtype[np.generic]) -> NDArray[np.generic]:
    """Return dtype[num_nodes], the number of each node among the nodes that have neighbours."""
    compact = np.zeros(len(graph.indptr) - 1, dtype)
    compact[positions] = np.arange(len(positions), dtype=dtype)
    return compact


def _library_seed(settings: PartitionSettings) -> int:
    """Return 31 bits of the seed, because both libraries take an int."""
    return derive_seed("partition", settings.rng_seed) & 0x7FFFFFFF


PROCESS_BYTES = 180 << 20
"""Memory of a process that has loaded its libraries and compiled kernels, and reads edges."""
LEAST_EDGE_BYTES = 64 << 20
"""Least memory for edges; edges beyond it go through files."""
NODE_BYTES = 36
"""Memory per node of methods that read edges: the offset of its neighbours, its weight, its part, the row of its
limits, the order in which isolated nodes get parts, and the key of its id in a dataset."""
OWNER_BYTES, SHUFFLE_BYTES = 4, 8
"""Memory per node of the other methods: its part, and the order in which random parts are given."""
GROUP_BYTES, DEGREE_BYTES = 4, 8
"""Memory per node of each balanced load, and of the degrees if edges are balanced too."""
CLASS_BYTES = 12
"""Memory per node while classes are read: the value, and its index among the distinct values."""
LIBRARY_NODE_BYTES = 24
"""Memory of the libraries per node that has neighbours, in addition to their memory per edge."""
THREAD_BYTES = 50 << 20
"""Memory of each thread after the first: a block of a million edges."""
EDGE_BYTES = {"kaminpar": 30, "metis": 200}
COMPRESSED_EDGE_BYTES = 12
"""Memory of the libraries per edge, which no setting bounds; the second is KaMinPar's for compressed graphs."""


def looks_at_edges(settings: PartitionSettings) -> bool:
    """Return whether assignment reads edges."""
    return settings.num_parts > 1 and (settings.method not in ("random", "hash") or settings.balance_edges)


def assign_bytes(num_nodes: int, num_edges: int, settings: PartitionSettings) -> int:
    """Return the memory of nodes, threads and the method's library, without the process and the edges."""
    is_compressed = settings.method == "kaminpar" and 2 * num_edges > BIG_ENDS
    per_edge = COMPRESSED_EDGE_BYTES if is_compressed else EDGE_BYTES.get(settings.method, 0)
    num_connected = min(num_nodes, 2 * num_edges) if per_edge else 0
    num_bytes = num_nodes * _node_bytes(settings) + num_connected * LIBRARY_NODE_BYTES + num_edges * per_edge
    return num_bytes + (settings.num_threads - 1) * THREAD_BYTES


def _node_bytes(settings: PartitionSettings) -> int:
    """Return the memory per node; splits that share nodes may need more."""
    even_bytes = GROUP_BYTES * (bool(settings.balance_ntypes) + settings.balance_edges + settings.balance_splits)
    degree_bytes = DEGREE_BYTES * settings.balance_edges
    if settings.method == "hash" or settings.num_parts == 1:
        return OWNER_BYTES
    if settings.method == "random":
        class_bytes = CLASS_BYTES * bool(settings.balance_ntypes)
        return OWNER_BYTES + max(SHUFFLE_BYTES, degree_bytes + max(class_bytes, even_bytes))
    return NODE_BYTES + even_bytes + degree_bytes


def assign_needs(num_nodes: int, num_edges: int, settings: PartitionSettings, worker_bytes: int = 0) -> Needs:
    """Return the memory that assignment needs.

    Args:
        num_nodes: Nodes of all types.
        num_edges: Edges of all types.
        settings: The method.
        worker_bytes: Memory of each worker that waits meanwhile.
    """
    least = PROCESS_BYTES + assign_bytes(num_nodes, num_edges, settings) + looks_at_edges(settings) * LEAST_EDGE_BYTES
    remedy = ", or use ldg or fennel" if settings.method in EDGE_BYTES else ""
    what = f"method {settings.method!r} on {num_nodes} nodes and {num_edges} edges needs"
    return Needs(alone_bytes=least, parent_bytes=least, worker_bytes=worker_bytes, what=what, remedy=remedy)


def memory_for_edges(num_nodes: int, num_edges: int, settings: PartitionSettings, num_bytes: int) -> int:
    """Return the bytes left for edges, of the bytes of the process that assigns nodes."""
    return num_bytes - PROCESS_BYTES - assign_bytes(num_nodes, num_edges, settings)
