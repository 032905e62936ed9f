"""Reader of PyG's or DGL's partitions as a graph, with the part of each node."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hopstream.errors import FormatError
from hopstream.graph.graph import Graph
from hopstream.ingest.source_paths import PYG_META, dgl_config_of, pyg_partitions_of


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Partitions:
    """A graph that another library has partitioned.

    Attributes:
        kind: The library of the files: ``pyg`` or ``dgl``.
        graph: The whole graph.
        owners: Node type to int32[num_nodes], the part of each node.
        num_parts: Number of parts; a part may own nothing.
    """

    kind: str
    graph: Graph
    owners: dict[str, NDArray[np.int32]]
    num_parts: int


def read_partitions(path: Path) -> Partitions:
    """Read PyG's or DGL's partitions.

    Raises:
        FormatError: The path has neither layout, a file is missing or damaged, or parts do not fit each other.
        SchemaError: The contents are no graph.
        IdRangeError: An edge names a node that does not exist.
    """
    folder = pyg_partitions_of(path)
    if folder is not None:
        from hopstream.compat.pyg.partition_files import read_meta  # loads torch
        from hopstream.compat.pyg.partition_reading import read_partitions as read_pyg

        graph, owners = read_pyg(folder)
        return Partitions(kind="pyg", graph=graph, owners=owners, num_parts=read_meta(folder).num_parts)
    config = dgl_config_of(path)
    if config is None:
        raise FormatError(f"{path} has neither PyG's {PYG_META} nor the JSON file of DGL's partition_graph")
    from hopstream.compat.dgl.part_config import read_config
    from hopstream.compat.dgl.reading import read_partitions as read_dgl

    graph, owners = read_dgl(config)
    return Partitions(kind="dgl", graph=graph, owners=owners, num_parts=read_config(config).num_parts)
