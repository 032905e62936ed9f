"""Tasks that each check one property of an engine that jobs rely on."""

from __future__ import annotations

import os
import platform
import signal
import sys
import time
from pathlib import Path
from typing import Any

from hopstream import errors
from hopstream.engine.tasks import task


@task
def echo(args: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments."""
    return args


@task
def say(args: dict[str, Any]) -> None:
    """Write to stdout as libraries do, through Python and through the descriptor."""
    sys.stdout.write(f"{args['text']}\n")
    sys.stdout.flush()
    os.write(1, f"{args['text']}\n".encode())


@task
def where(args: dict[str, Any]) -> dict[str, Any]:
    """Return the machine and process that run this, and the paths that they see."""
    paths = args.get("paths", [])
    return {"host": platform.node(), "pid": os.getpid(), "seen": [path for path in paths if Path(path).exists()]}


@task
def write(args: dict[str, Any]) -> int:
    """Write bytes to a file atomically; return their number."""
    path, data = Path(args["path"]), str(args["text"]).encode() * int(args.get("times", 1))
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.write_bytes(data)
    partial.replace(path)
    return len(data)


@task
def wait(args: dict[str, Any]) -> int:
    """Signal the start by a file, and wait until another file appears; return the process id."""
    deadline = time.monotonic() + float(args.get("timeout_s", 60.0))
    begun = Path(args["begun"])
    begun.with_name(begun.name + f".{os.getpid()}").touch()
    while not Path(args["until"]).exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return os.getpid()


@task
def read(args: dict[str, Any]) -> int:
    """Read a mapped array, and wait until fewer bytes of files are resident than it has; return them."""
    from hopstream.arrays import open_array
    from hopstream.engine.machine import FILES, _bytes_of

    array = open_array(Path(args["path"]))
    array.max()
    deadline = time.monotonic() + float(args["timeout_s"])
    while (held := _bytes_of(os.getpid(), FILES)) > array.nbytes and time.monotonic() < deadline:
        time.sleep(0.01)
    return held


@task
def fail(args: dict[str, Any]) -> None:
    """Raise an error of this package's classes, or a builtin one."""
    known = getattr(errors, args["class"], None)
    if known is not None:
        raise known(args["message"])
    raise {"OSError": OSError, "MemoryError": MemoryError}.get(args["class"], ZeroDivisionError)(*args["args"])


@task
def die(args: dict[str, Any]) -> int:
    """Kill this process by a signal, until a folder has ``times`` marks of earlier kills."""
    marks = Path(args["marks"])
    if len(list(marks.iterdir())) < int(args["times"]):
        (marks / str(os.getpid())).touch()
        os.kill(os.getpid(), signal.Signals[args.get("signal", "SIGKILL")])
        time.sleep(60.0)
    return os.getpid()
