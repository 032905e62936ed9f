"""Sender and receiver of samples through a channel, with a deadline for every wait."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import torch

from hopstream.compat.pyg.sampler import Output
from hopstream.errors import StateError, StoreTimeout


def to_asyncio_future(future: torch.futures.Future[Any]) -> asyncio.Future[Any]:
    """Make a future that a coroutine of the running event loop can await.

    It takes the result or the error of ``future``, which any thread may set. The caller sets the deadline: ``await
    asyncio.wait_for(to_asyncio_future(future), seconds)``.

    Raises:
        RuntimeError: No event loop runs in this thread.
    """
    loop = asyncio.get_running_loop()
    awaitable: asyncio.Future[Any] = loop.create_future()

    def settle(done: torch.futures.Future[Any]) -> None:
        if awaitable.done():  # cancelled, by a deadline for example
            return
        try:
            awaitable.set_result(done.value())
        except Exception as error:  # the coroutine handles errors of every type
            awaitable.set_exception(error)

    def on_done(done: torch.futures.Future[Any]) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, done)

    future.add_done_callback(on_done)
    return awaitable


_PUT_S = 0.1
"""Interval in seconds at which a thread that waits for room in a channel checks whether the sampler is closed."""


class ChannelSender:
    """Thread pool that makes samples and puts them into a channel; the first sample starts the threads."""

    def __init__(self, num_threads: int) -> None:
        """Set the number of threads; start none."""
        self._num_threads = num_threads
        self._pool: ThreadPoolExecutor | None = None
        self._is_closing = threading.Event()

    def deliver(self, channel: Any, work: Callable[[], Output], callback: Callable[[Any], None] | None) -> None:
        """Make a sample in a thread, and put it or its error into the channel.

        Args:
            channel: A queue of this process, or of ``torch.multiprocessing``.
            work: Makes the sample.
            callback: Called with the sample or the error after it was put.
        """
        if self._pool is None:
            self._is_closing.clear()
            self._pool = ThreadPoolExecutor(self._num_threads, thread_name_prefix="hopstream-sampler")

        def put(found: Any) -> None:
            if self._put_in_time(channel, found) and callback is not None:
                callback(found)

        def make() -> None:  # puts the sample itself: the caller of deliver may also be the channel's only reader
            found: Any
            try:
                found = work()
            except Exception as error:  # the channel's reader raises errors of every type
                found = error
            put(found)

        closed = StateError("the sampler was closed before this sample was made")
        self._pool.submit(make).add_done_callback(lambda future: put(closed) if future.cancelled() else None)

    def close(self) -> None:
        """End the threads; queued samples become a ``StateError`` in the channel, while it has room."""
        if self._pool is not None:
            self._is_closing.set()
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def _put_in_time(self, channel: Any, found: Any) -> bool:
        """Wait for room in the channel, until the sender is closed; return whether the output was put."""
        while not self._is_closing.is_set():
            with suppress(queue.Full):
                channel.put(found, timeout=_PUT_S)
                return True
        with suppress(queue.Full):
            channel.put(found, block=False)
            return True
        return False


def take_from(channel: Any, timeout_s: float) -> Any:
    """Return the next output of a channel, or raise the error in its place.

    Args:
        channel: A queue of this process, or of ``torch.multiprocessing``.
        timeout_s: Deadline in seconds.

    Raises:
        StoreTimeout: The deadline passed.
    """
    try:
        found = channel.get(timeout=timeout_s)
    except queue.Empty:
        raise StoreTimeout(
            f"nothing came into the channel in {timeout_s:g} s; each call of sample_from_nodes or sample_from_edges of "
            "a sampler with this channel puts one output into it; rpc_timeout is the time to wait"
        ) from None
    if isinstance(found, BaseException):
        raise found
    return found
