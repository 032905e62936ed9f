"""The verbs of the command, and how it ends when something goes wrong.

Exit status 0: done. 2: the user's fault (an option, a file, a graph that is not what it says). 1: ours, or a server's.
130: interrupted. 143: ended by SIGTERM. Verbs import what they need when they run, so that help is quick.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, ModuleType
from typing import Annotated, Any

import typer
import typer.main

import hopstream
from hopstream.cli import (
    append,
    assign,
    chunk,
    compact,
    dispatch,
    export,
    halo,
    ingest,
    inspect,
    partition,
    place,
    prepare,
    pull,
    reshard,
    serve,
    tfgnn_sample,
    top,
    unigraph,
    up,
    verify,
)
from hopstream.cli.exit_status import INTERRUPTED, OUR_FAULT, TERMINATED, USERS_FAULT
from hopstream.cli.help import GroupedOptions, GroupedVerbs
from hopstream.cli.tfgnn import random_examples, show, stats, validate
from hopstream.cli.words import command_words
from hopstream.engine.peak import watched
from hopstream.errors import EngineError, HopstreamError, StoreError
from hopstream.uris import local_path

WITH_OWN_SIGNALS = (serve, up)
VERBS: dict[str, tuple[ModuleType, ...]] = {
    "Make a dataset": (ingest, partition, prepare),
    "Make a dataset step by step, in bounded memory": (chunk, assign, dispatch),
    "Change a dataset": (append, compact, reshard, halo),
    "Move a dataset": (place, pull),
    "Look at a dataset": (inspect, verify),
    "Serve a dataset": (serve, up, top),
    "Samples and TF-GNN": (export, tfgnn_sample, unigraph),
}
"""Heading in help to the modules of the verbs under it."""
WITH_URIS = frozenset({"beam_options", "cluster", "location", "root", "source", "source_dataset"})
"""Arguments that are text and may be addresses of servers, or places that parts are copied from or to."""
BAD_PATHS = (FileNotFoundError, FileExistsError, PermissionError, NotADirectoryError, IsADirectoryError)
# The root of what is raised for a bad option. Some versions of typer bring their own copy of click, so it is taken from
# the one class of it that typer has always named.
UsageProblem = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


class Terminated(BaseException):
    """SIGTERM, raised so that whatever is half done is cleaned up."""


def run_command(arguments: Sequence[str] | None) -> int:
    """Run one verb; return the exit status.

    Raises:
        KeyboardInterrupt: The user pressed Ctrl-C.
    """
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name that the terminal cannot show is no reason to fail
    command = typer.main.get_command(_make_app())
    try:
        status = command.main(
            args=None if arguments is None else list(arguments), prog_name="hopstream", standalone_mode=False
        )
    except typer.Abort:
        raise KeyboardInterrupt from None
    except Terminated:
        sys.stderr.write("terminated\n")
        return TERMINATED
    except BrokenPipeError:
        # Who read our output has gone; let the interpreter not complain when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OUR_FAULT
    except Exception as error:
        return _report(error)
    if status == INTERRUPTED:  # how some versions of typer say it
        raise KeyboardInterrupt
    return status if isinstance(status, int) else 0


def _report(error: Exception) -> int:
    """Say what went wrong; return the exit status."""
    if isinstance(error, UsageProblem):
        message, status = _usage_text(error), USERS_FAULT
    elif isinstance(error, HopstreamError | OSError):
        is_ours = isinstance(error, StoreError | EngineError) or not isinstance(error, (HopstreamError, *BAD_PATHS))
        message, status = _error_text(error), OUR_FAULT if is_ours else USERS_FAULT
    elif isinstance(error, MemoryError):
        message, status = f"out of memory: {error}", OUR_FAULT
    else:
        traceback.print_exception(error)
        message, status = f"{type(error).__name__}: {error}", OUR_FAULT
    sys.stderr.write(f"error: {message}\n")
    return status


def _error_text(error: HopstreamError | OSError) -> str:
    """The message, in the words of the command line."""
    if isinstance(error, HopstreamError) or error.filename is None or error.errno is None:
        return command_words(str(error))
    from hopstream.dataset.replace import shown_path

    return str(OSError(error.errno, error.strerror, shown_path(error.filename)))


def _usage_text(error: Exception) -> str:
    """What is wrong with the command line, and which help to read."""
    message = str(error.format_message()).strip().rstrip(".")  # type: ignore[attr-defined]
    context = getattr(error, "ctx", None)
    join = " see" if message.endswith("?") else "; see"
    return f"{message}{join} {context.command_path} --help" if context else message


def _make_app() -> typer.Typer:
    app = typer.Typer(
        cls=GroupedVerbs,
        help="A graph data engine for training graph neural networks on graphs that outgrow one machine.",
        rich_markup_mode=None,  # see help.py
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    )
    app.callback()(_common_options)
    for panel, modules in VERBS.items():
        for module in modules:
            verb = _with_local_paths(module.run)
            app.command(
                name=module.__name__.rpartition(".")[2].replace("_", "-"), cls=GroupedOptions, rich_help_panel=panel
            )(verb if module in WITH_OWN_SIGNALS else _ended_by_sigterm(verb))
    group = typer.Typer(help="Look at GraphSchemas and examples as TF-GNN has them.", rich_markup_mode=None)
    for name, module in {"validate": validate, "print": show, "stats": stats, "random": random_examples}.items():
        group.command(name=name, cls=GroupedOptions)(_ended_by_sigterm(_with_local_paths(module.run)))
    app.add_typer(group, name="tfgnn", cls=GroupedVerbs, rich_help_panel=list(VERBS)[-1])
    return app


def _with_local_paths(verb: Callable[..., None]) -> Callable[..., None]:
    """A verb that refuses URIs before anything is read or made, but where they are what it takes."""

    @functools.wraps(verb)
    def run(**arguments: Any) -> None:
        for name, value in arguments.items():
            for one in value if isinstance(value, list) else [value]:
                if isinstance(one, Path) or (isinstance(one, str) and name not in WITH_URIS):
                    local_path(one)
        verb(**arguments)

    return run


def _ended_by_sigterm(verb: Callable[..., None]) -> Callable[..., None]:
    """A verb during which SIGTERM is an exception, and the memory of all processes is watched."""

    @functools.wraps(verb)
    def run(**arguments: object) -> None:
        with _sigterm_raised(), watched():
            verb(**arguments)

    return run


@contextmanager
def _sigterm_raised() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, _raise_terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _raise_terminated(number: int, _: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # a second one would break off the cleaning up
    raise Terminated


def _show_version(is_asked: bool) -> None:
    if is_asked:
        sys.stdout.write(f"hopstream {hopstream.__version__}\n")
        raise typer.Exit


def _common_options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="show the version and exit")
    ] = False,
) -> None:
    """Options before the verb; typer acts on them while it reads them."""
