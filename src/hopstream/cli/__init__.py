"""Command line: starts the command, and handles Ctrl-C even while modules are imported."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hopstream.cli.exit_status import INTERRUPTED

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb.

    Args:
        arguments: Arguments after the command's name; None for those of the process.

    Returns:
        The exit status.
    """
    try:
        from hopstream.cli.command import run_command

        return run_command(arguments)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return INTERRUPTED
