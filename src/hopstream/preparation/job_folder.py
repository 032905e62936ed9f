"""What do tasks of every job that writes a dataset find in its folder?"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath

import numpy as np

from hopstream.arrays import Array, IntArray, open_array, write_text

PLAN, RANGES = "plan.json", "ranges.json"


class JobFolder(ABC):
    """The folder of a job, seen by a task: the dataset that is written, and a scratch folder."""

    def __init__(self, root: Path) -> None:
        """Look at a folder; nothing is read yet."""
        self.root = root
        self.dataset = root / "dataset"
        self.scratch = root / "scratch"

    @property
    @abstractmethod
    def num_parts(self) -> int:
        """Parts of the dataset that is written."""

    @property
    @abstractmethod
    def node_types(self) -> Sequence[str]:
        """Node types, whose places stand for them in names of files."""

    @cached_property
    def _ranges(self) -> dict[str, IntArray]:
        value = json.loads((self.scratch / RANGES).read_text(encoding="utf-8"))
        return {t: np.array(offsets, np.int64) for t, offsets in value.items()}

    def node_offsets(self, node_type: str) -> IntArray:
        """int64[num_parts + 1], the ids of each part; known when nodes have been counted."""
        return self._ranges[node_type]

    def write_ranges(self, ranges: dict[str, IntArray]) -> None:
        """Let tasks know the ids of each part."""
        write_text(self.scratch / RANGES, json.dumps({t: offsets.tolist() for t, offsets in ranges.items()}))

    def slice_offsets(self, num_keys: int) -> IntArray:
        """int64[num_parts + 1], the keys of which each part keeps account."""
        return np.arange(self.num_parts + 1, dtype=np.int64) * num_keys // self.num_parts

    def table_name(self, what: str, node_type: str) -> PurePosixPath:
        """A table with a row per node, in the scratch folder."""
        return PurePosixPath(what, f"{self.node_types.index(node_type)}.npy")

    def table_path(self, what: str, node_type: str) -> Path:
        """The file of such a table."""
        return self.scratch / self.table_name(what, node_type)

    def table(self, what: str, node_type: str) -> Array:
        """The same, mapped."""
        return open_array(self.table_path(what, node_type))
