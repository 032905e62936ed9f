"""Starts, watches and stops server processes; none outlives this process.

Each child reads from a pipe whose other end only this process holds. Where this process dies, in whatever way, the pipe
is closed by the system and the child stops; so no child outlives the process that started it.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import IO, Any

from hopstream.errors import StoreUnavailable

MAX_ERROR_LINES = 20
"""Lines of a child's stderr that are kept to explain its end."""
READ_BYTES = 1 << 16
KILL_S = 10.0
"""How long the system may take to end a process that was killed."""


@dataclass(slots=True, eq=False)
class Child:
    """A process and what it has written.

    Attributes:
        name: What messages call it.
        process: The process.
        lines: Whole lines of stdout, in order.
        errors: The last lines of stderr.
        open_streams: How many of its two streams have not ended.
    """

    name: str
    process: subprocess.Popen[bytes]
    lines: list[str] = field(default_factory=list)
    errors: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_ERROR_LINES))
    open_streams: int = 2

    @property
    def has_ended(self) -> bool:
        """The process is gone, and all that it wrote has been read."""
        return self.open_streams == 0 and self.process.poll() is not None

    def ending_text(self) -> str:
        """How it ended, and what it said last."""
        status = self.process.poll()
        if status is None:
            how = "is still running"
        elif status < 0:
            how = f"was ended by {signal.Signals(-status).name}"
        else:
            how = f"ended with exit status {status}"
        said = "".join(f"\n  {line}" for line in self.errors)
        return f"{self.name} (process {self.process.pid}) {how}{said}"


class Children:
    """Child processes that end with this context, or with this process."""

    def __init__(self, *, grace_s: float, on_error_line: Callable[[str], object] = lambda line: None) -> None:
        """Start none yet.

        Args:
            grace_s: How long children may take to end when they are told to, before they are killed.
            on_error_line: Told of every line that a child writes to stderr.
        """
        self._grace_s = grace_s
        self._on_error_line = on_error_line
        self._selector = selectors.DefaultSelector()
        self._running: list[Child] = []
        self._partial: dict[IO[bytes], bytes] = {}

    def __enter__(self) -> Children:
        """Start none yet."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Stop all children."""
        try:
            self.stop()
        finally:
            self._selector.close()

    def start(self, name: str, arguments: Sequence[str], environment: dict[str, str]) -> Child:
        """Start this interpreter with some arguments, in a session of its own so that Ctrl-C does not reach it.

        Raises:
            StoreUnavailable: The system starts no more processes.
        """
        try:
            process = subprocess.Popen(
                [sys.executable, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                start_new_session=True, env=environment,
            )  # fmt: skip
        except OSError as error:
            raise StoreUnavailable(f"{name} cannot be started: {error}") from error
        child = Child(name, process)
        self._running.append(child)
        for stream in _streams(process):
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ, child)
        return child

    def watch(self, wake: socket.socket) -> None:
        """Let ``wait`` return also when there is something to read from a socket."""
        self._selector.register(wake, selectors.EVENT_READ, None)

    def wait(self, timeout_s: float) -> list[Child]:
        """Wait for news; return the children that have ended since the last call."""
        for key, _ in self._selector.select(max(timeout_s, 0.0)):
            stream: Any = key.fileobj
            if key.data is None:
                stream.recv(READ_BYTES)
            else:
                self._read(stream, key.data)
        # The end of a process is seen by the end of its streams, a moment before the process itself can be waited for.
        for child in self._running:
            if child.open_streams == 0 and child.process.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    child.process.wait(0.1)
        ended = [child for child in self._running if child.has_ended]
        for child in ended:
            self._running.remove(child)
            _close(child.process)
        return ended

    def stop(self, is_hurried: Callable[[], bool] = lambda: False) -> list[Child]:
        """End all children: ask them, wait as long as they are allowed to take, then kill.

        Args:
            is_hurried: Asked after each wait; kill at once when it says so.

        Returns:
            The children that were running, all of them ended.
        """
        stopped = list(self._running)
        for child in stopped:
            child.process.terminate()
        self._wait_for_all(self._grace_s, is_hurried)
        for child in self._running:
            child.process.kill()
        self._wait_for_all(KILL_S, lambda: False)
        return stopped

    def _wait_for_all(self, timeout_s: float, is_hurried: Callable[[], bool]) -> None:
        ends = time.monotonic() + timeout_s
        while self._running and (left := ends - time.monotonic()) > 0 and not is_hurried():
            self.wait(left)

    def _read(self, stream: IO[bytes], child: Child) -> None:
        try:
            data = os.read(stream.fileno(), READ_BYTES)
        except BlockingIOError:
            return
        is_output = stream is child.process.stdout
        *lines, rest = (self._partial.pop(stream, b"") + data).split(b"\n")
        if data:
            self._partial[stream] = rest
        else:
            lines += [rest] if rest else []
            self._selector.unregister(stream)
            child.open_streams -= 1
        texts = [line.decode(errors="replace") for line in lines]
        (child.lines if is_output else child.errors).extend(texts)
        if not is_output:
            for text in texts:
                self._on_error_line(text)


class StopSignals:
    """Counts the signals that ask this process to stop, and wakes whoever waits for children."""

    NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self, wake: socket.socket) -> None:
        """Wake whoever reads the other end of a socket."""
        self._wake = wake
        self.count = 0

    def on_signal(self, number: int, _: FrameType | None) -> None:
        """Count, and wake."""
        self.count += 1
        with suppress(OSError):  # full: whoever is to be woken has not slept since the last signal
            self._wake.send(b"!")


@contextmanager
def stop_signals(children: Children) -> Iterator[StopSignals]:
    """Catch the signals that ask to stop while inside, and let them interrupt ``children.wait``."""
    reader, writer = socket.socketpair()
    with reader, writer:
        reader.setblocking(False)
        writer.setblocking(False)
        signals = StopSignals(writer)
        children.watch(reader)
        previous = {number: signal.signal(number, signals.on_signal) for number in StopSignals.NUMBERS}
        try:
            yield signals
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


def _streams(process: subprocess.Popen[bytes]) -> list[IO[bytes]]:
    return [stream for stream in (process.stdout, process.stderr) if stream is not None]


def _close(process: subprocess.Popen[bytes]) -> None:
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()
