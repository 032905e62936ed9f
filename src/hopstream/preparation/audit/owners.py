"""Compare the part of every node with those that the files of a folder of owners name."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hopstream.arrays import IntArray
from hopstream.assign.folder import META, read_meta
from hopstream.assign.owners import owner_blocks, owners_path
from hopstream.preparation.audit.files import Files


def check_owner_files(files: Files, node_type: str, ids: IntArray, folder: Path) -> None:
    """Tell of nodes of one type that are in other parts than a folder says, in the parts that are looked at.

    Args:
        files: The dataset.
        node_type: The type.
        ids: int64[num_nodes], the id of each key, -1 where no part that is looked at has the key.
        folder: Holds ``<node type>.npy`` or ``<node type>.txt``; where it holds both, both are compared.

    Raises:
        FormatError: A file is missing or cannot be read.
        SchemaError: A file does not have one integer for each node.
        IdRangeError: A file names a part that is not there.
    """
    book, findings = files.manifest.book, files.findings
    offsets = book.node_offsets[node_type]
    path = owners_path(folder, node_type)
    told = {node_type: path}
    if path.suffix == ".npy" and (text := path.with_suffix(".txt")).is_file():
        told[text.name] = text
    for where, file in told.items():
        for first, block in owner_blocks(file, len(ids), book.num_parts):
            some = ids[first : first + len(block)]
            parts = np.searchsorted(offsets, some, side="right") - 1
            wrong = np.flatnonzero((some >= 0) & (parts != block))
            places = (f"key {first + row} (part {parts[row]}, not {block[row]})" for row in wrong)
            findings.checked("nodes", int(np.count_nonzero(some >= 0)) if file == path else 0)
            findings.add("nodes", where, "is in another part than the folder of owners says", len(wrong), places)


def check_owners_meta(files: Files, folder: Path) -> None:
    """Tell where ``partition_meta.json`` of a folder of owners, if it has one, names another number of parts.

    Raises:
        FormatError: The file cannot be read.
    """
    meta, book, findings = read_meta(folder), files.manifest.book, files.findings
    if meta is not None and meta.num_parts != book.num_parts:
        findings.add("nodes", META, f"says that there are {meta.num_parts} parts; the dataset has {book.num_parts}")
