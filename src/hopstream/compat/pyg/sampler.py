"""Sampler for PyG's loaders that samples a dataset, and subgraphs in the form of PyG's samplers.

``DatasetSampler`` replaces PyG's ``NeighborSampler``. PyG's loaders pass it the seeds of a batch, and get a subgraph
from the same code as Hopstream's own loaders.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
import torch
from torch.utils.data import get_worker_info
from torch_geometric.sampler import (
    BaseSampler,
    EdgeSamplerInput,
    HeteroSamplerOutput,
    NodeSamplerInput,
    SamplerOutput,
)
from torch_geometric.sampler import NegativeSampling as PygNegativeSampling
from torch_geometric.sampler import NumNeighbors as PygNumNeighbors

from hopstream.checks import read_integer
from hopstream.compat.pyg.stores import SourceLike, process_store
from hopstream.errors import SettingsError
from hopstream.load.batch import BatchMaker, MiniBatch, SeedBatch, SubgraphReader
from hopstream.load.link_inputs import read_link_inputs, read_seed_times
from hopstream.load.links import ExcludeLinks, LinkMaker, LinkTask, check_link_times, check_num_trees, read_excluded
from hopstream.load.load_settings import MAX_RNG_SEED, LoadSettings, OrderSettings
from hopstream.load.loader import NodeInputs, NodeMaker
from hopstream.load.loader_arguments import takes
from hopstream.load.order import OneBatch
from hopstream.load.pyg import to_tensor
from hopstream.load.setup import LoaderSetup, open_setup
from hopstream.sample.hops import PlanRunner
from hopstream.sample.negative_pairs import NegativeSampler
from hopstream.sample.negatives import NegativeSampling, read_negative_sampling
from hopstream.sample.plan import SeedNodes, counts_per_edge_type
from hopstream.sample.sampling import Sampling
from hopstream.sample.sampling_settings import SamplingSettings
from hopstream.sample.seeds import read_seeds
from hopstream.schema import EDGE, NODE, EdgeType, GraphSchema, type_label
from hopstream.store.contract import MAX_TREES

if TYPE_CHECKING:
    from hopstream.store.settings import StoreSettings


Output: TypeAlias = SamplerOutput | HeteroSamplerOutput


def sampler_output(batch: MiniBatch, is_homogeneous: bool) -> Output:
    """Convert a sampled subgraph to the output of PyG's samplers.

    Tensors share the memory of the batch's arrays.

    Args:
        batch: The subgraph, from a loader with ``collate="numpy"``. Its features are ignored.
        is_homogeneous: Return a ``SamplerOutput`` of the only node and edge type.

    Returns:
        ``node`` has keys, seeds first. ``row`` and ``col`` are positions in ``node``. ``edge`` has edge keys, or None
        if the batch has none. ``batch`` has the tree of each node in disjoint subgraphs. ``metadata`` has the fields of
        PyG's loaders: ``(input_id, seed_time)`` of nodes, ``(input_id, edge_label_index, edge_label, edge_label_time)``
        of links, and ``(input_id, src_index, dst_pos_index, dst_neg_index, seed_time)`` of triplets, with None for
        missing fields.
    """
    node = {t: to_tensor(keys, False) for t, keys in batch.node_keys.items()}
    row = {t: to_tensor(edge_index[0], False) for t, edge_index in batch.edge_index.items()}
    col = {t: to_tensor(edge_index[1], False) for t, edge_index in batch.edge_index.items()}
    edge = {t: to_tensor(batch.edge_keys[t], False) if t in batch.edge_keys else None for t in batch.edge_index}
    trees = None if batch.trees is None else {t: to_tensor(of, False) for t, of in batch.trees.items()}
    num_nodes, num_edges = dict(batch.num_sampled_nodes), batch.num_sampled_edges
    if not is_homogeneous:
        return HeteroSamplerOutput(
            node=node, row=row, col=col, edge=edge, batch=trees, num_sampled_nodes=num_nodes,
            num_sampled_edges=None if num_edges is None else dict(num_edges), metadata=_metadata(batch),
        )  # fmt: skip
    none = torch.empty(0, dtype=torch.int64)
    return SamplerOutput(
        node=node[NODE], row=row.get(EDGE, none), col=col.get(EDGE, none), edge=edge.get(EDGE),
        batch=None if trees is None else trees[NODE], num_sampled_nodes=num_nodes[NODE],
        num_sampled_edges=None if num_edges is None else num_edges.get(EDGE, []), metadata=_metadata(batch),
    )  # fmt: skip


def _metadata(batch: MiniBatch) -> tuple[Any, ...]:
    """Return the fields that PyG's loaders attach to a batch, in their order."""
    input_ids = to_tensor(batch.input_ids, False)
    if isinstance(batch.seed_type, str):
        return (input_ids, _attribute(batch, batch.seed_type, "seed_time"))
    src_type, _, dst_type = batch.seed_type
    if "dst_pos_index" not in batch.attributes.get(dst_type, {}):
        names = ("edge_label_index", "edge_label", "edge_label_time")
        return (input_ids, *(_attribute(batch, batch.seed_type, name) for name in names))
    of_destinations = (_attribute(batch, dst_type, name) for name in ("dst_pos_index", "dst_neg_index", "seed_time"))
    return (input_ids, _attribute(batch, src_type, "src_index"), *of_destinations)


def _attribute(batch: MiniBatch, entity: str | EdgeType, name: str) -> Any:
    value = batch.attributes.get(entity, {}).get(name)
    return None if value is None else to_tensor(value, False)


T = TypeVar("T", str, EdgeType)


@dataclass(slots=True, eq=False)
class _Desk:
    """State for sampling in one thread."""

    setup: LoaderSetup
    sampling: Sampling
    reader: SubgraphReader
    runners: dict[tuple[str, ...], PlanRunner]
    negatives: tuple[object, EdgeType, NegativeSampler] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDraws:
    """Numbers that fix the draws of one batch.

    A caller that passes batches to threads takes the numbers first, in the order of the batches.

    Attributes:
        epoch: The epoch.
        number: Number of the batch in the epoch.
        rng_seed: Seed of all draws.
    """

    epoch: int
    number: int
    rng_seed: int


@dataclass(frozen=True, kw_only=True, eq=False)
class SamplerArguments(SamplingSettings):
    """Arguments of ``DatasetSampler``.

    Attributes:
        source: A dataset folder, a ``cluster.json``, addresses, an open store, or the result of ``open_stores``. The
            sampler closes only what it has opened.
        num_neighbors: As of ``NeighborLoader``, or PyG's ``NumNeighbors``. May be set later, as PyG's Lightning modules
            do for evaluation.
        rng_seed: With None, draws depend on torch's generator (``torch.manual_seed``), in worker processes too. With a
            number, batch ``i`` after ``set_epoch(e)`` has the draws of batch ``i`` of epoch ``e`` of Hopstream's own
            loaders with that ``rng_seed``.
        exclude_links: As of ``LinkNeighborLoader``.
        store_settings: Deadline, token and certificates for requests to servers.
    """

    source: SourceLike = field(kw_only=False)
    num_neighbors: Any = field(kw_only=False)
    rng_seed: int | None = None
    exclude_links: ExcludeLinks = False
    store_settings: StoreSettings | None = None

    def __post_init__(self) -> None:
        """Check every field."""
        super().__post_init__()
        if self.rng_seed is not None:
            self._read_integer("rng_seed", 0, MAX_RNG_SEED)


class DatasetSampler(BaseSampler):  # type: ignore[misc]  # torch_geometric has no types
    """Sampler of a dataset, local or on servers, for PyG's loaders.

    The loaders are ``NodeLoader``, ``LinkLoader`` and ``NeighborLoader``, with PyG's ``Data`` or ``HeteroData`` of the
    same graph and the same node numbers, or with the stores from ``open_stores``. Threads may share a sampler. Each
    worker process opens the source again. If the source is servers, start workers with
    ``multiprocessing_context="spawn"``.
    """

    @takes(SamplerArguments)
    def __init__(self, arguments: SamplerArguments) -> None:
        """Open the source and check every setting against it.

        Raises:
            SettingsError: A setting is refused; the message names it and the remedy.
            UnknownNameError: The graph does not have the edge type or feature.
            TypeError: There is no such option.
            FormatError: ``source`` is no dataset and no cluster file.
            StoreError: A server cannot be reached, or refused to answer.
        """
        super().__init__()
        self._settings = SamplingSettings.within(arguments)
        self._rng_seed = arguments.rng_seed
        self._exclude_links = arguments.exclude_links
        self._epoch: int | None = None
        self._num_batches = 0
        self._source, self._is_own = process_store(arguments.source, arguments.store_settings)
        try:
            self._begin()
            self.num_neighbors = arguments.num_neighbors
            self._desk()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        """Make the state that processes and copies do not share."""
        self._lock = threading.Lock()
        self._local = threading.local()

    @property
    def num_neighbors(self) -> Any:
        """Neighbours per hop, for all edge types or per edge type."""
        return self._num_neighbors

    @num_neighbors.setter
    def num_neighbors(self, num_neighbors: Any) -> None:
        if isinstance(num_neighbors, PygNumNeighbors):
            default = {} if num_neighbors.default is None else {"default": num_neighbors.default}
            values = num_neighbors.values
            num_neighbors = {**values, **default} if isinstance(values, Mapping) else values
        counts_per_edge_type(self._source.store().schema, num_neighbors)
        self._num_neighbors = num_neighbors
        self._local = threading.local()

    @property
    def disjoint(self) -> bool:
        """Whether every seed has a separate tree; always so with ``time_attr``."""
        return self._desk().sampling.settings.is_disjoint

    @property
    def is_hetero(self) -> bool:
        """Whether the graph has types."""
        return not self._source.store().schema.is_homogeneous

    @property
    def is_temporal(self) -> bool:
        """Whether every tree has a time, after which edges are excluded."""
        return self._desk().sampling.settings.is_temporal

    @property
    def edge_permutation(self) -> None:
        """None: edges have their keys, the order in the graph."""
        return

    def set_epoch(self, epoch: int) -> None:
        """Start an epoch; with ``rng_seed``, the next batches have the draws of that epoch.

        Worker processes read the epoch when they start, so it has no effect with ``persistent_workers=True``.

        Raises:
            SettingsError: ``epoch`` is no integer of at least 0.
        """
        with self._lock:
            self._epoch = read_integer("epoch", epoch, 0)
            self._num_batches = 0

    def next_draws(self) -> BatchDraws:
        """Take the number of the next batch; without ``rng_seed``, also a seed from torch's generator.

        Raises:
            SettingsError: A worker process has ``rng_seed`` and no epoch was set.
        """
        if self._rng_seed is None:
            return BatchDraws(epoch=0, number=0, rng_seed=int(torch.randint(0, 1 << 62, ())))
        worker = get_worker_info()
        if worker is not None and self._epoch is None:
            raise SettingsError(
                "rng_seed with worker processes draws the same in every epoch, unless sampler.set_epoch(epoch) is "
                "called before each; call it, or leave rng_seed out and use torch.manual_seed"
            )
        with self._lock:
            epoch, number = self._epoch or 0, self._num_batches
            self._num_batches += 1
        # DataLoader assigns batches to its workers in turn.
        number = number if worker is None else number * worker.num_workers + worker.id
        return BatchDraws(epoch=epoch, number=number, rng_seed=self._rng_seed)

    def sample_from_nodes(self, index: NodeSamplerInput, *, draws: BatchDraws | None = None) -> Output:
        """Sample the neighbourhoods of some nodes.

        Args:
            index: PyG's record of a batch: keys of nodes, their type in a graph with types, and their times, or None
                for the times in the dataset.
            draws: The result of ``next_draws``; None takes the next.

        Returns:
            See ``sampler_output``; ``metadata`` is ``(input_id, seed_time)``.

        Raises:
            SettingsError: There are times and sampling is not temporal, or the other way round.
            UnknownNameError: The graph has no such node type.
            IdRangeError: A key is outside 0..n-1 of its node type.
            StoreError: A server failed, or did not answer in time.
        """
        desk = self._desk()
        store = desk.setup.store
        node_type = _only_type(store.schema.nodes, "node") if index.input_type is None else index.input_type
        seeds = read_seeds(store, (node_type, index.node), "input_nodes")
        if desk.sampling.settings.is_disjoint and seeds.num_seeds > MAX_TREES:
            raise SettingsError(f"a batch has {seeds.num_seeds} seeds; with a tree per seed {MAX_TREES} are possible")
        draws = draws or self.next_draws()
        order = _one_batch(seeds.num_seeds, draws)
        times = read_seed_times(store, desk.sampling, seeds, index.time)
        inputs = NodeInputs(seeds=seeds, order=order, sampling=desk.sampling, times=times)
        maker = NodeMaker(self._runner(desk, (node_type,)), desk.reader, inputs, desk.setup.convert)
        return _output(maker.make(draws.epoch, draws.number), store.schema, index.input_id)

    def sample_from_edges(
        self,
        index: EdgeSamplerInput,
        neg_sampling: PygNegativeSampling | NegativeSampling | None = None,
        *,
        draws: BatchDraws | None = None,
    ) -> Output:
        """Sample the neighbourhoods of the ends of some links, and of negatives.

        Args:
            index: PyG's record of a batch: keys of sources and destinations, the edge type in a graph with types,
                labels and times. With binary negatives, label 0 is theirs; PyG's ``LinkLoader`` shifts the labels of
                the links.
            neg_sampling: PyG's settings of negatives, or Hopstream's, or None.
            draws: The result of ``next_draws``; None takes the next.

        Returns:
            See ``sampler_output``.

        Raises:
            SettingsError: Triplets have labels, times are missing for temporal sampling, or settings of negatives are
                refused.
            UnknownNameError: The graph has no such edge type.
            IdRangeError: A key is outside 0..n-1 of its node type.
            StoreError: A server failed, or did not answer in time.
        """
        desk = self._desk()
        store, sampling = desk.setup.store, desk.sampling
        edge_type = _only_type(store.schema.edges, "edge") if index.input_type is None else tuple(index.input_type)
        links = read_link_inputs(store, (edge_type, (index.row, index.col)), index.label, index.time)
        if index.time is not None and not sampling.settings.is_temporal:
            raise SettingsError("edge_label_time needs time_attr= of the sampler, the feature that holds times")
        check_link_times(store, sampling, links)
        negatives = _negatives(desk, links.edge_type, neg_sampling)
        if negatives is not None and negatives.how.mode == "triplet" and index.label is not None:
            raise SettingsError("triplets have no labels; leave edge_label out, or use binary negative sampling")
        check_num_trees(sampling, links.num_links, None if negatives is None else negatives.how)
        draws = draws or self.next_draws()
        order = _one_batch(links.num_links, draws)
        task = LinkTask(
            store=store, inputs=links, order=order, sampling=sampling, negatives=negatives,
            excluded=read_excluded(links.edge_type, self._exclude_links, sampling),
        )  # fmt: skip
        seed_types = tuple(dict.fromkeys((links.edge_type[0], links.edge_type[2])))
        maker = LinkMaker(self._runner(desk, seed_types), desk.reader, task, desk.setup.convert)
        return _output(maker.make(draws.epoch, draws.number), store.schema, index.input_id)

    def sample_from_typed_nodes(
        self,
        nodes: Mapping[str, torch.Tensor],
        times: Mapping[str, torch.Tensor] | None = None,
        input_id: torch.Tensor | None = None,
        *,
        draws: BatchDraws | None = None,
    ) -> Output:
        """Sample the neighbourhoods of nodes of several types.

        Args:
            nodes: Node type to int64[n], keys; distinct, unless every seed has a separate tree. Numbers of trees go on
                from one type to the next.
            times: Node type to int64[n], times of the seeds; None for the times in the dataset.
            input_id: Passed through.
            draws: The result of ``next_draws``; None takes the next.

        Returns:
            See ``sampler_output``; ``metadata`` is ``(input_id, times)``.

        Raises:
            SettingsError: Seeds repeat, or there are times and sampling is not temporal.
            UnknownNameError: The graph has no such node type.
            IdRangeError: A key is outside 0..n-1 of its node type.
            StoreError: A server failed, or did not answer in time.
        """
        desk = self._desk()
        store, sampling = desk.setup.store, desk.sampling
        ids, trees, seed_times, num_seeds = {}, {}, [np.empty(0, np.int64)], 0
        for node_type, keys in nodes.items():
            seeds = read_seeds(store, (node_type, keys), "node_dict")
            positions = np.arange(seeds.num_seeds)
            ids[node_type] = desk.reader.ids_of(node_type, seeds.keys_at(positions))
            given = read_seed_times(store, sampling, seeds, None if times is None else times[node_type])
            if given is not None:
                seed_times.append(given.of(positions, ids[node_type]))
            trees[node_type] = positions + num_seeds
            num_seeds += seeds.num_seeds
        if sampling.settings.is_disjoint and num_seeds > MAX_TREES:
            raise SettingsError(f"a batch has {num_seeds} seeds; with a tree per seed {MAX_TREES} are possible")
        draws = draws or self.next_draws()
        order = _one_batch(num_seeds, draws)
        span = order.span(draws.number)
        settings = sampling.settings
        start = SeedBatch(
            index=span.index,
            seeds=SeedNodes(
                ids=ids, rng_seed=order.batch_seed(draws.epoch, span), trees=trees if settings.is_disjoint else None,
                times=np.concatenate(seed_times) if settings.is_temporal else None,
                labor=sampling.labor_seeds(order.settings.rng_seed, draws.epoch, span.index),
            ),
            seed_type=next(iter(nodes)), input_ids=np.arange(num_seeds),
        )  # fmt: skip
        maker = _OneMaker(self._runner(desk, tuple(nodes)), desk.reader, start, desk.setup.convert)
        output = sampler_output(maker.make(draws.epoch, 0), store.schema.is_homogeneous)
        output.metadata = (input_id, None if times is None else dict(times))
        return output

    def close(self) -> None:
        """Close the source if the sampler opened it, which closes copies too; a second call does nothing."""
        if self._is_own:
            self._source.close()

    def __enter__(self) -> DatasetSampler:
        """Use the sampler as a context that closes it."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close the sampler."""
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Return the settings, for a copy or another process."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_local")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a sampler from settings."""
        self.__dict__.update(state)
        self._begin()

    def _desk(self) -> _Desk:
        """Return this thread's sampling state, over this process's store."""
        store = self._source.store()
        desk: _Desk | None = getattr(self._local, "desk", None)
        if desk is None or desk.setup.store is not store:
            sampling = Sampling.of(store, self._settings)
            loading = LoadSettings(node_features=(), edge_features=(), collate="numpy")
            setup = open_setup(store, self._settings.direction, loading)
            desk = _Desk(setup=setup, sampling=sampling, reader=setup.reader(), runners={})
            self._local.desk = desk
        return desk

    def _runner(self, desk: _Desk, seed_types: tuple[str, ...]) -> PlanRunner:
        runner = desk.runners.get(seed_types)
        if runner is None:
            plan = desk.sampling.plan(self._num_neighbors, seed_types, desk.setup.wants_edge_ids)
            runner = desk.runners[seed_types] = PlanRunner(desk.setup.store, plan)
        return runner


class _OneMaker(BatchMaker[SeedBatch]):
    """Maker of the batch of one start."""

    def _start(self, epoch: int, step: int) -> SeedBatch:
        return self._inputs


def _one_batch(num_seeds: int, draws: BatchDraws) -> OneBatch:
    settings = OrderSettings(batch_size=max(1, num_seeds), rng_seed=draws.rng_seed)
    return OneBatch(num_seeds=num_seeds, settings=settings)


def _only_type(types: Mapping[T, Any], what: str) -> T:
    if len(types) == 1:
        return next(iter(types))
    shown = ", ".join(type_label(t) for t in types)
    raise SettingsError(f"the graph has {len(types)} {what} types ({shown}) and input_type is None; name one")


def _negatives(desk: _Desk, edge_type: EdgeType, given: object) -> NegativeSampler | None:
    """Return the sampler of negatives; it is kept between batches, because it adds up weights once."""
    if desk.negatives is not None and desk.negatives[0] is given and desk.negatives[1] == edge_type:
        return desk.negatives[2]
    how = read_negative_sampling(given)
    if how is None:
        return None
    settings = desk.sampling.settings
    negatives = NegativeSampler(desk.setup.store, edge_type, settings.direction, how, settings.time_attr)
    desk.negatives = (given, edge_type, negatives)
    return negatives


def _output(batch: MiniBatch, schema: GraphSchema, input_id: torch.Tensor | None) -> Output:
    """Return the output of a batch, with the loader's own ``input_id``."""
    output = sampler_output(batch, schema.is_homogeneous)
    output.metadata = (input_id, *output.metadata[1:])
    return output
