"""Which dtype has what Arrow holds, and are its codes in order?"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from hopstream.schema import NUMERIC_DTYPES

NUMPY_NAMES = {"halffloat": "float16", "float": "float32", "double": "float64"}
"""Types that Arrow calls otherwise than numpy. Arrow's own ``to_pandas_dtype`` needs pandas in some versions."""


def dtype_name(arrow_type: pa.DataType) -> str | None:
    """Name of the dtype of an Arrow type of numbers or bool; None for all others."""
    name = NUMPY_NAMES.get(str(arrow_type), str(arrow_type))
    return name if name in NUMERIC_DTYPES else None


def check_codes(columns: pa.Table | pa.RecordBatch) -> None:
    """Refuse codes that are in no dictionary, which Arrow takes from a damaged Parquet file as they are.

    Raises:
        pa.ArrowInvalid: There is one.
    """
    for name, column in zip(columns.schema.names, columns.columns, strict=True):
        if not pa.types.is_dictionary(column.type):
            continue
        for chunk in getattr(column, "chunks", [column]):
            found, num_values = pc.min_max(chunk.indices).as_py(), len(chunk.dictionary)
            if found["min"] is not None and not 0 <= found["min"] <= found["max"] < num_values:
                codes = f"{found['min']} to {found['max']}"
                raise pa.ArrowInvalid(f"column {name!r} has codes {codes} for a dictionary of {num_values} values")
