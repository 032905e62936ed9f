"""Checks that every file of a dataset is there and is the one that was written, and that there are no others."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from hopstream.arrays import Array, Column, RaggedArray, check_file, open_array
from hopstream.dataset.manifest import Manifest
from hopstream.dataset.paths import FOR_DGL, MANIFEST, feature_paths, part_folder
from hopstream.dataset.roots import BESIDE_MANIFEST, ROOTS, read_roots
from hopstream.errors import ChecksumError, FormatError, SchemaError
from hopstream.preparation.audit.report import Findings
from hopstream.schema import FeatureSchema


class Files:
    """The arrays of a dataset, None where a file cannot be used; that is told once, and the rest is looked at.

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
                if not is_known and not FOR_DGL.fullmatch(path):
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
        """Feature name to the column of each part; features of which a part's cannot be used are left out."""
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
