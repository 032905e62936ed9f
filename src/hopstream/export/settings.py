"""Settings of exports and of unigraphs, and the report of an export."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypedDict, get_args

from hopstream.checks import Settings, check_choice, check_int
from hopstream.engine.settings import MEMORY_HELP, EngineName, WorkerSettings, memory_bytes
from hopstream.errors import SettingsError
from hopstream.places.paths import AnyPath
from hopstream.tfgnn.tfrecord import MAX_SHARDS

FileFormat = Literal["tfrecord", "parquet"]
Compression = Literal["none", "gzip"]
OnDangling = Literal["error", "drop"]
ExportedEdges = Literal["directional", "induced"]
MAX_THREADS = 256
SEEDS_PER_SHARD, USUAL_SHARDS = 1024, 10_000
"""Defaults if ``num_shards`` is not given: seeds per shard, and the largest number of shards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSettings(WorkerSettings):
    """Settings for sampling and writing subgraphs. The constructor checks every field.

    Raises:
        SettingsError: A field is out of range or contradicts another one.
    """

    num_shards: int | None = field(
        default=None,
        metadata={"help": f"files to write; if not given, one per {SEEDS_PER_SHARD} seeds; name@N sets it too"},
    )
    file_format: FileFormat = field(default="tfrecord", metadata={"help": "format of the files"})
    compression: Compression = field(default="none", metadata={"help": "compression of the files"})
    subgraph_type: ExportedEdges = field(
        default="directional",
        metadata={"help": "edges of a subgraph: the sampled ones, or all between its nodes"},
    )
    rng_seed: int = field(default=0, metadata={"help": "seed of all randomness"})
    split: str | None = field(default=None, metadata={"help": "start from the nodes of this split of the dataset"})
    seed_column: str | None = field(
        default=None, metadata={"help": "column with the seeds in the table of seeds; if not given, #id or id"}
    )
    id_feature: str | None = field(
        default=None,
        metadata={
            "help": "feature with raw ids of the nodes to start from, for links also two as source,target; if not "
            "given, #id or id, and without either seeds are keys"
        },
    )
    leave_out: tuple[str, ...] = field(
        default=(), metadata={"help": "a feature not to write, such as paper.title or author__writes__paper.year"}
    )
    readout: bool = field(
        default=False, metadata={"help": "also write a readout of the seed: node set _readout, edge set _readout/seed"}
    )
    labels: tuple[str, ...] = field(
        default=(),
        metadata={
            "help": "a feature of the seeds' node set that moves to the readout; for links, a column of the table of "
            "seeds to write there (default: all)"
        },
    )
    link_set: str | None = field(
        default=None,
        metadata={
            "help": "node set of both ends of links, or two as source,target; if not given, that of the unigraph's "
            "schema or the spec"
        },
    )
    seed_ids: bool = field(
        default=False,
        metadata={"help": "also write context/seed_id, and context/sample_id, which is unique"},
    )
    node_ids: bool = field(
        default=False,
        metadata={
            "help": "also write #id, the raw ids of nodes, if the schema does not declare it; node sets without other "
            "features always have it, as in TF-GNN"
        },
    )
    one_file: bool = field(default=False, metadata={"help": "write one file named out, without -00000-of-00001"})
    num_threads: int = field(default=1, metadata={"help": "threads of each process, for datasets on other machines"})
    on_dangling: OnDangling = field(
        default="error", metadata={"help": "of a unigraph: what to do with edges whose ends are not nodes"}
    )
    data_path: str | None = field(
        default=None,
        metadata={"help": "of a unigraph: the folder that file names are relative to; if not given, the schema's"},
    )
    memory: str | None = field(default=None, metadata={"help": MEMORY_HELP})
    work_dir: str | None = field(
        default=None,
        metadata={"help": "if out is a URI: a folder that all workers see, for unfinished work and for each shard "
                          "until it is copied"},
    )  # fmt: skip
    beam_options: tuple[str, ...] = field(
        default=(), metadata={"help": "an option of the Beam pipeline, such as --runner=FlinkRunner"}
    )

    def __post_init__(self) -> None:
        """Check every field."""
        WorkerSettings.__post_init__(self)  # super() fails here, because slots=True creates a new class
        for name, choices in (
            ("file_format", FileFormat), ("compression", Compression), ("subgraph_type", ExportedEdges),
            ("on_dangling", OnDangling),
        ):  # fmt: skip
            check_choice(name, getattr(self, name), get_args(choices))
        if self.num_shards is not None:
            check_int("num_shards", self.num_shards, 1, MAX_SHARDS)
            if self.one_file:
                raise SettingsError(f"one_file is set, but num_shards is {self.num_shards}; leave one of them out")
        if self.memory is not None:
            memory_bytes(self.memory)
        check_int("num_threads", self.num_threads, 1, MAX_THREADS)
        check_int("rng_seed", self.rng_seed, 0, 2**64 - 1)
        for name in ("leave_out", "labels", "beam_options"):
            if isinstance(getattr(self, name), str):
                raise SettingsError(f"{name} is {getattr(self, name)!r}; give a list of names")
            object.__setattr__(self, name, tuple(getattr(self, name)))


class ExportOptions(TypedDict, total=False):
    """The fields of ``ExportSettings`` as keyword arguments."""

    num_workers: int | None
    engine: EngineName
    num_shards: int | None
    file_format: FileFormat
    compression: Compression
    subgraph_type: ExportedEdges
    rng_seed: int
    split: str | None
    seed_column: str | None
    id_feature: str | None
    leave_out: tuple[str, ...]
    readout: bool
    labels: tuple[str, ...]
    link_set: str | None
    seed_ids: bool
    node_ids: bool
    one_file: bool
    num_threads: int
    on_dangling: OnDangling
    data_path: str | None
    memory: str | None
    work_dir: str | None
    beam_options: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """Report of an export.

    Attributes:
        paths: The shards in order; all records of the first come before those of the second. Each is a ``Path``; at a
            URI its ``str`` is the URI without its query.
        schema_path: The file with the ``GraphSchema`` of the records.
        num_seeds: Number of records in all shards, one per seed.
        num_bytes: Bytes of all shards.
        seconds: CPU seconds of the stages ``sample``, ``gather``, ``encode`` and ``write``, summed over all threads of
            all workers; empty if an earlier call had written everything.
        wall_seconds: Wall-clock seconds of the same stages, including waits for disks, servers and other threads.
    """

    paths: tuple[AnyPath, ...]
    schema_path: AnyPath
    num_seeds: int
    num_bytes: int
    seconds: Mapping[str, float]
    wall_seconds: Mapping[str, float]


UnigraphFormat = Literal["tfrecord", "csv", "parquet"]
FORMATS: tuple[UnigraphFormat, ...] = ("tfrecord", "csv", "parquet")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnigraphSettings(Settings):
    """Settings of the writer of unigraphs.

    Raises:
        SettingsError: A setting is out of range.
    """

    format: UnigraphFormat = field(default="tfrecord", metadata={"help": "format of the tables"})
    num_shards: int = field(default=1, metadata={"help": "number of files per table"})
    compress: bool = field(default=False, metadata={"help": "compress tfrecord files with gzip"})
    ids: tuple[str, ...] = field(
        default=(),
        metadata={"help": "a feature with the raw ids of its node type, as paper.doi; otherwise #id, or else keys"},
    )  # fmt: skip

    def __post_init__(self) -> None:
        """Refuse values that the writer does not support."""
        if self.format not in FORMATS:
            raise SettingsError(f"format is {self.format!r}; wanted one of {', '.join(FORMATS)}")
        if not isinstance(self.num_shards, int) or not 1 <= self.num_shards <= MAX_SHARDS:
            raise SettingsError(f"num_shards is {self.num_shards!r}; wanted 1 to {MAX_SHARDS}")
        if self.compress and self.format != "tfrecord":
            raise SettingsError(f"compress is only for tfrecord, and format is {self.format}; leave it out")
        if any("." not in name for name in self.ids):
            raise SettingsError(f"ids is {self.ids!r}; wanted names of features, as paper.doi")


@dataclass(frozen=True, slots=True)
class Seconds:
    """A time span, or a moment of one thread.

    Attributes:
        core: CPU seconds of this thread.
        wall: Wall-clock seconds, including waits for disks, servers and other threads.
    """

    core: float = 0.0
    wall: float = 0.0

    @classmethod
    def now(cls) -> Seconds:
        """Return the current moment, for differences in the same thread."""
        return cls(time.thread_time(), time.perf_counter())

    def __add__(self, other: Seconds) -> Seconds:
        """Add two time spans."""
        return Seconds(self.core + other.core, self.wall + other.wall)

    def __sub__(self, other: Seconds) -> Seconds:
        """Return the time span since an earlier moment."""
        return Seconds(self.core - other.core, self.wall - other.wall)
