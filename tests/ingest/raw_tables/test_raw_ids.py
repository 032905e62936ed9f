"""Checks that every raw id gets the key that a dictionary would give it."""

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hopstream.errors import SchemaError
from hopstream.ingest.raw_tables import raw_ids
from hopstream.ingest.raw_tables.raw_ids import (
    INTEGER,
    NAME,
    TEXT,
    RawIds,
    collect_raw_ids,
    first_non_integer,
    sorted_raw_ids,
)
from hopstream.ingest.raw_tables.raw_ids import strings_column as join_strings
from tests import naive

patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""No deadline, as a busy machine is no failure."""
integers = st.integers(-(2**63), 2**63 - 1) | st.integers(-9, 9)
kinds = st.sampled_from([(INTEGER, integers), (NAME, st.text(max_size=3)), (TEXT, st.text("abc0", min_size=1))])


def chunked(values, arrow_type, num_chunks):
    cuts = [len(values) * i // num_chunks for i in range(num_chunks + 1)]
    return [pa.array(values[a:b], arrow_type) for a, b in itertools.pairwise(cuts)]


@st.composite
def lookups(draw):
    arrow_type, values = draw(kinds)
    raw = draw(st.lists(values, unique=True, max_size=12))
    asked = draw(st.lists(st.sampled_from(raw) | values if raw else values, max_size=20))
    return arrow_type, raw, asked, draw(st.integers(1, 3))


@patient
@given(lookups())
def test_keys_are_those_of_a_dictionary(lookup):
    arrow_type, raw, asked, num_chunks = lookup
    found = collect_raw_ids(chunked(raw, arrow_type, num_chunks), "string" if arrow_type == TEXT else None)
    assert found.first_repeated() is None
    assert list(found.as_column()) == raw
    keys = found.keys_of(chunked(asked, arrow_type, num_chunks))
    assert keys.dtype == np.int64
    assert keys.tolist() == naive.keys_of_raw_ids(raw, asked)


@patient
@given(kinds.flatmap(lambda kind: st.tuples(st.just(kind[0]), st.lists(kind[1], max_size=12))), st.integers(1, 3))
def test_sorted_raw_ids_are_distinct_and_ascending(kind, num_chunks):
    arrow_type, raw = kind
    found = sorted_raw_ids(chunked([*raw, None], arrow_type, num_chunks), "string" if arrow_type == TEXT else None)
    wanted = sorted(set(raw), key=lambda value: value.encode() if isinstance(value, str) else value)
    assert list(found.as_column()) == wanted
    assert found.num_nodes == len(wanted)


@patient
@given(st.lists(st.integers(0, 5), max_size=10))
def test_the_first_repeated_row(raw):
    wanted = next((row for row, value in enumerate(raw) if value in raw[:row]), None)
    assert collect_raw_ids([pa.array(raw, INTEGER)], None).first_repeated() == wanted
    assert collect_raw_ids([pa.array(map(str, raw), NAME)], None).first_repeated() == wanted


@pytest.mark.parametrize(
    ("cells", "row"),
    [
        (["1", "-2", "007"], None),
        ([str(2**63 - 1), str(-(2**63))], None),
        (["1", ""], 1),
        (["1", "2.0"], 1),
        (["1", "0x10"], 1),
        (["1", " 2"], 1),
        (["1", str(2**63)], 1),
        (["٣"], 0),
        ([], None),
    ],
)
def test_cells_that_are_integers(cells, row):
    assert first_non_integer(pa.array(cells, TEXT)) == row
    assert collect_raw_ids([pa.array(cells, TEXT)], None).values.type == (INTEGER if row is None else NAME)


def test_strings_of_parquet_stay_strings():
    assert collect_raw_ids([pa.array(["1", "2"], NAME)], None).values.type == NAME
    assert first_non_integer(pa.array(["1"], NAME)) == 0
    assert first_non_integer(pa.array([], NAME)) is None


def test_lookups_across_kinds():
    of_integers = RawIds(pa.chunked_array([pa.array([7, 30, -1], INTEGER)]), 3)
    cells = pa.array(["30", "007", "x", None, "-1", "0x7", str(2**63), "31"], TEXT)
    assert of_integers.keys_of([cells, pa.array(["7"], NAME)]).tolist() == [1, 0, -1, -1, 2, -1, -1, -1, 0]
    of_names = RawIds(pa.chunked_array([pa.array(["7", "x"], NAME)]), 2)
    assert of_names.keys_of([pa.array([7, None, 8], INTEGER), cells]).tolist() == [0, -1, -1] + [-1, -1, 1] + [-1] * 5


def test_row_numbers_as_raw_ids():
    rows = RawIds(None, 3)
    assert rows.keys_of([pa.array([0, 2, 3, -1, None], INTEGER)]).tolist() == [0, 2, -1, -1, -1]
    assert rows.keys_of([pa.array(["1", "x"], TEXT)]).tolist() == [1, -1]
    assert rows.keys_of([]).tolist() == []
    assert rows.first_repeated() is None
    assert rows.as_column().tolist() == [0, 1, 2]


def test_no_ids_at_all():
    nothing = collect_raw_ids([], None)
    assert nothing.keys_of([pa.array(["1"], TEXT)]).tolist() == [-1]
    assert nothing.keys_of([]).tolist() == []
    assert len(nothing.as_column()) == sorted_raw_ids([], None).num_nodes == 0


def test_more_ids_than_arrow_can_look_up(monkeypatch):
    monkeypatch.setattr(raw_ids, "MAX_IDS", 2)
    with pytest.raises(SchemaError, match="a node type has 3 raw ids; at most 2"):
        collect_raw_ids([pa.array([1, 2, 3], INTEGER)], None)


@patient
@given(st.lists(st.text(max_size=4), max_size=10), st.integers(0, 3), st.sampled_from([TEXT, NAME]))
def test_strings_column_of_slices(strings, skipped, arrow_type):
    column = join_strings([pa.array(strings, arrow_type)[skipped:], pa.array(strings[:skipped], arrow_type)])
    column.check("column")
    assert list(column) == strings[skipped:] + strings[:skipped]
