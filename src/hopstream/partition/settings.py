"""What can a user choose when a graph is cut into parts?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypedDict, get_args

from hopstream.errors import SettingsError
from hopstream.schema import Direction

Method = Literal["kaminpar", "metis", "random", "hash", "file"]
Balance = Literal["bytes", "edges", "nodes"]
Sides = Literal["in", "out", "both"]

MAX_PARTS = 99_999
"""The largest number of parts; part folders carry five digits."""

Progress = Callable[[str, int, int], None]
"""Called as ``progress(stage, done, total)``, with ``done == total`` when a stage ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSettings:
    """How a graph is cut and what each part holds. Every field is checked when the record is made.

    Raises:
        SettingsError: A field is outside what it accepts.
    """

    num_parts: int = field(default=1, metadata={"help": "number of parts"})
    method: Method = field(
        default="kaminpar",
        metadata={"help": "how nodes are assigned: kaminpar or metis cut few edges; random and hash ignore edges; "
                          "file reads the part of each node from files"},
    )  # fmt: skip
    balance: Balance = field(
        default="bytes",
        metadata={"help": "what kaminpar and metis keep equal between parts: bytes held, edges held, or nodes"},
    )
    direction: Sides = field(
        default="in",
        metadata={"help": "edges grouped by destination (in), by source (out), or written both ways (both)"},
    )
    rng_seed: int = field(default=0, metadata={"help": "seed of every random choice, 0 to 2**64 - 1"})
    imbalance: float = field(
        default=0.03, metadata={"help": "how much heavier than the mean a part may be for kaminpar and metis, 0 to 1"}
    )
    keep_edge_keys: bool = field(
        default=True, metadata={"help": "store the original key of each edge (8 bytes per edge and direction)"}
    )
    num_threads: int = field(
        default=1, metadata={"help": "threads of kaminpar; with more than one, runs differ though the seed is the same"}
    )

    def __post_init__(self) -> None:
        """Check every field."""
        _check_int("num_parts", self.num_parts, 1, MAX_PARTS)
        _check_choice("method", self.method, get_args(Method))
        _check_choice("balance", self.balance, get_args(Balance))
        _check_choice("direction", self.direction, get_args(Sides))
        _check_int("rng_seed", self.rng_seed, 0, 2**64 - 1)
        _check_int("num_threads", self.num_threads, 1, 1024)
        if not isinstance(self.imbalance, (int, float)) or not 0 < self.imbalance <= 1:
            raise SettingsError(f"imbalance is {self.imbalance!r}; it must be above 0 and at most 1, for example 0.03")
        if not isinstance(self.keep_edge_keys, bool):
            raise SettingsError(f"keep_edge_keys is {self.keep_edge_keys!r}; it must be True or False")

    @property
    def directions(self) -> tuple[Direction, ...]:
        """The directions that are written."""
        return ("in", "out") if self.direction == "both" else (self.direction,)

    def to_json(self) -> dict[str, Any]:
        """The fields as a JSON value."""
        return asdict(self)


class PartitionOptions(TypedDict, total=False):
    """The fields of ``PartitionSettings`` as keyword arguments of ``write_parts``."""

    num_parts: int
    method: Method
    balance: Balance
    direction: Sides
    rng_seed: int
    imbalance: float
    keep_edge_keys: bool
    num_threads: int


def _check_int(name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise SettingsError(f"{name} is {value!r}; it must be an integer from {low} to {high}")


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise SettingsError(f"{name} is {value!r}; it must be one of {', '.join(choices)}")
