"""Compares some blocks of every file of a dataset with their checksums, in bounded time.

It reads the first and the last block of every file and then, up to a number of bytes, a random choice of the other
blocks with checksums, at most 65 per file.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from typing import Literal, cast, get_args

from hopstream.arrays import BLOCK_BYTES, FileRecord, block_starts, check_blocks, check_file
from hopstream.checks import check_choice

Verify = Literal["none", "sample", "full"]
"""Check of a dataset when it is opened: none, some blocks of each file, or everything."""


def read_verify(verify: object) -> Verify:
    """Parse the option ``verify``: False and None are ``none``, True is ``full``.

    Raises:
        SettingsError: The value is something else.
    """
    if verify is None or isinstance(verify, bool):
        return "full" if verify else "none"
    check_choice("verify", verify, get_args(Verify))
    return cast(Verify, verify)


SAMPLE_BYTES = 128 << 20
"""Bytes to read of all files together, unless their first and last blocks are more."""
NUM_READERS = 4
"""Number of threads that read, to hide the latency of disks."""


def check_some_blocks(
    root: Path, files: Mapping[str, FileRecord], *, num_bytes: int = SAMPLE_BYTES, rng_seed: int | None = None
) -> list[str]:
    """Read and check some blocks of every file.

    Args:
        root: The dataset's folder.
        files: Path relative to ``root`` to the record of the file.
        num_bytes: About how many bytes to read. If all files are smaller together, everything is checked.
        rng_seed: Seed of the random choice among the blocks with checksums; None for a different choice each time.

    Returns:
        The files that were not checked: an earlier revision wrote no checksums of their blocks, and they are too large
            to be read completely within ``num_bytes``.

    Raises:
        FormatError: A file is missing.
        ChecksumError: A file does not match its checksum.
    """
    has_sums = {name: bool(record.blocks) or record.num_bytes <= BLOCK_BYTES for name, record in files.items()}
    names = [name for name in files if has_sums[name]]
    chosen = _drawn([len(block_starts(files[name].num_bytes)) for name in names], num_bytes, rng_seed)
    left = num_bytes - BLOCK_BYTES * sum(map(len, chosen))
    unsummed = sorted((name for name in files if not has_sums[name]), key=lambda name: files[name].num_bytes)
    sizes = accumulate(files[name].num_bytes for name in unsummed)
    num_whole = sum(size <= left for size in sizes)

    def check(name: str, numbers: Sequence[int] | None = None) -> None:
        if numbers is None:
            check_file(root / name, files[name])
        else:
            check_blocks(root / name, files[name], numbers)

    with ThreadPoolExecutor(NUM_READERS) as pool:
        for _ in pool.map(check, [*names, *unsummed[:num_whole]], [*chosen, *[None] * num_whole]):
            pass
    return unsummed[num_whole:]


def _drawn(counts: Sequence[int], num_bytes: int, rng_seed: int | None) -> list[list[int]]:
    """Draw the blocks to read of each file, given their counts: the first, the last, and some others."""
    chosen = [sorted({0, count - 1}) for count in counts]
    ends = list(accumulate(max(0, count - 2) for count in counts))
    total = ends[-1] if ends else 0
    num_drawn = min(total, max(0, num_bytes // BLOCK_BYTES - sum(map(len, chosen))))
    for number in random.Random(rng_seed).sample(range(total), num_drawn):
        file = bisect_right(ends, number)
        chosen[file].append(counts[file] - 1 - (ends[file] - number))
    return [sorted(numbers) for numbers in chosen]
