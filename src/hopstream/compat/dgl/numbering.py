"""Numbers nodes and edges after partitioning: part by part, in a part type by type, then by key."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import IntArray, offsets_of
from hopstream.dataset.split import split_by_owner

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Numbering(Generic[T]):
    """The new numbers of the nodes, or of the edges, of all types.

    Attributes:
        ranges: Type to int64[num_parts, 2], the numbers over all types that a part's items of the type have.
        offsets: Type to int64[num_parts + 1], the same in the numbers of the type.
        keys: Type to int64[n], the key of each number of the type.
        numbers: Type to int64[n], the number over all types of each key.
    """

    ranges: Mapping[T, IntArray]
    offsets: Mapping[T, IntArray]
    keys: Mapping[T, IntArray]
    numbers: Mapping[T, IntArray]

    def keys_of_part(self, of: T, part: int) -> IntArray:
        """int64[n], the keys of a part's items of a type, ascending."""
        first, stop = self.offsets[of][part : part + 2]
        return self.keys[of][first:stop]


def number_by_owner(owners: Mapping[T, NDArray[np.int32]], num_parts: int) -> Numbering[T]:
    """Number the items of all types; a type that a part has none of gets an empty range where the one before ended.

    Args:
        owners: Type to int32[n], the part of each item, by key.
        num_parts: Number of parts.
    """
    splits = {of: split_by_owner(owner, num_parts) for of, owner in owners.items()}
    ranges = number_ranges({of: np.diff(offsets) for of, (offsets, _) in splits.items()}, num_parts)
    numbers = {}
    for of, (offsets, keys) in splits.items():
        numbers[of] = np.empty(len(keys), np.int64)
        numbers[of][keys] = np.arange(len(keys)) + np.repeat(ranges[of][:, 0] - offsets[:-1], np.diff(offsets))
    return Numbering(
        ranges=ranges,
        offsets={of: offsets for of, (offsets, _) in splits.items()},
        keys={of: keys.astype(np.int64, copy=False) for of, (_, keys) in splits.items()},
        numbers=numbers,
    )


def number_ranges(counts: Mapping[T, IntArray], num_parts: int) -> dict[T, IntArray]:
    """Type to int64[num_parts, 2], the numbers over all types that a part's items of the type have.

    Args:
        counts: Type to int64[num_parts], how many items of the type each part has.
        num_parts: Number of parts.
    """
    table = np.array(list(counts.values()), np.int64).reshape(len(counts), num_parts)
    starts = offsets_of(table.T.reshape(-1))[:-1].reshape(num_parts, len(counts)).T
    return {of: np.stack([starts[row], starts[row] + table[row]], axis=1) for row, of in enumerate(counts)}
