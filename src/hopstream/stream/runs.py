"""Keeps ascending keys as runs where these are shorter, so that what is contiguous takes two numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np

from hopstream.arrays import IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Some ascending keys, each once.

    Attributes:
        numbers: int64[2 * runs], the first key of each run and the first after it; or int64[n], keys.
        is_runs: Which of the two.
    """

    numbers: IntArray
    is_runs: bool

    @classmethod
    def of(cls, keys: IntArray) -> Self:
        """int64[n] ascending keys, n from 1, as one run or in the form of fewer numbers."""
        (breaks,) = np.nonzero(np.diff(keys) != 1)
        if len(breaks) and 2 * len(breaks) + 2 >= len(keys):
            return cls(keys, is_runs=False)
        bounds = keys[np.append(0, breaks + 1)], keys[np.append(breaks, len(keys) - 1)] + 1
        return cls(np.stack(bounds, 1).ravel(), is_runs=True)

    def __len__(self) -> int:
        """How many keys there are."""
        return int(self._lengths().sum()) if self.is_runs else len(self.numbers)

    def cut(self, start: int, stop: int) -> Piece:
        """The keys at places ``start`` to ``stop - 1``, where ``0 <= start < stop <= len(self)``."""
        if not self.is_runs:
            return Piece(self.numbers[start:stop], is_runs=False)
        ends = np.cumsum(self._lengths())
        first, last = int(np.searchsorted(ends, start, "right")), int(np.searchsorted(ends, stop))
        numbers = self.numbers[2 * first : 2 * last + 2].copy()
        numbers[0] += start - (int(ends[first - 1]) if first else 0)
        numbers[-1] -= int(ends[last]) - stop
        return Piece(numbers, is_runs=True)

    def expand(self) -> IntArray:
        """int64[n], the keys."""
        if not self.is_runs:
            return self.numbers
        lengths = self._lengths()
        ends = np.cumsum(lengths)
        return np.arange(ends[-1] if len(ends) else 0) + np.repeat(self.numbers[1::2] - ends, lengths)

    def joined(self, other: Piece) -> Piece:
        """The runs of this piece and of one that comes after it."""
        meet = int(self.numbers[-1] == other.numbers[0])
        return Piece(np.concatenate([self.numbers[: len(self.numbers) - meet], other.numbers[meet:]]), is_runs=True)

    def _lengths(self) -> IntArray:
        return self.numbers[1::2] - self.numbers[0::2]


@dataclass(frozen=True, slots=True, eq=False)
class AscendingKeys:
    """Ascending keys, each once, in pieces of bounded size.

    Attributes:
        pieces: None of them is empty.
        ends: How many keys there are up to the end of each piece.
    """

    pieces: tuple[Piece, ...]
    ends: IntArray

    @classmethod
    def of(cls, blocks: Iterable[IntArray], max_numbers: int) -> Self:
        """Keys that come in blocks, int64[n] each, one after the other; runs are joined up to ``max_numbers``."""
        pieces: list[Piece] = []
        for piece in (Piece.of(block) for block in blocks if len(block)):
            last = pieces[-1] if pieces else piece
            if pieces and last.is_runs and piece.is_runs and len(last.numbers) + len(piece.numbers) <= max_numbers:
                pieces[-1] = last.joined(piece)
            else:
                pieces.append(piece)
        # Runs of one key each take two numbers a key.
        pieces = [Piece(one.expand(), is_runs=False) if len(one.numbers) > len(one) > 1 else one for one in pieces]
        return cls(tuple(pieces), np.cumsum([len(piece) for piece in pieces], dtype=np.int64))

    def __len__(self) -> int:
        """How many keys there are."""
        return int(self.ends[-1]) if len(self.ends) else 0

    @property
    def nbytes(self) -> int:
        """Bytes that the keys take."""
        return sum(piece.numbers.nbytes for piece in self.pieces)

    def cut(self, start: int, stop: int) -> Iterator[Piece]:
        """The keys at places ``start`` to ``stop - 1``, in ``[0, len(self)]``, in pieces."""
        for piece, end in zip(self.pieces, self.ends.tolist(), strict=True):
            begin = end - len(piece)
            if max(start, begin) < min(stop, end):
                yield piece.cut(max(start, begin) - begin, min(stop, end) - begin)


def blocks_of(pieces: Iterable[Piece], max_keys: int) -> Iterator[IntArray]:
    """The keys of pieces, int64[n] each, at most so many at once."""
    for piece in pieces:
        num_keys = len(piece)
        for start in range(0, num_keys, max_keys):
            yield piece.cut(start, min(start + max_keys, num_keys)).expand()
