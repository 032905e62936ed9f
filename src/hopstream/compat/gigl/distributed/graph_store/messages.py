"""Records of messages between compute processes and servers, and their constructors."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from hopstream.arrays import IntArray
from hopstream.compat.gigl.distributed.graph_store.sharding import ServerSlice
from hopstream.compat.gigl.distributed.sampler import ABLPNodeSamplerInput
from hopstream.compat.gigl.distributed.sampler_options import (
    KHopNeighborSamplerOptions,
    PPRSamplerOptions,
    SamplerOptions,
)
from hopstream.compat.gigl.src.common.types.graph_data import EdgeType, NodeType
from hopstream.compat.gigl.types.graph import FeatureInfo
from hopstream.compat.glt.distributed.options import RemoteDistSamplingWorkerOptions
from hopstream.compat.glt.partition_books import GLTPartitionBook, PartitionBook, RangePartitionBook
from hopstream.compat.glt.sampler import (
    EdgeSamplerInput,
    NodeSamplerInput,
    RemoteNodeSplitSamplerInput,
    SamplingConfig,
    SamplingType,
)
from hopstream.stream.messages import RECORDS


@dataclass(frozen=True)
class InitSamplingBackendRequest:
    """Request to make or join the sampling backend of one loader of all compute ranks.

    Attributes:
        backend_key: The backend's name on all ranks.
        worker_options: Number of workers, and how far they prefetch.
        sampler_options: How neighbourhoods are sampled.
        sampling_config: How batches are made; equal on all ranks.
    """

    backend_key: str
    worker_options: RemoteDistSamplingWorkerOptions
    sampler_options: SamplerOptions
    sampling_config: SamplingConfig


@dataclass(frozen=True)
class RegisterBackendRequest:
    """Request to register the input of one compute rank with a backend.

    Attributes:
        backend_id: Number of the backend from ``init_sampling_backend``.
        worker_key: Name of the rank's channel.
        sampler_input: The seeds; a split means the nodes of the server's partition.
        sampling_config: Equal to the backend's.
        buffer_capacity: Limit of batches in the buffer.
        buffer_size: Limit of their bytes, or a text such as ``"64MB"``.
    """

    backend_id: int
    worker_key: str
    sampler_input: NodeSamplerInput | EdgeSamplerInput | ABLPNodeSamplerInput | RemoteNodeSplitSamplerInput
    sampling_config: SamplingConfig
    buffer_capacity: int
    buffer_size: int | str


@dataclass(frozen=True)
class FetchNodesRequest:
    """Request for nodes.

    Attributes:
        split: ``train``, ``val`` or ``test``; None for all nodes.
        node_type: The type; None in a graph with one node type.
        server_slice: The slice of the nodes; None for all of them.
    """

    split: str | None = None
    node_type: NodeType | None = None
    server_slice: ServerSlice | None = None


@dataclass(frozen=True)
class FetchABLPInputRequest:
    """Request for anchors and their labels.

    Attributes:
        split: ``train``, ``val`` or ``test``.
        node_type: The type of anchors.
        supervision_edge_type: The edge type from anchors to label nodes.
        server_slice: The slice of the anchors; None for all.
    """

    split: str
    node_type: NodeType
    supervision_edge_type: EdgeType
    server_slice: ServerSlice | None = None


@dataclass(frozen=True, slots=True, eq=False)
class SentBook:
    """A partition book in a message.

    Attributes:
        numbers: int64[n], the end of each partition's range, or the partition of each id.
        partition_idx: The partition of the process, for a book of ranges; None for a table.
    """

    numbers: IntArray
    partition_idx: int | None = None


def outgoing(answer: Any) -> Any:
    """Convert an answer for sending: partition books become ``SentBook``."""
    if isinstance(answer, RangePartitionBook):
        return SentBook(answer.partition_bounds.numpy(), answer.partition_idx)
    return SentBook(answer.as_subclass(Tensor).numpy()) if isinstance(answer, GLTPartitionBook) else answer


def _received_book(numbers: IntArray, partition_idx: int | None) -> PartitionBook:
    if partition_idx is None:
        return GLTPartitionBook(numbers)
    return RangePartitionBook(list(pairwise([0, *numbers.tolist()])), partition_idx)


def _feature_info(dim: int, dtype: str) -> FeatureInfo:
    found = getattr(torch, dtype)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{dtype!r} is not a dtype of torch")
    return FeatureInfo(dim, found)


def _config(sampling_type: int, **fields: Any) -> SamplingConfig:
    return SamplingConfig(SamplingType(sampling_type), **fields)


_AS_THEY_ARE = (
    ABLPNodeSamplerInput, EdgeSamplerInput, FetchABLPInputRequest, FetchNodesRequest, InitSamplingBackendRequest,
    KHopNeighborSamplerOptions, NodeSamplerInput, PPRSamplerOptions, RegisterBackendRequest,
    RemoteDistSamplingWorkerOptions, RemoteNodeSplitSamplerInput, ServerSlice,
)  # fmt: skip
RECORDS.update({one.__name__: one for one in _AS_THEY_ARE})
RECORDS.update(FeatureInfo=_feature_info, SamplingConfig=_config, SentBook=_received_book)
