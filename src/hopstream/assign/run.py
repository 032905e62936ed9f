"""Assigns nodes to parts."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Unpack, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hopstream.arrays import IntArray
from hopstream.assign.balance import NodeClasses, make_constraints, refine_owners
from hopstream.assign.flatten import AdjacencyBuilder, SymmetricGraph, in_threads, type_offsets
from hopstream.assign.libraries import assign_needs, cut_with_kaminpar, cut_with_metis, memory_for_edges
from hopstream.assign.owners import (
    OwnerArray,
    check_owners,
    check_owners_target,
    find_num_parts,
    read_owners,
    write_owners,
)
from hopstream.assign.source import AssignSource, EdgeBlocks, folder_of, source_of
from hopstream.assign.stream import stream_owners
from hopstream.assign.weights import LoadCounter
from hopstream.checks import known_names
from hopstream.dataset.settings import PartitionOptions, PartitionSettings, Progress
from hopstream.engine.machine import this_machine, watched
from hopstream.engine.settings import MEMORY_SHARE, WorkerSettings, allot, no_progress
from hopstream.errors import SchemaError, SettingsError, UnknownNameError
from hopstream.graph.graph import Graph
from hopstream.ingest.source_paths import check_apart
from hopstream.kernels.hashing import derive_seed, hash_keys
from hopstream.kernels.placement import count_cut
from hopstream.schema import EdgeType
from hopstream.uris import local_path

if TYPE_CHECKING:
    from hopstream.ingest.chunked import ChunkedGraph

BLOCK_NODES = 1 << 18
SORTED_BITS = 3
"""Nodes whose hashes share this many leading bits are sorted together."""

OwnersSource = str | Path | ArrayLike | Mapping[str, ArrayLike]
"""A folder with one file per node type, or node type to the part of each node."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Assignment:
    """The parts of all nodes.

    Attributes:
        owners: Node type to int32[num_nodes], the part of the node with each key.
        cut: Share of connected pairs of nodes whose ends are in two parts; several edges between two nodes count as one
            pair. None for methods that do not read edges.
        largest: Name of each balanced load to the largest load of a part, as a multiple of the part's share.
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
    """Assign every node to a part, and write the parts to a folder that others read as ``owners``.

    The number of parts has no default: give ``num_parts`` or ``settings``.

    Args:
        graph: A graph in memory, a chunked folder, or a dataset (``open_dataset_source``).
        out: The folder to write.
        settings: Number of parts, the method, and the method's options.
        classes: Node type to the class of each node: an array, a file, a feature, or None for a single class. Each part
            gets its share of every class, in addition to ``settings.balance_ntypes``.
        memory: Most memory of the process, such as ``4GiB``, not counting a graph in memory; None for a share of the
            free memory. Edges get what nodes leave. If the edges need more, they go through files in the hidden folder
            beside ``out``.
        overwrite: Replace an existing folder of owners.
        progress: Called as ``progress(stage, done, total)``. The stages are ``edges`` (reading), ``group`` (grouping),
            the name of the method (assigning) and ``balance`` (refining).
        **options: Fields of ``PartitionSettings``; they override ``settings``.

    Raises:
        SettingsError: The number of parts is missing, ``out`` cannot be written or lies inside the source, the memory
            is too small, or the method does not support an option.
        SchemaError: ``classes`` are not one integer for each node.
    """
    out = local_path(out)
    if settings is None and "num_parts" not in options:
        raise SettingsError("num_parts is missing; give the number of parts")
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
    """Return the bytes for edges, of the memory of the process."""
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
    """Assign every node to a part, or read the parts from a source.

    Args:
        graph: The graph, checked.
        settings: The method and its options.
        source: Where ``method="file"`` reads the parts; None for every other method.
        scratch: Folder on a disk with room for the edges.

    Returns:
        Node type to int32[num_nodes], the part of the node with each key.

    Raises:
        SettingsError: ``source`` is missing, or given to another method.
        SchemaError: A file or array in ``source`` has the wrong length or is not integers.
        IdRangeError: ``source`` names a part that does not exist.
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
        graph: As of ``assign_folder``.
        settings: Number of parts, the method, and its options.
        scratch: Folder on a disk with room for the edges.
        classes: As of ``assign_folder``.
        memory_bytes: Most memory for edges, in addition to nodes. More edges go through files. None for a share of the
            free memory.
        progress: As of ``assign_folder``.

    Raises:
        SettingsError: The method does not support an option.
        SchemaError: ``classes`` are not one integer for each node.
        UnknownNameError: A balanced node type or feature does not exist.
    """
    if classes and settings.method == "hash":
        raise SettingsError(
            "method 'hash' assigns nodes by their keys, so it cannot balance classes of nodes (DGL's balance_ntypes); "
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
    """Return int32[num_nodes], the part of each node by a hash of its key.

    Only type, key, rng_seed and the number and weights of parts decide.
    """
    owner, rng_seed = np.empty(num_nodes, np.int32), derive_seed("hash", node_type, settings.rng_seed)
    for start in range(0, num_nodes, BLOCK_NODES):
        stop = min(start + BLOCK_NODES, num_nodes)
        high_bits = _hashes(np.arange(start, stop), rng_seed) >> np.uint64(32)
        if settings.part_weights:
            owner[start:stop] = _parts_of_shares(high_bits / 2.0**32, settings)
        else:
            owner[start:stop] = high_bits * np.uint64(settings.num_parts) >> np.uint64(32)
    return owner


def random_owners(node_type: str, num_nodes: int, settings: PartitionSettings) -> OwnerArray:
    """Return int32[num_nodes], random parts whose numbers of nodes differ by at most one.

    With ``part_weights`` each number is the part's share, rounded up or down. Nodes get parts in turn, in the order of
    a hash of their keys. The first part differs between types, so that many small types do not all end up in part 0.
    """
    first = derive_seed("first part", node_type, settings.rng_seed) % settings.num_parts
    owner, num_dealt = np.empty(num_nodes, np.int32), 0
    for keys in _shuffled(num_nodes, derive_seed("random", node_type, settings.rng_seed)):
        places = np.arange(num_dealt, num_dealt + len(keys))
        num_dealt += len(keys)
        if settings.part_weights:
            # The middles of n equal steps: each part's count is its share, rounded up or down.
            turned = (places + 0.5) / num_nodes + first / settings.num_parts
            owner[keys] = _parts_of_shares(turned % 1.0, settings)
        else:
            owner[keys] = (places + first) % settings.num_parts
    return owner


def _parts_of_shares(places: NDArray[np.float64], settings: PartitionSettings) -> OwnerArray:
    """Return the part whose range of [0, 1) holds each place; a range is as long as the part's share."""
    parts = np.searchsorted(np.cumsum(settings.shares)[:-1], places, side="right")
    return parts.astype(np.int32)


def _shuffled(num_nodes: int, rng_seed: int, owner: OwnerArray | None = None) -> Iterator[IntArray]:
    """Yield blocks of all keys, or of the keys with owner -1, in the order of their hashes.

    [Cost] Memory: 4 bytes per key. An eighth of the keys is sorted at a time, so each key is hashed eight times.
    """
    bits = SORTED_BITS if num_nodes > BLOCK_NODES else 0
    for number in range(1 << bits):
        chosen_keys, chosen_hashes = [np.empty(0, np.int64)], [np.empty(0, np.uint64)]
        for start in range(0, num_nodes, BLOCK_NODES):
            keys = np.arange(start, min(start + BLOCK_NODES, num_nodes))
            if owner is not None:
                keys = keys[owner[start : start + BLOCK_NODES] < 0]
            hashes = _hashes(keys, rng_seed)
            if bits:
                is_chosen = hashes >> np.uint64(64 - bits) == number
                keys, hashes = keys[is_chosen], hashes[is_chosen]
            chosen_keys.append(keys)
            chosen_hashes.append(hashes)
        order = np.argsort(np.concatenate(chosen_hashes))  # hashes are a bijection of the key: no ties
        of_turn = np.concatenate(chosen_keys)
        del chosen_keys, chosen_hashes
        for start in range(0, len(order), BLOCK_NODES):
            yield of_turn[order[start : start + BLOCK_NODES]]


def _hashes(keys: IntArray, rng_seed: int) -> NDArray[np.uint64]:
    hashes = np.empty(len(keys), np.uint64)
    hash_keys(keys, np.uint64(rng_seed), hashes)
    return hashes


def _mend(
    source: AssignSource, settings: PartitionSettings, classes: NodeClasses | None, owners: dict[str, OwnerArray]
) -> Assignment:
    """Move as few nodes as needed to balance the parts, ignoring edge cuts.

    Empties ``owners`` to free its memory.
    """
    degrees = None
    if settings.balance_edges:
        counter = LoadCounter(source, replace(settings, balance="edges"))  # counts degrees alone
        for edge_type, edges in source.edges.items():
            for block in edges.blocks():
                counter.add(edge_type, *block)
        degrees = counter.degrees()
        del counter
    owner = next(iter(owners.values())) if len(owners) == 1 else np.concatenate(list(owners.values()))
    owners.clear()
    constraints = make_constraints(source, settings, None, degrees, classes)
    refine_owners(SymmetricGraph.empty(len(owner)), constraints, owner)
    largest = constraints.largest_over_share(constraints.loads_of(owner), settings.shares)
    return Assignment(owners=_by_type(source, owner), largest=largest)


def _cut(
    source: AssignSource, settings: PartitionSettings, scratch: Path | None, classes: NodeClasses | None,
    memory_bytes: int, progress: Progress,
) -> Assignment:  # fmt: skip
    """Assign the connected nodes by their edges, then the isolated ones, then balance the other loads."""
    graph, weights, degrees = _survey(source, settings, scratch, memory_bytes, progress)
    with graph:
        constraints = make_constraints(source, settings, weights, degrees, classes)
        weights = constraints.amounts[0]
        del degrees
        owner = np.full(len(weights), -1, np.int32)
        if settings.method in ("ldg", "fennel"):
            stream_owners(graph, constraints, settings, owner, progress)
        else:
            progress(settings.method, 0, 1)
            _cut_with_library(graph, weights, settings, scratch, owner)
            progress(settings.method, 1, 1)
        _fill_up(owner, weights, settings, constraints.loads_of(owner)[0])
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
) -> tuple[SymmetricGraph, IntArray, IntArray | None]:
    """Read all edges once; return the undirected graph, and weights and degrees as int64[num_nodes].

    The degrees are None if the settings do not need them.
    """
    counter = LoadCounter(source, settings)
    num_nodes = sum(source.num_nodes.values())
    with AdjacencyBuilder(
        num_nodes, source.num_edges, memory_bytes=memory_bytes, num_threads=settings.num_threads, scratch=scratch
    ) as builder:
        _take_edges(source, settings.num_threads, counter, builder, progress)
        weights, degrees = counter.weights(), counter.degrees()
        del counter
        progress("group", 0, 1)
        grouped = builder.finish()
        progress("group", 1, 1)
        return grouped, weights, degrees


def _take_edges(
    source: AssignSource, num_threads: int, counter: LoadCounter, builder: AdjacencyBuilder, progress: Progress
) -> None:
    """Read all edges in several threads. A lock lets one thread at a time count a block."""
    firsts = type_offsets(source.num_nodes)
    lock = threading.Lock()

    def take(edge_type: EdgeType, read: Callable[[], EdgeBlocks]) -> int:
        num_taken = 0
        for place, src_keys, dst_keys in read():
            with lock:
                counter.add(edge_type, place, src_keys, dst_keys)
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
    graph: SymmetricGraph, weights: IntArray, settings: PartitionSettings, scratch: Path | None, owner: OwnerArray
) -> None:
    """Let KaMinPar or METIS assign the connected nodes, in place.

    Leaves them unassigned if there are no more of them than parts: ``_fill_up`` assigns them.
    """
    positions = graph.connected()
    if len(positions) <= settings.num_parts:
        return
    of_connected = weights if len(positions) == len(weights) else weights[positions]
    del positions  # frees memory for the library
    if settings.method == "kaminpar":
        parts = cut_with_kaminpar(graph, of_connected, settings, scratch)
    else:
        parts = cut_with_metis(graph, of_connected, settings)
    owner[graph.connected()] = parts


def _by_type(source: AssignSource, owner: OwnerArray) -> dict[str, OwnerArray]:
    stops = np.cumsum(list(source.num_nodes.values()))
    return dict(zip(source.num_nodes, np.split(owner, stops[:-1]), strict=True))


def _fill_up(owner: OwnerArray, weights: IntArray, settings: PartitionSettings, loads: IntArray) -> None:
    """Give a part to every node that has none (-1), in place, by the room that the imbalance leaves.

    ``loads`` are int64[num_parts], the weight that each part has.

    Filling the lightest parts first would balance the weights a little better, but would give nearly all nodes to one
    part.
    """
    total = int(weights.sum())
    free = total - int(loads.sum())  # a node weighs at least 1
    if not free:
        return
    part_weights = np.array(settings.part_weights or (1.0,) * settings.num_parts)
    limits = (1 + settings.imbalance) * float(total) * part_weights / part_weights.sum()
    ends = np.cumsum(even_shares(np.maximum(limits - loads, 0.0), float(free), part_weights))
    given = 0
    for nodes in _shuffled(len(owner), derive_seed("isolated", settings.rng_seed), owner):
        of_nodes = weights[nodes]
        middles = given + np.cumsum(of_nodes) - of_nodes / 2
        given += int(of_nodes.sum())
        owner[nodes] = np.minimum(np.searchsorted(ends, middles, side="right"), settings.num_parts - 1)


def even_shares(
    room: NDArray[np.float64], amount: float, part_weights: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """Share an amount by ``part_weights``, no share above the part's room; return float64[num_parts].

    What does not fit into one part is shared among the others. The amount must not exceed ``room.sum()``.
    """
    wanted = np.ones(len(room)) if part_weights is None else part_weights
    order = np.argsort(room / wanted, kind="stable")
    filled = np.cumsum(room[order]) - room[order]  # room of the parts before the k-th
    others = np.cumsum(wanted[order][::-1])[::-1]
    # The level grows until it fills one part, then the next. ``taken[k]`` is the amount at which the k-th part is full.
    taken = filled + room[order] / wanted[order] * others
    num_full = min(int(np.searchsorted(taken, amount)), len(room) - 1)
    level = (amount - filled[num_full]) / others[num_full]
    return cast(NDArray[np.float64], np.minimum(room, level * wanted))


def owners_by_type(given: OwnersSource, node_types: Collection[str]) -> Path | Mapping[str, ArrayLike]:
    """Return a folder, or the parts of nodes by node type; a plain array belongs to the only node type.

    Raises:
        SettingsError: ``given`` is neither, or a plain array for a graph with several node types.
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
    """Return the number of parts that a folder states or that the values imply; values are not checked."""
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
