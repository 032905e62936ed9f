"""Make and read channels of a DistServer as clients do, in its process or over the network."""

from __future__ import annotations

from typing import Any

import torch

from hopstream.compat.gigl.distributed.graph_store.compute import request_server
from hopstream.compat.gigl.distributed.graph_store.messages import InitSamplingBackendRequest, RegisterBackendRequest
from hopstream.compat.gigl.distributed.sampler_options import KHopNeighborSamplerOptions
from hopstream.compat.glt.distributed.options import RemoteDistSamplingWorkerOptions
from hopstream.compat.glt.sampler import NodeSamplerInput, SamplingConfig, SamplingType

CONFIG = SamplingConfig(SamplingType.NODE, [2, 2], 4, False, False, True, True, False, False, "in", 7)
OPTIONS = RemoteDistSamplingWorkerOptions(num_workers=2)


class Asked:
    """Proxy of a server of this process's session; every method is a request."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: request_server(self.rank, name, *args, **kwargs)


def init(server: Any, key: str = "loader_0", config: SamplingConfig = CONFIG, sampler: Any = None) -> int:
    """Make a backend of a server."""
    sampler = sampler or KHopNeighborSamplerOptions([2, 2])
    found: int = server.init_sampling_backend(InitSamplingBackendRequest(key, OPTIONS, sampler, config))
    return found


def registration(backend: int, nodes: Any, key: str = "rank_0", config: SamplingConfig = CONFIG) -> Any:
    """A request for a channel of some nodes."""
    given = NodeSamplerInput(torch.as_tensor(nodes, dtype=torch.int64))
    return RegisterBackendRequest(backend, key, given, config, 4, "1MB")


def register(server: Any, backend: int, nodes: Any, key: str = "rank_0", config: SamplingConfig = CONFIG) -> int:
    """Make a channel for some nodes."""
    found: int = server.register_sampling_input(registration(backend, nodes, key, config))
    return found


def read_epoch(server: Any, channel: int) -> list[dict[str, torch.Tensor]]:
    """The messages of the rest of an epoch."""
    found = []
    while True:
        message, is_done = server.fetch_one_sampled_message(channel)
        if is_done:
            assert message is None
            return found
        assert message is not None
        found.append(message)


def seeds_of(messages: list[dict[str, torch.Tensor]]) -> list[int]:
    """The seeds of messages, in their order."""
    return [seed for message in messages for seed in message["batch"].tolist()]
