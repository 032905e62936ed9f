"""Reader that joins the parts in DGL's files into one graph, with the part of each node."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import Array, IntArray
from hopstream.checks import known_names
from hopstream.compat.dgl.binary import open_file
from hopstream.compat.dgl.book import Ranges
from hopstream.compat.dgl.convert import is_mask, our_names
from hopstream.compat.dgl.graphs import EID, NID
from hopstream.compat.dgl.loading import check_own_edges, keys_beside, read_feats, read_part_graph
from hopstream.compat.dgl.part_config import PartConfig, label_of, read_config
from hopstream.compat.dgl.part_files import TRAINER_ID, mask_name
from hopstream.compat.dgl.tensors import to_ids
from hopstream.errors import FormatError, IdRangeError, SchemaError
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.ingest.objects.attributes import MASKS

Columns = dict[str, Array]


def read_partitions(
    part_config: str | Path, *, orig_nids: Any = None, orig_eids: Any = None
) -> tuple[Graph, dict[str, NDArray[np.int32]]]:  # fmt: skip
    """Read all parts of a graph as one graph, with the part of each node.

    DGL or ``partition_graph`` wrote the parts. ``hopstream.write_parts(graph, out, owners=owners, num_parts=n)`` makes
    a dataset of the result. Nodes and edges keep their keys from before partitioning if the files store them
    (``orig_id``, or ``orig_nids.dgl`` and ``orig_eids.dgl``) or if they are given. Otherwise their keys are their
    numbers in their types. A graph without types gets the types ``node`` and ``(node, to, node)``. Masks become splits.

    Args:
        part_config: The JSON file; the folders of all parts must be present.
        orig_nids: The old number of each new one, as DGL's ``partition_graph(…, return_mapping=True)`` returns them:
            int64[num_nodes], or a dict of these by node type. They replace numbers in the files.
        orig_eids: The same for edges, by edge type.

    Returns:
        graph: The graph, checked.
        owners: Node type to int32[num_nodes], the part of each node.

    Raises:
        FormatError: A file is missing, damaged, or parts do not fit each other.
        SchemaError: A graph cannot have such names or data, or ``orig_nids`` or ``orig_eids`` do not fit the parts.
    """
    config = read_config(part_config)
    given = {**_given("orig_nids", orig_nids, config.nodes), **_given("orig_eids", orig_eids, config.edges)}
    reader = _Reader(config, given)
    for part in range(config.num_parts):
        reader.take_nodes(part)
    for part in range(config.num_parts):
        reader.take_edges(part)
    return reader.graph(), reader.owners()


def _given(what: str, given: Any, ranges: Ranges) -> dict[Any, IntArray]:
    """Return the user's old numbers by type, each a permutation of 0..n-1."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        if len(ranges.ids) != 1:
            raise SchemaError(f"{what} is one array, and there are {len(ranges.ids)} types; give a dict by type")
        given = {next(iter(ranges.ids)): given}
    found = {}
    for of, numbers in given.items():
        if of not in ranges.ids:
            raise SchemaError(f"{what} names type {of!r}; {known_names(of, ranges.ids)}")
        size, found[of] = int(ranges.typed[of][-1]), to_ids(numbers, f"{what}[{of!r}]")
        if not np.array_equal(np.sort(found[of]), np.arange(size)):
            raise SchemaError(f"{what}[{of!r}] has {len(found[of])} numbers; wanted 0..{size - 1}, each once")
    return found


class _Reader:
    """Collector of parts; nodes come first, because an edge may lead to a node of any part."""

    def __init__(self, config: PartConfig, given: Mapping[Any, IntArray]) -> None:
        self._config, self._given = config, given
        for part in range(config.num_parts):
            self._check_size(part)
        self._typed: dict[Any, IntArray] = {**config.nodes.typed, **config.edges.typed}
        self._types = {label_of(of): of for of in self._typed}
        node_names, edge_names = our_names(config.nodes.ids, config.edges.ids)
        self._names: dict[Any, Any] = {**node_names, **edge_names}
        self._keys: dict[Any, IntArray] = {of: np.full(n[-1], -1, np.int64) for of, n in self._typed.items()}
        self._ends = {t: np.full((2, config.edges.typed[t][-1]), -1, np.int64) for t in config.edges.ids}
        self._pieces: dict[Any, dict[str, list[Array]]] = {of: {} for of in self._typed}

    def _check_size(self, part: int) -> None:
        """Compare the counts of the JSON file with the size of the part's file before allocating memory.

        A node or an edge takes at least two bytes: its number, and whether the part owns it.
        """
        path = self._config.file(part, "part_graph")
        with open_file(path, "the graph of a part") as file:
            num_bytes = os.fstat(file.fileno()).st_size
        for of in (self._config.nodes, self._config.edges):
            number, what = int(np.diff(of.all_types)[part]), f"{of.what}s"
            if 2 * number > num_bytes:
                self._refuse(
                    part, f"has {number} {what} according to the JSON file, but {path} is too small for so many"
                )

    def take_nodes(self, part: int) -> None:
        graph = read_part_graph(self._config, part)
        inner = np.flatnonzero(graph.ndata["inner_node"])
        self._take_own(part, self._config.nodes, inner, graph.ndata[NID], graph.ndata.get("orig_id"))
        self._take_features(part, self._config.nodes, "node_feats")

    def take_edges(self, part: int) -> None:
        graph, (nodes, edges) = read_part_graph(self._config, part), (self._config.nodes, self._config.edges)
        check_own_edges(self._config, part, graph)
        inner = np.flatnonzero(graph.edata["inner_edge"])
        own = self._take_own(part, edges, inner, graph.edata[EID], graph.edata.get("orig_id"))
        for side, end in enumerate((graph.src, graph.dst)):
            types, ends = self._per_type(part, nodes, graph.ndata[NID][end[inner]])
            for etype, (mine, numbers) in own.items():
                ntype = etype[2 * side]
                if (types[mine] != nodes.ids[ntype]).any():
                    self._refuse(part, f"has edges of {etype} that join other node types")
                self._ends[etype][side, numbers] = self._keys[ntype][ends[mine]]
        self._take_features(part, edges, "edge_feats")

    def _take_own(
        self, part: int, ranges: Ranges, inner: IntArray, numbers: Array, orig: Array | None
    ) -> dict[Any, tuple[NDArray[np.bool_], IntArray]]:
        """Take the keys of a part's own nodes or edges.

        They come from the user, the graph, a file beside it, or are their numbers.

        Returns:
            For each type, a mask of ``inner``, and the numbers in the type.
        """
        types, in_type = self._per_type(part, ranges, numbers[inner])
        own = {}
        for of, number in ranges.ids.items():
            mine = types == number
            keys = found = in_type[mine]
            if of in self._given:
                keys = self._given[of][found]
            elif orig is not None:
                keys = orig[inner[mine]]
            elif (beside := keys_beside(self._config, part, of)) is not None:
                keys = beside[found - ranges.typed[of][part]]
            self._keys[of][found] = keys
            own[of] = (mine, found)
        return own

    def _per_type(self, part: int, ranges: Ranges, numbers: Array) -> tuple[IntArray, IntArray]:
        try:
            return ranges.per_type(numbers.astype(np.int64))
        except IdRangeError as error:
            self._refuse(part, f"has numbers that the JSON file does not know: {error}")

    def _take_features(self, part: int, ranges: Ranges, what: str) -> None:
        """Take the rows of a part's features, in the order of numbers."""
        sizes = {of: int(np.diff(ranges.typed[of])[part]) for of in ranges.ids}
        missing = {of: set(self._pieces[of]) for of, size in sizes.items() if size}
        for label, array in read_feats(self._config, part, what).items():
            entity, _, name = label.partition("/")
            of = self._types.get(entity)
            if of not in sizes:
                self._refuse(part, f"has data {label!r} of an unknown type; known: {list(sizes)}")
            missing.get(of, set()).discard(name)
            if not array.ndim or len(array) != sizes[of]:
                self._refuse(part, f"has {label!r} of shape {list(array.shape)} for {sizes[of]} rows")
            if name not in self._pieces[of] and ranges.typed[of][part]:
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

    def _type(self, label: str) -> Any:
        if label not in self._types:
            raise FormatError(f"{self._config.path} has no type {label!r}; it has {list(self._types)}")
        return self._types[label]

    def owners(self) -> dict[str, NDArray[np.int32]]:
        owners: dict[str, NDArray[np.int32]] = {}
        for ntype, offsets in self._config.nodes.typed.items():
            owner = np.empty(offsets[-1], np.int32)
            owner[self._keys[ntype]] = np.repeat(np.arange(self._config.num_parts), np.diff(offsets))
            owners[self._names[ntype]] = owner
        return owners

    def graph(self) -> Graph:
        for of, keys in self._keys.items():
            if not np.array_equal(np.sort(keys), np.arange(len(keys))):
                raise FormatError(f"{self._config.path} has parts whose orig_id of {of!r} are not 0..{len(keys) - 1}")
        features: dict[Any, Columns] = {}
        splits: dict[Any, dict[str, IntArray]] = {}
        for of, columns in self._pieces.items():
            features[of], splits[of] = self._columns_and_splits(of, columns)
        nodes, edges, names = self._config.nodes.ids, self._config.edges.ids, self._names
        return Graph(
            nodes={names[t]: NodeTable(num_nodes=len(self._keys[t]), features=features[t]) for t in nodes},
            edges={
                names[t]: EdgeTable(
                    src_keys=self._by_key(t, self._ends[t][0]), dst_keys=self._by_key(t, self._ends[t][1]),
                    features=features[t],
                )
                for t in edges
            },
            splits={names[t]: splits[t] for t in nodes if splits[t]},
            edge_splits={names[t]: splits[t] for t in edges if splits[t]},
            label_types={
                names[self._type(label)]: tuple(names[self._type(other)] for other in of)
                for label, of in self._config.ours.get("label_types", {}).items()
            },
        ).check()  # fmt: skip

    def _columns_and_splits(self, of: Any, pieces: Mapping[str, list[Array]]) -> tuple[Columns, dict[str, IntArray]]:
        """Return the features of a type, and the keys of its splits, by key."""
        ours, label = self._config.ours, label_of(of)
        columns = {name: np.concatenate(arrays) for name, arrays in pieces.items()}
        said = ours.get("splits" if isinstance(of, str) else "edge_splits")
        if said is None:
            masks = {MASKS[name]: name for name, column in columns.items() if is_mask(name, column)}
        else:
            masks = {split: mask_name(split) for split in said.get(label, ())}
        splits = {split: np.sort(self._keys[of][self._mask(label, columns, name)]) for split, name in masks.items()}
        left_out = {*masks.values(), *([TRAINER_ID] if ours.get("has_trainers") else [])}
        booleans = set(ours.get("booleans", ()))
        return {
            name: self._by_key(of, column.astype(bool) if f"{label}/{name}" in booleans else column)
            for name, column in columns.items()
            if name not in left_out
        }, splits

    def _mask(self, label: str, columns: Columns, name: str) -> NDArray[np.bool_]:
        """Return the mask of a split, by number."""
        if name not in columns:
            raise FormatError(f"{self._config.path} has a split of {label} without data {name!r}")
        if columns[name].ndim != 1:
            raise FormatError(
                f"{self._config.path} has a split of {label}, whose {name!r} has {list(columns[name].shape[1:])} "
                "values in a row; wanted one"
            )
        is_within: NDArray[np.bool_] = columns[name] != 0
        return is_within

    def _by_key(self, of: Any, column: Array) -> Array:
        """Return rows in the order of keys."""
        found = np.empty_like(column)
        found[self._keys[of]] = column
        return found
