"""Settings of the writer of chunked graphs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from hopstream.checks import Settings
from hopstream.errors import SchemaError, SettingsError

FileFormat = Literal["csv", "numpy", "parquet"]
EdgesFormat = Literal["csv", "parquet", "numpy"]
DataFormat = Literal["numpy", "parquet"]
EDGE_FORMATS: tuple[FileFormat, ...] = ("csv", "parquet", "numpy")
FEATURE_FORMATS: tuple[FileFormat, ...] = ("numpy", "parquet")
DELIMITER = " "
REFUSED_DELIMITERS = frozenset("0123456789-+\"'\r\n\0")
MAX_CHUNKS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSettings(Settings):
    """Settings of the writer of chunked graphs.

    Raises:
        SettingsError: A setting is out of its range.
    """

    num_chunks: int = field(default=4, metadata={"help": "number of files per table", "aliases": ("--num-chunks",)})
    edges_format: EdgesFormat = field(default="csv", metadata={"help": "how edges are written"})
    data_format: DataFormat = field(default="numpy", metadata={"help": "how features are written"})
    vector_rows: bool = field(
        default=False, metadata={"help": "parquet features: one column of lists, not one column per dimension"}
    )
    delimiter: str = field(default=DELIMITER, metadata={"help": "separator of the two keys on a line of csv"})
    leave_out: tuple[str, ...] = field(
        default=(), metadata={"help": "a feature not to write, as paper.title or author__writes__paper.note"}
    )

    def __post_init__(self) -> None:
        """Refuse values that the writer does not support."""
        if not isinstance(self.num_chunks, int) or not 1 <= self.num_chunks <= MAX_CHUNKS:
            raise SettingsError(f"num_chunks is {self.num_chunks!r}; wanted 1 to {MAX_CHUNKS}")
        for name, known in (("edges_format", EDGE_FORMATS), ("data_format", FEATURE_FORMATS)):
            if getattr(self, name) not in known:
                raise SettingsError(f"{name} is {getattr(self, name)!r}; wanted one of {', '.join(known)}")
        if self.vector_rows and self.data_format != "parquet":
            raise SettingsError(f"vector_rows is only for parquet, and data_format is {self.data_format}; leave it out")
        try:
            check_delimiter("delimiter", self.delimiter)
        except SchemaError as error:
            raise SettingsError(str(error)) from error


def check_delimiter(where: str, delimiter: object) -> None:
    """Check that a delimiter is one ASCII character that no integer contains.

    Digits, signs, quotes and line ends are refused.

    Raises:
        SchemaError: The delimiter is not such a character.
    """
    is_character = isinstance(delimiter, str) and len(delimiter) == 1 and delimiter.isascii()
    if not is_character or delimiter in REFUSED_DELIMITERS:
        raise SchemaError(f"{where} is {delimiter!r}; wanted one ASCII character other than a digit, sign or quote")
