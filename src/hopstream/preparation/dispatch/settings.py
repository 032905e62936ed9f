"""Settings of ``dispatch``, which writes a chunked graph as a dataset."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from hopstream.checks import check_int
from hopstream.dataset.settings import MAX_PARTS, PartitionSettings, Sides, TimeUnit
from hopstream.engine.settings import WorkOptions, WorkSettings
from hopstream.schema import EdgeType

_SAME = {f.name: f.metadata for f in fields(PartitionSettings)}
SHARED = ("direction", "keep_edge_keys", "time_attr", "time_unit", "weight_attr", "neighbor_keys", "links")
"""Fields of ``PartitionSettings`` that a dispatch has too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchSettings(WorkSettings):
    """Settings of a dispatch, and of what each part stores. The constructor checks every field.

    Raises:
        SettingsError: A field has an invalid value.
    """

    num_parts: int | None = field(
        default=None,
        metadata={
            "help": "number of parts; if not given, that of partition_meta.json, else the largest part in the files"
        },
    )
    direction: Sides = field(default="in", metadata=_SAME["direction"])
    keep_edge_keys: bool = field(default=True, metadata=_SAME["keep_edge_keys"])
    time_attr: str | None = field(default=None, metadata=_SAME["time_attr"])
    time_unit: TimeUnit | None = field(default=None, metadata=_SAME["time_unit"])
    weight_attr: str | None = field(default=None, metadata=_SAME["weight_attr"])
    neighbor_keys: bool = field(default=False, metadata=_SAME["neighbor_keys"])
    links: tuple[EdgeType | str, ...] = field(default=(), metadata=_SAME["links"])

    def __post_init__(self) -> None:
        """Check every field."""
        WorkSettings.__post_init__(self)
        if self.num_parts is not None:
            check_int("num_parts", self.num_parts, 1, MAX_PARTS)
        object.__setattr__(self, "links", self.partition_settings(1).links)

    def partition_settings(self, num_parts: int) -> PartitionSettings:
        """Return the settings of ``write_parts`` for the same dataset."""
        shared: dict[str, Any] = {name: getattr(self, name) for name in SHARED}
        return PartitionSettings(num_parts=num_parts, method="file", **shared)


class DispatchOptions(WorkOptions, total=False):
    """The fields of ``DispatchSettings`` as keyword arguments of ``dispatch``."""

    num_parts: int | None
    direction: Sides
    keep_edge_keys: bool
    time_attr: str | None
    time_unit: TimeUnit | None
    weight_attr: str | None
    neighbor_keys: bool
    links: tuple[EdgeType | str, ...]
