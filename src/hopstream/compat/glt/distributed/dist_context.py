"""GraphLearn-for-PyTorch's context: the role of this process as worker, server or client."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from hopstream.errors import SettingsError


class DistRole(Enum):
    """What a process is."""

    WORKER = 1
    SERVER = 2
    CLIENT = 3


@dataclass(slots=True)
class DistContext:
    """One process among those of its role, and among all.

    Attributes:
        role: What it is.
        group_name: What the processes of its role are called.
        world_size: How many these are; 0 where they are not counted.
        rank: Which one of them it is.
        global_world_size: How many processes there are of all roles.
        global_rank: Which one of them it is; servers come before clients.
    """

    role: DistRole
    group_name: str
    world_size: int
    rank: int
    global_world_size: int
    global_rank: int

    def is_worker(self) -> bool:
        """Whether it samples and trains, without servers."""
        return self.role is DistRole.WORKER

    def is_server(self) -> bool:
        """Whether it serves parts of a dataset."""
        return self.role is DistRole.SERVER

    def is_client(self) -> bool:
        """Whether it trains, and servers sample for it."""
        return self.role is DistRole.CLIENT

    def num_servers(self) -> int:
        """How many servers there are."""
        return self.world_size if self.is_server() else self._others() if self.is_client() else 0

    def num_clients(self) -> int:
        """How many clients there are; 0 where they are not counted."""
        return self.world_size if self.is_client() else self._others() if self.is_server() else 0

    def _others(self) -> int:
        return self.global_world_size - self.world_size

    @property
    def worker_name(self) -> str:
        """What this process is called."""
        return f"{self.group_name}-{self.rank}"


_CONTEXT: DistContext | None = None


def get_context() -> DistContext | None:
    """The context of this process; None before it has one."""
    return _CONTEXT


def set_context(context: DistContext | None) -> None:
    """Say what this process is, or that it is nothing any more."""
    global _CONTEXT
    _CONTEXT = context


def init_worker_group(world_size: int, rank: int, group_name: str | None = None) -> None:
    """Say that this process is one of several that sample and train without servers; they need not be connected.

    Args:
        world_size: How many there are.
        rank: Which one this is.
        group_name: What they are called.

    Raises:
        SettingsError: There is no such rank.
    """
    check_rank("rank", rank, world_size)
    name = group_name or "_default_worker"
    set_context(DistContext(DistRole.WORKER, name, world_size, rank, world_size, rank))


def check_rank(name: str, rank: int, num_ranks: int) -> None:
    """Check a number among so many.

    Raises:
        SettingsError: There is no such rank.
    """
    if not 0 <= rank < num_ranks:
        raise SettingsError(f"{name} is {rank} of {num_ranks}; ranks are numbered from 0")
