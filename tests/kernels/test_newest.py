"""Is the newest row of each node the one that a search by hand finds?"""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hopstream.kernels.memory import address_table
from hopstream.kernels.newest import find_newest


@st.composite
def overlaid(draw):
    """Sizes of parts, and (part, ascending rows) of overlays, the oldest first; some are of no rows."""
    sizes = draw(st.lists(st.integers(0, 20), min_size=1, max_size=4))
    overlays = []
    for _ in range(draw(st.integers(0, 5))):
        part = draw(st.integers(0, len(sizes) - 1))
        rows = draw(st.sets(st.integers(0, max(0, sizes[part] - 1)), max_size=sizes[part]))
        overlays.append((part, np.array(sorted(rows), np.int64)))
    return sizes, overlays


@given(overlaid())
@settings(deadline=None)
def test_newest_rows(found):
    sizes, overlays = found
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    first, wanted, row_ids = int(offsets[-1]), np.arange(offsets[-1]), []
    for part, rows in overlays:
        row_ids.append(first)
        wanted[offsets[part] + rows] = first + np.arange(len(rows))
        first += len(rows)
    order = sorted(range(len(overlays)), key=lambda i: (overlays[i][0], -i))
    firsts = np.searchsorted([overlays[i][0] for i in order], np.arange(len(sizes) + 1)).astype(np.int64)
    rows = [overlays[i][1] for i in order]
    ids = np.arange(offsets[-1])
    newest = np.empty(len(ids), np.int64)
    find_newest(ids, offsets, firsts, address_table(rows), np.array(row_ids, np.int64)[order], newest)
    assert newest.tolist() == wanted.tolist()
