"""Reads and writes chunked graphs: graphs in many files, too large for memory.

``docs/large-graphs.md`` describes the format for users.
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
    EdgeRange,
    EdgeSource,
    FeatureSource,
    RaggedSource,
    Span,
    fixed_features,
    ragged_features,
)
from hopstream.ingest.chunked.writing import write_chunked

__all__ = [
    "ChunkSettings",
    "ChunkedEdges",
    "ChunkedGraph",
    "ChunkedNodes",
    "ColumnSource",
    "EdgeRange",
    "EdgeSource",
    "FeatureSource",
    "RaggedSource",
    "Span",
    "chunked_of_graph",
    "fixed_features",
    "is_chunked",
    "open_chunked",
    "ragged_features",
    "write_chunked",
]
