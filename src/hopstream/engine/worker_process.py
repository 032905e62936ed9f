"""Starts, feeds and stops one worker process."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import IO

from hopstream.engine.tasks import Task
from hopstream.errors import EngineError

READ_BYTES = 1 << 18
MAX_ERROR_CHARS = 2000
"""Characters of a worker's stderr that are kept to explain its end."""
KILL_S = 10.0
"""Time limit for the kernel to end a killed process."""


def status_text(status: int | None) -> str:
    """Describe how a process ended, by the exit status of ``Popen.poll``."""
    if status is None:
        return "is still running"
    return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"


class WorkerProcess:
    """Process that runs one task at a time.

    Attributes:
        task: The current task, or None.
        task_since: ``time.monotonic`` at the start of the task.
        last_sign: ``time.monotonic`` of the last output.
    """

    def __init__(self, selector: selectors.BaseSelector, num_threads: int) -> None:
        """Start a process in its own session, so that Ctrl-C does not reach it.

        Raises:
            EngineError: The system cannot start another process.
        """
        words = [sys.executable, "-P", "-X", "faulthandler", "-m", "hopstream.engine.worker", str(num_threads)]
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(
                words, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True, bufsize=0
            )
        except OSError as error:
            raise EngineError(f"a worker process cannot be started: {error}") from error
        self.task: Task | None = None
        self.task_since = self.last_sign = time.monotonic()
        self._selector = selector
        self._unsent = memoryview(b"")
        self._partial: list[bytes] = []
        self._said = ""
        self._open = [stream for stream in (self._process.stdout, self._process.stderr) if stream is not None]
        for stream in (*self._open, self._stdin):
            os.set_blocking(stream.fileno(), False)
        for stream in self._open:
            selector.register(stream, selectors.EVENT_READ, self)

    @property
    def pid(self) -> int:
        """Id of the process."""
        return self._process.pid

    @property
    def _stdin(self) -> IO[bytes]:
        stdin = self._process.stdin
        if stdin is None:
            raise EngineError("a worker process has no stdin")
        return stdin

    def give(self, task: Task) -> None:
        """Send a task to an idle worker."""
        line = task.to_line().encode() + b"\n"
        self.task, self.task_since = task, time.monotonic()
        self.last_sign = self.task_since
        self._unsent = memoryview(line)
        self._send()

    def on_event(self, stream: IO[bytes]) -> list[str]:
        """Read or write without blocking; return the complete lines, including heartbeats."""
        if stream is self._process.stdin:
            self._send()
            return []
        try:
            data = os.read(stream.fileno(), READ_BYTES)
        except BlockingIOError:
            return []
        if not data:
            self._selector.unregister(stream)
            self._open.remove(stream)
            return []
        if stream is self._process.stderr:
            text = data.decode(errors="replace")
            self._said = (self._said + text)[-MAX_ERROR_CHARS:]
            sys.stderr.write(text)
            return []
        self.last_sign = time.monotonic()
        if b"\n" not in data:
            self._partial.append(data)
            return []
        *whole, rest = (b"".join(self._partial) + data).split(b"\n")
        self._partial = [rest]
        return [line.decode() for line in whole]

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        if not self._open:  # a process closes its streams a moment before its exit status is there
            self.wait(0.1)
        return self._process.poll() is not None

    def ending_text(self) -> str:
        """Describe how the process ended, with the end of its stderr."""
        for stream in [stream for stream in self._open if stream is self._process.stderr]:
            self.on_event(stream)
        return f"worker process {self.pid} {status_text(self._process.poll())}" + "".join(
            f"\n  {line}" for line in self._said.splitlines()
        )

    def terminate(self) -> None:
        """Ask the process to leave its task and end."""
        self._process.terminate()

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()

    def wait(self, timeout_s: float) -> None:
        """Wait until the process has ended or the time is up."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(max(timeout_s, 0.0))

    def end(self, timeout_s: float) -> None:
        """Close stdin, which ends the process; kill it if it does not end in time."""
        self._forget(self._stdin)
        self._stdin.close()
        self.wait(timeout_s)
        if self._process.poll() is None:
            self.kill()
            self.wait(KILL_S)  # bounds the wait for a process that the kernel cannot end
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                self._forget(stream)
                stream.close()

    def _send(self) -> None:
        """Write what the pipe takes, and register for the rest."""
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self._stdin.fileno(), self._unsent) :]
        except BlockingIOError:
            with suppress(KeyError):  # registered already
                self._selector.register(self._stdin, selectors.EVENT_WRITE, self)
            return
        except BrokenPipeError:  # the process has ended; its other streams show that
            self._unsent = memoryview(b"")
        self._forget(self._stdin)

    def _forget(self, stream: IO[bytes]) -> None:
        with suppress(KeyError, ValueError):
            self._selector.unregister(stream)
