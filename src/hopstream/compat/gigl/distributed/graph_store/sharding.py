"""Computes which nodes of each server are the input of each compute rank.

Servers and ranks are laid end to end over the same stretch, one unit per server, and a rank takes what its piece of the
stretch covers. All borders are fractions of whole numbers, so two ranks never differ over where one ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hopstream.checks import read_integer
from hopstream.errors import SettingsError

MAX_DENOMINATOR = (1 << 62) - 1
MAX_SHARED = 1 << 30
"""Most servers, and most ranks, that inputs are dealt out over."""


@dataclass(frozen=True, slots=True)
class ServerSlice:
    """A stretch of what one server has: of ``n`` rows those from ``n * start // den`` up to ``n * end // den``.

    Attributes:
        server_rank: Which server, counted from 0.
        start_numerator: Where the slice starts, from 0.
        end_numerator: Where it ends, up to the denominator.
        denominator: What both are divided by, from 1.

    Raises:
        SettingsError: A field is no integer or out of its range, or the slice ends before it starts.
    """

    server_rank: int
    start_numerator: int
    end_numerator: int
    denominator: int

    def __post_init__(self) -> None:
        """Check every field, and keep plain numbers."""
        rank = read_integer("server_rank", self.server_rank, 0, MAX_SHARED)
        denominator = read_integer("denominator", self.denominator, 1, MAX_DENOMINATOR)
        start = read_integer("start_numerator", self.start_numerator, 0, denominator)
        end = read_integer("end_numerator", self.end_numerator, 0, denominator)
        if start > end:
            raise SettingsError(
                f"the slice goes from {start}/{denominator} to {end}/{denominator}; it must not end before it starts"
            )
        plain = {"server_rank": rank, "start_numerator": start, "end_numerator": end, "denominator": denominator}
        for name, number in plain.items():
            object.__setattr__(self, name, number)

    def bounds(self, num_rows: int) -> tuple[int, int]:
        """The first row of the slice, and the first after it."""
        return (
            num_rows * self.start_numerator // self.denominator,
            num_rows * self.end_numerator // self.denominator,
        )

    def slice_tensor(self, tensor: Any) -> Any:
        """The slice of an array or tensor of what the server has, without a copy; the same object where that is all."""
        start, end = self.bounds(len(tensor))
        return tensor if end - start == len(tensor) else tensor[start:end]


def compute_server_assignments(num_servers: int, num_compute_nodes: int, compute_rank: int) -> dict[int, ServerSlice]:
    """Assign slices of the servers' rows to one compute rank.

    Over all ranks every row of every server is taken exactly once, and what a rank takes is one stretch of the servers'
    rows laid end to end, so a rank has as few servers to ask as can be.

    Args:
        num_servers: Servers that have rows, from 1.
        num_compute_nodes: Ranks among which they are dealt out, from 1.
        compute_rank: The rank, in ``[0, num_compute_nodes)``.

    Returns:
        Number of a server to its slice, ascending; servers that the rank takes nothing of are left out.

    Raises:
        SettingsError: A number is out of its range.
    """
    num_servers = read_integer("num_servers", num_servers, 1, MAX_SHARED)
    num_ranks = read_integer("num_compute_nodes", num_compute_nodes, 1, MAX_SHARED)
    rank = read_integer("compute_rank", compute_rank, 0, num_ranks - 1)
    # In units of 1 / num_ranks of a server, the rank covers [start, start + num_servers).
    start, stop = rank * num_servers, (rank + 1) * num_servers
    return {
        server: ServerSlice(
            server, max(0, start - server * num_ranks), min(num_ranks, stop - server * num_ranks), num_ranks
        )
        for server in range(start // num_ranks, -(-stop // num_ranks))
    }
