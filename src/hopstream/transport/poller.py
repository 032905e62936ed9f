"""Poller: reports ready descriptors, each event to one thread, until the descriptor is armed again."""

from __future__ import annotations

import select
import selectors
import threading
from contextlib import suppress
from typing import Protocol

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class Poller(Protocol):
    """Watcher of descriptors; any number of threads may wait at once."""

    def arm(self, fd: int, events: int) -> None:
        """Report once, to one thread, when a descriptor is ready for an event or its peer has closed it."""
        ...

    def forget(self, fd: int) -> None:
        """Stop watching a descriptor; called before it is closed."""
        ...

    def poll(self, timeout_s: float) -> list[tuple[int, int]]:
        """Wait for one descriptor; return its number and events, or nothing after the timeout."""
        ...

    def close(self) -> None:
        """Free the poller's descriptors; no thread may be waiting."""
        ...


class EpollPoller:
    """Poller in which threads wait in ``epoll``, which wakes one thread per event."""

    def __init__(self) -> None:
        """Watch nothing yet."""
        self._epoll = select.epoll()
        self._known: set[int] = set()

    def arm(self, fd: int, events: int) -> None:
        """Ask ``epoll`` for one event of a descriptor."""
        mask = select.EPOLLONESHOT | (select.EPOLLIN if events & READ else 0)
        mask |= select.EPOLLOUT if events & WRITE else 0
        if fd in self._known:
            self._epoll.modify(fd, mask)
        else:
            self._known.add(fd)
            self._epoll.register(fd, mask)

    def forget(self, fd: int) -> None:
        """Remove a descriptor from ``epoll``."""
        self._known.discard(fd)
        with suppress(OSError, ValueError):  # ValueError: the poller is closed
            self._epoll.unregister(fd)

    def poll(self, timeout_s: float) -> list[tuple[int, int]]:
        """Wait in ``epoll`` for one event."""
        found: list[tuple[int, int]] = []
        for fd, mask in self._epoll.poll(timeout_s, 1):
            events = READ if mask & ~select.EPOLLOUT else 0
            found.append((fd, events | (WRITE if mask & select.EPOLLOUT else 0)))
        return found

    def close(self) -> None:
        """Close the ``epoll`` descriptor."""
        self._epoll.close()


class SelectorPoller:
    """Poller for systems without ``epoll``: one thread waits at a time."""

    def __init__(self) -> None:
        """Watch nothing yet."""
        self._selector = selectors.DefaultSelector()
        self._turn = threading.Lock()
        self._changes = threading.Lock()

    def arm(self, fd: int, events: int) -> None:
        """Register a descriptor with the selector."""
        with self._changes:
            if fd in self._selector.get_map():
                self._selector.modify(fd, events)
            else:
                self._selector.register(fd, events)

    def forget(self, fd: int) -> None:
        """Unregister a descriptor from the selector."""
        with self._changes, suppress(KeyError):
            self._selector.unregister(fd)

    def poll(self, timeout_s: float) -> list[tuple[int, int]]:
        """Wait for one event; only one thread at a time is in the selector."""
        if not self._turn.acquire(timeout=timeout_s):
            return []
        try:
            ready = self._selector.select(timeout_s)[:1]
            for key, _ in ready:
                self.forget(key.fd)
            return [(key.fd, events) for key, events in ready]
        finally:
            self._turn.release()

    def close(self) -> None:
        """Close the selector."""
        self._selector.close()


def new_poller() -> Poller:
    """Return the best poller of this system."""
    return EpollPoller() if hasattr(select, "epoll") else SelectorPoller()
