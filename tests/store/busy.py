"""Lets a server seem too busy to answer, in the transport's words."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from hopstream.transport.connection import Connection

EXHAUSTED = "gRPC returned resource exhausted error, with message: Server Threadpool Exhausted."


def make_busy(connection: Connection, num_times: float) -> list[bool]:
    """Refuse the first calls of a connection; whether each of its calls was refused is added to the list."""
    refused: list[bool] = []
    real: Any = connection._try

    def attempt(*arguments: Any) -> Exception | None:
        refused.append(len(refused) < num_times)
        return pa.ArrowInvalid(EXHAUSTED) if refused[-1] else real(*arguments)

    connection._try = attempt  # type: ignore[method-assign]
    return refused
