"""GraphLearn-for-PyTorch's partition books: the part of each node or edge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hopstream.errors import IdRangeError, SettingsError


class PartitionBook:
    """Tells the part of ids: ``book[ids]``."""

    def __getitem__(self, indices: Any) -> Tensor:
        """The part of each id; every kind of book has its own way."""
        raise NotImplementedError(f"{type(self).__name__} does not say how parts are found")

    @property
    def offset(self) -> int:
        """What is taken from an id before it is looked up: 0, also where parts are ranges, as in GLT."""
        return 0


class GLTPartitionBook(PartitionBook, Tensor):
    """A table: int64[n], the part of each id; ``GLTPartitionBook(tensor)`` shares the memory of a tensor."""

    def __new__(cls, table: Any = ()) -> GLTPartitionBook:
        """Take a tensor, or what ``torch.as_tensor`` takes, as a book."""
        return torch.as_tensor(table).as_subclass(cls)

    def __getitem__(self, indices: Any) -> Tensor:
        """The part of each id."""
        found: Tensor = Tensor.__getitem__(self, indices)
        return found


class OffsetId2Index:
    """Turns ids of a range into rows: ``id2index[ids]``."""

    def __init__(self, offset: int) -> None:
        """Say the first id of the range."""
        self.offset = offset

    def __getitem__(self, ids: Tensor) -> Tensor:
        """int64[n], the row of each id."""
        return ids - self.offset

    def to(self, device: Any) -> OffsetId2Index:
        """This: rows lie where ids do."""
        return self


class RangePartitionBook(PartitionBook):
    """Parts that own ranges of ids, one after the other.

    Attributes:
        partition_bounds: int64[num_partitions], where the range of each part ends, exclusive.
        partition_idx: The part of whoever has the book.
    """

    def __init__(self, partition_ranges: Sequence[tuple[int, int]], partition_idx: int) -> None:
        """Say the ranges.

        Args:
            partition_ranges: First id and end, exclusive, of each part; a range begins where the one before it ends.
            partition_idx: The part of whoever has the book.

        Raises:
            SettingsError: A range is empty, or does not begin where the one before it ends.
            IdRangeError: There is no such part.
        """
        for part, (start, end) in enumerate(partition_ranges):
            if not start < end:
                raise SettingsError(
                    f"partition_ranges[{part}] is {(start, end)}; a range has a start below its end: give parts that "
                    "own nothing by a GLTPartitionBook"
                )
            if part and start != partition_ranges[part - 1][1]:
                raise SettingsError(
                    f"partition_ranges[{part}] starts at {start}; the range before it ends at "
                    f"{partition_ranges[part - 1][1]}"
                )
        if not 0 <= partition_idx < len(partition_ranges):
            raise IdRangeError(f"partition_idx is {partition_idx}; parts are 0..{len(partition_ranges) - 1}")
        self.partition_bounds = torch.tensor([end for _, end in partition_ranges], dtype=torch.int64)
        self.partition_idx = partition_idx
        self._id2index = OffsetId2Index(partition_ranges[partition_idx][0])

    def __getitem__(self, indices: Any) -> Tensor:
        """int64[n], the part of each id; ``num_partitions`` for ids beyond the last range, as in GLT."""
        return torch.searchsorted(self.partition_bounds, torch.as_tensor(indices), right=True)

    @property
    def num_partitions(self) -> int:
        """How many parts there are."""
        return len(self.partition_bounds)

    @property
    def device(self) -> torch.device:
        """Where the book lies."""
        return self.partition_bounds.device

    @property
    def id2index(self) -> OffsetId2Index:
        """Turns ids of the own part into rows of it."""
        return self._id2index

    def id_filter(self, node_pb: PartitionBook, partition_idx: int) -> Tensor:
        """int64[n], the ids of a part, ascending; ids of part 0 count from 0."""
        start = int(self.partition_bounds[partition_idx - 1]) if partition_idx > 0 else 0
        return torch.arange(start, int(self.partition_bounds[partition_idx]))


def table_of(book: Tensor | PartitionBook) -> Tensor:
    """int64[n], the part of each id that a book has, as a tensor of its own."""
    if isinstance(book, RangePartitionBook):
        return book[torch.arange(int(book.partition_bounds[-1]))]
    if not isinstance(book, Tensor):
        raise SettingsError(f"the book is {type(book).__name__}; give a tensor or a RangePartitionBook")
    return book.as_subclass(Tensor).clone()
