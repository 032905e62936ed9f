"""Makes one graph of the parts in DGL's files again, with the part of each node."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import Array, IntArray
from hopstream.compat.dgl.binary import open_file, read_tensor_file
from hopstream.compat.dgl.book import RangePartitionBook, _Ranges
from hopstream.compat.dgl.convert import is_mask, our_names
from hopstream.compat.dgl.graphs import EID, NID
from hopstream.compat.dgl.loading import (
    check_own_edges,
    read_edge_feats,
    read_node_feats,
    read_part_graph,
)
from hopstream.compat.dgl.part_config import PartConfig, check_integers, edge_type_reader, etype_label, read_config
from hopstream.compat.dgl.part_files import TRAINER_ID, mask_name
from hopstream.errors import FormatError, IdRangeError
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.ingest.objects.attributes import MASKS
from hopstream.schema import EdgeType

Columns = dict[str, Array]


def read_partitions(part_config: str | Path) -> tuple[Graph, dict[str, NDArray[np.int32]]]:
    """Read all parts of a graph, written by DGL or ``partition_graph``, as one graph and the parts of its nodes.

    ``hopstream.write_parts(graph, out, owners=owners, num_parts=n)`` makes a dataset of the result. Nodes and edges
    have the keys that they had before partitioning, where files say so (``orig_id``, or ``orig_nids.dgl`` and
    ``orig_eids.dgl``); else their numbers in their types. A graph without types gets the types ``node`` and
    ``(node, to, node)``. Masks become splits.

    Args:
        part_config: The JSON file; the folders of all parts must be there.

    Returns:
        graph: The graph, checked.
        owners: Node type to int32[num_nodes], the part of each node.

    Raises:
        FormatError: A file is missing, damaged, or parts do not fit each other.
        SchemaError: Names or data cannot be those of a graph.
    """
    config = read_config(part_config)
    reader = _Reader(config)
    for part in range(config.num_parts):
        reader.take_nodes(part)
    for part in range(config.num_parts):
        reader.take_edges(part)
    return reader.graph(), reader.owners()


class _Reader:
    """Collects parts; nodes first, because an edge may lead to a node of any part."""

    def __init__(self, config: PartConfig) -> None:
        self._config = config
        book = RangePartitionBook(0, config.num_parts, config.node_map, config.edge_map, config.ntypes, config.etypes)
        self._nodes, self._edges = book._nodes, book._edges
        for part in range(config.num_parts):
            self._check_size(part)
        self._node_names, self._edge_names = our_names(config.ntypes, config.etypes)
        self._keys = {t: np.full(self._nodes.typed[t][-1], -1, np.int64) for t in config.ntypes}
        self._edge_keys = {t: np.full(self._edges.typed[t][-1], -1, np.int64) for t in config.etypes}
        self._src = {t: np.full(len(of), -1, np.int64) for t, of in self._edge_keys.items()}
        self._dst = {t: np.full(len(of), -1, np.int64) for t, of in self._edge_keys.items()}
        self._pieces: dict[Any, dict[str, list[Array]]] = {t: {} for t in (*config.ntypes, *config.etypes)}

    def _check_size(self, part: int) -> None:
        """Compare what the JSON file says with the part's file before memory is taken for it.

        A node, and an edge, has a number and says whether it is the part's own: two bytes at least.
        """
        path = self._config.file(part, "part_graph")
        with open_file(path, "the graph of a part") as file:
            num_bytes = os.fstat(file.fileno()).st_size
        for what, of in (("nodes", self._nodes), ("edges", self._edges)):
            number = sum(int(offsets[part + 1] - offsets[part]) for offsets in of.typed.values())
            if 2 * number > num_bytes:
                self._refuse(part, f"has {number} {what} by the JSON file, and {path} does not hold {what} so many")

    def take_nodes(self, part: int) -> None:
        graph = read_part_graph(self._config, part)
        inner = np.flatnonzero(graph.ndata["inner_node"])
        types, numbers = self._per_type(part, self._nodes, graph.ndata[NID][inner])
        for row, (ntype, keys) in enumerate(self._keys.items()):
            mine = types == row
            place = (self._nodes.typed[ntype][part], inner[mine], graph.ndata.get("orig_id"))
            keys[numbers[mine]] = self._old_of(part, ntype, numbers[mine], place)
        self._take_features(part, read_node_feats(self._config, part), lambda label: label, self._nodes.typed)

    def take_edges(self, part: int) -> None:
        graph = read_part_graph(self._config, part)
        check_own_edges(self._config, part, graph)
        inner = np.flatnonzero(graph.edata["inner_edge"])
        types, numbers = self._per_type(part, self._edges, graph.edata[EID][inner])
        ends = [graph.ndata[NID][end[inner]] for end in (graph.src, graph.dst)]
        (src_types, src), (dst_types, dst) = (self._per_type(part, self._nodes, end) for end in ends)
        ntypes = self._config.ntypes
        for row, (etype, keys) in enumerate(self._edge_keys.items()):
            mine = types == row
            for found, of in ((src_types, etype[0]), (dst_types, etype[2])):
                if (found[mine] != ntypes[of]).any():
                    self._refuse(part, f"has edges of {etype} that join other node types")
            place = (self._edges.typed[etype][part], inner[mine], graph.edata.get("orig_id"))
            keys[numbers[mine]] = self._old_of(part, etype, numbers[mine], place)
            self._src[etype][numbers[mine]] = self._keys[etype[0]][src[mine]]
            self._dst[etype][numbers[mine]] = self._keys[etype[2]][dst[mine]]
        read = edge_type_reader(self._config.etypes)
        self._take_features(part, read_edge_feats(self._config, part), read, self._edges.typed)

    def _per_type(self, part: int, of: _Ranges, numbers: Array) -> tuple[IntArray, IntArray]:
        try:
            return of.per_type(numbers.astype(np.int64))
        except IdRangeError as error:
            self._refuse(part, f"has numbers that the JSON file does not know: {error}")

    def _old_of(
        self, part: int, of: str | EdgeType, numbers: IntArray, place: tuple[int, IntArray, Array | None]
    ) -> IntArray:
        """The keys of some numbers of a type: what the graph says, or a file beside it, or the numbers themselves."""
        first, places, orig = place
        if orig is not None:
            return orig[places].astype(np.int64)
        name, label = ("orig_nids.dgl", of) if isinstance(of, str) else ("orig_eids.dgl", etype_label(of))
        path = self._config.beside(part, name)
        if not path.is_file():
            return numbers
        found = read_tensor_file(path)
        old = found.get(label, found.get(of[1]) if not isinstance(of, str) else None)
        if old is None or not old.ndim or len(old) != len(numbers):
            self._refuse(part, f"has {len(numbers)} of {label}, and {path.name} other ones")
        check_integers(path, label, old)
        return old[numbers - first].astype(np.int64)

    def _take_features(
        self, part: int, feats: Mapping[str, Array], read: Callable[[str], Any], typed: Mapping[Any, IntArray]
    ) -> None:
        """Put the rows of a part where they belong, in the order of numbers."""
        missing = {of: set(self._pieces[of]) for of in typed if len(np.unique(typed[of][part : part + 2])) > 1}
        for label, array in feats.items():
            owner, _, name = label.partition("/")
            of = read(owner)
            if of not in typed:
                self._refuse(part, f"has data {label!r} of a type that is not known; known: {list(typed)}")
            missing.get(of, set()).discard(name)
            offsets = typed[of]
            first, stop = offsets[part : part + 2].tolist()
            if not array.ndim or len(array) != stop - first:
                self._refuse(part, f"has {label!r} of shape {list(array.shape)} for {stop - first} rows")
            if name not in self._pieces[of] and first:
                self._refuse(part, f"has {label!r}, and parts before it do not")
            pieces = self._pieces[of].setdefault(name, [])
            if pieces and (pieces[0].shape[1:] != array.shape[1:] or pieces[0].dtype != array.dtype):
                self._refuse(part, f"has {label!r} as {array.dtype}{list(array.shape[1:])}, unlike other parts")
            pieces.append(array)
        for of, names in missing.items():
            if names:
                self._refuse(part, f"has no {sorted(names)[0]!r} of {of!r}, and parts before it do")

    def _refuse(self, part: int, what: str) -> NoReturn:
        raise FormatError(f"part {part} of {self._config.path} {what}")

    def owners(self) -> dict[str, NDArray[np.int32]]:
        owners: dict[str, NDArray[np.int32]] = {}
        for ntype, keys in self._keys.items():
            owner = np.empty(len(keys), np.int32)
            owner[keys] = np.repeat(np.arange(self._config.num_parts), np.diff(self._nodes.typed[ntype]))
            owners[self._node_names[ntype]] = owner
        return owners

    def graph(self) -> Graph:
        for of, keys in (*self._keys.items(), *self._edge_keys.items()):
            if not np.array_equal(np.sort(keys), np.arange(len(keys))):
                raise FormatError(f"{self._config.path} has parts whose orig_id of {of!r} are not 0..{len(keys) - 1}")
        self._features: dict[Any, Columns] = {
            of: {name: np.concatenate(pieces) for name, pieces in columns.items()}
            for of, columns in self._pieces.items()
        }
        ours = self._config.ours
        splits = {t: self._splits(t, t, ours.get("splits")) for t in self._keys}
        edge_splits = {t: self._splits(t, etype_label(t), ours.get("edge_splits")) for t in self._edge_keys}
        read = edge_type_reader(self._config.etypes)
        return Graph(
            nodes={
                self._node_names[t]: NodeTable(num_nodes=len(keys), features=self._columns(t, t, splits[t]))
                for t, keys in self._keys.items()
            },
            edges={
                self._edge_names[t]: EdgeTable(
                    src_keys=_by_key(self._src[t], keys), dst_keys=_by_key(self._dst[t], keys),
                    features=self._columns(t, etype_label(t), edge_splits[t]),
                )
                for t, keys in self._edge_keys.items()
            },
            splits={self._node_names[t]: self._split_keys(t, names) for t, names in splits.items() if names},
            edge_splits={self._edge_names[t]: self._split_keys(t, names) for t, names in edge_splits.items() if names},
            label_types={
                self._edge_names[read(label)]: tuple(self._edge_names[read(other)] for other in of)
                for label, of in ours.get("label_types", {}).items()
            },
        ).check()  # fmt: skip

    def _splits(self, of: Any, label: str, said: Mapping[str, Iterable[str]] | None) -> dict[str, str]:
        """Split name to the data that say who is in it."""
        columns = self._features[of]
        if said is None:
            return {MASKS[name]: name for name, column in columns.items() if is_mask(name, column)}
        names = {split: mask_name(split) for split in said.get(label, ())}
        missing = [name for name in names.values() if name not in columns]
        if missing:
            raise FormatError(f"{self._config.path} has a split of {label} without data {missing[0]!r}")
        for name in names.values():
            if columns[name].ndim != 1:
                raise FormatError(
                    f"{self._config.path} has a split of {label}, whose {name!r} has {list(columns[name].shape[1:])} "
                    "values in a row; wanted one"
                )
        return names

    def _columns(self, of: Any, label: str, splits: Mapping[str, str]) -> Columns:
        ours = self._config.ours
        left_out = {*splits.values(), *([TRAINER_ID] if ours.get("has_trainers") else [])}
        keys = self._keys.get(of) if isinstance(of, str) else self._edge_keys[of]
        booleans = set(ours.get("booleans", ()))
        return {
            name: _by_key(column.astype(bool) if f"{label}/{name}" in booleans else column, keys)
            for name, column in self._features[of].items()
            if name not in left_out
        }

    def _split_keys(self, of: Any, names: Mapping[str, str]) -> dict[str, IntArray]:
        keys = self._keys[of] if isinstance(of, str) else self._edge_keys[of]
        return {split: np.sort(keys[self._features[of][name] != 0]) for split, name in names.items()}


def _by_key(column: Array, keys: Any) -> Array:
    """Rows in the order of keys."""
    found = np.empty_like(column)
    found[keys] = column
    return found
