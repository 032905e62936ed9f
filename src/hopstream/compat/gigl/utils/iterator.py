"""Goes through a loader again and again, for loops that count steps instead of epochs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, Self, TypeVar

T = TypeVar("T")


class InfiniteIterator(Generic[T]):
    """Items of an iterable, from its beginning again after the last; it ends only if there are none."""

    def __init__(self, iterable: Iterable[T]) -> None:
        """Begin to go through the iterable."""
        self._iterable = iterable
        self._iterator = iter(iterable)

    def __iter__(self) -> Self:
        """Itself."""
        return self

    def __next__(self) -> T:
        """The next item; after the last one the iterable is begun anew.

        Raises:
            StopIteration: The iterable has no items.
        """
        try:
            return next(self._iterator)
        except StopIteration:
            self._iterator = iter(self._iterable)
            return next(self._iterator)
