"""What can a user choose about the work that makes a chunked graph of tables?"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import get_args

from hopstream.engine import EngineName
from hopstream.engine.settings import check_num_workers, memory_bytes
from hopstream.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkSettings:
    """What the work may take, and what runs it. Nothing of it changes what is written.

    Raises:
        SettingsError: A field is outside what it accepts.
    """

    memory: str = field(
        default="4GiB",
        metadata={"help": "memory that all processes together may take for tables, for example 500MB or 4GiB"},
    )
    num_workers: int | None = field(
        default=None,
        metadata={"help": "processes that work on tables; 0 does all in one; if not given, one per processor"},
    )
    engine: EngineName = field(default="local", metadata={"help": "what works on tables: processes here, Ray or Beam"})

    def __post_init__(self) -> None:
        """Check every field."""
        memory_bytes(self.memory)
        if self.num_workers is not None:
            check_num_workers(self.num_workers)
        if self.engine not in get_args(EngineName):
            raise SettingsError(f"engine is {self.engine!r}; it must be one of {', '.join(get_args(EngineName))}")
