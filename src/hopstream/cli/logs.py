"""How are log records written: lines for people, or JSON objects for whatever collects them?"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from hopstream.checks import check_choice
from hopstream.cli.units import printable_text

LEVELS = ("debug", "info", "warning", "error")
MAX_LINE = 2000
"""Characters of a line that are written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """What is logged, and in which form. Every field is checked when the record is made.

    Raises:
        SettingsError: A field is outside what it accepts.
    """

    log_json: bool = field(default=False, metadata={"help": "write log records to stderr as one JSON object per line"})
    log_level: Literal["debug", "info", "warning", "error"] = field(
        default="warning", metadata={"help": "the least serious records that are written"}
    )

    def __post_init__(self) -> None:
        """Check the level."""
        check_choice("log_level", self.log_level, LEVELS)


class TextFormatter(logging.Formatter):
    """Writes a record for people; what a client wrote can neither move the cursor nor look like a record of its own."""

    def __init__(self) -> None:
        """Level and message, and below them the exception if there is one."""
        super().__init__("%(levelname)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name that logging calls
        """The first line and, indented, all others."""
        return _printable_lines(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the name that logging calls
        """The traceback, indented."""
        return "  " + _printable_lines(super().formatException(ei))


class JsonFormatter(logging.Formatter):
    """Writes a record as a JSON object in one line."""

    def __init__(self) -> None:
        """Know no server yet."""
        super().__init__()
        self.server: str | None = None
        """Where the server listens, once it does."""

    def format(self, record: logging.LogRecord) -> str:
        """The object: ``time``, ``level``, ``logger``, ``message``, ``server``, and ``exception`` if there is one."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        value = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "server": self.server,
        }
        if record.exc_info:
            value["exception"] = self.formatException(record.exc_info)
        return json.dumps(value)


def _printable_lines(text: str) -> str:
    return "\n  ".join(printable_text(line, MAX_LINE) for line in text.split("\n"))


@contextmanager
def logs_on_stderr(settings: LogSettings) -> Iterator[JsonFormatter]:
    """Write the library's log records to stderr while inside; the formatter is to be told the server's address."""
    formatter = JsonFormatter()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter if settings.log_json else TextFormatter())
    logger = logging.getLogger("hopstream")
    previous = logger.level
    logger.setLevel(settings.log_level.upper())
    logger.addHandler(handler)
    try:
        yield formatter
    finally:
        logger.removeHandler(handler)
        logger.setLevel(previous)
