"""Cuts graphs with KaMinPar and METIS."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import IntArray, offsets_of
from hopstream.assign.flatten import Adjacency
from hopstream.dataset.settings import PartitionSettings
from hopstream.errors import MissingDependencyError, SettingsError
from hopstream.kernels.hashing import derive_seed

# ParHiP's first word has a bit set for each thing that a file does without.
NO_EDGE_WEIGHTS = 1
NEIGHBORS_32_BIT = 8
PARHIP_HEADER_BYTES = 24

CONTEXT, BIG_CONTEXT = "fast", "terapart"
"""Of KaMinPar's presets: the first takes half the time of the default at a cut between 0.3 % worse and 0.5 % better,
the second two thirds of the memory of the first on a compressed graph, and twice the time."""
BIG_ENDS = 1 << 26
"""Graphs with more neighbours than this are held compressed. That takes 0.6 of the memory, and up to twice the time."""

BLOCK_NODES = 1 << 20

_KAMINPAR_LOCK = threading.Lock()  # KaMinPar's seed is one number for the whole process


def cut_with_kaminpar(
    graph: Adjacency, weights: IntArray, settings: PartitionSettings, scratch: Path | None
) -> NDArray[np.int32]:
    """int32[num_connected], the part of each node that has neighbours.

    KaMinPar takes graphs from files only. The file has no name in any folder, so it vanishes with its handle, even if
    the process is killed. With one thread the result depends on the arguments alone; with more it differs between runs.

    A big graph is held compressed, as TeraPart does: neighbours as gaps of varying length. Then runs may differ even
    with one thread: KaMinPar 3.7.3 gives one of a few cuts, by where in memory the compressed graph lies. Source:
    Salwasser, Seemaier, Gottesbüren, Sanders, "Tera-scale multilevel graph partitioning", IPDPS 2025.

    Args:
        graph: The graph.
        weights: int64[num_connected], at least 1, of the nodes that have neighbours.
        settings: Number and weights of parts, imbalance, rng_seed, number of threads.
        scratch: The folder on whose disk the file is made; the system's temporary folder if None.

    Raises:
        MissingDependencyError: KaMinPar is not installed.
        SettingsError: The installed KaMinPar is built for 32-bit ids.
    """
    try:
        import kaminpar
    except ImportError as error:
        raise MissingDependencyError("method 'kaminpar' needs the package kaminpar: pip install kaminpar") from error
    if not getattr(kaminpar, "__64bit__", False):  # it would end the process when it sees 64-bit offsets
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


def write_parhip(file: IO[bytes], graph: Adjacency, weights: IntArray) -> None:
    """Write the nodes that have neighbours, with weights, as KaMinPar reads them.

    [Format] Three uint64 (flags, nodes, directed edges), num_nodes + 1 uint64 byte offsets from the start of the file,
    the neighbours as uint32, the node weights as int64. Source: KaHIP user guide, and KaMinPar's ``parhip_parser.cc``.
    [Cost] 16 bytes per node, and a block of neighbours.
    """
    positions = graph.connected()
    np.array([NO_EDGE_WEIGHTS | NEIGHBORS_32_BIT, len(positions), graph.num_ends], np.uint64).tofile(file)
    begin = PARHIP_HEADER_BYTES + 8 * (len(positions) + 1)
    for start in range(0, len(positions), BLOCK_NODES):
        (graph.indptr[positions[start : start + BLOCK_NODES]] * 4 + begin).astype(np.uint64).tofile(file)
    np.array([graph.num_ends * 4 + begin], np.uint64).tofile(file)
    compact = _compact(graph, positions, np.dtype(np.uint32))
    for _, _, neighbors in graph.blocks():
        compact[neighbors].tofile(file)
    weights.astype(np.int64, copy=False).tofile(file)
    file.flush()


def cut_with_metis(graph: Adjacency, weights: IntArray, settings: PartitionSettings) -> NDArray[np.int32]:
    """int32[num_connected], the part of each node that has neighbours; it depends on the arguments alone.

    Args:
        graph: The graph.
        weights: int64[num_connected], at least 1, of the nodes that have neighbours.
        settings: Number and weights of parts, imbalance, rng_seed.

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
    options = pymetis.Options(seed=_library_seed(settings), ufactor=max(1, round(1000 * settings.imbalance)))
    positions = graph.connected()
    indptr = offsets_of(graph.indptr[positions + 1] - graph.indptr[positions])
    neighbors, compact = np.empty(graph.num_ends, dtype), _compact(graph, positions, dtype)
    for first, stop, block in graph.blocks():
        neighbors[graph.indptr[first] : graph.indptr[stop]] = compact[block]
    adjacency = pymetis.CSRAdjacency(indptr.astype(dtype, copy=False), neighbors)
    fitted = fit_weights(weights, limit // 4).astype(dtype, copy=False)
    # Recursive bisection, pymetis's own choice for up to 8 parts, does not use the imbalance it is allowed and cut 0.3
    # to 0.9 % more edges on an R-MAT and a community graph, 4 and 16 parts; so it is done only when asked for. pymetis
    # takes one weight per node, and of an array with more it silently takes the first, so what else is to be even is
    # seen to afterwards.
    shares = list(settings.shares) if settings.part_weights else None
    result = pymetis.part_graph(
        settings.num_parts, adjacency, vweights=fitted, tpwgts=shares, recursive=settings.recursive, options=options
    )
    return np.array(result.vertex_part, np.int32)


def fit_weights(weights: IntArray, limit: int) -> IntArray:
    """Weights scaled down, to 1 at least, so that their sum stays near or below a limit."""
    total = int(weights.sum())
    return weights if total <= limit else np.maximum(1, (weights * (limit / total)).astype(np.int64))


def _compact(graph: Adjacency, positions: IntArray, dtype: np.dtype[np.generic]) -> NDArray[np.generic]:
    """dtype[num_nodes], the number of each node among those that have neighbours."""
    compact = np.zeros(len(graph.indptr) - 1, dtype)
    compact[positions] = np.arange(len(positions), dtype=dtype)
    return compact


def _library_seed(settings: PartitionSettings) -> int:
    """31 bits of the seed: both libraries take an int."""
    return derive_seed("partition", settings.rng_seed) & 0x7FFFFFFF
