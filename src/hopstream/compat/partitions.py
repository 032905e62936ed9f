"""Reads the graph that PyG's or DGL's partitions hold, and how it is cut."""

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
    """A graph that was cut elsewhere.

    Attributes:
        kind: Whose files they are: ``pyg`` or ``dgl``.
        graph: The whole graph.
        owners: Node type to int32[num_nodes], the part of each node.
        num_parts: How many parts there are; some may own nothing.
    """

    kind: str
    graph: Graph
    owners: dict[str, NDArray[np.int32]]
    num_parts: int


def read_partitions(path: Path) -> Partitions:
    """Read PyG's or DGL's partitions.

    Raises:
        FormatError: The path names neither, or a file is missing or damaged, or parts do not fit each other.
        SchemaError: What they hold is no graph.
        IdRangeError: An edge names a node that is not there.
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
