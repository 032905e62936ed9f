"""Loaders of nodes' and links' neighbourhoods over the partitions of all ranks, under PyG's names."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from hopstream.arguments import refuse_unknown
from hopstream.checks import OfOneProcess, read_flag, read_integer
from hopstream.compat.pyg.channels import take_from
from hopstream.compat.pyg.dist_neighbor_sampler import DistNeighborSampler, check_device
from hopstream.compat.pyg.rpc import (
    DistContext,
    RpcMember,
    check_context,
    current_member,
    global_barrier,
    init_rpc,
    member_of_thread,
)
from hopstream.errors import SettingsError, StateError
from hopstream.load.epochs import EpochIterator
from hopstream.load.links import LinkNeighborLoader
from hopstream.load.load_settings import LoadSettings
from hopstream.load.loader import NeighborLoader
from hopstream.load.setup import SubgraphLoader
from hopstream.sample.sampling_settings import TemporalStrategy
from hopstream.schema import NODE, EdgeType
from hopstream.store.settings import StoreSettings
from hopstream.transport.security import ServerSecurity

_ORDER = "order is chosen with the seeds, shuffle= and drop_last="
OTHER_OPTIONS: Mapping[str, str] = {
    "collate_fn": "transform= is called with each batch",
    "transform_sampler_output": "transform= is called with each batch",
    "custom_cls": "transform= is called with each batch",
    "worker_init_fn": "threads make batches, so there are no processes to set up; to connect the ranks in your own "
    "way, override the method DistLoader.worker_init_fn",
    "sampler": _ORDER,
    "batch_sampler": _ORDER,
    "directed": "it is called subgraph_type= now: 'directional' or 'induced'",
    "input_id": "batches have the position of each seed as input_id",
    "weight_attr": "partitions in memory hold no weights; write the graph's parts with write_parts(…, weight_attr=…) "
    "and use hopstream.NeighborLoader",
}
"""Options of PyG's loaders that these loaders refuse, with the alternative."""
WITHOUT_EFFECT = (
    "persistent_workers", "multiprocessing_context", "pin_memory_device", "is_sorted", "share_memory", "in_order",
    "num_rpc_threads",
)  # fmt: skip
"""Options of PyG's loaders for worker processes; these loaders have none."""


class DistLoader(OfOneProcess):
    """Loader of one rank over the partitions of all ranks.

    One iteration is one epoch. ``with loader as batches:`` is also one epoch, whose threads end with the block.
    ``close``, or the end of the process, waits until the other ranks leave too, because they may still need this rank's
    partition.
    """

    _remedy = "make one in each rank; its threads replace the workers of a DataLoader"
    _makes_batches = False
    """Whether a loader is built after the ranks have met."""

    def __init__(  # noqa: PLR0913, PLR0917  PyG's arguments, in PyG's order
        self,
        current_ctx: DistContext,
        master_addr: str | None = None,
        master_port: int | str | None = None,
        channel: Any = None,
        num_rpc_threads: int = 16,
        rpc_timeout: float = 180,
        dist_sampler: DistNeighborSampler | None = None,
        *,
        security: ServerSecurity | None = None,
        store_settings: StoreSettings | None = None,
    ) -> None:
        """Meet the other ranks; return when all ranks are present and agree.

        Args:
            current_ctx: The context of this process.
            master_addr: A host name or IP address of the machine of rank 0. By default ``MASTER_ADDR``.
            master_port: A free port there. By default ``MASTER_PORT`` + 1. Several loaders may share one.
            channel: The queue that ``channel_get`` reads.
            num_rpc_threads: Without effect: the transport has its own threads.
            rpc_timeout: Deadline in seconds for other ranks, at start and end, and for an output of the channel.
            dist_sampler: The sampler.
            security: TLS and token of this rank's server; required unless ``master_addr`` is loopback.
            store_settings: Deadline, token and roots for this rank's requests.

        Raises:
            SettingsError: The rank, world size, address or port is wrong, or a partition contradicts itself.
            VersionMismatch: Ranks hold partitions of different graphs or cuts, or no rank holds one.
            StoreTimeout: Some ranks did not join in time; the message names them.
            StoreUnavailable: Rank 0 cannot be reached or cannot listen, or a rank gave up.
            AccessDenied: Other machines could reach this rank, and TLS or a token is missing.
        """
        self.current_ctx = check_context(current_ctx)
        self.master_addr, self.master_port = _address(type(self).__name__, master_addr, master_port)
        self.channel = channel
        self.num_rpc_threads = num_rpc_threads
        self.rpc_timeout = rpc_timeout
        self.dist_sampler = dist_sampler
        self.num_workers = 0
        """Number of worker processes: 0."""
        self.pid = os.getpid()
        self._security = security
        self._store_settings = store_settings
        self._member: RpcMember | None = None
        self._loader: SubgraphLoader | None = None
        self._entered: EpochIterator | None = None
        before = member_of_thread()
        try:
            self.worker_init_fn(0)
            self._member = current_member()
            if not self._makes_batches:
                self._agree()
        except BaseException as error:
            begun = member_of_thread()
            self._member = None if begun is before else begun
            self._give_up(error)
            raise

    def worker_init_fn(self, worker_id: int) -> None:
        """Meet the other ranks and open one store of all partitions; override it to do more.

        Args:
            worker_id: 0; threads of this process replace PyG's worker processes.
        """
        init_rpc(
            self.current_ctx, self.master_addr, self.master_port, self.num_rpc_threads, self.rpc_timeout,
            security=self._security, store_settings=self._store_settings,
        )  # fmt: skip
        if self.dist_sampler is not None:
            self.dist_sampler.init_sampler_instance()
            self.dist_sampler.register_sampler_rpc()
        global_barrier()

    def channel_get(self, out: Any) -> Any:
        """Return the next output of the channel, or ``out`` without a channel.

        Raises:
            StoreTimeout: ``rpc_timeout`` passed.
        """
        return take_from(self.channel, self.rpc_timeout) if self.channel is not None else out

    @property
    def loader(self) -> SubgraphLoader:
        """The loader that makes the batches, with ``state_dict``, ``set_epoch`` and its other methods.

        Raises:
            StateError: The loader is closed.
        """
        if self._loader is None:
            raise StateError("the loader is closed, or makes no batches; make a new one")
        return self._loader

    def __len__(self) -> int:
        """Return the number of batches per epoch on this rank."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        """Start the next epoch."""
        return iter(self.loader)

    def __call__(self, index: Any) -> Any:
        """Refuse a call with seeds, because batches are numbered.

        Raises:
            SettingsError: Always.
        """
        raise SettingsError("a loader is not called with seeds; use dist_sampler.sample_from_nodes, or iterate")

    def __enter__(self) -> Iterator[Any]:
        """Start the next epoch; it ends with the block, and the loader can be used again."""
        self._entered = iter(self.loader)
        return self._entered

    def __exit__(self, *exc_info: object) -> None:
        """End the epoch."""
        entered, self._entered = self._entered, None
        if entered is not None:
            entered.close()

    def close(self, *, waits: bool | None = None) -> None:
        """End the epoch, wait until all ranks leave, and stop the server; a second call does nothing.

        Args:
            waits: Wait for the other ranks. None waits, except while an exception is being handled, as in ``finally``
                after an error. Without waiting, the other ranks get the error with their next request.

        Raises:
            StoreTimeout: Some ranks did not leave in time. This rank has left.
            StoreUnavailable: A rank gave up while this one waited. This rank has left.
        """
        member, self._member = self._member, None
        loader, self._loader = self._loader, None
        waits = member is not None and member.will_wait(waits)  # report an error before the threads have ended
        try:
            if loader is not None:
                loader.close()
        finally:
            if member is not None:
                member.end(waits)

    def _give_up(self, error: BaseException) -> None:
        """Send an error to the other ranks, which may be waiting, and leave."""
        member, self._member = self._member, None
        if member is not None:
            member.tell(error)
            member.end(waits=False)

    def _build(self, make: Callable[[], SubgraphLoader], in_caller: Callable[[Any], Any] | None) -> None:
        """Make the loader of batches together with all ranks; send an error of this rank to the others.

        Args:
            make: Makes the loader.
            in_caller: Called with each batch by the thread that asks for it, or None.
        """
        loader = None
        try:
            loader = make()
            self._agree()
        except BaseException as error:
            if loader is not None:
                loader.close()
            self._give_up(error)
            raise
        loader.in_caller = in_caller
        self._loader = loader

    def _agree(self) -> None:
        """Wait for the loaders of all ranks, of any class."""
        if self._member is not None and self._member.group is not None:
            self._member.group.gather(None, "for the loaders of all ranks")

    def __repr__(self) -> str:
        """Return the loader in one line."""
        return f"{type(self).__name__}(pid={self.pid})"


def common_options(
    door: Callable[..., object], options: Mapping[str, Any], *, transform: Any, concurrency: int,
    filter_per_worker: bool | None, async_sampling: bool,
) -> tuple[dict[str, Any], Callable[[Any], Any] | None]:  # fmt: skip
    """Translate PyG's options of a loader to Hopstream's.

    Args:
        door: The loader's class, for messages.
        options: The user's keyword arguments.
        transform: A function of a batch, or None.
        concurrency: Number of batches made at once, per worker of ``num_workers``.
        filter_per_worker: Call the transform in the threads that make batches; otherwise in the thread that asks for
            them.
        async_sampling: Make batches ahead.

    Returns:
        Hopstream's options, and the function that the thread that asks for a batch must call with it, or None.

    Raises:
        SettingsError: The option is refused here; the message names the alternative.
        TypeError: No loader has the option.
    """
    concurrency = read_integer("concurrency", concurrency, 1)
    set_here = {"transform", "rank", "world_size", "verify", "store_settings"}
    ours = {*LoadSettings.field_names()} - set_here
    pyg = {"num_workers", "prefetch_factor", "timeout", "generator", *WITHOUT_EFFECT}
    refuse_unknown(door.__name__, options, ours | pyg, OTHER_OPTIONS)
    found: dict[str, Any] = {name: value for name, value in options.items() if name in ours}
    num_workers = read_integer("num_workers", options.get("num_workers", 0), 0)
    num_threads = max(1, num_workers) * concurrency if read_flag("async_sampling", async_sampling) else num_workers
    found.setdefault("num_threads", num_threads)
    if options.get("prefetch_factor") is not None:
        found.setdefault(
            "prefetch", read_integer("prefetch_factor", options["prefetch_factor"], 0) * max(1, num_workers)
        )
    if options.get("timeout"):
        found.setdefault("timeout_s", options["timeout"])
    generator = options.get("generator")
    if isinstance(generator, torch.Generator):
        found.setdefault("rng_seed", generator.initial_seed() & (1 << 64) - 1)
    if transform is not None and not callable(transform):
        raise SettingsError(f"transform is {transform!r}; it must be a function that takes a batch, or None")
    if filter_per_worker:
        found["transform"], transform = transform, None
    return found, transform


def _address(door: str, addr: str | None, port: int | str | None) -> tuple[str, int | str]:
    """Return the address of rank 0 from the arguments or from torch's environment variables, as in PyG."""
    addr = addr if addr is not None else os.environ.get("MASTER_ADDR")
    if addr is None:
        raise SettingsError(
            f"{door} needs master_addr, an address of the machine of rank 0; give it, or set MASTER_ADDR"
        )
    if port is None and (given := os.environ.get("MASTER_PORT")) is not None:
        port = int(given) + 1 if given.isdecimal() else given
    if port is None:
        raise SettingsError(
            f"{door} needs master_port, a free port of rank 0; give it, or set MASTER_PORT to the port below it"
        )
    return addr, port


class DistNeighborLoader(DistLoader):
    """Mini-batches of sampled neighbourhoods of nodes, over the partitions of all ranks."""

    _makes_batches = True

    def __init__(  # noqa: PLR0913, PLR0917  PyG's arguments, in PyG's order
        self,
        data: tuple[Any, Any],
        num_neighbors: Sequence[int] | Mapping[EdgeType, Sequence[int]],
        master_addr: str | None,
        master_port: int | str | None,
        current_ctx: DistContext,
        input_nodes: Any = None,
        input_time: Any = None,
        dist_sampler: DistNeighborSampler | None = None,
        replace: bool = False,
        subgraph_type: Any = "directional",
        disjoint: bool = False,
        temporal_strategy: TemporalStrategy = "uniform",
        time_attr: str | None = None,
        transform: Callable[[Any], Any] | None = None,
        concurrency: int = 1,
        num_rpc_threads: int = 16,
        filter_per_worker: bool | None = False,
        async_sampling: bool = True,
        device: Any = None,
        *,
        rpc_timeout: float = 180,
        security: ServerSecurity | None = None,
        store_settings: StoreSettings | None = None,
        **options: Any,
    ) -> None:
        """Meet the other ranks, which must all make this loader, and prepare batches.

        Args:
            data: ``(feature_store, graph_store)`` of this rank's partition.
            num_neighbors: Neighbours per hop, for all edge types or per edge type; -1 means all.
            master_addr: See ``DistLoader``.
            master_port: See ``DistLoader``.
            current_ctx: The context of this process.
            input_nodes: Global ids of this rank's seeds, or a mask of all nodes; in a graph with types, a pair with the
                node type first. None, or only a type, means the nodes that this rank owns.
            input_time: One integer per node of ``input_nodes``; needs ``time_attr``.
            dist_sampler: A sampler whose settings replace ``num_neighbors`` and the arguments from ``replace`` to
                ``time_attr``.
            replace: Draw neighbours with replacement.
            subgraph_type: ``directional``, ``bidirectional`` or ``induced``.
            disjoint: Sample a separate tree for every seed; always so with ``time_attr``.
            temporal_strategy: ``uniform`` or ``last``.
            time_attr: The tensor of nodes or edges that holds times.
            transform: Called with each batch.
            concurrency: Number of batches made at once, per worker of ``num_workers``; needs ``async_sampling``.
            num_rpc_threads: Without effect.
            filter_per_worker: True calls ``transform`` in the threads that make batches; otherwise the thread that asks
                for them calls it.
            async_sampling: Make batches ahead, in threads. With False, only if ``num_workers`` is above 0.
            device: None or the CPU.
            rpc_timeout: See ``DistLoader``.
            security: See ``DistLoader``.
            store_settings: See ``DistLoader``.
            **options: Of PyG's loaders: ``batch_size``, ``shuffle``, ``drop_last``, ``num_workers`` (threads),
                ``prefetch_factor``, ``pin_memory``, ``timeout``, ``generator`` (its seed); of ``NeighborLoader``:
                ``rng_seed``, ``node_features``, ``edge_features``, ``edge_keys``, ``collate``, ``buffer_bytes``.

        Raises:
            SettingsError: A setting is refused; the message names it and the remedy.
            UnknownNameError: The graph does not have the node type, edge type or feature.
            IdRangeError: A seed is outside 0..n-1 of its node type.
            VersionMismatch: Ranks hold partitions of different graphs or cuts, or no rank holds one.
            StoreError: Some ranks did not join, or gave up.
        """
        if input_time is not None and (time_attr if dist_sampler is None else dist_sampler.time_attr) is None:
            raise SettingsError("input_time needs time_attr=, the tensor that holds times; give both")
        check_device(device)
        common, in_caller = common_options(
            DistNeighborLoader, options, transform=transform, concurrency=concurrency,
            filter_per_worker=filter_per_worker, async_sampling=async_sampling,
        )  # fmt: skip
        node_type, seeds = _split_type(input_nodes)
        sampler = dist_sampler or DistNeighborSampler(
            current_ctx, data, num_neighbors, replace=replace, subgraph_type=subgraph_type, disjoint=disjoint,
            temporal_strategy=temporal_strategy, time_attr=time_attr, concurrency=concurrency, label_type=node_type,
        )  # fmt: skip
        super().__init__(
            current_ctx, master_addr, master_port, queue.Queue() if async_sampling else None, num_rpc_threads,
            rpc_timeout, sampler, security=security, store_settings=store_settings,
        )  # fmt: skip

        def make() -> NeighborLoader:
            return NeighborLoader(
                sampler.store, sampler.num_neighbors, _read_nodes(sampler, node_type, seeds), replace=sampler.replace,
                subgraph_type=sampler.subgraph_type, disjoint=sampler.disjoint, input_time=input_time,
                temporal_strategy=sampler.temporal_strategy, time_attr=sampler.time_attr, **common,
            )  # fmt: skip

        self._build(make, in_caller)


def _read_nodes(sampler: DistNeighborSampler, node_type: str | None, seeds: Any) -> Any:
    """Return the user's seeds, or the nodes that the rank owns."""
    schema = sampler.store.schema
    if node_type is None and len(schema.nodes) <= 1:
        node_type = next(iter(schema.nodes), NODE)
    if node_type is None:
        return seeds
    return (node_type, sampler.own_nodes(node_type) if seeds is None else seeds)


def _split_type(input_nodes: Any) -> tuple[str | None, Any]:
    """Split the argument into the node type and the nodes; each may be None."""
    if isinstance(input_nodes, str):
        return input_nodes, None
    if isinstance(input_nodes, tuple | list) and len(input_nodes) == 2 and isinstance(input_nodes[0], str):
        return input_nodes[0], input_nodes[1]
    return None, input_nodes


class DistLinkNeighborLoader(DistLoader):
    """Mini-batches of links with sampled neighbourhoods of their ends, over the partitions of all ranks."""

    _makes_batches = True

    def __init__(  # noqa: PLR0913, PLR0917  PyG's arguments, in PyG's order
        self,
        data: tuple[Any, Any],
        num_neighbors: Sequence[int] | Mapping[EdgeType, Sequence[int]],
        master_addr: str | None,
        master_port: int | str | None,
        current_ctx: DistContext,
        edge_label_index: Any = None,
        edge_label: Any = None,
        edge_label_time: Any = None,
        dist_sampler: DistNeighborSampler | None = None,
        replace: bool = False,
        subgraph_type: Any = "directional",
        disjoint: bool = False,
        temporal_strategy: TemporalStrategy = "uniform",
        neg_sampling: Any = None,
        neg_sampling_ratio: float | None = None,
        time_attr: str | None = None,
        transform: Callable[[Any], Any] | None = None,
        concurrency: int = 1,
        num_rpc_threads: int = 16,
        filter_per_worker: bool | None = False,
        async_sampling: bool = True,
        device: Any = None,
        *,
        rpc_timeout: float = 180,
        security: ServerSecurity | None = None,
        store_settings: StoreSettings | None = None,
        exclude_links: Any = False,
        **options: Any,
    ) -> None:
        """Meet the other ranks, which must all make this loader, and prepare batches.

        Args:
            data: ``(feature_store, graph_store)`` of this rank's partition.
            num_neighbors: Neighbours per hop, for all edge types or per edge type; -1 means all.
            master_addr: See ``DistLoader``.
            master_port: See ``DistLoader``.
            current_ctx: The context of this process.
            edge_label_index: int64[2, n], global ids of sources and destinations of this rank's links; in a graph of
                several edge types, a pair with the edge type first. None, or only a type, means the edges that this
                rank owns.
            edge_label: Numbers, one row per link; see ``LinkNeighborLoader``.
            edge_label_time: One integer per link; required with ``time_attr``, and refused without it.
            dist_sampler: A sampler whose settings replace the sampling arguments.
            replace: Draw neighbours with replacement.
            subgraph_type: ``directional``, ``bidirectional`` or ``induced``.
            disjoint: Sample a separate tree for every end; always so with ``time_attr``.
            temporal_strategy: ``uniform`` or ``last``.
            neg_sampling: PyG's ``NegativeSampling`` or Hopstream's, its settings as a dict, ``binary`` or ``triplet``;
                negatives are drawn over the whole graph.
            neg_sampling_ratio: ``r`` means ``NegativeSampling("binary", r)``.
            time_attr: The tensor of nodes or edges that holds times.
            transform: Called with each batch.
            concurrency: See ``DistNeighborLoader``.
            num_rpc_threads: Without effect.
            filter_per_worker: See ``DistNeighborLoader``.
            async_sampling: See ``DistNeighborLoader``.
            device: None or the CPU.
            rpc_timeout: See ``DistLoader``.
            security: See ``DistLoader``.
            store_settings: See ``DistLoader``.
            exclude_links: See ``LinkNeighborLoader``.
            **options: See ``DistNeighborLoader``.

        Raises:
            SettingsError: A setting is refused; the message names it and the remedy.
            UnknownNameError: The graph does not have the node type, edge type or feature.
            IdRangeError: A key is outside 0..n-1 of its node type.
            VersionMismatch: Ranks hold partitions of different graphs or cuts, or no rank holds one.
            StoreError: Some ranks did not join, or gave up.
        """
        given_attr = time_attr if dist_sampler is None else dist_sampler.time_attr
        if (edge_label_time is None) != (given_attr is None):
            given, missing = (
                ("edge_label_time", "time_attr") if given_attr is None else ("time_attr", "edge_label_time")
            )
            raise SettingsError(f"{given} is given, but {missing} is not; give both, or neither")
        check_device(device)
        common, in_caller = common_options(
            DistLinkNeighborLoader, options, transform=transform, concurrency=concurrency,
            filter_per_worker=filter_per_worker, async_sampling=async_sampling,
        )  # fmt: skip
        sampler = dist_sampler or DistNeighborSampler(
            current_ctx, data, num_neighbors, replace=replace, subgraph_type=subgraph_type, disjoint=disjoint,
            temporal_strategy=temporal_strategy, time_attr=time_attr, concurrency=concurrency,
        )  # fmt: skip
        super().__init__(
            current_ctx, master_addr, master_port, queue.Queue() if async_sampling else None, num_rpc_threads,
            rpc_timeout, sampler, security=security, store_settings=store_settings,
        )  # fmt: skip

        def make() -> LinkNeighborLoader:
            if common.get("edge_features") is None:
                common["edge_features"] = _edge_features(sampler)
            return LinkNeighborLoader(
                sampler.store, sampler.num_neighbors, _read_links(sampler, edge_label_index),
                edge_label=edge_label, edge_label_time=edge_label_time, neg_sampling=neg_sampling,
                neg_sampling_ratio=neg_sampling_ratio, exclude_links=exclude_links, replace=sampler.replace,
                subgraph_type=sampler.subgraph_type, disjoint=sampler.disjoint,
                temporal_strategy=sampler.temporal_strategy, time_attr=sampler.time_attr, **common,
            )  # fmt: skip

        self._build(make, in_caller)


def _edge_features(sampler: DistNeighborSampler) -> dict[EdgeType, list[str]] | None:
    """Return all features of edges except those whose names a batch uses for its links.

    Labels in partition files have such names.
    """
    own_names, edges = LinkNeighborLoader.attached_names, sampler.store.schema.edges
    if own_names.isdisjoint(name for features in edges.values() for name in features):
        return None
    return {t: [name for name in features if name not in own_names] for t, features in edges.items()}


def _read_links(sampler: DistNeighborSampler, given: Any) -> Any:
    """Return the user's links, or the edges that the rank owns."""
    schema = sampler.store.schema
    edge_type = schema.find_edge_type(given) if isinstance(given, str | tuple | list) else None
    pairs = None
    if edge_type is None and given is not None:
        is_typed = isinstance(given, tuple | list) and len(given) == 2 and isinstance(given[0], str | tuple | list)
        edge_type = schema.find_edge_type(given[0]) if is_typed else None
        if edge_type is None:
            return given
        pairs = given[1]
    if edge_type is None:
        if len(schema.edges) != 1:
            return given
        edge_type = next(iter(schema.edges))
    return (edge_type, sampler.own_links(edge_type) if pairs is None else pairs)
