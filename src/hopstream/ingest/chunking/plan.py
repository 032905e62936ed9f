"""Cuts the work to fit the memory, and estimates the disk space that it will take.

[Memory] A worker is assumed to need ``REST_BYTES`` before it does anything, the parent process ``PARENT_BYTES``. The
    workers share the remaining memory evenly. A worker holds either one block of raw ids with the arrays that group it,
    or one bucket of nodes with its hash table and a batch of ends to look up. Both are cut to the worker's share.
[Disk] The spilled columns of all node tables and of one edge table at a time, and the chunked graph itself. If a node
    type has no table, the estimate counts the columns of all edge tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hopstream.engine.settings import Allotment, Needs
from hopstream.errors import FormatError
from hopstream.ingest.chunk_settings import ChunkSettings
from hopstream.ingest.raw_tables.files import CSV_BLOCK_BYTES, FilePart, is_compressed, shown_path
from hopstream.ingest.raw_tables.metadata import TableFiles
from hopstream.ingest.tables import TableSettings
from hopstream.places.paths import AnyPath, arrow_source

REST_BYTES = 310 << 20
"""Memory of a worker process before it holds any data: Arrow, compiled kernels and file buffers."""
PARENT_BYTES = 160 << 20
"""Memory of the process that hands tasks to the workers."""
MIN_BUDGET_BYTES = 48 << 20
_LEAST = REST_BYTES + MIN_BUDGET_BYTES
NEEDS = (Needs(alone_bytes=_LEAST, parent_bytes=PARENT_BYTES, worker_bytes=_LEAST),)
MIN_CSV_BLOCK_BYTES = 1 << 18
TASKS_PER_WORKER = 4
"""Tasks of a step over buckets, per worker; with fewer, workers would idle while the last tasks run."""
MAX_BUCKETS = 1 << 16
CACHED_BYTES = 1 << 20
"""Bytes of nodes whose hash table stays in a processor's cache. Measured look-ups per second: among 31 thousand nodes
62 million integers or 37 million strings, among 2 million nodes 4.5 million integers or 1.8 million strings."""
MANY_BUCKETS = 512
"""Most buckets made for speed; reading more, smaller shares would cost more. Only the memory limit can raise it."""
GZIP_RATIO = 5
"""Assumed compression ratio of gzip files."""
SPILL_RATIO = 2.5
"""Bytes spilled to disk per byte of a table: raw ids, keys and features, some of them twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkLimits:
    """Upper limits of the pieces of work, however much memory there is.

    Attributes:
        part_bytes: Row groups of a Parquet file are joined to a task until they reach this size.
        block_bytes: Bytes of raw ids that are grouped at a time.
        block_rows: Rows that are grouped at a time.
        bucket_bytes: Average bytes of the nodes of a bucket.
        lookup_bytes: Bytes of the ends that are looked up at a time.
        num_samples: Size of the sample of raw ids that cuts nodes without a table into ranges.
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
    """Everything that determines what the tasks of a job do.

    Attributes:
        source: The file that describes the tables.
        name: ``graph_name`` of the metadata.
        chunks: Settings of the writer.
        tables: Settings of the reader.
        budget_bytes: Memory that one worker may use for its data.
        num_workers: Number of workers that run at once.
        limits: Upper limits of sizes; part of the spec because all workers must use the same ones.
    """

    source: str
    name: str
    chunks: ChunkSettings
    tables: TableSettings
    budget_bytes: int
    num_workers: int
    limits: ChunkLimits = field(default_factory=lambda: LIMITS)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON value for ``from_json``."""
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
        """Bytes of a CSV file that are parsed at a time.

        Arrow reads 32 such blocks ahead, so the blocks take an eighth of the budget.
        """
        return min(max(self.budget_bytes // 256, MIN_CSV_BLOCK_BYTES), CSV_BLOCK_BYTES)

    @property
    def block_bytes(self) -> int:
        """Bytes of raw ids that are grouped at a time.

        Grouping holds four copies of the raw ids, and their hashes and places.
        """
        return min(self.budget_bytes // 16, self.limits.block_bytes)

    @property
    def bucket_bytes(self) -> int:
        """Average bytes of the nodes of a bucket.

        The hash table doubles them, and by chance some buckets are larger than the average.
        """
        return min(self.budget_bytes // 8, self.limits.bucket_bytes)

    @property
    def lookup_bytes(self) -> int:
        """Bytes of the ends that are looked up at a time."""
        return min(self.budget_bytes // 8, self.limits.lookup_bytes)

    def num_buckets(self, num_ids: int, num_bytes: int) -> int:
        """Return the number of buckets for a node type, given the number and the bytes of its raw ids."""
        total = num_bytes + ENTRY_BYTES * num_ids
        needed, wanted = -(-total // self.bucket_bytes), -(-total // min(CACHED_BYTES, self.bucket_bytes))
        return min(max(1, needed, min(wanted, MANY_BUCKETS)), MAX_BUCKETS)


ENTRY_BYTES = 24
"""Bytes of an entry beside its raw id: a key, a place, and a slot of the hash table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The part of a table that one task reads.

    Attributes:
        source: A file, or a range of its row groups.
        num_bytes: Approximate size, uncompressed.
        num_rows: Number of rows for Parquet files, else None.
    """

    source: FilePart
    num_bytes: int
    num_rows: int | None

    def to_json(self) -> dict[str, Any]:
        """Return a JSON value for ``part_of_json``."""
        groups = None if self.source.groups is None else list(self.source.groups)
        return {"file": self.source.file, "groups": groups, "first_row": self.source.first_row}


def part_of_json(value: dict[str, Any]) -> FilePart:
    """Read what ``Part.to_json`` wrote."""
    groups = None if value["groups"] is None else (int(value["groups"][0]), int(value["groups"][1]))
    return FilePart(file=int(value["file"]), groups=groups, first_row=int(value["first_row"]))


def cut_table(files: TableFiles, part_bytes: int) -> list[Part]:
    """Cut a table into parts in the order of its rows.

    A part is a whole file, or a range of row groups of a Parquet file.

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


def _cut_parquet(files: TableFiles, number: int, path: AnyPath, part_bytes: int) -> list[Part]:
    try:
        footer = pq.read_metadata(arrow_source(path))
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
    """Return the memory that one worker may use for its data, given an allotment by ``NEEDS``."""
    rest = work.num_working * REST_BYTES + (PARENT_BYTES if work.num_workers else 0)
    return (work.memory_bytes - rest) // work.num_working


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkEstimate:
    """Estimated resources of a job, from the sizes of its input; bytes are uncompressed.

    Attributes:
        input_bytes: Size of all tables.
        scratch_bytes: Largest size of the spilled columns at any time.
        chunked_bytes: Largest size of the chunked graph.
        work: Memory and workers of the job; None if only disk space was estimated.
        num_done: Tasks that an earlier, interrupted call has finished.
    """

    input_bytes: int
    scratch_bytes: int
    chunked_bytes: int
    work: Allotment | None = None
    num_done: int = 0

    @property
    def disk_bytes(self) -> int:
        """Largest disk space in use at any time."""
        return self.scratch_bytes + self.chunked_bytes


def estimate(node_bytes: Sequence[int], edge_bytes: Sequence[int], *, spills_all_edges: bool) -> ChunkEstimate:
    """Estimate the disk space of a job, given the bytes of each table."""
    held = sum(edge_bytes) if spills_all_edges else max(edge_bytes, default=0)
    total = sum(node_bytes) + sum(edge_bytes)
    return ChunkEstimate(
        input_bytes=total, scratch_bytes=int(SPILL_RATIO * (sum(node_bytes) + held)), chunked_bytes=int(1.5 * total)
    )
