"""Which device and which group a process of several on one machine has."""

from __future__ import annotations

import torch


def get_available_device(local_process_rank: int) -> torch.device:
    """The CUDA device of a process, where processes take devices in turns; the CPU where there is none."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", local_process_rank % torch.cuda.device_count())


def get_process_group_name(process_rank: int) -> str:
    """What the group is called that has the process of this number of every machine."""
    return f"distributed-process-{process_rank}"


def init_neighbor_loader_worker(*args: object, **options: object) -> None:
    """Does nothing: loaders need neither worker groups nor RPC, and leave threads and CPU affinity as they are."""
