"""Gives tasks of an export the store and the keys of its seeds, and makes the samples that a shard holds."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hopstream.arrays import IntArray
from hopstream.engine.folder_job import JobFolder
from hopstream.export.link_values import LinkValues
from hopstream.export.readout import with_readout_values
from hopstream.export.samples import SampleMaker, SeedSampling, distinct_stretches, trees_of
from hopstream.export.seeds import NodeIds, read_seeds, seed_names
from hopstream.export.settings import Compression, FileFormat
from hopstream.store import open_store
from hopstream.tfgnn.graph_tensor import GraphPieces
from hopstream.tfgnn.tfrecord import shard_paths

SEEDS, REPEATS, VALUES = "seeds.bin", "repeats.bin", "values.arrow"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportPlan:
    """What is exported and where to; JSON values only.

    Attributes:
        source: What ``open_store`` takes.
        sampling: What is made of each seed.
        stem: The path that names of shards begin with.
        num_seeds: Records in all shards.
        num_shards: Files.
        one_file: There is one, which is called like the stem.
        has_keys: Seeds are in a file; else they are all nodes.
        file_format: What is written.
        compression: How it is compressed.
        num_threads: Threads of each process.
    """

    source: str
    sampling: SeedSampling
    stem: str
    num_seeds: int
    num_shards: int
    one_file: bool
    has_keys: bool
    file_format: FileFormat
    compression: Compression
    num_threads: int

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ExportPlan:
        """The plan that ``to_json`` wrote."""
        return cls(**{**value, "sampling": SeedSampling(**value["sampling"])})

    @property
    def paths(self) -> list[Path]:
        """The files that are written."""
        return [Path(self.stem)] if self.one_file else shard_paths(self.stem, self.num_shards)

    def range_of(self, shard: int) -> tuple[int, int]:
        """The first seed of a shard and the one behind its last: seeds are cut evenly, in order."""
        return shard * self.num_seeds // self.num_shards, (shard + 1) * self.num_seeds // self.num_shards


class ExportFolder(JobFolder[ExportPlan]):
    """The folder of an export, seen by a task: the store, the seeds, and a maker for each thread."""

    spec_type = ExportPlan

    def __init__(self, root: Path) -> None:
        """Open what the plan names.

        Raises:
            HopstreamError: The source cannot be opened, or does not hold what the spec needs.
        """
        super().__init__(root)
        self.store = open_store(self.spec.source)
        try:
            self._makers = threading.local()
            maker, has_ids = self.maker(), self.spec.sampling.seed_ids
            self._ids = [NodeIds(self.store, *end) for end in maker.ends] if has_ids else None
            num_columns = 2 if maker.is_of_links else 1
            self._keys = read_seeds(root / SEEDS, num_columns) if self.spec.has_keys else None
            self._repeats = read_seeds(root / REPEATS) if (root / REPEATS).exists() else None
            self._values = LinkValues(root / VALUES) if (root / VALUES).exists() else None
        except BaseException:
            self.store.close()
            raise

    def close(self) -> None:
        """Close the store."""
        self.store.close()

    def maker(self) -> SampleMaker:
        """The maker of this thread."""
        maker: SampleMaker | None = getattr(self._makers, "maker", None)
        if maker is None:
            maker = self._makers.maker = SampleMaker(self.store, self.spec.sampling)
        return maker

    def make(self, first: int, last: int, *, max_bytes: int | None = None) -> GraphPieces:
        """The samples of a stretch of seeds, by their positions among all; no two may have one tree.

        Where their values would take more than ``max_bytes``, only the first ones are made: those that take no more, or
        one.
        """
        keys = self.keys(first, last)
        ids = None if self._ids is None else seed_names(self._ids, keys)
        pieces = self.maker().make(keys, self._numbers(first, last), ids, max_bytes=max_bytes)
        if self._values is None:
            return pieces
        return with_readout_values(pieces, self._values.read(first, first + pieces.num_graphs))

    def stretch_end(self, first: int, last: int) -> int:
        """The end of the longest stretch of seeds from the first on in which every sample has a tree of its own."""
        [(_, end), *_] = distinct_stretches(trees_of(self.keys(first, last), self._numbers(first, last)))
        return first + end

    def keys(self, first: int, last: int) -> IntArray:
        """int64[n] or int64[n, 2], the keys of some seeds."""
        return np.arange(first, last, dtype=np.int64) if self._keys is None else np.array(self._keys[first:last])

    def _numbers(self, first: int, last: int) -> IntArray:
        """int64[n], the number of each sample among those of its seed."""
        return np.zeros(last - first, np.int64) if self._repeats is None else np.array(self._repeats[first:last])
