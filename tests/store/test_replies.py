"""Checks that an answer is accepted only as far as it fits the request."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hopstream.buffers import BufferPool
from hopstream.errors import FormatError
from hopstream.schema import EdgeType
from hopstream.store.contract import FetchRequest, SampleRequest
from hopstream.store.replies import FetchReader, RowsReader, SampleReader, SplitReader
from hopstream.store.wire import Piece
from hopstream.transport.messages import Frame
from tests.store.cases import Case

CITES: EdgeType = ("paper", "cites", "paper")


def int32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def uint32(*values: int) -> np.ndarray:
    return np.array(values, np.uint32)


def int64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def frame(pieces: object, *arrays: np.ndarray) -> Frame:
    return Frame({"pieces": pieces}, list(arrays))


def read_sample(case: Case, *frames: Frame, count: int = 2) -> None:
    request = SampleRequest(edge_type=CITES, direction="in", ids=int64(1, 2, 3), count=count, wants_edge_ids=True)
    reader = SampleReader(case.shared(), [request])
    reader.expect([Piece(0, 0, 3)])
    for each in frames:
        reader.take(each)
    reader.result()


GOOD = (int32(1, 0, 2), uint32(5, 6, 7), int64(8, 9, 10))


def test_a_valid_answer_is_accepted(typed_case: Case) -> None:
    read_sample(typed_case, frame([[0, 0, 3]], *GOOD))
    read_sample(
        typed_case,
        frame([[0, 0, 1]], int32(1), uint32(5), int64(8)),
        frame([[0, 1, 2]], int32(0, 2), int64(6, 7), int64(9, 10)),
    )


ALL = -1
RUNS = (
    frame([[0, 0, 1]], int32(1), uint32(5), int64(8)),
    frame([[0, 1, 1, 0, 2, 3]], uint32(6, 7), int64(9, 10)),
    frame([[0, 1, 1, 2, 1, 3]], uint32(8), int64(11)),
    frame([[0, 2, 1]], int32(0), uint32(), int64()),
)


def test_a_row_may_come_in_runs(typed_case: Case) -> None:
    request = SampleRequest(edge_type=CITES, direction="in", ids=int64(1, 2, 3), count=ALL, wants_edge_ids=True)
    request = replace(request, wants_edge_keys=True)
    reader = SampleReader(typed_case.shared(), [request])
    reader.expect([Piece(0, 0, 3)])
    for each in RUNS:
        reader.take(replace(each, arrays=[*each.arrays, 2 * each.arrays[-1]]))
    (reply,) = reader.result()
    assert reply.counts.tolist() == [1, 3, 0]
    assert reply.neighbor_ids.tolist() == [5, 6, 7, 8]
    assert reply.edge_ids is not None
    assert reply.edge_ids.tolist() == [8, 9, 10, 11]
    assert reply.edge_keys is not None
    assert reply.edge_keys.tolist() == [16, 18, 20, 22]


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        ([RUNS[1]], "not the next one"),
        ([RUNS[0], RUNS[2]], "not the next run"),
        ([RUNS[0], RUNS[1], RUNS[1]], "not the next run"),
        ([RUNS[0], RUNS[1], RUNS[3]], "not the next one"),
        ([RUNS[0], RUNS[1], frame([[0, 1, 1]], int32(0), uint32(), int64())], "before row 1 of request 0 is complete"),
        ([RUNS[0], RUNS[1], frame([[0, 1, 1, 2, 1, 4]], uint32(8), int64(11))], "not the next run"),
        ([RUNS[0], RUNS[1]], "ended after 1 of 3 rows"),
        ([RUNS[0], frame([[0, 1, 2, 0, 2, 3]], uint32(6, 7), int64(9, 10))], "not the next run"),
        ([RUNS[0], frame([[0, 1, 1, 0, 0, 3]], uint32(), int64())], "not the next run"),
        ([RUNS[0], frame([[0, 1, 1, 0, 4, 3]], uint32(1, 2, 3, 4), int64(1, 2, 3, 4))], "not the next run"),
        ([RUNS[0], frame([[0, 1, 1, 0, 2, 1 << 40]], uint32(6, 7), int64(9, 10))], "at most"),
        ([RUNS[0], frame([[0, 1, 1, 0, 2, 3]], uint32(6), int64(9))], "request implies"),
        ([RUNS[0], frame([[0, 1, 1, 0, 2]], uint32(6, 7), int64(9, 10))], "is not .request"),
    ],
)
def test_runs_that_do_not_fit_are_refused(typed_case: Case, frames: list[Frame], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read_sample(typed_case, *frames, count=ALL)


def test_only_neighbours_come_in_runs(typed_case: Case) -> None:
    with pytest.raises(FormatError, match=r"is not .request"):
        read_fetch(typed_case, frame([[0, 0, 1, 0, 1, 2]], YEARS[:1], int64(2), int64(1, 2)))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (Frame({}, []), "names no pieces"),
        (frame(3), "names no pieces"),
        (frame([3]), "is not .request, start, rows"),
        (frame([[0, 0, True]]), "is not .request, start, rows"),
        (frame([[1, 0, 3]], *GOOD), "piece of request 1"),
        (frame([[-1, 0, 3]], *GOOD), "piece of request -1"),
        (frame([[0, 1, 2]], *GOOD), "not the next one"),
        (frame([[0, -1, 3]], *GOOD), "not the next one"),
        (frame([[0, 0, 4]], *GOOD), "not the next one"),
        (frame([[0, 0, 0]], *GOOD), "not the next one"),
        (frame([[0, 0, 1 << 70]], *GOOD), "not the next one"),
        (frame([[0, 0, 3], [0, 0, 3]], *GOOD), "not the next one"),
        (frame([[0, 0, 3]], *GOOD[:2]), "fewer arrays"),
        (frame([[0, 0, 3]], int32(1, 0), *GOOD[1:]), "request implies"),
        (frame([[0, 0, 3]], int64(1, 0, 2), *GOOD[1:]), "request implies"),
        (frame([[0, 0, 3]], int32(1, -1, 2), *GOOD[1:]), "counts are -1"),
        (frame([[0, 0, 3]], int32(0, 0, 3), *GOOD[1:]), "they must be 0..2"),
        (frame([[0, 0, 3]], int32(1, 1, 2), *GOOD[1:]), "request implies"),
        (frame([[0, 0, 3]], GOOD[0], uint32(5, 6, 60), GOOD[2]), "neighbour id outside"),
        (frame([[0, 0, 3]], GOOD[0], int64(5, -6, 7), GOOD[2]), "neighbour id outside"),
        (frame([[0, 0, 3]], *GOOD[:2], int64(8, 9, 360)), "edge id outside"),
        (frame([[0, 0, 3]], *GOOD[:2], int64(8, 9)), "request implies"),
        (frame([[0, 0, 2]], int32(1, 0), uint32(5), int64(8)), "ended after 2 of 3 rows"),
    ],
)
def test_an_answer_that_does_not_fit_is_refused(typed_case: Case, answer: Frame, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read_sample(typed_case, answer)


def read_fetch(case: Case, *frames: Frame) -> None:
    request = FetchRequest(entity="paper", names=("year", "tags"), ids=int64(1, 2))
    reader = FetchReader(case.shared(), [request], BufferPool(0))
    reader.expect([Piece(0, 0, 2)])
    for each in frames:
        reader.take(each)
    reader.result()


YEARS = np.array([1999, 2001], np.int16)


def test_valid_rows_are_accepted(typed_case: Case) -> None:
    read_fetch(typed_case, frame([[0, 0, 2]], YEARS, int64(2, 1), int64(1, 2, 3)))


@pytest.mark.parametrize(
    "arrays",
    [
        [YEARS.astype(np.int32), int64(2, 1), int64(1, 2, 3)],
        [YEARS[:1], int64(2, 1), int64(1, 2, 3)],
        [YEARS.reshape(2, 1), int64(2, 1), int64(1, 2, 3)],
        [YEARS, int64(2, 2), int64(1, 2, 3)],
        [YEARS, int64(4, -1), int64(1, 2, 3)],
        [YEARS, int64((1 << 63) - 1, 5), int64(1, 2, 3)],
        [YEARS, int64(2, 1, 0), int64(1, 2, 3)],
        [YEARS, int64(2, 1), uint32(1, 2, 3)],
        [YEARS],
    ],
)
def test_rows_that_do_not_fit_are_refused(typed_case: Case, arrays: list[np.ndarray]) -> None:
    with pytest.raises(FormatError):
        read_fetch(typed_case, frame([[0, 0, 2]], *arrays))


@pytest.mark.parametrize("value", [-1, 9])
def test_values_out_of_range_are_refused(value: int) -> None:
    reader = RowsReader(2, 9)
    reader.expect([Piece(0, 0, 2)])
    with pytest.raises(FormatError, match="outside"):
        reader.take(frame([[0, 0, 2]], int64(0, value)))


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [Frame({}, [])],
        [Frame({"num_keys": 11}, [])],
        [Frame({"num_keys": -1}, [])],
        [Frame({"num_keys": True}, [])],
        [Frame({"num_keys": 2}, [])],
        [Frame({"num_keys": 2}, []), frame([[0, 0, 2]], int64(3, 3))],
        [Frame({"num_keys": 2}, []), frame([[0, 0, 2]], int64(3, 10))],
    ],
)
def test_invalid_splits_are_refused(frames: list[Frame]) -> None:
    reader = SplitReader(10)
    with pytest.raises(FormatError):
        for each in frames:
            reader.take(each)
        reader.result()
