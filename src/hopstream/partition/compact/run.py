"""How is a dataset that was appended to written anew, in its own place, as if all had been written in one go?

It is re-sharded into the parts that it had before anything was appended. The new dataset takes the place of the old one
when it is complete; until then the old one stays as it is, and nothing can be added to it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Unpack

from hopstream.engine.settings import WorkOptions, WorkSettings
from hopstream.errors import SettingsError
from hopstream.ingest.apart import check_apart
from hopstream.partition.assign_folder import write_owners
from hopstream.partition.compact.owners import kept_owners
from hopstream.partition.lock import locked
from hopstream.partition.manifest import Manifest
from hopstream.partition.replace import check_target, put_back
from hopstream.partition.reshard.newest import open_rows
from hopstream.partition.reshard.plan import Estimate, Plan
from hopstream.partition.reshard.rows import DatasetRows
from hopstream.partition.reshard.run import rewrite
from hopstream.partition.reshard.settings import ReshardSettings
from hopstream.partition.settings import Progress
from hopstream.partition.staged import INPUT_ERRORS


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
        on_estimate: Called once with what the work will take, before it starts.
        **options: Fields of ``WorkSettings``; they go before ``settings``.

    Returns:
        The manifest that was written.

    Raises:
        StateError: Another process changes the dataset now.
        SettingsError: Nothing was appended, a setting is outside its range, or the disk has no room for a second copy.
        FormatError: The folder is no dataset, a file of it is missing or contradicts the others, or a file of owners
            cannot be read.
        ChecksumError: A file of the dataset is not the one that was written.
        SchemaError: A file of owners does not have one integer for each node.
        IdRangeError: It names a part that is not there.
        OSError: The system failed; what was done is kept for the next call.
    """
    settings = replace(settings or WorkSettings(), **options)
    root = Path(os.path.realpath(dataset))
    if partitions_dir is not None:
        check_apart(root, {"the folder of owners": partitions_dir}, "dataset")
    if not root.exists():
        put_back(root)
    with locked(root):
        rows = open_rows(root)
        check_target(root, overwrite=True)  # now, rather than when all is done
        if not rows.book.deltas:
            raise SettingsError(f"{root} has nothing appended, so there is nothing to fold in; reshard changes parts")
        with _owners(root, rows, None if partitions_dir is None else Path(partitions_dir)) as folder:
            return rewrite(
                root, root, folder, ReshardSettings(**asdict(settings)), overwrite=True,
                progress=progress or _no_progress, on_estimate=on_estimate,
            )  # fmt: skip


@contextmanager
def _owners(root: Path, rows: DatasetRows, given: Path | None) -> Iterator[Path]:
    """The folder of owners; one that is made here stays as it is until the work is done, or it could not go on."""
    mine = root.with_name(f".{root.name}.compact.{rows.manifest.dataset_id[:16]}")
    for left in _leftovers(root):
        if left != mine or given is not None:
            shutil.rmtree(left, ignore_errors=True)
    if given is not None:
        yield given
        return
    if not mine.exists():
        with write_owners(mine, rows.book.num_base_parts, "file") as (_, write):
            write(kept_owners(rows))
    try:
        yield mine
    except INPUT_ERRORS:  # there is nothing to go on with
        shutil.rmtree(mine, ignore_errors=True)
        raise
    shutil.rmtree(mine, ignore_errors=True)


def _leftovers(root: Path) -> list[Path]:
    """Folders of owners that were made for this place."""
    name = re.compile(rf"\.{re.escape(root.name)}\.compact\.[0-9a-f]{{16}}")
    return [path for path in root.parent.iterdir() if name.fullmatch(path.name)]


def _no_progress(stage: str, done: int, total: int) -> None:
    """Tell nobody."""
