"""Cuts a PyG data object into PyG's partition files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from hopstream.checks import known_names, read_integer
from hopstream.compat.pyg.partition_writing import check_root, write_partitions
from hopstream.dataset.settings import PartitionOptions, PartitionSettings
from hopstream.errors import SettingsError
from hopstream.graph.graph import Graph
from hopstream.ingest.objects.pyg_data import graph_from_data
from hopstream.uris import local_path


class Partitioner:
    """Cuts a ``Data`` or ``HeteroData`` and writes one folder per part, as ``torch_geometric.distributed`` has them.

    Nodes are assigned by METIS, or another method of Hopstream; the same settings give the same parts. Every feature
    that is a tensor is written, labels too, and masks of nodes.
    """

    def __init__(self, data: Any, num_parts: int, root: str | Path, recursive: bool = False, **options: Any) -> None:
        """Say what to cut, and where to.

        Args:
            data: A PyG ``Data`` or ``HeteroData``, or a ``Graph``.
            num_parts: Number of parts.
            root: The folder to write. PyG's partition files that are there are replaced when the new ones are complete.
            recursive: Let METIS cut in two, and those in two again, in place of into all parts at once.
            **options: Fields of ``PartitionSettings``, such as ``method="kaminpar"``, ``rng_seed`` or ``balance``.

        Raises:
            SettingsError: A setting is outside its range, or ``root`` holds something else.
        """
        if not isinstance(root, str | Path):
            raise SettingsError(f"root is {root!r}; give the folder to write")
        self.data, self.num_parts, self.root = data, read_integer("num_parts", num_parts), local_path(root)
        unknown = options.keys() - PartitionOptions.__annotations__.keys()
        if unknown:
            raise SettingsError(
                f"there is no option {min(unknown)!r}; {known_names(min(unknown), PartitionOptions.__annotations__)}"
            )
        chosen = {"method": "metis", "balance": "nodes", **options, "num_parts": self.num_parts, "recursive": recursive}
        self.options = cast(PartitionOptions, chosen)
        PartitionSettings(**self.options)
        check_root(self.root, overwrite=True)

    def generate_partition(self) -> None:
        """Cut and write.

        Raises:
            SchemaError: ``data`` is no graph, or a feature is no tensor.
            IdRangeError: An edge names a node that is not there.
        """
        graph = self.data if isinstance(self.data, Graph) else graph_from_data(self.data)
        write_partitions(graph, self.root, overwrite=True, **self.options)
