"""What can a user choose when parts are copied from place to place?"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TypedDict, get_args

from hopstream.engine.settings import EngineName, check_num_workers
from hopstream.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferSettings:
    """Who copies. Every field is checked when the record is made.

    Raises:
        SettingsError: A field is outside what it accepts.
    """

    num_workers: int | None = field(
        default=None, metadata={"help": "processes that copy; 0 copies in this one; if not given, one per processor"}
    )
    engine: EngineName = field(default="local", metadata={"help": "what runs the tasks: processes here, Ray or Beam"})

    def __post_init__(self) -> None:
        """Check every field."""
        if self.num_workers is not None:
            check_num_workers(self.num_workers)
        if self.engine not in get_args(EngineName):
            raise SettingsError(f"engine is {self.engine!r}; it must be one of {', '.join(get_args(EngineName))}")

    @property
    def worker_count(self) -> int:
        """How many processes copy."""
        return self.num_workers if self.num_workers is not None else os.cpu_count() or 1


class TransferOptions(TypedDict, total=False):
    """The fields of ``TransferSettings`` as keyword arguments."""

    num_workers: int | None
    engine: EngineName
