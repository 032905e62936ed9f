"""Settings of ``reshard``, which writes a dataset with other parts."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from hopstream.dataset.manifest import Manifest
from hopstream.dataset.settings import Balance, Method, Objective, PartitionSettings
from hopstream.engine.settings import WorkOptions, WorkSettings

_CUT = {f.name: f.metadata for f in fields(PartitionSettings)}
_OF_THE_CUT = (
    "method", "balance", "rng_seed", "imbalance", "num_threads", "passes", "recursive", "objective",
    "balance_ntypes", "balance_edges", "balance_splits", "part_weights",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshardSettings(WorkSettings):
    """Settings of assigning nodes to new parts, and of the work. The constructor checks every field.

    The stored columns (directions, keys, times, weights, links) stay the same.

    Raises:
        SettingsError: A field has an invalid value.
    """

    num_parts: int | None = field(
        default=None, metadata={"help": "number of parts; if not given, that of the folder of owners"}
    )
    method: Method = field(default="kaminpar", metadata=_CUT["method"])
    balance: Balance = field(default="bytes", metadata=_CUT["balance"])
    rng_seed: int = field(default=0, metadata=_CUT["rng_seed"])
    imbalance: float = field(default=0.03, metadata=_CUT["imbalance"])
    num_threads: int = field(default=1, metadata=_CUT["num_threads"])
    passes: int = field(default=3, metadata=_CUT["passes"])
    recursive: bool = field(default=False, metadata=_CUT["recursive"])
    objective: Objective = field(default="cut", metadata=_CUT["objective"])
    balance_ntypes: tuple[str, ...] = field(default=(), metadata=_CUT["balance_ntypes"])
    balance_edges: bool = field(default=False, metadata=_CUT["balance_edges"])
    balance_splits: bool = field(default=False, metadata=_CUT["balance_splits"])
    part_weights: tuple[float, ...] = field(default=(), metadata=_CUT["part_weights"])

    def __post_init__(self) -> None:
        """Check every field."""
        WorkSettings.__post_init__(self)
        num_parts = self.num_parts if self.num_parts is not None else max(1, len(self.part_weights))
        PartitionSettings(num_parts=num_parts, **self._cut())

    def partition_settings(self, num_parts: int, manifest: Manifest) -> PartitionSettings:
        """Return settings of ``write_parts`` for new parts with the columns of an existing dataset."""
        of_dataset: dict[str, Any] = {
            "direction": "both" if len(manifest.directions) == 2 else manifest.directions[0],
            "keep_edge_keys": manifest.has_edge_keys, "time_attr": manifest.time_attr,
            "time_unit": manifest.time_unit, "weight_attr": manifest.weight_attr,
            "neighbor_keys": manifest.has_neighbor_keys, "links": tuple(manifest.schema.edge_splits),
        }  # fmt: skip
        return PartitionSettings(num_parts=num_parts, **self._cut(), **of_dataset)

    def _cut(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _OF_THE_CUT}


class ReshardOptions(WorkOptions, total=False):
    """The fields of ``ReshardSettings`` as keyword arguments of ``reshard``."""

    num_parts: int | None
    method: Method
    balance: Balance
    rng_seed: int
    imbalance: float
    num_threads: int
    passes: int
    recursive: bool
    objective: Objective
    balance_ntypes: tuple[str, ...]
    balance_edges: bool
    balance_splits: bool
    part_weights: tuple[float, ...]
