"""Records what a stage of the work took."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """What one stage took.

    Attributes:
        name: The stage.
        seconds: Wall time.
        peak_bytes: The most memory that all processes had together until the stage ended, see ``engine.peak``.
    """

    name: str
    seconds: float
    peak_bytes: int
