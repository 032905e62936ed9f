"""Common part of the loaders of graph-store mode, ``DistNeighborLoader`` and ``DistABLPLoader``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from hopstream.compat.gigl.distributed.graph_store.compute import session
from hopstream.compat.gigl.distributed.graph_store.remote_dist_dataset import RemoteDistDataset
from hopstream.compat.gigl.distributed.sampler_options import (
    PPRSamplerOptions,
    SamplerOptions,
    ppr_settings_of,
    resolve_sampler_options,
)
from hopstream.compat.gigl.distributed.utils import get_available_device
from hopstream.compat.glt.distributed.dist_loader import BatchLoader
from hopstream.compat.glt.distributed.graph_facts import GraphFacts
from hopstream.compat.glt.distributed.options import RemoteDistSamplingWorkerOptions
from hopstream.compat.glt.sampler import SamplingConfig, SamplingType
from hopstream.errors import SettingsError
from hopstream.load.setup import SubgraphLoader
from hopstream.schema import EdgeType

NumNeighbors = list[int] | dict[EdgeType, list[int]]
DEFAULT_PREFETCH = 4
_NUMBERS: Counter[str] = Counter()
"""Number of loaders of each class that this process has made."""


class BaseDistLoader(BatchLoader):
    """Loader of one rank's batches, which the storage servers make. Each iteration is one epoch."""

    input_data: Any = None

    def __init__(  # noqa: PLR0913 - what the two loaders have in common
        self,
        kind: str,
        dataset: RemoteDistDataset,
        *,
        num_neighbors: NumNeighbors,
        sampler_options: SamplerOptions | None,
        batch_size: int,
        shuffle: bool,
        drop_last: bool,
        with_weight: bool,
        num_workers: int,
        worker_concurrency: int,
        channel_size: int | str,
        prefetch_size: int | None,
        pin_memory_device: torch.device | None,
        non_blocking_transfers: bool,
        rng_seed: int,
    ) -> None:
        """Check the common settings, and read the graph's facts from the servers."""
        if not isinstance(dataset, RemoteDistDataset):
            raise SettingsError(
                f"dataset is a {type(dataset).__name__}; give a RemoteDistDataset. For a dataset in this process use "
                "hopstream.NeighborLoader"
            )
        self._options = resolve_sampler_options(num_neighbors, sampler_options)
        if with_weight and isinstance(self._options, PPRSamplerOptions):
            raise NotImplementedError("with_weight cannot be used with PPRSamplerOptions; PageRank ignores weights")
        self.edge_dir = dataset.fetch_edge_dir()
        if with_weight and not dataset.fetch_edge_weights_registered():
            raise SettingsError("with_weight is True, and the dataset has no weights; write it with weight_attr")
        self.worker_key = f"{kind}_{_NUMBERS[kind]}_compute_rank_{_rank()}"
        _NUMBERS[kind] += 1
        self.worker_options = RemoteDistSamplingWorkerOptions(
            server_rank=list(range(session().num_servers)), num_workers=num_workers,
            worker_concurrency=worker_concurrency, buffer_size=channel_size,
            prefetch_size=DEFAULT_PREFETCH if prefetch_size is None else prefetch_size, worker_key=self.worker_key,
        )  # fmt: skip
        self.sampling_type = SamplingType.NODE
        self.sampling_config = SamplingConfig(
            self.sampling_type, num_neighbors, batch_size, shuffle, drop_last, True, True, False, with_weight,
            self.edge_dir, rng_seed,
        )  # fmt: skip
        self.num_neighbors, self.batch_size = num_neighbors, batch_size
        self.shuffle, self.drop_last, self.with_edge, self.with_weight = shuffle, drop_last, True, with_weight
        self.to_device = pin_memory_device or get_available_device(dataset.local_rank)
        self._is_blocking = not non_blocking_transfers
        self._session = session()

    def _open(self, make: Callable[..., SubgraphLoader], input_data: Any, **options: Any) -> None:
        """Make the loader of batches with ``make``, unless there are no seeds."""
        self.input_data = input_data
        if not len(input_data):
            return
        graph, num_servers = session().graph, session().num_servers
        facts = GraphFacts(graph.fetch_schema())
        self._loader = make(
            graph, facts, self.sampling_config, input_data, ppr=ppr_settings_of(self._options, self.edge_dir, facts),
            weight_attr=graph.fetch_weight_attr() if self.with_weight else None, num_threads=num_servers,
            prefetch=self.worker_options.prefetch_size * num_servers, **options,
        )  # fmt: skip


def check_servers(given: Mapping[int, Any], what: str) -> None:
    """Check that the keys of inputs are servers.

    Raises:
        SettingsError: The inputs are no mapping, or name a server that does not exist.
    """
    num_servers = session().num_servers
    if not isinstance(given, Mapping):
        raise SettingsError(
            f"input_nodes is of type {type(given).__name__}; in graph-store mode give {what}, as RemoteDistDataset "
            "fetches it"
        )
    unknown = [server for server in given if not isinstance(server, int) or not 0 <= server < num_servers]
    if unknown:
        raise SettingsError(f"input_nodes names servers {unknown}; servers are numbered 0..{num_servers - 1}")


def joined(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    """Merge ids of several servers to ascending int64[n].

    The order makes batches independent of the number of servers.
    """
    return torch.sort(torch.cat([torch.empty(0, dtype=torch.int64), *rows])).values


def _rank() -> int:
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
