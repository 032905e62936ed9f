"""The command ``hopstream``: its verbs, their grouped help, and messages and exit statuses of errors.

Exit status 0: done. 2: the user's fault (a wrong option, file or graph). 1: a fault of Hopstream or of a server. 130:
interrupted. 143: ended by SIGTERM. Verbs import their dependencies when they run, so help is fast.
"""

from __future__ import annotations

import errno
import functools
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, ModuleType
from typing import Annotated, Any

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

import hopstream
from hopstream.cli import (
    append,
    assign,
    chunk,
    compact,
    delete,
    describe,
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
    upsert,
    verify,
    warm,
)
from hopstream.cli.exit_status import INTERRUPTED, OUR_FAULT, TERMINATED, USERS_FAULT
from hopstream.cli.options import flag_name
from hopstream.cli.tfgnn import random_examples, show, spec, stats, validate
from hopstream.engine.machine import watched
from hopstream.errors import EngineError, HopstreamError, NoDiskRoomError, StoreError
from hopstream.uris import local_path

LONGEST = 200
"""Most characters of a verb's first sentence in help: so many that none is truncated, because lines are wrapped."""


class GroupedOptions(TyperCommand):
    """A verb whose help groups options by panel.

    Options without a panel come first, with ``--help`` as the last of them.
    """

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write a section for the arguments, and one for each panel of options."""
        shown = [(one, one.get_help_record(ctx)) for one in self.get_params(ctx)]
        _write_groups(
            formatter,
            [
                ("Arguments" if one.param_type_name == "argument" else getattr(one, "rich_help_panel", None), record)
                for one, record in shown
                if record is not None
            ],
            "Options",
        )


class GroupedVerbs(TyperGroup):
    """A group of verbs whose help groups them by panel."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each panel of verbs."""
        names = self.list_commands(ctx)
        width = max(map(len, names))
        verbs = [(name, self.get_command(ctx, name)) for name in names]
        _write_groups(
            formatter,
            [
                (getattr(verb, "rich_help_panel", None), (f"{name:<{width}}", verb.get_short_help_str(LONGEST)))
                for name, verb in verbs
                if verb is not None
            ],
            "Commands",
        )


def _write_groups(formatter: Any, rows: Iterable[tuple[str | None, tuple[str, str]]], without_panel: str) -> None:
    """Write one section per panel, in the order of their first rows."""
    panels: dict[str, list[tuple[str, str]]] = {}
    for panel, row in rows:
        panels.setdefault(panel or without_panel, []).append(row)
    for panel, found in panels.items():
        with formatter.section(panel):
            formatter.write_dl(found)


_WORDS = (
    ("overwrite=True", "--overwrite"),
    ('on_dangling="drop"', "--on-dangling drop"),
    ("ignore=[names] or ignore='all'", "--ignore NAME,NAME or --ignore all"),
    ("ignore names", "--ignore names"),
    ("use tls://, or allow it with insecure", "serve and name it as tls://"),
    ("allow it with insecure", "allow it with --insecure"),
    ("keep_raw_ids=False", "--no-keep-raw-ids"),
    ("write the parts with direction 'out' or 'both'", "write the parts with --direction out or --direction both"),
    ("write the parts with direction 'in' or 'both'", "write the parts with --direction in or --direction both"),
    (
        "and file_format is 'tfrecord'; give file_format='parquet'",
        "and --file-format is tfrecord; give --file-format parquet",
    ),
    ("weight_attr='…'", "--weight-attr NAME"),
    ("time_attr='…'", "--time-attr NAME"),
    ('on_duplicate="drop"', "--on-duplicate drop"),
    ("inverse_edges=True", "--inverse-edges yes"),
    ("inverse_edges=False", "--inverse-edges no"),
    ("give ids='raw'", "give --raw-ids"),
    ("has_header=True", "--header yes"),
    ("has_header=False", "--header no"),
    ("name for each with columns", "name for each with --columns"),
    ("name it with columns", "name it with --columns"),
    ("name it with seed_column", "name it with --seed-column of hopstream export"),
    ("no readout to move them to; set readout", "no readout to move them to; give --readout"),
    ("give it as a str, not as a Path", "give the path of a local file or folder"),
    ("or num_nodes if", "or --nodes if"),
    ("; give data_path", "; give --data-path"),
    ("leave_out names", "--leave-out names"),
    (" to leave_out", " to --leave-out"),
    ("raise num_parts", "raise --parts"),
    ("neither num_parts nor partitions_dir", "neither --parts nor --partitions-dir"),
    (", as partitions_dir", ", as --partitions-dir"),
    ("; give partitions_dir", "; give --partitions-dir"),
    ("leave owners out or use method='file'", "leave --owners out or use --method file"),
)


# An argument is only replaced at the start of a message, where it is the subject; further inside the same word may
# mean something else.
_ARGUMENT = re.compile(
    r"(memory|data_path|num_parts|num_workers|engine|method|out|out_dir|in_dir|partitions_dir|owners|metadata_filename"
    r"|time_attr|weight_attr|links|passes|recursive|objective|imbalance|balance_ntypes|balance_edges|balance_splits|part_weights|root|ids"
    r"|num_shards|id_feature|seed_column|split|seeds|labels)"
    r"(?= (?:is|are|name|names) )"
)


_SPLIT = re.compile(r"\bsplit=(?:'([^']*)')?")


def command_words(message: str) -> str:
    """Replace names of arguments in a message of the library by flags."""
    message = (
        _ARGUMENT.sub(lambda found: flag_name(found[1]), message, count=1) if _ARGUMENT.match(message) else message
    )
    message = _SPLIT.sub(lambda found: f"--split {found[1]}" if found[1] else "--split", message)
    for argument, flag in _WORDS:
        message = message.replace(argument, flag)
    return message


WITH_OWN_SIGNALS = (serve, up)
VERBS: dict[str, tuple[ModuleType, ...]] = {
    "Make a dataset": (describe, ingest, partition, prepare),
    "Make a dataset step by step, in bounded memory": (chunk, assign, dispatch),
    "Change a dataset": (append, upsert, delete, compact, reshard, halo),
    "Move a dataset": (place, pull),
    "Look at a dataset": (inspect, verify),
    "Serve a dataset": (serve, up, top, warm),
    "Samples and TF-GNN": (export, tfgnn_sample, unigraph),
}
"""Heading in help to the modules of the verbs under it."""
WITH_URIS = frozenset(
    (
        "against",
        "beam_options",
        "cluster",
        "data_path",
        "dataset",
        "graph_schema",
        "location",
        "out",
        "root",
        "seeds",
        "source",
        "source_dataset",
    )
)
"""Text arguments that may be addresses of servers or URIs."""
BAD_PATHS = (FileNotFoundError, FileExistsError, PermissionError, NotADirectoryError, IsADirectoryError)
# Base class of click's errors for bad options. Some versions of typer contain their own copy of click, so the class is
# looked up among the bases of a class that every version of typer exports.
UsageProblem = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


class Terminated(BaseException):
    """SIGTERM as an exception, so that ``finally`` blocks clean up."""


def run_command(arguments: Sequence[str] | None) -> int:
    """Run one verb; return the exit status.

    Raises:
        KeyboardInterrupt: The user pressed Ctrl-C.
    """
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # names that the terminal cannot encode must not raise
    try:
        status = _command().main(
            args=None if arguments is None else list(arguments), prog_name="hopstream", standalone_mode=False
        )
    except typer.Abort:
        raise KeyboardInterrupt from None
    except Terminated:
        sys.stderr.write("terminated\n")
        return TERMINATED
    except BrokenPipeError:
        # The reader of stdout has gone. Redirect stdout, or the interpreter would fail when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OUR_FAULT
    except Exception as error:
        return _report(error)
    if status == INTERRUPTED:  # some versions of typer return this status
        raise KeyboardInterrupt
    return status if isinstance(status, int) else 0


def _report(error: Exception) -> int:
    """Write the message of an error; return the exit status."""
    if isinstance(error, UsageProblem):
        message, status = _usage_text(error), USERS_FAULT
    elif isinstance(error, HopstreamError | OSError):
        is_users = isinstance(error, (HopstreamError, *BAD_PATHS)) or error.errno == errno.EROFS
        is_ours = not is_users or isinstance(error, StoreError | EngineError | NoDiskRoomError)
        message, status = _error_text(error), OUR_FAULT if is_ours else USERS_FAULT
    elif isinstance(error, MemoryError):
        message, status = f"out of memory: {error}", OUR_FAULT
    else:
        traceback.print_exception(error)
        message, status = f"{type(error).__name__}: {error}", OUR_FAULT
    sys.stderr.write(f"error: {message}\n")
    return status


_SYSTEM_ERRORS = {
    errno.ENOSPC: "no space left for {path}; make room, or write elsewhere",
    errno.EDQUOT: "{path} cannot be written: your share of the disk is full; make room, or write elsewhere",
    errno.EROFS: "{path} cannot be written: its file system is read-only; give another folder",
    errno.EACCES: "{path} cannot be read or written: permission denied; give another path, or change its permissions",
}
"""System errors to messages with a remedy."""


def _error_text(error: HopstreamError | OSError) -> str:
    """Return the message of an error, with flags in place of arguments."""
    if isinstance(error, HopstreamError) or error.errno is None:
        return command_words(str(error))
    from hopstream.engine.atomic_folder import shown_path

    if error.errno in _SYSTEM_ERRORS and os.strerror(error.errno) in str(error.strerror):  # Arrow adds its own words
        path = "what is written" if error.filename is None else shown_path(error.filename)
        return _SYSTEM_ERRORS[error.errno].format(path=path)
    if error.filename is None:
        return command_words(str(error))
    return str(OSError(error.errno, error.strerror, shown_path(error.filename)))


def _usage_text(error: Exception) -> str:
    """Return the message for a wrong command line, with the help to read."""
    message = str(error.format_message()).strip().rstrip(".")  # type: ignore[attr-defined]
    context = getattr(error, "ctx", None)
    join = " see" if message.endswith("?") else "; see"
    return f"{message}{join} {context.command_path} --help" if context else message


@functools.cache
def _command() -> Any:
    """Build typer's command of all verbs, once per process."""
    return typer.main.get_command(_make_app())


def _make_app() -> typer.Typer:
    app = typer.Typer(
        cls=GroupedVerbs,
        help="A graph data engine for training graph neural networks on graphs that outgrow one machine.",
        rich_markup_mode=None,  # otherwise rich writes the help instead of GroupedVerbs and GroupedOptions
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
    for name, module in {
        "validate": validate,
        "spec": spec,
        "print": show,
        "stats": stats,
        "random": random_examples,
    }.items():
        group.command(name=name, cls=GroupedOptions)(_ended_by_sigterm(_with_local_paths(module.run)))
    app.add_typer(group, name="tfgnn", cls=GroupedVerbs, rich_help_panel=list(VERBS)[-1])
    return app


def _with_local_paths(verb: Callable[..., None]) -> Callable[..., None]:
    """Wrap a verb to refuse URIs in arguments that must be local paths, before it starts."""

    @functools.wraps(verb)
    def run(**arguments: Any) -> None:
        for name, value in arguments.items():
            for one in value if isinstance(value, list) else [value]:
                if isinstance(one, Path) or (isinstance(one, str) and name not in WITH_URIS):
                    local_path(one)
        verb(**arguments)

    return run


def _ended_by_sigterm(verb: Callable[..., None]) -> Callable[..., None]:
    """Wrap a verb to raise ``Terminated`` on SIGTERM, and to measure the peak memory of all processes."""

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
    signal.signal(number, signal.SIG_IGN)  # a second SIGTERM would interrupt the cleanup
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
    """Accept the options before the verb; typer acts on them while it reads them."""
