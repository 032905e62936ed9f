"""Which graph does a chunked graph's metadata describe, and do its files agree?"""

from __future__ import annotations

from pathlib import Path

from hopstream.ingest.chunked.sources import ChunkedGraph


def is_chunked(path: Path) -> bool:
    """Whether a JSON file describes a chunked graph, by its fields."""
    raise NotImplementedError


def open_chunked(path: str | Path, metadata_filename: str = "metadata.json") -> ChunkedGraph:
    """Open a chunked graph: read its metadata, the headers or footers of its files, and nothing else."""
    raise NotImplementedError
