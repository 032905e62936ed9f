"""Splits seeds between the ranks of a training job, once for all epochs.

A loader with ``rank`` and ``world_size`` already splits every epoch evenly. These functions are for jobs that fix each
rank's seeds: evenly, or so that a rank gets the seeds whose part is on its own machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import IntArray
from hopstream.checks import Settings, check_choice
from hopstream.errors import SettingsError
from hopstream.kernels.hashing import derive_seed, permute_range
from hopstream.load.link_inputs import LinksLike, read_link_inputs
from hopstream.load.load_settings import MAX_RNG_SEED, read_rank
from hopstream.sample.seeds import SeedsLike, read_seeds
from hopstream.store import Source, open_store
from hopstream.store.contract import Links, Store

if TYPE_CHECKING:
    from hopstream.store.settings import StoreSettings

SplitBy = Literal["even", "locality"]
"""``even``: random shares; ``locality``: a rank prefers seeds of its own parts."""
RankRemainder = Literal["pad", "drop", "uneven"]
"""Way to give shares equal sizes: ``pad`` repeats seeds, ``drop`` leaves some out; with ``uneven`` sizes differ by at
most 1."""


def rank_nodes(  # noqa: PLR0913 - one call of a training script, all of it by name
    source: Source, seeds: SeedsLike = None, *, rank: int, world_size: int, by: SplitBy = "even",
    parts_of_ranks: Sequence[Sequence[int]] | None = None, remainder: RankRemainder = "pad", rng_seed: int = 0,
    store_settings: StoreSettings | None = None,
) -> IntArray:  # fmt: skip
    """Return the seed nodes of one rank. All ranks compute the same shares.

    Args:
        source: A dataset folder, a ``cluster.json``, addresses of servers, an open store, or a graph in memory.
        seeds: Nodes to split, in the forms of ``NeighborLoader``'s seeds.
        rank: Rank of this process, in ``[0, world_size)``.
        world_size: Number of processes that share the seeds.
        by: ``even`` draws shares at random; they do not depend on the parts. ``locality`` gives a rank the seeds that
            its parts own, and moves only as many as equal shares need.
        parts_of_ranks: For ``locality``, the parts on each rank's machine; every part belongs to at least one rank.
            None: each rank gets a range of parts, rank 0 the first.
        remainder: How shares get equal sizes, so that synchronised ranks take equally many steps: ``pad`` repeats seeds
            of the share, ``drop`` leaves some out, ``uneven`` lets sizes differ by 1.
        rng_seed: Seed of the random shares.
        store_settings: Deadline, token and certificates for servers.

    Returns:
        int64[n], keys, in the order of ``seeds``, then the padding.

    Raises:
        SettingsError: An option is invalid, or there are fewer seeds than ranks.
        UnknownNameError: The graph has no such node type or split.
        IdRangeError: A seed is outside 0..n-1 of its node type.
    """
    sharing = _Sharing(rank, world_size, by, parts_of_ranks, remainder, rng_seed)
    with _opened(source, store_settings) as store:
        found = read_seeds(store, seeds)
        keys = found.keys_at(np.arange(found.num_seeds, dtype=np.int64))
        return keys[sharing.positions(store, len(keys), lambda: (found.node_type, keys))]


def rank_links(  # noqa: PLR0913 - one call of a training script, all of it by name
    source: Source, edge_label_index: LinksLike = None, *, rank: int, world_size: int, by: SplitBy = "even",
    parts_of_ranks: Sequence[Sequence[int]] | None = None, remainder: RankRemainder = "pad", rng_seed: int = 0,
    store_settings: StoreSettings | None = None,
) -> Links:  # fmt: skip
    """Return the supervision edges of one rank; see ``rank_nodes``.

    Args:
        source: A dataset folder, a ``cluster.json``, addresses of servers, an open store, or a graph in memory.
        edge_label_index: Links to split, in the forms of ``LinkNeighborLoader``, such as ``(edge type, split)``.
        rank: Rank of this process, in ``[0, world_size)``.
        world_size: Number of processes that share the edges.
        by: As in ``rank_nodes``; ``locality`` prefers edges whose destinations a rank's parts own.
        parts_of_ranks: As in ``rank_nodes``.
        remainder: As in ``rank_nodes``.
        rng_seed: As in ``rank_nodes``.
        store_settings: As in ``rank_nodes``.

    Returns:
        The ends, with times if the edges have them, in the order of edge keys or of the given links, then the padding.

    Raises:
        SettingsError: An option is invalid, or there are fewer edges than ranks.
        UnknownNameError: The dataset has no such edge type or split, or keeps no links of it.
        IdRangeError: A key is outside 0..n-1 of its node type.
    """
    sharing = _Sharing(rank, world_size, by, parts_of_ranks, remainder, rng_seed)
    with _opened(source, store_settings) as store:
        found = read_link_inputs(store, edge_label_index, None, None)

        def destinations() -> tuple[str, IntArray]:
            return found.edge_type[2], found.links_at(store, np.arange(found.num_links, dtype=np.int64)).dst_keys

        return found.links_at(store, sharing.positions(store, found.num_links, destinations))


@contextmanager
def _opened(source: Source, settings: StoreSettings | None) -> Iterator[Store]:
    """Open the store of a source, and close it at the end if it was opened here."""
    store = open_store(source, settings)
    try:
        yield store
    finally:
        if store is not source:
            store.close()


@dataclass(frozen=True)
class _Sharing(Settings):
    """Settings of the split of seeds between ranks; see ``rank_nodes``."""

    rank: int
    world_size: int
    by: SplitBy
    parts_of_ranks: Sequence[Sequence[int]] | None
    remainder: RankRemainder
    rng_seed: int

    def __post_init__(self) -> None:
        """Check every option."""
        self._read_integer("rng_seed", 0, MAX_RNG_SEED)
        rank, world_size = read_rank(self.rank, self.world_size)
        if rank >= world_size:
            raise SettingsError(f"rank is {rank} of world_size {world_size}; ranks are 0..world_size - 1")
        self._keep("rank", rank)
        self._keep("world_size", world_size)
        check_choice("by", self.by, get_args(SplitBy))
        check_choice("remainder", self.remainder, get_args(RankRemainder))

    def positions(self, store: Store, num_seeds: int, nodes: Callable[[], tuple[str, IntArray]]) -> IntArray:
        """Return int64[n], the positions of this rank's seeds; ``nodes`` returns type and keys for locality."""
        parts = None
        if self.by == "locality":
            node_type, keys = nodes()
            parts = store.book.parts_of(node_type, store.lookup(node_type, keys))
        is_near = _preferred(store, parts, self.world_size, self.parts_of_ranks)
        return _share(is_near, num_seeds, (self.rank, self.world_size), self.remainder, self.rng_seed)


def _preferred(
    store: Store, parts: IntArray | None, world_size: int, parts_of_ranks: Sequence[Sequence[int]] | None
) -> NDArray[np.bool_] | None:
    """Return bool[world_size, n], whether a rank's parts own a seed; None if ``parts`` is None."""
    if parts_of_ranks is not None:
        _check_parts(parts_of_ranks, store.book.num_parts, world_size)
    if parts is None:
        return None
    is_near = np.zeros((world_size, store.book.num_parts), np.bool_)
    for rank in range(world_size):
        is_near[rank, _parts_of_rank(rank, world_size, store.book.num_parts, parts_of_ranks)] = True
    return cast("NDArray[np.bool_]", is_near[:, parts])


def _parts_of_rank(
    rank: int, world_size: int, num_parts: int, parts_of_ranks: Sequence[Sequence[int]] | None
) -> list[int]:
    if parts_of_ranks is not None:
        return list(parts_of_ranks[rank])
    if world_size >= num_parts:
        return [rank * num_parts // world_size]
    return list(range(rank * num_parts // world_size, (rank + 1) * num_parts // world_size))


def _check_parts(parts_of_ranks: Sequence[Sequence[int]], num_parts: int, world_size: int) -> None:
    if len(parts_of_ranks) != world_size:
        raise SettingsError(f"parts_of_ranks has {len(parts_of_ranks)} entries; world_size is {world_size}")
    named = {part for parts in parts_of_ranks for part in parts}
    if named != set(range(num_parts)):
        missing, unknown = sorted(set(range(num_parts)) - named), sorted(named - set(range(num_parts)))
        raise SettingsError(
            f"parts_of_ranks names unknown parts {unknown} and omits parts {missing}; assign each part "
            f"0..{num_parts - 1} to at least one rank"
        )


def _share(
    is_near: NDArray[np.bool_] | None, num_seeds: int, place: tuple[int, int], remainder: RankRemainder, rng_seed: int
) -> IntArray:
    """Return int64[n], the positions of one rank's seeds, ascending, then the padding."""
    rank, world_size = place
    if num_seeds < world_size:
        raise SettingsError(f"{num_seeds} seeds cannot be shared by {world_size} ranks; use fewer ranks")
    order = np.empty(num_seeds, np.int64)
    permute_range(0, num_seeds, np.uint64(derive_seed("ranks", rng_seed)), order)
    if remainder == "drop":
        order = order[: num_seeds // world_size * world_size]
    bounds = np.arange(world_size + 1) * len(order) // world_size
    if is_near is None:
        own = np.sort(order[bounds[rank] : bounds[rank + 1]])
    else:
        own = np.sort(order[_assign_near(is_near[:, order], np.diff(bounds)) == rank])
    size = -(-num_seeds // world_size) if remainder == "pad" else len(own)
    return np.concatenate([own, own[: size - len(own)]])


def _assign_near(is_near: NDArray[np.bool_], sizes: IntArray) -> IntArray:
    """Assign seeds to ranks: to a near rank if it has room, else to any rank with room.

    Seeds with fewer near ranks are assigned first, so that no rank fills up with seeds that another rank could take.

    Args:
        is_near: bool[world_size, n], whether a rank's parts own a seed.
        sizes: int64[world_size], number of seeds of each rank.

    Returns:
        int64[n], the rank of each seed.
    """
    ranks = np.full(is_near.shape[1], -1, np.int64)
    room = sizes.copy()
    num_near = is_near.sum(axis=0)
    for wanted in np.unique(num_near[num_near > 0]):
        for rank in range(len(room)):
            taken = np.flatnonzero(is_near[rank] & (num_near == wanted) & (ranks < 0))[: room[rank]]
            ranks[taken] = rank
            room[rank] -= len(taken)
    ranks[ranks < 0] = np.repeat(np.arange(len(room)), room)
    return ranks
