"""What did a stage of the work take? Imports nothing that takes time to load: every verb says what it took."""

from __future__ import annotations

import resource
import sys
from dataclasses import dataclass
from pathlib import Path

STATUS = Path("/proc/self/status")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """What one stage took.

    Attributes:
        name: The stage.
        seconds: Wall time.
        peak_bytes: The most memory that the process has had resident until the stage ended.
    """

    name: str
    seconds: float
    peak_bytes: int


def peak_bytes() -> int:
    """The most memory this process has had resident so far.

    On Linux ``getrusage`` would count what its parent had when it started this process.
    """
    if STATUS.exists():
        _, _, rest = STATUS.read_text(encoding="utf-8").partition("VmHWM:")
        if rest:
            return int(rest.split(maxsplit=1)[0]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
