"""Names of ``dgl.dataloading``: samplers' settings, and loaders that give blocks of a ``DistGraph``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from hopstream.arrays import IntArray
from hopstream.checks import read_integer
from hopstream.compat.dgl.blocks import to_blocks
from hopstream.compat.dgl.dist_graph import DistGraph
from hopstream.compat.dgl.graphs import EID, NID, DGLGraph
from hopstream.compat.dgl.tensors import find_dgl, to_array, to_ids, to_tensor
from hopstream.errors import SettingsError
from hopstream.load.batch import MiniBatch
from hopstream.load.epochs import EpochLoader
from hopstream.load.links import LinkNeighborLoader
from hopstream.load.loader import NeighborLoader
from hopstream.sample.negatives import NegativeSampling
from hopstream.schema import EdgeType

__all__ = [
    "DistEdgeDataLoader",
    "DistNodeDataLoader",
    "MultiLayerNeighborSampler",
    "NeighborSampler",
    "Uniform",
]


@dataclass(frozen=True, slots=True)
class NeighborSampler:
    """Settings of sampling, as DGL orders them: from the input layer of a model to its output layer.

    A node keeps its drawn neighbours in all layers; DGL draws them again for each.

    Attributes:
        fanouts: Neighbours per node in each layer, -1 for all; or a dict by edge type or relation for each layer.
        edge_dir: ``in``.
        prob: Name of the edge feature with the weights to draw by, the dataset's ``weight_attr``; or None.
        mask: None.
        replace: Draw with replacement.
        prefetch_node_feats: Features of nodes that blocks get; a dict by node type, or a list for all types.
        prefetch_labels: Further features of nodes, likewise.
        prefetch_edge_feats: Features of edges, likewise.
    """

    fanouts: Sequence[int | Mapping[EdgeType | str, int]]
    edge_dir: str = "in"
    prob: str | None = None
    mask: None = None
    replace: bool = False
    prefetch_node_feats: Any = None
    prefetch_labels: Any = None
    prefetch_edge_feats: Any = None

    def __post_init__(self) -> None:
        """Check the direction.

        Raises:
            SettingsError: Edges are followed from sources, or a mask is given.
        """
        if self.edge_dir != "in" or self.mask is not None:
            raise SettingsError(
                f"edge_dir is {self.edge_dir!r} and mask {self.mask!r}; only 'in' and None are possible"
            )

    def options(self, g: DistGraph) -> dict[str, Any]:
        """Return the arguments of ``NeighborLoader`` that mean the same."""
        names: dict[str, list[str]] = {}
        for given in (self.prefetch_node_feats, self.prefetch_labels):
            for t, features in _by_type(given, g.ntypes).items():
                found = names.setdefault(g.node_type(t), [])
                known = g.store.schema.nodes[g.node_type(t)]
                found += [f for f in features if f not in found and (isinstance(given, Mapping) or f in known)]
        edge_names = {g.edge_type(t): f for t, f in _by_type(self.prefetch_edge_feats, g.canonical_etypes).items()}
        if not isinstance(self.prefetch_edge_feats, Mapping):
            schema = g.store.schema.edges
            edge_names = {t: [f for f in features if f in schema[t]] for t, features in edge_names.items()}
        sampling = {} if self.prob is None else {"weight_attr": self.prob}
        return {"node_features": names, "edge_features": edge_names, "replace": self.replace, **sampling}

    def num_neighbors(self, g: DistGraph) -> Any:
        """Return the fan-outs from the seeds on."""
        fanouts = list(self.fanouts)[::-1]
        if not any(isinstance(of, Mapping) for of in fanouts):
            return [read_integer("fanouts", of, -1) for of in fanouts]
        layers = [of if isinstance(of, Mapping) else dict.fromkeys(g.canonical_etypes, of) for of in fanouts]
        by_type = [{g.edge_type(t): number for t, number in of.items()} for of in layers]
        return {g.edge_type(t): [of.get(g.edge_type(t), 0) for of in by_type] for t in g.canonical_etypes}


MultiLayerNeighborSampler = NeighborSampler


def _by_type(given: Any, types: Sequence[Any]) -> dict[Any, list[str]]:
    """Return names of features by type."""
    if isinstance(given, Mapping):
        return {t: list(names) for t, names in given.items()}
    return {t: list(given or ()) for t in types}


@dataclass(frozen=True, slots=True)
class Uniform:
    """Negative sampler: ``k`` links from the source of each positive to random nodes.

    Attributes:
        k: Number of negatives of each positive.
    """

    k: int


@dataclass(frozen=True, slots=True)
class _Naming:
    """Converter of batches of a ``DistGraph`` to what DGL's loaders give."""

    g: DistGraph

    def _keys(self, found: Mapping[str, IntArray]) -> Any:
        """Return keys as tensors by type, or as one tensor for a graph with one node type."""
        named = {self.g._node_names[t]: to_tensor(keys) for t, keys in found.items()}
        return named if len(named) > 1 else next(iter(named.values()))

    def _seeds(self, batch: MiniBatch) -> dict[str, IntArray]:
        return {t: keys[: batch.num_sampled_nodes[t][0]] for t, keys in batch.node_keys.items()}

    def nodes(self, batch: MiniBatch) -> tuple[Any, Any, list[Any]]:
        """Return input nodes, output nodes and blocks."""
        return self._keys(batch.node_keys), self._keys(self._seeds(batch)), to_blocks(batch, self.g.store.schema)

    def links(self, batch: MiniBatch, eids: IntArray, has_negatives: bool) -> tuple[Any, ...]:
        """Return input nodes, the graph of the batch's links, that of negatives if there are any, and blocks."""
        edge_type = cast(EdgeType, batch.seed_type)
        inputs, _, blocks = self.nodes(batch)
        if not has_negatives:
            src, dst = batch.attributes[edge_type]["edge_label_index"]
            return inputs, self._graph(batch, edge_type, src, dst, eids), blocks
        src = batch.attributes[edge_type[0]]["src_index"]
        dst, wrong = (batch.attributes[edge_type[2]][name] for name in ("dst_pos_index", "dst_neg_index"))
        negatives = self._graph(batch, edge_type, src.repeat(wrong.size // max(1, len(src))), wrong.reshape(-1), None)
        return inputs, self._graph(batch, edge_type, src, dst, eids), negatives, blocks

    def _graph(self, batch: MiniBatch, edge_type: EdgeType, src: IntArray, dst: IntArray, eids: IntArray | None) -> Any:
        seeds, empty = self._seeds(batch), src[:0]
        ends = {name: (src, dst) if t == edge_type else (empty, empty) for t, name in self.g._edge_names.items()}
        num_nodes = {self.g._node_names[t]: len(keys) for t, keys in seeds.items()}
        dgl = find_dgl()
        if dgl is None:
            made: Any = DGLGraph(num_nodes, ends)
        else:
            made = dgl.heterograph({t: tuple(map(to_tensor, pair)) for t, pair in ends.items()}, num_nodes)
        for t, keys in seeds.items():
            made.nodes[self.g._node_names[t]].data[NID] = to_tensor(keys)
        if eids is not None:
            made.edges[self.g._edge_names[edge_type]].data[EID] = to_tensor(eids[batch.input_ids])
        return made


class _DistDataLoader:
    """Iterable of one epoch after the other; ``loader`` is the loader of Hopstream behind it."""

    loader: EpochLoader

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of the next epoch."""
        return iter(self.loader)

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        return len(self.loader)

    def close(self) -> None:
        """End the loader's threads."""
        self.loader.close()


@dataclass(frozen=True, slots=True)
class _Options:
    """Arguments of DGL's loaders that mean arguments of Hopstream's."""

    device: Any = None
    num_workers: int = 0
    queue_size: int | None = None
    others: dict[str, Any] = field(default_factory=dict)

    def of_loader(self) -> dict[str, Any]:
        """Return the arguments of a loader of Hopstream.

        Raises:
            SettingsError: ``device`` is not the CPU.
        """
        if self.device is not None and str(self.device) != "cpu":
            raise SettingsError(f"device is {self.device}; batches are made in main memory: call block.to(device)")
        queue = {} if self.queue_size is None else {"prefetch": self.queue_size}
        workers = max(1, read_integer("num_workers", self.num_workers, 0))
        return {"num_threads": workers, "collate": "numpy", **queue, **self.others}


class DistNodeDataLoader(_DistDataLoader):
    """Batches of nodes: input nodes, output nodes, and blocks from the input layer to the output layer."""

    def __init__(
        self, g: DistGraph, nids: Any, graph_sampler: NeighborSampler, device: Any = None,
        *, num_workers: int = 0, queue_size: int | None = None, **options: Any,
    ) -> None:  # fmt: skip
        """Check every setting against the graph.

        Args:
            g: The graph.
            nids: int64[n], keys of the nodes of this trainer; a dict of one node type to keys in a graph of several.
            graph_sampler: Fan-outs, and the features that blocks get.
            device: None or ``cpu``.
            num_workers: Threads that make batches; 0 means one.
            queue_size: Finished batches that may wait; see ``prefetch`` of ``NeighborLoader``.
            **options: ``batch_size``, ``shuffle``, ``drop_last``, and further arguments of ``NeighborLoader``.

        Raises:
            SettingsError: A setting cannot be met.
            IdRangeError: There is no such node.
        """
        node_type, keys = _one_type("nids", nids, g.node_type)
        given = _Options(device, num_workers, queue_size, options).of_loader()
        self.loader = NeighborLoader(
            g.store, graph_sampler.num_neighbors(g), (node_type, keys), transform=_Naming(g).nodes,
            **graph_sampler.options(g), **given,
        )  # fmt: skip


class DistEdgeDataLoader(_DistDataLoader):
    """Batches of edges: input nodes, graphs of the edges and of the negatives, and blocks.

    The dataset must keep the ends of these edges by key: ``write_parts(…, links=[edge type])``, or a split of them.
    """

    def __init__(  # noqa: PLR0913  DGL's
        self, g: DistGraph, eids: Any, graph_sampler: NeighborSampler, device: Any = None,
        *, exclude: str | None = None, reverse_eids: Any = None, reverse_etypes: Mapping[Any, Any] | None = None,
        negative_sampler: Uniform | None = None, num_workers: int = 0, queue_size: int | None = None, **options: Any,
    ) -> None:  # fmt: skip
        """Check every setting against the graph.

        Args:
            g: The graph.
            eids: int64[n], keys of the edges of this trainer; a dict of one edge type to keys in a graph of several.
            graph_sampler: Fan-outs, and the features that blocks get.
            device: None or ``cpu``.
            exclude: Edges that sampling does not follow: None, ``self`` (the batch's edges), ``reverse_id`` (also edges
                of their type that lead back), or ``reverse_types`` (also edges of ``reverse_etypes`` that lead back).
            reverse_eids: No effect: edges that lead back are found by their ends.
            reverse_etypes: Edge type to the edge type that leads back.
            negative_sampler: ``Uniform``, or None.
            num_workers: Threads that make batches; 0 means one.
            queue_size: Finished batches that may wait; see ``prefetch`` of ``LinkNeighborLoader``.
            **options: ``batch_size``, ``shuffle``, ``drop_last``, and further arguments of ``LinkNeighborLoader``.

        Raises:
            SettingsError: A setting cannot be met.
            UnknownNameError: The dataset does not keep the ends of these edges by key.
            IdRangeError: There is no such edge.
        """
        del reverse_eids
        edge_type, keys = _one_type("eids", eids, g.edge_type)
        ends = g.store.links(edge_type, keys)
        negatives = None if negative_sampler is None else NegativeSampling("triplet", negative_sampler.k)
        convert: Callable[[MiniBatch], Any] = partial(
            _Naming(g).links, eids=keys, has_negatives=negatives is not None
        )  # fmt: skip
        given = _Options(device, num_workers, queue_size, options).of_loader()
        self.loader = LinkNeighborLoader(
            g.store, graph_sampler.num_neighbors(g), (edge_type, ends), transform=convert, neg_sampling=negatives,
            exclude_links=_excluded(g, edge_type, exclude, reverse_etypes), **graph_sampler.options(g), **given,
        )  # fmt: skip


def _one_type(what: str, given: Any, type_of: Callable[[Any], Any]) -> tuple[Any, IntArray]:
    """Return the only type of seeds, and their keys."""
    if not isinstance(given, Mapping):
        return type_of(None), to_ids(given, what)
    present = {t: keys for t, keys in given.items() if len(to_array(keys, what))}
    if len(present) != 1:
        raise SettingsError(
            f"{what} name {len(present)} types; give those of one type, and make a loader for each type"
        )
    ((name, keys),) = present.items()
    return type_of(name), to_ids(keys, what)


def _excluded(g: DistGraph, edge_type: EdgeType, exclude: str | None, reverse_etypes: Mapping[Any, Any] | None) -> Any:
    if exclude in (None, "self"):
        return exclude or False
    if exclude == "reverse_id":
        return [edge_type]
    back = {g.edge_type(t): g.edge_type(other) for t, other in (reverse_etypes or {}).items()}
    if exclude != "reverse_types" or edge_type not in back:
        raise SettingsError(
            f"exclude is {exclude!r} and reverse_etypes {reverse_etypes!r}; wanted None, 'self', 'reverse_id', or "
            f"'reverse_types' with the edge type that leads back from {edge_type}"
        )
    return [back[edge_type]]
