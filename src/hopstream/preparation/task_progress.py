"""Reports progress between processes through a file.

By a small file, which the one replaces now and then and the other reads.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hopstream.arrays import write_text
from hopstream.dataset.settings import Progress

INTERVAL_S = 0.3


def progress_to_file(path: Path) -> Progress:
    """Progress that is written to a file, when a stage begins and then at most every so often."""
    stage_told, told_s = "", 0.0

    def tell(stage: str, done: int, total: int) -> None:
        nonlocal stage_told, told_s
        if stage == stage_told and time.monotonic() - told_s < INTERVAL_S:
            return
        stage_told, told_s = stage, time.monotonic()
        write_text(path, json.dumps([stage, int(done), int(total)]))

    return tell


@contextmanager
def progress_from_file(path: Path, progress: Progress, prefix: str) -> Iterator[None]:
    """Tell, from a thread, what is written to a file while inside; each stage has ``prefix`` before its name.

    What ``progress`` raises is raised at the end.
    """
    stop, raised = threading.Event(), list[BaseException]()

    def watch() -> None:
        before: list[str | int] = []
        while not stop.wait(INTERVAL_S):
            told = _read(path)
            if told and told != before:
                before = told
                try:
                    progress(f"{prefix} {told[0]}", int(told[1]), int(told[2]))
                except BaseException as error:
                    raised.append(error)
                    return

    thread = threading.Thread(target=watch, name="progress from a file", daemon=True)
    path.unlink(missing_ok=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        path.unlink(missing_ok=True)
    if raised:
        raise raised[0]


def _read(path: Path) -> list[str | int]:
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return []
    return told if isinstance(told, list) and len(told) == 3 else []
