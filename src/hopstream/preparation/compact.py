"""Rewrites a dataset with appended deltas in place, as if it had been written in one step.

The dataset is re-sharded into the parts that it had before the first append. The new dataset replaces the old one when
it is complete. Until then the old dataset stays unchanged, and nothing can be appended to it.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import IntArray
from hopstream.assign.owners import OwnerBlocks
from hopstream.dataset.book import Entity, ends_of
from hopstream.dataset.dataset_folder import dataset_to_change
from hopstream.dataset.manifest import Manifest, read_manifest
from hopstream.dataset.rows import DatasetRows, entities_of
from hopstream.dataset.settings import Progress
from hopstream.engine.atomic_folder import choice_before, errors_named
from hopstream.engine.job import digest_of
from hopstream.engine.settings import WorkOptions, WorkSettings
from hopstream.errors import SettingsError
from hopstream.ingest.source_paths import check_apart
from hopstream.preparation.dataset_job import DatasetTarget, OnEstimate
from hopstream.preparation.reshard.reshard_job import reshard_job
from hopstream.preparation.reshard.settings import ReshardSettings
from hopstream.uris import local_path

BLOCK_KEYS = 1 << 18
ROW_BYTES, EDGE_BYTES = 24, 16
"""Approximate bytes per node and per edge without features: keys, offsets, ids."""


def compact(
    dataset: str | Path, *, partitions_dir: str | Path | None = None, settings: WorkSettings | None = None,
    progress: Progress | None = None, on_estimate: OnEstimate | None = None,
    **options: Unpack[WorkOptions],
) -> Manifest:  # fmt: skip
    """Merge the appended nodes and edges of a dataset into its base parts, in place.

    The result is byte for byte the same as that of ``write_parts`` on the grown graph with the same owners. Keys stay,
    ids change. After a kill the same call resumes.

    Args:
        dataset: The folder of the dataset.
        partitions_dir: Folder with ``<node type>.npy`` or ``<node type>.txt``, the part of each node in the order of
            keys. None: nodes from before the first append keep their parts, and appended nodes are distributed to
            balance the bytes of the parts.
        settings: Memory and workers; None for the defaults.
        progress: Called as ``progress(stage, done, total)``.
        on_estimate: Called once with the estimate, before the work starts; not called if nothing was appended.
        **options: Fields of ``WorkSettings``; they override ``settings``.

    Returns:
        The new manifest, or the existing one if nothing was appended.

    Raises:
        StateError: Another process changes or reads the dataset now.
        SettingsError: ``partitions_dir`` is given and nothing was appended, a setting is out of range, or the disk has
            no room for a second copy.
        FormatError: The folder is no dataset, one of its files is missing or contradicts the others, or a file of
            owners cannot be read.
        ChecksumError: A file of the dataset does not match its checksum.
        SchemaError: A file of owners does not have one integer for each node.
        IdRangeError: A file of owners names a part that does not exist.
        OSError: A system call failed; finished tasks are kept for the next call.
    """
    settings = replace(settings or WorkSettings(), **options)
    folder = Path(os.path.realpath(local_path(dataset)))
    if partitions_dir is not None:
        check_apart(folder, {"the folder of owners": partitions_dir}, "dataset")
    owners = None if partitions_dir is None else Path(os.path.realpath(partitions_dir))
    call = digest_of(["compact", None if owners is None else str(owners)])
    with errors_named(folder), dataset_to_change(folder) as work:
        target = DatasetTarget(out=folder, work=work, overwrite=True, call=call)
        return target.finished() or _fold_in(target, owners, settings, progress, on_estimate)


def _fold_in(
    target: DatasetTarget, owners: Path | None, settings: WorkSettings, progress: Progress | None,
    on_estimate: OnEstimate | None,
) -> Manifest:  # fmt: skip
    """Compact the dataset in a locked place."""
    root, manifest = target.out, read_manifest(target.out)
    if not manifest.book.deltas:
        if owners is not None:
            raise SettingsError(
                f"{root} has no deltas, so there is nothing to compact; use reshard to change the parts"
            )
        target.work.clear()
        return manifest
    cut = ReshardSettings(**asdict(settings))
    if owners is None:
        cut = replace(cut, num_parts=manifest.book.num_base_parts, method="file")
    job_with = partial(reshard_job, root, owners, cut, kept_owners if owners is None else None)
    job = job_with(before=choice_before(root, lambda choice: job_with(before=choice).digest))
    return job.write(target, progress, on_estimate)


def kept_owners(rows: DatasetRows) -> dict[str, OwnerBlocks]:
    """Return the base part of each node by type, in the order of keys, computed on iteration.

    [Algorithm] Old nodes keep their parts. New nodes are cut into ranges of keys, one per part in the order of parts.
        The bytes of a part's range are proportional to what the part lacks of an even share of all bytes. The bytes of
        a node are those of its row and its edges.
    [Cost] One read of the ids of nodes and two of the offsets of new rows, ``BLOCK_KEYS`` at a time.
    [Not chosen] Assigning by edges again: that moves old nodes too; ``reshard`` does it.
    """
    book = rows.book
    totals = {t: sum(float(block.sum()) for block in _new_bytes(rows, t)) for t in rows.contents.schema.nodes}
    loads = _loads(rows)[: book.num_base_parts]
    even = (loads.sum() + sum(totals.values())) / book.num_base_parts
    lacking = np.maximum(even - loads, 0)
    # No part lacks bytes if there are no new bytes and the parts are even, or if everything is empty.
    shares = lacking / lacking.sum() if lacking.sum() > 0 else np.full(len(loads), 1 / len(loads))
    bounds = np.cumsum(shares)[:-1]
    return {
        t: OwnerBlocks(book.num_ids(t), itertools.chain(_old_parts(rows, t), _new_parts(rows, t, total, bounds)))
        for t, total in totals.items()
    }


def _old_parts(rows: DatasetRows, node_type: str) -> Iterator[NDArray[np.int32]]:
    """Yield the parts of the nodes from before the first append."""
    num_nodes = int(rows.book.node_offsets[node_type][rows.book.num_base_parts])
    for first in range(0, num_nodes, BLOCK_KEYS):
        ids = rows.ids_of_keys(node_type, first, min(first + BLOCK_KEYS, num_nodes))
        yield rows.book.parts_of(node_type, ids).astype(np.int32)


def _new_parts(
    rows: DatasetRows, node_type: str, total: float, bounds: NDArray[np.float64]
) -> Iterator[NDArray[np.int32]]:
    """Yield the parts of appended nodes; ``bounds`` are cumulative shares of bytes, without the last."""
    before = 0.0
    for num_bytes in _new_bytes(rows, node_type):
        ends = before + np.cumsum(num_bytes)
        middles = (ends - num_bytes / 2) / max(1.0, total)
        yield np.searchsorted(bounds, middles, side="right").astype(np.int32)
        before = float(ends[-1])


def _new_bytes(rows: DatasetRows, node_type: str) -> Iterator[NDArray[np.float64]]:
    """Yield the bytes of each appended node of a type, in the order of keys."""
    book = rows.book
    entities = [o for o in entities_of(rows.contents) if not isinstance(o, str) and ends_of(*o)[0] == node_type]
    for part in range(book.num_base_parts, book.num_parts):
        num_rows = int(np.diff(book.node_offsets[node_type])[part])
        for first in range(0, num_rows, BLOCK_KEYS):
            stop = min(first + BLOCK_KEYS, num_rows)
            num_bytes = np.full(stop - first, _item_bytes(rows, node_type))
            for entity in entities:
                num_bytes += rows.spans(entity, part, first, stop).counts * _item_bytes(rows, entity)
            yield num_bytes


def _loads(rows: DatasetRows) -> NDArray[np.float64]:
    """Return float64[num_parts], the current bytes of each part."""
    book = rows.book
    loads = np.zeros(book.num_parts)
    for entity in entities_of(rows.contents):
        counts: IntArray = (
            np.diff(book.node_offsets[entity]) if isinstance(entity, str) else book.edges_of_parts(entity)
        )
        loads += counts * _item_bytes(rows, entity)
    return loads


def _item_bytes(rows: DatasetRows, entity: Entity) -> float:
    """Return the bytes of a node or an edge, with one element per ragged feature."""
    columns = rows.columns(entity)
    fixed = sum(column.item_bytes for column in columns.fixed)
    return float(fixed + sum(c.values.item_bytes for c in columns.ragged)) + (
        ROW_BYTES if isinstance(entity, str) else EDGE_BYTES
    )
