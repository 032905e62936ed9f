"""Machines and processes of a cluster, and the environment variables that describe them."""

from __future__ import annotations

import os
from dataclasses import dataclass

from hopstream.errors import SettingsError

COMPUTE_CLUSTER_LOCAL_WORLD_SIZE_ENV_KEY = "COMPUTE_CLUSTER_LOCAL_WORLD_SIZE"
GRAPH_STORE_NUM_COMPUTE_NODES_ENV_KEY = "GIGL_GRAPH_STORE_NUM_COMPUTE_NODES"
GRAPH_STORE_NUM_STORAGE_NODES_ENV_KEY = "GIGL_GRAPH_STORE_NUM_STORAGE_NODES"
GRAPH_STORE_READINESS_URI_ENV_KEY = "GIGL_GRAPH_STORE_READINESS_URI"


@dataclass(frozen=True)
class DistributedContext:
    """A machine of a cluster; loaders accept it for compatibility and ignore it.

    Attributes:
        main_worker_ip_address: Address of the first machine.
        global_rank: Rank of this machine, from 0.
        global_world_size: Number of machines.
    """

    main_worker_ip_address: str
    global_rank: int
    global_world_size: int


@dataclass(frozen=True)
class GraphStoreInfo:
    """A cluster of compute machines, which have the first ranks, and storage machines.

    Attributes:
        num_storage_nodes: Number of storage machines.
        num_compute_nodes: Number of compute machines.
        cluster_master_ip: Address of the first machine of the cluster.
        storage_cluster_master_ip: Address of the first storage machine.
        compute_cluster_master_ip: Address of the first compute machine.
        cluster_master_port: Free port of the first machine of the cluster.
        storage_cluster_master_port: Free port of the first storage machine.
        compute_cluster_master_port: Free port of the first compute machine.
        num_processes_per_compute: Processes per compute machine.
        rpc_master_port: Port at which storage server 0 listens.
        rpc_wait_port: Another free port of the first storage machine.
        readiness_uri: Path of the readiness file of the servers.
    """

    num_storage_nodes: int
    num_compute_nodes: int
    cluster_master_ip: str
    storage_cluster_master_ip: str
    compute_cluster_master_ip: str
    cluster_master_port: int
    storage_cluster_master_port: int
    compute_cluster_master_port: int
    num_processes_per_compute: int
    rpc_master_port: int
    rpc_wait_port: int
    readiness_uri: str | os.PathLike[str]

    @property
    def num_cluster_nodes(self) -> int:
        """Number of all machines."""
        return self.num_storage_nodes + self.num_compute_nodes

    @property
    def compute_cluster_world_size(self) -> int:
        """Number of compute processes on all machines."""
        return self.num_compute_nodes * self.num_processes_per_compute

    @property
    def storage_node_rank(self) -> int:
        """Rank of this machine among the storage machines, from 0.

        Raises:
            SettingsError: ``RANK`` is not set, or is no storage machine's.
        """
        return self._rank("storage", self.num_compute_nodes, self.num_cluster_nodes)

    @property
    def compute_node_rank(self) -> int:
        """Rank of this machine among the compute machines, from 0.

        Raises:
            SettingsError: ``RANK`` is not set, or is no compute machine's.
        """
        return self._rank("compute", 0, self.num_compute_nodes)

    def _rank(self, what: str, start: int, stop: int) -> int:
        rank = integer_of_environment("RANK", 0)
        if not start <= rank < stop:
            raise SettingsError(f"RANK is {rank}; {what} machines are {start}..{stop - 1} of this cluster")
        return rank - start


def integer_of_environment(name: str, low: int, default: str | None = None) -> int:
    """Read an integer from an environment variable.

    Args:
        name: The variable.
        low: The smallest valid value.
        default: The value of an unset variable.

    Raises:
        SettingsError: The variable is not set and has no default, or is no integer of at least ``low``.
    """
    text = os.environ.get(name, default)
    if text is None:
        raise SettingsError(f"the environment variable {name} is not set; it must be an integer, {low} or above")
    try:
        value = int(text)
    except ValueError:
        value = low - 1
    if value < low:
        raise SettingsError(f"the environment variable {name} is {text!r}; it must be an integer, {low} or above")
    return value
