"""Puts outputs into a channel and takes them out, with a deadline for every wait."""

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

    It has the result or the error of ``future``, whichever thread sets that. A deadline is the coroutine's:
    ``await asyncio.wait_for(to_asyncio_future(future), seconds)``.

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
        except Exception as error:  # whatever it is, it is the coroutine's to handle
            awaitable.set_exception(error)

    def on_done(done: torch.futures.Future[Any]) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, done)

    future.add_done_callback(on_done)
    return awaitable


_PUT_S = 0.1
"""How often who waits for room in a channel looks whether the sampler is closed."""


class ChannelSender:
    """Threads that make samples and put them into a channel; they start with the first."""

    def __init__(self, num_threads: int) -> None:
        """Start none yet."""
        self._num_threads = num_threads
        self._pool: ThreadPoolExecutor | None = None
        self._is_closing = threading.Event()

    def deliver(self, channel: Any, work: Callable[[], Output], callback: Callable[[Any], None] | None) -> None:
        """Have a sample made, which comes into the channel, or the error in its place.

        Args:
            channel: A queue of this process, or of ``torch.multiprocessing``.
            work: Makes the sample.
            callback: Called with what was put.
        """
        if self._pool is None:
            self._is_closing.clear()
            self._pool = ThreadPoolExecutor(self._num_threads, thread_name_prefix="hopstream-sampler")

        def put(found: Any) -> None:
            if self._put_in_time(channel, found) and callback is not None:
                callback(found)

        def make() -> None:  # puts it there itself: who asks for samples may be the one who has to empty the channel
            found: Any
            try:
                found = work()
            except Exception as error:  # whatever it is, it is raised where the output is taken
                found = error
            put(found)

        closed = StateError("the sampler was closed before this sample was made")
        self._pool.submit(make).add_done_callback(lambda future: put(closed) if future.cancelled() else None)

    def close(self) -> None:
        """End the threads; samples that are not begun are a ``StateError``, as far as the channel has room."""
        if self._pool is not None:
            self._is_closing.set()
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def _put_in_time(self, channel: Any, found: Any) -> bool:
        """Wait for room in the channel, until this is closed."""
        while not self._is_closing.is_set():
            with suppress(queue.Full):
                channel.put(found, timeout=_PUT_S)
                return True
        with suppress(queue.Full):
            channel.put(found, block=False)
            return True
        return False


def take_from(channel: Any, timeout_s: float) -> Any:
    """The next output of a channel; raises the error that is there in its place.

    Args:
        channel: A queue of this process, or of ``torch.multiprocessing``.
        timeout_s: How long to wait.

    Raises:
        StoreTimeout: Nothing came in time.
    """
    try:
        found = channel.get(timeout=timeout_s)
    except queue.Empty:
        raise StoreTimeout(
            f"nothing came into the channel in {timeout_s:g} s; as many outputs come as samples were asked for, with "
            "sample_from_nodes or sample_from_edges of a sampler that has this channel; rpc_timeout is how long to wait"
        ) from None
    if isinstance(found, BaseException):
        raise found
    return found
