"""Is every node in the part that a folder of owners names?"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hopstream.arrays import IntArray
from hopstream.partition.audit.files import Files
from hopstream.partition.owners import owner_blocks, owners_path


def check_owner_files(files: Files, node_type: str, ids: IntArray, folder: Path) -> None:
    """Tell of nodes of one type that are in other parts than a folder says, in the parts that are looked at.

    Args:
        files: The dataset.
        node_type: The type.
        ids: int64[num_nodes], the id of each key, -1 where no part that is looked at has the key.
        folder: Holds ``<node type>.npy`` or ``<node type>.txt``.

    Raises:
        FormatError: A file is missing or cannot be read.
        SchemaError: A file does not have one integer for each node.
        IdRangeError: A file names a part that is not there.
    """
    book, findings = files.manifest.book, files.findings
    offsets = book.node_offsets[node_type]
    for first, block in owner_blocks(owners_path(folder, node_type), len(ids), book.num_parts):
        some = ids[first : first + len(block)]
        parts = np.searchsorted(offsets, some, side="right") - 1
        wrong = np.flatnonzero((some >= 0) & (parts != block))
        places = (f"key {first + row} (part {parts[row]}, not {block[row]})" for row in wrong)
        findings.checked("nodes", int(np.count_nonzero(some >= 0)))
        findings.add("nodes", node_type, "is in another part than the folder of owners says", len(wrong), places)
