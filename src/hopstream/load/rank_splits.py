"""Splits seeds between the ranks of a training job that do not share one loader's epochs.

A loader with ``rank`` and ``world_size`` already shares every epoch evenly. These functions are for jobs that fix each
rank's seeds once: evenly, or so that a rank gets the seeds whose part lies on its own machine.
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
"""``even``: shares drawn at random; ``locality``: a rank prefers seeds of its own parts."""
RankRemainder = Literal["pad", "drop", "uneven"]
"""What makes shares equal: some seeds twice, some not at all, or nothing: shares then differ by one at most."""


def rank_nodes(  # noqa: PLR0913 - one call of a training script, all of it by name
    source: Source, seeds: SeedsLike = None, *, rank: int, world_size: int, by: SplitBy = "even",
    parts_of_ranks: Sequence[Sequence[int]] | None = None, remainder: RankRemainder = "pad", rng_seed: int = 0,
    store_settings: StoreSettings | None = None,
) -> IntArray:  # fmt: skip
    """The seed nodes of one rank. Every rank computes the same shares, whatever the number of parts.

    Args:
        source: A dataset folder, a ``cluster.json``, addresses of servers, or an open store.
        seeds: Nodes to share, as ``NeighborLoader`` takes them.
        rank: This process, in ``[0, world_size)``.
        world_size: How many share the seeds.
        by: ``even`` draws shares at random. ``locality`` gives a rank the seeds that its parts own, and moves only as
            many as it takes to make shares equal. Shares by locality depend on how the graph was cut.
        parts_of_ranks: For ``locality``, the parts on each rank's machine; every part on one rank at least. Without it,
            parts are dealt out in stretches: rank 0 has the first ones.
        remainder: How shares come to equal size, so that ranks that synchronise take equally many steps: ``pad``
            repeats seeds of the share, ``drop`` leaves some out, ``uneven`` lets shares differ by one.
        rng_seed: Of the shares.
        store_settings: Deadline, token and certificates, where servers are asked.

    Returns:
        int64[n], keys, ascending but for the padding at the end.

    Raises:
        SettingsError: An option is of the wrong kind, or there are fewer seeds than ranks.
        UnknownNameError: The graph has no such node type or split.
        IdRangeError: A seed outside 0..n-1 of its node type.
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
    """The supervision edges of one rank; the arguments that are not named here are those of ``rank_nodes``.

    Args:
        source: A dataset folder, a ``cluster.json``, addresses of servers, or an open store.
        edge_label_index: Links to share, as ``LinkNeighborLoader`` takes them, such as ``(edge type, split)``.
        rank: This process.
        world_size: How many share the edges.
        by: ``locality`` prefers the edges whose destination a rank's parts own.
        parts_of_ranks: As there.
        remainder: As there.
        rng_seed: As there.
        store_settings: As there.

    Returns:
        The ends, and times where the edges have them, in the order of edge keys, or of the links that were given, but
        for the padding at the end.

    Raises:
        SettingsError: An option is of the wrong kind, or there are fewer edges than ranks.
        UnknownNameError: The dataset has no such edge type or split, or keeps no links of it.
        IdRangeError: A key outside 0..n-1 of its node type.
    """
    sharing = _Sharing(rank, world_size, by, parts_of_ranks, remainder, rng_seed)
    with _opened(source, store_settings) as store:
        found = read_link_inputs(store, edge_label_index, None, None)

        def destinations() -> tuple[str, IntArray]:
            return found.edge_type[2], found.links_at(store, np.arange(found.num_links, dtype=np.int64)).dst_keys

        return found.links_at(store, sharing.positions(store, found.num_links, destinations))


@contextmanager
def _opened(source: Source, settings: StoreSettings | None) -> Iterator[Store]:
    """The store of a source, closed at the end if it was opened here."""
    store = open_store(source, settings)
    try:
        yield store
    finally:
        if store is not source:
            store.close()


@dataclass(frozen=True)
class _Sharing(Settings):
    """How ranks share seeds; see ``rank_nodes``."""

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
        """int64[n], positions of this rank's seeds; by locality, ``nodes`` gives type and keys of those that count."""
        parts = None
        if self.by == "locality":
            node_type, keys = nodes()
            parts = store.book.parts_of(node_type, store.lookup(node_type, keys))
        is_near = _preferred(store, parts, self.world_size, self.parts_of_ranks)
        return _share(is_near, num_seeds, (self.rank, self.world_size), self.remainder, self.rng_seed)


def _preferred(
    store: Store, parts: IntArray | None, world_size: int, parts_of_ranks: Sequence[Sequence[int]] | None
) -> NDArray[np.bool_] | None:
    """bool[world_size, n]: a rank's parts own the seed; None where locality does not count."""
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
            f"parts_of_ranks names parts {unknown} that are not there and leaves out {missing}; give each of "
            f"0..{num_parts - 1} to one rank at least"
        )


def _share(
    is_near: NDArray[np.bool_] | None, num_seeds: int, place: tuple[int, int], remainder: RankRemainder, rng_seed: int
) -> IntArray:
    """int64[n], positions of one rank's seeds, ascending but for the padding."""
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
    """int64[n], the rank of each seed: a near one while it has room, else whoever has.

    Seeds that fewer ranks are near go first, so that a rank does not fill up with what another could have taken.
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
