"""Storage machine: opens its parts of a dataset, and serves them for one or several runs of compute processes."""

from __future__ import annotations

import multiprocessing
import os
from typing import Any

import torch

from hopstream.compat.gigl.distributed.graph_store.dist_server import init_server, wait_and_shutdown_server
from hopstream.compat.gigl.distributed.utils.networking import write_readiness_signal
from hopstream.compat.gigl.env.distributed import GraphStoreInfo
from hopstream.compat.glt.distributed.dist_dataset import DistDataset
from hopstream.errors import SettingsError
from hopstream.store.security import ServerSecurity
from hopstream.store.settings import StoreSettings
from hopstream.stream.settings import SamplingLimits

DEFAULT_TIMEOUT_S = 180


def build_storage_dataset(  # noqa: PLR0913, PLR0917 - the arguments of GiGL, in its order
    source: str | os.PathLike[str],
    sample_edge_direction: str,
    tf_record_uri_pattern: None = None,
    splitter: None = None,
    should_load_tensors_in_parallel: bool = True,
    ssl_positive_label_percentage: None = None,
    max_labels_per_anchor_node: int | None = None,
    *,
    rank: int | None = None,
    world_size: int | None = None,
) -> DistDataset:
    """Open the parts of a dataset that this storage machine serves.

    Args:
        source: The folder of a Hopstream dataset, which all storage machines can read, with at least as many parts as
            there are machines; ``hopstream prepare TABLES --parts N`` makes one of tables.
        sample_edge_direction: ``in`` or ``out``; the dataset must hold that direction.
        tf_record_uri_pattern: None; a dataset is no TFRecords.
        splitter: None; splits and labels are stored with the dataset.
        should_load_tensors_in_parallel: No effect.
        ssl_positive_label_percentage: None; labels are stored with the dataset.
        max_labels_per_anchor_node: Labels of one anchor and edge type, at most: the first as they are stored. None for
            all.
        rank: This machine among the storage machines; None: its rank in torch's process group.
        world_size: How many these are; None: the size of torch's process group.

    Raises:
        ValueError: The direction is none or not held, the dataset has too few parts, what the dataset decides is given,
            the limit is below 1, or there is no process group and no rank.
    """
    given = {
        "tf_record_uri_pattern": tf_record_uri_pattern, "splitter": splitter,
        "ssl_positive_label_percentage": ssl_positive_label_percentage,
    }  # fmt: skip
    if named := [f"{name} is a {type(value).__name__}" for name, value in given.items() if value is not None]:
        raise SettingsError(
            f"{', '.join(named)}; splits and labels are stored with the dataset: make them with "
            "split_nodes, split_links or hold_out_links before write_parts, or with hopstream prepare"
        )
    if rank is None or world_size is None:
        if not torch.distributed.is_initialized():
            raise SettingsError("there is no process group of storage machines; make one, or give rank and world_size")
        rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    return DistDataset(
        source, edge_dir=sample_edge_direction, num_partitions=world_size, partition_idx=rank,
        max_labels_per_anchor_node=max_labels_per_anchor_node,
    )  # fmt: skip


def run_storage_server(  # noqa: PLR0913, PLR0917 - the arguments of GiGL, in its order
    storage_rank: int,
    cluster_info: GraphStoreInfo,
    dataset: DistDataset,
    num_server_sessions: int,
    timeout_seconds: float | None = None,
    num_rpc_threads: int = 16,
    rpc_timeout: int | None = None,
    *,
    security: ServerSecurity | None = None,
    store_settings: StoreSettings | None = None,
    limits: SamplingLimits | None = None,
) -> None:
    """Serve a dataset for some sessions, one after the other; each is a process of its own.

    A session ends when all compute ranks have called ``shutdown_compute_process``, or are gone.

    Args:
        storage_rank: This machine among the storage machines; 0 says when all can be asked.
        cluster_info: The cluster.
        dataset: Its parts.
        num_server_sessions: How many sessions.
        timeout_seconds: How long one session may take; None for as long as it takes.
        num_rpc_threads: No effect.
        rpc_timeout: Seconds to wait for other servers; None for 180.
        security: TLS and token; needed where the address is not loopback.
        store_settings: What this server shows to others.
        limits: How much this server samples at once for loaders; None for ``SamplingLimits()``.

    Raises:
        RuntimeError: A session's process failed, or took too long.
    """
    dataset.close()  # each session opens it in its own process
    context = multiprocessing.get_context("spawn")
    parts = {
        "edge_dir": dataset.edge_dir, "num_partitions": cluster_info.num_storage_nodes, "partition_idx": storage_rank,
        "max_labels_per_anchor_node": dataset.max_labels_per_anchor_node,
    }  # fmt: skip
    served = {
        "num_servers": cluster_info.num_storage_nodes, "server_rank": storage_rank,
        "master_addr": cluster_info.storage_cluster_master_ip, "master_port": cluster_info.rpc_master_port,
        "num_clients": cluster_info.compute_cluster_world_size, "request_timeout": rpc_timeout or DEFAULT_TIMEOUT_S,
        "security": security, "store_settings": store_settings, "limits": limits,
    }  # fmt: skip
    arguments = (str(dataset.folder), parts, served, str(cluster_info.readiness_uri))
    for number in range(num_server_sessions):
        process = context.Process(target=_run_session, args=arguments, name=f"storage-{storage_rank}-{number}")
        process.start()
        try:
            process.join(timeout_seconds)
            if process.exitcode is None:
                raise RuntimeError(f"session {number} of storage server {storage_rank} took over {timeout_seconds:g} s")
        finally:
            if process.exitcode is None:
                process.kill()
                process.join()
        if process.exitcode:
            raise RuntimeError(f"session {number} of storage server {storage_rank} ended with {process.exitcode}")


def _run_session(folder: str, parts: dict[str, Any], served: dict[str, Any], readiness_uri: str) -> None:
    """Serve one session, in a process of its own."""
    init_server(dataset=DistDataset(folder, **parts), **served)
    if served["server_rank"] == 0:
        write_readiness_signal(readiness_uri)
    wait_and_shutdown_server()
