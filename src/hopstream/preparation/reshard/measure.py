"""Counts the items, and elements of ragged features, that each new part gets of each stretch of keys.

The counts of all stretches before one say where its own items begin in each new part, so every task knows its places.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hopstream.arrays import IntArray, offsets_of, write_array
from hopstream.dataset.book import Owner
from hopstream.dataset.rows import RaggedFiles
from hopstream.engine import task
from hopstream.kernels.placement import add_amounts
from hopstream.preparation.number_nodes import places_of_parts
from hopstream.preparation.reshard.reshard_folder import ReshardFolder
from hopstream.preparation.reshard.segments import Segments, locate

ITEM_BYTES = 32
"""What counting the elements of one item takes."""


@task
def measure_blocks(args: dict[str, Any]) -> dict[str, Any]:
    """Count what each new part gets of some blocks, into a file: int64[quantities, blocks, num_parts]."""
    folder, number = ReshardFolder.of(args), int(args["entity"])
    first, stop = int(args["first"]), int(args["stop"])
    entity, num_parts = folder.entities[number], folder.num_parts
    bounds, ragged = folder.blocks(entity), folder.rows.columns(entity).ragged
    counts = np.zeros((1 + len(ragged), stop - first, num_parts), np.int64)
    step = folder.spec.block_rows
    for block in range(first, stop):
        for first_key in range(int(bounds[block]), int(bounds[block + 1]), step):
            stop_key = min(first_key + step, int(bounds[block + 1]))
            _, segments = locate(folder, entity, first_key, stop_key, np.zeros(num_parts, np.int64))
            add_amounts(segments.new_parts, segments.counts, counts[0, block - first])
            for column, per_part in zip(ragged, counts[1:, block - first], strict=True):
                add_amounts(segments.new_parts, num_elements(folder, entity, column, segments), per_part)
    write_array(folder.counts_path(number, first), counts)
    return {}


def num_elements(folder: ReshardFolder, entity: Owner, column: RaggedFiles, segments: Segments) -> IntArray:
    """int64[n], the elements of all items of each row."""
    found = np.zeros(len(segments.counts), np.int64)
    num_pieces = len(folder.rows.folders(entity))
    for first, stop, piece in segments.pieces(folder.spec.piece_items(ITEM_BYTES)):
        for number, places in places_of_parts(piece.old_pieces, num_pieces):
            starts, counts = piece.old_starts[places], piece.counts[places]
            _, lengths = folder.rows.element_spans(entity, column, number, starts, counts)
            found[first:stop][places] += np.diff(offsets_of(lengths)[offsets_of(counts)])
    return found


def first_places(folder: ReshardFolder, number: int, tasks: list[tuple[int, int]]) -> IntArray:
    """int64[quantities, num_blocks + 1, num_parts], the sums of what tasks counted before each block."""
    counts = [np.load(folder.counts_path(number, first)) for first, _ in tasks]
    sums = np.cumsum(np.concatenate(counts, axis=1), axis=1)
    return np.concatenate([np.zeros_like(sums[:, :1]), sums], axis=1)
