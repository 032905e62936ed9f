"""How is a unigraph written?"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from hopstream.checks import Settings
from hopstream.errors import SettingsError

UnigraphFormat = Literal["tfrecord", "csv", "parquet"]
MAX_SHARDS = 100_000
"""Their numbers have five digits in names of files."""
FORMATS: tuple[UnigraphFormat, ...] = ("tfrecord", "csv", "parquet")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnigraphSettings(Settings):
    """How a unigraph is written.

    Raises:
        SettingsError: A setting is out of its range.
    """

    format: UnigraphFormat = field(default="tfrecord", metadata={"help": "how tables are written"})
    num_shards: int = field(default=1, metadata={"help": "how many files each table is cut into"})
    compress: bool = field(default=False, metadata={"help": "compress tfrecord files with gzip"})
    ids: tuple[str, ...] = field(
        default=(),
        metadata={"help": "a feature that has the raw ids of its node type, as paper.doi; without one they are #id, "
                  "or else keys"},
    )  # fmt: skip

    def __post_init__(self) -> None:
        """Refuse what is not written."""
        if self.format not in FORMATS:
            raise SettingsError(f"format is {self.format!r}; wanted one of {', '.join(FORMATS)}")
        if not isinstance(self.num_shards, int) or not 1 <= self.num_shards <= MAX_SHARDS:
            raise SettingsError(f"num_shards is {self.num_shards!r}; wanted 1 to {MAX_SHARDS}")
        if self.compress and self.format != "tfrecord":
            raise SettingsError(f"compress is for tfrecord, and format is {self.format}; leave it out")
        if any("." not in name for name in self.ids):
            raise SettingsError(f"ids is {self.ids!r}; wanted names of features, as paper.doi")
