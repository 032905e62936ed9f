"""Order of seeds: assigns seeds to batches, and batches to ranks.

An epoch is cut into global batches: batch ``g`` holds positions ``order[g * B : (g + 1) * B]`` of the seeds. Rank ``r``
of ``W`` takes batches ``r, r + W, …``, so the batches are the same for any number of ranks. Only the end of an epoch
depends on the number of ranks. There, every rank must take the same number of steps: an optimizer that synchronises
ranks would wait for ever for a rank without batches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hopstream.arrays import IntArray, offsets_of
from hopstream.errors import SettingsError
from hopstream.kernels.hashing import derive_seed, permute_range
from hopstream.load.load_settings import OrderSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSpan:
    """Range of an epoch's order that one batch holds.

    Attributes:
        start: First index of the order.
        stop: One past the last.
        index: Number of the batch in the epoch, over all ranks; the batch's random draws depend on it.
    """

    start: int
    stop: int
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedOrder:
    """Batches of one rank in an epoch, computed on demand from a few numbers.

    Attributes:
        num_seeds: Seeds of one epoch, over all ranks.
        settings: Size of batches, order, ranks. A round is one batch per rank.
            With ``remainder="spread"`` every seed comes exactly once: the seeds that do not fill a round are spread
            over all ranks, in one or two rounds of batches whose sizes differ by at most one.
            ``pad``: ranks without a batch in the last round take the epoch's first batches again.
            ``drop``: batches that do not fill a round are left out.
            ``uneven``: every seed exactly once, and some ranks take one step more; not for synchronised training.
    """

    num_seeds: int
    settings: OrderSettings

    def __post_init__(self) -> None:
        """Refuse settings that make no batch, or that a remainder cannot meet."""
        settings, num_seeds = self.settings, self.num_seeds
        if num_seeds < 1:
            raise SettingsError("there are no seeds; give at least one")
        is_single = settings.remainder == "spread" and not settings.drop_last and settings.batch_size == 1
        if is_single and num_seeds % settings.world_size and num_seeds > settings.world_size:
            raise SettingsError(
                f"batch_size 1 cannot spread {num_seeds} seeds evenly over {settings.world_size} ranks; use a larger "
                "batch_size, or remainder='pad', 'drop' or 'uneven'"
            )
        if self.num_steps:
            return
        if settings.remainder == "uneven" and self.num_batches:
            return  # with ``uneven`` a rank may have no batch
        remedy = "use fewer ranks, or remainder='pad' or 'uneven'"
        if settings.drop_last:
            remedy = "use a smaller batch_size or drop_last=False"
        raise SettingsError(
            f"{num_seeds} seeds in batches of {settings.batch_size} are too few for one batch per rank "
            f"({settings.world_size} ranks, remainder={settings.remainder!r}, drop_last={settings.drop_last}); {remedy}"
        )

    @property
    def num_batches(self) -> int:
        """Distinct batches of one epoch, over all ranks."""
        settings = self.settings
        if settings.remainder == "spread":
            return self._num_full_rounds * settings.world_size + self._num_tail_batches
        whole, rest = divmod(self.num_seeds, settings.batch_size)
        num_batches = whole + (1 if rest and not settings.drop_last else 0)
        is_cut = settings.remainder == "drop"
        return num_batches // settings.world_size * settings.world_size if is_cut else num_batches

    @property
    def num_steps(self) -> int:
        """Batches that this rank takes in one epoch."""
        settings = self.settings
        if settings.remainder == "uneven":
            return max(0, -(-(self.num_batches - settings.own_rank) // settings.world_size))
        return -(-self.num_batches // settings.world_size)

    def span(self, step: int) -> BatchSpan:
        """Return the range of the order in this rank's batch ``step``, which is in ``[0, num_steps)``."""
        settings = self.settings
        index = step * settings.world_size + settings.own_rank
        if settings.remainder == "pad":
            index %= self.num_batches
        num_full = self._num_full_rounds * settings.world_size
        if settings.remainder != "spread" or index < num_full:
            start = index * settings.batch_size
            return BatchSpan(start=start, stop=min(start + settings.batch_size, self.num_seeds), index=index)
        first = num_full * settings.batch_size
        rest, piece, num_pieces = self.num_seeds - first, index - num_full, self._num_tail_batches
        return BatchSpan(
            start=first + rest * piece // num_pieces, stop=first + rest * (piece + 1) // num_pieces, index=index
        )

    def positions(self, epoch: int, span: BatchSpan) -> IntArray:
        """Return int64[stop - start], the positions of the seeds of one batch."""
        settings = self.settings
        if not settings.shuffle:
            return np.arange(span.start, span.stop, dtype=np.int64)
        positions = np.empty(span.stop - span.start, np.int64)
        order_seed = np.uint64(derive_seed("order", settings.rng_seed, epoch))
        permute_range(span.start, self.num_seeds, order_seed, positions)
        return positions

    def batch_seed(self, epoch: int, span: BatchSpan) -> int:
        """Return 64 random bits for the draws of one batch."""
        return derive_seed(self.settings.rng_seed, epoch, span.index)

    @property
    def _num_full_rounds(self) -> int:
        """Rounds of full batches; one less if the remaining seeds are fewer than the ranks."""
        settings = self.settings
        num_rounds, rest = divmod(self.num_seeds, settings.batch_size * settings.world_size)
        is_short = 0 < rest < settings.world_size and not settings.drop_last
        return max(0, num_rounds - 1) if is_short else num_rounds

    @property
    def _num_tail_batches(self) -> int:
        """Batches in the balanced end of an epoch, over all ranks: 0, 1 or 2 rounds."""
        settings = self.settings
        if settings.drop_last:
            return 0
        round_size = settings.batch_size * settings.world_size
        rest = self.num_seeds - self._num_full_rounds * round_size
        num_tail = settings.world_size * -(-rest // round_size)
        return num_tail if rest >= num_tail else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OneBatch(SeedOrder):
    """All seeds in one batch, in their order, for batches whose seeds another sampler chose.

    The batch takes the number of the requested step, which sets its random draws.
    """

    def span(self, step: int) -> BatchSpan:
        """Return all seeds, as the batch of that number."""
        return BatchSpan(start=0, stop=self.num_seeds, index=step)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleOrder(SeedOrder):
    """Order of examples in files: shuffles the files, then the examples inside consecutive windows.

    Any range of the order is computed by itself, so threads, ranks and resumed loaders read only their own examples.

    Attributes:
        file_sizes: Examples of each file; ``num_seeds`` in all.
        window: Shuffle window in examples; the number of all examples means a full shuffle.
    """

    file_sizes: tuple[int, ...]
    window: int

    def positions(self, epoch: int, span: BatchSpan) -> IntArray:
        """Return int64[stop - start], the numbers of a batch's examples, over the files in their given order."""
        places = np.arange(span.start, span.stop, dtype=np.int64)
        if not self.settings.shuffle:
            return places
        for number in range(span.start // self.window, -(-span.stop // self.window)):
            first = number * self.window
            start, stop = max(span.start, first), min(span.stop, first + self.window)
            mixed = places[start - span.start : stop - span.start]
            seed = np.uint64(derive_seed("window", self.settings.rng_seed, epoch, number))
            permute_range(start - first, min(self.window, self.num_seeds - first), seed, mixed)
            mixed += first
        files = np.empty(len(self.file_sizes), np.int64)
        permute_range(0, len(files), np.uint64(derive_seed("files", self.settings.rng_seed, epoch)), files)
        sizes = np.array(self.file_sizes, np.int64)
        ends = np.cumsum(sizes[files])
        at = np.searchsorted(ends, places, side="right")
        return places - (ends - sizes[files])[at] + offsets_of(sizes)[files[at]]
