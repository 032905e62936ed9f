"""How are arrays by name kept in DGL's files: ``node_feat.dgl``, ``edge_feat.dgl``, ``orig_nids.dgl``?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hopstream.arrays import Array
from hopstream.compat.dgl.binary import DglReader, DglWriter, Rows, open_file

TENSORS_MAGIC = 0xDD5A9FBE3FA2443F


def write_tensor_file(path: Path, arrays: Mapping[str, Array | Rows]) -> None:
    """Write arrays as ``dgl.data.save_tensors`` does.

    Raises:
        SchemaError: An array has a dtype that DGL does not know.
    """
    with path.open("wb") as file:
        writer = DglWriter(file)
        writer.uint64(TENSORS_MAGIC, len(arrays))
        writer.arrays(arrays, str(path))


def read_tensor_file(path: Path, *, is_mapped: bool = False) -> dict[str, Array]:
    """Read what ``dgl.data.save_tensors`` wrote, or map it.

    Raises:
        FormatError: The file is missing, damaged, or of another kind.
    """
    with open_file(path, "arrays by name") as file:
        reader = DglReader(file, path, is_mapped=is_mapped)
        reader.magic(TENSORS_MAGIC, "a file of tensors")
        reader.uint64()
        return reader.arrays()
