"""GraphLearn-for-PyTorch's dataset of one partition, from a partition folder or a Hopstream dataset.

GLT's folder is converted once. The dataset is beside it, in ``<root_dir>.hopstream-<8 hex digits>``. The digits change
when ``META`` or a file of labels is written again. An existing dataset is used again. You may delete a folder that you
no longer need.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NoReturn

from hopstream.compat.glt.distributed import dist_dataset
from hopstream.compat.glt.distributed.graph_facts import WEIGHT, GLTFacts, edge_direction, to_torch
from hopstream.compat.glt.partition_files import META, read_meta
from hopstream.compat.glt.partition_reading import read_partitions
from hopstream.dataset.layout import open_dataset
from hopstream.errors import SettingsError
from hopstream.preparation.write import write_parts
from hopstream.store.local import LocalStore
from hopstream.uris import local_path

LabelFiles = str | Path | Mapping[str, str | Path]


class DistDataset(dist_dataset.DistDataset):
    """Partition of a graph, which ``load`` opens. All processes must be able to read the whole folder."""

    def __init__(
        self,
        num_partitions: int = 1,
        partition_idx: int = 0,
        *in_memory: object,
        edge_dir: Literal["in", "out"] = "out",
        **others: object,
    ) -> None:
        """Make an empty dataset; ``load`` opens the partition.

        Args:
            num_partitions: No effect: the folder has the number.
            partition_idx: No effect: ``load`` takes the index.
            *in_memory: None; graphs, features and books in memory are refused.
            edge_dir: ``out`` follows edges from sources to destinations, ``in`` the other way. A partition owns the
                edges that start (``out``) or end (``in``) at its nodes.
            **others: Other arguments of GLT, which also hold data in memory: None.

        Raises:
            ValueError: An argument holds data in memory.
        """
        del num_partitions, partition_idx
        if any(one is not None for one in (*in_memory, *others.values())):
            raise SettingsError(
                "a DistDataset takes no graphs, features or books in memory; write them with "
                "hopstream.write_parts(hopstream.graph_from_arrays(…), folder, …), and call load(folder, partition_idx)"
            )
        self.edge_dir = edge_direction(edge_dir)

    def load(  # noqa: PLR0913, PLR0917 - the arguments of GLT, in its order
        self,
        root_dir: str | os.PathLike[str],
        partition_idx: int,
        graph_mode: str = "ZERO_COPY",
        input_layout: Literal["COO", "CSR", "CSC"] = "COO",
        feature_with_gpu: bool = True,
        graph_caching: bool = False,
        device_group_list: Any = None,
        whole_node_label_file: LabelFiles | None = None,
        device: int | None = None,
        *,
        num_partitions: int | None = None,
    ) -> None:
        """Open one partition.

        Args:
            root_dir: A folder of GLT's partition files, which is converted once (see the module), or the folder of a
                Hopstream dataset.
            partition_idx: The partition.
            graph_mode: No effect: files are mapped into memory.
            input_layout: No effect.
            feature_with_gpu: No effect.
            graph_caching: No effect.
            device_group_list: No effect.
            whole_node_label_file: A file with a label per node, or node type to file; only for GLT's folder.
            device: No effect.
            num_partitions: Number of partitions that share the parts of a Hopstream dataset; None for one part each.

        Raises:
            ValueError: There is no such partition, the dataset does not have ``edge_dir``, or files of labels are given
                for a Hopstream dataset, whose labels are its column ``y``.
            FormatError: The folder is neither kind, or a file is damaged.
            StateError: Another process has been converting the folder for an hour.
        """
        del graph_mode, input_layout, feature_with_gpu, graph_caching, device_group_list, device
        root = local_path(root_dir)
        if (root / META).is_file():
            root = converted(root, whole_node_label_file)
        elif whole_node_label_file is not None:
            raise SettingsError(
                f"whole_node_label_file is given, and {root} is a Hopstream dataset; its labels are the column 'y'"
            )
        num_parts = open_dataset(root).manifest.book.num_parts
        if "store" in vars(self):
            self.close()
        super().__init__(
            root, edge_dir=self.edge_dir, num_partitions=num_partitions or num_parts, partition_idx=partition_idx
        )
        self.facts = GLTFacts(self.store.schema)
        self.attach(lambda: LocalStore(open_dataset(root)))

    def __getattr__(self, name: str) -> NoReturn:
        """Raise an error that says what is missing.

        Raises:
            AttributeError: Always.
        """
        hint = "there is no such attribute" if "store" in vars(self) else "call load(root_dir, partition_idx) first"
        raise AttributeError(f"DistDataset.{name}: {hint}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the dataset for a child of ``multiprocessing``, which opens the files again."""
        return _opened, (str(self.folder), self.edge_dir, self.num_partitions, self.partition_idx)

    def get_node_types(self) -> list[str] | None:
        """Return node types; None for a homogeneous graph."""
        return self.facts.node_types()

    def get_edge_types(self) -> list[tuple[str, str, str]] | None:
        """Return edge types; None for a homogeneous graph."""
        return self.facts.edge_types()

    @property
    def train_idx(self) -> Any:
        """int64[n], own nodes of the split ``train``, or by node type."""
        return self._split("train")

    @property
    def val_idx(self) -> Any:
        """int64[n], own nodes of the split ``val``, or by node type."""
        return self._split("val")

    @property
    def test_idx(self) -> Any:
        """int64[n], own nodes of the split ``test``, or by node type."""
        return self._split("test")

    def _split(self, split: str) -> Any:
        splits = self.facts.schema.splits
        found = {t: to_torch(self.own_split(t, split)) for t in self.facts.schema.nodes if split in splits.get(t, ())}
        return next(iter(found.values()), None) if self.facts.kind == "homogeneous" else found or None


def _opened(folder: str, edge_dir: Any, num_partitions: int, partition_idx: int) -> DistDataset:
    dataset = DistDataset(edge_dir=edge_dir)
    dataset.load(folder, partition_idx, num_partitions=num_partitions)
    return dataset


def converted(root: Path, label_files: LabelFiles | None) -> Path:
    """Return the dataset of a folder of GLT's partition files; convert the folder unless it exists.

    Raises:
        FormatError: A file is missing, damaged, or contradicts the others.
        StateError: Another process has been converting it for an hour.
    """
    out = root.with_name(f"{root.name}.hopstream-{_digest(root, label_files)}")
    return dist_dataset.made_once(out, lambda: _convert(root, out, label_files))


def _convert(root: Path, out: Path, label_files: LabelFiles | None) -> None:
    graph, owners = read_partitions(root, whole_node_label_file=label_files)
    has_weights = any(WEIGHT in table.features for table in graph.edges.values())
    write_parts(
        graph, out, owners=owners, num_parts=read_meta(root).num_parts, direction="both",
        weight_attr=WEIGHT if has_weights else None,
    )  # fmt: skip


def _digest(root: Path, label_files: LabelFiles | None) -> str:
    """Return hex digits that change when the folder's ``META`` or files of labels are written again."""
    labels = label_files if isinstance(label_files, Mapping) else {} if label_files is None else {"": label_files}
    digest = hashlib.blake2b(digest_size=4)
    for name, path in [("META", root / META), *((t, local_path(labels[t])) for t in sorted(labels))]:
        found = path.stat()
        digest.update(f"{name}\x1f{path.resolve()}\x1f{found.st_size}\x1f{found.st_mtime_ns}\x1e".encode())
    return digest.hexdigest()
