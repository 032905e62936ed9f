"""Exchange of addresses, ports and readiness between the machines of a cluster.

Machines exchange integers through the process group of ``torch.distributed``, whose timeout is the deadline.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack
from ipaddress import IPv4Address

import torch
import torch.distributed as dist
from torch import Tensor

from hopstream.arrays import write_text
from hopstream.checks import check_seconds, read_integer
from hopstream.compat.gigl.env.distributed import (
    COMPUTE_CLUSTER_LOCAL_WORLD_SIZE_ENV_KEY,
    GRAPH_STORE_NUM_COMPUTE_NODES_ENV_KEY,
    GRAPH_STORE_NUM_STORAGE_NODES_ENV_KEY,
    GRAPH_STORE_READINESS_URI_ENV_KEY,
    GraphStoreInfo,
    integer_of_environment,
)
from hopstream.errors import SettingsError, StateError, StoreTimeout, StoreUnavailable
from hopstream.uris import local_path

LOG = logging.getLogger(__name__)
MAX_PORTS = 1 << 12
"""Limit of ports per call."""


def get_free_port() -> int:
    """Return a free port of this machine."""
    return get_free_ports(1)[0]


def get_free_ports(num_ports: int) -> list[int]:
    """Return distinct free ports of this machine.

    Raises:
        SettingsError: ``num_ports`` is no integer from 1 to ``MAX_PORTS``.
    """
    num_ports = read_integer("num_ports", num_ports, 1, MAX_PORTS)
    with ExitStack() as stack:  # holds all ports to the end, so none is found twice
        holders = [stack.enter_context(socket.socket()) for _ in range(num_ports)]
        for holder in holders:
            holder.bind(("", 0))
        return [int(holder.getsockname()[1]) for holder in holders]


def get_free_ports_from_master_node(num_ports: int, _global_rank_override: int | None = None) -> list[int]:
    """Return free ports of rank 0; see ``get_free_ports_from_node``."""
    return get_free_ports_from_node(num_ports, 0, _global_rank_override)


def get_free_ports_from_node(num_ports: int, node_rank: int, _global_rank_override: int | None = None) -> list[int]:
    """Return free ports of one rank, equal on all ranks; every rank of the process group must call it.

    Args:
        num_ports: Number of ports.
        node_rank: The rank with the ports.
        _global_rank_override: This process's rank, if it is not the process group's.

    Raises:
        SettingsError: A number is out of its range.
        StateError: There is no process group.
    """
    is_own = _rank_among(node_rank, _global_rank_override) == node_rank
    num_ports = read_integer("num_ports", num_ports, 1, MAX_PORTS)
    return _told_by(node_rank, get_free_ports(num_ports) if is_own else [0] * num_ports)


def get_internal_ip_from_master_node(_global_rank_override: int | None = None) -> str:
    """Return the address of rank 0; see ``get_internal_ip_from_node``."""
    return get_internal_ip_from_node(0, _global_rank_override)


def get_internal_ip_from_node(node_rank: int, _global_rank_override: int | None = None) -> str:
    """Return the IPv4 address of one rank's machine, on all ranks; every rank must call it.

    Args:
        node_rank: The rank.
        _global_rank_override: This process's rank, if it is not the process group's.

    Raises:
        SettingsError: There is no such rank.
        StateError: There is no process group.
        StoreUnavailable: The machine's name has no address.
    """
    is_own = _rank_among(node_rank, _global_rank_override) == node_rank
    return str(IPv4Address(_told_by(node_rank, [_own_address() if is_own else 0])[0]))


def get_internal_ip_from_all_ranks() -> list[str]:
    """Return the IPv4 address of every rank's machine; every rank of the process group must call it.

    Raises:
        StateError: There is no process group.
        StoreUnavailable: The machine's name has no address.
    """
    _check_group()
    own = _tensor([_own_address()])
    told = [torch.zeros_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(told, own)
    return [str(IPv4Address(int(address))) for address in told]


def write_readiness_signal(readiness_uri: str | os.PathLike[str]) -> None:
    """Write the file that reports ready servers, atomically.

    Args:
        readiness_uri: A path that all machines see; use another one for every run.

    Raises:
        SettingsError: ``readiness_uri`` is a URI.
    """
    write_text(local_path(readiness_uri), "ready")


def wait_for_readiness_signal(
    readiness_uri: str | os.PathLike[str],
    timeout: float = 3600.0,
    poll_interval: float = 10.0,
    log_every_n_attempts: int = 10,
) -> None:
    """Wait until a file exists.

    Args:
        readiness_uri: The path.
        timeout: Deadline in seconds.
        poll_interval: Seconds between two checks.
        log_every_n_attempts: Checks per line in the log.

    Raises:
        SettingsError: ``readiness_uri`` is a URI, or a number is out of its range.
        StoreTimeout: The deadline passed; also a ``TimeoutError``.
    """
    path = local_path(readiness_uri)
    check_seconds("timeout", timeout)
    check_seconds("poll_interval", poll_interval)
    read_integer("log_every_n_attempts", log_every_n_attempts, 1)
    ends, num_looks = time.monotonic() + timeout, 0
    while not path.exists():
        left_s = ends - time.monotonic()
        if left_s <= 0:
            raise StoreTimeout(f"{path} did not exist within {timeout:g} s; check that servers started")
        if num_looks % log_every_n_attempts == 0:
            LOG.info("waiting for %s, at most %.0f s more", path, left_s)
        num_looks += 1
        time.sleep(min(poll_interval, left_s))


def get_graph_store_info() -> GraphStoreInfo:
    """Return the cluster from the environment and the process group; every rank must call it.

    The process group has one process per machine: compute machines first, then storage machines. The environment
    variables ``GIGL_GRAPH_STORE_NUM_COMPUTE_NODES`` and ``GIGL_GRAPH_STORE_NUM_STORAGE_NODES`` have their numbers,
    ``GIGL_GRAPH_STORE_READINESS_URI`` the path of the readiness file, and ``COMPUTE_CLUSTER_LOCAL_WORLD_SIZE`` the
    number of processes per compute machine, by default 1. Vertex AI's ``CLUSTER_SPEC`` is not read.

    Raises:
        StateError: There is no process group.
        SettingsError: A variable is missing or wrong, or the process group has another size.
        StoreUnavailable: The name of the first compute or storage machine has no address.
    """
    _check_group()
    num_compute, num_storage, readiness_uri = _cluster_of_environment()
    num_processes = integer_of_environment(COMPUTE_CLUSTER_LOCAL_WORLD_SIZE_ENV_KEY, 1, default="1")
    if dist.get_world_size() != num_compute + num_storage:
        raise SettingsError(
            f"the process group has {dist.get_world_size()} ranks; wanted one for each of {num_compute} compute and "
            f"{num_storage} storage machines"
        )
    compute_ip, storage_ip = get_internal_ip_from_node(0), get_internal_ip_from_node(num_compute)
    cluster_port, compute_port = get_free_ports_from_node(2, 0)
    storage_port, rpc_port, wait_port = get_free_ports_from_node(3, num_compute)
    return GraphStoreInfo(
        num_storage_nodes=num_storage,
        num_compute_nodes=num_compute,
        cluster_master_ip=compute_ip,
        storage_cluster_master_ip=storage_ip,
        compute_cluster_master_ip=compute_ip,
        cluster_master_port=cluster_port,
        storage_cluster_master_port=storage_port,
        compute_cluster_master_port=compute_port,
        num_processes_per_compute=num_processes,
        rpc_master_port=rpc_port,
        rpc_wait_port=wait_port,
        readiness_uri=readiness_uri,
    )


def _cluster_of_environment() -> tuple[int, int, str]:
    """Return the numbers of compute and storage machines, and the path of the readiness file."""
    names = (
        GRAPH_STORE_NUM_COMPUTE_NODES_ENV_KEY,
        GRAPH_STORE_NUM_STORAGE_NODES_ENV_KEY,
        GRAPH_STORE_READINESS_URI_ENV_KEY,
    )
    missing = [name for name in names if not os.environ.get(name)]
    if missing:
        raise SettingsError(
            f"environment variables that describe the cluster are not set: {', '.join(missing)}; set all of "
            f"{', '.join(names)} (Vertex AI's CLUSTER_SPEC is not read)"
        )
    readiness_uri = os.environ[GRAPH_STORE_READINESS_URI_ENV_KEY]
    local_path(readiness_uri)  # a URI is refused before anything starts
    return integer_of_environment(names[0], 1), integer_of_environment(names[1], 1), readiness_uri


def _check_group() -> None:
    if not dist.is_available() or not dist.is_initialized():
        raise StateError(
            "there is no process group; call torch.distributed.init_process_group('gloo') on every machine"
        )


def _rank_among(node_rank: int, own_rank: int | None) -> int:
    """Check a rank, and return this process's rank."""
    _check_group()
    read_integer("node_rank", node_rank, 0, dist.get_world_size() - 1)
    return dist.get_rank() if own_rank is None else own_rank


def _told_by(rank: int, numbers: Sequence[int]) -> list[int]:
    """Broadcast the numbers of one rank to all ranks."""
    told = _tensor(numbers)
    dist.broadcast(told, src=rank)
    return [int(number) for number in told]


def _tensor(numbers: Sequence[int]) -> Tensor:
    """Return int64[n], on a device from which the process group can send."""
    return torch.tensor(numbers, dtype=torch.int64, device="cuda" if dist.get_backend() == "nccl" else "cpu")


def _own_address() -> int:
    """Return the IPv4 address of this machine's name, as an integer."""
    name = socket.gethostname()
    try:
        return int(IPv4Address(socket.gethostbyname(name)))
    except OSError as error:
        raise StoreUnavailable(f"this machine's name {name!r} has no IPv4 address; add it to /etc/hosts") from error
