"""How is one shard of an export written?

A shard is the unit of work: a stretch of seeds, sampled and written block by block. A block has as many seeds as make
some megabytes, which the first block of the shard tells; so memory does not grow with subgraphs, and where blocks end
follows from what they hold.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from hopstream.engine import task
from hopstream.engine.work_folder import sync
from hopstream.export.shards import Encoded, ShardWriter, open_shard
from hopstream.export.workplace import Workplace, workplace_of

FIRST_BLOCK, MAX_BLOCK = 16, 1024
"""Seeds of a shard's first block, and the most of any."""
BLOCK_BYTES = 8 << 20
"""About what a block is to have when it is encoded."""
PARTIAL = ".partial"
STAGES = ("sample", "gather", "encode", "write")


@dataclass(frozen=True, slots=True)
class Block:
    """Subgraphs that are ready to be written, and the seconds of a core that each stage took."""

    encoded: Encoded
    seconds: dict[str, float]


@task
def write_shard(args: dict[str, Any]) -> dict[str, Any]:
    """Write one shard: ``folder`` of the job, ``shard`` number; answers records, bytes and seconds per stage."""
    place = workplace_of(args)
    plan, shard = place.plan, int(args["shard"])
    first, last = plan.range_of(shard)
    path = plan.paths[shard]
    partial = place.folder / f"{shard:05}.{secrets.token_hex(8)}{PARTIAL}"  # a worker given up may still write
    seconds = dict.fromkeys(STAGES, 0.0)
    try:
        writer = open_shard(
            partial, plan.file_format, plan.compression, place.make(first, first),
            is_one_at_a_time=plan.num_threads == 1,
        )  # fmt: skip
        try:
            for block in _blocks(place, writer, first, last):
                started = time.thread_time()
                writer.write(block.encoded)
                seconds["write"] += time.thread_time() - started
                for name, value in block.seconds.items():
                    seconds[name] += value
        finally:
            writer.close()
        sync(partial)  # so that no crash of the machine leaves a name with half a file
        num_bytes = partial.stat().st_size
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return {"records": last - first, "bytes": num_bytes, "seconds": seconds}


def _blocks(place: Workplace, writer: ShardWriter, first: int, last: int) -> Iterator[Block]:
    """The blocks of a stretch of seeds in order; some are made ahead by other threads, where there are any."""
    ranges = place.stretches(first, min(first + FIRST_BLOCK, last), FIRST_BLOCK)
    num_bytes = 0
    for start, end in ranges:
        block = _block(place, writer, start, end)
        num_bytes += block.encoded.num_bytes
        yield block
    done = min(first + FIRST_BLOCK, last)
    if done == last:
        return
    size = max(1, min(MAX_BLOCK, BLOCK_BYTES * (done - first) // max(1, num_bytes)))
    rest = place.stretches(done, last, size)
    if place.plan.num_threads == 1:
        yield from (_block(place, writer, start, end) for start, end in rest)
        return
    with ThreadPoolExecutor(place.plan.num_threads) as pool:
        ahead: deque[Future[Block]] = deque()
        try:
            for start, end in rest:
                ahead.append(pool.submit(_block, place, writer, start, end))
                if len(ahead) > place.plan.num_threads:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()


def _block(place: Workplace, writer: ShardWriter, first: int, last: int) -> Block:
    maker = place.maker()
    started, gathered = time.thread_time(), maker.gather_s
    pieces = place.make(first, last)
    made, gather_s = time.thread_time(), maker.gather_s - gathered
    encoded = writer.encode(pieces)
    encode_s = time.thread_time() - made
    return Block(encoded, {"sample": made - started - gather_s, "gather": gather_s, "encode": encode_s})
