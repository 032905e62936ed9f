"""Checks the files of a dataset, and collects checks, findings and skipped checks."""

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
"""Most places that one finding names."""
NOTHING = "nothing to check"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Defect of one file or table.

    Attributes:
        kind: The check that found it.
        where: The file, or the part and type.
        what: What is wrong.
        count: Number of places.
        places: The first places, such as ``edge key 7``; empty if the file is the place.
    """

    kind: Kind
    where: str
    what: str
    count: int = 1
    places: tuple[str, ...] = ()

    @property
    def group(self) -> str:
        """The folder of the defect's part, or an empty string for the whole dataset."""
        return group_of(self.where)

    def __str__(self) -> str:
        """Format as one line."""
        more = ", …" if self.count > len(self.places) else ""
        places = f": {', '.join(self.places)}{more}" if self.places else ""
        times = f" ({self.count} places)" if self.count > 1 else ""
        return f"{self.where}: {self.what}{times}{places}"

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a JSON value."""
        return {
            "kind": self.kind, "where": self.where, "what": self.what, "count": self.count, "places": list(self.places),
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Result of one kind of check.

    Attributes:
        num_checked: Number of checked items.
        num_wrong: Number of wrong items.
        skipped: Descriptions of items that were not all checked, with reasons.
    """

    num_checked: int
    num_wrong: int
    skipped: tuple[str, ...] = ()

    @property
    def status(self) -> Status:
        """``failed`` if an item is wrong, ``skipped`` if no item was checked, else ``ok``."""
        if self.num_wrong:
            return "failed"
        return "ok" if self.num_checked else "skipped"

    def to_json(self) -> dict[str, Any]:
        """Return the fields and the status as a JSON value."""
        return {
            "checked": self.num_checked, "wrong": self.num_wrong, "status": self.status, "skipped": list(self.skipped),
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """Result of ``verify_dataset``.

    Attributes:
        checks: Every kind of check, in the order of ``KINDS``, to its result.
        findings: The defects: first those of the whole dataset by kind, then by part and file.
        left_out: Folder of a part, or an empty string for the whole dataset, to the number of its findings beyond the
            limit; ``checks`` counts them.
    """

    checks: Mapping[Kind, Check]
    findings: tuple[Finding, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_ok(self) -> bool:
        """Whether no checked item is wrong."""
        return not self.kinds

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of check that found something, in the order of ``KINDS``."""
        return tuple(kind for kind, check in self.checks.items() if check.num_wrong)

    @property
    def skipped(self) -> dict[Kind, tuple[str, ...]]:
        """The kinds of check that were skipped in part or completely, with the reasons."""
        return {kind: check.skipped for kind, check in self.checks.items() if check.skipped}

    @property
    def num_left_out(self) -> int:
        """Number of findings beyond the limit."""
        return sum(self.left_out.values())

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON value."""
        return {
            "is_ok": self.is_ok,
            "checks": {kind: check.to_json() for kind, check in self.checks.items()},
            "findings": [finding.to_json() for finding in self.findings],
            "left_out": dict(self.left_out),
        }


def group_of(where: str) -> str:
    """Return the folder of a place's part, or an empty string."""
    first = where.partition("/")[0]
    return first if PART_FOLDER.fullmatch(first) else ""


@dataclass(slots=True)
class Findings:
    """Collector of findings while checks run. Findings of the same kind, file and defect are merged.

    Each group keeps at most ``max_findings``. ``report`` decides at the end which of them are listed.
    """

    max_findings: int
    _found: dict[str, dict[tuple[Kind, str, str], Finding]] = field(default_factory=dict)
    _checked: dict[Kind, int] = field(default_factory=dict)
    _wrong: dict[Kind, int] = field(default_factory=dict)
    _skipped: dict[Kind, dict[str, None]] = field(default_factory=dict)
    _absent: dict[Kind, str] = field(default_factory=dict)
    _left_out: dict[str, int] = field(default_factory=dict)

    def checked(self, kind: Kind, count: int = 1) -> None:
        """Count checked items."""
        self._checked[kind] = self._checked.get(kind, 0) + count

    def add(self, kind: Kind, where: str, what: str, count: int = 1, places: Iterable[str] = ()) -> None:
        """Report a defect; only the first ``MAX_PLACES`` places are kept."""
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
        """Record that some kinds of checks are skipped in part, and why."""
        for kind in (kinds,) if isinstance(kinds, str) else kinds:
            self._skipped.setdefault(kind, {})[why] = None

    def absent(self, kinds: Kind | Sequence[Kind], why: str) -> None:
        """Record why some kinds of checks have nothing to check; this replaces other reasons."""
        self._absent.update(dict.fromkeys((kinds,) if isinstance(kinds, str) else kinds, why))

    def report(self) -> VerifyReport:
        """Return the report of the findings so far."""
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
    """Sort the findings of one group: those of a part by file, others by kind."""
    order: Sequence[Kind] = KINDS
    return sorted(found, key=lambda f: (f.where if f.group else "", order.index(f.kind), f.where))


def _fair_share(sizes: Sequence[int], limit: int) -> int:
    """Return the most findings per group so that all groups together list ``limit``, and at least 1."""
    share = 1
    while share < max(sizes, default=0) and sum(min(size, share + 1) for size in sizes) <= limit:
        share += 1
    return share


class Files:
    """Arrays of a dataset. An unusable file gives None; it is reported once, and the audit continues.

    If only some parts are audited, the arrays of the other parts have no rows.

    Attributes:
        root: The dataset's folder.
        manifest: Manifest of the dataset.
        findings: Collector of findings.
        parts: The audited parts, ascending.
        is_whole: Whether all parts are audited.
        records: Records of the audited parts' files.
    """

    def __init__(self, root: Path, manifest: Manifest, findings: Findings, parts: Sequence[int]) -> None:
        """Take the dataset without opening a file."""
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
        """Report files that the manifest does not list, and a root list that contradicts the manifest."""
        for folder, _, names in os.walk(self.root, followlinks=True):
            for name in sorted(names):
                path = (Path(folder) / name).relative_to(self.root).as_posix()
                is_known = path in self.manifest.all_files or path in (MANIFEST, *BESIDE_MANIFEST)
                if not is_known and not is_made_token(path) and not FOR_DGL.fullmatch(path):
                    self.findings.add("files", path, "is not a file of this dataset; remove it")
        self._check_roots()

    def _check_roots(self) -> None:
        """Report an unreadable or inconsistent ``roots.json``; ignore one of another state of the dataset."""
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
        what = "lists no root for some parts; place the dataset again"
        self.findings.add("files", ROOTS, what, len(parts - listed), numbers)
        numbers = (f"part {part}" for part in sorted(listed - parts))
        self.findings.add("files", ROOTS, "names parts that do not exist", len(listed - parts), numbers)

    def array(self, path: PurePosixPath) -> Array | None:
        """Map one file; return no rows for a part that is not audited, None for an unusable file."""
        name = str(path)
        if name in self._bad:
            return None
        if name in self.records:
            return open_array(self.root / name, self.records[name])
        record = self.manifest.all_files[name]
        has_end = path.name == "indptr.npy" or path.name.endswith(".offsets.npy")
        return np.zeros((int(has_end), *record.shape[1:]), record.dtype)

    def arrays(self, paths: Sequence[PurePosixPath]) -> list[Array] | None:
        """Return several files, or None if one of them cannot be used."""
        found = [array for path in paths if (array := self.array(path)) is not None]
        return found if len(found) == len(paths) else None

    def column(self, folder: PurePosixPath, name: str, feature: FeatureSchema) -> Column | None:
        """Return a feature, or None if its files cannot be used."""
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
        """Return each feature's columns by part; a feature that is unusable in a part is left out."""
        found: dict[str, list[Column]] = {}
        for name, feature in features.items():
            columns = [c for folder in folders if (c := self.column(folder, name, feature)) is not None]
            if len(columns) == len(folders):
                found[name] = columns
            else:
                self.findings.skip("features", f"{name!r} of {folders[0].name}: a file of it cannot be used")
        return found


def _without(message: str, path: Path) -> str:
    """Remove a file's path from the beginning of a message."""
    return message.removeprefix(f"{path} ")
