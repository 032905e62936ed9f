"""Order of seeds: assigns seeds to batches, and batches to ranks.

An epoch is cut into global batches: batch ``g`` holds positions ``order[g * B : (g + 1) * B]`` of the seeds. Rank ``r``
of ``W`` takes batches ``r, r + W, …``, so the batches are the same for any number of ranks. Only the end of an epoch
depends on the number of ranks. There, every rank must take the same number of steps: an optimizer that synchronises
ranks would wait for ever for a rank without batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hopstream.arrays import Array, IntArray, offsets_of, to_array
from hopstream.errors import IdRangeError, SettingsError
from hopstream.graph.graph import hex_digest
from hopstream.kernels.hashing import derive_seed, permute_range
from hopstream.load.load_settings import OrderSettings


@runtime_checkable
class WeightedSampler(Protocol):
    """A ``torch.utils.data.WeightedRandomSampler``, such as PyG's ``ImbalancedSampler``."""

    weights: Any
    num_samples: int
    replacement: bool


FloatArray = NDArray[np.float64]
SeedWeights = ArrayLike | WeightedSampler | None
"""A number per seed, a torch sampler that has them, or None."""


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
        if not num_seeds:
            return  # an empty epoch
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

    def fingerprint(self) -> str | None:
        """Return the digest of the weights of seeds in hex digits, or None if seeds have no weights."""
        return None

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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChosenOrder(SeedOrder):
    """One batch of chosen seeds, whose random draws depend on the seeds and the epoch.

    Attributes:
        chosen: int64[n], positions of the seeds.
    """

    chosen: IntArray

    def span(self, step: int) -> BatchSpan:
        """Return the only batch."""
        return BatchSpan(start=0, stop=len(self.chosen), index=step)

    def positions(self, epoch: int, span: BatchSpan) -> IntArray:
        """Return the chosen positions."""
        return self.chosen

    def batch_seed(self, epoch: int, span: BatchSpan) -> int:
        """Return 64 random bits for the draws of the batch."""
        return derive_seed("chosen", self.settings.rng_seed, epoch, hex_digest(self.chosen.data))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WeightedOrder(SeedOrder):
    """Seeds drawn in proportion to their weights, with replacement, in new draws each epoch.

    Every position of the order is drawn by itself, so the seeds of a batch do not depend on the number of ranks.

    Attributes:
        sums: float64[n], running sums of the weights of all seeds; ``num_seeds`` of them are drawn per epoch.
    """

    sums: FloatArray

    def fingerprint(self) -> str:
        """Return the digest of the weights of seeds in hex digits."""
        return hex_digest(self.sums.data)

    def positions(self, epoch: int, span: BatchSpan) -> IntArray:
        """Return int64[stop - start], the positions of the drawn seeds."""
        key = derive_seed("weighted order", self.settings.rng_seed, epoch)
        # A block of the counter-based generator per position; numpy promises the same bits in every version.
        bits = np.random.Philox(key=key, counter=span.start).random_raw(4 * (span.stop - span.start))[::4]
        drawn = (bits >> np.uint64(11)).astype(np.float64) * (self.sums[-1] / 2.0**53)
        # A product may be rounded up to the last sum; the last seed of positive weight is then meant.
        last = int(np.searchsorted(self.sums, self.sums[-1], side="left"))
        found: IntArray = np.minimum(np.searchsorted(self.sums, drawn, side="right"), last).astype(np.int64, copy=False)
        return found


def read_positions(index: ArrayLike, num_seeds: int) -> IntArray:
    """Check the positions of chosen seeds and return them, int64[n].

    Raises:
        SettingsError: They are no list of integers, or empty.
        IdRangeError: One is outside ``[0, num_seeds)``.
    """
    try:
        chosen = to_array(index)
    except ValueError as error:
        raise SettingsError(f"index is no list of integers ({error}); give one or more positions") from error
    if chosen.ndim == 1 and not len(chosen):
        raise SettingsError("index is empty; give one or more integer positions, as a list")
    if chosen.dtype.kind not in "iu" or chosen.ndim != 1:
        shown = f"{chosen.dtype}{list(chosen.shape)}" if chosen.ndim else repr(index)[:100]
        raise SettingsError(f"index is {shown}; give one or more integer positions, as a list")
    if int(chosen.min()) < 0 or int(chosen.max()) >= num_seeds:
        row = int(np.flatnonzero((chosen < 0) | (chosen >= num_seeds))[0])
        raise IdRangeError(f"index[{row}] is {int(chosen[row])}; positions of seeds are 0..{num_seeds - 1}")
    positions: IntArray = chosen.astype(np.int64)
    return positions


def weights_of(sampler: WeightedSampler) -> Array:
    """Return the weights of a torch sampler, one per seed.

    Raises:
        SettingsError: It draws without replacement, or another number of samples than it has weights.
    """
    weights = to_array(sampler.weights)
    if not sampler.replacement or sampler.num_samples != len(weights):
        raise SettingsError(
            f"the sampler draws {sampler.num_samples} of {len(weights)} seeds, replacement={sampler.replacement}; "
            "wanted as many as there are, with replacement=True"
        )
    return weights


def read_seed_weights(name: str, values: object, num_seeds: int) -> FloatArray:
    """Check the weights of seeds and return their running sums, float64[num_seeds].

    Args:
        name: Name of the option, for messages.
        values: A number per seed.
        num_seeds: Number of seeds.

    Raises:
        SettingsError: The values are not numbers of 0 or more, one per seed; or all are 0.
    """
    weights = to_array(values)
    if weights.dtype.kind not in "iuf" or weights.shape != (num_seeds,):
        raise SettingsError(f"{name} is {weights.dtype}{list(weights.shape)}; give one number per seed: [{num_seeds}]")
    weights = weights.astype(np.float64)
    is_wrong = ~(np.isfinite(weights) & (weights >= 0))
    if is_wrong.any():
        first = int(np.argmax(is_wrong))
        raise SettingsError(f"{name}[{first}] is {weights[first]}; weights are finite numbers that are 0 or more")
    sums = np.cumsum(weights)
    if num_seeds and not 0 < sums[-1] < np.inf:
        raise SettingsError(f"the sum of {name} is {sums[-1]}; it must be positive and finite")
    return sums


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
