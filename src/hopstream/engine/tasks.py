"""Tasks, the functions that run them, their form as JSON, the contract of engines, and which tasks of a job are done.

A task is JSON: a name, the kind that names a function of this package, and arguments. No function is ever sent. What
came of it is JSON too: a result, or an error that is raised again where the task was asked for.

A job keeps a marker per task, ``done/<name>.json``, in its folder. A marker is written when its task has ended and says
what came of it; a job that is started again skips the tasks that have one.
"""

from __future__ import annotations

import builtins
import hashlib
import json
import re
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import hopstream
from hopstream import errors
from hopstream.arrays import write_text
from hopstream.engine.settings import Progress, no_progress
from hopstream.errors import (
    EngineError,
    HopstreamError,
    RemoteError,
    SettingsError,
    StateError,
    VersionMismatch,
    WorkerLost,
)

MAX_NAME_CHARS = 200
"""A task's name becomes a file's, with an ending."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,=+@-]*")
_KIND = re.compile(r"(hopstream(?:\.[A-Za-z0-9_]+)*):([A-Za-z0-9_]+)")

TaskFunction = Callable[[dict[str, Any]], Any]
_Function = TypeVar("_Function", bound=TaskFunction)
_FUNCTIONS: dict[str, TaskFunction] = {}


@dataclass(frozen=True, slots=True)
class Task:
    """One piece of work.

    Attributes:
        name: Its name, unique in its job, of letters, digits and ``_.,=+@-``.
        kind: The function that does it, ``module:function``; see ``task`` and ``kind_of``.
        args: What the function is given, as JSON values.
        size: Its share of the work, in any unit, for progress.
    """

    name: str
    kind: str
    args: dict[str, Any] = field(default_factory=dict)
    size: int = 1

    def __post_init__(self) -> None:
        """Refuse names that no file could carry and kinds outside this package.

        Raises:
            SettingsError: As said.
        """
        if not _NAME.fullmatch(self.name) or len(self.name) > MAX_NAME_CHARS:
            raise SettingsError(
                f"task name {self.name!r}: a name has 1 to {MAX_NAME_CHARS} letters, digits and _.,=+@- and "
                "begins with a letter, a digit or _"
            )
        if not _KIND.fullmatch(self.kind):
            raise SettingsError(f"task {self.name}: kind {self.kind!r} is not hopstream.module:function")

    def to_line(self) -> str:
        """The task as one line of JSON, which ``run_line`` runs.

        Raises:
            SettingsError: The arguments are not JSON.
        """
        record = {"version": hopstream.__version__, "name": self.name, "kind": self.kind, "args": self.args}
        try:
            return json.dumps(record, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise SettingsError(f"task {self.name}: its arguments are not JSON: {error}") from error


def task(function: _Function) -> _Function:
    """Register a function that does tasks: ``function(args)`` takes and returns JSON values.

    A task may be run more than once, by several workers at the same time, and be ended at any moment. So a function's
    outcome must follow from its arguments and from files that do not change meanwhile, and what it writes must come
    into its place whole: by a rename, or as fixed bytes at a fixed place.
    """
    _FUNCTIONS[kind_of(function)] = function
    return function


def kind_of(function: TaskFunction) -> str:
    """The kind of the tasks that a function does."""
    return f"{function.__module__}:{function.__qualname__}"


def check_names(tasks: Sequence[Task]) -> None:
    """Raise ``SettingsError`` where two tasks have one name."""
    seen: set[str] = set()
    for one in tasks:
        if one.name in seen:
            raise SettingsError(f"two tasks are named {one.name}; names are unique in a job")
        seen.add(one.name)


def run_task(name: str, kind: str, args: dict[str, Any]) -> Any:
    """Run a task here; arguments and result become what they would be had they travelled.

    Raises:
        HopstreamError: What the function raised, with a note that names the task.
        OSError: Likewise.
        MemoryError: Likewise.
        EngineError: The function raised something else, returned what is not JSON, or there is no such function.
    """
    function = _function(name, kind)
    try:
        result = function(json.loads(json.dumps(args)))
    except (HopstreamError, OSError, MemoryError) as error:
        error.add_note(f"in task {name}")
        raise
    except Exception as error:
        raise EngineError(f"task {name} failed with {type(error).__name__}: {error}") from error
    try:
        return json.loads(json.dumps(result, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise EngineError(f"task {name}: its result is not JSON: {error}") from error


def run_line(line: str) -> str:
    """Run a task from its line; what came of it, an error too, as one line of JSON, which ``outcome`` reads."""
    record = json.loads(line)
    name = record["name"]
    try:
        if record["version"] != hopstream.__version__:
            raise VersionMismatch(
                f"task {name} comes from hopstream {record['version']}; its worker has {hopstream.__version__}; "
                "install one version everywhere"
            )
        return json.dumps({"name": name, "result": run_task(name, record["kind"], record["args"])})
    except Exception as error:
        return json.dumps({"name": name, "error": _error_record(error)})


def outcome(line: str) -> tuple[str, Any]:
    """The name of a task that has ended, and its result.

    Raises:
        HopstreamError: What the task raised, in its own class, with the traceback of the task as a note.
        OSError: Likewise.
        MemoryError: Likewise.
        EngineError: The line is no outcome.
    """
    try:
        record = json.loads(line)
        name, error = record["name"], record.get("error")
        if error is None:
            return name, record["result"]
        raised = _raised(error)
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise EngineError(f"a worker answered what is no outcome ({problem!r}): {line[:200]!r}") from problem
    raise raised


def _function(name: str, kind: str) -> TaskFunction:
    """The function that does tasks of a kind; its module is imported if it has to be."""
    match = _KIND.fullmatch(kind)
    if match is None:
        raise EngineError(f"task {name}: kind {kind!r} is not hopstream.module:function")
    if kind not in _FUNCTIONS:
        try:
            import_module(match[1])
        except ImportError as error:
            raise EngineError(f"task {name}: {match[1]} cannot be imported: {error}") from error
    if kind not in _FUNCTIONS:
        raise EngineError(f"task {name}: {match[1]} has no task {match[2]!r}")
    return _FUNCTIONS[kind]


def _error_record(error: BaseException) -> dict[str, Any]:
    args = error.args[:1]
    if isinstance(error, OSError):
        args = _system_args(error)
    elif isinstance(error, MemoryError):  # numpy's own holds a shape and a dtype
        args = (str(error),)
    return {
        "class": _known_class(type(error)).__name__,
        "args": [arg if isinstance(arg, int | str | None) else str(arg) for arg in args],
        "remote_traceback": error.remote_traceback if isinstance(error, RemoteError) else "",
        "notes": list(getattr(error, "__notes__", ())),
        "traceback": "".join(traceback.format_exception(error)).rstrip(),
    }


def _known_class(raised: type[BaseException]) -> type[BaseException]:
    """The nearest class that the other side has too."""
    return next(c for c in raised.__mro__ if c in (vars(errors).get(c.__name__), vars(builtins).get(c.__name__)))


def _system_args(error: OSError) -> tuple[Any, ...]:
    """What makes an ``OSError`` again."""
    if error.errno is None:
        return (str(error),)
    if error.filename is None:
        return (error.errno, error.strerror)
    return (error.errno, error.strerror, error.filename, None, error.filename2)


def _raised(record: dict[str, Any]) -> Exception:
    name, args = record["class"], record["args"]
    known = vars(errors).get(name, vars(builtins).get(name))
    if not isinstance(known, type) or not issubclass(known, HopstreamError | OSError | MemoryError):
        raise ValueError(f"{name} is no error of a task")
    error: Exception = RemoteError(args[0], record["remote_traceback"]) if known is RemoteError else known(*args)
    for note in (*record["notes"], f"--- traceback of the task ---\n{record['traceback']}"):
        error.add_note(note)
    return error


class Losses:
    """Counts the workers that tasks have lost."""

    def __init__(self, retries: int) -> None:
        """Allow each task to be tried again so often."""
        self._retries = retries
        self._of: dict[str, int] = {}

    def count(self, task: Task, ending: str) -> None:
        """Count one more.

        Args:
            task: The task.
            ending: How its worker ended.

        Raises:
            WorkerLost: The task has been tried often enough.
        """
        times = self._of[task.name] = self._of.get(task.name, 0) + 1
        if times > self._retries:
            often = {1: "once", 2: "twice"}.get(times, f"{times} times")
            raise WorkerLost(
                f"task {task.name} lost its worker {often} (SIGKILL may mean that memory ran out: run fewer workers or "
                f"give each less to do); the last: {ending}"
            )


OnDone = Callable[[Task, Any], None]
"""Called as ``on_done(task, result)``, in the thread that called ``map``."""


class Engine(ABC):
    """Runs tasks somewhere. An engine belongs to one thread and is closed by who opened it."""

    @property
    @abstractmethod
    def num_workers(self) -> int:
        """How many tasks run at once, at least 1."""

    @abstractmethod
    def map(self, tasks: Sequence[Task], on_done: OnDone, *, folder: Path | None = None) -> None:
        """Run tasks, in any order and several at once; return when all are done.

        Where a task fails, or ``on_done`` does, the tasks that run are stopped, and the error is raised when they have
        ended. What a stopped task had begun to write stays, under whatever temporary name.

        Args:
            tasks: The tasks, of different names.
            on_done: Told of each task once, when it has ended.
            folder: A folder that all workers see, where an engine that needs one may keep what came of tasks.

        Raises:
            HopstreamError: What a task raised, in its own class, with the task's name and traceback as notes.
            OSError: Likewise.
            MemoryError: Likewise.
            WorkerLost: The worker of a task was lost, again after it was tried again.
            TaskTimeout: A task took too long.
            EngineError: A task failed with an error of another kind, or the engine could not run it.
            SettingsError: Two tasks have one name, or arguments are not JSON.
        """

    def close(self) -> None:
        """End what the engine started; it may be called again."""
        return

    def __enter__(self) -> Engine:
        """The engine itself."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close."""
        self.close()


JOB_FILE, DONE_FOLDER, OUTCOMES_FOLDER = "job.json", "done", "outcomes"
FORMAT = 1


def job_digest(folder: Path) -> str | None:
    """The digest of the job whose folder this is, or None where it is no job's."""
    try:
        record = json.loads((folder / JOB_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        return None
    return str(record.get("digest"))


def digest_of(value: Any) -> str:
    """64 hexadecimal digits, the SHA-256 hash of a JSON value, such as all that decides over what a job makes."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, allow_nan=False).encode()).hexdigest()


def file_states(paths: Iterable[Path]) -> list[tuple[str, int, int]]:
    """What tells that a file is another one than before, for ``digest_of``; files that are not there are left out."""
    return [(str(path), s.st_size, s.st_mtime_ns) for path in paths if path.exists() for s in (path.stat(),)]


class Job:
    """Tasks in stages, each of which is done once.

    One process at a time makes one in a folder; see ``engine.atomic_folder``.
    """

    def __init__(self, folder: Path, digest: str, engine: Engine, progress: Progress | None = None) -> None:
        """Begin a job, or go on with the one that the folder holds.

        Args:
            folder: Where markers are kept; made where it is missing. All workers see it.
            digest: Digest of all that decides over what the tasks make: source, settings, version of the format.
            engine: What runs the tasks; it stays open.
            progress: Called as ``progress(stage, done, total)`` in units of ``Task.size``, first with what was done
                before.

        Raises:
            StateError: The folder holds a job of another digest (``job_digest`` tells; who knows that it can go removes
                it).
        """
        self._folder, self._digest, self._engine = folder, digest, engine
        self._progress = progress or no_progress
        (folder / DONE_FOLDER).mkdir(parents=True, exist_ok=True)
        self._check_digest()

    def run(self, stage: str, tasks: Sequence[Task]) -> dict[str, Any]:
        """Run those tasks of a stage that have not been done, each with the same arguments, before.

        Returns:
            The result of every task by its name, in the order of the tasks.

        Raises:
            HopstreamError: See ``Engine.map``.
            OSError: Likewise; or a marker cannot be written.
        """
        check_names(tasks)
        found = {task.name: self._done_before(task) for task in tasks}
        results = {name: marker["result"] for name, marker in found.items() if marker is not None}
        total = sum(task.size for task in tasks)
        done = sum(task.size for task in tasks if task.name in results)
        self._progress(stage, done, total)

        def on_done(task: Task, result: Any) -> None:
            nonlocal done
            marker = {"digest": self._digest_of(task), "result": result}
            write_text(self._marker(task), json.dumps(marker, allow_nan=False))
            results[task.name] = result
            done += task.size
            self._progress(stage, done, total)

        waiting = [task for task in tasks if task.name not in results]
        if waiting:
            self._engine.map(waiting, on_done, folder=self._folder / OUTCOMES_FOLDER)
        return {task.name: results[task.name] for task in tasks}

    def result_of(self, task: Task) -> Any:
        """The result of a task that was done before, or None."""
        marker = self._done_before(task)
        return None if marker is None else marker["result"]

    def forget(self, task: Task) -> None:
        """Have a task run again, because what it made is not there any more."""
        self._marker(task).unlink(missing_ok=True)

    def _check_digest(self) -> None:
        found = job_digest(self._folder)
        if found is None and not any((self._folder / DONE_FOLDER).iterdir()):
            write_text(self._folder / JOB_FILE, json.dumps({"format": FORMAT, "digest": self._digest}))
        elif found != self._digest:
            raise StateError(
                f"{self._folder} holds the work of another job (digest {found}; this one has {self._digest}): its "
                "source or settings were others; remove it, or choose another folder"
            )

    def _digest_of(self, task: Task) -> str:
        return digest_of([self._digest, task.kind, task.args])

    def _marker(self, task: Task) -> Path:
        return self._folder / DONE_FOLDER / f"{task.name}.json"

    def _done_before(self, task: Task) -> dict[str, Any] | None:
        """The marker of a task, or None where it is missing, of other arguments, or was cut short by the machine."""
        try:
            marker = json.loads(self._marker(task).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None
        if not isinstance(marker, dict) or marker.get("digest") != self._digest_of(task) or "result" not in marker:
            return None
        return marker
