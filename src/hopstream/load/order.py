"""Which seeds belong to which batch, on which rank, in which order?

An epoch is cut into global batches: batch ``g`` holds positions ``order[g * B : (g + 1) * B]`` of the seeds, and rank
``r`` of ``W`` takes batches ``r, r + W, …``, so the same batches exist whatever the number of ranks. Only the end of an
epoch depends on it, because every rank must take the same number of steps: an optimizer that synchronises ranks waits
for ever for one that has run out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from hopstream.arrays import IntArray
from hopstream.checks import check_choice
from hopstream.errors import SettingsError
from hopstream.kernels.hashing import derive_seed
from hopstream.kernels.permute import permute_range
from hopstream.load.options import MAX_RNG_SEED, read_flag, read_integer, read_rank

Remainder = Literal["spread", "pad", "drop", "uneven"]
"""What happens to the batches that do not fill a round of one batch per rank; see ``SeedOrder``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSpan:
    """The part of an epoch's order that one batch holds.

    Attributes:
        start: First index of the order.
        stop: One past the last.
        index: Number of the batch in the epoch, over all ranks; the batch's draws depend on it.
    """

    start: int
    stop: int
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedOrder:
    """The batches that one rank takes in an epoch, computed when asked for; it holds a few numbers, whatever the graph.

    Attributes:
        num_seeds: Seeds of one epoch, over all ranks.
        batch_size: Seeds of one batch on one rank.
        is_shuffled: Permute the seeds anew in each epoch; otherwise they keep their order.
        drop_last: Leave out seeds that would make a batch smaller than ``batch_size``.
        rng_seed: Of the order and of all draws.
        rank: This rank, in ``[0, world_size)``.
        world_size: Number of ranks that share the epoch.
        remainder: How ranks come to the same number of steps.
            ``spread``: every seed exactly once; the seeds that do not fill a round are spread over all ranks, in one or
            two rounds of batches whose sizes differ by at most one.
            ``pad``: ranks that run out take the epoch's first batches again.
            ``drop``: batches that do not make a round are left out.
            ``uneven``: every seed exactly once, and some ranks take one step more; not for synchronised training.
    """

    num_seeds: int
    batch_size: int
    is_shuffled: bool = False
    drop_last: bool = False
    rng_seed: int = 0
    rank: int = 0
    world_size: int = 1
    remainder: Remainder = "spread"

    def __post_init__(self) -> None:
        """Refuse settings that make no batch, or that cannot be met."""
        _check_kinds(self)
        if self.num_steps:
            return
        if self.remainder == "uneven" and self.num_batches:
            return  # this rank has nothing, and was told that it might
        raise SettingsError(
            f"{self.num_seeds} seeds in batches of {self.batch_size} make no batch for each of {self.world_size} ranks "
            f"with remainder={self.remainder!r} and drop_last={self.drop_last}; {_remedy(self)}"
        )

    @property
    def num_batches(self) -> int:
        """Different batches of one epoch, over all ranks."""
        if self.remainder == "spread":
            return self._num_full_rounds * self.world_size + self._num_tail_batches
        whole, rest = divmod(self.num_seeds, self.batch_size)
        num_batches = whole + (1 if rest and not self.drop_last else 0)
        return num_batches // self.world_size * self.world_size if self.remainder == "drop" else num_batches

    @property
    def num_steps(self) -> int:
        """Batches that this rank takes in one epoch."""
        if self.remainder == "uneven":
            return max(0, -(-(self.num_batches - self.rank) // self.world_size))
        return -(-self.num_batches // self.world_size)

    def span(self, step: int) -> BatchSpan:
        """The part of the order that this rank's batch number ``step`` holds; ``step`` is in ``[0, num_steps)``."""
        index = step * self.world_size + self.rank
        if self.remainder == "pad":
            index %= self.num_batches
        num_full = self._num_full_rounds * self.world_size
        if self.remainder != "spread" or index < num_full:
            start = index * self.batch_size
            return BatchSpan(start=start, stop=min(start + self.batch_size, self.num_seeds), index=index)
        first = num_full * self.batch_size
        rest, piece, num_pieces = self.num_seeds - first, index - num_full, self._num_tail_batches
        return BatchSpan(
            start=first + rest * piece // num_pieces, stop=first + rest * (piece + 1) // num_pieces, index=index
        )

    def positions(self, epoch: int, span: BatchSpan) -> IntArray:
        """int64[stop - start], positions of the seeds of one batch."""
        if not self.is_shuffled:
            return np.arange(span.start, span.stop, dtype=np.int64)
        positions = np.empty(span.stop - span.start, np.int64)
        order_seed = np.uint64(derive_seed("order", self.rng_seed, epoch))
        permute_range(span.start, self.num_seeds, order_seed, positions)
        return positions

    def batch_seed(self, epoch: int, span: BatchSpan) -> int:
        """64 random bits for the draws of one batch."""
        return derive_seed(self.rng_seed, epoch, span.index)

    @property
    def _num_full_rounds(self) -> int:
        """Rounds in which every rank's batch is full; ``spread`` gives one back where too few seeds are left over."""
        num_rounds, rest = divmod(self.num_seeds, self.batch_size * self.world_size)
        is_short = 0 < rest < self.world_size and not self.drop_last
        return max(0, num_rounds - 1) if is_short else num_rounds

    @property
    def _num_tail_batches(self) -> int:
        """Batches of the balanced end of an epoch: none, or one or two rounds of them."""
        if self.drop_last:
            return 0
        round_size = self.batch_size * self.world_size
        rest = self.num_seeds - self._num_full_rounds * round_size
        num_tail = self.world_size * -(-rest // round_size)
        return num_tail if rest >= num_tail else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OneBatch(SeedOrder):
    """All seeds in one batch, in their order; it has whichever number is asked for, and the draws of that number.

    For batches whose seeds others choose: ``batch_size`` is ``num_seeds``.
    """

    def span(self, step: int) -> BatchSpan:
        """All seeds, as the batch of that number."""
        return BatchSpan(start=0, stop=self.num_seeds, index=step)


def _check_kinds(order: SeedOrder) -> None:
    check_choice("remainder", order.remainder, get_args(Remainder))
    if order.num_seeds < 1:
        raise SettingsError("there are no seeds; give at least one")
    read_integer("batch_size", order.batch_size, 1)
    read_integer("rng_seed", order.rng_seed, 0, MAX_RNG_SEED)
    read_flag("shuffle", order.is_shuffled)
    read_flag("drop_last", order.drop_last)
    read_rank(order.rank, order.world_size)
    if order.rank >= order.world_size:
        raise SettingsError(f"rank is {order.rank} of world_size {order.world_size}; ranks are 0..world_size - 1")
    if order.remainder != "spread" or order.drop_last or order.batch_size > 1:
        return
    if order.num_seeds % order.world_size and order.num_seeds > order.world_size:
        raise SettingsError(
            f"batch_size 1 cannot spread {order.num_seeds} seeds evenly over {order.world_size} ranks; use a larger "
            "batch_size, or remainder='pad', 'drop' or 'uneven'"
        )


def _remedy(order: SeedOrder) -> str:
    if order.drop_last:
        return "use a smaller batch_size or drop_last=False"
    return "use fewer ranks, or remainder='pad' or 'uneven'"
