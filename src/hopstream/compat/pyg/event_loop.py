"""Lets a coroutine wait for one of torch's futures."""

from __future__ import annotations

import asyncio
from typing import Any

import torch


def to_asyncio_future(future: torch.futures.Future[Any]) -> asyncio.Future[Any]:
    """Make a future that a coroutine of the running event loop can await.

    It has the result or the error of ``future``, whichever thread sets that. A deadline is the coroutine's:
    ``await asyncio.wait_for(to_asyncio_future(future), seconds)``.

    Raises:
        RuntimeError: No event loop runs in this thread.
    """
    loop = asyncio.get_running_loop()
    awaitable: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: Exception | None) -> None:
        if awaitable.done():  # cancelled, by a deadline for example
            return
        if error is None:
            awaitable.set_result(result)
        else:
            awaitable.set_exception(error)

    def on_done(done: torch.futures.Future[Any]) -> None:
        result, error = None, None
        try:
            result = done.value()
        except Exception as raised:  # whatever it is, it is the coroutine's to handle
            error = raised
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, error)

    future.add_done_callback(on_done)
    return awaitable
