"""Checks the copies that parts have of rows of others against their owners."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from hopstream.arrays import Array, IntArray
from hopstream.dataset.halo_record import Halo, cached_path, halo_root, node_path
from hopstream.dataset.layout import Dataset
from hopstream.errors import FormatError
from hopstream.preparation.audit.files import Files
from hopstream.preparation.audit.halo_budget import check_budget
from hopstream.preparation.audit.halo_reach import is_within
from hopstream.preparation.halo.sources import Parts
from hopstream.preparation.halo.writing import HaloWriter


def check_halo(files: Files) -> None:
    """Compare every copy with the row that it is of, and the nodes with those within so many hops."""
    halo = files.manifest.halo
    if halo is None:
        return
    if not files.is_whole:
        files.findings.skip("halo", "copies are compared with rows of parts that are not looked at")
        for part in files.parts:
            root, counts = halo_root(part, halo.generation), halo.parts[part]
            for t, path in [*((t, node_path) for t in counts.nodes), *((t, cached_path) for t in counts.cached)]:
                _checked_ids(files, part, path(root, t), t)
        return
    try:
        parts = Parts(Dataset(files.root, files.manifest))
        for part in range(len(halo.parts)):
            _Check(files, halo, parts, part).run()
    except FormatError as error:
        files.findings.skip("halo", f"a file of a part, or of the halo, cannot be used: {error}")


def _checked_ids(files: Files, part: int, folder: PurePosixPath, node_type: str) -> IntArray | None:
    """The nodes of a list of a part, or None where it is not one; tells what is wrong with it."""
    path, findings, offsets = folder / "id.npy", files.findings, files.manifest.book.offsets(node_type)
    ids = files.array(path)
    if ids is None:
        return None
    findings.checked("halo", len(ids))
    if bool(np.any(ids[1:] <= ids[:-1])) or (len(ids) and not 0 <= int(ids[0]) <= int(ids[-1]) < offsets[-1]):
        findings.add("halo", str(path), f"must ascend, each id once, in 0..{int(offsets[-1]) - 1}")
        return None
    is_own = (ids >= offsets[part]) & (ids < offsets[part + 1])
    num_own = int(np.count_nonzero(is_own))
    findings.add("halo", str(path), "has nodes that the part owns", num_own, (f"id {i}" for i in ids[is_own].tolist()))
    return ids


@dataclass(frozen=True, slots=True, eq=False)
class _Check:
    """The halo of one part."""

    files: Files
    halo: Halo
    parts: Parts
    part: int

    def run(self) -> None:
        root = halo_root(self.part, self.halo.generation)
        counts = self.halo.parts[self.part]
        node_ids = {t: _checked_ids(self.files, self.part, node_path(root, t), t) for t in counts.nodes}
        cached_ids = {t: _checked_ids(self.files, self.part, cached_path(root, t), t) for t in counts.cached}
        known = {t: ids for t, ids in node_ids.items() if ids is not None}
        cached = {t: ids for t, ids in cached_ids.items() if ids is not None}
        self._check_reach(known, cached)
        if self.halo.budget_bytes is not None and len(cached) == len(cached_ids):
            check_budget(self.files, self.halo, self.parts, self.part, cached)
        if len(known) + len(cached) < len(node_ids) + len(cached_ids):
            self.files.findings.skip("halo", f"{root}: ids of nodes cannot be used")
            return
        writer = HaloWriter(self.parts, self.halo.generation, _Comparison(self.files))
        writer.write(self.part, known, self.halo.features, cached)

    def _check_reach(self, node_ids: dict[str, IntArray], cached_ids: dict[str, IntArray]) -> None:
        root, findings, hops = halo_root(self.part, self.halo.generation), self.files.findings, self.halo.hops
        wanted = is_within(self.files, self.part, hops)
        lists = [(node_path(root, t), t, ids) for t, ids in node_ids.items()]
        if self.halo.budget_bytes is None:
            lists += [(cached_path(root, t), t, ids) for t, ids in cached_ids.items()]
        for folder, node_type, ids in lists:
            is_there = np.zeros(len(wanted[node_type]), np.bool_)
            is_there[ids] = True
            for what, is_odd in (
                (f"lacks nodes within {hops} hops", wanted[node_type] & ~is_there),
                (f"has nodes beyond {hops} hops", is_there & ~wanted[node_type]),
            ):
                odd = np.flatnonzero(is_odd)
                findings.add("halo", str(folder / "id.npy"), what, len(odd), (f"id {i}" for i in odd.tolist()))


@dataclass(frozen=True, slots=True, eq=False)
class _Comparison:
    """Compares what should be in a file with what is."""

    files: Files

    def put(self, path: PurePosixPath, dtype: np.dtype[Any], shape: tuple[int, ...], blocks: Iterable[Array]) -> None:
        """Compare one file."""
        found, findings = self.files.array(path), self.files.findings
        if found is None:
            return
        if found.dtype != dtype or found.shape != shape:
            findings.add(
                "halo", str(path), f"is {found.dtype}{list(found.shape)}; the owners have {dtype}{list(shape)}"
            )
            return
        findings.checked("halo", len(found))
        done, wrong, first = 0, 0, -1
        for block in blocks:
            stop = done + len(block)
            if block.size:
                ours = np.ascontiguousarray(block.astype(dtype, copy=False)).reshape(len(block), -1).view(np.uint8)
                theirs = np.ascontiguousarray(found[done:stop]).reshape(len(block), -1).view(np.uint8)
                odd = np.flatnonzero(np.any(ours != theirs, axis=1))
                first = done + int(odd[0]) if wrong == 0 and len(odd) else first
                wrong += len(odd)
            done = stop
        findings.add("halo", str(path), "is not what the owners have", wrong, [f"position {first}"])
