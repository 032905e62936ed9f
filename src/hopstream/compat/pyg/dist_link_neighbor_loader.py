"""Batches of links, with the neighbourhoods of their ends, from the partitions of all ranks."""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hopstream.compat.pyg.channels import check_concurrency
from hopstream.compat.pyg.dist_context import DistContext
from hopstream.compat.pyg.dist_loader import DistLoader, common_options
from hopstream.compat.pyg.dist_neighbor_sampler import DistNeighborSampler, check_device
from hopstream.errors import SettingsError
from hopstream.load.links import LinkNeighborLoader
from hopstream.sample.sampling_settings import TemporalStrategy
from hopstream.schema import EdgeType
from hopstream.store.security import ServerSecurity
from hopstream.store.settings import StoreSettings


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
        """Meet the other ranks, which all make this loader, and prepare batches.

        Args:
            data: ``(feature_store, graph_store)`` of this rank's partition.
            num_neighbors: Neighbours per hop, for all edge types or per edge type; -1 means all.
            master_addr: See ``DistLoader``.
            master_port: See ``DistLoader``.
            current_ctx: This process.
            edge_label_index: int64[2, n], global ids of sources and destinations that this rank starts from; in a
                graph of several edge types with the type in front. None, or a type alone, means the edges that
                this rank owns.
            edge_label: Numbers, one row per link; see ``LinkNeighborLoader``.
            edge_label_time: An integer per link; needed with ``time_attr``, and not without.
            dist_sampler: A sampler that says how to sample in place of the arguments of sampling.
            replace: Draw neighbours with replacement.
            subgraph_type: ``directional``, ``bidirectional`` or ``induced``.
            disjoint: Every end grows a tree of its own; always so with ``time_attr``.
            temporal_strategy: ``uniform`` or ``last``.
            neg_sampling: PyG's ``NegativeSampling`` or Hopstream's, its settings as a dict, ``binary`` or ``triplet``;
                negatives are drawn over the whole graph.
            neg_sampling_ratio: ``r`` stands for ``NegativeSampling("binary", r)``.
            time_attr: The tensor of nodes or edges that holds times.
            transform: Called with each batch.
            concurrency: See ``DistNeighborLoader``, as the six that follow.
            num_rpc_threads: Without effect.
            filter_per_worker: See ``DistNeighborLoader``.
            async_sampling: See ``DistNeighborLoader``.
            device: None or the CPU.
            rpc_timeout: See ``DistLoader``.
            security: See ``DistLoader``.
            store_settings: See ``DistLoader``.
            exclude_links: See ``LinkNeighborLoader``.
            **options: As of ``DistNeighborLoader``.

        Raises:
            SettingsError: A setting that cannot be met; the message says which, and what can be done.
            UnknownNameError: A node type, edge type or feature that the graph does not have.
            IdRangeError: A key outside 0..n-1 of its node type.
            VersionMismatch: Ranks hold partitions of different graphs or cuts, or one is held by nobody.
            StoreError: Some ranks did not come, or gave up.
        """
        given_attr = time_attr if dist_sampler is None else dist_sampler.time_attr
        if (edge_label_time is None) != (given_attr is None):
            given, missing = (
                ("edge_label_time", "time_attr") if given_attr is None else ("time_attr", "edge_label_time")
            )
            raise SettingsError(f"{given} is given and {missing} is not; give both, or neither")
        check_concurrency(concurrency)
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
    """All features of edges but those that are called as a batch calls its links, as labels in partition files are."""
    own_names, edges = LinkNeighborLoader.attached_names, sampler.store.schema.edges
    if own_names.isdisjoint(name for features in edges.values() for name in features):
        return None
    return {t: [name for name in features if name not in own_names] for t, features in edges.items()}


def _read_links(sampler: DistNeighborSampler, given: Any) -> Any:
    """The links that the user named, or those that the rank owns."""
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
