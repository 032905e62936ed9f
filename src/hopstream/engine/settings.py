"""What can a user choose about how tasks are run?"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Literal

from hopstream.errors import SettingsError

EngineName = Literal["local", "ray", "beam"]

Progress = Callable[[str, int, int], None]
"""Called as ``progress(stage, done, total)``, with ``done == total`` when a stage ends."""

MAX_WORKERS = 4096
MAX_RETRIES = 100
MIN_SILENCE_S = 3.0
"""A few signs of life; workers give one a second."""
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKMGT]i?)?B?")
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """How long is waited, and how often a task is tried. Every field is checked when the record is made.

    Raises:
        SettingsError: A field is outside what it accepts.
    """

    task_timeout_s: float = field(default=86_400.0, metadata={"help": "seconds that one task may take"})
    silence_s: float = field(
        default=300.0,
        metadata={"help": "seconds after which a worker process that gives no sign of life is replaced"},
    )
    retries: int = field(default=1, metadata={"help": "how often a task is tried again after its worker was lost"})
    stop_s: float = field(
        default=3.0,
        metadata={"help": "seconds that workers may take to end when they are told to, before they are killed"},
    )

    def __post_init__(self) -> None:
        """Check every field."""
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise SettingsError(f"{one.name} is {value!r}; it must be a number")
        for name in ("task_timeout_s", "silence_s", "stop_s"):
            if not 0 < getattr(self, name) <= 1e9:
                raise SettingsError(f"{name} is {getattr(self, name)!r}; it must be above 0 and at most 1e9")
        if self.silence_s < MIN_SILENCE_S:
            raise SettingsError(f"silence_s is {self.silence_s!r}; it must be at least {MIN_SILENCE_S}")
        if not isinstance(self.retries, int) or not 0 <= self.retries <= MAX_RETRIES:
            raise SettingsError(f"retries is {self.retries!r}; it must be an integer from 0 to {MAX_RETRIES}")


def check_num_workers(num_workers: object, low: int = 0) -> None:
    """Raise ``SettingsError`` where a number of workers is none that can be had."""
    if isinstance(num_workers, bool) or not isinstance(num_workers, int) or not low <= num_workers <= MAX_WORKERS:
        raise SettingsError(f"num_workers is {num_workers!r}; it must be an integer from {low} to {MAX_WORKERS}")


def memory_bytes(text: object) -> int:
    """A size such as ``4GiB``, ``500 MB`` or ``2000000000``, in bytes.

    Raises:
        SettingsError: It is none.
    """
    match = _SIZE.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise SettingsError(f"memory is {text!r}; it must be a size such as 500MB or 4GiB")
    unit = (match[2] or "").replace("K", "k")
    return int(float(match[1]) * _UNITS[unit])
