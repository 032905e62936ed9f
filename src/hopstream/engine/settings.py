"""Holds what a user can choose about how tasks are run, and chooses where the user did not.

Memory is what all processes of the job have together, resident and with no file behind it: ``engine.peak`` measures it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Literal, TypedDict, get_args

from hopstream.checks import Settings, check_choice, check_int, read_integer
from hopstream.engine.machine import Machine, this_machine
from hopstream.errors import NoRoomError, SettingsError

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


def read_bytes(name: str, value: object) -> int:
    """A number of bytes, or a size in units; see ``memory_bytes``.

    Raises:
        SettingsError: It is neither, or below 0.
    """
    return memory_bytes(value, name) if isinstance(value, str) else read_integer(name, value, 0, 1 << 62)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The least memory that one step of a job works in.

    Attributes:
        alone_bytes: Where one process does everything.
        parent_bytes: Of the process that starts workers.
        worker_bytes: Of each worker.
        what: What needs it, with its verb, for an error: ``halos need``; the processes if it is empty.
        remedy: What helps beside more memory.
    """

    alone_bytes: int
    parent_bytes: int
    worker_bytes: int
    what: str = ""
    remedy: str = ""

    @classmethod
    def of_one(cls, num_bytes: int, what: str = "", remedy: str = "") -> Needs:
        """Those of a step that does not depend on the number of workers."""
        return cls(alone_bytes=num_bytes, parent_bytes=num_bytes, worker_bytes=0, what=what, remedy=remedy)

    def least_bytes(self, num_workers: int) -> int:
        """With so many workers."""
        return self.parent_bytes + num_workers * self.worker_bytes if num_workers else self.alone_bytes


def rounded_up(num_bytes: int) -> int:
    """The next number that ``bytes_text`` shows as it is, so that exactly what an error says is enough."""
    unit = 10**6 if num_bytes < 10**9 else 10**8 if num_bytes < 999_950_000_000 else 10**11
    return -(-num_bytes // unit) * unit


def least_bytes(needs: Sequence[Needs], num_workers: int) -> int:
    """The least memory that is enough for every step, rounded up as messages show it."""
    return rounded_up(max(step.least_bytes(num_workers) for step in needs))


def most_workers(needs: Sequence[Needs], num_bytes: int, at_most: int = MAX_WORKERS) -> int:
    """How many workers fit into so much memory, 0 where none does."""
    low, high = 0, at_most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if least_bytes(needs, middle) <= num_bytes else (low, middle - 1)
    return low


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What is kept of a job's allotment for when the job goes on.

    Attributes:
        memory_bytes: What all processes together may take.
        num_workers: Processes that work; 0 where one does everything.
    """

    memory_bytes: int
    num_workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Allotment(Choice):
    """What a job gets.

    Attributes:
        memory_text: The memory, and why it is that much: ``9.6 GB (60 % of 16.0 GB free)``.
        workers_text: Why there are so many workers, ``8 of 64 workers fit``; empty where that is what was asked for.
        engine: What runs the tasks.
    """

    memory_text: str
    workers_text: str
    engine: EngineName

    @property
    def num_working(self) -> int:
        """How many processes work."""
        return max(1, self.num_workers)


def settled(settings: WorkSettings, work: Allotment) -> WorkSettings:
    """Settings that ask for what was allotted."""
    return replace(settings, memory=str(work.memory_bytes), num_workers=work.num_workers)


def allot(
    memory: str | None, workers: WorkerSettings, needs: Sequence[Needs], machine: Machine | None = None,
    before: Choice | None = None,
) -> Allotment:  # fmt: skip
    """Choose what is not given so that the job fits, and check what is given.

    Args:
        memory: What all processes may take, such as ``4GiB``; None for ``MEMORY_SHARE`` of what is free, or the least
            that the job needs where that is more.
        workers: How many processes work, and where; None of them for as many as there are processors and as fit.
        needs: Of every step.
        machine: What there is; this machine as it is now if it is not given.
        before: What the job was begun with: its memory is kept where it is enough and still free, and with it the
            number of workers where there are as many processors.

    Raises:
        NoRoomError: The job does not fit.
    """
    machine = machine or this_machine()
    num_asked = workers.num_workers
    num_least = (0 if workers.engine == "local" else 1) if num_asked is None else num_asked
    least = least_bytes(needs, num_least)
    if memory is not None:
        there, text = memory_bytes(memory), size_text(memory)
    elif before is not None and least <= before.memory_bytes <= machine.free_bytes:
        there, text = before.memory_bytes, f"{bytes_text(before.memory_bytes)} (as when the job began)"
    else:
        there, text = _share(machine, least)
    if there < least:
        had = f"memory is {text}" if memory is not None else f"{bytes_text(machine.free_bytes)} of memory are free"
        most = there if memory is not None else machine.free_bytes
        raise NoRoomError(f"{had}; {_refusal(needs, num_least, most, workers.engine)}")
    num_workers, said = num_least, ""
    if num_asked is None:
        at_most = machine.num_processors
        if before is not None and before.memory_bytes == there:
            at_most = min(at_most, before.num_workers)
        num_workers = max(num_least, most_workers(needs, there, at_most))
        if num_workers < machine.num_processors:
            said = f"{num_workers or 'none'} of {machine.num_processors} workers fit"
    return Allotment(
        memory_bytes=there, num_workers=num_workers, memory_text=text, workers_text=said, engine=workers.engine
    )


def _refusal(needs: Sequence[Needs], num_workers: int, there: int, engine: EngineName) -> str:
    """What does not fit with so many workers, and what would help."""
    step = max(needs, key=lambda step: step.least_bytes(num_workers))
    who = step.what or processes_text(num_workers + 1 if num_workers else 1)
    beside = f" beside {num_workers} workers" if step.what and num_workers and step.worker_bytes else ""
    fitting = most_workers(needs, there, num_workers)
    remedy = "give more memory"
    if fitting:
        remedy += f" or fewer workers ({fitting} fit)"
    elif engine == "local" and num_workers and least_bytes(needs, 0) <= there:
        remedy += " or no workers (0)"
    return f"{who} at least {bytes_text(least_bytes(needs, num_workers))}{beside}: {remedy}{step.remedy}"


def _share(machine: Machine, least: int) -> tuple[int, str]:
    """What a job gets of the memory that is free, and why."""
    share, free = int(MEMORY_SHARE * machine.free_bytes), f"{bytes_text(machine.free_bytes)} free"
    if share < least <= machine.free_bytes:
        return least, f"{bytes_text(least)} (the least that it needs of {free})"
    return share, f"{bytes_text(share)} ({MEMORY_SHARE * 100:.0f} % of {free})"
