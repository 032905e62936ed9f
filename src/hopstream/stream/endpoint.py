"""HTTP endpoint of a server for pages about itself, which slow clients cannot block.

Every connection is one request, answered in its own thread. A slow connection does not delay others: it has a deadline.
If there are too many connections, the newest one closes the oldest.
"""

from __future__ import annotations

import errno
import logging
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

from hopstream.errors import SettingsError, StoreUnavailable
from hopstream.transport.binding import ADDRESS_REMEDY, is_of_elsewhere

LOG = logging.getLogger(__name__)
TURN_S = 10.0
"""Timeout in seconds of one read or write of a connection."""
MAX_CONNECTIONS = 32
"""Largest number of open connections; the next one closes the oldest."""
JOIN_S = 5.0
"""Seconds that ``close`` waits for the threads of closed connections."""
POLL_S = 0.1
"""Longest delay in seconds until the listening thread notices that it must end."""
TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Response to a request."""

    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = TEXT

    @classmethod
    def of_text(cls, text: str, status: HTTPStatus = HTTPStatus.OK) -> Page:
        """Make a page of one line of text."""
        return cls(body=f"{text}\n".encode(errors="backslashreplace"), status=status)


Pages = Mapping[str, Callable[[], Page]]
"""Functions that make the page of each path. They run in the connection's thread, and must be quick."""


class Endpoint:
    """HTTP listener: answers GET and HEAD for some paths, and 404 for all others, until it is closed."""

    def __init__(self, host: str, port: int, pages: Pages) -> None:
        """Start to listen and to answer, in own threads.

        Args:
            host: Name or IP address of this machine, without brackets.
            port: Port; 0 lets the system choose.
            pages: Functions that make the pages.

        Raises:
            SettingsError: ``port`` is out of range.
            StoreUnavailable: The endpoint cannot listen at the address, for example because the port is in use.
        """
        if not 0 <= port < 1 << 16:
            raise SettingsError(f"port is {port}; ports are numbered 0..65535")
        shown = f"[{host}]" if ":" in host else host
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self._listener = _Listener(family, address, pages)
        except (OSError, UnicodeError) as error:  # UnicodeError: an invalid host name
            reason = f"{error}; {ADDRESS_REMEDY}" if is_of_elsewhere(error) else str(error)
            if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
                reason = f"port {port} is in use; choose another, or port 0 to let the system choose"
            raise StoreUnavailable(f"cannot listen at http://{shown}:{port}: {reason}") from error
        self.location = f"http://{shown}:{self._listener.socket.getsockname()[1]}"
        """Address of the endpoint, with the port that the system chose."""
        self._thread = threading.Thread(
            target=self._listener.serve_forever, args=(POLL_S,), name="hopstream-http", daemon=True
        )
        self._thread.start()

    def answer(self, pages: Pages) -> None:
        """Replace the pages."""
        self._listener.pages = pages

    def close(self) -> None:
        """Release the port, close all connections and end the threads; a second call does nothing."""
        self._listener.shutdown()
        self._thread.join()
        self._listener.server_close()
        self._listener.cut_off_all()


class _Listener(socketserver.TCPServer):
    """TCP server with a thread per connection; it keeps all connections to be able to close them."""

    allow_reuse_address = True
    request_queue_size = MAX_CONNECTIONS

    def __init__(self, family: int, address: Any, pages: Pages) -> None:
        self.address_family = family
        self.pages = pages
        self._lock = threading.Lock()
        self._open: dict[socket.socket, threading.Thread] = {}
        self._ending: dict[socket.socket, threading.Thread] = {}
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a new thread."""
        thread = threading.Thread(
            target=self._answer, args=(request, client_address), name="hopstream-http-request", daemon=True
        )
        with self._lock:
            if len(self._open) >= MAX_CONNECTIONS:
                oldest = next(iter(self._open))
                self._ending[oldest] = self._open.pop(oldest)
                _cut_off(oldest)
            has_room = len(self._ending) <= MAX_CONNECTIONS
            if has_room:
                self._open[request] = thread
        if not has_room:
            self.shutdown_request(request)
            return
        try:
            thread.start()
        except RuntimeError:  # the system cannot start another thread
            self._forget(request)
            raise

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log an error of a connection for debugging only: a client may leave at any time."""
        LOG.debug("a connection of %s ended early", client_address, exc_info=True)

    def cut_off_all(self) -> None:
        """Close all connections and wait for their threads."""
        with self._lock:
            left = {**self._open, **self._ending}
        for request in left:
            _cut_off(request)
        ends = time.monotonic() + JOIN_S
        for thread in left.values():
            thread.join(max(0.0, ends - time.monotonic()))
        if any(thread.is_alive() for thread in left.values()):
            LOG.warning("HTTP requests did not end within %g s after their connections were closed", JOIN_S)

    def _answer(self, request: socket.socket, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except Exception:  # an error of one connection must not end the server
            self.handle_error(request, client_address)
        finally:
            self.shutdown_request(request)
            self._forget(request)

    def _forget(self, request: socket.socket) -> None:
        with self._lock:
            self._open.pop(request, None)
            self._ending.pop(request, None)


class _Handler(BaseHTTPRequestHandler):
    """Handler of one request."""

    server: _Listener
    timeout = TURN_S

    def do_GET(self) -> None:
        """Answer with headers and body."""
        self._answer(has_body=True)

    def do_HEAD(self) -> None:
        """Answer with headers only."""
        self._answer(has_body=False)

    def version_string(self) -> str:
        """Return the value of the header ``Server``."""
        return "hopstream"

    def log_message(self, format: str, *args: Any) -> None:
        """Log requests for debugging only."""
        LOG.debug("%s: %r", self.address_string(), format % args)

    def _answer(self, *, has_body: bool) -> None:
        page = self._page()
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(page.body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if has_body:
            self.wfile.write(page.body)

    def _page(self) -> Page:
        make = self.server.pages.get(self.path.split("?")[0])
        if make is None:
            return Page.of_text(f"no such page; there are {', '.join(self.server.pages)}", HTTPStatus.NOT_FOUND)
        try:
            return make()
        except Exception:
            LOG.exception("the page %s could not be made", self.path.split("?")[0])
            return Page.of_text("the server failed; its log says how", HTTPStatus.INTERNAL_SERVER_ERROR)


def _cut_off(request: socket.socket) -> None:
    """Shut a connection down, so that its reads and writes return; its thread closes it."""
    with suppress(OSError):  # the connection has ended already
        request.shutdown(socket.SHUT_RDWR)
