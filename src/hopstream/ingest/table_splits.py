"""Which split does a column of a table put each row into?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hopstream.arrays import IntArray
from hopstream.errors import SchemaError
from hopstream.ingest.table_files import Batch


def split_names(label: str, column: str, batch: Batch) -> pa.Array:
    """The name of each row's split; null where the cell is empty.

    Raises:
        SchemaError: The column does not hold strings.
    """
    names = batch.columns[column]
    if pa.types.is_dictionary(names.type):
        names = names.dictionary_decode()
    if not (pa.types.is_string(names.type) or pa.types.is_large_string(names.type)):
        raise SchemaError(
            f"{label}.{column} is {names.type} at {batch.origin.place(0)}; a split column holds names of splits"
        )
    marks = pa.array(["", *batch.origin.files.null_values], pa.string())
    names = names.cast(pa.string())
    return pc.if_else(pc.is_in(names, value_set=marks), None, names)


def splits_of(chunks: Sequence[pa.Array], rows: IntArray | None = None) -> dict[str, IntArray]:
    """Split name to ascending keys, in the order in which the table first names them.

    Args:
        chunks: What ``split_names`` gave for each batch.
        rows: int64[n], the rows that are kept, ascending, which are numbered anew; None for all.
    """
    if not chunks:
        return {}
    names = pa.chunked_array(chunks).combine_chunks().dictionary_encode()
    codes = names.indices.fill_null(-1).to_numpy()
    codes = codes if rows is None else codes[rows]
    return {name: np.flatnonzero(codes == code) for code, name in enumerate(names.dictionary.to_pylist())}
