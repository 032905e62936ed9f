"""Loader of sampled neighbourhoods of nodes, in graph-store mode."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from hopstream.compat.gigl.distributed.base_dist_loader import BaseDistLoader, NumNeighbors, check_servers, joined
from hopstream.compat.gigl.distributed.graph_store.remote_dist_dataset import RemoteDistDataset
from hopstream.compat.gigl.distributed.sampler_options import SamplerOptions
from hopstream.compat.gigl.env.distributed import DistributedContext
from hopstream.compat.gigl.src.common.types.graph_data import NodeType
from hopstream.compat.glt.distributed.loading import make_loader
from hopstream.compat.glt.sampler import NodeSamplerInput
from hopstream.errors import SettingsError

Inputs = Mapping[int, torch.Tensor] | tuple[NodeType, Mapping[int, torch.Tensor]]


class DistNeighborLoader(BaseDistLoader):
    """Mini-batches around nodes, as PyG's ``Data`` or ``HeteroData`` with GiGL's attributes.

    ``node`` has ids, seeds first. ``batch`` has the ids of the seeds. ``edge_index`` leads from neighbours to seeds.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - the arguments of GiGL, in its order
        self,
        dataset: RemoteDistDataset,
        num_neighbors: NumNeighbors,
        input_nodes: Inputs | None = None,
        num_workers: int = 1,
        batch_size: int = 1,
        context: DistributedContext | None = None,
        local_process_rank: int | None = None,
        local_process_world_size: int | None = None,
        pin_memory_device: torch.device | None = None,
        worker_concurrency: int = 4,
        channel_size: str = "4GB",
        prefetch_size: int | None = None,
        process_start_gap_seconds: float = 60.0,
        num_cpu_threads: int | None = None,
        shuffle: bool = False,
        drop_last: bool = False,
        with_weight: bool = False,
        sampler_options: SamplerOptions | None = None,
        non_blocking_transfers: bool = True,
        *,
        rng_seed: int = 0,
    ) -> None:
        """Check every setting against the graph; servers sample when the loader is iterated.

        Args:
            dataset: The graph.
            num_neighbors: Neighbours per hop, for all edge types or by edge type.
            input_nodes: Server to int64[n] ids of seeds; in a graph with types, a pair with the node type first.
            num_workers: ``num_workers`` times ``worker_concurrency`` limits ``prefetch_size``; servers sample with
                their own threads.
            batch_size: Seeds per batch.
            context: No effect.
            local_process_rank: No effect.
            local_process_world_size: No effect.
            pin_memory_device: Device of the batches; None for this process's GPU, or the CPU.
            worker_concurrency: See ``num_workers``.
            channel_size: No effect; servers limit waiting batches.
            prefetch_size: Batches fetched ahead per server; None for 4.
            process_start_gap_seconds: No effect.
            num_cpu_threads: No effect.
            shuffle: Shuffle the seeds in every epoch.
            drop_last: Drop a last batch with fewer seeds.
            with_weight: Draw neighbours in proportion to weights.
            sampler_options: Hop by hop, or by personalised PageRank.
            non_blocking_transfers: Copy to a GPU asynchronously.
            rng_seed: Seed of order and draws. Equal seeds give equal batches on any number of servers.

        Raises:
            ValueError: A setting is refused; the message names it.
            NotImplementedError: Weights with PageRank.
            RuntimeError: ``init_compute_process`` was not called.
        """
        super().__init__(
            "dist_neighbor_loader", dataset, num_neighbors=num_neighbors, sampler_options=sampler_options,
            batch_size=batch_size, shuffle=shuffle, drop_last=drop_last, with_weight=with_weight,
            num_workers=num_workers, worker_concurrency=worker_concurrency, channel_size=channel_size,
            prefetch_size=prefetch_size, pin_memory_device=pin_memory_device,
            non_blocking_transfers=non_blocking_transfers, rng_seed=rng_seed,
        )  # fmt: skip
        node_type, by_server = input_nodes if isinstance(input_nodes, tuple) else (None, input_nodes)
        check_servers(by_server, "a mapping of server to ids")  # type: ignore[arg-type]
        if isinstance(input_nodes, tuple) and dataset.fetch_node_types() is None:
            raise SettingsError(
                f"input_nodes names type {node_type!r}; the dataset is homogeneous: give the mapping alone"
            )
        self._open(make_loader, NodeSamplerInput(joined(list(by_server.values())), node_type))  # type: ignore[union-attr]
