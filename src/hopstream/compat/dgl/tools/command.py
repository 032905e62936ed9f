"""Reads the flags of a tool, runs it, and gives its exit status.

Exit status 0: done. 2: the user's fault. 1: ours, or something is wrong with what was verified.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from hopstream.errors import EngineError, HopstreamError, SettingsError, StoreError
from hopstream.uris import local_path

DONE, OUR_FAULT, USERS_FAULT, INTERRUPTED = 0, 1, 2, 130
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


class Flags(argparse.ArgumentParser):
    """Flags that are read in full: no beginnings of names, and none that are unknown."""

    def __init__(self, tool: str, description: str) -> None:
        """Name the tool as it is called."""
        super().__init__(prog=f"python -m hopstream.compat.dgl.tools.{tool}", description=description,
                         allow_abbrev=False)  # fmt: skip

    def error(self, message: str) -> NoReturn:
        """End as every error ends.

        Raises:
            SettingsError: Always.
        """
        raise SettingsError(f"{message}; see {self.prog} --help")


def say(stage: str, text: str) -> None:
    """Write one line on what was done."""
    sys.stdout.write(f"{stage:<7} {text}\n")


def run_tool(run: Callable[[argparse.Namespace], int], flags: Flags, arguments: Sequence[str] | None) -> int:
    """Run a tool; return its exit status.

    Args:
        run: What it does; returns the exit status.
        flags: Its flags.
        arguments: What follows its name; None takes it from the command line.
    """
    try:
        given = flags.parse_args(arguments)
        for value in vars(given).values():
            if isinstance(value, Path):
                local_path(value)
        return run(given)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return INTERRUPTED
    except (HopstreamError, OSError) as error:
        message = str(error).replace("overwrite=True", "--overwrite")
        sys.stderr.write(f"error: {message}\n")
        is_ours = isinstance(error, StoreError | EngineError) or not isinstance(
            error, HopstreamError | FileNotFoundError | PermissionError | NotADirectoryError | IsADirectoryError
        )
        return OUR_FAULT if is_ours else USERS_FAULT
