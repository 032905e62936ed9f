"""Iterator that repeats a loader, for loops that count steps instead of epochs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, Self, TypeVar

T = TypeVar("T")


class InfiniteIterator(Generic[T]):
    """Endless iterator over the items of an iterable; it ends only if there are none."""

    def __init__(self, iterable: Iterable[T]) -> None:
        """Start to iterate."""
        self._iterable = iterable
        self._iterator = iter(iterable)

    def __iter__(self) -> Self:
        """Return the iterator itself."""
        return self

    def __next__(self) -> T:
        """Return the next item; restart the iterable after the last one.

        Raises:
            StopIteration: The iterable has no items.
        """
        try:
            return next(self._iterator)
        except StopIteration:
            self._iterator = iter(self._iterable)
            return next(self._iterator)
