"""Loader of clusters: a batch is the subgraph between all nodes of some clusters.

The clusters are the parts of the dataset, or the user's. Each cluster comes once per epoch.

Source: Chiang et al., "Cluster-GCN: An Efficient Algorithm for Training Deep and Large Graph Convolutional Networks",
KDD 2019.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from hopstream.arrays import IntArray, offsets_of, to_array
from hopstream.errors import SettingsError
from hopstream.load.batch import BatchMaker, SeedBatch
from hopstream.load.epochs import Facts
from hopstream.load.load_settings import GraphSource, LoadSettings
from hopstream.load.loader_arguments import PYG_OPTIONS, takes
from hopstream.load.order import SeedOrder
from hopstream.load.setup import SubgraphLoader
from hopstream.sample.plan import SeedNodes
from hopstream.sample.sampling import Sampling
from hopstream.sample.sampling_settings import SamplingSettings
from hopstream.schema import Direction
from hopstream.store.contract import Store

ClustersLike = ArrayLike | Mapping[str, ArrayLike] | None
"""The cluster of each node; by node type if the graph has several; None for the parts of the dataset."""
_WHOLE = "a batch has all edges between the nodes of its clusters; leave it out"
OTHER_OPTIONS: Mapping[str, str] = {
    **PYG_OPTIONS,
    **{name: _WHOLE for name in SamplingSettings.field_names() if name != "direction"},
    "num_neighbors": _WHOLE,
    "seeds": "clusters=, the cluster of each node, chooses the nodes of a batch",
    "input_nodes": "clusters=, the cluster of each node, chooses the nodes of a batch",
    "cluster_data": "give the graph as source= and the cluster of each node as clusters=",
}
"""Refused options of other loaders to remedies."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Clusters:
    """Nodes of each cluster. No cluster is empty.

    Attributes:
        nodes: Node type to int64[n], keys grouped by cluster and ascending inside each; None for parts of a dataset,
            whose ids are grouped as they are.
        offsets: Node type to int64[num_clusters + 1], the range of ``nodes``, or of ids, of each cluster.
        fingerprint: Digest in hex digits, for saved states.
    """

    nodes: Mapping[str, IntArray] | None
    offsets: Mapping[str, IntArray]
    fingerprint: str

    @property
    def num_clusters(self) -> int:
        """Number of clusters."""
        return len(next(iter(self.offsets.values()))) - 1

    def nodes_of(self, clusters: IntArray) -> dict[str, IntArray]:
        """Return node type to int64[n], the keys, or ids of parts, of all nodes of some clusters."""
        found = {}
        for node_type, offsets in self.offsets.items():
            ranges = [np.arange(offsets[c], offsets[c + 1]) for c in clusters.tolist()]
            places = np.concatenate(ranges) if ranges else np.empty(0, np.int64)
            found[node_type] = places if self.nodes is None else self.nodes[node_type][places]
        return found


def read_clusters(store: Store, clusters: ClustersLike) -> Clusters:
    """Check the user's clusters, and group the nodes by cluster.

    Args:
        store: The graph's store.
        clusters: See ``ClustersLike``. Node types that a mapping leaves out have no nodes in batches.

    Raises:
        SettingsError: A cluster is missing for a node, or is no integer; or the node type is missing in a graph with
            several.
        UnknownNameError: The graph has no such node type.
    """
    if clusters is None:
        offsets = store.book.node_offsets
        is_filled = sum(np.diff(of) for of in offsets.values()) > 0
        kept = np.append(np.flatnonzero(is_filled), store.book.num_parts)
        # Ranges of ids that an empty part starts also start the next part, so leaving it out changes no other range.
        return Clusters(
            nodes=None, offsets={t: of[kept] for t, of in offsets.items()}, fingerprint=f"parts of {store.dataset_id}"
        )
    if not isinstance(clusters, Mapping):
        if len(store.schema.nodes) != 1:
            known = ", ".join(store.schema.nodes)
            raise SettingsError(
                f"the graph has several node types; give clusters={{type: integers}} with some of {known}"
            )
        clusters = dict.fromkeys(store.schema.nodes, clusters)
    digest = hashlib.blake2b(digest_size=16)
    given = {node_type: _read(store, node_type, clusters[node_type]) for node_type in clusters}
    if not sum(map(len, given.values())):
        raise SettingsError(
            f"clusters are given of no node ({', '.join(given) or 'no type'}); a loader needs one at least"
        )
    numbers = np.unique(np.concatenate([*given.values()]))
    nodes, offsets = {}, {}
    for node_type in sorted(given, key=list(store.schema.nodes).index):
        own = np.searchsorted(numbers, given[node_type])
        nodes[node_type] = np.argsort(own, kind="stable")
        offsets[node_type] = offsets_of(np.bincount(own, minlength=len(numbers)))
        digest.update(f"{node_type}\x1f{len(own)}".encode() + own.tobytes())
    return Clusters(nodes=nodes, offsets=offsets, fingerprint=digest.hexdigest())


def _read(store: Store, node_type: str, values: ArrayLike) -> IntArray:
    """Return int64[num_nodes], the checked cluster of each node of a type."""
    store.schema.check_node_type(node_type)
    array, num_nodes = to_array(values), store.book.num_ids(node_type)
    if array.dtype.kind not in "iu" or array.shape != (num_nodes,):
        raise SettingsError(
            f"clusters of {node_type!r} are {array.dtype}{list(array.shape)}; give the integer of a cluster per node: "
            f"[{num_nodes}]"
        )
    return array.astype(np.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class ClusterArguments(LoadSettings, GraphSource):
    """Arguments of ``ClusterLoader``.

    Attributes:
        clusters: integer[num_nodes], the cluster of each node, by any numbers; in a graph of several node types a
            mapping of type to these, and types that it leaves out have no nodes in batches. None takes the parts of
            the dataset. ``assign_nodes(…).owners`` of ``hopstream.dataset`` makes clusters.
        batch_size: Clusters per batch and rank.
        direction: The direction in which stored edges are read; edges are grouped by destination with ``in``, by source
            with ``out``.
    """

    clusters: ClustersLike = field(default=None, kw_only=False)
    batch_size: int = 1
    direction: Direction = "in"


class ClusterMaker(BatchMaker[tuple[Clusters, SeedOrder]]):
    """Maker of batches of whole clusters."""

    def _start(self, epoch: int, step: int) -> SeedBatch:
        clusters, order = self._inputs
        span = order.span(step)
        found = clusters.nodes_of(order.positions(epoch, span))
        self.stage = "looking up nodes"
        is_keyed, seed_type = clusters.nodes is not None, next(iter(found))
        ids = {t: self._reader.ids_of(t, keys) for t, keys in found.items()} if is_keyed else found
        keys = found[seed_type] if is_keyed else self._reader.keys_of(seed_type, ids[seed_type])
        return SeedBatch(
            index=span.index, seeds=SeedNodes(ids=ids, rng_seed=order.batch_seed(epoch, span)), seed_type=seed_type,
            input_ids=keys, seed_keys=keys,
        )  # fmt: skip


class ClusterLoader(SubgraphLoader):
    """Mini-batches of whole clusters, with all edges between their nodes, as PyG's data objects.

    A batch has the nodes of ``batch_size`` clusters, one cluster after the other. Of the first node type that has
    clusters, ``batch_size`` is the number of nodes, and ``input_id`` their keys.
    """

    @takes(ClusterArguments, OTHER_OPTIONS)
    def __init__(self, arguments: ClusterArguments) -> None:
        """Open the source and check every setting against it.

        Raises:
            SettingsError: A setting cannot be met.
            UnknownNameError: The graph has no such node type or feature.
        """
        setup = self._open(arguments.source, arguments.direction, arguments)
        self._clusters = read_clusters(setup.store, arguments.clusters)
        settings = SamplingSettings(direction=arguments.direction, subgraph_type="induced")
        sampling = Sampling.of(setup.store, settings)
        plan = sampling.plan({"default": [0]}, tuple(self._clusters.offsets), setup.wants_edge_ids)
        self._order = setup.order(self._clusters.num_clusters)
        self._begin(self._order, partial(setup.maker, ClusterMaker, plan, (self._clusters, self._order)))

    def facts(self) -> Facts:
        """Return settings and inputs that determine the batches; a saved state with other facts is refused."""
        return {**self._setup.facts(), "clusters": self._clusters.fingerprint}

    def __repr__(self) -> str:
        """Return a description of the loader in one line."""
        return (
            f"ClusterLoader({self._clusters.num_clusters} clusters, batch_size={self.batch_size}, {len(self)} batches "
            f"on {self._order.settings.rank_text})"
        )
