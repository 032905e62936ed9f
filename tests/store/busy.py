"""Let a server seem too busy to take a request."""

from __future__ import annotations

from typing import Any

from hopstream.errors import ServerBusy
from hopstream.transport.connection import Connection


def make_busy(connection: Connection, num_times: float) -> list[bool]:
    """Refuse a connection's first attempts; the list tells of each attempt whether it was refused."""
    refused: list[bool] = []
    real: Any = connection._find_link

    def find_link(*arguments: Any, **named: Any) -> Any:
        refused.append(len(refused) < num_times)
        if refused[-1]:
            raise ServerBusy("the server has as many connections as it may have")
        return real(*arguments, **named)

    connection._find_link = find_link  # type: ignore[method-assign]
    return refused
