"""Answers what a compute rank asks of a cluster beside batches: its inputs, and what there is to know of the graph.

Which nodes a rank starts from is asked of the servers that own them. All else is asked of a store over the cluster,
which is opened when it is first needed.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from hopstream.arrays import Column, IntArray, RaggedArray, offsets_of, to_array
from hopstream.checks import OfOneProcess, check_choice
from hopstream.errors import FormatError, SettingsError, StateError
from hopstream.graph.splits import only_of
from hopstream.load.labels import read_labels
from hopstream.load.options import MAX_RNG_SEED, read_integer, read_rank
from hopstream.partition.book import ends_of
from hopstream.schema import Direction, EdgeType, FeatureSchema, GraphSchema, type_label
from hopstream.store.cluster import Cluster, open_cluster
from hopstream.store.contract import FetchRequest, Store
from hopstream.store.requests import check_owner, check_split
from hopstream.store.settings import StoreSettings, check_store_settings
from hopstream.stream.owners import Owners
from hopstream.stream.sharding import join_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureInfo:
    """What a feature looks like.

    Attributes:
        dim: Numbers per node or edge, 1 for a single one; of one element where rows differ in length.
        dtype: A name of numpy's, or ``"string"``.
        is_ragged: Nodes or edges have different numbers of elements.
    """

    dim: int
    dtype: str
    is_ragged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ABLPInput:
    """Anchors and the label nodes of each.

    Attributes:
        anchors: int64[n], keys, ascending.
        positives: Row ``i`` has the keys of the positive label nodes of ``anchors[i]``; it may be empty.
        negatives: The same of user-given negatives, or None where no edge type of them was named.
    """

    anchors: IntArray
    positives: RaggedArray
    negatives: RaggedArray | None = None


class GraphQuestions(OfOneProcess):
    """What a cluster tells beside batches. Safe to use from many threads."""

    _remedy = "make one in each process, from the same cluster.json or addresses"

    def __init__(self, cluster: Cluster, settings: StoreSettings) -> None:
        """Remember where the servers are; nothing is asked yet.

        Raises:
            SettingsError: ``settings`` are no ``StoreSettings``.
        """
        self._cluster = cluster
        self._settings = check_store_settings(settings)
        self._owners = Owners(cluster, settings)
        self._opening = threading.Lock()
        self._is_closed = False
        self._opened: Store | None = None

    def __enter__(self) -> Self:
        """Use the graph as a context that closes its connections."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close the connections."""
        self.close()

    def close(self) -> None:
        """Disconnect; a second call does nothing. Loaders have connections of their own, and are not affected."""
        self._owners.close()
        with self._opening:
            self._is_closed = True
            store, self._opened = self._opened, None
        if store is not None:
            store.close()

    def fetch_node_ids(
        self, rank: int, world_size: int, split: str | None = None, node_type: str | None = None
    ) -> dict[int, IntArray]:
        """The nodes that are one rank's input, each of the graph or split on exactly one rank.

        A rank takes stretches of what the servers own, so ranks have about as many nodes as the servers that they take
        from; servers that own fewer leave their ranks fewer.

        Args:
            rank: This process among those that share the nodes.
            world_size: How many these are.
            split: Name of a split; None for all nodes.
            node_type: The type; it may be left out where there is one.

        Returns:
            Number of a server in the cluster to int64[n] keys, ascending. Where several servers serve a part, the one
            listed first owns it.

        Raises:
            UnknownNameError: The graph has no such node type or split.
            SettingsError: The rank is not in ``[0, world_size)``, or the type is missing.
            StoreError: A server that is needed cannot be reached, or refused to answer.
        """
        node_type = self._node_type(node_type, split)
        header = {"node_type": node_type, "split": split}
        answers = self._ask("get_node_ids", header, rank, world_size, {"keys": self._num_nodes(node_type)})
        return {number: columns["keys"] for number, columns in answers.items()}

    def seeds(self, rank: int, world_size: int, split: str | None = None, node_type: str | None = None) -> IntArray:
        """int64[n], the keys of ``fetch_node_ids`` joined: ``NeighborLoader(graph, …, seeds=(node_type, keys))``.

        A loader whose seeds are those of one rank is given no ``rank`` and ``world_size``: they are shared out already.

        Raises:
            UnknownNameError: The graph has no such node type or split.
            SettingsError: The rank is not in ``[0, world_size)``, or the type is missing.
            StoreError: A server that is needed cannot be reached, or refused to answer.
        """
        return join_rows(self.fetch_node_ids(rank, world_size, split, node_type))

    def fetch_ablp_input(  # noqa: PLR0913 - what the anchors of a rank are, all of it by name
        self,
        rank: int,
        world_size: int,
        supervision_edge_type: EdgeType | str,
        *,
        split: str | None = None,
        node_type: str | None = None,
        negative_edge_type: EdgeType | str | None = None,
        label_direction: Direction = "out",
        max_labels: int = -1,
        rng_seed: int = 0,
    ) -> dict[int, ABLPInput]:
        """The anchors that are one rank's input, with their label nodes.

        Args:
            rank: This process among those that share the anchors.
            world_size: How many these are.
            supervision_edge_type: The edge type whose edges join anchors to their positive labels.
            split: Name of a split of the anchors' type; None for all nodes.
            node_type: The anchors' type, which the edge type decides; one that is given must be that.
            negative_edge_type: The edge type of user-given negatives, between the same node types.
            label_direction: ``out``: anchors are the sources of label edges; ``in``: their destinations.
            max_labels: Most labels of one anchor and edge type, drawn uniformly; -1 for all.
            rng_seed: 0 to 2**64 - 1; equal seeds draw equal labels, whatever the number of servers or ranks.

        Returns:
            Number of a server in the cluster to its anchors. One without labels has rows of no label.

        Raises:
            UnknownNameError: The graph has no such node type, split or edge type.
            SettingsError: Types do not belong together, the dataset does not hold the direction, or a number is out of
                its range.
            StoreError: A server that is needed cannot be reached, or refused to answer.
        """
        labels = read_labels(self._store(), supervision_edge_type, negative_edge_type, label_direction, max_labels)
        positive = labels.positive[0]
        negative = labels.negative.get(positive)
        anchor_type, num_labels = labels.anchor_type(positive), self._num_nodes(labels.label_type(positive))
        if node_type not in (None, anchor_type):
            raise SettingsError(
                f"node_type is {node_type!r}; anchors of {type_label(positive)} with label_direction "
                f"{label_direction!r} are of type {anchor_type!r}"
            )
        self._node_type(anchor_type, split)
        header = {
            "node_type": anchor_type, "split": split, "supervision_edge_type": list(positive),
            "negative_edge_type": None if negative is None else list(negative), "label_direction": label_direction,
            "max_labels": labels.max_labels, "rng_seed": read_integer("rng_seed", rng_seed, 0, MAX_RNG_SEED),
        }  # fmt: skip
        limits = {"anchors": self._num_nodes(anchor_type), "positive_counts": 1 << 62, "positives": num_labels}
        if negative is not None:
            limits |= {"negative_counts": 1 << 62, "negatives": num_labels}
        answers = self._ask("get_ablp_input", header, rank, world_size, limits)
        return {number: _ablp_input(columns) for number, columns in answers.items()}

    def fetch_schema(self) -> GraphSchema:
        """Node types, edge types, their features and splits."""
        return self._store().schema

    def fetch_node_types(self) -> tuple[str, ...]:
        """All node types."""
        return tuple(self._store().schema.nodes)

    def fetch_edge_types(self) -> tuple[EdgeType, ...]:
        """All edge types."""
        return tuple(self._store().schema.edges)

    def fetch_node_feature_info(self) -> dict[str, dict[str, FeatureInfo]]:
        """Node type to what its features look like, by name."""
        return {node_type: _infos(features) for node_type, features in self._store().schema.nodes.items()}

    def fetch_edge_feature_info(self) -> dict[EdgeType, dict[str, FeatureInfo]]:
        """Edge type to what its features look like, by name."""
        return {edge_type: _infos(features) for edge_type, features in self._store().schema.edges.items()}

    def fetch_node_partition_book(self) -> dict[str, IntArray]:
        """Node type to int64[num_parts + 1]: part ``p`` owns the node ids ``[offsets[p], offsets[p + 1])``.

        Ids number the nodes part by part; the part of a node given by key is ``get_node_partition_id``'s answer.
        """
        return {node_type: offsets.copy() for node_type, offsets in self._store().book.node_offsets.items()}

    def fetch_edge_partition_book(self) -> dict[tuple[EdgeType, Direction], IntArray]:
        """(Edge type, direction) to int64[num_parts + 1], the same for edge ids."""
        return {owner: offsets.copy() for owner, offsets in self._store().book.edge_offsets.items()}

    def get_node_partition_id(self, node_type: str, keys: Any) -> IntArray:
        """int64[n], the part that owns each node of one type, given by key.

        Raises:
            UnknownNameError: The graph has no such node type.
            IdRangeError: A key outside 0..n-1 of the type.
            StoreError: A server that is needed cannot be reached, or refused to answer.
        """
        store = self._store()
        return store.book.parts_of(node_type, _lookup(store, node_type, keys))

    def fetch_edge_dir(self) -> tuple[Direction, ...]:
        """The directions in which edges can be followed: ``in``, ``out`` or both."""
        return self._store().directions

    def fetch_weight_attr(self) -> str | None:
        """The edge feature by which edges can be drawn; None where the dataset was written without weights."""
        return self._store().weight_attr

    def fetch_edge_weights_registered(self) -> bool:
        """Whether the dataset was written with weights, so that edges can be drawn by them."""
        return self._store().weight_attr is not None

    def fetch_node_labels(self, node_type: str, name: str, keys: Any) -> Column:
        """A feature of some nodes, such as their classes.

        Args:
            node_type: The type.
            name: The feature.
            keys: int64[n], any order, repetitions allowed.

        Returns:
            The feature's rows in the order of ``keys``.

        Raises:
            UnknownNameError: The graph has no such node type or feature.
            IdRangeError: A key outside 0..n-1 of the type.
            StoreError: A server that is needed cannot be reached, or refused to answer.
        """
        store = self._store()
        store.schema.feature(node_type, name)
        ids = _lookup(store, node_type, keys)
        return store.fetch([FetchRequest(owner=node_type, names=(name,), ids=ids)])[0][name]

    def fetch_degrees(
        self,
        node_type: str,
        keys: Any,
        *,
        edge_type: EdgeType | str | None = None,
        direction: Direction | None = None,
    ) -> IntArray:
        """Edges of some nodes.

        Args:
            node_type: The type.
            keys: int64[n], any order, repetitions allowed.
            edge_type: The edges to count; None adds up those of all edge types that the nodes have in this direction.
            direction: ``in``: edges that end at the node; ``out``: edges that start there. None means ``in`` where the
                dataset holds it, as loaders do.

        Returns:
            int64[n], in the order of ``keys``.

        Raises:
            UnknownNameError: The graph has no such node type or edge type, or the dataset does not hold the direction.
            SettingsError: The edge type has no edges at nodes of this type in this direction.
            IdRangeError: A key outside 0..n-1 of the type.
            StoreError: A server that is needed cannot be reached, or refused to answer.
        """
        store = self._store()
        store.schema.check_node_type(node_type)
        if direction is None:
            direction = "in" if "in" in store.directions else "out"
        check_choice("direction", direction, ("in", "out"))
        if edge_type is None:
            counted = [t for t in store.schema.edges if ends_of(t, direction)[0] == node_type]
        else:
            counted = [store.schema.edge_type_of(edge_type)]
        for each in counted:
            check_owner(store, (each, direction))
            if (near := ends_of(each, direction)[0]) != node_type:
                raise SettingsError(
                    f"edges of {type_label(each)} in direction {direction!r} are those of {near!r}, not of "
                    f"{node_type!r}; choose the other direction or node type"
                )
        ids = _lookup(store, node_type, keys)
        total = np.zeros(len(ids), np.int64)
        for each in counted:
            total += store.degrees(each, direction, ids)
        return total

    def _store(self) -> Store:
        """The store over all parts, opened when it is first asked for."""
        with self._opening:
            if self._is_closed:
                raise StateError("the graph was closed; make another RemoteGraph to ask it")
            if self._opened is None:
                self._opened = open_cluster(self._cluster, self._settings)
            return self._opened

    def _num_nodes(self, node_type: str) -> int:
        return self._store().book.num_ids(node_type)

    def _node_type(self, node_type: str | None, split: str | None) -> str:
        """A node type of the graph, the only one where none is named, that has a split."""
        store = self._store()
        found: str = only_of("node_type", node_type, list(store.schema.nodes))
        store.schema.check_node_type(found)
        if split is not None:
            check_split(store, found, split)
        return found

    def _ask(
        self, op: str, header: dict[str, Any], rank: int, world_size: int, limits: Mapping[str, int]
    ) -> dict[int, dict[str, IntArray]]:
        """Ask for a rank's slices: number of a server to its columns."""
        rank, world_size = read_rank(rank, world_size)
        if rank >= world_size:
            raise SettingsError(f"rank is {rank}; with world_size {world_size} it must be from 0 to {world_size - 1}")
        question = {"op": op, "dataset": self._store().dataset_id, "runs": True, **header}
        return self._owners.ask(question, (rank, world_size), limits)


def _ablp_input(columns: Mapping[str, IntArray]) -> ABLPInput:
    anchors = columns["anchors"]
    return ABLPInput(
        anchors=anchors,
        positives=_ragged(anchors, columns["positive_counts"], columns["positives"]),
        negatives=(
            _ragged(anchors, columns["negative_counts"], columns["negatives"]) if "negatives" in columns else None
        ),
    )


def _ragged(anchors: IntArray, counts: IntArray, values: IntArray) -> RaggedArray:
    offsets = offsets_of(counts)
    if len(counts) != len(anchors) or counts.max(initial=0) > len(values) or int(offsets[-1]) != len(values):
        raise FormatError(f"an answer has {len(counts)} counts of {len(values)} labels for {len(anchors)} anchors")
    return RaggedArray(values, offsets)


def _infos(features: Mapping[str, FeatureSchema]) -> dict[str, FeatureInfo]:
    return {
        name: FeatureInfo(
            dim=int(np.prod(one.shape, dtype=np.int64)), dtype=one.dtype, is_ragged=not one.is_fixed_width
        )
        for name, one in features.items()
    }


def _lookup(store: Store, node_type: str, keys: Any) -> IntArray:
    """Ids of nodes given by key in any array of integers."""
    store.schema.check_node_type(node_type)
    array = to_array(keys)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise SettingsError(f"keys are {array.dtype}{list(array.shape)}; give int64[n]")
    return store.lookup(node_type, np.ascontiguousarray(array, np.int64))
