"""How the machines of a cluster learn each other's addresses and ports, and that servers are ready.

Machines tell each other integers through the process group of ``torch.distributed``; waits end with its timeout.
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
"""Ports that are looked for at once, at most."""


def get_free_port() -> int:
    """A port of this machine that nobody listens on now."""
    return get_free_ports(1)[0]


def get_free_ports(num_ports: int) -> list[int]:
    """Different ports of this machine that nobody listens on now.

    Raises:
        SettingsError: ``num_ports`` is no integer from 1 to ``MAX_PORTS``.
    """
    num_ports = read_integer("num_ports", num_ports, 1, MAX_PORTS)
    with ExitStack() as stack:  # all are held until the last is found, so none is found twice
        holders = [stack.enter_context(socket.socket()) for _ in range(num_ports)]
        for holder in holders:
            holder.bind(("", 0))
        return [int(holder.getsockname()[1]) for holder in holders]


def get_free_ports_from_master_node(num_ports: int, _global_rank_override: int | None = None) -> list[int]:
    """Free ports of rank 0; as ``get_free_ports_from_node``."""
    return get_free_ports_from_node(num_ports, 0, _global_rank_override)


def get_free_ports_from_node(num_ports: int, node_rank: int, _global_rank_override: int | None = None) -> list[int]:
    """Free ports of one rank, the same on all ranks. Every rank of the process group must call it.

    Args:
        num_ports: How many.
        node_rank: Whose.
        _global_rank_override: This rank, where the process group does not say it.

    Raises:
        SettingsError: A number is out of its range.
        StateError: There is no process group.
    """
    is_own = _rank_among(node_rank, _global_rank_override) == node_rank
    num_ports = read_integer("num_ports", num_ports, 1, MAX_PORTS)
    return _told_by(node_rank, get_free_ports(num_ports) if is_own else [0] * num_ports)


def get_internal_ip_from_master_node(_global_rank_override: int | None = None) -> str:
    """The address of rank 0; as ``get_internal_ip_from_node``."""
    return get_internal_ip_from_node(0, _global_rank_override)


def get_internal_ip_from_node(node_rank: int, _global_rank_override: int | None = None) -> str:
    """The IPv4 address of one rank's machine, the same on all ranks. Every rank of the process group must call it.

    Args:
        node_rank: Whose.
        _global_rank_override: This rank, where the process group does not say it.

    Raises:
        SettingsError: There is no such rank.
        StateError: There is no process group.
        StoreUnavailable: The machine's name has no address.
    """
    is_own = _rank_among(node_rank, _global_rank_override) == node_rank
    return str(IPv4Address(_told_by(node_rank, [_own_address() if is_own else 0])[0]))


def get_internal_ip_from_all_ranks() -> list[str]:
    """The IPv4 address of every rank's machine. Every rank of the process group must call it.

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
    """Say to those that wait for this file that servers are ready; it is there as a whole or not at all.

    Args:
        readiness_uri: A path that all machines see; give every run another.

    Raises:
        SettingsError: It is a URI.
    """
    write_text(local_path(readiness_uri), "ready")


def wait_for_readiness_signal(
    readiness_uri: str | os.PathLike[str],
    timeout: float = 3600.0,
    poll_interval: float = 10.0,
    log_every_n_attempts: int = 10,
) -> None:
    """Wait until a file is there.

    Args:
        readiness_uri: Its path.
        timeout: Seconds to wait at most.
        poll_interval: Seconds between two looks.
        log_every_n_attempts: Looks per line in the log.

    Raises:
        SettingsError: It is a URI, or a number is out of its range.
        StoreTimeout: It was not there in time; also a ``TimeoutError``.
    """
    path = local_path(readiness_uri)
    check_seconds("timeout", timeout)
    check_seconds("poll_interval", poll_interval)
    read_integer("log_every_n_attempts", log_every_n_attempts, 1)
    ends, num_looks = time.monotonic() + timeout, 0
    while not path.exists():
        left_s = ends - time.monotonic()
        if left_s <= 0:
            raise StoreTimeout(f"{path} was not there in {timeout:g} s; look whether servers started")
        if num_looks % log_every_n_attempts == 0:
            LOG.info("waiting for %s, for %.0f s more", path, left_s)
        num_looks += 1
        time.sleep(min(poll_interval, left_s))


def get_graph_store_info() -> GraphStoreInfo:
    """The cluster as the environment and the process group say it. Every rank of the process group must call it.

    The process group has one process of every machine: first those that train, then those that serve. The numbers of
    both and the path of the readiness file are in ``GIGL_GRAPH_STORE_NUM_COMPUTE_NODES``,
    ``GIGL_GRAPH_STORE_NUM_STORAGE_NODES`` and ``GIGL_GRAPH_STORE_READINESS_URI``. The number of processes per machine
    that trains is in ``COMPUTE_CLUSTER_LOCAL_WORLD_SIZE``; it is 1 where that is not set. Vertex AI's
    ``CLUSTER_SPEC`` is not read.

    Raises:
        StateError: There is no process group.
        SettingsError: A variable is missing or wrong, or the process group has another size.
        StoreUnavailable: The name of the first machine of either kind has no address.
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
    """Machines that train, machines that serve, and the path of the readiness file."""
    names = (
        GRAPH_STORE_NUM_COMPUTE_NODES_ENV_KEY,
        GRAPH_STORE_NUM_STORAGE_NODES_ENV_KEY,
        GRAPH_STORE_READINESS_URI_ENV_KEY,
    )
    missing = [name for name in names if not os.environ.get(name)]
    if missing:
        raise SettingsError(
            f"environment variables that say what the cluster is are not set: {', '.join(missing)}; set all of "
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
    """This rank, after a check of another's."""
    _check_group()
    read_integer("node_rank", node_rank, 0, dist.get_world_size() - 1)
    return dist.get_rank() if own_rank is None else own_rank


def _told_by(rank: int, numbers: Sequence[int]) -> list[int]:
    """The numbers of one rank, on all ranks."""
    told = _tensor(numbers)
    dist.broadcast(told, src=rank)
    return [int(number) for number in told]


def _tensor(numbers: Sequence[int]) -> Tensor:
    """int64[n], on a device that the process group can send from."""
    return torch.tensor(numbers, dtype=torch.int64, device="cuda" if dist.get_backend() == "nccl" else "cpu")


def _own_address() -> int:
    """The IPv4 address of this machine's name, as a number."""
    name = socket.gethostname()
    try:
        return int(IPv4Address(socket.gethostbyname(name)))
    except OSError as error:
        raise StoreUnavailable(f"this machine's name {name!r} has no IPv4 address; add it to /etc/hosts") from error
