"""How does the command start, and end when it is interrupted, if only while its modules are loaded?"""

from __future__ import annotations

import sys
from collections.abc import Sequence

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb.

    Args:
        arguments: What follows the command's name; None takes it from the command line.

    Returns:
        The exit status.
    """
    try:
        from hopstream.cli.command import run_command

        return run_command(arguments)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return INTERRUPTED
