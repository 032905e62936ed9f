"""Assigns nodes to parts."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Unpack, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hopstream.arrays import IntArray
from hopstream.checks import known_names
from hopstream.engine.allotment import allot
from hopstream.engine.machine import this_machine
from hopstream.engine.peak import watched
from hopstream.engine.settings import MEMORY_SHARE, WorkerSettings, no_progress
from hopstream.errors import SchemaError, SettingsError, UnknownNameError
from hopstream.graph.graph import Graph
from hopstream.ingest.apart import check_apart
from hopstream.kernels.hashing import derive_seed, hash_keys
from hopstream.kernels.refinement import count_cut
from hopstream.partition.assign_balance import NodeClasses, make_constraints, refine_owners
from hopstream.partition.assign_costs import assign_needs, memory_for_edges
from hopstream.partition.assign_folder import OwnerArray, check_owners, check_owners_target, write_owners
from hopstream.partition.assign_source import AssignSource, EdgeBlocks, folder_of, source_of
from hopstream.partition.assign_stream import stream_owners
from hopstream.partition.flatten import Adjacency, AdjacencyBuilder, type_offsets
from hopstream.partition.libraries import cut_with_kaminpar, cut_with_metis
from hopstream.partition.owners import find_num_parts, read_owners
from hopstream.partition.settings import PartitionOptions, PartitionSettings, Progress
from hopstream.partition.threads import in_threads
from hopstream.partition.weights import LoadCounter
from hopstream.schema import EdgeType
from hopstream.uris import local_path

if TYPE_CHECKING:
    from hopstream.ingest.chunked import ChunkedGraph

OwnersSource = str | Path | ArrayLike | Mapping[str, ArrayLike]
"""A folder with one file per node type, or node type to the part of each node."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Assignment:
    """The parts of all nodes.

    Attributes:
        owners: Node type to int32[num_nodes], the part of the node with each key.
        cut: The share of pairs of joined nodes that are in two parts, each pair counted once whatever edges join it;
            None for methods that do not look at edges.
        largest: What was to be even, by name, to how many times its share the fullest part holds.
    """

    owners: Mapping[str, OwnerArray]
    cut: float | None = None
    largest: Mapping[str, float] = field(default_factory=dict)


def assign_folder(  # noqa: PLR0913  a graph, a place, and what ``assign_nodes`` takes
    graph: Graph | ChunkedGraph | AssignSource,
    out: str | Path,
    settings: PartitionSettings | None = None,
    *,
    classes: NodeClasses | None = None,
    memory: str | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    **options: Unpack[PartitionOptions],
) -> Assignment:
    """Assign every node to a part and write the parts as a folder, which ``write_parts`` and others take as ``owners``.

    The number of parts has no default here: it is ``num_parts``, or what ``settings`` say.

    Args:
        graph: A graph in memory, a chunked folder, or a dataset (``open_dataset_source``).
        out: The folder to write.
        settings: How many parts, the method, and what it needs.
        classes: Node type to the class of each node, of which each part gets its share, beside what
            ``settings.balance_ntypes`` names: an array, a file, a feature, or None for all nodes of the type.
        memory: What the process may take, beside a graph that is in memory, such as ``4GiB``; None for a share of
            what is free. Edges get what nodes leave, and go through files beside ``out`` where they are more.
        overwrite: Replace a folder of parts that is there.
        progress: Called as ``progress(stage, done, total)``: ``edges`` are read and then grouped (``group``), nodes
            assigned (the stage has the method's name), and what is uneven mended (``balance``).
        **options: Fields of ``PartitionSettings``; they go before ``settings``.

    Raises:
        SettingsError: The number of parts is not given, ``out`` may not be written or lies in what is read, the memory
            is too small, or the method cannot do what is asked.
        SchemaError: ``classes`` are not one integer for each node.
    """
    out = local_path(out)
    if settings is None and "num_parts" not in options:
        raise SettingsError("num_parts is not given; say to how many parts nodes are to be assigned")
    settings = replace(settings or PartitionSettings(), **options)
    if settings.method == "file":
        raise SettingsError("method is 'file', which assigns nothing; choose another")
    source = folder_of(graph)
    if source is not None:
        check_apart(out, {"the source": source})
    check_owners_target(out, overwrite=overwrite)
    edge_bytes = _memory_for_edges(graph, settings, memory)
    with watched(), write_owners(out, settings.num_parts, settings.method, overwrite=overwrite) as (folder, write):
        found = assign_nodes(
            graph, settings, scratch=folder, classes=classes, memory_bytes=edge_bytes, progress=progress
        )
        write(found.owners)
    return found


def _memory_for_edges(
    graph: Graph | ChunkedGraph | AssignSource, settings: PartitionSettings, memory: str | None
) -> int:
    """Bytes that edges may take, of what the process may."""
    source = source_of(graph)
    sizes = sum(source.num_nodes.values()), source.num_edges
    work = allot(memory, WorkerSettings(num_workers=0), (assign_needs(*sizes, settings),))
    return memory_for_edges(*sizes, settings, work.memory_bytes)


def assign_owners(
    graph: Graph | ChunkedGraph | AssignSource,
    settings: PartitionSettings,
    source: OwnersSource | None = None,
    *,
    scratch: Path | None = None,
) -> dict[str, OwnerArray]:
    """Assign every node to a part, or take the parts from elsewhere.

    Args:
        graph: The graph, checked.
        settings: The method and what it needs.
        source: Where ``method="file"`` reads the parts; None for every other method.
        scratch: A folder on a disk with room for the edges.

    Returns:
        Node type to int32[num_nodes], the part of the node with each key.

    Raises:
        SettingsError: ``source`` is missing, or given to another method.
        SchemaError: A file or array in ``source`` has the wrong length or is not integers.
        IdRangeError: ``source`` names a part that is not there.
    """
    if (source is not None) != (settings.method == "file"):
        wanted = "give owners, a folder or a mapping" if source is None else "leave owners out or use method='file'"
        raise SettingsError(f"method is {settings.method!r} and owners are {'not ' * (source is None)}given; {wanted}")
    if source is not None:
        return _given_owners(source_of(graph), settings.num_parts, source)
    return dict(assign_nodes(graph, settings, scratch=scratch).owners)


def assign_nodes(
    graph: Graph | ChunkedGraph | AssignSource,
    settings: PartitionSettings,
    *,
    scratch: Path | None = None,
    classes: NodeClasses | None = None,
    memory_bytes: int | None = None,
    progress: Progress | None = None,
) -> Assignment:
    """Assign every node to a part by any method but ``file``.

    Args:
        graph: As of ``assign_folder``, like the arguments that are not named here.
        settings: How many parts, the method, and what it needs.
        scratch: A folder on a disk with room for the edges.
        classes: Likewise.
        memory_bytes: What edges may take in memory, beside nodes; more of them go through files. None for a share of
            what is free.
        progress: Likewise.

    Raises:
        SettingsError: The method cannot do what is asked.
        SchemaError: ``classes`` are not one integer for each node.
        UnknownNameError: What is to be even names a node type or feature that is not there.
    """
    if classes and settings.method == "hash":
        raise SettingsError(
            "method 'hash' puts a node where its key says, so it evens out no classes of nodes (DGL's balance_ntypes); "
            "choose another method, or leave them out"
        )
    source = source_of(graph)
    if settings.num_parts == 1:
        return Assignment(owners={t: np.zeros(num_nodes, np.int32) for t, num_nodes in source.num_nodes.items()})
    if settings.method in ("random", "hash"):
        assign = random_owners if settings.method == "random" else hash_owners
        owners = {t: assign(t, num_nodes, settings) for t, num_nodes in source.num_nodes.items()}
        is_even = not settings.has_constraints and not classes
        return Assignment(owners=owners) if is_even else _mend(source, settings, classes, owners)
    edge_bytes = int(MEMORY_SHARE * this_machine().free_bytes) if memory_bytes is None else memory_bytes
    return _cut(source, settings, scratch, classes, edge_bytes, progress or no_progress)


def hash_owners(node_type: str, num_nodes: int, settings: PartitionSettings) -> OwnerArray:
    """int32[num_nodes], a hash of each key: type, key, rng_seed, number and weights of parts decide, nothing else."""
    high_bits = _hashes("hash", node_type, num_nodes, settings) >> np.uint64(32)
    if settings.part_weights:
        return _parts_of_shares(high_bits / 2.0**32, settings)
    return (high_bits * np.uint64(settings.num_parts) >> np.uint64(32)).astype(np.int32)


def random_owners(node_type: str, num_nodes: int, settings: PartitionSettings) -> OwnerArray:
    """int32[num_nodes], as even as can be: parts differ by one node of the type at most.

    The nodes are dealt out in the order of a hash of their keys. The part that is dealt to first differs between types,
    so that many small types do not all end up in part 0.
    """
    order = np.argsort(
        _hashes("random", node_type, num_nodes, settings)
    )  # a bijection of the key, so there are no ties
    first = derive_seed("first part", node_type, settings.rng_seed) % settings.num_parts
    owner = np.empty(num_nodes, np.int32)
    if settings.part_weights:
        # The middles of n equal steps: each part's count is its share rounded, up or down.
        turned = (np.arange(num_nodes) + 0.5) / max(1, num_nodes) + first / settings.num_parts
        owner[order] = _parts_of_shares(turned % 1.0, settings)
        return owner
    owner[order] = (np.arange(num_nodes, dtype=np.int64) + first) % settings.num_parts
    return owner


def _parts_of_shares(places: NDArray[np.float64], settings: PartitionSettings) -> OwnerArray:
    """The part in whose stretch of [0, 1) each place lies, where parts have stretches as long as their shares."""
    parts = np.searchsorted(np.cumsum(settings.shares)[:-1], places, side="right")
    return parts.astype(np.int32)


def _hashes(purpose: str, node_type: str, num_nodes: int, settings: PartitionSettings) -> NDArray[np.uint64]:
    hashes = np.empty(num_nodes, np.uint64)
    rng_seed = derive_seed(purpose, node_type, settings.rng_seed)
    hash_keys(np.arange(num_nodes, dtype=np.int64), np.uint64(rng_seed), hashes)
    return hashes


def _mend(
    source: AssignSource, settings: PartitionSettings, classes: NodeClasses | None, owners: dict[str, OwnerArray]
) -> Assignment:
    """Move as few nodes as it takes to give each part its share of what is asked, whatever edges that cuts."""
    degrees = None
    if settings.balance_edges:
        counter = LoadCounter(source, settings)
        for edge_type, edges in source.edges.items():
            for block in edges.blocks():
                counter.add(edge_type, *block)
        degrees = np.concatenate(list(counter.degrees().values()))
    owner = np.concatenate(list(owners.values()))
    constraints = make_constraints(source, settings, None, degrees, classes)
    refine_owners(Adjacency.empty(len(owner)), constraints, owner)
    largest = constraints.largest_over_share(constraints.loads_of(owner), settings.shares)
    return Assignment(owners=_by_type(source, owner), largest=largest)


def _cut(
    source: AssignSource, settings: PartitionSettings, scratch: Path | None, classes: NodeClasses | None,
    memory_bytes: int, progress: Progress,
) -> Assignment:  # fmt: skip
    """Assign the connected nodes by their edges, fill the parts up with the isolated ones, and mend what is uneven."""
    graph, weights, degrees = _survey(source, settings, scratch, memory_bytes, progress)
    with graph:
        constraints = make_constraints(source, settings, weights, degrees, classes)
        del degrees
        owner = np.full(len(weights), -1, np.int32)
        if settings.method in ("ldg", "fennel"):
            stream_owners(graph, constraints, settings, owner, progress)
        else:
            progress(settings.method, 0, 1)
            _cut_with_library(graph, weights, settings, scratch, owner)
            progress(settings.method, 1, 1)
        _fill_up(owner, weights, settings)
        if len(constraints.names) > 1:
            progress("balance", 0, 1)
            refine_owners(graph, constraints, owner)
            progress("balance", 1, 1)

        def count_block(block: tuple[int, int, NDArray[np.uint32]]) -> int:
            first, stop, neighbors = block
            return int(count_cut(first, stop, graph.indptr, neighbors, owner))

        num_cut = sum(in_threads(settings.num_threads, count_block, graph.blocks()))
        cut = num_cut / max(1, graph.num_ends)
    largest = constraints.largest_over_share(constraints.loads_of(owner), settings.shares)
    return Assignment(owners=_by_type(source, owner), cut=cut, largest=largest)


def _survey(
    source: AssignSource, settings: PartitionSettings, scratch: Path | None, memory_bytes: int, progress: Progress
) -> tuple[Adjacency, IntArray, IntArray]:
    """Read all edges once: the undirected graph, and int64[num_nodes] weights and edges of all nodes."""
    counter = LoadCounter(source, settings)
    num_nodes = sum(source.num_nodes.values())
    with AdjacencyBuilder(
        num_nodes, source.num_edges, memory_bytes=memory_bytes, num_threads=settings.num_threads, scratch=scratch
    ) as builder:
        _take_edges(source, settings.num_threads, counter, builder, progress)
        weights, degrees = (np.concatenate(list(of.values())) for of in (counter.weights(), counter.degrees()))
        del counter
        progress("group", 0, 1)
        grouped = builder.finish()
        progress("group", 1, 1)
        return grouped, weights, degrees


def _take_edges(
    source: AssignSource, num_threads: int, counter: LoadCounter, builder: AdjacencyBuilder, progress: Progress
) -> None:
    """Read all edges in several threads; they are counted one block after the other."""
    firsts = type_offsets(source.num_nodes)
    lock = threading.Lock()

    def take(edge_type: EdgeType, read: Callable[[], EdgeBlocks]) -> int:
        num_taken = 0
        for first, src_keys, dst_keys in read():
            with lock:
                counter.add(edge_type, first, src_keys, dst_keys)
                builder.add(src_keys, dst_keys, firsts[edge_type[0]], firsts[edge_type[2]])
            num_taken += len(src_keys)
        return num_taken

    num_read = 0
    progress("edges", 0, source.num_edges)
    for edge_type, edges in source.edges.items():
        for num_taken in in_threads(num_threads, partial(take, edge_type), edges.pieces()):
            num_read += num_taken
            progress("edges", num_read, source.num_edges)


def _cut_with_library(
    graph: Adjacency, weights: IntArray, settings: PartitionSettings, scratch: Path | None, owner: OwnerArray
) -> None:
    """Let KaMinPar or METIS assign the connected nodes, in place, unless there are so few that each can have a part."""
    positions = graph.connected()
    if len(positions) <= settings.num_parts:
        return
    if settings.method == "kaminpar":
        owner[positions] = cut_with_kaminpar(graph, weights[positions], settings, scratch)
    else:
        owner[positions] = cut_with_metis(graph, weights[positions], settings)


def _by_type(source: AssignSource, owner: OwnerArray) -> dict[str, OwnerArray]:
    stops = np.cumsum(list(source.num_nodes.values()))
    return dict(zip(source.num_nodes, np.split(owner, stops[:-1]), strict=True))


def _fill_up(owner: OwnerArray, weights: IntArray, settings: PartitionSettings) -> None:
    """Give every node without a part (-1) to one, in place: as many to each part as the imbalance allows.

    Filling the lightest parts first would even out the weights a little more, and give nearly all nodes to one part.
    """
    free = np.flatnonzero(owner < 0)
    if not len(free):
        return
    order = np.empty(len(free), np.uint64)
    hash_keys(free, np.uint64(derive_seed("isolated", settings.rng_seed)), order)
    free = free[np.argsort(order)]
    is_owned = owner >= 0
    loads = np.bincount(owner[is_owned], weights=weights[is_owned], minlength=settings.num_parts)
    free_weights = weights[free].astype(np.float64)
    part_weights = np.array(settings.part_weights or (1.0,) * settings.num_parts)
    limits = (1 + settings.imbalance) * float(weights.sum()) * part_weights / part_weights.sum()
    shares = even_shares(np.maximum(limits - loads, 0.0), float(free_weights.sum()), part_weights)
    middles = np.cumsum(free_weights) - free_weights / 2
    parts = np.searchsorted(np.cumsum(shares), middles, side="right")
    owner[free] = np.minimum(parts, settings.num_parts - 1)


def even_shares(
    room: NDArray[np.float64], amount: float, part_weights: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """float64[num_parts], shares of an amount as the parts' weights are, but none larger than the part's room.

    What does not fit into one part is shared out among the others. The amount is at most ``room.sum()``.
    """
    wanted = np.ones(len(room)) if part_weights is None else part_weights
    order = np.argsort(room / wanted, kind="stable")
    filled = np.cumsum(room[order]) - room[order]  # taken by the first k parts, if they are filled
    others = np.cumsum(wanted[order][::-1])[::-1]
    # The level grows until it fills one part, then the next: ``taken[k]`` is the amount when it fills the k-th.
    taken = filled + room[order] / wanted[order] * others
    num_full = min(int(np.searchsorted(taken, amount)), len(room) - 1)
    level = (amount - filled[num_full]) / others[num_full]
    return cast(NDArray[np.float64], np.minimum(room, level * wanted))


def owners_by_type(given: OwnersSource, node_types: Collection[str]) -> Path | Mapping[str, ArrayLike]:
    """A folder, or the parts of nodes by node type: a plain array is that of the only node type.

    Raises:
        SettingsError: It is neither, or a plain array and the graph has several node types.
    """
    if isinstance(given, Mapping):
        return given
    if isinstance(given, str | os.PathLike):
        return local_path(given)
    (first, *others) = node_types or ("node",)
    if others or not hasattr(given, "__len__"):
        raise SettingsError(
            f"owners is a {type(given).__name__}; give a folder, or an array by node type: {{{first!r}: owners}}"
        )
    return {first: given}


def count_parts(given: OwnersSource, num_nodes: Mapping[str, int]) -> int:
    """How many parts a folder says, or else a folder or arrays name; whether each fits its nodes is checked later."""
    found = owners_by_type(given, num_nodes)
    if isinstance(found, Path):
        return find_num_parts(found, num_nodes, None)
    arrays = [np.asarray(of_type) for of_type in found.values()]
    return 1 + max((int(a.max(initial=0)) for a in arrays if a.dtype.kind in "iu"), default=0)


def _given_owners(source: AssignSource, num_parts: int, given: OwnersSource) -> dict[str, OwnerArray]:
    found = owners_by_type(given, source.num_nodes)
    if isinstance(found, Path):
        return read_owners(found, source.num_nodes, num_parts)[0]
    unknown = [t for t in found if t not in source.num_nodes]
    if unknown:
        raise UnknownNameError(f"owners name node type {unknown[0]!r}; {known_names(unknown[0], source.num_nodes)}")
    missing = [t for t in source.num_nodes if t not in found]
    if missing:
        raise SchemaError(f"owners have no node type {missing[0]!r}; give the part of each of its nodes")
    return {
        t: check_owners(f"owners[{t!r}]", np.asarray(found[t]), num_nodes, num_parts)
        for t, num_nodes in source.num_nodes.items()
    }
