"""Checks that gathered rows equal numpy's indexing of the whole column, for any cut into parts."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from hopstream.kernels.gather import (
    ROWS_AT_ONCE,
    WORDS_AHEAD,
    copy_located,
    gather_elements,
    gather_numbers,
    gather_ranges,
    gather_rows,
    locate_rows,
)
from hopstream.kernels.lookups import first_unowned
from hopstream.kernels.memory import address_table

CUTS = [[50], [20, 0, 25, 5], [0, 50]]


def _cut(column: np.ndarray, rows: list[int]) -> tuple[np.ndarray, list[np.ndarray]]:
    offsets = np.concatenate([[0], np.cumsum(rows)]).astype(np.int64)
    return offsets, [np.ascontiguousarray(column[a:b]) for a, b in itertools.pairwise(offsets)]


@pytest.mark.parametrize("rows", CUTS)
@pytest.mark.parametrize("word,width", [("uint64", 1), ("uint64", 50), ("uint32", 7), ("uint16", 3), ("uint8", 5)])
def test_rows_equal_indexing(rng: np.random.Generator, rows: list[int], word: str, width: int) -> None:
    column = rng.integers(0, 200, (50, width)).astype(word)
    offsets, parts = _cut(column, rows)
    table = address_table([part.reshape(-1) for part in parts])
    ids = rng.integers(0, 50, 33)
    out = np.zeros((33, width), word)
    gather_rows(ids, offsets, table, out)
    np.testing.assert_array_equal(out, column[ids])


@pytest.mark.parametrize("rows", CUTS)
@pytest.mark.parametrize("width", [1, 8])
@pytest.mark.parametrize(
    "num_ids", [0, 1, WORDS_AHEAD + 1, ROWS_AT_ONCE - 1, ROWS_AT_ONCE, ROWS_AT_ONCE + 1, 2 * ROWS_AT_ONCE + 99]
)
def test_any_number_of_rows(rng: np.random.Generator, rows: list[int], width: int, num_ids: int) -> None:
    column = rng.integers(0, 200, (50, width)).astype(np.uint64)
    offsets, parts = _cut(column, rows)
    table, ids = address_table([part.reshape(-1) for part in parts]), rng.integers(0, 50, num_ids)
    out = np.zeros((num_ids + 1, width), np.uint64)
    gather_rows(ids + 7, offsets + 7, table, out)
    np.testing.assert_array_equal(out[:-1], column[ids])
    assert not out[-1].any()


@pytest.mark.parametrize("rows", CUTS)
@pytest.mark.parametrize("width", [1, 8])
@pytest.mark.parametrize("place", [0, ROWS_AT_ONCE, ROWS_AT_ONCE + 9])
@pytest.mark.parametrize("identifier", [-1, 50, -(2**63), 2**63 - 1])
def test_one_unknown_row_among_many_is_reported(rows: list[int], width: int, place: int, identifier: int) -> None:
    offsets, parts = _cut(np.zeros((50, width), np.uint64), rows)
    ids = np.zeros(ROWS_AT_ONCE + 10, np.int64)
    ids[place] = identifier
    with pytest.raises(IndexError, match="outside its part"):
        gather_rows(
            ids, offsets, address_table([part.reshape(-1) for part in parts]), np.zeros((len(ids), width), np.uint64)
        )


@pytest.mark.parametrize("rows", CUTS)
@pytest.mark.parametrize("num_ids", [0, 1, ROWS_AT_ONCE, 2 * ROWS_AT_ONCE + 99])
def test_numbers_are_widened(rng: np.random.Generator, rows: list[int], num_ids: int) -> None:
    column = rng.integers(0, 1 << 32, 50, np.uint32)
    column[7] = (1 << 32) - 1
    offsets, parts = _cut(column, rows)
    ids, out = rng.integers(0, 50, num_ids), np.full(num_ids + 1, -1)
    gather_numbers(ids + 7, offsets + 7, address_table(parts), column[:0], out)
    np.testing.assert_array_equal(out, [*column[ids].astype(np.int64), -1])


@pytest.mark.parametrize("rows", CUTS)
@pytest.mark.parametrize(("ids", "num_rows"), [([0, 50], 2), ([-1], 1), ([2**62 - 1], 1), ([0, 1, 2], 2)])
def test_unknown_numbers_and_short_outputs_are_reported(rows: list[int], ids: list[int], num_rows: int) -> None:
    offsets, parts = _cut(np.zeros(50, np.uint32), rows)
    with pytest.raises(IndexError):
        gather_numbers(
            np.array(ids), offsets, address_table(parts), np.empty(0, np.uint32), np.zeros(num_rows, np.int64)
        )


@pytest.mark.parametrize("width", [1, 40])
@pytest.mark.parametrize(
    ("ids", "num_rows"), [([0, 3], 2), ([-1], 1), ([2**62 - 1], 1), ([2**60 - 1], 1), ([0, 1, 2], 2)]
)
def test_unknown_rows_and_short_outputs_are_reported(ids: list[int], num_rows: int, width: int) -> None:
    column, out = np.zeros(3 * width, np.uint64), np.zeros((num_rows, width), np.uint64)
    with pytest.raises(IndexError):
        gather_rows(np.array(ids, np.int64), np.array([0, 4]), address_table([column]), out)


@pytest.mark.parametrize("rows", CUTS)
@pytest.mark.parametrize("widths", [(1, 50), (8,), (3, 1, 9)])
def test_located_rows_of_several_columns_are_copied_at_once(
    rng: np.random.Generator, rows: list[int], widths: tuple[int, ...]
) -> None:
    columns = [rng.integers(0, 2**60, (50, width)).astype(np.uint64) for width in widths]
    ids, places = rng.integers(0, 50, 33), rng.permutation(40)[:33]
    addresses = np.zeros((len(widths), 40), np.int64)
    cuts = [_cut(column, rows) for column in columns]
    for number, (offsets, parts) in enumerate(cuts):
        table = address_table([part.reshape(-1) for part in parts])
        locate_rows(ids, offsets, table, widths[number], 8, places, addresses[number])
    outs = [np.zeros((40, width), np.uint64) for width in widths]
    spread = [np.zeros((90, width + 2), np.uint64) for width in widths]
    targets = rng.permutation(90)[:40]
    sizes = np.array([8 * width for width in widths])
    copy_located(addresses, sizes, np.empty(0, np.int64), np.array([[o.ctypes.data, o.strides[0], 40] for o in outs]))
    copy_located(addresses, sizes, targets, np.array([[o.ctypes.data + 8, o.strides[0], 90] for o in spread]))
    for column, out, wide in zip(columns, outs, spread, strict=True):
        wanted = np.zeros_like(out)
        wanted[places] = column[ids]
        np.testing.assert_array_equal(out, wanted)
        np.testing.assert_array_equal(wide[targets][:, 1:-1], wanted)
        assert not wide[:, [0, -1]].any()
        assert not wide[np.setdiff1d(np.arange(90), targets)].any()


def test_located_rows_outside_their_source_or_destination_are_reported() -> None:
    column, addresses, none = np.zeros(6, np.uint64), np.zeros((1, 2), np.int64), np.empty(0, np.int64)
    table, offsets, places = address_table([column]), np.array([0, 4]), np.array([0, 1])
    for wrong in ([0, 3], [-1, 0], [2**62, 0]):
        with pytest.raises(IndexError, match="outside its part"):
            locate_rows(np.array(wrong), offsets, table, 2, 8, places, addresses[0])
    for wrong in ([0, 2], [-1, 0]):
        with pytest.raises(IndexError, match="outside the addresses"):
            locate_rows(np.array([0, 1]), offsets, table, 2, 8, np.array(wrong), addresses[0])
    locate_rows(np.array([0, 1]), offsets, table, 2, 8, places, addresses[0])
    out = np.zeros((2, 2), np.uint64)
    for targets, num_rows in ((none, 1), (np.array([0, 2]), 2), (np.array([-1, 0]), 2)):
        with pytest.raises(IndexError, match="outside its column"):
            copy_located(addresses, np.array([16]), targets, np.array([[out.ctypes.data, 16, num_rows]]))
    with pytest.raises(IndexError, match="do not match"):
        copy_located(addresses, np.array([16]), np.array([0]), np.array([[out.ctypes.data, 16, 2]]))


def test_output_rows_must_be_contiguous() -> None:
    column, out = np.zeros(120, np.uint64), np.zeros((3, 80), np.uint64)[:, ::2]
    with pytest.raises(IndexError, match="are not contiguous"):
        gather_rows(np.arange(3), np.array([0, 3]), address_table([column]), out)


@pytest.mark.parametrize("rows", CUTS)
@pytest.mark.parametrize("width", [1, 3])
def test_ragged_rows_equal_slicing(rng: np.random.Generator, rows: list[int], width: int) -> None:
    lengths = rng.integers(0, 5, 50)
    ends = np.cumsum(lengths)
    values = rng.integers(0, 99, (int(ends[-1]), width)).astype(np.uint32)
    row_values = [values[end - length : end] for end, length in zip(ends, lengths, strict=True)]
    offsets = np.concatenate([[0], np.cumsum(rows)]).astype(np.int64)
    part_offsets, part_values = [], []
    for a, b in itertools.pairwise(offsets):
        part_offsets.append(np.concatenate([[0], np.cumsum(lengths[a:b])]).astype(np.int64))
        part_values.append(np.concatenate([values[:0], *row_values[a:b]]).reshape(-1))
    ids = rng.integers(0, 50, 31)
    parts, starts, found = np.empty(31, np.int32), np.empty(31, np.int64), np.empty(31, np.int64)
    tables = address_table(part_offsets), address_table(part_values)
    total = gather_ranges(ids, offsets, *tables, width, parts, starts, found)
    assert found.tolist() == lengths[ids].tolist()
    assert total == lengths[ids].sum()
    damaged = tables[1] - np.array([0, 1])
    last = np.array([int(np.flatnonzero(lengths)[-1])])
    assert gather_ranges(last, offsets, tables[0], damaged, width, parts.copy(), starts.copy(), found.copy()) == -1
    out = np.empty((total, width), np.uint32)
    gather_elements(tables[1], parts, starts, found, out)
    np.testing.assert_array_equal(out, np.concatenate([values[:0], *[row_values[i] for i in ids]]))


@pytest.mark.parametrize("ids,wanted", [([], -1), ([0, 3, 9], -1), ([0, 4], 1), ([10], 0), ([0, -1], 1), ([3, 7], 1)])
def test_the_first_id_of_an_absent_part_is_found(ids: list[int], wanted: int) -> None:
    offsets, is_present = np.array([0, 4, 8, 10]), np.array([True, False, True])
    assert first_unowned(np.array(ids, np.int64), offsets, is_present) == wanted


@pytest.mark.parametrize(("ids", "wanted"), [([], -1), ([0, 9, 4], -1), ([3, 10], 1), ([0, 4, -1], 2), ([-(2**63)], 0)])
def test_first_unowned_where_all_parts_are_present(ids: list[int], wanted: int) -> None:
    assert first_unowned(np.array(ids, np.int64), np.array([0, 4, 8, 10]), np.ones(3, np.bool_)) == wanted
