"""Compute process of graph-store mode: joins storage servers and other compute ranks, and leaves."""

from __future__ import annotations

from datetime import timedelta

import torch

from hopstream.compat.gigl.distributed.utils.networking import wait_for_readiness_signal
from hopstream.compat.gigl.env.distributed import GraphStoreInfo
from hopstream.compat.glt.distributed.dist_client import Session, check_no_session, set_session
from hopstream.compat.glt.distributed.dist_client import async_request_server as async_request_server
from hopstream.compat.glt.distributed.dist_client import request_server as request_server
from hopstream.compat.glt.distributed.dist_client import session as session
from hopstream.compat.glt.distributed.roster import Meeting
from hopstream.errors import SettingsError
from hopstream.store.settings import StoreSettings

GROUP_S = 1800.0
"""Deadline in seconds for other compute ranks, at the start and in collectives: torch's default for Gloo."""


def init_compute_process(
    local_rank: int,
    cluster_info: GraphStoreInfo,
    compute_world_backend: str | None = None,
    rpc_timeout: int = 300,
    *,
    store_settings: StoreSettings | None = None,
) -> None:
    """Find the storage servers, and make the process group of all compute ranks.

    It waits up to an hour for the readiness file, because large datasets take long to open. Then it waits up to
    ``rpc_timeout`` seconds for servers to answer, and half an hour for the other compute ranks. Half an hour is also
    the deadline of the process group's collectives.

    Args:
        local_rank: Rank of this process on its machine.
        cluster_info: The cluster; the environment variable ``RANK`` is the rank of this machine among the compute
            machines.
        compute_world_backend: Backend of torch's process group; None for torch's default.
        rpc_timeout: Deadline in seconds for ready servers, and for their answers.
        store_settings: Token and roots for servers that require them.

    Raises:
        ValueError: A process group or a session exists, or ``local_rank`` is out of range.
        TimeoutError: The storage servers did not become ready.
        StoreUnavailable: Server 0 cannot be reached.
        torch.distributed.DistError: Some compute ranks did not come in time.
    """
    if torch.distributed.is_initialized():
        raise SettingsError(
            "a process group exists already; init_compute_process makes the one of compute ranks: do not call "
            "init_process_group, or destroy its group first"
        )
    check_no_session("shutdown_compute_process")
    if not 0 <= local_rank < cluster_info.num_processes_per_compute:
        raise SettingsError(
            f"local_rank is {local_rank}; a machine has processes 0..{cluster_info.num_processes_per_compute - 1}"
        )
    rank = cluster_info.compute_node_rank * cluster_info.num_processes_per_compute + local_rank
    wait_for_readiness_signal(cluster_info.readiness_uri, poll_interval=0.2)
    meeting = Meeting(
        master_addr=cluster_info.storage_cluster_master_ip, master_port=cluster_info.rpc_master_port,
        timeout_s=rpc_timeout, settings=store_settings,
    )  # fmt: skip
    found = Session(meeting, rank, cluster_info.compute_cluster_world_size)
    try:
        torch.distributed.init_process_group(
            backend=compute_world_backend,
            world_size=cluster_info.compute_cluster_world_size,
            rank=rank,
            timeout=timedelta(seconds=GROUP_S),
            init_method=f"tcp://{cluster_info.compute_cluster_master_ip}:{cluster_info.compute_cluster_master_port}",
        )
    except BaseException:
        found.close()
        raise
    set_session(found)


def shutdown_compute_process() -> None:
    """Leave with the other compute ranks, after shutdown of all loaders; the first stops the servers.

    It waits for the other ranks, at most ``rpc_timeout`` seconds. A rank without a heartbeat for 20 s counts as gone.

    Raises:
        RuntimeError: There is no session.
        StoreTimeout: Some ranks did not leave in time; rank 0 has stopped the servers.
    """
    leaving = session()
    set_session(None)
    try:
        leaving.leave()
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
