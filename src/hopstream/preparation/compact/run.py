"""Writes a dataset that was appended to anew, in its own place, as if all had been written in one go.

It is re-sharded into the parts that it had before anything was appended. The new dataset takes the place of the old one
when it is complete; until then the old one stays as it is, and nothing can be added to it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Unpack

from hopstream.dataset.lock import dataset_to_change
from hopstream.dataset.manifest import Manifest, read_manifest
from hopstream.dataset.replace import errors_named
from hopstream.dataset.settings import Progress
from hopstream.engine.job import digest_of
from hopstream.engine.resumed import choice_before
from hopstream.engine.settings import WorkOptions, WorkSettings
from hopstream.errors import SettingsError
from hopstream.ingest.source_paths import check_apart
from hopstream.preparation.compact.owners import kept_owners
from hopstream.preparation.reshard.plan import Estimate, Plan
from hopstream.preparation.reshard.run import plan_reshard, rewrite
from hopstream.preparation.reshard.settings import ReshardSettings
from hopstream.preparation.staged import Staging
from hopstream.uris import local_path


def compact(
    dataset: str | Path, *, partitions_dir: str | Path | None = None, settings: WorkSettings | None = None,
    progress: Progress | None = None, on_estimate: Callable[[Estimate, Plan], None] | None = None,
    **options: Unpack[WorkOptions],
) -> Manifest:  # fmt: skip
    """Fold what was appended to a dataset into the parts that were there before, in its own place.

    The result is, byte for byte, what ``write_parts`` writes of the grown graph with the same owners. Keys stay, ids do
    not. If the process is ended, the same call goes on where it was.

    Args:
        dataset: The folder of the dataset.
        partitions_dir: Folder with ``<node type>.npy`` or ``<node type>.txt``, the part of each node in the order of
            keys. None: nodes that were there before the first append keep their parts, and appended nodes go to these
            parts so that they get even by bytes.
        settings: How to work; the defaults if it is not given.
        progress: Called as ``progress(stage, done, total)``.
        on_estimate: Called once with what the work will take, before it starts; not where nothing was appended.
        **options: Fields of ``WorkSettings``; they go before ``settings``.

    Returns:
        The manifest that was written, or the one that is there where nothing was appended.

    Raises:
        StateError: Another process changes or reads the dataset now.
        SettingsError: ``partitions_dir`` is given and nothing was appended, a setting is outside its range, or the disk
            has no room for a second copy.
        FormatError: The folder is no dataset, a file of it is missing or contradicts the others, or a file of owners
            cannot be read.
        ChecksumError: A file of the dataset is not the one that was written.
        SchemaError: A file of owners does not have one integer for each node.
        IdRangeError: It names a part that is not there.
        OSError: The system failed; what was done is kept for the next call.
    """
    settings = replace(settings or WorkSettings(), **options)
    folder = Path(os.path.realpath(local_path(dataset)))
    if partitions_dir is not None:
        check_apart(folder, {"the folder of owners": partitions_dir}, "dataset")
    owners = None if partitions_dir is None else Path(os.path.realpath(partitions_dir))
    call = digest_of(["compact", None if owners is None else str(owners)])
    with errors_named(folder), dataset_to_change(folder) as work:
        staging = Staging(out=folder, work=work, overwrite=True, call=call)
        return staging.placed() or _fold_in(staging, owners, settings, progress, on_estimate)


def _fold_in(
    staging: Staging, owners: Path | None, settings: WorkSettings, progress: Progress | None,
    on_estimate: Callable[[Estimate, Plan], None] | None,
) -> Manifest:  # fmt: skip
    """Do it, in a place that is held."""
    root, manifest = staging.out, read_manifest(staging.out)
    if not manifest.book.deltas:
        if owners is not None:
            raise SettingsError(f"{root} has nothing appended, so there is nothing to fold in; reshard changes parts")
        staging.work.clear()
        return manifest
    cut = ReshardSettings(**asdict(settings))
    if owners is None:
        cut = replace(cut, num_parts=manifest.book.num_base_parts, method="file")
    plan = partial(plan_reshard, root, owners, cut, kept_owners if owners is None else None)
    planned = plan(before=choice_before(root, lambda choice: plan(before=choice).digest))
    return rewrite(planned, staging, progress, on_estimate)
