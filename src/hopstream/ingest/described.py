"""Which file describes the tables of a folder, and what does it say: a JSON file, or a TF-GNN schema?"""

from __future__ import annotations

from pathlib import Path

from hopstream.errors import FormatError
from hopstream.ingest.table_metadata import TablesMetadata, read_json_metadata

METADATA = "metadata.json"
SCHEMA_SUFFIX = ".pbtxt"


def is_unigraph(path: Path) -> bool:
    """Whether a file is, by its name, the schema of a unigraph."""
    return path.suffix == SCHEMA_SUFFIX


def description_of(source: Path) -> Path:
    """The file that describes tables, or a chunked graph: the one given, or that of a folder.

    A folder is described by its ``metadata.json``, or else by the only ``.pbtxt`` in it.

    Raises:
        FormatError: The folder has several ``.pbtxt``.
    """
    if not source.is_dir() or (source / METADATA).is_file():
        return source / METADATA if source.is_dir() else source
    found = sorted(source.glob(f"*{SCHEMA_SUFFIX}"))
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise FormatError(f"{source} has {len(found)} files *{SCHEMA_SUFFIX}: {names}; give the one that is the schema")
    return found[0] if found else source / METADATA


def read_metadata(path: Path) -> TablesMetadata:
    """Read and check what describes tables, and find their files.

    Args:
        path: A JSON file, or the ``.pbtxt`` of a unigraph.

    Raises:
        FormatError: The file is missing or damaged, or a table's file is missing.
        SchemaError: What it says contradicts itself, or a path leads out of the folder.
    """
    if is_unigraph(path):
        from hopstream.ingest.unigraph import read_unigraph  # protobuf is for those who need it

        return read_unigraph(path)
    return read_json_metadata(path)
