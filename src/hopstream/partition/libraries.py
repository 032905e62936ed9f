"""How are KaMinPar and METIS asked to cut a graph?"""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import IntArray
from hopstream.errors import MissingDependencyError, SettingsError
from hopstream.kernels.hashing import derive_seed
from hopstream.partition.flatten import CHUNK_EDGES, FlatGraph
from hopstream.partition.settings import PartitionSettings

# ParHiP's first word has a bit set for each thing that a file does without.
NO_EDGE_WEIGHTS = 1
NEIGHBORS_32_BIT = 8
PARHIP_HEADER_BYTES = 24

_KAMINPAR_LOCK = threading.Lock()  # KaMinPar's seed is one number for the whole process


def cut_with_kaminpar(
    flat: FlatGraph, weights: IntArray, settings: PartitionSettings, scratch: Path | None
) -> NDArray[np.int32]:
    """int32[num_connected], the part of each node.

    KaMinPar takes graphs from files only. The file has no name in any folder, so it vanishes with its handle, even if
    the process is killed. With one thread the result depends on the arguments alone; with more it differs between runs.

    Args:
        flat: The graph.
        weights: int64[num_connected], at least 1.
        settings: Number of parts, imbalance, rng_seed, number of threads.
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
    with _KAMINPAR_LOCK:
        with tempfile.TemporaryFile(dir=scratch) as file:
            write_parhip(file, flat, weights)
            graph = kaminpar.load_graph(f"/dev/fd/{file.fileno()}", kaminpar.GraphFileFormat.PARHIP)
        kaminpar.reseed(_library_seed(settings))
        solver = kaminpar.KaMinPar(settings.num_threads, kaminpar.default_context())
        return np.array(solver.compute_partition(graph, settings.num_parts, settings.imbalance), np.int32)


def write_parhip(file: IO[bytes], flat: FlatGraph, weights: IntArray) -> None:
    """Write a graph with node weights as KaMinPar reads it.

    [Format] Three uint64 (flags, nodes, directed edges), num_nodes + 1 uint64 byte offsets from the start of the file,
    the neighbours as uint32, the node weights as int64. Source: KaHIP user guide, and KaMinPar's ``parhip_parser.cc``.
    """
    num_nodes, num_edges = len(flat.positions), len(flat.neighbors)
    np.array([NO_EDGE_WEIGHTS | NEIGHBORS_32_BIT, num_nodes, num_edges], np.uint64).tofile(file)
    (flat.indptr * 4 + (PARHIP_HEADER_BYTES + 8 * (num_nodes + 1))).astype(np.uint64).tofile(file)
    for start in range(0, num_edges, CHUNK_EDGES):
        flat.neighbors[start : start + CHUNK_EDGES].astype(np.uint32).tofile(file)
    weights.astype(np.int64, copy=False).tofile(file)
    file.flush()


def cut_with_metis(flat: FlatGraph, weights: IntArray, settings: PartitionSettings) -> NDArray[np.int32]:
    """int32[num_connected], the part of each node; it depends on the arguments alone.

    Args:
        flat: The graph.
        weights: int64[num_connected], at least 1.
        settings: Number of parts, imbalance, rng_seed.

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
    if len(flat.neighbors) > limit:
        raise SettingsError(
            f"the installed metis takes at most {limit} edge ends, got {len(flat.neighbors)}; use kaminpar"
        )
    options = pymetis.Options(seed=_library_seed(settings), ufactor=max(1, round(1000 * settings.imbalance)))
    adjacency = pymetis.CSRAdjacency(flat.indptr.astype(dtype, copy=False), flat.neighbors.astype(dtype, copy=False))
    fitted = fit_weights(weights, limit // 4).astype(dtype, copy=False)
    # Recursive bisection, pymetis's own choice for up to 8 parts, does not use the imbalance it is allowed and cut 0.3
    # to 0.9 % more edges on an R-MAT and a community graph, 4 and 16 parts.
    result = pymetis.part_graph(settings.num_parts, adjacency, vweights=fitted, recursive=False, options=options)
    return np.array(result.vertex_part, np.int32)


def fit_weights(weights: IntArray, limit: int) -> IntArray:
    """Weights scaled down, to 1 at least, so that their sum stays near or below a limit."""
    total = int(weights.sum())
    return weights if total <= limit else np.maximum(1, (weights * (limit / total)).astype(np.int64))


def _library_seed(settings: PartitionSettings) -> int:
    """31 bits of the seed: both libraries take an int."""
    return derive_seed("partition", settings.rng_seed) & 0x7FFFFFFF
