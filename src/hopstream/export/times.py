"""How long did a stage take, of a core and by the clock?"""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Seconds:
    """A span of time.

    Attributes:
        core: Seconds that this thread computed.
        wall: Seconds by the clock: waiting for disks, servers and other threads counts.
    """

    core: float = 0.0
    wall: float = 0.0

    @classmethod
    def now(cls) -> Seconds:
        """A moment, for differences in one thread."""
        return cls(time.thread_time(), time.perf_counter())

    def __add__(self, other: Seconds) -> Seconds:
        """Both, one after the other."""
        return Seconds(self.core + other.core, self.wall + other.wall)

    def __sub__(self, other: Seconds) -> Seconds:
        """The span from an earlier moment."""
        return Seconds(self.core - other.core, self.wall - other.wall)
