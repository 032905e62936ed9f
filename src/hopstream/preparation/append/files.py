"""How are the files of a piece written a block of rows at a time, when nobody knows yet how long they get?"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from hopstream.arrays import FileRecord, IntArray, with_blocks
from hopstream.dataset.regions import RegionWriter, file_record, make_file
from hopstream.dataset.stored_columns import INT64, StoredColumn


class BlockFiles:
    """Files of one folder to which blocks of rows are added."""

    def __init__(self, root: Path) -> None:
        """Write below ``root``; nothing is written yet."""
        self._root = root
        self._writer = RegionWriter(root)
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._dtypes: dict[str, np.dtype[Any]] = {}
        self._ends: dict[str, int] = {}

    def add(self, columns: Iterable[StoredColumn]) -> None:
        """Add the rows of a block; offsets, which begin at 0 in every block, go on from those before."""
        for column in columns:
            is_feature = column.path.parent.name == "features"
            if column.path.name.endswith(".offsets.npy") if is_feature else column.path.name == "indptr.npy":
                self._add_offsets(column)
            else:
                self._add(column)

    def _add_offsets(self, column: StoredColumn) -> None:
        name = str(column.path)
        offsets: IntArray = np.concatenate([np.asarray(block, np.int64) for block in column.blocks])
        offsets = offsets + self._ends.get(name, 0)
        rows = offsets[1:] if name in self._ends else offsets
        self._ends[name] = int(offsets[-1])
        self._add(StoredColumn(path=column.path, dtype=INT64, shape=rows.shape, blocks=[rows]))

    def _add(self, column: StoredColumn) -> None:
        name, tail = str(column.path), column.shape[1:]
        if name not in self._shapes:
            make_file(self._root / column.path, column.dtype, (0, *tail))
            self._shapes[name], self._dtypes[name] = (0, *tail), column.dtype
        num_rows = self._shapes[name][0]
        self._writer.write(column, num_rows)
        self._shapes[name] = (num_rows + column.shape[0], *tail)

    def finish(self) -> dict[str, FileRecord]:
        """Give each file the header of its length; path to record."""
        records: dict[str, FileRecord] = {}
        for name, shape in self._shapes.items():
            make_file(self._root / name, self._dtypes[name], shape)
            record = file_record(name, self._dtypes[name], shape, self._writer.stretches.get(name, []))
            records[name] = with_blocks(record, self._root / name)
        return records
