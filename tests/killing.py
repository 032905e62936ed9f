"""Kill a program at any moment, and run it to its end.

The program reports its progress in lines on stdout, at least one for each task or step.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

END = 10**6
"""More lines than any program prints."""
TIMEOUT_S = 60


def run_until(program: str, args: Sequence[object], limit: int = END, delay_s: float = 0.0) -> int:
    """Kill a program ``delay_s`` after it has printed ``limit`` lines; return its exit status.

    Args:
        program: Python text; it finds ``args`` in ``sys.argv[1:]``.
        args: Its arguments.
        limit: Lines before the kill; a program that prints fewer ends without one.
        delay_s: Seconds from that line to the kill.

    Raises:
        AssertionError: The program ended with an error of its own.
    """
    words = [sys.executable, "-c", program, *map(str, args)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for _ in zip(range(limit), process.stdout, strict=False):
            pass
        try:
            process.wait(delay_s if limit < END else TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
        _, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode in (0, -signal.SIGKILL), errors
    return process.returncode


def kill_again_and_again(
    program: str, args: Sequence[object], *, num_kills: int, max_lines: int, check: Callable[[], None],
    again: Callable[[], None], delay_s: float = 0.02,
) -> None:  # fmt: skip
    """Kill a program at seeded moments, each time after it made progress, then let it end.

    Args:
        program: As of ``run_until``.
        args: As of ``run_until``.
        num_kills: Number of kills before the last run.
        max_lines: About how many lines it prints.
        check: Checks that all is done and nothing left over; called after each run without a kill.
        again: Undoes the work, so that the program has all to do again.
        delay_s: The longest time between a line and the kill, in seconds.
    """
    done = 0
    while done < num_kills:
        if run_until(program, args, random.randrange(1, max_lines), random.random() * delay_s):
            done += 1
        else:
            check()
            again()
    assert run_until(program, args) == 0
    check()


def left_beside(folder: Path) -> list[str]:
    """Hidden files and folders in a folder."""
    return sorted(path.name for path in folder.glob(".*"))
