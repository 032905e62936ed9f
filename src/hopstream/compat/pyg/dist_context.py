"""Says which of several processes this one is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from hopstream.errors import SettingsError


class DistRole(Enum):
    """What a process does; there is one role."""

    WORKER = 1


@dataclass
class DistContext:
    """One process among those that load together.

    Attributes:
        rank: This process, in ``[0, world_size)``.
        global_rank: The same over all groups; not looked at.
        world_size: How many processes load together.
        global_world_size: The same over all groups; not looked at.
        group_name: Name of the group; the same in all of its processes.
        role: There is one role.
    """

    rank: int
    global_rank: int
    world_size: int
    global_world_size: int
    group_name: str
    role: DistRole = DistRole.WORKER

    @property
    def worker_name(self) -> str:
        """The process as messages name it."""
        return f"{self.group_name}-{self.rank}"


def check_context(context: object) -> DistContext:
    """The context of this process, ours or PyG's, after checking its numbers.

    Raises:
        SettingsError: It is something else, or its rank is not below its world size.
    """
    names = ("rank", "world_size", "group_name")
    if not all(hasattr(context, name) for name in names):
        raise SettingsError(
            f"current_ctx is a {type(context).__name__}; give a DistContext(rank, …, world_size, …, group_name)"
        )
    rank, world_size = getattr(context, "rank"), getattr(context, "world_size")  # noqa: B009  PyG's has no types
    if not isinstance(world_size, int) or world_size < 1 or not isinstance(rank, int) or not 0 <= rank < world_size:
        raise SettingsError(f"current_ctx has rank {rank!r} of world_size {world_size!r}; ranks are 0..world_size-1")
    return context  # type: ignore[return-value]
