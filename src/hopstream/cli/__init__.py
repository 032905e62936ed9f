"""Which verbs does the command have, and how does it end when something goes wrong?

Exit status 0: done. 2: the user's fault (an option, a file, a graph that is not what it says). 1: ours, or a server's.
130: interrupted. Verbs import what they need when they run, so that help is quick.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer
import typer.main

import hopstream
from hopstream.cli import ingest, inspect, partition, serve, up
from hopstream.errors import HopstreamError, StoreError

USERS_FAULT, OUR_FAULT, INTERRUPTED = 2, 1, 130
BAD_PATHS = (FileNotFoundError, FileExistsError, PermissionError, NotADirectoryError, IsADirectoryError)
# The root of what is raised for a bad option. Some versions of typer bring their own copy of click, so it is taken from
# the one class of it that typer has always named.
UsageProblem = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb.

    Args:
        arguments: What follows the command's name; None takes it from the command line.

    Returns:
        The exit status.
    """
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name that the terminal cannot show is no reason to fail
    command = typer.main.get_command(_make_app())
    try:
        status = command.main(
            args=None if arguments is None else list(arguments), prog_name="hopstream", standalone_mode=False
        )
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        # Who read our output has gone; let the interpreter not complain when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OUR_FAULT
    except Exception as error:
        return _report(error)
    return status if isinstance(status, int) else 0


def _report(error: Exception) -> int:
    """Say what went wrong; return the exit status."""
    if isinstance(error, UsageProblem):
        message, status = _usage_text(error), USERS_FAULT
    elif isinstance(error, HopstreamError | OSError):
        is_ours = isinstance(error, StoreError) or not isinstance(error, (HopstreamError, *BAD_PATHS))
        message, status = str(error), OUR_FAULT if is_ours else USERS_FAULT
    elif isinstance(error, MemoryError):
        message, status = f"out of memory: {error}", OUR_FAULT
    else:
        traceback.print_exception(error)
        message, status = f"{type(error).__name__}: {error}", OUR_FAULT
    sys.stderr.write(f"error: {message}\n")
    return status


def _usage_text(error: Exception) -> str:
    """What is wrong with the command line, and which help to read."""
    message = str(error.format_message()).strip().rstrip(".")  # type: ignore[attr-defined]
    context = getattr(error, "ctx", None)
    return f"{message}; see {context.command_path} --help" if context else message


def _make_app() -> typer.Typer:
    app = typer.Typer(
        help="A graph data engine for training graph neural networks on graphs that outgrow one machine.",
        # At 80 columns rich's table of options leaves their help a column of 16 characters.
        rich_markup_mode=None,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_common_options)
    for module in (ingest, partition, inspect, serve, up):
        app.command(name=module.__name__.rpartition(".")[2])(module.run)
    return app


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
