"""Sampler of a graph whose partitions are held by ranks, one partition per rank."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch_geometric.sampler import EdgeSamplerInput, NodeSamplerInput, SamplerOutput

from hopstream.arrays import IntArray, to_array
from hopstream.checks import known_names, read_integer
from hopstream.compat.pyg.channels import ChannelSender
from hopstream.compat.pyg.local_graph_store import parts_of
from hopstream.compat.pyg.own_part import OwnPart, read_own_part, store_pair
from hopstream.compat.pyg.rank_store import RankStore
from hopstream.compat.pyg.rpc import DistContext, RpcMember, check_context, current_member, leave_at_exit
from hopstream.compat.pyg.sampler import DatasetSampler, Output
from hopstream.errors import SettingsError, StateError, UnknownNameError
from hopstream.kernels.hashing import derive_seed
from hopstream.sample.sampling_settings import TemporalStrategy
from hopstream.schema import EDGE, NODE, EdgeType, timed_edge_types
from hopstream.store.contract import KEY, FetchRequest, SampleRequest, Store
from hopstream.store.whole import EdgeIdsOfKeys, keeps_edge_keys


@dataclass
class DistEdgeHeteroSamplerInput:
    """Seeds of several node types, such as the ends of links between types.

    Attributes:
        input_id: Index of each link among the loader's inputs; passed through.
        node_dict: Node type to int64[n], keys of distinct nodes.
        time_dict: Node type to int64[n], times of the seeds; None means the times of the nodes.
        input_type: The edge type of the links; ignored.
    """

    input_id: torch.Tensor | None
    node_dict: dict[str, torch.Tensor]
    time_dict: dict[str, torch.Tensor] | None = None
    input_type: EdgeType | None = None


class DistNeighborSampler:
    """Sampler of neighbourhoods over the partitions of all ranks.

    ``init_sampler_instance`` reads this rank's partition, and ``register_sampler_rpc`` connects it to those of the
    other ranks. All ranks call both. After that every rank samples independently. Loaders make both calls.
    """

    def __init__(  # noqa: PLR0913, PLR0917  PyG's arguments, in PyG's order
        self,
        current_ctx: DistContext,
        data: tuple[Any, Any],
        num_neighbors: Sequence[int] | Mapping[EdgeType, Sequence[int]],
        channel: Any = None,
        replace: bool = False,
        subgraph_type: Any = "directional",
        disjoint: bool = False,
        temporal_strategy: TemporalStrategy = "uniform",
        time_attr: str | None = None,
        concurrency: int = 1,
        device: Any = None,
        *,
        label_type: str | None = None,
        rng_seed: int | None = None,
    ) -> None:
        """Keep the settings; read no data and send no request.

        Args:
            current_ctx: The context of this process.
            data: ``(feature_store, graph_store)`` of this rank's partition.
            num_neighbors: Neighbours per hop, for all edge types or per edge type; -1 means all.
            channel: A queue for outputs; ``sample_from_nodes`` and ``sample_from_edges`` then return at once. With None
                they return the output.
            replace: Draw with replacement.
            subgraph_type: ``directional``, ``bidirectional`` or ``induced``.
            disjoint: Sample a separate tree for every seed; always so with ``time_attr``.
            temporal_strategy: ``uniform`` or ``last``.
            time_attr: The tensor of nodes or edges that holds times.
            concurrency: Number of samples made at once, with a channel.
            device: None or the CPU.
            label_type: The node type of ``feature_store.labels``, if that is one tensor in a graph with types.
            rng_seed: With a number, the ``i``-th sample and the ``i``-th call of ``sample_one_hop`` have the same draws
                in every run, for any ``concurrency``. None, the default: each takes its seed from torch's generator
                (``torch.manual_seed``) when it is requested.

        Raises:
            SettingsError: A setting is refused.
        """
        self.current_ctx = check_context(current_ctx)
        check_device(device)
        self.feature_store, self.graph_store = store_pair(data)
        self.num_neighbors = num_neighbors
        self.channel = channel
        self.replace = replace
        self.subgraph_type = getattr(subgraph_type, "value", subgraph_type)
        self.disjoint = disjoint
        self.temporal_strategy: TemporalStrategy = temporal_strategy
        self.time_attr = time_attr
        self.concurrency = read_integer("concurrency", concurrency, 1)
        self.label_type = label_type
        self._rng_seed = rng_seed
        self._own: OwnPart | None = None
        self._shared: RankStore | None = None
        self._sampler: DatasetSampler | None = None
        self._delivery = ChannelSender(self.concurrency)
        self._lock = threading.Lock()
        self._num_one_hops = 0
        self._has_edge_keys = False
        self._edge_ids: dict[EdgeType, EdgeIdsOfKeys] = {}

    def init_sampler_instance(self) -> None:
        """Read this rank's partition; a second call does nothing.

        Raises:
            SettingsError: The stores lack data, or no tensor has the name ``time_attr``.
            SchemaError: Tensors and ids contradict each other.
        """
        if self._own is None:
            self._own = read_own_part((self.feature_store, self.graph_store), self.time_attr, self.label_type)

    def register_sampler_rpc(self, member: RpcMember | None = None) -> None:
        """Serve this rank's partition and connect to the others'; a second call does nothing.

        All ranks must call it.

        Args:
            member: The result of ``init_rpc``; None for the last one of this thread.

        Raises:
            StateError: ``init_rpc`` or ``init_sampler_instance`` was not called.
            VersionMismatch: Ranks hold partitions of different graphs or cuts, or no rank holds one.
            StoreError: Some ranks did not join, or gave up.
        """
        if self._shared is not None:
            return
        if self._own is None:
            raise StateError("call init_sampler_instance before register_sampler_rpc")
        member = member or current_member()
        shared = self._shared = RankStore(self._own, member)
        member.closers.append(lambda waits: self.close(waits=waits))
        leave_at_exit()
        self._has_edge_keys = keeps_edge_keys(shared.store, "in")
        self._sampler = DatasetSampler(
            shared.store, self.num_neighbors, rng_seed=self._rng_seed, replace=self.replace, disjoint=self.disjoint,
            subgraph_type=self.subgraph_type, temporal_strategy=self.temporal_strategy, time_attr=self.time_attr,
        )  # fmt: skip
        if getattr(self.feature_store, "remote_lookup", self) is None:
            self.feature_store.remote_lookup = self._lookup_elsewhere

    @property
    def store(self) -> Store:
        """Store of the whole graph, over all ranks.

        Raises:
            StateError: The sampler is not registered, or is closed.
        """
        if self._shared is None:
            raise StateError(
                "the sampler is not connected; call init_rpc, init_sampler_instance and register_sampler_rpc"
            )
        return self._shared.store

    @property
    def own(self) -> OwnPart:
        """Partition of this rank.

        Raises:
            StateError: ``init_sampler_instance`` was not called.
        """
        if self._own is None:
            raise StateError("call init_sampler_instance first")
        return self._own

    def own_nodes(self, node_type: str) -> IntArray:
        """Return int64[n], the keys of the nodes that this rank owns, ascending."""
        if node_type not in self.own.owners:
            raise UnknownNameError(f"unknown node type {node_type!r}; {known_names(node_type, self.own.owners)}")
        return np.flatnonzero(self.own.owners[node_type] == self.own.part)

    def own_links(self, edge_type: EdgeType) -> IntArray:
        """Return int64[2, n], keys of sources and destinations of the edges that this rank owns."""
        edges = self.own.edges.get(edge_type)
        if edges is not None:
            return np.stack([edges.src_keys, edges.dst_keys])
        self.store.schema.find_edge_type(edge_type)  # other ranks may have edges of it
        return np.empty((2, 0), np.int64)

    def sample_from_nodes(
        self, inputs: NodeSamplerInput, *, callback: Callable[[Any], None] | None = None
    ) -> Output | None:
        """Sample the neighbourhoods of some nodes; see ``DatasetSampler.sample_from_nodes``.

        Returns:
            The output, or None if it is put into the channel.
        """
        return self._deliver(self._nodes(inputs), callback)

    def sample_from_edges(
        self, inputs: EdgeSamplerInput, neg_sampling: Any = None, *, callback: Callable[[Any], None] | None = None
    ) -> Output | None:
        """Sample the neighbourhoods of the ends of some links; see ``DatasetSampler.sample_from_edges``.

        Returns:
            The output, or None if it is put into the channel.
        """
        return self._deliver(self._links(inputs, neg_sampling), callback)

    async def node_sample(self, inputs: NodeSamplerInput | DistEdgeHeteroSamplerInput) -> Output:
        """Sample the neighbourhoods of nodes of one or several types, without blocking the event loop."""
        return await asyncio.to_thread(self._nodes(inputs))

    async def edge_sample(
        self,
        inputs: EdgeSamplerInput,
        sample_fn: object = None,
        num_nodes: object = None,
        disjoint: object = None,
        node_time: object = None,
        neg_sampling: Any = None,
    ) -> Output:
        """Sample the neighbourhoods of the ends of links and negatives, without blocking the event loop.

        Args:
            inputs: The links.
            sample_fn: Without effect, like the next three: the sampler has these settings.
            num_nodes: Without effect.
            disjoint: Without effect.
            node_time: Without effect.
            neg_sampling: PyG's settings of negatives, or Hopstream's, or None.
        """
        return await asyncio.to_thread(self._links(inputs, neg_sampling))

    async def sample_one_hop(
        self,
        srcs: torch.Tensor,
        one_hop_num: int,
        seed_time: torch.Tensor | None = None,
        src_batch: torch.Tensor | None = None,
        edge_type: EdgeType | None = None,
    ) -> SamplerOutput:
        """Draw neighbours of some nodes along one edge type, each at the rank that owns the node.

        Args:
            srcs: int64[n], keys of nodes of the edge type's destination type.
            one_hop_num: Neighbours per node; -1 means all.
            seed_time: int64[n], time of each node; later edges are excluded.
            src_batch: int64[n], the tree of each node.
            edge_type: Optional in a graph with one edge type.

        Returns:
            ``node`` has the neighbours' keys, grouped in the order of ``srcs``, with repetitions. ``edge`` has the keys
            of the edges, or None if edges have no keys. ``batch`` has the tree of each neighbour, or None. ``row`` and
            ``col`` are None. ``metadata`` is ``(list of the number of neighbours of each node,)``.
        """
        with self._lock:
            number = self._num_one_hops
            self._num_one_hops += 1
        drawn = self._connected().next_draws().rng_seed if self._rng_seed is None else self._rng_seed
        rng_seed = derive_seed("one hop", drawn, number)
        given = (srcs, seed_time, src_batch)
        return await asyncio.to_thread(self._one_hop, self.store, edge_type, int(one_hop_num), rng_seed, *given)

    def _one_hop(  # noqa: PLR0913, PLR0917
        self, store: Store, edge_type: EdgeType | None, count: int, rng_seed: int, srcs: torch.Tensor,
        times: torch.Tensor | None, trees: torch.Tensor | None,
    ) -> SamplerOutput:  # fmt: skip
        if edge_type is None and len(store.schema.edges) == 1:
            edge_type = next(iter(store.schema.edges))
        edge_type = store.schema.edge_type_of(edge_type)
        is_timed = self.time_attr is not None and edge_type in timed_edge_types(store.schema, self.time_attr, "in")
        reply = store.sample([
            SampleRequest(
                edge_type=edge_type, direction="in", ids=store.lookup(edge_type[2], to_array(srcs)), count=count,
                is_replacing=self.replace, rng_seed=rng_seed, wants_edge_keys=self._has_edge_keys,
                strategy="last" if is_timed and self.temporal_strategy == "last" else "uniform",
                trees=None if trees is None else to_array(trees),
                times=None if times is None or not is_timed else to_array(times),
            )
        ])[0]  # fmt: skip
        wanted = FetchRequest(entity=edge_type[0], names=(KEY,), ids=reply.neighbor_ids.astype(np.int64))
        node_keys = cast(IntArray, store.fetch([wanted])[0][KEY])
        counts = torch.from_numpy(reply.counts.astype(np.int64))
        return SamplerOutput(
            node=torch.from_numpy(node_keys), row=None, col=None,
            edge=None if reply.edge_keys is None else torch.from_numpy(reply.edge_keys),
            batch=None if trees is None else trees.repeat_interleave(counts), metadata=(counts.tolist(),),
        )  # fmt: skip

    def close(self, *, waits: bool = True) -> None:
        """Stop the server; a second call does nothing.

        Samples that no thread has started become a ``StateError`` in the channel, while it has room.

        Args:
            waits: Serve until all ranks leave.

        Raises:
            StoreTimeout: Some ranks did not leave in time.
        """
        self._delivery.close()
        if getattr(self.feature_store, "remote_lookup", None) == self._lookup_elsewhere:
            self.feature_store.remote_lookup = None
        shared, self._shared, self._sampler = self._shared, None, None
        self._edge_ids = {}
        if shared is not None:
            shared.close(waits=waits)

    def _connected(self) -> DatasetSampler:
        _ = self.store
        return cast(DatasetSampler, self._sampler)

    def _nodes(self, inputs: NodeSamplerInput | DistEdgeHeteroSamplerInput) -> Callable[[], Output]:
        """Return a task that samples nodes.

        It takes the sample's number now, so draws do not depend on the order of threads.
        """
        sampler = self._connected()
        if hasattr(inputs, "node_dict"):
            given = inputs.node_dict, inputs.time_dict, inputs.input_id
            return partial(sampler.sample_from_typed_nodes, *given, draws=sampler.next_draws())
        if not hasattr(inputs, "node"):
            raise SettingsError(
                f"node_sample takes a NodeSamplerInput or a DistEdgeHeteroSamplerInput, got a "
                f"{type(inputs).__name__}; links go to edge_sample"
            )
        return partial(sampler.sample_from_nodes, inputs, draws=sampler.next_draws())

    def _links(self, inputs: EdgeSamplerInput, neg_sampling: Any) -> Callable[[], Output]:
        """Return a task that samples links, with the sample's number."""
        sampler = self._connected()
        return partial(sampler.sample_from_edges, inputs, neg_sampling, draws=sampler.next_draws())

    def _deliver(self, work: Callable[[], Output], callback: Callable[[Any], None] | None) -> Output | None:
        if self.channel is None:
            return work()
        self._delivery.deliver(self.channel, work, callback)
        return None

    def _lookup_elsewhere(
        self, index: torch.Tensor, is_node_feat: bool, input_type: Any
    ) -> torch.futures.Future[torch.Tensor]:
        """Return a future of ``x`` of nodes or ``edge_attr`` of edges of other ranks, for ``lookup_features``."""
        found: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        try:
            rows = self._node_rows(index, input_type) if is_node_feat else self._edge_rows(index, input_type)
            found.set_result(torch.from_numpy(rows))
        except Exception as error:  # the future carries errors of every type
            found.set_exception(error)  # type: ignore[arg-type]
        return found

    def _node_rows(self, index: torch.Tensor, node_type: str | None) -> Any:
        entity = NODE if node_type is None else node_type
        ids = self.store.lookup(entity, to_array(index))
        return self.store.fetch([FetchRequest(entity=entity, names=("x",), ids=ids)])[0]["x"]

    def _edge_rows(self, index: torch.Tensor, edge_type: EdgeType | None) -> Any:
        if not self._has_edge_keys:
            raise SettingsError("edges have no ids here, so edge_attr cannot be looked up; give them with put_edge_id")
        entity = self.store.schema.edge_type_of(EDGE if edge_type is None else edge_type)
        if entity not in self._edge_ids:
            self._edge_ids[entity] = EdgeIdsOfKeys(self.store, entity)
        parts = to_array(parts_of(self.feature_store.edge_feat_pb, "edge_feat", index, edge_type))
        ids = self._edge_ids[entity].find(to_array(index), parts)
        return self.store.fetch([FetchRequest(entity=(entity, "in"), names=("edge_attr",), ids=ids)])[0]["edge_attr"]


def check_device(device: Any) -> None:
    """Refuse devices other than the CPU.

    Raises:
        SettingsError: The device is not the CPU.
    """
    if device is not None and torch.device(device).type != "cpu":
        raise SettingsError(
            f"device is {device!r}; batches are made on the CPU: leave it out, and use batch.to({device!r})"
        )
