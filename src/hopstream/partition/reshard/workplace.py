"""What do the tasks of one job share: the plan, the old dataset, and tables on disk?

Everything lies in one folder that all workers see. A task gets the folder and a few numbers; the rest it finds here.
"""

from __future__ import annotations

import json
from functools import cached_property, lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from hopstream.arrays import Array, IntArray, open_array, write_text
from hopstream.partition.book import Owner
from hopstream.partition.reshard.newest import open_rows
from hopstream.partition.reshard.plan import Plan, block_bounds
from hopstream.partition.reshard.rows import DatasetRows, owners_of
from hopstream.schema import EdgeType

PLAN, RANGES = "plan.json", "ranges.json"


class Workplace:
    """The folder of a job, seen by a task."""

    def __init__(self, root: Path) -> None:
        """Look at a folder; nothing is read yet."""
        self.root = root
        self.dataset = root / "dataset"
        self.scratch = root / "scratch"
        self._blocks: dict[Owner, IntArray] = {}

    @cached_property
    def plan(self) -> Plan:
        """How the work is cut."""
        return Plan.from_json(json.loads((self.scratch / PLAN).read_text(encoding="utf-8")))

    @cached_property
    def rows(self) -> DatasetRows:
        """The old dataset."""
        return open_rows(self.plan.source)

    @property
    def owners_folder(self) -> Path:
        """The folder with the new part of each node: the user's, or the job's own."""
        return Path(self.plan.owners) if self.plan.owners else self.root / "owners"

    @cached_property
    def owners(self) -> list[Owner]:
        """What columns belong to; tasks and files are called by places in this list."""
        return owners_of(self.rows.contents)

    @cached_property
    def _ranges(self) -> dict[str, IntArray]:
        value = json.loads((self.scratch / RANGES).read_text(encoding="utf-8"))
        return {t: np.array(offsets, np.int64) for t, offsets in value.items()}

    def node_offsets(self, node_type: str) -> IntArray:
        """int64[num_parts + 1], the new ids of each part; known when nodes have been counted."""
        return self._ranges[node_type]

    def write_ranges(self, ranges: dict[str, IntArray]) -> None:
        """Let tasks know the new ids of each part."""
        write_text(self.scratch / RANGES, json.dumps({t: offsets.tolist() for t, offsets in ranges.items()}))

    def slice_offsets(self, num_keys: int) -> IntArray:
        """int64[num_parts + 1], the keys of which each new part keeps account."""
        num_parts = self.plan.settings.num_parts
        return np.arange(num_parts + 1, dtype=np.int64) * num_keys // num_parts

    def table_name(self, by: str, node_type: str) -> PurePosixPath:
        """The new id of each node, ``by_key`` or ``by_id`` (the old one), in the scratch folder."""
        return PurePosixPath(by, f"{list(self.rows.contents.schema.nodes).index(node_type)}.npy")

    def table_path(self, by: str, node_type: str) -> Path:
        """The file of such a table."""
        return self.scratch / self.table_name(by, node_type)

    def table(self, by: str, node_type: str) -> Array:
        """The same, mapped."""
        return open_array(self.table_path(by, node_type))

    def blocks(self, owner: Owner) -> IntArray:
        """int64[num_blocks + 1], the stretches of keys by which items are counted."""
        if owner not in self._blocks:
            num_keys = self.rows.book.num_ids(own_type(owner))
            self._blocks[owner] = block_bounds(num_keys, self.plan.num_blocks(num_keys, self.rows.num_bytes(owner)))
        return self._blocks[owner]

    def counts_path(self, number: int, first_block: int) -> Path:
        """What one task counted."""
        return self.scratch / "counts" / f"{number}-{first_block}.npy"

    def firsts_path(self, number: int) -> Path:
        """int64[quantities, num_blocks + 1, num_parts], where items and elements of each block begin in each part."""
        return self.scratch / "firsts" / f"{number}.npy"


def own_type(owner: Owner) -> str:
    """The node type whose keys rows have."""
    if isinstance(owner, str):
        return owner
    edge_type, direction = owner
    return edge_type[2] if direction == "in" else edge_type[0]


@lru_cache(maxsize=1)
def _opened(root: str) -> Workplace:
    return Workplace(Path(root))


def forget() -> None:
    """Look at folders anew, where they may hold other work than before."""
    _opened.cache_clear()


def workplace_of(args: dict[str, Any]) -> Workplace:
    """The workplace of a task's arguments; what was read before does not count for it."""
    workplace = _opened(args["folder"])
    workplace.rows.stretches = {}
    return workplace


def edge_type_of(args: dict[str, Any]) -> EdgeType:
    """The edge type of a task's arguments."""
    source, relation, destination = args["type"]
    return source, relation, destination
