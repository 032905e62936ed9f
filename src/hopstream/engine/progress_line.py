"""Progress line on stderr, for long work of the library outside of the command line."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

INTERVAL_S = 0.5


class ProgressLine:
    """Progress function that rewrites a line on stderr; silent if stderr is no terminal."""

    def __init__(self, title: str, text_of: Callable[[int], str], *, after_s: float = 0.0) -> None:
        """Write nothing yet.

        Args:
            title: Start of the line.
            text_of: Formats an amount of work, such as ``1.2 GB``.
            after_s: Seconds of work before the line appears.
        """
        self._title, self._text_of, self._after_s = title, text_of, after_s
        self._started = time.monotonic()
        self._shown = 0.0
        self._first: int | None = None

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Write the line, at most every ``INTERVAL_S``, and at the end of a stage if it was written before."""
        now = time.monotonic()
        self._first = done if self._first is None else self._first
        is_due = now - self._shown >= INTERVAL_S and now - self._started >= self._after_s
        is_end = done == total and (self._shown > 0 or not self._after_s)
        if not sys.stderr.isatty() or not (is_due or is_end):
            return
        self._shown = now
        made, left_s = done - self._first, 0.0
        if made:
            left_s = (now - self._started) * (total - done) / made
        end = "\n" if done == total else ""
        shown = f"{self._text_of(done)} of {self._text_of(total)}, {left_s:.0f} s left"
        sys.stderr.write(f"\r{self._title}: {shown}   {end}")
        sys.stderr.flush()
