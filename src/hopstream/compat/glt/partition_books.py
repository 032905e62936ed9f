"""GraphLearn-for-PyTorch's partition books: the part of each node or edge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hopstream.errors import IdRangeError, SettingsError


class PartitionBook:
    """Map from ids to parts: ``book[ids]``."""

    def __getitem__(self, indices: Any) -> Tensor:
        """Return the part of each id; subclasses implement it."""
        raise NotImplementedError(f"{type(self).__name__} does not define how parts are found")

    @property
    def offset(self) -> int:
        """Number that is subtracted from an id before a look-up: 0, also for ranges, as in GLT."""
        return 0


class GLTPartitionBook(PartitionBook, Tensor):
    """Table: int64[n], the part of each id; ``GLTPartitionBook(tensor)`` shares the memory of a tensor."""

    def __new__(cls, table: Any = ()) -> GLTPartitionBook:
        """Make a book of a tensor, or of an argument of ``torch.as_tensor``."""
        return torch.as_tensor(table).as_subclass(cls)

    def __getitem__(self, indices: Any) -> Tensor:
        """Return the part of each id."""
        found: Tensor = Tensor.__getitem__(self, indices)
        return found


class OffsetId2Index:
    """Map from ids of a range to rows: ``id2index[ids]``."""

    def __init__(self, offset: int) -> None:
        """Set the first id of the range."""
        self.offset = offset

    def __getitem__(self, ids: Tensor) -> Tensor:
        """Return int64[n], the row of each id."""
        return ids - self.offset

    def to(self, device: Any) -> OffsetId2Index:
        """Return the same object: rows are on the device of the ids."""
        return self


class RangePartitionBook(PartitionBook):
    """Book of parts that own consecutive ranges of ids.

    Attributes:
        partition_bounds: int64[num_partitions], the exclusive end of each part's range.
        partition_idx: The part of this process.
    """

    def __init__(self, partition_ranges: Sequence[tuple[int, int]], partition_idx: int) -> None:
        """Set the ranges.

        Args:
            partition_ranges: First id and exclusive end of each part; a range starts at the end of the one before.
            partition_idx: The part of this process.

        Raises:
            SettingsError: A range is empty, or does not start at the end of the one before.
            IdRangeError: There is no such part.
        """
        for part, (start, end) in enumerate(partition_ranges):
            if not start < end:
                raise SettingsError(
                    f"partition_ranges[{part}] is {(start, end)}; the start of a range must be below its end; "
                    "use a GLTPartitionBook for parts without nodes"
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
        """Return int64[n], the part of each id; ``num_partitions`` for ids beyond the last range, as in GLT."""
        return torch.searchsorted(self.partition_bounds, torch.as_tensor(indices), right=True)

    @property
    def num_partitions(self) -> int:
        """Number of parts."""
        return len(self.partition_bounds)

    @property
    def device(self) -> torch.device:
        """Device of the book."""
        return self.partition_bounds.device

    @property
    def id2index(self) -> OffsetId2Index:
        """Map from ids of the own part to its rows."""
        return self._id2index

    def id_filter(self, node_pb: PartitionBook, partition_idx: int) -> Tensor:
        """Return int64[n], the ids of a part, ascending; ids of part 0 count from 0."""
        start = int(self.partition_bounds[partition_idx - 1]) if partition_idx > 0 else 0
        return torch.arange(start, int(self.partition_bounds[partition_idx]))


def table_of(book: Tensor | PartitionBook) -> Tensor:
    """Return int64[n], the part of each id of a book, as a new tensor."""
    if isinstance(book, RangePartitionBook):
        return book[torch.arange(int(book.partition_bounds[-1]))]
    if not isinstance(book, Tensor):
        raise SettingsError(f"the book is {type(book).__name__}; give a tensor or a RangePartitionBook")
    return book.as_subclass(Tensor).clone()
