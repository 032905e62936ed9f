"""Device and process group of one of several processes on a machine."""

from __future__ import annotations

import torch


def get_available_device(local_process_rank: int) -> torch.device:
    """Return the CUDA device of a process, round-robin by local rank; the CPU without a GPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", local_process_rank % torch.cuda.device_count())


def get_process_group_name(process_rank: int) -> str:
    """Return the name of the group of the processes with this number on all machines."""
    return f"distributed-process-{process_rank}"


def init_neighbor_loader_worker(*args: object, **options: object) -> None:
    """Do nothing: loaders need no worker groups and no RPC, and do not change threads or CPU affinity."""
