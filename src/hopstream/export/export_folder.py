"""Gives tasks of an export the store and their seeds, and writes shards block by block.

A shard is the unit of work: a stretch of seeds, sampled and written block by block. A block has as many seeds as make
some megabytes by what the block before held. Seeds differ, so a block is cut when its trees are grown, before their
values are fetched, where these would be too many; the rest is a block of its own. Where blocks end does not show in
files: a record is a function of its seed, and row groups of Parquet are cut by what rows hold.
"""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hopstream.arrays import IntArray
from hopstream.engine import task
from hopstream.engine.atomic_folder import sync
from hopstream.engine.folder_job import JobFolder
from hopstream.export.plan import with_readout_values
from hopstream.export.samples import SampleMaker, SeedSampling, distinct_stretches, trees_of
from hopstream.export.seeds import LinkValues, NodeIds, read_seeds, seed_names
from hopstream.export.settings import Compression, FileFormat, Seconds
from hopstream.export.shards import Encoded, ShardWriter, open_shard
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


FIRST_BLOCK, MAX_BLOCK = 16, 1024
"""Seeds of a shard's first block, and the most of any."""
BLOCK_BYTES = 8 << 20
"""About what a block is to have when it is encoded."""
MOST_BYTES = 2 * BLOCK_BYTES
"""The most that the values of a block take, other than a block of one seed."""
DRAWN_AT_ONCE = 1 << 17
"""The most edges that are drawn for a block; each takes about 300 bytes for a moment."""
PARTIAL = ".partial"
STAGES = ("sample", "gather", "encode", "write")


@dataclass(frozen=True, slots=True)
class SampleBlock:
    """Subgraphs that are ready to be written.

    Attributes:
        encoded: As they are written.
        took: What each stage took.
        first: Their first seed.
        last: The seed behind their last one.
        wanted_last: The same of the stretch that they are the first ones of; what is left of it comes next.
    """

    encoded: Encoded
    took: dict[str, Seconds]
    first: int
    last: int
    wanted_last: int


@task
def write_shard(args: dict[str, Any]) -> dict[str, Any]:
    """Write one shard: ``folder`` of the job, ``shard`` number; answers records, bytes and, per stage, seconds.

    ``seconds`` are those of a core, ``wall_seconds`` by the clock, of all threads together.
    """
    folder = ExportFolder.of(args)
    plan, shard = folder.spec, int(args["shard"])
    first, last = plan.range_of(shard)
    path = plan.paths[shard]
    partial = folder.root / f"{shard:05}.{secrets.token_hex(8)}{PARTIAL}"  # a worker given up may still write
    took = dict.fromkeys(STAGES, Seconds())
    try:
        writer = open_shard(partial, plan.file_format, plan.compression, folder.make(first, first))
        try:
            for block in _blocks(folder, writer, first, last):
                started = Seconds.now()
                writer.write(block.encoded)
                for name, value in {**block.took, "write": Seconds.now() - started}.items():
                    took[name] += value
                del block  # not kept while the next one is made
        finally:
            started = Seconds.now()
            writer.close()
        sync(partial)  # so that no crash of the machine leaves a name with half a file
        num_bytes = partial.stat().st_size
        partial.replace(path)
        took["write"] += Seconds.now() - started
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return {
        "records": last - first, "bytes": num_bytes, "seconds": {name: of.core for name, of in took.items()},
        "wall_seconds": {name: of.wall for name, of in took.items()},
    }  # fmt: skip


def _blocks(folder: ExportFolder, writer: ShardWriter, first: int, last: int) -> Iterator[SampleBlock]:
    """The blocks of a stretch of seeds in order; some are made ahead by other threads, where there are any."""
    num_threads = folder.spec.num_threads
    with ThreadPoolExecutor(num_threads) as pool:
        submit = _at_once if num_threads == 1 else pool.submit
        num_ahead = 1 if num_threads == 1 else num_threads + 1
        limit = _most_seeds(folder)
        size = min(FIRST_BLOCK, limit)
        ahead: deque[Future[SampleBlock]] = deque()
        try:
            while ahead or first < last:
                while first < last and len(ahead) < num_ahead:
                    end = folder.stretch_end(first, min(first + size, last))
                    ahead.append(submit(_block, folder, writer, first, end, end))
                    first = end
                block = ahead.popleft().result()
                num_seeds, rest = block.last - block.first, (block.last, block.wanted_last)
                fitting = BLOCK_BYTES * num_seeds // max(1, block.encoded.num_bytes)
                size = max(1, min(fitting, 2 * num_seeds, limit))
                yield block
                del block  # its memory is free, or used again, when the next one is made
                if rest[0] < rest[1]:
                    ahead.appendleft(submit(_block, folder, writer, rest[0], min(rest[0] + size, rest[1]), rest[1]))
        finally:
            for future in ahead:
                future.cancel()


def _at_once(make: Callable[..., SampleBlock], *arguments: Any) -> Future[SampleBlock]:
    """As a pool's ``submit``, in this thread."""
    done: Future[SampleBlock] = Future()
    done.set_result(make(*arguments))
    return done


def _most_seeds(folder: ExportFolder) -> int:
    """How many seeds a block has at most, so that what is sampled before it is cut is small."""
    most_drawn = folder.maker().most_drawn
    return MAX_BLOCK if most_drawn is None else max(1, min(MAX_BLOCK, DRAWN_AT_ONCE // max(1, most_drawn)))


def _block(folder: ExportFolder, writer: ShardWriter, first: int, last: int, wanted_last: int) -> SampleBlock:
    """The subgraphs of some seeds, all or as many as are not too much for one block, of a stretch that goes on."""
    maker = folder.maker()
    started, gathered = Seconds.now(), maker.gathering
    pieces = folder.make(first, last, max_bytes=MOST_BYTES)
    made, gathering = Seconds.now(), maker.gathering - gathered
    encoded = writer.encode(pieces)
    took = {"sample": made - started - gathering, "gather": gathering, "encode": Seconds.now() - made}
    return SampleBlock(encoded, took, first, first + pieces.num_graphs, wanted_last)
