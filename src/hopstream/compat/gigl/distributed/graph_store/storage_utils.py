"""Storage machine: opens its parts of a dataset, and serves them for one or several sessions."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import torch

from hopstream.checks import read_integer
from hopstream.compat.gigl.distributed.graph_store.dist_server import init_server, wait_and_shutdown_server
from hopstream.compat.gigl.distributed.utils.networking import write_readiness_signal
from hopstream.compat.gigl.env.distributed import GraphStoreInfo
from hopstream.compat.glt.distributed.dist_dataset import MAKE_S, DistDataset, made_once
from hopstream.compat.glt.distributed.graph_facts import edge_direction
from hopstream.dataset.paths import MANIFEST
from hopstream.dataset.settings import PartitionSettings
from hopstream.engine.settings import WorkSettings
from hopstream.errors import SettingsError
from hopstream.preparation.prepare import digest_of_input, prepare
from hopstream.store.settings import StoreSettings
from hopstream.stream.settings import SamplingLimits
from hopstream.transport.security import ServerSecurity
from hopstream.uris import local_path

DEFAULT_TIMEOUT_S = 180
KILL_S = 10.0
"""Deadline in seconds for the end of a session's killed process."""


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
    prepared: str | os.PathLike[str] | None = None,
    settings: PartitionSettings | None = None,
    work: WorkSettings | None = None,
    timeout_seconds: float = MAKE_S,
) -> DistDataset:
    """Open the parts of a dataset for this storage machine; prepare it first if the source is tables.

    One machine prepares tables while the others wait. The dataset is in the folder ``prepared``. Its name is that of
    the source plus ``.hopstream-<8 hex digits>``. The digits depend on the tables and ``settings``, and an existing
    dataset is used again. You may delete a folder that you no longer need.

    Args:
        source: The folder of a Hopstream dataset, with at least one part per machine; or an input of ``hopstream
            prepare``: the JSON file that describes tables or a chunked graph, the ``.pbtxt`` of a unigraph, or the
            folder with one of these. All storage machines must be able to read it.
        sample_edge_direction: ``in`` or ``out``; the dataset must hold that direction.
        tf_record_uri_pattern: None; TFRecords are not read.
        splitter: None; splits and labels are stored with the dataset.
        should_load_tensors_in_parallel: No effect.
        ssl_positive_label_percentage: None; labels are stored with the dataset.
        max_labels_per_anchor_node: Limit of labels per anchor and edge type, in stored order. None for no limit.
        rank: Rank of this machine among the storage machines; None for its rank in torch's process group.
        world_size: Number of storage machines; None for the size of torch's process group.
        prepared: The folder for datasets from tables; all storage machines must see it. It is made if missing. None for
            the folder of the source.
        settings: Settings of partitioning tables; None for one part per machine, with edges in both directions.
        work: Memory and processes of the machine that prepares tables; None for ``WorkSettings()``.
        timeout_seconds: Deadline for another machine that prepares the same tables.

    Raises:
        ValueError: The direction is invalid or not stored; the dataset has too few parts; an argument is given that the
            dataset decides; the limit is below 1; there is no process group and no rank; there is no such rank; or
            tables contradict each other. Arguments are checked before tables are prepared.
        FormatError: The source is missing or cannot be read.
        StateError: Another machine has been preparing the tables for ``timeout_seconds``.
        NoRoomError: Disk or memory is too small; the next call continues the work done so far.
    """
    given = {
        "tf_record_uri_pattern": tf_record_uri_pattern, "splitter": splitter,
        "ssl_positive_label_percentage": ssl_positive_label_percentage,
    }  # fmt: skip
    if named := [f"{name} is given" for name, value in given.items() if value is not None]:
        raise SettingsError(
            f"{', '.join(named)}; splits and labels are stored with the dataset: make them with "
            "split_nodes, split_links or hold_out_links before write_parts, or name columns of splits in the "
            "description of the tables"
        )
    if rank is None or world_size is None:
        if not torch.distributed.is_initialized():
            raise SettingsError("there is no process group of storage machines; make one, or give rank and world_size")
        rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    read_integer("rank", rank, 0, read_integer("world_size", world_size, 1) - 1)
    direction = edge_direction(sample_edge_direction)
    if max_labels_per_anchor_node is not None:
        read_integer("max_labels_per_anchor_node", max_labels_per_anchor_node, 1)
    root = local_path(source)
    if not (root / MANIFEST).is_file():
        settings = settings or PartitionSettings(num_parts=world_size, direction="both")
        if settings.num_parts < world_size:
            raise SettingsError(f"num_parts is {settings.num_parts}; each of {world_size} machines needs a part")
        if direction not in settings.directions:
            raise SettingsError(
                f"direction is {settings.direction!r}; it must be 'both' or that of sampling, {direction!r}"
            )
        root = _prepared(root, prepared, settings, work, timeout_seconds)
    return DistDataset(
        root, edge_dir=sample_edge_direction, num_partitions=world_size, partition_idx=rank,
        max_labels_per_anchor_node=max_labels_per_anchor_node,
    )  # fmt: skip


def _prepared(
    source: Path,
    prepared: str | os.PathLike[str] | None,
    settings: PartitionSettings,
    work: WorkSettings | None,
    timeout_s: float,
) -> Path:
    """Return the dataset of tables; prepare it unless it exists."""
    place = source.absolute().parent if prepared is None else local_path(prepared)
    out = place / f"{source.absolute().name}.hopstream-{digest_of_input(source, settings)[:8]}"
    return made_once(out, lambda: prepare(source, out, settings=settings, work=work), timeout_s)


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
    """Serve a dataset for several sessions in sequence, each in its own process.

    A session ends when all compute ranks have called ``shutdown_compute_process`` or are gone.

    Args:
        storage_rank: Rank of this machine among the storage machines; rank 0 writes the readiness file.
        cluster_info: The cluster.
        dataset: The parts of this machine.
        num_server_sessions: Number of sessions.
        timeout_seconds: Deadline for one session. None for no deadline: a session ends when its clients have left or
            are gone, when server 0 is gone, or when this process ends.
        num_rpc_threads: No effect.
        rpc_timeout: Deadline in seconds for other servers; None for 180.
        security: TLS and token; required unless the address is loopback.
        store_settings: Credentials of this server for other servers.
        limits: Limits of this server's sampling for loaders; None for ``SamplingLimits()``.

    Raises:
        RuntimeError: A session's process failed, or exceeded the deadline.
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
                process.join(KILL_S)
        if process.exitcode:
            raise RuntimeError(f"session {number} of storage server {storage_rank} ended with {process.exitcode}")


def _run_session(folder: str, parts: dict[str, Any], served: dict[str, Any], readiness_uri: str) -> None:
    """Serve one session, in its own process."""
    init_server(dataset=DistDataset(folder, **parts), **served)
    if served["server_rank"] == 0:
        write_readiness_signal(readiness_uri)
    wait_and_shutdown_server()
