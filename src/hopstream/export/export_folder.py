"""Work folder of an export: gives tasks the store and the seeds, and writes shards in blocks.

A shard is the unit of work: a range of seeds, sampled and written in blocks. The size of a block in seeds is chosen
from the size in bytes of the block before. Subgraphs differ in size, so a block is cut after its trees are sampled and
before their values are fetched, if the values would be too large; the remaining seeds are the next block. The bounds of
blocks have no effect on files: a record depends only on its seed, and row groups of Parquet end by the size of rows.
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
from hopstream.places.paths import AnyPath, path_of, put_file
from hopstream.store import open_store
from hopstream.tfgnn.graph_tensor import GraphPieces
from hopstream.tfgnn.tfrecord import shard_paths

SEEDS, REPEATS, VALUES = "seeds.bin", "repeats.bin", "values.arrow"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportPlan:
    """Source, sampling and files of an export; JSON values only.

    Attributes:
        source: Location for ``open_store``.
        sampling: The sampling of each seed.
        stem: Common beginning of the paths of shards, for ``path_of``.
        num_seeds: Number of records in all shards.
        num_shards: Number of files.
        one_file: There is one file, whose path is ``stem``.
        has_keys: The keys of seeds are in a file; if False, all nodes are seeds.
        file_format: Format of the files.
        compression: Compression of the files.
        num_threads: Threads per process.
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
        """Return a JSON value for ``from_json``."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ExportPlan:
        """Read what ``to_json`` wrote."""
        return cls(**{**value, "sampling": SeedSampling(**value["sampling"])})

    @property
    def paths(self) -> list[AnyPath]:
        """The files to write."""
        stem = path_of(self.stem)
        return [stem] if self.one_file else shard_paths(stem, self.num_shards)

    def range_of(self, shard: int) -> tuple[int, int]:
        """Return the range ``[first, last)`` of a shard's seeds; shards are consecutive and of equal size."""
        return shard * self.num_seeds // self.num_shards, (shard + 1) * self.num_seeds // self.num_shards


class ExportFolder(JobFolder[ExportPlan]):
    """The work folder of an export, opened by a task: store, seeds, and a ``SampleMaker`` per thread."""

    spec_type = ExportPlan

    def __init__(self, root: Path) -> None:
        """Open the store and the files of seeds.

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
        """Return the ``SampleMaker`` of this thread."""
        maker: SampleMaker | None = getattr(self._makers, "maker", None)
        if maker is None:
            maker = self._makers.maker = SampleMaker(self.store, self.spec.sampling)
        return maker

    def make(self, first: int, last: int, *, max_bytes: int | None = None) -> GraphPieces:
        """Make the samples of a range of seeds, given by positions; all must have distinct trees.

        With ``max_bytes``, only the first samples whose values fit are made, at least one.
        """
        keys = self.keys(first, last)
        ids = None if self._ids is None else seed_names(self._ids, keys)
        pieces = self.maker().make(keys, self._numbers(first, last), ids, max_bytes=max_bytes)
        if self._values is None:
            return pieces
        return with_readout_values(pieces, self._values.read(first, first + pieces.num_graphs))

    def stretch_end(self, first: int, last: int) -> int:
        """Return the end of the longest range from ``first`` on in which all samples have distinct trees."""
        [(_, end), *_] = distinct_stretches(trees_of(self.keys(first, last), self._numbers(first, last)))
        return first + end

    def keys(self, first: int, last: int) -> IntArray:
        """Return int64[n] or int64[n, 2], the keys of a range of seeds."""
        return np.arange(first, last, dtype=np.int64) if self._keys is None else np.array(self._keys[first:last])

    def _numbers(self, first: int, last: int) -> IntArray:
        """Return int64[n], the number of each sample among the samples of its seed."""
        return np.zeros(last - first, np.int64) if self._repeats is None else np.array(self._repeats[first:last])


FIRST_BLOCK, MAX_BLOCK = 16, 1024
"""Seeds of a shard's first block, and the largest number of seeds of a block."""
BLOCK_BYTES = 8 << 20
"""Target size of an encoded block."""
MOST_BYTES = 2 * BLOCK_BYTES
"""Largest size of the values of a block of more than one seed."""
DRAWN_AT_ONCE = 1 << 17
"""Most edges that are drawn for a block of more than one seed; each takes about 300 bytes during sampling."""
PARTIAL = ".partial"
STAGES = ("sample", "gather", "encode", "write")


@dataclass(frozen=True, slots=True)
class SampleBlock:
    """Encoded subgraphs of a range of seeds.

    Attributes:
        encoded: The encoded subgraphs.
        took: Time of each stage.
        first: First seed.
        last: End of the seeds, exclusive.
        wanted_last: End of the requested range; the seeds ``[last, wanted_last)`` must be sampled next.
    """

    encoded: Encoded
    took: dict[str, Seconds]
    first: int
    last: int
    wanted_last: int


@task
def write_shard(args: dict[str, Any]) -> dict[str, Any]:
    """Write one shard.

    Args:
        args: ``folder``: The work folder of the job. ``shard``: number of the shard.

    Returns:
        ``records``: Number of records. ``bytes``: size of the file. ``seconds`` and ``wall_seconds``: stage to CPU
        seconds and wall-clock seconds, summed over all threads.
    """
    folder = ExportFolder.of(args)
    plan, shard = folder.spec, int(args["shard"])
    first, last = plan.range_of(shard)
    path = plan.paths[shard]
    partial = folder.root / f"{shard:05}.{secrets.token_hex(8)}{PARTIAL}"  # unique: an abandoned worker may still write
    took = dict.fromkeys(STAGES, Seconds())
    try:
        writer = open_shard(partial, plan.file_format, plan.compression, folder.make(first, first))
        try:
            for block in _blocks(folder, writer, first, last):
                started = Seconds.now()
                writer.write(block.encoded)
                for name, value in {**block.took, "write": Seconds.now() - started}.items():
                    took[name] += value
                del block  # frees its memory before the next block is made
        finally:
            started = Seconds.now()
            writer.close()
        sync(partial)  # before the rename, or a crash of the machine could leave a partial file under the final name
        num_bytes = partial.stat().st_size
        put_file(partial, path)
        took["write"] += Seconds.now() - started
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return {
        "records": last - first, "bytes": num_bytes, "seconds": {name: of.core for name, of in took.items()},
        "wall_seconds": {name: of.wall for name, of in took.items()},
    }  # fmt: skip


def _blocks(folder: ExportFolder, writer: ShardWriter, first: int, last: int) -> Iterator[SampleBlock]:
    """Yield the blocks of a range of seeds in order; with several threads, the next blocks are made ahead."""
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
                del block  # frees its memory before the next block is made
                if rest[0] < rest[1]:
                    ahead.appendleft(submit(_block, folder, writer, rest[0], min(rest[0] + size, rest[1]), rest[1]))
        finally:
            for future in ahead:
                future.cancel()


def _at_once(make: Callable[..., SampleBlock], *arguments: Any) -> Future[SampleBlock]:
    """Call a function in this thread, with the interface of a pool's ``submit``."""
    done: Future[SampleBlock] = Future()
    done.set_result(make(*arguments))
    return done


def _most_seeds(folder: ExportFolder) -> int:
    """Return the largest number of seeds of a block.

    It bounds the memory of sampling before the block is cut.
    """
    most_drawn = folder.maker().most_drawn
    return MAX_BLOCK if most_drawn is None else max(1, min(MAX_BLOCK, DRAWN_AT_ONCE // max(1, most_drawn)))


def _block(folder: ExportFolder, writer: ShardWriter, first: int, last: int, wanted_last: int) -> SampleBlock:
    """Make the block of seeds ``[first, last)``, or of the first of them that fit into ``MOST_BYTES``."""
    maker = folder.maker()
    started, gathered = Seconds.now(), maker.gathering
    pieces = folder.make(first, last, max_bytes=MOST_BYTES)
    made, gathering = Seconds.now(), maker.gathering - gathered
    encoded = writer.encode(pieces)
    took = {"sample": made - started - gathering, "gather": gathering, "encode": Seconds.now() - made}
    return SampleBlock(encoded, took, first, first + pieces.num_graphs, wanted_last)
