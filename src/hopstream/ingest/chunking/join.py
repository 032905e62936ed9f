"""Finds repeated nodes, and looks up the key of each end of each edge, bucket by bucket.

A task reads a bucket's nodes from all parts of their table and looks up the bucket's raw ids among them. It writes each
answer at the offset of its raw id in a file beside the raw ids, so buckets can finish in any order. When all buckets
are finished, the answers of each block are put into row order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hopstream.arrays import Array, IntArray, offsets_of, written_whole
from hopstream.engine import task
from hopstream.ingest.chunking.buckets import (
    GroupedColumn,
    append_values,
    new_folder,
    read_values,
    strings_of,
    write_values,
)
from hopstream.ingest.chunking.workplace import ChunkFolder, Ids, Layout, Table
from hopstream.ingest.raw_tables.raw_ids import INTEGER, text_of

DROPPED = np.uint32(0xFFFFFFFF)
"""Rank of a dropped row."""


@task
def find_repeated(args: dict[str, Any]) -> dict[str, Any]:
    """Find and mark the rows of some buckets whose raw id an earlier row has.

    Returns:
        ``count``: Number of repeated rows. ``first``: ``[row, earlier row, raw id]`` of the first one in the table, or
        None.
    """
    workplace = ChunkFolder.of(args)
    table = workplace.tables[int(args["table"])]
    layout = workplace.layout(table, is_settled=False)
    count, first = 0, None
    for bucket in range(*args["buckets"]):
        values, rows, shares = _bucket_rows(workplace, table, layout, bucket)
        firsts = pc.index_in(values, value_set=values).to_numpy()
        repeated = np.flatnonzero(firsts != np.arange(len(firsts)))
        if not len(repeated):
            continue
        count += len(repeated)
        here = int(repeated[np.argmin(rows[repeated])])
        if first is None or rows[here] < first[0]:
            first = [int(rows[here]), int(rows[firsts[here]]), values[here].as_py()]
        for grouped, place, begin, end in shares:
            marks = (firsts[begin:end] != np.arange(begin, end)).astype(np.uint8)
            write_values(grouped.path("repeats"), place, marks)
    return {"count": count, "first": first}


def _bucket_rows(
    workplace: ChunkFolder, table: Table, layout: Layout, bucket: int
) -> tuple[pa.ChunkedArray, IntArray, list[tuple[GroupedColumn, int, int, int]]]:
    """Read a bucket's raw ids in table order.

    The result also has their rows in the table, and their offsets in the parts' columns.
    """
    chunks: list[pa.Array] = []
    rows: list[IntArray] = [np.empty(0, np.int64)]
    shares: list[tuple[GroupedColumn, int, int, int]] = []
    firsts, end = offsets_of(layout.rows), 0
    for which, grouped, block in _blocks(workplace, table, table.ids[0], layout):
        place, length = grouped.place(block, bucket)
        if length:
            chunks.append(grouped.values(block, bucket))
            rows.append(firsts[which] + grouped.order(block, bucket))
            shares.append((grouped, place, end, end + length))
            end += length
    return pa.chunked_array(chunks, workplace.raw_type(table.ids[0].node_type)), np.concatenate(rows), shares


def _blocks(workplace: ChunkFolder, table: Table, ids: Ids, layout: Layout) -> Iterator[tuple[int, GroupedColumn, int]]:
    """Yield each block's number in the table, the column of its part, and its number in the part."""
    for part in np.unique(layout.parts).tolist():
        grouped = workplace.grouped(table, ids, part)
        for which in range(*np.searchsorted(layout.parts, [part, part + 1]).tolist()):
            yield which, grouped, int(layout.numbers[which])


@task
def settle_nodes(args: dict[str, Any]) -> dict[str, Any]:
    """Drop the repeated nodes of a part.

    Returns:
        ``kept``: Number of kept rows of each block of the part.
    """
    workplace = ChunkFolder.of(args)
    table, part = workplace.tables[int(args["table"])], int(args["number"])
    grouped = workplace.grouped(table, table.ids[0], part)
    counts = []
    with new_folder(settled_folder(workplace, table, part)) as folder, (folder / "ranks").open("wb") as ranks_file:
        for block in range(len(grouped.starts)):
            order = grouped.whole_order(block)
            marks = read_values(grouped.path("repeats"), np.uint8, int(grouped.block_rows[block]), len(order))
            is_kept = np.ones(len(order), np.bool_)
            is_kept[order] = marks == 0
            kept = np.flatnonzero(is_kept).astype(np.uint32)
            ranks = np.where(is_kept, np.cumsum(is_kept) - 1, DROPPED).astype(np.uint32)
            append_values(ranks_file, ranks[order])
            counts.append(len(kept))
            if len(kept) < len(order):
                write_kept(folder, block, kept)
    return {"kept": counts}


def settled_folder(workplace: ChunkFolder, table: Table, part: int) -> Path:
    """Return the folder of the columns that settling a part adds."""
    return workplace.table_folder(table) / f"{part:06d}-settled"


def write_kept(folder: Path, block: int, kept: Array) -> None:
    """Write the kept rows of a block: uint32, ascending."""
    with kept_path(folder, block).open("wb") as file:
        append_values(file, kept)


def kept_path(folder: Path, block: int) -> Path:
    """Return the file of a block's kept rows; it exists only if some rows are dropped."""
    return folder / f"{block}.kept"


@task
def join_ends(args: dict[str, Any]) -> dict[str, Any]:
    """Look up the keys of the raw ids of some buckets at one end of the edges."""
    workplace = ChunkFolder.of(args)
    table = workplace.tables[int(args["table"])]
    ids = next(ids for ids in table.ids if ids.name == args["ids"])
    layout = workplace.layout(table, is_settled=False)
    limit = workplace.spec.lookup_bytes
    for bucket in range(*args["buckets"]):
        values, keys = _load_nodes(workplace, ids.node_type, bucket)
        waiting: list[tuple[Path, int, pa.Array]] = []
        waiting_bytes = 0
        for _, grouped, block in _blocks(workplace, table, ids, layout):
            place, length = grouped.place(block, bucket)
            if length:
                waiting.append((grouped.path("keys"), place, grouped.values(block, bucket)))
                waiting_bytes += waiting[-1][2].nbytes + 16 * length
            if waiting_bytes >= limit:
                _look_up(values, keys, waiting)
                waiting, waiting_bytes = [], 0
        _look_up(values, keys, waiting)
    return {}


def _look_up(values: pa.ChunkedArray, keys: IntArray, waiting: Sequence[tuple[Path, int, pa.Array]]) -> None:
    """Write key + 1 of each raw id, and 0 for raw ids that no node has."""
    if not waiting:
        return
    raw = pa.chunked_array([chunk for _, _, chunk in waiting], values.type)
    found = pc.index_in(raw, value_set=values).fill_null(len(keys)).to_numpy()
    answers = np.append(keys, -1)[found] + 1
    begin = 0
    for path, place, chunk in waiting:
        write_values(path, place, answers[begin : begin + len(chunk)])
        begin += len(chunk)


def _load_nodes(workplace: ChunkFolder, node_type: str, bucket: int) -> tuple[pa.ChunkedArray, IntArray]:
    """Read the raw ids of a bucket's nodes and their keys, without dropped nodes."""
    table = workplace.table_of(node_type)
    layout = workplace.layout(table, is_settled=True)
    if workplace.is_implicit(node_type):
        count, first = int(layout.rows[bucket]), int(layout.kept_offsets[bucket])
        values = read_sorted(workplace, node_type, bucket, 0, count)
        return pa.chunked_array([values], workplace.raw_type(node_type)), np.arange(first, first + count)
    chunks: list[pa.Array] = []
    keys: list[IntArray] = [np.empty(0, np.int64)]
    for which, grouped, block in _blocks(workplace, table, table.ids[0], layout):
        if not grouped.place(block, bucket)[1]:
            continue
        values, ranks = grouped.values(block, bucket), grouped.order(block, bucket)
        if layout.kept[which] < layout.rows[which]:
            path = settled_folder(workplace, table, int(layout.parts[which])) / "ranks"
            ranks = read_values(path, np.uint32, *grouped.place(block, bucket))
            values, ranks = values.filter(pa.array(ranks != DROPPED)), ranks[ranks != DROPPED]
        chunks.append(values)
        keys.append(layout.kept_offsets[which] + ranks)
    return pa.chunked_array(chunks, workplace.raw_type(node_type)), np.concatenate(keys)


def read_sorted(workplace: ChunkFolder, node_type: str, bucket: int, start: int, stop: int) -> pa.Array:
    """Read a range of the sorted raw ids of a bucket of nodes without a table.

    Of strings, everything before the range is read as well.
    """
    path = workplace.sorted_path(node_type, bucket, "values")
    if workplace.raw_type(node_type) == INTEGER:
        return pa.array(read_values(path, np.int64, start, stop - start))
    lengths = read_values(workplace.sorted_path(node_type, bucket, "lengths"), np.uint32, 0, stop)
    return strings_of(read_values(path, np.uint8, 0, int(lengths.sum(dtype=np.int64))), lengths)[start:]


@task
def sort_implicit(args: dict[str, Any]) -> dict[str, Any]:
    """Write the distinct raw ids of a bucket of a node type without a table, ascending.

    Returns:
        ``count``: Number of raw ids.
    """
    workplace, node_type, bucket = ChunkFolder.of(args), str(args["type"]), int(args["bucket"])
    raw_type, limit = workplace.raw_type(node_type), workplace.spec.lookup_bytes
    different, waiting, waiting_bytes = pa.array([], raw_type), list[pa.Array](), 0

    def unite() -> pa.Array:
        return pc.unique(pa.chunked_array([different, *waiting], raw_type))

    for table in workplace.tables:
        for ids in table.ids if not isinstance(table.entity, str) else ():
            if ids.node_type != node_type:
                continue
            for _, grouped, block in _blocks(workplace, table, ids, workplace.layout(table, is_settled=False)):
                waiting.append(grouped.values(block, bucket))
                waiting_bytes += waiting[-1].nbytes
                if waiting_bytes >= limit:
                    different, waiting, waiting_bytes = unite(), [], 0
    different = unite()
    different = different.take(pc.sort_indices(different))
    _write_sorted(workplace, node_type, bucket, different)
    return {"count": len(different)}


def _write_sorted(workplace: ChunkFolder, node_type: str, bucket: int, raw: pa.Array) -> None:
    columns = {"values": raw.to_numpy()} if raw.type == INTEGER else {}
    if raw.type != INTEGER:
        text, offsets = text_of(raw)
        columns = {"values": text[offsets[0] : offsets[-1]], "lengths": np.diff(offsets).astype(np.uint32)}
    for what, values in columns.items():
        with written_whole(workplace.sorted_path(node_type, bucket, what)) as partial, partial.open("wb") as file:
            append_values(file, values)


@task
def settle_edges(args: dict[str, Any]) -> dict[str, Any]:
    """Put the keys of a part's edges into row order, and drop dangling edges.

    Returns:
        ``kept``: Number of kept edges of each block of the part. ``dangling``: number of dangling edges (``edges``) and
        of their ends without a node (``src``, ``dst``). ``first``: ``[row in the part, end]`` of the first one, or
        None.
    """
    workplace = ChunkFolder.of(args)
    table, part = workplace.tables[int(args["table"])], int(args["number"])
    layout = workplace.layout(table, is_settled=False)
    counts: list[int] = []
    dangling = {"src": 0, "dst": 0, "edges": 0}
    first = None
    folder = workplace.part_folder(table, part)
    with new_folder(settled_folder(workplace, table, part)) as settled, (settled / "src").open("wb") as src_file, \
            (settled / "dst").open("wb") as dst_file:  # fmt: skip
        for which in np.flatnonzero(layout.parts == part).tolist():
            src, dst = (_answers(workplace, table, ids, folder, layout, which) for ids in table.ids)
            is_kept = (src > 0) & (dst > 0)
            kept = np.flatnonzero(is_kept).astype(np.uint32)
            counts.append(len(kept))
            if len(kept) < len(src):
                write_kept(settled, int(layout.numbers[which]), kept)
                dangling["src"] += int(np.count_nonzero(src == 0))
                dangling["dst"] += int(np.count_nonzero(dst == 0))
                dangling["edges"] += len(src) - len(kept)
                row = int(np.argmin(is_kept))
                first = first or [int(layout.firsts[which]) + row, "dst" if src[row] else "src"]
                src, dst = src[kept], dst[kept]
            append_values(src_file, src - 1)
            append_values(dst_file, dst - 1)
    return {"kept": counts, "dangling": dangling, "first": first}


def _answers(workplace: ChunkFolder, table: Table, ids: Ids, folder: Path, layout: Layout, which: int) -> Array:
    """Read int64[num_rows], key + 1 at one end of each edge of a block, and 0 for an end without a node."""
    path, num_rows = folder / f"{ids.name}.keys", int(layout.rows[which])
    found = read_values(path, np.int64, int(layout.firsts[which]), num_rows)
    if workplace.kind(ids.node_type) == "row":
        return found
    grouped = workplace.grouped(table, ids, int(layout.parts[which]))
    answers = np.empty_like(found)
    answers[grouped.whole_order(int(layout.numbers[which]))] = found
    return answers
