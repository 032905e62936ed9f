"""Settings of how tasks run, and the choice of memory and workers that the user left open.

Memory is the resident memory, without file backing, of all processes of the job together; see ``engine.machine``.
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
"""Share of the free memory that a job takes by default."""
MEMORY_HELP = (
    f"memory limit of all processes together, such as 500MB or 4GiB; if not given, {MEMORY_SHARE * 100:.0f} % of the "
    "free memory"
)
MIN_SILENCE_S = 3.0
"""A few heartbeats; workers send one per second."""
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKMGT]i?)?B?")
BYTE_UNITS = (" B", " kB", " MB", " GB", " TB", " PB")
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
WORKERS_HELP = "worker processes; 0 does all work in one process; if not given, one per processor, or as many as fit"


def no_progress(stage: str, done: int, total: int) -> None:
    """Ignore the progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings(Settings):
    """Deadlines, and the number of retries of a task. The constructor checks every field.

    Raises:
        SettingsError: A field has an invalid value.
    """

    task_timeout_s: float = field(default=86_400.0, metadata={"help": "seconds that one task may take"})
    silence_s: float = field(
        default=300.0,
        metadata={"help": "seconds without a heartbeat after which a worker process is replaced"},
    )
    retries: int = field(default=1, metadata={"help": "retries of a task whose worker was lost"})
    stop_s: float = field(
        default=3.0,
        metadata={"help": "seconds that workers get to stop before they are killed"},
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
    """Number and kind of workers, checked by the constructor. They do not change what is written.

    Raises:
        SettingsError: A field has an invalid value.
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
    """Memory and workers of bounded work. The constructor checks every field.

    Records with further settings of a command inherit these fields.

    Raises:
        SettingsError: A field has an invalid value.
    """

    memory: str | None = field(default=None, metadata={"help": MEMORY_HELP})

    def __post_init__(self) -> None:
        """Check every field."""
        WorkerSettings.__post_init__(self)  # super() fails in a class that slots=True re-created
        if self.memory is not None:
            memory_bytes(self.memory)


class WorkOptions(WorkerOptions, total=False):
    """The fields of ``WorkSettings`` as keyword arguments."""

    memory: str | None


def memory_bytes(text: object, name: str = "memory") -> int:
    """Parse a size such as ``4GiB``, ``500 MB`` or ``2000000000`` into bytes; errors call it ``name``.

    Raises:
        SettingsError: The text is not a size.
    """
    match = _SIZE.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise SettingsError(f"{name} is {text!r}; it must be a size such as 500MB or 4GiB")
    unit = (match[2] or "").replace("K", "k")
    num_bytes = float(match[1]) * _UNITS[unit]
    if num_bytes >= 1 << 63:
        raise SettingsError(f"{name} is {text!r:.40}; it must be below 2**63 bytes")
    return int(num_bytes)


def read_bytes(name: str, value: object) -> int:
    """Read a number of bytes, or a size in units; see ``memory_bytes``.

    Raises:
        SettingsError: The value is neither, or below 0.
    """
    return read_integer(name, memory_bytes(value, name) if isinstance(value, str) else value, 0, 1 << 62)


def bytes_text(num_bytes: int) -> str:
    """Format a size in decimal units: ``5.3 GB``."""
    return scaled_text(num_bytes, BYTE_UNITS)


def size_text(text: str) -> str:
    """Format a size as given, and in decimal units if that differs: ``500MB``, ``4GiB (4.3 GB)``.

    Raises:
        SettingsError: The text is not a size.
    """
    shown = bytes_text(memory_bytes(text))
    same = re.sub(r"\.0\b|\s", "", shown).lower() == re.sub(r"\.0+\b|\s", "", text).lower()
    return text.strip() if same else f"{text.strip()} ({shown})"


def processes_text(num_processes: int) -> str:
    """Format the subject of ``3 processes need at least 1.1 GB``."""
    return "one process needs" if num_processes == 1 else f"{num_processes} processes need"


def scaled_text(value: int, units: tuple[str, ...]) -> str:
    """Format a number with one decimal, in the unit (each 1000 times the last) that makes it below 1000."""
    if abs(value) < 1000:
        return f"{value}{units[0]}"
    # Values from 999.95 on would be rounded to 1000.0, so they take the next unit.
    power = 1
    while abs(value) / 1000**power >= 999.95 and power < len(units) - 1:
        power += 1
    return f"{value / 1000**power:.1f}{units[power]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Least memory that one step of a job needs.

    Attributes:
        alone_bytes: Memory if one process does everything.
        parent_bytes: Memory of the process that starts workers.
        worker_bytes: Memory of each worker.
        what: Subject and verb for an error, such as ``halos need``; if it is empty, the error names the processes.
        remedy: Remedy in addition to more memory, for an error.
    """

    alone_bytes: int
    parent_bytes: int
    worker_bytes: int
    what: str = ""
    remedy: str = ""

    @classmethod
    def of_one(cls, num_bytes: int, what: str = "", remedy: str = "") -> Needs:
        """Make the needs of a step that do not depend on the number of workers."""
        return cls(alone_bytes=num_bytes, parent_bytes=num_bytes, worker_bytes=0, what=what, remedy=remedy)

    def least_bytes(self, num_workers: int) -> int:
        """Return the least memory with a number of workers."""
        return self.parent_bytes + num_workers * self.worker_bytes if num_workers else self.alone_bytes


def rounded_up(num_bytes: int) -> int:
    """Round up to a number that ``bytes_text`` shows exactly, so that the amount in an error is enough."""
    unit = 10**6 if num_bytes < 10**9 else 10**8 if num_bytes < 999_950_000_000 else 10**11
    return -(-num_bytes // unit) * unit


def least_bytes(needs: Sequence[Needs], num_workers: int) -> int:
    """Return the least memory that is enough for every step, rounded up as messages show it."""
    return rounded_up(max(step.least_bytes(num_workers) for step in needs))


def most_workers(needs: Sequence[Needs], num_bytes: int, at_most: int = MAX_WORKERS) -> int:
    """Return the most workers that fit into a memory; 0 if none fits."""
    low, high = 0, at_most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if least_bytes(needs, middle) <= num_bytes else (low, middle - 1)
    return low


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Part of a job's allotment that is stored for resuming.

    Attributes:
        memory_bytes: Memory of all processes together.
        num_workers: Number of worker processes; 0 if one process does everything.
    """

    memory_bytes: int
    num_workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Allotment(Choice):
    """Memory and workers of a job.

    Attributes:
        memory_text: The memory and its reason: ``9.6 GB (60 % of 16.0 GB free)``.
        workers_text: Reason for the number of workers, ``8 of 64 workers fit``; empty if it is the requested number.
        engine: What runs the tasks.
    """

    memory_text: str
    workers_text: str
    engine: EngineName

    @property
    def num_working(self) -> int:
        """Number of processes that work, at least 1."""
        return max(1, self.num_workers)


def settled(settings: WorkSettings, work: Allotment) -> WorkSettings:
    """Return settings that request exactly the allotment."""
    return replace(settings, memory=str(work.memory_bytes), num_workers=work.num_workers)


def allot(
    memory: str | None, workers: WorkerSettings, needs: Sequence[Needs], machine: Machine | None = None,
    before: Choice | None = None,
) -> Allotment:  # fmt: skip
    """Choose the settings that are not given so that the job fits, and check the given ones.

    Args:
        memory: Memory of all processes, such as ``4GiB``; None for ``MEMORY_SHARE`` of the free memory, or the least
            that the job needs if that is more.
        workers: Number and engine of the workers; None for one per processor, as many as fit.
        needs: Needs of every step.
        machine: The machine; None for the current state of this one.
        before: The choice of an unfinished job. Its memory is kept if it is enough and still free. With its memory, its
            number of workers is kept as an upper limit.

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
    """Return what does not fit with a number of workers, and the remedy."""
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
    """Return the job's share of the free memory, and its reason."""
    share, free = int(MEMORY_SHARE * machine.free_bytes), f"{bytes_text(machine.free_bytes)} free"
    if share < least <= machine.free_bytes:
        return least, f"{bytes_text(least)} (the minimum; {free})"
    return share, f"{bytes_text(share)} ({MEMORY_SHARE * 100:.0f} % of {free})"
