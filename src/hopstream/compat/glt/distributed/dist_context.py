"""GraphLearn-for-PyTorch's context: the role of this process as worker, server or client."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from hopstream.errors import SettingsError


class DistRole(Enum):
    """Role of a process."""

    WORKER = 1
    SERVER = 2
    CLIENT = 3


@dataclass(slots=True)
class DistContext:
    """Position of one process in its role's group, and among all processes.

    Attributes:
        role: The role.
        group_name: Name of the group of processes with this role.
        world_size: Number of processes in the group; 0 if they are not counted.
        rank: Rank in the group.
        global_world_size: Number of processes of all roles.
        global_rank: Rank among all processes; servers come before clients.
    """

    role: DistRole
    group_name: str
    world_size: int
    rank: int
    global_world_size: int
    global_rank: int

    def is_worker(self) -> bool:
        """Return whether the process samples and trains without servers."""
        return self.role is DistRole.WORKER

    def is_server(self) -> bool:
        """Return whether the process serves parts of a dataset."""
        return self.role is DistRole.SERVER

    def is_client(self) -> bool:
        """Return whether the process trains, and servers sample for it."""
        return self.role is DistRole.CLIENT

    def num_servers(self) -> int:
        """Return the number of servers."""
        return self.world_size if self.is_server() else self._others() if self.is_client() else 0

    def num_clients(self) -> int:
        """Return the number of clients; 0 if they are not counted."""
        return self.world_size if self.is_client() else self._others() if self.is_server() else 0

    def _others(self) -> int:
        return self.global_world_size - self.world_size

    @property
    def worker_name(self) -> str:
        """Name of this process."""
        return f"{self.group_name}-{self.rank}"


_CONTEXT: DistContext | None = None


def get_context() -> DistContext | None:
    """Return the context of this process, or None."""
    return _CONTEXT


def set_context(context: DistContext | None) -> None:
    """Set or clear the context of this process."""
    global _CONTEXT
    _CONTEXT = context


def init_worker_group(world_size: int, rank: int, group_name: str | None = None) -> None:
    """Declare this process one of several workers, which sample and train without servers or connections.

    Args:
        world_size: Number of workers.
        rank: Rank of this worker.
        group_name: Name of the group of workers.

    Raises:
        SettingsError: ``rank`` is out of range.
    """
    check_rank("rank", rank, world_size)
    name = group_name or "_default_worker"
    set_context(DistContext(DistRole.WORKER, name, world_size, rank, world_size, rank))


def check_rank(name: str, rank: int, num_ranks: int) -> None:
    """Check that a rank is in ``[0, num_ranks)``.

    Raises:
        SettingsError: ``rank`` is out of range.
    """
    if not 0 <= rank < num_ranks:
        raise SettingsError(f"{name} is {rank} of {num_ranks}; ranks are numbered from 0")
