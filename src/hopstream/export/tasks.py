"""Writes one shard of an export, block by block.

A shard is the unit of work: a stretch of seeds, sampled and written block by block. A block has as many seeds as make
some megabytes by what the block before held. Seeds differ, so a block is cut when its trees are grown, before their
values are fetched, where these would be too many; the rest is a block of its own. Where blocks end does not show in
files: a record is a function of its seed, and row groups of Parquet are cut by what rows hold.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from hopstream.engine import task
from hopstream.engine.atomic_folder import sync
from hopstream.export.export_folder import ExportFolder
from hopstream.export.settings import Seconds
from hopstream.export.shards import Encoded, ShardWriter, open_shard

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
class Block:
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


def _blocks(folder: ExportFolder, writer: ShardWriter, first: int, last: int) -> Iterator[Block]:
    """The blocks of a stretch of seeds in order; some are made ahead by other threads, where there are any."""
    num_threads = folder.spec.num_threads
    with ThreadPoolExecutor(num_threads) as pool:
        submit = _at_once if num_threads == 1 else pool.submit
        num_ahead = 1 if num_threads == 1 else num_threads + 1
        limit = _most_seeds(folder)
        size = min(FIRST_BLOCK, limit)
        ahead: deque[Future[Block]] = deque()
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


def _at_once(make: Callable[..., Block], *arguments: Any) -> Future[Block]:
    """As a pool's ``submit``, in this thread."""
    done: Future[Block] = Future()
    done.set_result(make(*arguments))
    return done


def _most_seeds(folder: ExportFolder) -> int:
    """How many seeds a block has at most, so that what is sampled before it is cut is small."""
    most_drawn = folder.maker().most_drawn
    return MAX_BLOCK if most_drawn is None else max(1, min(MAX_BLOCK, DRAWN_AT_ONCE // max(1, most_drawn)))


def _block(folder: ExportFolder, writer: ShardWriter, first: int, last: int, wanted_last: int) -> Block:
    """The subgraphs of some seeds, all or as many as are not too much for one block, of a stretch that goes on."""
    maker = folder.maker()
    started, gathered = Seconds.now(), maker.gathering
    pieces = folder.make(first, last, max_bytes=MOST_BYTES)
    made, gathering = Seconds.now(), maker.gathering - gathered
    encoded = writer.encode(pieces)
    took = {"sample": made - started - gathering, "gather": gathering, "encode": Seconds.now() - made}
    return Block(encoded, took, first, first + pieces.num_graphs, wanted_last)
