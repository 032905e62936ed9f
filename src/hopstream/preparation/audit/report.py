"""Checks the files of a dataset, and records what was checked, what is wrong, and what could not be checked."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal, get_args

import numpy as np

from hopstream.arrays import Array, Column, RaggedArray, check_file, open_array
from hopstream.dataset.manifest import Manifest
from hopstream.dataset.paths import (
    BESIDE_MANIFEST,
    FOR_DGL,
    MANIFEST,
    PART_FOLDER,
    ROOTS,
    feature_paths,
    is_made_token,
    part_folder,
    read_roots,
)
from hopstream.errors import ChecksumError, FormatError, SchemaError
from hopstream.schema import FeatureSchema

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


class Files:
    """The arrays of a dataset, None where a file cannot be used. That is reported once, and the rest is checked.

    Where only some parts are looked at, the arrays of the others are there and have no rows.

    Attributes:
        root: The dataset's folder.
        manifest: Its manifest.
        findings: Where to tell what is wrong.
        parts: The parts that are looked at, ascending.
        is_whole: They are all parts.
        records: Their files.
    """

    def __init__(self, root: Path, manifest: Manifest, findings: Findings, parts: Sequence[int]) -> None:
        """Keep where files are."""
        self.root, self.manifest, self.findings, self.parts = root, manifest, findings, tuple(parts)
        self.is_whole = len(self.parts) == manifest.book.num_parts
        self._folders = {str(part_folder(part)) for part in self.parts}
        self.records = {name: r for name, r in manifest.all_files.items() if name.partition("/")[0] in self._folders}
        self._bad: set[str] = set()

    def check(self, name: str) -> None:
        """Open one file and compare its checksum."""
        record = self.records[name]
        self.findings.checked("files")
        try:
            open_array(self.root / name, record)
        except FormatError as error:
            self._bad.add(name)
            self.findings.add("files", name, _without(str(error), self.root / name))
            return
        self.findings.checked("checksums")
        try:
            check_file(self.root / name, record)
        except ChecksumError as error:
            self.findings.add("checksums", name, _without(str(error), self.root / name))
        except OSError as error:
            self._bad.add(name)
            self.findings.add("files", name, f"cannot be read ({error.strerror})")

    def check_others(self) -> None:
        """Tell of files that the manifest does not list, and of a list of roots that contradicts it."""
        for folder, _, names in os.walk(self.root, followlinks=True):
            for name in sorted(names):
                path = (Path(folder) / name).relative_to(self.root).as_posix()
                is_known = path in self.manifest.all_files or path in (MANIFEST, *BESIDE_MANIFEST)
                if not is_known and not is_made_token(path) and not FOR_DGL.fullmatch(path):
                    self.findings.add("files", path, "is no file of this dataset; remove it")
        self._check_roots()

    def _check_roots(self) -> None:
        """Tell of a ``roots.json`` that cannot be read or does not fit; one of another state of the dataset is idle."""
        try:
            roots = read_roots(self.root)
        except FormatError as error:
            self.findings.add("files", ROOTS, _without(str(error), self.root / ROOTS))
            return
        if roots is None or roots.dataset_id != self.manifest.dataset_id:
            return
        self.findings.checked("files")
        parts = set(range(self.manifest.book.num_parts))
        listed = {part for entry in roots.entries for part in entry.parts}
        numbers = (f"part {part}" for part in sorted(parts - listed))
        what = "says of parts in no root where they lie; place the dataset again"
        self.findings.add("files", ROOTS, what, len(parts - listed), numbers)
        numbers = (f"part {part}" for part in sorted(listed - parts))
        self.findings.add("files", ROOTS, "names parts that there are not", len(listed - parts), numbers)

    def array(self, path: PurePosixPath) -> Array | None:
        """One file, mapped; of a part that is not looked at, an array without rows."""
        name = str(path)
        if name in self._bad:
            return None
        if name in self.records:
            return open_array(self.root / name, self.records[name])
        record = self.manifest.all_files[name]
        has_end = path.name == "indptr.npy" or path.name.endswith(".offsets.npy")
        return np.zeros((int(has_end), *record.shape[1:]), record.dtype)

    def arrays(self, paths: Sequence[PurePosixPath]) -> list[Array] | None:
        """Several files, or None where one of them cannot be used."""
        found = [array for path in paths if (array := self.array(path)) is not None]
        return found if len(found) == len(paths) else None

    def column(self, folder: PurePosixPath, name: str, feature: FeatureSchema) -> Column | None:
        """A feature."""
        found = self.arrays(feature_paths(folder, name, feature))
        if found is None or feature.is_fixed_width:
            return found[0] if found else None
        column = RaggedArray(found[0], found[1], feature.is_string)
        try:
            column.check(f"{folder}: {name}")
        except SchemaError as error:
            self.findings.add("ranges", f"{folder}/features/{name}", str(error).removeprefix(f"{folder}: {name}: "))
            return None
        return column

    def columns(
        self, folders: Sequence[PurePosixPath], features: Mapping[str, FeatureSchema]
    ) -> dict[str, list[Column]]:
        """Feature name to the column of each part; features that cannot be used in a part are left out."""
        found: dict[str, list[Column]] = {}
        for name, feature in features.items():
            columns = [c for folder in folders if (c := self.column(folder, name, feature)) is not None]
            if len(columns) == len(folders):
                found[name] = columns
            else:
                self.findings.skip("features", f"{name!r} of {folders[0].name}: a file of it cannot be used")
        return found


def _without(message: str, path: Path) -> str:
    """A message about a file without the path that it begins with."""
    return message.removeprefix(f"{path} ")
