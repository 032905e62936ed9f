"""Located rows: addresses of the rows of a fetch, in files, caches and answers, for one copy.

Each source of a fetch writes where its rows are. One pass in the order of the output then copies all rows. A pass per
source costs nearly as much as one pass over all rows, because each pass brings all of the output into the processor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, cast

import numpy as np

from hopstream.arrays import Array, IntArray
from hopstream.kernels.gather import copy_located
from hopstream.kernels.memory import address_of
from hopstream.schema import FeatureSchema


class Target(NamedTuple):
    """Destination of the rows of one column.

    Attributes:
        address: Address of the first row.
        stride: Bytes from one row to the next.
        num_rows: Number of rows.
    """

    address: int
    stride: int
    num_rows: int

    @classmethod
    def of(cls, column: Array) -> Target:
        """Return the destination of rows in a C-contiguous array."""
        return cls(address_of(column), column.strides[0], len(column))


@dataclass(frozen=True, slots=True, eq=False)
class LocatedRows:
    """Addresses of the rows of some columns of fixed width.

    The caller keeps the memory alive, or gives it to ``kept``.

    Attributes:
        names: The columns.
        sizes: int64[num_columns], bytes of a row.
        addresses: int64[num_columns, n]; 0 for rows that are not located.
    """

    names: tuple[str, ...]
    sizes: IntArray
    addresses: IntArray
    _kept: list[Array] = field(default_factory=list)

    @classmethod
    def none(cls, features: Mapping[str, FeatureSchema], num_rows: int) -> LocatedRows:
        """Prepare to locate rows of those columns that have a fixed width and any bytes."""
        sizes = {name: f.row_bytes for name, f in features.items() if f.is_fixed_width and f.row_bytes}
        return cls(tuple(sizes), np.array([*sizes.values()], np.int64), np.zeros((len(sizes), num_rows), np.int64))

    def kept(self, rows: Array) -> Array:
        """Keep an array alive as long as the addresses, and return it."""
        self._kept.append(rows)
        return rows

    def addresses_of(self, name: str) -> IntArray:
        """Return the addresses of a column, int64[n]."""
        return cast(IntArray, self.addresses[self.names.index(name)])

    def columns(self) -> list[tuple[str, IntArray]]:
        """Return each column's name and addresses, int64[n]."""
        return list(zip(self.names, self.addresses, strict=True))

    def take(self, positions: IntArray, columns: Mapping[str, Array]) -> None:
        """Locate rows that are the consecutive rows of C-contiguous arrays."""
        for name, addresses in self.columns():
            if name in columns:
                rows = columns[name]
                addresses[positions] = address_of(rows) + np.arange(len(rows)) * rows.strides[0]

    def copy(self, addresses: IntArray, targets: IntArray, out: Sequence[Target]) -> None:
        """Copy rows to ``out``, one destination per column.

        Args:
            addresses: int64[num_columns, m], of all columns.
            targets: int64[m], the row of ``out`` for each address; or int64[0] for rows 0 to m - 1.
            out: Destinations.

        Raises:
            IndexError: A row of ``out`` does not exist.
        """
        copy_located(addresses, self.sizes, targets, np.array(out, np.int64).reshape(-1, 3))
