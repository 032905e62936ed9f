"""What do the tasks of one job share: the plan, the old dataset, and tables on disk?

Everything lies in one folder that all workers see. A task gets the folder and a few numbers; the rest it finds here.
"""

from __future__ import annotations

import json
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from hopstream.arrays import IntArray
from hopstream.dataset.book import Owner
from hopstream.dataset.rows import DatasetRows, open_rows, owners_of
from hopstream.preparation.job_folder import PLAN, JobFolder
from hopstream.preparation.reshard.plan import Plan, block_bounds
from hopstream.schema import EdgeType


class Workplace(JobFolder):
    """The folder of a job, seen by a task. Tables: the new id of each node, ``by_key`` and ``by_id`` (the old one)."""

    def __init__(self, root: Path) -> None:
        """Look at a folder; nothing is read yet."""
        super().__init__(root)
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

    @property
    def num_parts(self) -> int:
        """Parts of the new dataset."""
        return self.plan.settings.num_parts

    @cached_property
    def node_types(self) -> list[str]:
        """Node types, whose places stand for them in names of files."""
        return list(self.rows.contents.schema.nodes)

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
