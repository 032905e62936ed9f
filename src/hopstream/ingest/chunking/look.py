"""What must be known of a table before it is read?

Whether its raw ids are integers, how many there are, of which dtypes undeclared features are, and how the raw ids lie
that only edges name.

Raw ids that edges name are sampled by their hash: of all different ones those with the lowest hashes. Each is as likely
to be among them as any other, however often edges name it, and samples of parts make the sample of the whole.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa

from hopstream.arrays import Array, write_text
from hopstream.engine import task
from hopstream.ingest.chunking.buckets import hashes_of
from hopstream.ingest.chunking.plan import part_of_json
from hopstream.ingest.chunking.workplace import ChunkFolder, Ids, Table, returns_input_errors
from hopstream.ingest.ids import INTEGER, NAME, first_non_integer
from hopstream.ingest.table_columns import LADDER, parsable_dtypes, raw_id_column
from hopstream.ingest.table_files import Batch, read_part
from hopstream.ingest.table_nodes import node_raw_ids, not_integers_error


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
            raw = node_raw_ids(str(self._table.owner), self._spec, batch)
        self.are_integers = self.are_integers and first_non_integer(raw) is None
        text = raw if raw.type == INTEGER and not self._is_implicit else raw.cast(NAME)
        self.count += len(raw)
        self.num_bytes += text.nbytes
        if self._is_implicit:
            self.sample.add(hashes_of(text), text)
