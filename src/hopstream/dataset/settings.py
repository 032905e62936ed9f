"""Settings of partitioning a graph."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypedDict, cast, get_args

from hopstream.checks import Settings, check_choice, check_int
from hopstream.engine.settings import Progress as Progress
from hopstream.errors import SettingsError
from hopstream.schema import Direction, EdgeType

Method = Literal["kaminpar", "metis", "ldg", "fennel", "random", "hash", "file"]
Balance = Literal["bytes", "edges", "nodes"]
Objective = Literal["cut", "volume"]
Sides = Literal["in", "out", "both"]
TimeUnit = Literal["D", "h", "m", "s", "ms", "us", "ns"]

MAX_PARTS = 99_999
"""The largest number of parts; names of part folders have five digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSettings(Settings):
    """Settings of partitioning, and of what each part stores. The constructor checks every field.

    Raises:
        SettingsError: A field has an invalid value.
    """

    num_parts: int = field(default=1, metadata={"help": "number of parts"})
    method: Method = field(
        default="kaminpar",
        metadata={"help": "how nodes are assigned: kaminpar or metis cut few edges; ldg or fennel stream over them; "
                          "random and hash ignore them; file reads the part of each node from files"},
    )  # fmt: skip
    balance: Balance = field(
        default="bytes",
        metadata={"help": "load that kaminpar, metis, ldg and fennel keep equal between parts: bytes, edges or nodes"},
    )
    direction: Sides = field(
        default="in",
        metadata={"help": "edges grouped by destination (in), by source (out), or written both ways (both)"},
    )
    rng_seed: int = field(default=0, metadata={"help": "seed of every random choice, 0 to 2**64 - 1"})
    imbalance: float = field(
        default=0.03,
        metadata={"help": "how much heavier than its share a part may be, for methods that balance, 0 to 1"},
    )
    keep_edge_keys: bool = field(
        default=True,
        metadata={"help": "store the original key of each edge (4 bytes per edge and direction, 8 from 2^32 edges on)"},
    )
    time_attr: str | None = field(
        default=None,
        metadata={"help": "feature with the time of nodes or edges; the edges of a node are stored in its order"},
    )
    time_unit: TimeUnit | None = field(
        default=None,
        metadata={
            "help": "unit of time_attr since 1970: D, h, m, s, ms, us or ns; loaders then take datetime64 as times"
        },
    )
    weight_attr: str | None = field(
        default=None, metadata={"help": "edge feature with weights for sampling (20 bytes per edge and direction)"}
    )
    neighbor_keys: bool = field(
        default=False, metadata={"help": "store the keys of neighbours (4 bytes per edge and direction)"}
    )
    links: tuple[EdgeType | str, ...] = field(
        default=(),
        metadata={"help": "edge type whose edges can be found by key, as source__relation__destination; those with "
                          "splits always can"},
    )  # fmt: skip
    num_threads: int = field(
        default=1,
        metadata={
            "help": "threads that read and group edges, and of kaminpar, whose results vary with more than one, even "
            "for the same seed"
        },
    )
    passes: int = field(default=3, metadata={"help": "passes of ldg and fennel over all nodes"})
    recursive: bool = field(
        default=False, metadata={"help": "let metis bisect recursively instead of cutting into all parts at once"}
    )
    objective: Objective = field(
        default="cut",
        metadata={"help": "what metis keeps low: the edges between parts (cut), or the nodes that other parts need "
                          "(volume)"},
    )  # fmt: skip
    balance_ntypes: tuple[str, ...] = field(
        default=(),
        metadata={"help": "node type to balance between parts; type=feature or type=file.npy balances the nodes of "
                          "each value"},
    )  # fmt: skip
    balance_edges: bool = field(default=False, metadata={"help": "balance edges too, for each value of balance_ntypes"})
    balance_splits: bool = field(default=False, metadata={"help": "balance the nodes of each split, such as train"})
    part_weights: tuple[float, ...] = field(
        default=(), metadata={"help": "load of each part, in any unit; equal by default"}
    )

    def __post_init__(self) -> None:
        """Check every field."""
        check_int("num_parts", self.num_parts, 1, MAX_PARTS)
        check_choice("method", self.method, get_args(Method))
        check_choice("balance", self.balance, get_args(Balance))
        check_choice("direction", self.direction, get_args(Sides))
        check_int("rng_seed", self.rng_seed, 0, 2**64 - 1)
        check_int("num_threads", self.num_threads, 1, 1024)
        if not isinstance(self.imbalance, (int, float)) or not 0 < self.imbalance <= 1:
            raise SettingsError(f"imbalance is {self.imbalance!r}; it must be above 0 and at most 1, for example 0.03")
        for name in ("keep_edge_keys", "neighbor_keys", "recursive"):
            if not isinstance(getattr(self, name), bool):
                raise SettingsError(f"{name} is {getattr(self, name)!r}; it must be True or False")
        self._check_attributes()
        object.__setattr__(self, "links", _checked_links(self.links))
        check_int("passes", self.passes, 1, 100)
        check_choice("objective", self.objective, get_args(Objective))
        for name, is_given in (("recursive", self.recursive), ("objective", self.objective != "cut")):
            if is_given and self.method != "metis":
                raise SettingsError(
                    f"{name} is given, but method is {self.method!r}; only metis supports it: leave it out"
                )
        if self.recursive and self.objective != "cut":
            raise SettingsError(
                f"objective is {self.objective!r}, for which metis does not bisect: leave recursive out"
            )
        self._check_balance()

    def _check_attributes(self) -> None:
        for name in ("time_attr", "weight_attr"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise SettingsError(f"{name} is {value!r}; it must be the name of a feature, or None")
        if self.time_unit is not None:
            check_choice("time_unit", self.time_unit, get_args(TimeUnit))
            if self.time_attr is None:
                raise SettingsError(
                    f"time_unit is {self.time_unit!r} and time_attr is None, the feature whose unit it is; give both"
                )

    @property
    def directions(self) -> tuple[Direction, ...]:
        """The directions in which edges are stored."""
        return ("in", "out") if self.direction == "both" else (self.direction,)

    def _check_balance(self) -> None:
        """Check the further loads to balance, and that the method can balance them.

        Raises:
            SettingsError: A value is invalid, or the method does not support it.
        """
        for name in ("balance_edges", "balance_splits"):
            if not isinstance(getattr(self, name), bool):
                raise SettingsError(f"{name} is {getattr(self, name)!r}; it must be True or False")
        of = self.balance_ntypes
        if not isinstance(of, list | tuple) or not all(isinstance(t, str) and t for t in of):
            raise SettingsError(f"balance_ntypes is {of!r}; it must be a list of 'type', 'type=feature' or 'type=file'")
        shares = self.part_weights
        if not isinstance(shares, list | tuple) or not all(map(_is_share, shares)):
            raise SettingsError(f"part_weights is {shares!r}; it must be a list of numbers above 0")
        if shares and len(shares) != self.num_parts:
            raise SettingsError(
                f"part_weights is {len(shares)} numbers; it must be one for each of {self.num_parts} parts"
            )
        object.__setattr__(self, "balance_ntypes", tuple(of))
        object.__setattr__(self, "part_weights", tuple(map(float, shares)))
        asked = [name for name in ("balance_ntypes", "balance_edges", "balance_splits") if getattr(self, name)]
        if asked and self.method in ("hash", "file"):
            why = "assigns nodes by their keys" if self.method == "hash" else "uses the given parts"
            raise SettingsError(f"{asked[0]} is given, but method {self.method!r} {why}; choose another method")
        if shares and self.method == "file":
            raise SettingsError("part_weights are given, but method 'file' uses the given parts; leave them out")

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of each part; the shares add up to 1."""
        weights = self.part_weights or (1.0,) * self.num_parts
        return tuple(weight / sum(weights) for weight in weights)

    @property
    def has_constraints(self) -> bool:
        """Whether the parts have loads to balance besides ``balance``."""
        return bool(self.balance_ntypes or self.balance_edges or self.balance_splits)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a JSON value."""
        return {
            **asdict(self),
            "links": [link if isinstance(link, str) else list(link) for link in self.links],
            "balance_ntypes": list(self.balance_ntypes), "part_weights": list(self.part_weights),
        }  # fmt: skip

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> PartitionSettings:
        """Read what ``to_json`` wrote."""
        return cls(
            **{**value, "links": tuple(link if isinstance(link, str) else tuple(link) for link in value["links"])}
        )


class PartitionOptions(TypedDict, total=False):
    """The fields of ``PartitionSettings`` as keyword arguments of ``write_parts``."""

    num_parts: int
    method: Method
    balance: Balance
    direction: Sides
    rng_seed: int
    imbalance: float
    keep_edge_keys: bool
    time_attr: str | None
    time_unit: TimeUnit | None
    weight_attr: str | None
    neighbor_keys: bool
    links: tuple[EdgeType | str, ...]
    num_threads: int
    passes: int
    recursive: bool
    objective: Objective
    balance_ntypes: tuple[str, ...]
    balance_edges: bool
    balance_splits: bool
    part_weights: tuple[float, ...]


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")


def _checked_links(links: object) -> tuple[EdgeType | str, ...]:
    """Check edge types or their labels, and return them as tuples and strings."""
    if not isinstance(links, list | tuple) or not all(map(_may_be_edge_type, links)):
        raise SettingsError(
            f"links is {links!r}; it must be a list of edge types, each (source, relation, destination) or "
            "'source__relation__destination'"
        )
    return tuple(link if isinstance(link, str) else cast(EdgeType, tuple(link)) for link in links)


def _may_be_edge_type(link: object) -> bool:
    if isinstance(link, str):
        return link.count("__") >= 2
    return isinstance(link, list | tuple) and len(link) == 3 and all(isinstance(name, str) for name in link)
