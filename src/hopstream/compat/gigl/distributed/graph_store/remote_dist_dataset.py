"""Dataset of a compute process: asks the storage servers for inputs of loaders and for facts of the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

import torch

from hopstream.compat.gigl.distributed.graph_store.compute import request_server, session
from hopstream.compat.gigl.distributed.graph_store.dist_server import DistServer
from hopstream.compat.gigl.distributed.graph_store.messages import FetchABLPInputRequest, FetchNodesRequest
from hopstream.compat.gigl.distributed.graph_store.sharding import ServerSlice, compute_server_assignments
from hopstream.compat.gigl.distributed.utils.networking import get_free_ports
from hopstream.compat.gigl.env.distributed import GraphStoreInfo
from hopstream.compat.gigl.src.common.types.graph_data import EdgeType, NodeType
from hopstream.compat.gigl.types.graph import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    FeatureInfo,
    FeatureQuantizationMetadata,
)
from hopstream.compat.gigl.utils.sampling import ABLPInputNodes
from hopstream.compat.glt.partition_books import PartitionBook
from hopstream.errors import SettingsError

Split = Literal["train", "val", "test"]
T = TypeVar("T")


class RemoteDistDataset:
    """The graph on storage servers, as one compute process asks for it."""

    def __init__(self, cluster_info: GraphStoreInfo, local_rank: int) -> None:
        """Ask nothing yet.

        Args:
            cluster_info: The cluster.
            local_rank: This process among those of its machine.
        """
        self._cluster_info, self._local_rank = cluster_info, local_rank

    @property
    def cluster_info(self) -> GraphStoreInfo:
        """The cluster."""
        return self._cluster_info

    @property
    def local_rank(self) -> int:
        """This process among those of its machine."""
        return self._local_rank

    def fetch_node_ids(
        self,
        rank: int | None = None,
        world_size: int | None = None,
        split: Split | None = None,
        node_type: NodeType | None = None,
    ) -> dict[int, torch.Tensor]:
        """The nodes that are one rank's input, by the server that owns them.

        Args:
            rank: The rank; None, with ``world_size``, for all nodes.
            world_size: How many ranks share the nodes.
            split: A split; None for all nodes.
            node_type: The type; None for the only one.

        Returns:
            Every server to int64[n], ascending; none for servers that the rank takes nothing of.

        Raises:
            ValueError: ``rank`` without ``world_size`` or the other way, a rank outside, no such split, or a type that
                is missing or too much.
        """
        return self._of_servers(
            rank, world_size, torch.empty(0, dtype=torch.int64),
            lambda server, part: request_server(
                server, DistServer.get_node_ids, FetchNodesRequest(split=split, node_type=node_type, server_slice=part)
            ),
        )  # fmt: skip

    def fetch_ablp_input(
        self,
        split: Split,
        rank: int | None = None,
        world_size: int | None = None,
        anchor_node_type: NodeType | None = None,
        supervision_edge_type: EdgeType | None = None,
    ) -> dict[int, ABLPInputNodes]:
        """The anchors that are one rank's input, with their labels, by the server that owns them.

        Args:
            split: A split of the anchors.
            rank: The rank; None, with ``world_size``, for all anchors.
            world_size: How many ranks share the anchors.
            anchor_node_type: Their type; None, with ``supervision_edge_type``, for the only one.
            supervision_edge_type: The edge type of the labels, from anchors to label nodes.

        Returns:
            Every server to its anchors; no anchors for servers that the rank takes nothing of.

        Raises:
            ValueError: One of two arguments that belong together is missing, a rank outside, or no such split or type.
        """
        if (anchor_node_type is None) != (supervision_edge_type is None):
            raise SettingsError("give both anchor_node_type and supervision_edge_type, or neither")
        anchor_type = anchor_node_type or DEFAULT_HOMOGENEOUS_NODE_TYPE
        supervision = EdgeType._make(supervision_edge_type or DEFAULT_HOMOGENEOUS_EDGE_TYPE)

        def ask(server: int, part: ServerSlice | None) -> ABLPInputNodes:
            request = FetchABLPInputRequest(split, anchor_type, supervision, part)
            anchors, positives, negatives = request_server(server, DistServer.get_ablp_input, request)
            return ABLPInputNodes(anchors, anchor_type, {supervision: (positives, negatives)})

        none = torch.empty(0, dtype=torch.int64)
        empty = ABLPInputNodes(none, anchor_type, {supervision: (none.reshape(0, 0), None)})
        return self._of_servers(rank, world_size, empty, ask)

    def fetch_node_feature_info(self) -> FeatureInfo | dict[NodeType, FeatureInfo] | None:
        """Width and dtype of the features of nodes: of the only type, or by type; None where there are none."""
        found: FeatureInfo | dict[NodeType, FeatureInfo] | None = request_server(0, DistServer.get_node_feature_info)
        return found

    def fetch_edge_feature_info(self) -> FeatureInfo | dict[EdgeType, FeatureInfo] | None:
        """Width and dtype of the features of edges: of the only type, or by type; None where there are none."""
        found = request_server(0, DistServer.get_edge_feature_info)
        return {EdgeType._make(t): info for t, info in found.items()} if isinstance(found, dict) else found

    def fetch_node_quantization_metadata(self) -> dict[NodeType, FeatureQuantizationMetadata] | None:
        """None: no features are quantised."""
        return None

    def fetch_edge_quantization_metadata(self) -> dict[EdgeType, FeatureQuantizationMetadata] | None:
        """None: no features are quantised."""
        return None

    def fetch_edge_dir(self) -> Literal["in", "out"]:
        """The direction in which edges are followed."""
        return "in" if request_server(0, DistServer.get_edge_dir) == "in" else "out"

    def fetch_node_partition_book(self, node_type: NodeType | None = None) -> PartitionBook | None:
        """The partition of every node of a type."""
        book: PartitionBook | None = request_server(0, DistServer.get_node_partition_book, node_type)
        return book

    def fetch_edge_partition_book(self, edge_type: EdgeType | None = None) -> PartitionBook | None:
        """The partition of every edge of a type; None where the dataset keeps no keys of edges."""
        book: PartitionBook | None = request_server(0, DistServer.get_edge_partition_book, edge_type)
        return book

    def fetch_node_types(self) -> list[NodeType] | None:
        """Node types; None for a homogeneous graph."""
        found = request_server(0, DistServer.get_node_types)
        return None if found is None else [NodeType(one) for one in found]

    def fetch_edge_types(self) -> list[EdgeType] | None:
        """Edge types; None for a homogeneous graph."""
        found = request_server(0, DistServer.get_edge_types)
        return None if found is None else [EdgeType._make(one) for one in found]

    def fetch_edge_weights_registered(self) -> bool:
        """Whether edges can be drawn by weights."""
        return bool(request_server(0, DistServer.get_edge_weights_registered))

    def fetch_free_ports_on_storage_cluster(self, num_ports: int) -> list[int]:
        """Free ports of this machine, the same list on all ranks; loaders need none.

        Raises:
            ValueError: There is no process group.
        """
        if not torch.distributed.is_initialized():
            raise SettingsError("there is no process group; call init_compute_process first")
        ports: list[Any] = [get_free_ports(num_ports) if torch.distributed.get_rank() == 0 else None]
        torch.distributed.broadcast_object_list(ports)
        return list(ports[0])

    def _of_servers(
        self, rank: int | None, world_size: int | None, empty: T, ask: Callable[[int, ServerSlice | None], T]
    ) -> dict[int, T]:
        """The answer of every server that a rank takes something of."""
        if (rank is None) != (world_size is None):
            raise SettingsError("give both rank and world_size, or neither")
        num_servers = session().num_servers
        if rank is None or world_size is None:
            return {server: ask(server, None) for server in range(num_servers)}
        slices = compute_server_assignments(num_servers, world_size, rank)
        return {s: ask(s, slices[s]) if s in slices else empty for s in range(num_servers)}
