"""Tasks, the functions that run them, and their form as JSON.

A task is JSON: a name, a kind that names a function of this package, and arguments. No function is ever sent. The
outcome is JSON too: a result, or an error that is raised again in the process that submitted the task.
"""

from __future__ import annotations

import builtins
import json
import re
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, TypeVar

import hopstream
from hopstream import errors
from hopstream.errors import EngineError, HopstreamError, RemoteError, SettingsError, VersionMismatch

MAX_NAME_CHARS = 200
"""Most characters of a task's name, which becomes a file name with a suffix."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,=+@-]*")
_KIND = re.compile(r"(hopstream(?:\.[A-Za-z0-9_]+)*):([A-Za-z0-9_]+)")

TaskFunction = Callable[[dict[str, Any]], Any]
_Function = TypeVar("_Function", bound=TaskFunction)
_FUNCTIONS: dict[str, TaskFunction] = {}


@dataclass(frozen=True, slots=True)
class Task:
    """Piece of work.

    Attributes:
        name: Name, unique in the job, of letters, digits and ``_.,=+@-``.
        kind: The function that does it, ``module:function``; see ``task`` and ``kind_of``.
        args: Arguments of the function, as JSON values.
        size: Share of the work, in any unit, for progress.
    """

    name: str
    kind: str
    args: dict[str, Any] = field(default_factory=dict)
    size: int = 1

    def __post_init__(self) -> None:
        """Check the name and the kind.

        Raises:
            SettingsError: The name does not fit a file name, or the kind is no function of this package.
        """
        if not _NAME.fullmatch(self.name) or len(self.name) > MAX_NAME_CHARS:
            raise SettingsError(
                f"task name {self.name!r}: a name has 1 to {MAX_NAME_CHARS} letters, digits and _.,=+@- and "
                "begins with a letter, a digit or _"
            )
        if not _KIND.fullmatch(self.kind):
            raise SettingsError(f"task {self.name}: kind {self.kind!r} is not hopstream.module:function")

    def to_line(self) -> str:
        """Format the task as one line of JSON, which ``run_line`` runs.

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

    A task may run more than once, in several workers at the same time, and may be killed at any moment. So the outcome
    must depend only on the arguments and on files that do not change meanwhile. Files must appear atomically: by a
    rename, or as fixed bytes at a fixed offset.
    """
    _FUNCTIONS[kind_of(function)] = function
    return function


def kind_of(function: TaskFunction) -> str:
    """Return the kind of the tasks that a function does."""
    return f"{function.__module__}:{function.__qualname__}"


def check_names(tasks: Sequence[Task]) -> None:
    """Raise ``SettingsError`` if two tasks have the same name."""
    seen: set[str] = set()
    for one in tasks:
        if one.name in seen:
            raise SettingsError(f"two tasks are named {one.name}; names are unique in a job")
        seen.add(one.name)


def run_task(name: str, kind: str, args: dict[str, Any]) -> Any:
    """Run a task here; arguments and result pass through JSON, as in a worker.

    Raises:
        HopstreamError: An error of the function, with a note that names the task.
        OSError: Likewise.
        MemoryError: Likewise.
        EngineError: The function does not exist, raised another error, or returned what is not JSON.
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
    """Run a task from its line; return its result or error as one line of JSON, for ``outcome``."""
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
    """Return the name of a finished task, and its result.

    Raises:
        HopstreamError: An error of the task, in its own class, with the task's traceback as a note.
        OSError: Likewise.
        MemoryError: Likewise.
        EngineError: The line is not an outcome.
    """
    try:
        record = json.loads(line)
        name, error = record["name"], record.get("error")
        if error is None:
            return name, record["result"]
        raised = _raised(error)
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise EngineError(f"a worker's answer is not a task result ({problem!r}): {line[:200]!r}") from problem
    raise raised


def _function(name: str, kind: str) -> TaskFunction:
    """Return the function of a kind; import its module if necessary."""
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
    elif isinstance(error, MemoryError):  # numpy's subclass holds a shape and a dtype
        args = (str(error),)
    return {
        "class": _known_class(type(error)).__name__,
        "args": [arg if isinstance(arg, int | str | None) else str(arg) for arg in args],
        "remote_traceback": error.remote_traceback if isinstance(error, RemoteError) else "",
        "notes": list(getattr(error, "__notes__", ())),
        "traceback": "".join(traceback.format_exception(error)).rstrip(),
    }


def _known_class(raised: type[BaseException]) -> type[BaseException]:
    """Return the nearest class that the receiver can look up by name."""
    return next(c for c in raised.__mro__ if c in (vars(errors).get(c.__name__), vars(builtins).get(c.__name__)))


def _system_args(error: OSError) -> tuple[Any, ...]:
    """Return the arguments that rebuild an ``OSError``."""
    if error.errno is None:
        return (str(error),)
    if error.filename is None:
        return (error.errno, error.strerror)
    return (error.errno, error.strerror, error.filename, None, error.filename2)


def _raised(record: dict[str, Any]) -> Exception:
    name, args = record["class"], record["args"]
    known = vars(errors).get(name, vars(builtins).get(name))
    if not isinstance(known, type) or not issubclass(known, HopstreamError | OSError | MemoryError):
        raise ValueError(f"{name} is not an error of a task")
    error: Exception = RemoteError(args[0], record["remote_traceback"]) if known is RemoteError else known(*args)
    for note in (*record["notes"], f"--- traceback of the task ---\n{record['traceback']}"):
        error.add_note(note)
    return error
