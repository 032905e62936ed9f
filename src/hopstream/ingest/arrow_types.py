"""Which dtype has what Arrow holds?"""

from __future__ import annotations

import pyarrow as pa

from hopstream.schema import NUMERIC_DTYPES

NUMPY_NAMES = {"halffloat": "float16", "float": "float32", "double": "float64"}
"""Types that Arrow calls otherwise than numpy. Arrow's own ``to_pandas_dtype`` needs pandas in some versions."""


def dtype_name(arrow_type: pa.DataType) -> str | None:
    """Name of the dtype of an Arrow type of numbers or bool; None for all others."""
    name = NUMPY_NAMES.get(str(arrow_type), str(arrow_type))
    return name if name in NUMERIC_DTYPES else None
