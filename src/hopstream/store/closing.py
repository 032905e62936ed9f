"""How does a server of Arrow Flight end, also where a client never takes its answer?

The transport waits for clients that are frozen until it takes their connections for lost, which takes it half a minute,
and it waits anew when the process ends. Here both waits are bounded.
"""

from __future__ import annotations

import threading
import weakref

from pyarrow import flight


class Closing:
    """The end of a server, which has begun: new calls are refused, and those under way are answered."""

    def __init__(self, server: flight.FlightServerBase, name: str) -> None:
        """Begin.

        Args:
            server: What ends.
            name: What the thread that waits is called.
        """
        self._server = server
        self._thread = threading.Thread(target=server.shutdown, name=name, daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait until the server has ended, but not longer; whether it has."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def give_up(self) -> None:
        """Let the process end without the server, where it has not ended yet."""
        if self._thread.is_alive():
            for finalizer in list(getattr(weakref.finalize, "_registry", ())):  # that of pyarrow has no other name
                if (finalizer.peek() or (None,))[0] is self._server:
                    finalizer.atexit = False
