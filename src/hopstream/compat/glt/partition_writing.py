"""Writer of a graph as GLT's partition files; see ``hopstream.compat.glt.partition_files``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Unpack

import numpy as np
import torch
from torch import Tensor

from hopstream.arrays import Column, RaggedArray
from hopstream.assign.run import OwnersSource
from hopstream.checks import known_names, known_words
from hopstream.compat.glt.distributed.graph_facts import EDGE_FEATURE, LABEL, NODE_FEATURE, WEIGHT
from hopstream.compat.glt.partition_files import META, write_tensor, write_value
from hopstream.compat.glt.partition_reading import LABELS, SPLITS
from hopstream.compat.pyg.partition_writing import CutGraph, check_layout, cut_of, file_name
from hopstream.dataset.dataset_folder import replaced_folder
from hopstream.dataset.layout import Dataset, open_dataset
from hopstream.dataset.settings import PartitionOptions
from hopstream.dataset.split import split_by_owner
from hopstream.errors import SchemaError, SettingsError, UnknownNameError
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.load.pyg import to_tensor
from hopstream.schema import EdgeType, type_label
from hopstream.uris import local_path

Strategy = Literal["by_src", "by_dst"]
NameChoice = str | Mapping[Any, str] | None
STRATEGIES = ("by_src", "by_dst")


def write_partitions(  # noqa: PLR0913
    graph: Graph | Dataset | str | Path,
    root_dir: str | Path,
    *,
    node_feat: NameChoice = None,
    edge_feat: NameChoice = None,
    edge_assign_strategy: Strategy | None = None,
    owners: OwnersSource | None = None,
    overwrite: bool = False,
    **options: Unpack[PartitionOptions],
) -> None:
    """Write GLT's partition files, which ``graphlearn_torch`` and ``read_partitions`` read.

    Features are written as ``.pkl``, as in current versions of GLT; its first versions had ``.pt``.

    GLT keeps one tensor of features per node type and edge type. The feature ``weight`` of edges becomes their weights.
    The feature ``y`` of nodes becomes the file ``node_label.pt`` (``node_label/<type>.pt`` with types), which
    ``DistDataset.load`` takes as ``whole_node_label_file``. Splits of nodes are written as tensors of ids by name in
    ``node_split.pt``. Splits of edges are not written.

    Args:
        graph: A dataset or its folder, whose parts are kept; or a graph, which is partitioned here.
        root_dir: The folder to write.
        node_feat: The feature to write for every type that has it, or node type to feature. By default the only feature
            of a type besides ``y``.
        edge_feat: The same for edges, by edge type, besides ``weight``.
        edge_assign_strategy: The end that decides the part of an edge: ``by_src``, for GLT's ``edge_dir="out"``, or
            ``by_dst``, for ``"in"``. By default ``by_dst`` for a dataset with only incoming edges, otherwise
            ``by_src``.
        owners: The part of each node, as ``hopstream.write_parts`` takes it.
        overwrite: Replace existing partition files once the new ones are complete.
        **options: Fields of ``PartitionSettings`` for a graph: ``num_parts``, ``method`` and others.

    Raises:
        SettingsError: ``root_dir`` holds other files, or partition files without ``overwrite``; a type has several
            features and none is chosen; or a dataset, which has its parts already, comes with options of partitioning.
        SchemaError: A feature is no tensor, or a type's name cannot be a file name.
        UnknownNameError: There is no such feature or type.
        FormatError: The dataset is damaged.
    """
    root = local_path(root_dir)
    if not isinstance(graph, Graph | Dataset):
        graph = open_dataset(graph)
    if edge_assign_strategy is None:
        is_in = isinstance(graph, Dataset) and graph.manifest.directions == ("in",)
        edge_assign_strategy = "by_dst" if is_in else "by_src"
    if edge_assign_strategy not in STRATEGIES:
        raise SettingsError(
            f"edge_assign_strategy is {edge_assign_strategy!r}; {known_words(edge_assign_strategy, STRATEGIES)}"
        )
    cut = cut_of(graph, owners, options)
    nodes, edges = cut.graph.nodes, cut.graph.edges
    contents = _Contents(
        cut=cut,
        strategy=edge_assign_strategy,
        node_feat=_chosen("node_feat", node_feat, nodes, (NODE_FEATURE, LABEL)),
        edge_feat=_chosen("edge_feat", edge_feat, edges, (EDGE_FEATURE, WEIGHT)),
    )
    with replaced_folder(root, overwrite=overwrite, check=_check_root) as folder:
        contents.write(folder)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Contents:
    """Contents of the files of a partitioned graph, with the chosen feature of each type."""

    cut: CutGraph
    strategy: Strategy
    node_feat: Mapping[Any, Tensor]
    edge_feat: Mapping[Any, Tensor]

    def write(self, folder: Path) -> None:
        """Write every file, ``META`` last."""
        graph, is_hetero = self.cut.graph, not self.cut.graph.schema.is_homogeneous
        for part in range(self.cut.num_parts):
            (folder / f"part{part}").mkdir()
        for node_type in graph.nodes:
            self._write_nodes(folder, node_type, file_name(node_type) if is_hetero else "")
        for edge_type in graph.edges:
            self._write_edges(folder, edge_type, file_name(edge_type) if is_hetero else "")
        if not is_hetero and not graph.edges:
            self._write_edge_parts(folder, EdgeTable(src_keys=_NONE, dst_keys=_NONE), _NONE.astype(np.int32), "")
        write_value(folder / META, {
            "num_parts": self.cut.num_parts,
            "data_cls": "hetero" if is_hetero else "homo",
            "node_types": list(graph.nodes) if is_hetero else None,
            "edge_types": list(graph.edges) if is_hetero else None,
        })  # fmt: skip

    def _write_nodes(self, folder: Path, node_type: str, name: str) -> None:
        table, owner = self.cut.graph.nodes[node_type], np.asarray(self.cut.owners[node_type], np.int32)
        _save(folder, "node_pb", name, _tensor(owner.astype(np.int64)))
        if LABEL in table.features:
            _save(folder, LABELS, name, _of_column(node_type, LABEL, table.features[LABEL]))
        if splits := self.cut.graph.splits.get(node_type):
            _save(folder, SPLITS, name, {split: _tensor(keys) for split, keys in splits.items()})
        if node_type in self.node_feat:
            offsets, order = split_by_owner(owner, self.cut.num_parts)
            for part in range(self.cut.num_parts):
                ids = _tensor(order[offsets[part] : offsets[part + 1]].astype(np.int64, copy=False))
                _write_features(folder / f"part{part}" / "node_feat" / name, self.node_feat[node_type], ids)

    def _write_edges(self, folder: Path, edge_type: EdgeType, name: str) -> None:
        table = self.cut.graph.edges[edge_type]
        if self.strategy == "by_dst":
            owner = self.cut.edge_owners(edge_type)
        else:
            owner = self.cut.owners[edge_type[0]][table.src_keys]
        self._write_edge_parts(folder, table, np.asarray(owner, np.int32), name, self.edge_feat.get(edge_type))

    def _write_edge_parts(
        self, folder: Path, table: EdgeTable, owner: Any, name: str, features: Tensor | None = None
    ) -> None:
        _save(folder, "edge_pb", name, _tensor(owner.astype(np.int64)))
        weights = _of_column(name or "edges", WEIGHT, table.features[WEIGHT]) if WEIGHT in table.features else None
        if weights is not None and (weights.dim() != 1 or not weights.is_floating_point()):
            raise SchemaError(
                f"{WEIGHT} of {name or 'edges'} is {weights.dtype}{list(weights.shape)}; GLT has float[n]"
            )
        offsets, order = split_by_owner(owner, self.cut.num_parts)
        for part in range(self.cut.num_parts):
            ids = order[offsets[part] : offsets[part + 1]].astype(np.int64, copy=False)
            place = folder / f"part{part}" / "graph" / name
            place.mkdir(parents=True)
            torch.save(_tensor(table.src_keys[ids]), place / "rows.pt")
            torch.save(_tensor(table.dst_keys[ids]), place / "cols.pt")
            torch.save(_tensor(ids), place / "eids.pt")
            if weights is not None:
                torch.save(weights[_tensor(ids)], place / "weights.pt")
            if features is not None:
                _write_features(folder / f"part{part}" / "edge_feat" / name, features, _tensor(ids))


_NONE = np.empty(0, np.int64)


def _write_features(place: Path, features: Tensor, ids: Tensor) -> None:
    place.mkdir(parents=True)
    write_tensor(place / "feats.pkl", features[ids])
    write_tensor(place / "ids.pkl", ids)


def _save(folder: Path, what: str, name: str, value: Any) -> None:
    """Write a file of the whole graph, in a folder if there are types."""
    path = folder / what / f"{name}.pt" if name else folder / f"{what}.pt"
    path.parent.mkdir(exist_ok=True)
    torch.save(value, path)


def _chosen(
    setting: str, choice: NameChoice, tables: Mapping[Any, NodeTable] | Mapping[Any, EdgeTable], names: tuple[str, str]
) -> dict[Any, Tensor]:
    """Return the features to write; ``names`` are the default one, and one with its own file."""
    if choice is not None and not isinstance(choice, str):
        for of_type in choice:
            if of_type not in tables:
                raise UnknownNameError(f"{setting} is given for {of_type!r}; {known_names(of_type, tables)}")
    elif choice is not None and not any(choice in table.features for table in tables.values()):
        known = sorted({name for table in tables.values() for name in table.features})
        raise UnknownNameError(f"{setting} is {choice!r}, which no type has; {known_names(choice, known)}")
    found = {}
    for of_type, table in tables.items():
        label = type_label(of_type)
        name = _name_of(setting, choice, of_type, table.features, names)
        if name is not None and name not in table.features:
            raise UnknownNameError(f"{label} has no feature {name!r}; {known_names(name, table.features)}")
        if name is not None:
            found[of_type] = _of_column(label, name, table.features[name])
    return found


def _name_of(
    setting: str, choice: NameChoice, of_type: Any, features: Mapping[str, Column], names: tuple[str, str]
) -> str | None:
    """Return the feature of one type to write, or None."""
    if isinstance(choice, str):
        return choice if choice in features else None
    if choice is not None:
        return choice.get(of_type)
    others = [name for name in features if name != names[1]]
    if len(others) > 1:
        raise SettingsError(
            f"{type_label(of_type)} has the features {others}, and GLT keeps one: give {setting}, such as "
            f"{names[0]!r}, or by type"
        )
    return others[0] if others else None


def _of_column(where: str, name: str, column: Column) -> Tensor:
    if isinstance(column, RaggedArray):
        raise SchemaError(f"{where}.{name} holds strings or rows of different lengths; GLT keeps tensors")
    return _tensor(column)


def _tensor(array: Any) -> Tensor:
    return to_tensor(np.ascontiguousarray(array), False)


def _check_root(out: Path, *, overwrite: bool) -> None:
    check_layout(out, overwrite=overwrite, whose="GLT", meta=META, is_of_layout=_is_of_layout)


def _is_of_layout(name: str) -> bool:
    known = ("node_pb", "edge_pb", LABELS, SPLITS)
    is_part = name.startswith("part") and name.removeprefix("part").isdigit()
    return name in (META, "graph") or name.removesuffix(".pt") in known or is_part
