"""Cuts the work of re-sharding so that it fits the memory, and says how much disk it will take.

[Memory] As in ``dispatch_spec``: each process needs ``REST_BYTES`` before it does anything, and what is left is shared
    out among the workers. No block of rows, and no piece of a column, is larger than a worker's share allows; the rows
    of a hub are moved in pieces. Tables of ids are mapped, not read.
[Disk] The dataset itself, and 8 bytes per node for two tables of ids.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hopstream.assign import memory as assign_costs
from hopstream.dataset.book import Owner, ends_of, neighbor_dtype
from hopstream.dataset.rows import DatasetRows, owners_of
from hopstream.dataset.settings import PartitionSettings
from hopstream.engine.allotment import Allotment, Needs
from hopstream.preparation.dataset_job import DatasetEstimate
from hopstream.preparation.dataset_job_folder import REST_BYTES, DatasetJobSpec, work_needs

MAX_COUNTS = 1 << 20
"""Numbers of items by block and part that are kept for the rows of one node or edge type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshardLimits:
    """Between which sizes work is cut, where the memory allows.

    Attributes:
        block_rows: Rows that are looked at together, at most.
        piece_bytes: Of a column that are moved together, at most.
        run_bytes: Of a task, least and most.
    """

    block_rows: int = 1 << 18
    piece_bytes: int = 32 << 20
    run_bytes: tuple[int, int] = (4 << 20, 1 << 28)


LIMITS = ReshardLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshardSpec(DatasetJobSpec):
    """All that decides over what the tasks of a job do that re-shards a dataset; ``source`` is its folder.

    Attributes:
        limits: Between which sizes the work is cut.
    """

    limits_type = ReshardLimits
    limits: ReshardLimits = field(default_factory=lambda: LIMITS)

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
        return min(max(self.share(num_bytes), low), high)

    def num_blocks(self, num_keys: int, num_bytes: int) -> int:
        """Into how many stretches the keys of a type are cut; tasks take runs of them; at least 1."""
        wanted = -(-4 * num_bytes // self.run_bytes(num_bytes))
        return max(1, min(wanted, num_keys, MAX_COUNTS // self.settings.num_parts))


def estimate(rows: DatasetRows, num_parts: int) -> DatasetEstimate:
    """What a job will take."""
    book, old_parts = rows.book, rows.book.num_parts
    files = rows.manifest.files
    total = sum(record.num_bytes for record in files.values())
    # Each part has its own headers, and one more offset than rows.
    heads = len(files) // old_parts * 136 * (num_parts - old_parts)
    tables = sum(2 * n * neighbor_dtype(n).itemsize for t in rows.contents.schema.nodes for n in (book.num_ids(t),))
    return DatasetEstimate(dataset_bytes=max(0, total + heads), scratch_bytes=tables, input_bytes=total)


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
