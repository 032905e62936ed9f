"""Finds the example files that a command line names, and reads them in blocks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from hopstream.errors import FormatError
from hopstream.uris import local_path

if TYPE_CHECKING:
    from hopstream.tfgnn.spec import GraphSpec
    from hopstream.tfgnn.tfrecord import RecordBlock

FilesArgument = Annotated[
    list[str],
    typer.Argument(
        help="TFRecord or Parquet files: paths, patterns such as 'train-*', or sharded names such as train@8",
        metavar="FILES", show_default=False,
    ),
]  # fmt: skip
SchemaOption = Annotated[
    Path | None,
    typer.Option("--schema", help="the GraphSchema of the examples, or the folder that holds it", show_default=False),
]
_FIRST_SHARD = re.compile(r"(.+)-00000-of-(\d{5})")
ROWS = 64
"""Rows of Parquet files that are read at once; few, because a subgraph may have megabytes."""
PrefixOption = Annotated[str, typer.Option("--prefix", help="prefix of every name in the examples")]


def read_spec(path: Path) -> tuple[Any, GraphSpec]:
    """Read and check a schema; return the message and its spec.

    Raises:
        FormatError: The file is missing or not a ``GraphSchema``.
        SchemaError: The schema contradicts itself.
    """
    from hopstream.tfgnn.graph_schema import check_schema, read_schema, schema_path
    from hopstream.tfgnn.spec import GraphSpec

    message = read_schema(path)
    check_schema(message, str(schema_path(path)))
    return message, GraphSpec.of_schema(message)


def paths_of(files: Sequence[str]) -> list[Path]:
    """Find the named files.

    Raises:
        FormatError: A file is missing, a folder, or the stem of shards without their number; or files have different
            formats.
    """
    from hopstream.load.example_reader import example_paths

    for name in files:
        path = local_path(name)
        if path.is_dir():
            names = _sharded_names(path, "")
            raise FormatError(f"{name} is a folder; name files" + (f", such as {names[0]}" if names else ""))
        names = [] if path.exists() else _sharded_names(path.parent, path.name)
        if names:
            raise FormatError(f"{name} does not exist; there is {' and '.join(names)}")
    return example_paths(files)


def _sharded_names(folder: Path, stem: str) -> list[str]:
    """List the sharded names, such as ``train@8``, in a folder; only those of ``stem`` unless it is empty."""
    found = (_FIRST_SHARD.fullmatch(path.name) for path in folder.glob("*-00000-of-*"))
    return sorted(f"{folder / match[1]}@{int(match[2])}" for match in found if match and stem in ("", match[1]))


def blocks_of(paths: Iterable[Path]) -> Iterator[RecordBlock]:
    """Read the examples of files in blocks; rows of Parquet files are encoded as messages.

    Raises:
        FormatError: A file is damaged.
    """
    from hopstream.ingest.example_tables import ExampleTables, is_parquet
    from hopstream.tfgnn.example import encode_examples
    from hopstream.tfgnn.tfrecord import RecordBlock, example_blocks

    for path in paths:
        if not path.is_file():
            raise FormatError(f"{path} does not exist")
        if not is_parquet(path):
            yield from example_blocks([path])
            continue
        table = ExampleTables([path], None, window=ROWS)
        for first in range(0, len(table), ROWS):
            numbers = np.arange(first, min(first + ROWS, len(table)), dtype=np.int64)
            encoded = encode_examples(table.read(numbers), len(numbers))
            yield RecordBlock(path, encoded.data, encoded.bounds, first)
