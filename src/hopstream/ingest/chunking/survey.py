"""Surveys tables before they are read: kinds and numbers of raw ids, and dtypes of undeclared features.

Nodes that only edges name are dealt out by range, so the survey also finds where ranges of equal size begin.

A sample is the different raw ids with the lowest hashes. Each raw id is as likely in it as any other, however often
edges name it, and the samples of parts make the sample of the whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hopstream.arrays import Array, write_text
from hopstream.engine import task
from hopstream.ingest.chunking.buckets import hashes_of
from hopstream.ingest.chunking.plan import Part, part_of_json
from hopstream.ingest.chunking.workplace import ChunkFolder, Ids, RawKind, Table, returns_input_errors
from hopstream.ingest.raw_tables.columns import LADDER, parsable_dtypes, raw_id_column
from hopstream.ingest.raw_tables.files import Batch, read_part
from hopstream.ingest.raw_tables.nodes_and_edges import node_raw_ids, not_integers_error
from hopstream.ingest.raw_tables.raw_ids import INTEGER, NAME, first_non_integer
from hopstream.schema import STRING


@task
@returns_input_errors
def look_at_part(args: dict[str, Any]) -> dict[str, Any]:
    """Look at the columns of raw ids that are named, and at undeclared features.

    Returns:
        ``batches``: How many batches there are. ``integers``: by column, whether all raw ids are. ``counts`` and
        ``bytes``: by column, how many raw ids there are and their bytes. ``dtypes``: by feature, what can hold its
        cells.
    """
    workplace = ChunkFolder.of(args)
    table = workplace.declared[int(args["table"])]
    looked_at = [ids for ids in table.ids if ids.name in args["ids"]]
    looks = {ids.name: _Look(workplace, table, ids) for ids in looked_at}
    dtypes = {name: list(LADDER) for name in table.undeclared}
    columns = [ids.column for ids in looked_at]
    columns += [column for spec in table.undeclared.values() for column in spec.columns]
    num_batches = 0
    if table.files is not None:
        for batch in read_part(
            table.files, part_of_json(args["part"]), columns, block_bytes=workplace.spec.csv_block_bytes
        ):
            num_batches += 1
            for look in looks.values():
                look.add(batch)
            for name, spec in table.undeclared.items():
                dtypes[name] = parsable_dtypes(batch, spec, dtypes[name])
    for ids in looked_at:
        if workplace.is_implicit(ids.node_type):
            write_text(workplace.sample_path(table, int(args["number"]), ids.name), looks[ids.name].sample.to_text())
    return {
        "batches": num_batches, "dtypes": dtypes,
        "integers": {name: look.are_integers for name, look in looks.items()},
        "counts": {name: look.count for name, look in looks.items()},
        "bytes": {name: look.num_bytes for name, look in looks.items()},
    }  # fmt: skip


class Sample:
    """The different raw ids with the lowest hashes."""

    def __init__(self, size: int) -> None:
        """Of none so far."""
        self._size = size
        self.hashes: Array = np.empty(0, np.uint64)
        self.cells: pa.Array = pa.array([], NAME)

    def add(self, hashes: Array, cells: pa.Array) -> None:
        """Take raw ids as text, and their hashes."""
        if len(self.hashes) == self._size:
            is_low = hashes < self.hashes[-1]
            hashes, cells = hashes[is_low], cells.filter(pa.array(is_low))
        hashes = np.concatenate([self.hashes, hashes])
        cells = pa.concat_arrays([self.cells, cells])
        self.hashes, firsts = np.unique(hashes, return_index=True)
        self.hashes = self.hashes[: self._size]
        self.cells = cells.take(pa.array(firsts[: self._size]))

    def num_different(self) -> int:
        """About how many different raw ids there are, by how dense the lowest hashes lie."""
        if len(self.hashes) < self._size:
            return len(self.hashes)
        return int((self._size - 1) / (float(self.hashes[-1]) + 1) * 2.0**64)

    def to_text(self) -> str:
        """As JSON, which ``from_text`` reads."""
        return json.dumps([self.hashes.tolist(), self.cells.to_pylist()])

    @classmethod
    def from_text(cls, size: int, text: str) -> Sample:
        """Read what ``to_text`` wrote."""
        sample = cls(size)
        hashes, cells = json.loads(text)
        sample.hashes, sample.cells = np.array(hashes, np.uint64), pa.array(cells, NAME)
        return sample


class _Look:
    """What is found out of one column of raw ids."""

    def __init__(self, workplace: ChunkFolder, table: Table, ids: Ids) -> None:
        self._spec = workplace.metadata.nodes[ids.node_type]
        self._table, self._ids = table, ids
        self._is_implicit = workplace.is_implicit(ids.node_type)
        self.sample = Sample(workplace.spec.limits.num_samples)
        self.are_integers, self.count, self.num_bytes = True, 0, 0

    def add(self, batch: Batch) -> None:
        if self._is_implicit:
            raw = raw_id_column(batch, self._ids.column, f"{self._table.label}.{self._ids.column}").drop_null()
            if self._spec.id_dtype == "int64" and first_non_integer(raw) is not None:
                raise not_integers_error(f"{self._table.label}.{self._ids.column}", self._ids.node_type)
        else:
            raw = node_raw_ids(str(self._table.entity), self._spec, batch)
        self.are_integers = self.are_integers and first_non_integer(raw) is None
        text = raw if raw.type == INTEGER and not self._is_implicit else raw.cast(NAME)
        self.count += len(raw)
        self.num_bytes += text.nbytes
        if self._is_implicit:
            self.sample.add(hashes_of(text), text)


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
        return isinstance(table.entity, str) or self._workplace.is_implicit(ids.node_type)

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
