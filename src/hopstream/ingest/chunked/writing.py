"""How is a graph written as a chunked graph?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from hopstream.graph.graph import Graph

Progress = Callable[[str, int, int], None]
EdgesFormat = Literal["csv", "parquet", "numpy"]
DataFormat = Literal["numpy", "parquet"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSettings:
    """How a chunked graph is written."""

    num_chunks: int = field(default=4, metadata={"help": "how many files each table is cut into"})
    edges_format: EdgesFormat = field(default="csv", metadata={"help": "format of edges"})
    data_format: DataFormat = field(default="numpy", metadata={"help": "format of features"})
    vector_rows: bool = field(
        default=False, metadata={"help": "parquet features: one column of lists, not one column per dimension"}
    )
    delimiter: str = field(default=" ", metadata={"help": "what separates the two ends in csv files"})


def write_chunked(
    graph: Graph,
    out: str | Path,
    *,
    name: str = "graph",
    settings: ChunkSettings | None = None,
    progress: Progress | None = None,
    **fields: object,
) -> Path:
    """Write a graph as a chunked graph; fields of ``ChunkSettings`` may be given by name. Returns the metadata's path."""
    raise NotImplementedError
