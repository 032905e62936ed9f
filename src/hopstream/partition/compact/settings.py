"""What can a user choose when what was appended is folded in?"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from hopstream.partition.dispatch.settings import DispatchSettings, EngineName
from hopstream.partition.reshard.settings import ReshardSettings

_RUN = {f.name: f.metadata for f in fields(DispatchSettings)}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactSettings:
    """How the work is done. Every field is checked at once.

    Raises:
        SettingsError: A field is outside what it accepts.
    """

    memory: str = field(default="4GiB", metadata=_RUN["memory"])
    num_workers: int | None = field(default=None, metadata=_RUN["num_workers"])
    engine: EngineName = field(default="local", metadata=_RUN["engine"])

    def __post_init__(self) -> None:
        """Check every field."""
        self.reshard_settings()

    def reshard_settings(self) -> ReshardSettings:
        """The same as settings of ``reshard``, for a folder of owners."""
        return ReshardSettings(memory=self.memory, num_workers=self.num_workers, engine=self.engine)
