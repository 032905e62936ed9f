"""How do threads of one process share work that comes piece by piece, in bounded memory?"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_threads(num_threads: int, work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Do some work for each item; hand over results in the order of the items.

    Args:
        num_threads: How many items are worked on at once. With one, the caller's own thread works.
        work: Called once for each item, in any thread.
        items: Taken by the caller's thread; two more than there are threads are held at most.

    Raises:
        Exception: What ``work`` raised, for the first item for which it did; items not begun by then are left.
    """
    if num_threads == 1:
        yield from map(work, items)
        return
    pending: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(num_threads, "hopstream-assign") as pool:
        try:
            for item in items:
                pending.append(pool.submit(work, item))
                if len(pending) > num_threads:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
