"""Assignment of each server's nodes to compute ranks.

The rows of all servers, one unit per server, form one interval. Each rank takes an equal subinterval. All bounds are
fractions of integers, so two ranks always agree on a bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hopstream.checks import read_integer
from hopstream.errors import SettingsError

MAX_DENOMINATOR = (1 << 62) - 1
MAX_SHARED = 1 << 30
"""Limit of servers, and of ranks."""


@dataclass(frozen=True, slots=True)
class ServerSlice:
    """Slice of one server's rows: rows ``n * start // den`` up to ``n * end // den`` of ``n`` rows.

    Attributes:
        server_rank: The server, from 0.
        start_numerator: Numerator of the start, from 0.
        end_numerator: Numerator of the end, at most the denominator.
        denominator: Denominator of both, from 1.

    Raises:
        SettingsError: A field is no integer or out of its range, or the slice ends before it starts.
    """

    server_rank: int
    start_numerator: int
    end_numerator: int
    denominator: int

    def __post_init__(self) -> None:
        """Check every field, and store plain integers."""
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
        """Return the first row of the slice, and the first row after it."""
        return (
            num_rows * self.start_numerator // self.denominator,
            num_rows * self.end_numerator // self.denominator,
        )

    def slice_tensor(self, tensor: Any) -> Any:
        """Return the slice of a server's array or tensor as a view; for all rows, the same object."""
        start, end = self.bounds(len(tensor))
        return tensor if end - start == len(tensor) else tensor[start:end]


def compute_server_assignments(num_servers: int, num_compute_nodes: int, compute_rank: int) -> dict[int, ServerSlice]:
    """Assign slices of the servers' rows to one compute rank.

    Over all ranks, every row of every server is assigned exactly once. A rank's rows are contiguous in the sequence of
    all servers' rows, so a rank needs as few servers as possible.

    Args:
        num_servers: Number of servers with rows, from 1.
        num_compute_nodes: Number of ranks, from 1.
        compute_rank: The rank, in ``[0, num_compute_nodes)``.

    Returns:
        Number of a server to its slice, ascending; servers outside the rank's share are missing.

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
