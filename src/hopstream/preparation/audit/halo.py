"""Checks the halos of parts against the owners of their rows, the hops and the budgets.

The chances of rows are computed as when the rows were chosen. The choice is checked by comparing each row that is left
out with the copied rows.

The check of hops shares no code with the writer of halos, which marks the neighbours of each hop in bitmaps. Here all
rows of all parts are scanned once per hop, one range at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from hopstream.arrays import Array, IntArray
from hopstream.dataset.book import ends_of, entity_label
from hopstream.dataset.chunks import row_chunks
from hopstream.dataset.halo_record import Halo, cached_path, edge_row_bytes, halo_root, node_path
from hopstream.dataset.layout import Dataset
from hopstream.dataset.paths import edge_folder, feature_paths, node_folder
from hopstream.errors import FormatError, SettingsError
from hopstream.preparation.audit.reference import differing_items
from hopstream.preparation.audit.report import Files
from hopstream.preparation.halo.reach import InclusionModel
from hopstream.preparation.halo.run import HaloWriter
from hopstream.preparation.halo.settings import HaloFeatures, HaloSettings
from hopstream.preparation.halo.sources import Chances, NumberTables, Parts
from hopstream.schema import Direction, EdgeType

BLOCK_ROWS = 1 << 18
NO_LIMIT = 1 << 62
LEAST_RATIO = 1 - 1e-9
"""Chances that differ by less count as equal, because another machine may round differently."""


def check_budgets(
    files: Files, halo: Halo, parts: Parts, part: int, node_ids: Mapping[str, IntArray],
    cached_ids: Mapping[str, IntArray],
) -> None:  # fmt: skip
    """Report nodes that are left out although they are likelier than a copied one, or fit into a budget.

    Takes 24 bytes per node of the graph, and 8 more with a budget of edges.

    Raises:
        FormatError: A file of a part cannot be used.
    """
    root, findings = halo_root(part, halo.generation), files.findings
    try:
        settings = HaloSettings(fanouts=halo.fanouts, batch_size=halo.batch_size)
    except SettingsError as error:
        findings.add("halo", str(root), f"was chosen by settings that are invalid: {error}")
        return
    edge_budget = halo.edge_budget_bytes
    model = InclusionModel(
        parts, settings, NumberTables(files.root, NO_LIMIT), is_expanding=edge_budget is not None
    ).of(part)
    if halo.budget_bytes is not None:
        of_rows = _Budget(files, parts, part, halo.budget_bytes, cached_ids, model.sampled, halo.features)
        of_rows.check(str(root / "cached"))
    if edge_budget is not None:
        _Budget(files, parts, part, edge_budget, node_ids, model.expanded, None).check(str(root / "node"))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Rows:
    """Consecutive rows of one type in another part.

    Attributes:
        node_type: Node type of the rows.
        first_id: Id of the first row.
        ranks: float64[n], the chance of each row to be sampled, or its expected requests per byte of its edges.
        sizes: int64[n], the bytes of a copy of each row.
        is_there: bool[n], whether there is a copy.
    """

    node_type: str
    first_id: int
    ranks: Chances
    sizes: IntArray
    is_there: Array

    @property
    def is_left_out(self) -> Array:
        """bool[n], whether a row that may be requested has no copy."""
        return ~self.is_there & (self.ranks > 0)


@dataclass(frozen=True, slots=True, eq=False)
class _Budget:
    """Copies of one part within a budget."""

    files: Files
    parts: Parts
    part: int
    budget: int
    kept_ids: Mapping[str, IntArray]
    chances: Mapping[str, Chances]
    features: Mapping[str, tuple[str, ...]] | None
    """Node type to the copied features; None for a budget of edges."""

    def check(self, where: str) -> None:
        """Report everything that is wrong."""
        budget, findings = self.budget, self.files.findings
        num_bytes, coldest, likeliest = 0, np.inf, 0.0
        for rows in self._rows():
            num_bytes += int(rows.sizes[rows.is_there].sum())
            coldest = min(coldest, float(rows.ranks[rows.is_there].min(initial=np.inf)))
            likeliest = max(likeliest, float(rows.ranks[rows.is_left_out].max(initial=0.0)))
        if num_bytes > budget:
            findings.add("halo", where, f"holds {num_bytes} bytes; {budget} are allowed")
        if not likeliest:
            return
        next_bytes = 0  # size of the next row to take, which is one of the likeliest
        for rows in self._rows():
            is_next = rows.is_left_out & (rows.ranks >= likeliest * LEAST_RATIO)
            next_bytes = max(next_bytes, int(rows.sizes[is_next].max(initial=0)))
            likelier = rows.first_id + np.flatnonzero(rows.is_left_out & (rows.ranks * LEAST_RATIO > coldest))
            what, places = "lacks rows that are likelier than a row that it has", likelier.tolist()
            findings.add("halo", where, what, len(likelier), (f"{rows.node_type} id {i}" for i in places))
        if num_bytes + next_bytes <= budget:
            what = f"holds {num_bytes} bytes, and the likeliest row that is left out takes {next_bytes} at most"
            findings.add("halo", where, f"{what}; the budget of {budget} must be used up")

    def _rows(self) -> Iterator[_Rows]:
        """Yield all rows of other parts, in ranges."""
        for node_type, kept in self.kept_ids.items():
            for first, sizes in self._sizes(node_type):
                stop = first + len(sizes)
                is_there = np.zeros(len(sizes), np.bool_)
                is_there[kept[np.searchsorted(kept, first) : np.searchsorted(kept, stop)] - first] = True
                chances = self.chances[node_type][first:stop] if node_type in self.chances else np.zeros(len(sizes))
                ranks = chances / sizes if self.features is None else chances
                yield _Rows(node_type=node_type, first_id=first, ranks=ranks, sizes=sizes, is_there=is_there)

    def _sizes(self, node_type: str) -> Iterator[tuple[int, IntArray]]:
        """Yield first id and the bytes of a copy of each row, for ranges of the rows of other parts."""
        offsets = self.files.manifest.book.offsets(node_type)
        for part in range(len(offsets) - 1):
            if part == self.part:
                continue
            fixed, items = self._items(part, node_type)
            num_rows = int(offsets[part + 1] - offsets[part])
            for start in range(0, num_rows, BLOCK_ROWS):
                stop = min(start + BLOCK_ROWS, num_rows)
                sizes = np.full(stop - start, fixed, np.int64)
                for ends, item_bytes in items:
                    sizes += np.diff(ends[start : stop + 1]) * item_bytes
                yield int(offsets[part]) + start, sizes

    def _items(self, part: int, node_type: str) -> tuple[int, list[tuple[IntArray, int]]]:
        """Return the fixed bytes of a row of a part, and the ends and bytes of its ragged items or edges."""
        manifest = self.files.manifest
        if self.features is None:
            entities = [entity for entity in manifest.book.edge_offsets if ends_of(*entity)[0] == node_type]
            edges = [self.parts.arrays[part].edges[entity].indptr for entity in entities]
            return 16 + 16 * len(edges), [
                (ends, edge_row_bytes(manifest, entity)) for ends, entity in zip(edges, entities, strict=True)
            ]
        schema, names = manifest.schema.nodes[node_type], self.features[node_type]
        ragged = [name for name in names if not schema[name].is_fixed_width]
        fixed = 16 + sum(schema[name].row_bytes if name not in ragged else 8 for name in names)
        return fixed, [(self._ends(part, node_type, name), schema[name].row_bytes) for name in ragged]

    def _ends(self, part: int, node_type: str, name: str) -> Array:
        """Return the offsets of a ragged feature's rows in a part."""
        path = feature_paths(node_folder(part, node_type), name, self.files.manifest.schema.nodes[node_type][name])[1]
        array = self.files.array(path)
        if array is None:
            raise FormatError(f"{path} cannot be used")
        return array


BLOCK_EDGES = 1 << 20
Marks = dict[str, Array]


def is_within(files: Files, part: int, hops: int) -> Marks:
    """Return the nodes of other parts within some hops of a part's own nodes, by type, as bool[num_nodes].

    Takes three bytes per node of the graph.

    Raises:
        FormatError: Edges of a part cannot be used.
    """
    book = files.manifest.book
    is_own = {t: np.zeros(int(offsets[-1]), np.bool_) for t, offsets in book.node_offsets.items()}
    for node_type, offsets in book.node_offsets.items():
        is_own[node_type][offsets[part] : offsets[part + 1]] = True
    is_near = {t: marks.copy() for t, marks in is_own.items()}
    for _ in range(hops):
        is_next = {t: marks.copy() for t, marks in is_near.items()}
        for entity in book.edge_offsets:
            near, far = ends_of(*entity)
            for ids in _neighbors(files, entity, is_near[near]):
                is_next[far][ids] = True
        has_grown = any(np.count_nonzero(is_next[t]) > np.count_nonzero(is_near[t]) for t in is_near)
        is_near = is_next
        if not has_grown:
            break
    for node_type, marks in is_near.items():
        marks[is_own[node_type]] = False
    return is_near


def _neighbors(files: Files, entity: tuple[EdgeType, Direction], is_near: Array) -> Iterator[IntArray]:
    """Yield the other ends of the edges of some nodes, in blocks."""
    book = files.manifest.book
    near, far = ends_of(*entity)
    offsets, num_others = book.offsets(near), book.num_ids(far)
    for part in range(book.num_parts):
        folder = edge_folder(part, *entity)
        indptr, indices = (files.array(folder / name) for name in ("indptr.npy", "indices.npy"))
        if indptr is None or indices is None or not _is_of(indptr, len(indices)):
            raise FormatError(f"{folder}: the rows of {entity_label(entity)} cannot be used")
        of_part = is_near[offsets[part] : offsets[part + 1]]
        for first, stop, start, end in row_chunks(indptr, BLOCK_EDGES):
            if not of_part[first:stop].any():
                continue
            ids = indices[start:end][np.repeat(of_part[first:stop], np.diff(indptr[first : stop + 1]))]
            if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < num_others:
                raise FormatError(f"{folder}: an edge names a node that does not exist")
            yield ids


def _is_of(indptr: Array, num_edges: int) -> bool:
    """Return whether offsets begin at 0, ascend, and end at the number of edges."""
    for start in range(0, len(indptr) - 1, BLOCK_EDGES):
        ends = indptr[start : start + BLOCK_EDGES + 1]
        if bool(np.any(ends[1:] < ends[:-1])):
            return False
    return int(indptr[0]) == 0 and int(indptr[-1]) == num_edges


def check_halo(files: Files) -> None:
    """Compare every copy with its row, and the copied nodes with the nodes within the hops."""
    halo = files.manifest.halo
    if halo is None:
        return
    if not files.is_whole:
        files.findings.skip("halo", "copies cannot be compared with rows of parts that are not checked")
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
    """Return the ids in a part's list of nodes, or None if the list is invalid; report what is wrong."""
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
    """Check of the halo of one part."""

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
        is_complete = len(known) + len(cached) == len(node_ids) + len(cached_ids)
        if is_complete and (self.halo.budget_bytes, self.halo.edge_budget_bytes) != (None, None):
            check_budgets(self.files, self.halo, self.parts, self.part, known, cached)
        if not is_complete:
            self.files.findings.skip("halo", f"{root}: ids of nodes cannot be used")
            return
        writer = HaloWriter(self.parts, self.halo.generation, _Comparison(self.files))
        features = HaloFeatures(nodes=self.halo.features, edges=self.halo.edge_features)
        writer.write(self.part, known, features, cached)

    def _check_reach(self, node_ids: dict[str, IntArray], cached_ids: dict[str, IntArray]) -> None:
        root, findings, hops = halo_root(self.part, self.halo.generation), self.files.findings, self.halo.hops
        lists = []
        if self.halo.edge_budget_bytes is None:
            lists += [(node_path(root, t), t, ids) for t, ids in node_ids.items()]
        if self.halo.budget_bytes is None:
            lists += [(cached_path(root, t), t, ids) for t, ids in cached_ids.items()]
        wanted = is_within(self.files, self.part, hops) if lists else {}
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
    """Comparison of the expected content of files with the actual content."""

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
            odd = done + differing_items(block.astype(dtype, copy=False), found[done : done + len(block)])
            first = int(odd[0]) if not wrong and len(odd) else first
            done, wrong = done + len(block), wrong + len(odd)
        findings.add("halo", str(path), "is not what the owners have", wrong, [f"position {first}"])
