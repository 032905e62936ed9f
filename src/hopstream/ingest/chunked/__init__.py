"""How is a graph in many files, a chunked graph, read and written without holding it in memory?

``docs/guide-chunked.md`` describes the format for users.
"""

from __future__ import annotations

from hopstream.ingest.chunk_settings import ChunkSettings
from hopstream.ingest.chunked.memory import chunked_of_graph
from hopstream.ingest.chunked.opening import is_chunked, open_chunked
from hopstream.ingest.chunked.sources import (
    ChunkedEdges,
    ChunkedGraph,
    ChunkedNodes,
    ColumnSource,
    EdgeSource,
    Piece,
    Span,
)
from hopstream.ingest.chunked.writing import write_chunked

__all__ = [
    "ChunkSettings",
    "ChunkedEdges",
    "ChunkedGraph",
    "ChunkedNodes",
    "ColumnSource",
    "EdgeSource",
    "Piece",
    "Span",
    "chunked_of_graph",
    "is_chunked",
    "open_chunked",
    "write_chunked",
]
