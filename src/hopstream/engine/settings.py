"""Holds what a user can choose about how tasks are run, and the texts of sizes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Literal, TypedDict, get_args

from hopstream.checks import Settings, check_choice, check_int
from hopstream.errors import SettingsError

EngineName = Literal["local", "ray", "beam"]

Progress = Callable[[str, int, int], None]
"""Called as ``progress(stage, done, total)``, with ``done == total`` when a stage ends."""

MAX_WORKERS = 4096
MAX_RETRIES = 100
MEMORY_SHARE = 0.6
"""Of the memory that is free, what a job may take where nobody says how much."""
MEMORY_HELP = (
    f"memory that all processes together may take, such as 500MB or 4GiB; if not given, {MEMORY_SHARE * 100:.0f} % of "
    "what is free"
)
MIN_SILENCE_S = 3.0
"""A few signs of life; workers give one a second."""
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKMGT]i?)?B?")
BYTE_UNITS = (" B", " kB", " MB", " GB", " TB", " PB")
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
WORKERS_HELP = "processes that work; 0 does all in one; if not given, one per processor, as many as the memory allows"


def no_progress(stage: str, done: int, total: int) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings(Settings):
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
        check_int("retries", self.retries, 0, MAX_RETRIES)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings(Settings):
    """Who works. Every field is checked when the record is made. Nothing of it changes what is written.

    Raises:
        SettingsError: A field is outside what it accepts.
    """

    num_workers: int | None = field(default=None, metadata={"help": WORKERS_HELP})
    engine: EngineName = field(default="local", metadata={"help": "what runs the tasks: processes here, Ray or Beam"})

    def __post_init__(self) -> None:
        """Check every field."""
        if self.num_workers is not None:
            check_int("num_workers", self.num_workers, 0, MAX_WORKERS)
        check_choice("engine", self.engine, get_args(EngineName))


class WorkerOptions(TypedDict, total=False):
    """The fields of ``WorkerSettings`` as keyword arguments."""

    num_workers: int | None
    engine: EngineName


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkSettings(WorkerSettings):
    """What bounded work may take, and who does it. Every field is checked when the record is made.

    Records of what else a verb can be told inherit these fields.

    Raises:
        SettingsError: A field is outside what it accepts.
    """

    memory: str | None = field(default=None, metadata={"help": MEMORY_HELP})

    def __post_init__(self) -> None:
        """Check every field."""
        WorkerSettings.__post_init__(self)  # super() finds no base of a class that slots made anew
        if self.memory is not None:
            memory_bytes(self.memory)


class WorkOptions(WorkerOptions, total=False):
    """The fields of ``WorkSettings`` as keyword arguments."""

    memory: str | None


def memory_bytes(text: object, name: str = "memory") -> int:
    """A size such as ``4GiB``, ``500 MB`` or ``2000000000``, in bytes; errors call it ``name``.

    Raises:
        SettingsError: It is none.
    """
    match = _SIZE.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise SettingsError(f"{name} is {text!r}; it must be a size such as 500MB or 4GiB")
    unit = (match[2] or "").replace("K", "k")
    return int(float(match[1]) * _UNITS[unit])


def bytes_text(num_bytes: int) -> str:
    """A size in units of a thousand: ``5.3 GB``."""
    return scaled_text(num_bytes, BYTE_UNITS)


def size_text(text: str) -> str:
    """A size as it was given, and in units of a thousand where that looks different: ``500MB``, ``4GiB (4.3 GB)``.

    Raises:
        SettingsError: It is none.
    """
    shown = bytes_text(memory_bytes(text))
    same = re.sub(r"\.0\b|\s", "", shown).lower() == re.sub(r"\.0+\b|\s", "", text).lower()
    return text.strip() if same else f"{text.strip()} ({shown})"


def processes_text(num_processes: int) -> str:
    """As in ``3 processes need at least 1.1 GB``."""
    return "one process needs" if num_processes == 1 else f"{num_processes} processes need"


def scaled_text(value: int, units: tuple[str, ...]) -> str:
    """A number with one decimal in the unit, of those a thousand apart, that leaves it below a thousand."""
    if abs(value) < 1000:
        return f"{value}{units[0]}"
    # One decimal would round what is above 999.95 to 1000.0.
    power = 1
    while abs(value) / 1000**power >= 999.95 and power < len(units) - 1:
        power += 1
    return f"{value / 1000**power:.1f}{units[power]}"
