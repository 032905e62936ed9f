"""What follows for the whole of each table from what was seen of its parts?"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow.compute as pc

from hopstream.arrays import write_text
from hopstream.ingest.chunking.look import Sample
from hopstream.ingest.chunking.plan import Part
from hopstream.ingest.chunking.workplace import ChunkFolder, Ids, RawKind, Table
from hopstream.ingest.ids import INTEGER, NAME
from hopstream.ingest.table_columns import LADDER
from hopstream.schema import STRING

SAMPLES_PER_BUCKET = 8
"""So many at least tell where a range of raw ids begins and ends, so that ranges are of about one size."""


class Findings:
    """What has been seen so far, in the order of the tables."""

    def __init__(self, workplace: ChunkFolder, parts: Mapping[int, Sequence[Part]]) -> None:
        """Of nothing yet."""
        self._workplace, self._parts, self._plan = workplace, parts, workplace.spec
        self._specs = workplace.metadata.nodes
        self._are_integers = {t: spec.id_dtype != STRING for t, spec in self._specs.items()}
        self._sizes: dict[str, tuple[int, int]] = {}
        self._samples: dict[str, Sample] = {}
        self._dtypes: dict[str, dict[str, str]] = {}

    def must_look_at(self, table: Table, ids: Ids) -> bool:
        """Whether a column of raw ids decides over those of its node type."""
        return isinstance(table.owner, str) or self._workplace.is_implicit(ids.node_type)

    def take(self, table: Table, results: Sequence[Mapping[str, Any]]) -> None:
        """Take what ``look_at_part`` returned of each part of a table."""
        if any(result["batches"] for result in results):
            self._dtypes[str(table.number)] = {
                name: next(dtype for dtype in LADDER if all(dtype in result["dtypes"][name] for result in results))
                for name in table.undeclared
            }
        for ids in table.ids:
            if self.must_look_at(table, ids):
                self._are_integers[ids.node_type] &= all(result["integers"][ids.name] for result in results)
                count, num_bytes = (sum(result[what][ids.name] for result in results) for what in ("counts", "bytes"))
                self._sizes[ids.node_type] = (count, num_bytes)
                if self._workplace.is_implicit(ids.node_type):
                    self._merge_samples(table, ids)

    def _merge_samples(self, table: Table, ids: Ids) -> None:
        size = self._plan.limits.num_samples
        merged = self._samples.setdefault(ids.node_type, Sample(size))
        for number in range(len(self._parts[table.number])):
            text = self._workplace.sample_path(table, number, ids.name).read_text(encoding="utf-8")
            sample = Sample.from_text(size, text)
            merged.add(sample.hashes, sample.cells)

    def decide(self) -> None:
        """Let tasks know what raw ids and features are, and how nodes are dealt out."""
        kinds = {node_type: self._kind(node_type) for node_type in self._specs}
        num_buckets = {node_type: self._num_buckets(node_type, kind) for node_type, kind in kinds.items()}
        self._workplace.write_known(kinds, num_buckets, self._dtypes)

    def _kind(self, node_type: str) -> RawKind:
        spec = self._specs[node_type]
        if spec.files is not None and spec.id_column is None:
            return "row"
        return "int64" if self._are_integers[node_type] else "string"

    def _num_buckets(self, node_type: str, kind: RawKind) -> int:
        if kind == "row":
            return 1
        if self._workplace.is_implicit(node_type):
            return self._bound(node_type, kind)
        return self._plan.num_buckets(*self._sizes.get(node_type, (0, 0)))

    def _bound(self, node_type: str, kind: RawKind) -> int:
        """Cut the raw ids of a node type without a table into ranges; how many."""
        sample = self._samples.get(node_type) or Sample(1)
        cells = sample.cells.cast(NAME if kind == STRING else INTEGER)
        cells = cells.take(pc.sort_indices(cells)) if len(cells) else cells
        num_ids = sample.num_different()
        num_bytes = int(cells.nbytes / max(1, len(cells)) * num_ids)
        wanted = 2 * self._plan.num_buckets(num_ids, num_bytes) - 1
        num_buckets = min(wanted, max(1, len(cells) // SAMPLES_PER_BUCKET))
        places = [len(cells) * i // num_buckets for i in range(1, num_buckets)]
        bounds = list(dict.fromkeys(cells[place].as_py() for place in places))
        write_text(self._workplace.bounds_path(node_type), json.dumps(bounds))
        return len(bounds) + 1
