"""Checks that the rows of a halo with a budget are the likeliest, and that the budget is used up.

How likely rows are is worked out as when they were chosen; that they were chosen well is checked by comparing each row
that is left out with those that are there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from hopstream.arrays import Array, IntArray
from hopstream.dataset.halo_record import Halo, halo_root
from hopstream.dataset.paths import feature_paths, node_folder
from hopstream.errors import FormatError, SettingsError
from hopstream.preparation.audit.files import Files
from hopstream.preparation.halo.node_sets import Chances, Tables
from hopstream.preparation.halo.reach import InclusionModel
from hopstream.preparation.halo.settings import HaloSettings
from hopstream.preparation.halo.sources import Parts

BLOCK_ROWS = 1 << 18
NO_LIMIT = 1 << 62
LEAST_RATIO = 1 - 1e-9
"""Chances that differ less count as equal: another machine may round them otherwise."""


def check_budget(files: Files, halo: Halo, parts: Parts, part: int, cached_ids: Mapping[str, IntArray]) -> None:
    """Tell where rows are left out that are likelier than one that is there, or that there is room for.

    Takes 24 bytes per node of the graph.

    Raises:
        FormatError: A file of a part cannot be used.
    """
    where, findings = str(halo_root(part, halo.generation) / "cached"), files.findings
    try:
        settings = HaloSettings(fanouts=halo.fanouts, batch_size=halo.batch_size)
    except SettingsError as error:
        findings.add("halo", where, f"was chosen by what nobody can choose by: {error}")
        return
    model = InclusionModel(parts, settings, Tables(files.root, NO_LIMIT), is_expanding=False)
    _Budget(files, halo, part, cached_ids, model.of(part).sampled).check(where)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Rows:
    """Rows of one type of another part that follow each other.

    Attributes:
        node_type: Their type.
        first_id: Id of the first.
        chances: float64[n], how likely each is to be sampled.
        sizes: int64[n], the bytes of a copy of each.
        is_there: bool[n], whether there is a copy.
    """

    node_type: str
    first_id: int
    chances: Chances
    sizes: IntArray
    is_there: Array

    @property
    def is_left_out(self) -> Array:
        """bool[n], whether there is none, of a row that may be sampled."""
        return ~self.is_there & (self.chances > 0)


@dataclass(frozen=True, slots=True, eq=False)
class _Budget:
    """What one part has copies of within the budget."""

    files: Files
    halo: Halo
    part: int
    cached_ids: Mapping[str, IntArray]
    chances: Mapping[str, Chances]

    def check(self, where: str) -> None:
        """Tell what is wrong."""
        budget, findings = self.halo.budget_bytes or 0, self.files.findings
        num_bytes, coldest, likeliest = 0, np.inf, 0.0
        for rows in self._rows():
            num_bytes += int(rows.sizes[rows.is_there].sum())
            coldest = min(coldest, float(rows.chances[rows.is_there].min(initial=np.inf)))
            likeliest = max(likeliest, float(rows.chances[rows.is_left_out].max(initial=0.0)))
        if num_bytes > budget:
            findings.add("halo", where, f"holds {num_bytes} bytes; {budget} are allowed")
        if not likeliest:
            return
        next_bytes = 0  # of the next row to take: it is one of the likeliest
        for rows in self._rows():
            is_next = rows.is_left_out & (rows.chances >= likeliest * LEAST_RATIO)
            next_bytes = max(next_bytes, int(rows.sizes[is_next].max(initial=0)))
            likelier = rows.first_id + np.flatnonzero(rows.is_left_out & (rows.chances * LEAST_RATIO > coldest))
            what, places = "lacks rows that are likelier than one that it has", likelier.tolist()
            findings.add("halo", where, what, len(likelier), (f"{rows.node_type} id {i}" for i in places))
        if num_bytes + next_bytes <= budget:
            what = f"holds {num_bytes} bytes, and the likeliest row that is left out takes {next_bytes} at most"
            findings.add("halo", where, f"{what}; {budget} are to be used up")

    def _rows(self) -> Iterator[_Rows]:
        """All rows of other parts, in stretches."""
        for node_type, names in self.halo.features.items():
            kept = self.cached_ids[node_type]
            for first, sizes in self._sizes(node_type, names):
                stop = first + len(sizes)
                is_there = np.zeros(len(sizes), np.bool_)
                is_there[kept[np.searchsorted(kept, first) : np.searchsorted(kept, stop)] - first] = True
                chances = self.chances[node_type][first:stop]
                yield _Rows(node_type=node_type, first_id=first, chances=chances, sizes=sizes, is_there=is_there)

    def _sizes(self, node_type: str, names: tuple[str, ...]) -> Iterator[tuple[int, IntArray]]:
        """First id, and the bytes of a copy of each row with id and key, of stretches of the rows of other parts."""
        offsets, features = self.files.manifest.book.offsets(node_type), self.files.manifest.schema.nodes[node_type]
        fixed = 16 + sum(features[name].row_bytes for name in names if features[name].is_fixed_width)
        ragged = [name for name in names if not features[name].is_fixed_width]
        for part in range(len(self.halo.parts)):
            ends = {name: self._ends(part, node_type, name) for name in ragged} if part != self.part else {}
            num_rows = int(offsets[part + 1] - offsets[part]) if part != self.part else 0
            for start in range(0, num_rows, BLOCK_ROWS):
                stop = min(start + BLOCK_ROWS, num_rows)
                sizes = np.full(stop - start, fixed, np.int64)
                for name, of_rows in ends.items():
                    sizes += 8 + np.diff(of_rows[start : stop + 1]) * features[name].row_bytes
                yield int(offsets[part]) + start, sizes

    def _ends(self, part: int, node_type: str, name: str) -> Array:
        """Where the rows of a ragged feature of a part begin and end."""
        path = feature_paths(node_folder(part, node_type), name, self.files.manifest.schema.nodes[node_type][name])[1]
        array = self.files.array(path)
        if array is None:
            raise FormatError(f"{path} cannot be used")
        return array
