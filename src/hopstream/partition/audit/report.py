"""What was checked of a dataset, how much of it is wrong, and where?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Kind = Literal[
    "manifest", "files", "checksums", "schema", "ranges", "order", "nodes", "book", "edges", "ownership", "neighbors",
    "times", "weights", "links", "splits", "features", "graph", "halo",
]  # fmt: skip
KINDS: tuple[Kind, ...] = get_args(Kind)
MAX_PLACES = 5
"""Places that one finding names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that is wrong in one file or table.

    Attributes:
        kind: Which check found it.
        where: The file, or the part and type.
        what: What is wrong.
        count: In how many places.
        places: The first of them, as ``edge key 7``; empty where the file is the place.
    """

    kind: Kind
    where: str
    what: str
    count: int = 1
    places: tuple[str, ...] = ()

    def __str__(self) -> str:
        """One line, for people."""
        more = ", …" if self.count > len(self.places) else ""
        places = f": {', '.join(self.places)}{more}" if self.places else ""
        times = f" ({self.count} places)" if self.count > 1 else ""
        return f"{self.where}: {self.what}{times}{places}"

    def to_json(self) -> dict[str, Any]:
        """The same as a JSON value."""
        return {
            "kind": self.kind, "where": self.where, "what": self.what, "count": self.count, "places": list(self.places),
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """How much one kind of check looked at, and how much of that is wrong."""

    num_checked: int
    num_wrong: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What ``verify_dataset`` found.

    Attributes:
        checks: Kind to how much was checked and is wrong, for each kind that there was something to check of.
        findings: What is wrong, by kind and in the order of ``KINDS``.
        num_left_out: Findings beyond the most that were asked for; they count in ``checks``.
        skipped: What could not be checked, and why.
    """

    checks: Mapping[Kind, Check]
    findings: tuple[Finding, ...]
    num_left_out: int = 0
    skipped: tuple[str, ...] = ()

    @property
    def is_ok(self) -> bool:
        """Nothing was found to be wrong."""
        return not self.findings

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of check that found something, in the order of ``KINDS``."""
        return tuple(kind for kind, check in self.checks.items() if check.num_wrong)

    def to_json(self) -> dict[str, Any]:
        """The same as a JSON value."""
        return {
            "is_ok": self.is_ok,
            "checks": {k: {"checked": c.num_checked, "wrong": c.num_wrong} for k, c in self.checks.items()},
            "findings": [finding.to_json() for finding in self.findings],
            "left_out": self.num_left_out,
            "skipped": list(self.skipped),
        }


@dataclass(slots=True)
class Findings:
    """Collects findings while checks run; those of one kind, place and nature become one."""

    max_findings: int
    _found: dict[tuple[Kind, str, str], Finding] = field(default_factory=dict)
    _checked: dict[Kind, int] = field(default_factory=dict)
    _wrong: dict[Kind, int] = field(default_factory=dict)
    _skipped: dict[str, None] = field(default_factory=dict)
    _num_left_out: int = 0

    def checked(self, kind: Kind, count: int = 1) -> None:
        """Count what a check looked at."""
        self._checked[kind] = self._checked.get(kind, 0) + count

    def add(self, kind: Kind, where: str, what: str, count: int = 1, places: Iterable[str] = ()) -> None:
        """Tell of something wrong; no more than the first ``MAX_PLACES`` places are taken."""
        if not count:
            return
        self._wrong[kind] = self._wrong.get(kind, 0) + count
        known = self._found.get((kind, where, what))
        if known is None and len(self._found) >= self.max_findings:
            self._num_left_out += 1
            return
        before = known or Finding(kind=kind, where=where, what=what, count=0)
        room = MAX_PLACES - len(before.places)
        first = tuple(place for place, _ in zip(places, range(room), strict=False))
        self._found[kind, where, what] = Finding(
            kind=kind, where=where, what=what, count=before.count + count, places=before.places + first
        )

    def skip(self, what: str) -> None:
        """Tell what cannot be checked, and why."""
        self._skipped[what] = None

    def report(self) -> VerifyReport:
        """What was found so far."""
        kinds = [kind for kind in KINDS if kind in self._checked or kind in self._wrong]
        order: Sequence[Kind] = KINDS
        return VerifyReport(
            checks={k: Check(num_checked=self._checked.get(k, 0), num_wrong=self._wrong.get(k, 0)) for k in kinds},
            findings=tuple(sorted(self._found.values(), key=lambda found: order.index(found.kind))),
            num_left_out=self._num_left_out,
            skipped=tuple(self._skipped),
        )
