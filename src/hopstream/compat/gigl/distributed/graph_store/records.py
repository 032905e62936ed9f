"""Records that travel between compute processes and servers, and how each is made of its fields."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hopstream.compat.gigl.distributed.graph_store.messages import (
    FetchABLPInputRequest,
    FetchNodesRequest,
    InitSamplingBackendRequest,
    RegisterBackendRequest,
)
from hopstream.compat.gigl.distributed.graph_store.sharding import ServerSlice
from hopstream.compat.gigl.distributed.sampler import ABLPNodeSamplerInput
from hopstream.compat.gigl.distributed.sampler_options import KHopNeighborSamplerOptions, PPRSamplerOptions
from hopstream.compat.gigl.types.graph import FeatureInfo
from hopstream.compat.glt.distributed.options import RemoteDistSamplingWorkerOptions
from hopstream.compat.glt.partition_books import GLTPartitionBook, RangePartitionBook
from hopstream.compat.glt.sampler import (
    EdgeSamplerInput,
    NodeSamplerInput,
    RemoteNodeSplitSamplerInput,
    SamplingConfig,
    SamplingType,
)
from hopstream.stream.recipes import RECORDS


@dataclass(frozen=True, slots=True, eq=False)
class RangeBook:
    """A ``RangePartitionBook`` on its way."""

    bounds: np.ndarray[Any, np.dtype[np.int64]]
    partition_idx: int


@dataclass(frozen=True, slots=True, eq=False)
class TableBook:
    """A ``GLTPartitionBook`` on its way."""

    table: np.ndarray[Any, np.dtype[np.int64]]


def outgoing(answer: Any) -> Any:
    """An answer as it travels: partition books are no records of their own."""
    if isinstance(answer, RangePartitionBook):
        return RangeBook(answer.partition_bounds.numpy(), answer.partition_idx)
    if isinstance(answer, GLTPartitionBook):
        return TableBook(answer.as_subclass(torch.Tensor).numpy())
    return answer


def _range_book(bounds: Any, partition_idx: int) -> RangePartitionBook:
    stops = [int(stop) for stop in bounds]
    return RangePartitionBook(list(zip([0, *stops[:-1]], stops, strict=True)), partition_idx)


def _table_book(table: Any) -> GLTPartitionBook:
    return GLTPartitionBook(torch.from_numpy(table))


def _config(**given: Any) -> SamplingConfig:
    return SamplingConfig(**{**given, "sampling_type": SamplingType(given["sampling_type"])})


def _feature_info(dim: int, dtype: str) -> FeatureInfo:
    found = getattr(torch, dtype)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{dtype!r} is no dtype of torch")
    return FeatureInfo(dim, found)


def _anchors(**given: Any) -> ABLPNodeSamplerInput:
    for name in ("positive_label_by_edge_types", "negative_label_by_edge_types"):
        given[name] = {edge_type: torch.from_numpy(rows) for edge_type, rows in given[name].items()}
    return ABLPNodeSamplerInput(**given)


MAKERS: dict[str, Callable[..., Any]] = {
    "ABLPNodeSamplerInput": _anchors,
    "EdgeSamplerInput": EdgeSamplerInput,
    "FeatureInfo": _feature_info,
    "FetchABLPInputRequest": FetchABLPInputRequest,
    "FetchNodesRequest": FetchNodesRequest,
    "InitSamplingBackendRequest": InitSamplingBackendRequest,
    "KHopNeighborSamplerOptions": KHopNeighborSamplerOptions,
    "NodeSamplerInput": NodeSamplerInput,
    "PPRSamplerOptions": PPRSamplerOptions,
    "RangeBook": _range_book,
    "RegisterBackendRequest": RegisterBackendRequest,
    "RemoteDistSamplingWorkerOptions": RemoteDistSamplingWorkerOptions,
    "RemoteNodeSplitSamplerInput": RemoteNodeSplitSamplerInput,
    "SamplingConfig": _config,
    "ServerSlice": ServerSlice,
    "TableBook": _table_book,
}
RECORDS.update(MAKERS)
