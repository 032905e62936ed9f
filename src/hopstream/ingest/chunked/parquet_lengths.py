"""Checks whether lists in Parquet files all have one length, where the footers leave it open.

A footer counts the values of a row group, and counts an empty list as one, so lists of other lengths may even out.

[Memory] Lists are decoded by batches of ``BATCH_BYTES`` on the average.
[Cost] Parquet has no lengths apart from values, so values are decoded to see them: 0.4 s for 400 MB. All lists of a
    feature are looked at up to ``CHECK_BYTES``. Of larger features, that many bytes are, spread over the row groups,
    and in full those row groups whose statistics tell of empty lists or nulls; what is left is seen when it is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from hopstream.ingest.chunked.parquet import BATCH_BYTES, ParquetColumn

CHECK_BYTES = 512 << 20
MAX_BATCH_ROWS = 1 << 12
MAX_GROUPS = 1 << 10
"""The most row groups of a feature that are looked at, where not all are; each costs some milliseconds."""


def are_of_one_length(files: Sequence[ParquetColumn]) -> bool:
    """Whether lists have the length that the footer of their file allows; null lists have any.

    Args:
        files: Files of one feature; of those whose lists may be of any length, rows have a shape.

    Raises:
        FormatError: A file is damaged.
    """
    open_files = [file for file in files if file.element_shape is not None and file.num_rows]
    return all(_has_length(file, start, stop) for file, start, stop in _stretches(open_files))


def _stretches(files: Sequence[ParquetColumn]) -> Iterator[tuple[ParquetColumn, int, int]]:
    """First row and end of what is looked at in each file."""
    groups = [(file, group) for file in files for group in range(file.file.num_groups)]
    is_small = sum(file.num_rows * _row_bytes(file) for file in files) <= CHECK_BYTES
    step = -(-len(groups) // MAX_GROUPS)
    for place, (file, group) in enumerate(groups):
        start, stop = map(int, file.file.group_offsets[group : group + 2])
        if is_small or _has_empty(file, group):
            yield file, start, stop
        elif place % step == 0:
            num_rows = CHECK_BYTES // min(len(groups), MAX_GROUPS) // _row_bytes(file)
            yield file, start, min(stop, start + max(1, num_rows))


def _has_empty(file: ParquetColumn, group: int) -> bool:
    """Whether statistics tell that a row group has empty lists or nulls, which they count alike."""
    return bool(file.file.list_sizes[1][group])


def _has_length(file: ParquetColumn, start: int, stop: int) -> bool:
    wanted = (file.shape or (0,))[0]
    batch_rows = max(1, min(MAX_BATCH_ROWS, BATCH_BYTES // _row_bytes(file)))
    for _, (lists,) in file.file.batches(start, stop, batch_rows):
        lengths = np.diff(lists.offsets.to_numpy())
        if lists.null_count:
            lengths = lengths[lists.is_valid().to_numpy(zero_copy_only=False)]
        if (lengths != wanted).any():
            return False
    return True


def _row_bytes(file: ParquetColumn) -> int:
    return max(1, math.prod(file.shape or ()) * file.dtype.itemsize)
