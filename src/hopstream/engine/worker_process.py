"""Starts, asks and ends one worker process."""

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
"""How much of a worker's stderr is kept to explain its end."""
KILL_S = 10.0
"""How long the system may take to end a process that was killed."""


def status_text(status: int | None) -> str:
    """How a process ended, by the exit status that ``Popen.poll`` gives."""
    if status is None:
        return "is still running"
    return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"


class WorkerProcess:
    """A process that runs one task at a time.

    Attributes:
        task: The task that it runs now.
        task_since: When it was given that task, as ``time.monotonic`` has it.
        last_sign: When it was last heard of.
    """

    def __init__(self, selector: selectors.BaseSelector, num_threads: int) -> None:
        """Start one, in a session of its own so that Ctrl-C does not reach it.

        Raises:
            EngineError: The system starts no more processes.
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
        """Have it run a task; it runs none now."""
        line = task.to_line().encode() + b"\n"
        self.task, self.task_since = task, time.monotonic()
        self.last_sign = self.task_since
        self._unsent = memoryview(line)
        self._send()

    def on_event(self, stream: IO[bytes]) -> list[str]:
        """Read or write what can be; the lines that are whole now, signs of life included."""
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
        """The process is gone."""
        if not self._open:  # it closes its streams a moment before it can be waited for
            self.wait(0.1)
        return self._process.poll() is not None

    def ending_text(self) -> str:
        """How it ended, and what it said last."""
        for stream in [stream for stream in self._open if stream is self._process.stderr]:
            self.on_event(stream)
        return f"worker process {self.pid} {status_text(self._process.poll())}" + "".join(
            f"\n  {line}" for line in self._said.splitlines()
        )

    def terminate(self) -> None:
        """Tell it to leave its task and end."""
        self._process.terminate()

    def kill(self) -> None:
        """End it now."""
        self._process.kill()

    def wait(self, timeout_s: float) -> None:
        """Wait until it has ended, or so long."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(max(timeout_s, 0.0))

    def end(self, timeout_s: float) -> None:
        """Close its stdin, which ends it; kill it where that does not."""
        self._forget(self._stdin)
        self._stdin.close()
        self.wait(timeout_s)
        if self._process.poll() is None:
            self.kill()
            self.wait(KILL_S)  # a process that the system does not let go of holds nobody up for longer
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                self._forget(stream)
                stream.close()

    def _send(self) -> None:
        """Write what the pipe takes, and ask to be told when it takes more."""
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self._stdin.fileno(), self._unsent) :]
        except BlockingIOError:
            with suppress(KeyError):  # asked already
                self._selector.register(self._stdin, selectors.EVENT_WRITE, self)
            return
        except BrokenPipeError:  # it has ended, which its other streams tell
            self._unsent = memoryview(b"")
        self._forget(self._stdin)

    def _forget(self, stream: IO[bytes]) -> None:
        with suppress(KeyError, ValueError):
            self._selector.unregister(stream)
