"""Names of ``dgl.distributed``: partitioning, parts, and shares of trainers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import Array, IntArray, offsets_of
from hopstream.checks import check_int, read_integer
from hopstream.compat.dgl.book import RangePartitionBook
from hopstream.compat.dgl.graphs import DEFAULT_ETYPE, DEFAULT_NTYPE
from hopstream.compat.dgl.loading import load_partition, load_partition_book, load_partition_feats
from hopstream.compat.dgl.part_config import dgl_partition_to_graphbolt
from hopstream.compat.dgl.partition import partition_graph
from hopstream.compat.dgl.reading import read_partitions
from hopstream.compat.dgl.tensors import to_array, to_tensor
from hopstream.errors import SchemaError, SettingsError
from hopstream.schema import EdgeType

if TYPE_CHECKING:
    from torch import Tensor


MAX_TRAINERS = 1 << 31


def node_split(  # noqa: PLR0913  DGL's
    nodes: Any, partition_book: RangePartitionBook | None = None, ntype: str = DEFAULT_NTYPE, rank: int | None = None,
    force_even: bool = True, node_trainer_ids: Any = None, *, num_trainers: int | None = None,
) -> Tensor:  # fmt: skip
    """Return the share of one trainer of the nodes in a mask; the shares are disjoint and cover the mask.

    Args:
        nodes: bool[num_nodes] or numbers[num_nodes], by number in the type; a node with a value other than 0 is in the
            mask.
        partition_book: The book of the trainer's part.
        ntype: The node type.
        rank: The trainer. By default the rank of ``torch.distributed``, or the first trainer of the part.
        force_even: Give each part equally many nodes, in ascending order of numbers, so that most are its own. Without
            ``node_trainer_ids``, its trainers get random shares, with the part's number as the seed. False gives each
            part its own nodes, in contiguous shares.
        node_trainer_ids: int[num_nodes], the preferred trainer of each node, as ``partition_graph`` writes it.
        num_trainers: Number of trainers, a multiple of the number of parts. By default the world size of
            ``torch.distributed``, or one per part.

    Returns:
        int64[n], numbers in the type.

    Raises:
        SettingsError: No book is given, or the number of trainers is no multiple of the number of parts.
        SchemaError: The mask or the trainers do not have one value per node.
        UnknownNameError: There is no such node type.
    """
    book = _checked(partition_book)
    share = _Share(book, "nodes", *_place(book, rank, num_trainers))
    mask = _mask("nodes", nodes, book._num_nodes(ntype))
    return share.evenly(mask, node_trainer_ids) if force_even else share.of(mask, book.partid2nids(book.partid, ntype))


def edge_split(  # noqa: PLR0913  DGL's
    edges: Any, partition_book: RangePartitionBook | None = None, etype: EdgeType | str = DEFAULT_ETYPE[1],
    rank: int | None = None, force_even: bool = True, edge_trainer_ids: Any = None,
    *, num_trainers: int | None = None,
) -> Tensor:  # fmt: skip
    """Return the share of one trainer of the edges in a mask; see ``node_split``.

    Raises:
        SettingsError: No book is given, or the number of trainers is no multiple of the number of parts.
        SchemaError: The mask or the trainers do not have one value per edge.
        UnknownNameError: There is no such edge type.
    """
    book = _checked(partition_book)
    share = _Share(book, "edges", *_place(book, rank, num_trainers))
    mask = _mask("edges", edges, book._num_edges(etype))
    return share.evenly(mask, edge_trainer_ids) if force_even else share.of(mask, book.partid2eids(book.partid, etype))


def _checked(book: RangePartitionBook | None) -> RangePartitionBook:
    if not isinstance(book, RangePartitionBook):
        raise SettingsError(f"partition_book is {book!r}; load_partition_book gives one")
    return book


def _mask(what: str, value: Any, num_rows: int) -> NDArray[np.bool_]:
    mask = to_array(value, what)
    if mask.shape != (num_rows,) or mask.dtype.kind not in "biuf" or np.isnan(mask).any():
        raise SchemaError(
            f"{what} are {mask.dtype}{list(mask.shape)}; wanted a mask of all {what}: {num_rows} booleans or numbers, "
            "without NaN"
        )
    return cast("NDArray[np.bool_]", mask != 0)


def _place(book: RangePartitionBook, rank: int | None, num_trainers: int | None) -> tuple[int, int]:
    """Return a trainer's index in its part, and the number of trainers per part."""
    num_parts = book.num_partitions()
    group = _distributed()
    if num_trainers is None:
        num_trainers = group.get_world_size() if group else num_parts
    check_int("num_trainers", num_trainers, 1, MAX_TRAINERS)
    if num_trainers % num_parts:
        raise SettingsError(f"{num_trainers} trainers cannot be shared evenly by {num_parts} parts; use a multiple")
    per_part = num_trainers // num_parts
    if rank is None:
        rank = group.get_rank() if group else book.partid * per_part
    rank = read_integer("rank", rank)
    if not 0 <= rank < num_trainers:
        raise SettingsError(f"rank is {rank} of {num_trainers} trainers; ranks are 0..{num_trainers - 1}")
    return rank % per_part, per_part


@dataclass(frozen=True, slots=True)
class _Share:
    """Share of one of the trainers of a part."""

    book: RangePartitionBook
    what: str
    place: int
    per_part: int

    def of(self, mask: NDArray[np.bool_], own: Tensor) -> Tensor:
        """Return the share of the part's own numbers in the mask."""
        numbers = own.numpy()
        chosen = numbers[mask[numbers]]
        size = len(chosen) // self.per_part
        is_last = self.place + 1 == self.per_part
        return to_tensor(chosen[self.place * size : None if is_last else (self.place + 1) * size])

    def evenly(self, mask: NDArray[np.bool_], trainer_ids: Any) -> Tensor:
        """Return this trainer's share of the numbers in the mask; each part gets equally many."""
        chosen = np.flatnonzero(mask)
        offsets = _even_offsets(len(chosen), self.book.num_partitions())
        chosen = chosen[offsets[self.book.partid] : offsets[self.book.partid + 1]]
        if self.per_part == 1:
            return to_tensor(chosen)
        if trainer_ids is None:
            return to_tensor(_dealt(chosen, self.place, self.per_part, self.book.partid))
        trainers = to_array(trainer_ids, "trainer ids")
        if trainers.shape != mask.shape or trainers.dtype.kind not in "iu":
            raise SchemaError(
                f"trainer ids are {trainers.dtype}{list(trainers.shape)}; wanted integers[{len(mask)}], one for each "
                f"of {self.what}"
            )
        if (trainers < 0).any():
            raise SchemaError(f"trainer ids start with {trainers.min()}; wanted none below 0")
        return to_tensor(self._by_trainer(chosen, trainers))

    def _by_trainer(self, chosen: IntArray, trainers: Array) -> IntArray:
        """Split the part's own numbers, sorted by trainer, and the others evenly among the part's trainers."""
        num_trainers, largest = self.per_part * self.book.num_partitions(), int(trainers.max(initial=-1)) + 1
        # ``trainers`` may name more trainers than there are. Then each trainer takes the nodes of several consecutive
        # ids, and the last trainers may get no nodes.
        of = (trainers // max(1, -(-largest // num_trainers)))[chosen]
        is_own = of // self.per_part == self.book.partid
        own = chosen[is_own][np.argsort(of[is_own] % self.per_part, kind="stable")]
        return np.concatenate([_slice(items, self.place, self.per_part) for items in (own, chosen[~is_own])])


def _distributed() -> Any:
    """Return ``torch.distributed`` if its process group is initialized, else None."""
    from torch import distributed

    return distributed if distributed.is_available() and distributed.is_initialized() else None


def _even_offsets(num_items: int, num_shares: int) -> IntArray:
    return offsets_of(np.full(num_shares, num_items // num_shares) + (np.arange(num_shares) < num_items % num_shares))


def _slice(items: IntArray, place: int, num_shares: int) -> IntArray:
    offsets = _even_offsets(len(items), num_shares)
    return items[offsets[place] : offsets[place + 1]]


def _dealt(items: IntArray, place: int, num_shares: int, part: int) -> IntArray:
    """Return a random share as DGL draws it: with numpy's legacy generator, seeded with the part's number."""
    order = np.random.RandomState(part).permutation(len(items))
    return items[np.sort(_slice(order, place, num_shares))]


__all__ = [
    "RangePartitionBook",
    "dgl_partition_to_graphbolt",
    "edge_split",
    "load_partition",
    "load_partition_book",
    "load_partition_feats",
    "node_split",
    "partition_graph",
    "read_partitions",
]


def __getattr__(name: str) -> object:
    """Raise an error that lists the names.

    Raises:
        AttributeError: Always.
    """
    if name.startswith("__"):  # Python's own look-up
        raise AttributeError(name)
    raise AttributeError(
        f"dgl.distributed.{name} is not available; available: {', '.join(__all__)}; in place of DGL's servers and "
        "loaders use hopstream.write_parts, hopstream serve and hopstream.NeighborLoader"
    )
