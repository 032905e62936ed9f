"""Settings of the sizes of random graph tensors."""

from __future__ import annotations

from dataclasses import dataclass, field

from hopstream.checks import Settings
from hopstream.errors import SettingsError

MAX_ANY = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomSettings(Settings):
    """Sizes of random graphs. Numbers are drawn uniformly, both bounds included."""

    num_components: int = field(default=1, metadata={"help": "components of each graph"})
    min_nodes: int = field(default=1, metadata={"help": "nodes of each node set and component, at least"})
    max_nodes: int = field(default=10, metadata={"help": "nodes of each node set and component, at most"})
    max_edges: int = field(
        default=20, metadata={"help": "edges of each edge set and component, at most; none if an end has no nodes"}
    )
    min_row: int = field(default=0, metadata={"help": "values in a row of a dimension that varies, at least"})
    max_row: int = field(default=5, metadata={"help": "values in a row of a dimension that varies, at most"})
    max_letters: int = field(default=8, metadata={"help": "letters of a string, at most"})

    def __post_init__(self) -> None:
        """Check the sizes.

        Raises:
            SettingsError: A size is out of range, or a lower bound is above its upper bound.
        """
        for name in ("num_components", "min_nodes", "max_nodes", "max_edges", "min_row", "max_row", "max_letters"):
            value, least = getattr(self, name), int(name == "num_components")
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_ANY:
                raise SettingsError(f"{name} is {value!r}; wanted an integer in {least}..{MAX_ANY}")
        for what in ("nodes", "row"):
            least, most = getattr(self, f"min_{what}"), getattr(self, f"max_{what}")
            if least > most:
                raise SettingsError(f"min_{what} is {least}, above max_{what}, which is {most}")
