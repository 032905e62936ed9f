"""Which part owns each node?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hopstream.arrays import Array, IntArray, open_array
from hopstream.errors import FormatError, IdRangeError, SchemaError, SettingsError, UnknownNameError
from hopstream.graph.graph import Graph
from hopstream.kernels.hashing import derive_seed, hash_keys
from hopstream.partition.flatten import flatten_graph
from hopstream.partition.libraries import cut_with_kaminpar, cut_with_metis
from hopstream.partition.paths import path_name
from hopstream.partition.settings import PartitionSettings
from hopstream.partition.weights import node_weights

OwnersSource = str | Path | Mapping[str, ArrayLike]
"""A folder with one file per node type, or node type to the part of each node."""

OwnerArray = NDArray[np.int32]


def assign_owners(
    graph: Graph, settings: PartitionSettings, source: OwnersSource | None = None, *, scratch: Path | None = None
) -> dict[str, OwnerArray]:
    """Assign every node to a part.

    Args:
        graph: The graph, checked.
        settings: The method and what it needs.
        source: Where ``method="file"`` reads the parts; None for every other method.
        scratch: A folder on a disk with room for the graph, for KaMinPar.

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
        return _given_owners(graph, settings.num_parts, source)
    if settings.num_parts == 1:
        return {t: np.zeros(table.num_nodes, np.int32) for t, table in graph.nodes.items()}
    if settings.method in ("random", "hash"):
        assign = random_owners if settings.method == "random" else hash_owners
        return {t: assign(t, table.num_nodes, settings) for t, table in graph.nodes.items()}
    return _cut(graph, settings, scratch)


def hash_owners(node_type: str, num_nodes: int, settings: PartitionSettings) -> OwnerArray:
    """int32[num_nodes], a hash of each key: it depends on type, key, rng_seed and number of parts, and nothing else."""
    high_bits = _hashes("hash", node_type, num_nodes, settings) >> np.uint64(32)
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
    owner[order] = (np.arange(num_nodes, dtype=np.int64) + first) % settings.num_parts
    return owner


def _hashes(purpose: str, node_type: str, num_nodes: int, settings: PartitionSettings) -> NDArray[np.uint64]:
    hashes = np.empty(num_nodes, np.uint64)
    rng_seed = derive_seed(purpose, node_type, settings.rng_seed)
    hash_keys(np.arange(num_nodes, dtype=np.int64), np.uint64(rng_seed), hashes)
    return hashes


def _cut(graph: Graph, settings: PartitionSettings, scratch: Path | None) -> dict[str, OwnerArray]:
    """Cut the connected nodes with a library, then fill the parts up with the isolated ones."""
    weights = np.concatenate(list(node_weights(graph, settings).values()))
    flat = flatten_graph(graph)
    owner = np.full(len(weights), -1, np.int32)
    if len(flat.positions) > settings.num_parts:
        connected_weights = weights[flat.positions]
        if settings.method == "kaminpar":
            owner[flat.positions] = cut_with_kaminpar(flat, connected_weights, settings, scratch)
        else:
            owner[flat.positions] = cut_with_metis(flat, connected_weights, settings)
    del flat
    _fill_up(owner, weights, settings)
    stops = np.cumsum([table.num_nodes for table in graph.nodes.values()])
    return dict(zip(graph.nodes, np.split(owner, stops[:-1]), strict=True))


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
    limit = (1 + settings.imbalance) * float(weights.sum()) / settings.num_parts
    shares = even_shares(np.maximum(limit - loads, 0.0), float(free_weights.sum()))
    middles = np.cumsum(free_weights) - free_weights / 2
    parts = np.searchsorted(np.cumsum(shares), middles, side="right")
    owner[free] = np.minimum(parts, settings.num_parts - 1)


def even_shares(room: NDArray[np.float64], amount: float) -> NDArray[np.float64]:
    """float64[num_parts], equal shares of an amount, but none larger than the part's room.

    What does not fit into one part is shared out evenly among the others. The amount is at most ``room.sum()``.
    """
    ascending = np.sort(room)
    filled = np.cumsum(ascending) - ascending  # taken by the k smallest, if they are filled
    others = np.arange(len(room), 0, -1)
    # The share grows until it fills the smallest part, then the next: ``taken[k]`` is the amount when it fills part k.
    taken = filled + ascending * others
    num_full = min(int(np.searchsorted(taken, amount)), len(room) - 1)
    share = (amount - filled[num_full]) / others[num_full]
    return cast(NDArray[np.float64], np.minimum(room, share))


def _given_owners(graph: Graph, num_parts: int, source: OwnersSource) -> dict[str, OwnerArray]:
    given: dict[str, tuple[str, ArrayLike]]
    if isinstance(source, Mapping):
        unknown = [t for t in source if t not in graph.nodes]
        if unknown:
            raise UnknownNameError(f"owners name node type {unknown[0]!r}; known: {list(graph.nodes)}")
        given = {t: (f"owners[{t!r}]", source[t]) for t in graph.nodes if t in source}
    else:
        given = {t: _read_owners(Path(source), t) for t in graph.nodes}
    missing = [t for t in graph.nodes if t not in given]
    if missing:
        raise SchemaError(f"owners have no node type {missing[0]!r}; give the part of each of its nodes")
    return {
        t: check_owners(where, np.asarray(value), graph.nodes[t].num_nodes, num_parts)
        for t, (where, value) in given.items()
    }


def _read_owners(folder: Path, node_type: str) -> tuple[str, ArrayLike]:
    """Where the parts of a node type were read, and the parts."""
    binary, text = (folder / f"{path_name(node_type)}{suffix}" for suffix in (".npy", ".txt"))
    if binary.exists():
        return str(binary), open_array(binary)
    try:
        if text.stat().st_size == 0:
            return str(text), np.empty(0, np.int32)
        return str(text), np.loadtxt(text, np.int64, ndmin=1, comments=None)
    except FileNotFoundError as error:
        raise FormatError(f"{folder} has neither {binary.name} nor {text.name}; write the part of each node") from error
    except ValueError as error:
        raise FormatError(f"{text} must have one part number per line ({error})") from error


def check_owners(where: str, owner: Array, num_nodes: int, num_parts: int) -> OwnerArray:
    """The parts as int32[num_nodes], checked.

    Raises:
        SchemaError: They are not one integer per node.
        IdRangeError: One is not a part.
    """
    if owner.shape != (num_nodes,) or not (np.issubdtype(owner.dtype, np.integer) or not num_nodes):
        raise SchemaError(
            f"{where} is {owner.dtype}{list(owner.shape)}; it must be one integer for each of {num_nodes} nodes"
        )
    outside = np.flatnonzero((owner < 0) | (owner >= num_parts))
    if len(outside):
        row = int(outside[0])
        raise IdRangeError(f"{where}[{row}] is {owner[row]}; parts are numbered 0..{num_parts - 1}")
    return owner.astype(np.int32)
