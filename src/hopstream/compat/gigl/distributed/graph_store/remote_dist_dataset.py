"""Dataset of a compute process: requests inputs of loaders and facts of the graph from servers."""

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
    """Graph on storage servers, as seen by one compute process."""

    def __init__(self, cluster_info: GraphStoreInfo, local_rank: int) -> None:
        """Keep the cluster; send no request.

        Args:
            cluster_info: The cluster.
            local_rank: Rank of this process on its machine.
        """
        self._cluster_info, self._local_rank = cluster_info, local_rank

    @property
    def cluster_info(self) -> GraphStoreInfo:
        """The cluster."""
        return self._cluster_info

    @property
    def local_rank(self) -> int:
        """Rank of this process on its machine."""
        return self._local_rank

    def fetch_node_ids(
        self,
        rank: int | None = None,
        world_size: int | None = None,
        split: Split | None = None,
        node_type: NodeType | None = None,
    ) -> dict[int, torch.Tensor]:
        """Return the nodes of one rank's input, by the server that owns them.

        Args:
            rank: The rank; None, with ``world_size``, for all nodes.
            world_size: Number of ranks that share the nodes.
            split: A split; None for all nodes.
            node_type: The type; None for the only one.

        Returns:
            Each server to int64[n], ascending; empty for servers outside the rank's share.

        Raises:
            ValueError: Only one of ``rank`` and ``world_size`` is given, the rank is out of range, there is no such
                split, or the type is missing, or given for a homogeneous graph.
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
        """Return the anchors of one rank's input, with their labels, by the server that owns them.

        Args:
            split: A split of the anchors.
            rank: The rank; None, with ``world_size``, for all anchors.
            world_size: Number of ranks that share the anchors.
            anchor_node_type: Type of the anchors; None, with ``supervision_edge_type``, for the only one.
            supervision_edge_type: The edge type of the labels, from anchors to label nodes.

        Returns:
            Each server to its anchors; no anchors for servers outside the rank's share.

        Raises:
            ValueError: One of two arguments that belong together is missing, the rank is out of range, or there is no
                such split or type.
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
        """Return width and dtype of node features: of the only type, or by type; None without features."""
        found: FeatureInfo | dict[NodeType, FeatureInfo] | None = request_server(0, DistServer.get_node_feature_info)
        return found

    def fetch_edge_feature_info(self) -> FeatureInfo | dict[EdgeType, FeatureInfo] | None:
        """Return width and dtype of edge features: of the only type, or by type; None without features."""
        found = request_server(0, DistServer.get_edge_feature_info)
        return {EdgeType._make(t): info for t, info in found.items()} if isinstance(found, dict) else found

    def fetch_node_quantization_metadata(self) -> dict[NodeType, FeatureQuantizationMetadata] | None:
        """Return None: no features are quantised."""
        return None

    def fetch_edge_quantization_metadata(self) -> dict[EdgeType, FeatureQuantizationMetadata] | None:
        """Return None: no features are quantised."""
        return None

    def fetch_edge_dir(self) -> Literal["in", "out"]:
        """Return the direction in which edges are followed."""
        return "in" if request_server(0, DistServer.get_edge_dir) == "in" else "out"

    def fetch_node_partition_book(self, node_type: NodeType | None = None) -> PartitionBook | None:
        """Return the partition of every node of a type."""
        book: PartitionBook | None = request_server(0, DistServer.get_node_partition_book, node_type)
        return book

    def fetch_edge_partition_book(self, edge_type: EdgeType | None = None) -> PartitionBook | None:
        """Return the partition of every edge of a type; None if the dataset has no edge keys."""
        book: PartitionBook | None = request_server(0, DistServer.get_edge_partition_book, edge_type)
        return book

    def fetch_node_types(self) -> list[NodeType] | None:
        """Return node types; None for a homogeneous graph."""
        found = request_server(0, DistServer.get_node_types)
        return None if found is None else [NodeType(one) for one in found]

    def fetch_edge_types(self) -> list[EdgeType] | None:
        """Return edge types; None for a homogeneous graph."""
        found = request_server(0, DistServer.get_edge_types)
        return None if found is None else [EdgeType._make(one) for one in found]

    def fetch_edge_weights_registered(self) -> bool:
        """Return whether edges can be drawn by weights."""
        return bool(request_server(0, DistServer.get_edge_weights_registered))

    def fetch_free_ports_on_storage_cluster(self, num_ports: int) -> list[int]:
        """Return free ports of the machine of rank 0, equal on all ranks; loaders need none.

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
        """Return the answer of every server in a rank's share, and ``empty`` for the other servers."""
        if (rank is None) != (world_size is None):
            raise SettingsError("give both rank and world_size, or neither")
        num_servers = session().num_servers
        if rank is None or world_size is None:
            return {server: ask(server, None) for server in range(num_servers)}
        slices = compute_server_assignments(num_servers, world_size, rank)
        return {s: ask(s, slices[s]) if s in slices else empty for s in range(num_servers)}
