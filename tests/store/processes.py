"""Start, freeze, kill and end the server processes of a test, each by its own handle."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import TracebackType

START_S = 110.0
"""Seconds for a server to compile its kernels on a busy machine; a test may take 120 s in all."""
END_S = 20.0
ROOT = Path(__file__).parents[2]


def environment() -> dict[str, str]:
    """The environment of a process that imports the package and its tests from here."""
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


class ServerProcess:
    """A server in a process of its own."""

    def __init__(self, root: Path, *arguments: object, log: Path | None = None) -> None:
        command = [sys.executable, "-m", "tests.store.serve", str(root), *map(str, arguments)]
        with nullcontext() if log is None else log.open("wb") as stderr:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=stderr, cwd=ROOT, env=environment(), text=True
            )
        self.location = ""

    def wait_ready(self) -> ServerProcess:
        """Wait for the location that the server prints."""
        assert self._process.stdout is not None
        poll = select.poll()
        poll.register(self._process.stdout, select.POLLIN | select.POLLHUP)
        self.location = self._process.stdout.readline().strip() if poll.poll(1000 * START_S) else ""
        if not self.location:
            self.end()
            raise AssertionError(f"the server did not start: exit status {self._process.returncode}")
        return self

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(END_S)

    def freeze(self) -> None:
        """Stop the process where it is; it keeps its connections and answers nothing."""
        self._process.send_signal(signal.SIGSTOP)
        wait_until(self._is_frozen, "every thread of the server is stopped")

    def _is_frozen(self) -> bool:
        tasks = [path.read_text(encoding="ascii") for path in Path(f"/proc/{self.pid}/task").glob("*/stat")]
        return all(task.rsplit(")", 1)[1].split()[0] == "T" for task in tasks)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def terminate(self) -> None:
        self._process.terminate()

    def wait(self) -> int:
        """The exit status."""
        return self._process.wait(END_S)

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(END_S)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def __enter__(self) -> ServerProcess:
        return self.wait_ready()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


def wait_until(is_so: Callable[[], bool], what: str, timeout_s: float = 20.0) -> None:
    """Poll until a condition holds."""
    ends = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < ends, f"{what}: not within {timeout_s:g} s"
        time.sleep(0.001)
