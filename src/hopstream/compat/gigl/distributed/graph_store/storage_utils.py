"""Storage machine: opens its parts of a dataset, and serves them for one or several runs of compute processes."""

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
"""How long the process of a session may take to end once it is killed."""


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
    """Open the parts of a dataset that this storage machine serves; of tables, a dataset is prepared first.

    Tables are prepared by one machine while the others wait. The dataset lies in the folder ``prepared``, and is called
    as the source with ``.hopstream-<8 hex digits>`` behind it: the digits change when the tables or ``settings`` do,
    and what is there is used again. A folder that is not needed any more may be deleted.

    Args:
        source: The folder of a Hopstream dataset, with at least as many parts as there are machines; or what
            ``hopstream prepare`` takes: the JSON file that describes tables or a chunked graph, the ``.pbtxt`` of a
            unigraph, or the folder with one of these. All storage machines must be able to read it.
        sample_edge_direction: ``in`` or ``out``; the dataset must hold that direction.
        tf_record_uri_pattern: None; a dataset is no TFRecords.
        splitter: None; splits and labels are stored with the dataset.
        should_load_tensors_in_parallel: No effect.
        ssl_positive_label_percentage: None; labels are stored with the dataset.
        max_labels_per_anchor_node: Labels of one anchor and edge type, at most: the first as they are stored. None for
            all.
        rank: This machine among the storage machines; None: its rank in torch's process group.
        world_size: How many these are; None: the size of torch's process group.
        prepared: The folder that datasets of tables are kept in, which all storage machines see; it is made if it is
            not there. None for the folder that the source lies in.
        settings: How tables are cut into parts; None: as many parts as machines, with edges in both directions.
        work: Memory and processes of the machine that prepares tables; None for ``WorkSettings()``.
        timeout_seconds: How long to wait for another machine that prepares the same tables.

    Raises:
        ValueError: The direction is none or not held, the dataset has too few parts, what the dataset decides is given,
            the limit is below 1, there is no process group and no rank, there is no such rank, or tables contradict
            each other. Arguments are checked before tables are prepared.
        FormatError: The source is missing or cannot be read.
        StateError: Another machine has been preparing the tables for ``timeout_seconds``.
        NoRoomError: The disk or the memory has no room; what was done is kept for the next call.
    """
    given = {
        "tf_record_uri_pattern": tf_record_uri_pattern, "splitter": splitter,
        "ssl_positive_label_percentage": ssl_positive_label_percentage,
    }  # fmt: skip
    if named := [f"{name} is given" for name, value in given.items() if value is not None]:
        raise SettingsError(
            f"{', '.join(named)}; splits and labels are stored with the dataset: make them with "
            "split_nodes, split_links or hold_out_links before write_parts, or name columns of splits where tables are "
            "described"
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
    """The dataset that tables were prepared to, now or before."""
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
    """Serve a dataset for some sessions, one after the other; each is a process of its own.

    A session ends when all compute ranks have called ``shutdown_compute_process``, or are gone.

    Args:
        storage_rank: This machine among the storage machines; 0 says when all can be asked.
        cluster_info: The cluster.
        dataset: Its parts.
        num_server_sessions: How many sessions.
        timeout_seconds: How long one session may take. None for no deadline: a session ends by itself when its clients
            have left or are gone, when server 0 is gone, or when this process ends.
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
                process.join(KILL_S)
        if process.exitcode:
            raise RuntimeError(f"session {number} of storage server {storage_rank} ended with {process.exitcode}")


def _run_session(folder: str, parts: dict[str, Any], served: dict[str, Any], readiness_uri: str) -> None:
    """Serve one session, in a process of its own."""
    init_server(dataset=DistDataset(folder, **parts), **served)
    if served["server_rank"] == 0:
        write_readiness_signal(readiness_uri)
    wait_and_shutdown_server()
