"""Cuts the work of re-sharding so that it fits the memory, and says how much disk it will take.

[Memory] As in ``dispatch.plan``: each process needs ``REST_BYTES`` before it does anything, and what is left is shared
    out among the workers. No block of rows, and no piece of a column, is larger than a worker's share allows; the rows
    of a hub are moved in pieces. Tables of ids are mapped, not read.
[Disk] The dataset itself, and 8 bytes per node for two tables of ids.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from hopstream.arrays import IntArray
from hopstream.assign import memory as assign_costs
from hopstream.dataset.book import Owner, ends_of, neighbor_dtype
from hopstream.dataset.rows import DatasetRows, owners_of
from hopstream.dataset.settings import PartitionSettings
from hopstream.engine.allotment import Allotment, Needs
from hopstream.preparation.dispatch.plan import REST_BYTES, TASKS_PER_WORKER, work_needs

MAX_COUNTS = 1 << 20
"""Numbers of items by block and part that are kept for one owner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Between which sizes work is cut, where the memory allows.

    Attributes:
        block_rows: Rows that are looked at together, at most.
        piece_bytes: Of a column that are moved together, at most.
        run_bytes: Of a task, least and most.
    """

    block_rows: int = 1 << 18
    piece_bytes: int = 32 << 20
    run_bytes: tuple[int, int] = (4 << 20, 1 << 28)


LIMITS = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All that decides over what the tasks of a job do.

    Attributes:
        source: Folder of the dataset.
        owners: Folder with the part of each node.
        settings: How the new dataset is cut, and what the old one holds.
        budget_bytes: What one worker may take for its work.
        num_workers: How many work at once.
        limits: Part of the plan because all who work on it must agree.
    """

    source: str
    owners: str
    settings: PartitionSettings
    budget_bytes: int
    num_workers: int
    limits: Limits = field(default_factory=lambda: LIMITS)

    def to_json(self) -> dict[str, Any]:
        """A JSON value that ``from_json`` reads back."""
        names = ("source", "owners", "budget_bytes", "num_workers")
        limits = {**asdict(self.limits), "run_bytes": list(self.limits.run_bytes)}
        return {
            **{name: getattr(self, name) for name in names}, "settings": self.settings.to_json(), "limits": limits,
        }  # fmt: skip

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Plan:
        """Read what ``to_json`` wrote."""
        limits = Limits(**{**value["limits"], "run_bytes": tuple(value["limits"]["run_bytes"])})
        return cls(**{**value, "settings": PartitionSettings.from_json(value["settings"]), "limits": limits})

    @property
    def block_rows(self) -> int:
        """How many rows are looked at together: some 200 bytes for each, and 16 for each ragged column of edges."""
        return max(1, min(self.limits.block_rows, self.budget_bytes // 1024))

    def piece_items(self, item_bytes: int) -> int:
        """How many items of a column are moved together: what was read, what is written, and where elements lie."""
        return max(1, min(self.limits.piece_bytes, self.budget_bytes // 8) // max(8, item_bytes))

    def run_bytes(self, num_bytes: int) -> int:
        """How many bytes of columns a task moves."""
        low, high = self.limits.run_bytes
        return min(max(-(-num_bytes // (TASKS_PER_WORKER * max(1, self.num_workers))), low), high)

    def num_blocks(self, num_keys: int, num_bytes: int) -> int:
        """Into how many stretches the keys of an owner are cut, of which tasks take runs; at least 1."""
        wanted = -(-4 * num_bytes // self.run_bytes(num_bytes))
        return max(1, min(wanted, num_keys, MAX_COUNTS // self.settings.num_parts))


def block_bounds(num_keys: int, num_blocks: int) -> IntArray:
    """int64[num_blocks + 1], stretches of keys of even width."""
    return np.arange(num_blocks + 1, dtype=np.int64) * num_keys // num_blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a job will take.

    Attributes:
        dataset_bytes: Of the new dataset.
        scratch_bytes: Of tables of nodes.
        input_bytes: What is read.
        work: What memory and workers the job gets; None where only the disk was asked for.
        num_done: Tasks that an earlier call has done, which was ended.
    """

    dataset_bytes: int
    scratch_bytes: int
    input_bytes: int
    work: Allotment | None = None
    num_done: int = 0

    @property
    def disk_bytes(self) -> int:
        """The most that is on the disk at any time."""
        return self.dataset_bytes + self.scratch_bytes


def estimate(rows: DatasetRows, num_parts: int) -> Estimate:
    """What a job will take."""
    book, old_parts = rows.book, rows.book.num_parts
    files = rows.manifest.files
    total = sum(record.num_bytes for record in files.values())
    # Each part has its own headers, and one more offset than rows.
    heads = len(files) // old_parts * 136 * (num_parts - old_parts)
    tables = sum(2 * n * neighbor_dtype(n).itemsize for t in rows.contents.schema.nodes for n in (book.num_ids(t),))
    return Estimate(dataset_bytes=max(0, total + heads), scratch_bytes=tables, input_bytes=total)


def mapped_bytes(rows: DatasetRows) -> int:
    """The most bytes of tables of nodes that one task maps."""
    sizes = [rows.book.num_ids(_table_type(owner)) for owner in owners_of(rows.contents)]
    return max(n * neighbor_dtype(n).itemsize for n in sizes)


def _table_type(owner: Owner) -> str:
    return owner if isinstance(owner, str) else ends_of(*owner)[1]


def reshard_needs(rows: DatasetRows, settings: PartitionSettings) -> tuple[Needs, ...]:
    """What re-sharding needs; while the first process assigns nodes, workers are idle, but there."""
    work = work_needs(mapped_bytes(rows))
    if settings.method == "file":
        return (work,)
    return work, assign_costs.assign_needs(*_sizes(rows), settings, worker_bytes=REST_BYTES)


def memory_for_edges(rows: DatasetRows, settings: PartitionSettings, work: Allotment) -> int:
    """Bytes that edges may take while nodes are assigned."""
    return assign_costs.memory_for_edges(*_sizes(rows), settings, work.memory_bytes - work.num_workers * REST_BYTES)


def _sizes(rows: DatasetRows) -> tuple[int, int]:
    """The numbers of nodes and of edges of all types."""
    schema = rows.contents.schema
    return sum(map(rows.book.num_ids, schema.nodes)), sum(map(rows.book.num_edges, schema.edges))
