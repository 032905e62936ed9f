"""Which machines and processes a cluster consists of, and the environment variables that say so."""

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
    """A machine among those that work together; loaders take it and need it no more.

    Attributes:
        main_worker_ip_address: Address of the first machine.
        global_rank: This machine, from 0.
        global_world_size: How many there are.
    """

    main_worker_ip_address: str
    global_rank: int
    global_world_size: int


@dataclass(frozen=True)
class GraphStoreInfo:
    """A cluster of machines that train, which come first in all numbers, and of machines that serve the graph.

    Attributes:
        num_storage_nodes: Machines that serve.
        num_compute_nodes: Machines that train.
        cluster_master_ip: Address of the first machine of all.
        storage_cluster_master_ip: Address of the first one that serves.
        compute_cluster_master_ip: Address of the first one that trains.
        cluster_master_port: Free port of the first machine of all.
        storage_cluster_master_port: Free port of the first one that serves.
        compute_cluster_master_port: Free port of the first one that trains.
        num_processes_per_compute: Processes on each machine that trains.
        rpc_master_port: Where the first machine that serves is asked; a free port of it.
        rpc_wait_port: Another one.
        readiness_uri: Path of the file that says that servers are ready.
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
        """Machines in all."""
        return self.num_storage_nodes + self.num_compute_nodes

    @property
    def compute_cluster_world_size(self) -> int:
        """Processes that train, on all machines."""
        return self.num_compute_nodes * self.num_processes_per_compute

    @property
    def storage_node_rank(self) -> int:
        """This machine among those that serve, from 0.

        Raises:
            SettingsError: ``RANK`` is not set, or it is none of them.
        """
        return self._rank("storage", self.num_compute_nodes, self.num_cluster_nodes)

    @property
    def compute_node_rank(self) -> int:
        """This machine among those that train, from 0.

        Raises:
            SettingsError: ``RANK`` is not set, or it is none of them.
        """
        return self._rank("compute", 0, self.num_compute_nodes)

    def _rank(self, what: str, start: int, stop: int) -> int:
        rank = integer_of_environment("RANK", 0)
        if not start <= rank < stop:
            raise SettingsError(f"RANK is {rank}; {what} machines are {start}..{stop - 1} of this cluster")
        return rank - start


def integer_of_environment(name: str, low: int, default: str | None = None) -> int:
    """The integer that an environment variable holds.

    Args:
        name: The variable.
        low: The least that it may be.
        default: What it is where it is not set.

    Raises:
        SettingsError: It is not set and has no default, or is no integer of ``low`` or above.
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
