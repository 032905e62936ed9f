"""Cuts the work so that it fits the memory, and says how much disk it will take.

[Memory] Each process is taken to need ``REST_BYTES`` or ``PARENT_BYTES`` before it does anything. What is left is
    shared out evenly among the workers. A worker holds one block of raw ids and what groups it, or one bucket of nodes
    with its hash table and a batch of ends to look up; both are cut to its share.
[Disk] What is spilled of all node tables and of one edge table at a time, and the chunked graph itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hopstream.engine.settings import Allotment, Needs
from hopstream.errors import FormatError
from hopstream.ingest.chunk_settings import ChunkSettings
from hopstream.ingest.raw_tables.files import CSV_BLOCK_BYTES, FilePart, is_compressed, shown_path
from hopstream.ingest.raw_tables.metadata import TableFiles
from hopstream.ingest.tables import TableSettings

REST_BYTES = 310 << 20
"""What a process takes that has loaded Arrow and compiled kernels, and reads and writes files."""
PARENT_BYTES = 160 << 20
"""What a process takes that gives tasks to others."""
MIN_BUDGET_BYTES = 48 << 20
_LEAST = REST_BYTES + MIN_BUDGET_BYTES
NEEDS = (Needs(alone_bytes=_LEAST, parent_bytes=PARENT_BYTES, worker_bytes=_LEAST),)
MIN_CSV_BLOCK_BYTES = 1 << 18
TASKS_PER_WORKER = 4
"""So many at least, where work allows, so that no worker waits long for the last."""
MAX_BUCKETS = 1 << 16
CACHED_BYTES = 1 << 20
"""Of nodes whose hash table stays in a processor's cache: 62 million integers a second are looked up among 31 thousand
of them, 4.5 million among 2 million; of strings 37 and 1.8 million."""
MANY_BUCKETS = 512
"""More are made where memory asks for it; for speed alone, reading their many small shares would cost more."""
GZIP_RATIO = 5
"""How many times larger compressed text is taken to be."""
SPILL_RATIO = 2.5
"""Bytes on the disk per byte of a table while it is worked on: raw ids, their keys and features, some twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkLimits:
    """The largest sizes that work is cut into, whatever the memory.

    Attributes:
        part_bytes: Of a Parquet file, the least that is read by a task of its own.
        block_bytes: Of raw ids that are grouped at a time.
        block_rows: Likewise, rows.
        bucket_bytes: Of the nodes of a bucket, on average.
        lookup_bytes: Of the ends that are looked up at a time.
        num_samples: Raw ids that tell where nodes without a table are cut into ranges.
    """

    part_bytes: int = 64 << 20
    block_bytes: int = 128 << 20
    block_rows: int = 1 << 22
    bucket_bytes: int = 128 << 20
    lookup_bytes: int = 128 << 20
    num_samples: int = 1 << 14


LIMITS = ChunkLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSpec:
    """All that decides over what the tasks of a job do.

    Attributes:
        source: The JSON file that describes the tables.
        name: What the metadata calls the graph.
        chunks: How the chunked graph is written.
        tables: How the tables are read.
        budget_bytes: What one worker may take for its work.
        num_workers: How many work at once.
        limits: The largest sizes; part of the plan because all who work on it must agree.
    """

    source: str
    name: str
    chunks: ChunkSettings
    tables: TableSettings
    budget_bytes: int
    num_workers: int
    limits: ChunkLimits = field(default_factory=lambda: LIMITS)

    def to_json(self) -> dict[str, Any]:
        """A JSON value that ``from_json`` reads back."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ChunkSpec:
        """Read what ``to_json`` wrote."""
        chunks = {**value["chunks"], "leave_out": tuple(value["chunks"]["leave_out"])}
        return cls(
            **{
                **value, "chunks": ChunkSettings(**chunks), "tables": TableSettings(**value["tables"]),
                "limits": ChunkLimits(**value["limits"]),
            }
        )  # fmt: skip

    @property
    def csv_block_bytes(self) -> int:
        """Bytes of a CSV file that are parsed at a time: Arrow reads 32 such blocks ahead, an eighth of the budget."""
        return min(max(self.budget_bytes // 256, MIN_CSV_BLOCK_BYTES), CSV_BLOCK_BYTES)

    @property
    def block_bytes(self) -> int:
        """Bytes of raw ids that are grouped at a time: they are there four times then, beside hashes and places."""
        return min(self.budget_bytes // 16, self.limits.block_bytes)

    @property
    def bucket_bytes(self) -> int:
        """Bytes of the nodes of a bucket, which its hash table doubles, and chance makes more of."""
        return min(self.budget_bytes // 8, self.limits.bucket_bytes)

    @property
    def lookup_bytes(self) -> int:
        """Bytes of the ends that are looked up at a time."""
        return min(self.budget_bytes // 8, self.limits.lookup_bytes)

    def num_buckets(self, num_ids: int, num_bytes: int) -> int:
        """How many buckets the nodes of a type are cut into, given the bytes of their raw ids."""
        total = num_bytes + ENTRY_BYTES * num_ids
        needed, wanted = -(-total // self.bucket_bytes), -(-total // min(CACHED_BYTES, self.bucket_bytes))
        return min(max(1, needed, min(wanted, MANY_BUCKETS)), MAX_BUCKETS)


ENTRY_BYTES = 24
"""What an entry takes beside its raw id: a key, a place, a slot of the hash table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one task reads of a table.

    Attributes:
        source: The file, or some of its row groups.
        num_bytes: About its size, uncompressed.
        num_rows: Its rows, where the file tells.
    """

    source: FilePart
    num_bytes: int
    num_rows: int | None

    def to_json(self) -> dict[str, Any]:
        """A JSON value that ``part_of_json`` reads back."""
        groups = None if self.source.groups is None else list(self.source.groups)
        return {"file": self.source.file, "groups": groups, "first_row": self.source.first_row}


def part_of_json(value: dict[str, Any]) -> FilePart:
    """Read what ``Part.to_json`` wrote."""
    groups = None if value["groups"] is None else (int(value["groups"][0]), int(value["groups"][1]))
    return FilePart(file=int(value["file"]), groups=groups, first_row=int(value["first_row"]))


def cut_table(files: TableFiles, part_bytes: int) -> list[Part]:
    """Cut a table into parts, in the order of their rows: whole files, but Parquet files are cut at row groups.

    Raises:
        FormatError: A file is damaged.
    """
    parts: list[Part] = []
    for number, path in enumerate(files.paths):
        if files.format != "parquet":
            size = path.stat().st_size * (GZIP_RATIO if is_compressed(path) else 1)
            parts.append(Part(source=FilePart(file=number), num_bytes=size, num_rows=None))
        else:
            parts += _cut_parquet(files, number, path, part_bytes)
    return parts


def _cut_parquet(files: TableFiles, number: int, path: Path, part_bytes: int) -> list[Part]:
    try:
        footer = pq.read_metadata(path)
    except (pa.ArrowException, OSError) as error:
        raise FormatError(f"{shown_path(files, path)} cannot be read as parquet: {error}") from error
    groups = [footer.row_group(group) for group in range(footer.num_row_groups)]
    parts: list[Part] = []
    first, first_row, rows, size = 0, 0, 0, 0
    for group, record in enumerate(groups, 1):
        rows, size = rows + record.num_rows, size + max(record.total_byte_size, 0)
        if size >= part_bytes or group == len(groups):
            source = FilePart(file=number, groups=(first, group), first_row=first_row)
            parts.append(Part(source=source, num_bytes=size, num_rows=rows))
            first, first_row, rows, size = group, first_row + rows, 0, 0
    return parts or [Part(source=FilePart(file=number), num_bytes=0, num_rows=0)]


def budget_of(work: Allotment) -> int:
    """What one worker may take for its work, of what was allotted by ``NEEDS``."""
    rest = work.num_working * REST_BYTES + (PARENT_BYTES if work.num_workers else 0)
    return (work.memory_bytes - rest) // work.num_working


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkEstimate:
    """What a job will take, from the sizes of its input; uncompressed bytes.

    Attributes:
        input_bytes: Of all tables.
        scratch_bytes: Of what is spilled, at most at any time.
        chunked_bytes: Of the chunked graph, at most.
        work: What memory and workers the job gets; None where only the disk was asked for.
        num_done: Tasks that an earlier call has done, which was ended.
    """

    input_bytes: int
    scratch_bytes: int
    chunked_bytes: int
    work: Allotment | None = None
    num_done: int = 0

    @property
    def disk_bytes(self) -> int:
        """The most that is on the disk at any time."""
        return self.scratch_bytes + self.chunked_bytes


def estimate(node_bytes: Sequence[int], edge_bytes: Sequence[int], *, spills_all_edges: bool) -> ChunkEstimate:
    """What a job will take, given the bytes of each table."""
    held = sum(edge_bytes) if spills_all_edges else max(edge_bytes, default=0)
    total = sum(node_bytes) + sum(edge_bytes)
    return ChunkEstimate(
        input_bytes=total, scratch_bytes=int(SPILL_RATIO * (sum(node_bytes) + held)), chunked_bytes=int(1.5 * total)
    )
