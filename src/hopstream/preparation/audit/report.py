"""Records of what was checked of a dataset, what is wrong, where, and what could not be checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from hopstream.dataset.paths import PART_FOLDER

Kind = Literal[
    "manifest", "files", "checksums", "schema", "ranges", "order", "nodes", "book", "edges", "ownership", "neighbors",
    "times", "weights", "links", "splits", "features", "graph", "halo",
]  # fmt: skip
KINDS: tuple[Kind, ...] = get_args(Kind)
Status = Literal["ok", "failed", "skipped"]
MAX_PLACES = 5
"""Places that one finding names."""
NOTHING = "there is nothing of it to check"


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

    @property
    def group(self) -> str:
        """The folder of the part that it is in, or nothing where it is of the whole dataset."""
        return group_of(self.where)

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
    """What came of one kind of check.

    Attributes:
        num_checked: How much was looked at.
        num_wrong: How much of that is wrong.
        skipped: What could not be checked, and why; some of it may have been checked all the same.
    """

    num_checked: int
    num_wrong: int
    skipped: tuple[str, ...] = ()

    @property
    def status(self) -> Status:
        """``failed`` where something is wrong, ``skipped`` where nothing could be looked at, else ``ok``."""
        if self.num_wrong:
            return "failed"
        return "ok" if self.num_checked else "skipped"

    def to_json(self) -> dict[str, Any]:
        """The same as a JSON value."""
        return {
            "checked": self.num_checked, "wrong": self.num_wrong, "status": self.status, "skipped": list(self.skipped),
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What ``verify_dataset`` found.

    Attributes:
        checks: Every kind of check, in the order of ``KINDS``, to what came of it.
        findings: What is wrong: first of the whole dataset by kind, then part by part, file by file.
        left_out: Folder of a part, or nothing for the whole dataset, to its findings beyond the most that were asked
            for; they count in ``checks``.
    """

    checks: Mapping[Kind, Check]
    findings: tuple[Finding, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_ok(self) -> bool:
        """Nothing of what was checked is wrong."""
        return not self.kinds

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of check that found something, in the order of ``KINDS``."""
        return tuple(kind for kind, check in self.checks.items() if check.num_wrong)

    @property
    def skipped(self) -> dict[Kind, tuple[str, ...]]:
        """The kinds of check of which something could not be done, and why."""
        return {kind: check.skipped for kind, check in self.checks.items() if check.skipped}

    @property
    def num_left_out(self) -> int:
        """Findings beyond the most that were asked for."""
        return sum(self.left_out.values())

    def to_json(self) -> dict[str, Any]:
        """The same as a JSON value."""
        return {
            "is_ok": self.is_ok,
            "checks": {kind: check.to_json() for kind, check in self.checks.items()},
            "findings": [finding.to_json() for finding in self.findings],
            "left_out": dict(self.left_out),
        }


def group_of(where: str) -> str:
    """The folder of the part that a place is in, or nothing where it is in none."""
    first = where.partition("/")[0]
    return first if PART_FOLDER.fullmatch(first) else ""


@dataclass(slots=True)
class Findings:
    """Collects findings while checks run; those of one kind, place and nature become one.

    No group of findings takes more memory than ``max_findings`` do; which of them are listed is decided at the end.
    """

    max_findings: int
    _found: dict[str, dict[tuple[Kind, str, str], Finding]] = field(default_factory=dict)
    _checked: dict[Kind, int] = field(default_factory=dict)
    _wrong: dict[Kind, int] = field(default_factory=dict)
    _skipped: dict[Kind, dict[str, None]] = field(default_factory=dict)
    _absent: dict[Kind, str] = field(default_factory=dict)
    _left_out: dict[str, int] = field(default_factory=dict)

    def checked(self, kind: Kind, count: int = 1) -> None:
        """Count what a check looked at."""
        self._checked[kind] = self._checked.get(kind, 0) + count

    def add(self, kind: Kind, where: str, what: str, count: int = 1, places: Iterable[str] = ()) -> None:
        """Tell of something wrong; no more than the first ``MAX_PLACES`` places are taken."""
        if not count:
            return
        self._wrong[kind] = self._wrong.get(kind, 0) + count
        group = group_of(where)
        found = self._found.setdefault(group, {})
        known = found.get((kind, where, what))
        if known is None and len(found) >= self.max_findings:
            self._left_out[group] = self._left_out.get(group, 0) + 1
            return
        before = known or Finding(kind=kind, where=where, what=what, count=0)
        room = MAX_PLACES - len(before.places)
        first = tuple(place for place, _ in zip(places, range(room), strict=False))
        found[kind, where, what] = Finding(
            kind=kind, where=where, what=what, count=before.count + count, places=before.places + first
        )

    def skip(self, kinds: Kind | Sequence[Kind], why: str) -> None:
        """Tell what of some kinds of checks cannot be done, and why."""
        for kind in (kinds,) if isinstance(kinds, str) else kinds:
            self._skipped.setdefault(kind, {})[why] = None

    def absent(self, kinds: Kind | Sequence[Kind], why: str) -> None:
        """Tell why there is nothing to check of some kinds; no other reason counts then."""
        self._absent.update(dict.fromkeys((kinds,) if isinstance(kinds, str) else kinds, why))

    def report(self) -> VerifyReport:
        """What was found so far."""
        groups = {group: _in_order(found.values()) for group, found in sorted(self._found.items())}
        share = _fair_share([len(found) for found in groups.values()], self.max_findings)
        listed: list[Finding] = []
        left_out = dict(self._left_out)
        for group, found in groups.items():
            most = min(share, self.max_findings - len(listed))
            listed += found[:most]
            if len(found) > most:
                left_out[group] = left_out.get(group, 0) + len(found) - most
        return VerifyReport(
            checks={kind: self._check(kind) for kind in KINDS},
            findings=tuple(listed),
            left_out={group: left_out[group] for group in groups if group in left_out},
        )

    def _check(self, kind: Kind) -> Check:
        num_checked, num_wrong = self._checked.get(kind, 0), self._wrong.get(kind, 0)
        skipped = tuple(self._skipped.get(kind, ()))
        if not num_checked and not num_wrong:
            skipped = (self._absent[kind],) if kind in self._absent else skipped or (NOTHING,)
        return Check(num_checked=num_checked, num_wrong=num_wrong, skipped=skipped)


def _in_order(found: Iterable[Finding]) -> list[Finding]:
    """Findings of one group: those of a part by file, others by kind."""
    order: Sequence[Kind] = KINDS
    return sorted(found, key=lambda f: (f.where if f.group else "", order.index(f.kind), f.where))


def _fair_share(sizes: Sequence[int], limit: int) -> int:
    """The most that each of some groups may list so that all together list ``limit``, or one each."""
    share = 1
    while share < max(sizes, default=0) and sum(min(size, share + 1) for size in sizes) <= limit:
        share += 1
    return share
