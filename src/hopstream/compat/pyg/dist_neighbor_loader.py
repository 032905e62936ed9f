"""Batches of nodes' neighbourhoods from the partitions of all ranks."""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hopstream.compat.pyg.channels import check_concurrency
from hopstream.compat.pyg.dist_context import DistContext
from hopstream.compat.pyg.dist_loader import DistLoader, common_options
from hopstream.compat.pyg.dist_neighbor_sampler import DistNeighborSampler, check_device
from hopstream.errors import SettingsError
from hopstream.load.loader import NeighborLoader
from hopstream.sample.sampling_settings import TemporalStrategy
from hopstream.schema import NODE, EdgeType
from hopstream.store.security import ServerSecurity
from hopstream.store.settings import StoreSettings


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
        """Meet the other ranks, which all make this loader, and prepare batches.

        Args:
            data: ``(feature_store, graph_store)`` of this rank's partition.
            num_neighbors: Neighbours per hop, for all edge types or per edge type; -1 means all.
            master_addr: See ``DistLoader``.
            master_port: See ``DistLoader``.
            current_ctx: This process.
            input_nodes: Global ids of the nodes that this rank starts from, or a mask of all nodes; in a graph with
                types with the type in front. None, or a type alone, means the nodes that this rank owns.
            input_time: An integer per node of ``input_nodes``; with ``time_attr``.
            dist_sampler: A sampler that says how to sample in place of the arguments from ``replace`` to ``time_attr``,
                and of ``num_neighbors``.
            replace: Draw neighbours with replacement.
            subgraph_type: ``directional``, ``bidirectional`` or ``induced``.
            disjoint: Every seed grows a tree of its own; always so with ``time_attr``.
            temporal_strategy: ``uniform`` or ``last``.
            time_attr: The tensor of nodes or edges that holds times.
            transform: Called with each batch.
            concurrency: How many batches are made at once, for each of ``num_workers``; with ``async_sampling``.
            num_rpc_threads: Without effect.
            filter_per_worker: True: the threads that make batches call ``transform``; else the thread that asks for
                them.
            async_sampling: Make batches ahead, in threads; False: only where ``num_workers`` says so.
            device: None or the CPU.
            rpc_timeout: See ``DistLoader``.
            security: See ``DistLoader``.
            store_settings: See ``DistLoader``.
            **options: Of PyG's loaders: ``batch_size``, ``shuffle``, ``drop_last``, ``num_workers`` (threads),
                ``prefetch_factor``, ``pin_memory``, ``timeout``, ``generator`` (its seed); of ``NeighborLoader``:
                ``rng_seed``, ``node_features``, ``edge_features``, ``edge_keys``, ``collate``, ``buffer_bytes``.

        Raises:
            SettingsError: A setting that cannot be met; the message says which, and what can be done.
            UnknownNameError: A node type, edge type or feature that the graph does not have.
            IdRangeError: A seed outside 0..n-1 of its node type.
            VersionMismatch: Ranks hold partitions of different graphs or cuts, or one is held by nobody.
            StoreError: Some ranks did not come, or gave up.
        """
        if input_time is not None and (time_attr if dist_sampler is None else dist_sampler.time_attr) is None:
            raise SettingsError("input_time needs time_attr=, the tensor that holds times; give both")
        check_concurrency(concurrency)
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
    """The nodes that the user named, or those that the rank owns."""
    schema = sampler.store.schema
    if node_type is None and len(schema.nodes) <= 1:
        node_type = next(iter(schema.nodes), NODE)
    if node_type is None:
        return seeds
    return (node_type, sampler.own_nodes(node_type) if seeds is None else seeds)


def _split_type(input_nodes: Any) -> tuple[str | None, Any]:
    """The node type, where it is named, and the nodes, where they are."""
    if isinstance(input_nodes, str):
        return input_nodes, None
    if isinstance(input_nodes, tuple | list) and len(input_nodes) == 2 and isinstance(input_nodes[0], str):
        return input_nodes[0], input_nodes[1]
    return None, input_nodes
