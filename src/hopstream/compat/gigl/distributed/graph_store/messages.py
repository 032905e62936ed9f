"""Records of what compute processes ask of servers."""

from __future__ import annotations

from dataclasses import dataclass

from hopstream.compat.gigl.distributed.graph_store.sharding import ServerSlice
from hopstream.compat.gigl.distributed.sampler import ABLPNodeSamplerInput
from hopstream.compat.gigl.distributed.sampler_options import SamplerOptions
from hopstream.compat.gigl.src.common.types.graph_data import EdgeType, NodeType
from hopstream.compat.glt.distributed.options import RemoteDistSamplingWorkerOptions
from hopstream.compat.glt.sampler import (
    EdgeSamplerInput,
    NodeSamplerInput,
    RemoteNodeSplitSamplerInput,
    SamplingConfig,
)


@dataclass(frozen=True)
class InitSamplingBackendRequest:
    """Make what samples for one loader of all compute ranks, or join it.

    Attributes:
        backend_key: What all ranks call it.
        worker_options: How many workers it has, and how far ahead they work.
        sampler_options: How neighbourhoods are found.
        sampling_config: How batches are made; equal on all ranks.
    """

    backend_key: str
    worker_options: RemoteDistSamplingWorkerOptions
    sampler_options: SamplerOptions
    sampling_config: SamplingConfig


@dataclass(frozen=True)
class RegisterBackendRequest:
    """Give a backend the input of one compute rank.

    Attributes:
        backend_id: The backend, as it answered when it was made.
        worker_key: What the rank's channel is known by.
        sampler_input: What to sample around; a split is that of the server's partition.
        sampling_config: Equal to the backend's.
        buffer_capacity: Batches that may wait to be fetched.
        buffer_size: Bytes that they may take, or a text such as ``"64MB"``.
    """

    backend_id: int
    worker_key: str
    sampler_input: NodeSamplerInput | EdgeSamplerInput | ABLPNodeSamplerInput | RemoteNodeSplitSamplerInput
    sampling_config: SamplingConfig
    buffer_capacity: int
    buffer_size: int | str


@dataclass(frozen=True)
class FetchNodesRequest:
    """Ask for nodes.

    Attributes:
        split: ``train``, ``val`` or ``test``; None for all nodes.
        node_type: The type; None in a graph with one.
        server_slice: Which of them; None for all.
    """

    split: str | None = None
    node_type: NodeType | None = None
    server_slice: ServerSlice | None = None


@dataclass(frozen=True)
class FetchABLPInputRequest:
    """Ask for anchors and their labels.

    Attributes:
        split: ``train``, ``val`` or ``test``.
        node_type: The type of anchors.
        supervision_edge_type: From anchors to the nodes that labels are of.
        server_slice: Which of the anchors; None for all.
    """

    split: str
    node_type: NodeType
    supervision_edge_type: EdgeType
    server_slice: ServerSlice | None = None
