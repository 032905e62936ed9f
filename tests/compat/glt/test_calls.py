"""Tests of calls of a server's methods by name: their content, their frames, and refusals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hopstream.compat.glt.distributed import calls
from hopstream.compat.glt.distributed.calls import OPERATION, AnswerReader, answering, call
from hopstream.dataset.layout import open_dataset
from hopstream.errors import FormatError, SettingsError
from hopstream.store.local import LocalStore
from hopstream.store.server import StoreServer
from hopstream.stream.messages import encode_options
from hopstream.transport.connection import Connection
from hopstream.transport.location import Location
from hopstream.transport.messages import Frame
from hopstream.transport.security import ClientSecurity
from tests.compat.gigl.ring import write_ring
from tests.transport.peer import carried

ANSWER = {
    "ids": np.arange(1000), "rows": np.arange(600, dtype=np.float32).reshape(30, 4, 5), "none": np.empty((0, 3)),
    "bytes": np.arange(100, dtype=np.uint8), "number": 7, "scalar": np.array(2.5),
}  # fmt: skip


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    """A connection to a server of two methods."""
    methods = {"get_answer": lambda: ANSWER, "count": len}
    with (
        LocalStore(open_dataset(write_ring(tmp_path / "ring", 1))) as store,
        StoreServer(store, operations={OPERATION: answering(methods)}) as server,
    ):
        connection = Connection(Location.parse(server.location), ClientSecurity())
        yield connection
        connection.close()


def frames() -> list[Frame]:
    return [carried(one) for one in calls._frames("get_answer", *encode_options({"answer": ANSWER}))]


@pytest.mark.parametrize("piece_bytes", [1, 64, 1000, 5000, 8 << 20])
def test_large_arrays_of_an_answer_come_in_pieces(connection: Connection, monkeypatch, piece_bytes: int) -> None:
    monkeypatch.setattr(calls, "PIECE_BYTES", piece_bytes)
    sizes = [sum(array.nbytes for array in frame.arrays) for frame in frames()]
    assert max(sizes) <= max(8, piece_bytes) and (len(sizes) == 1) == (piece_bytes == 8 << 20)
    found = call(connection, 30.0, "a client", "get_answer")
    assert set(found) == set(ANSWER) and found["number"] == 7
    for name, tensor in found.items():
        if isinstance(tensor, torch.Tensor):
            assert tensor.numpy().dtype == ANSWER[name].dtype and np.array_equal(tensor.numpy(), ANSWER[name])  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "pieces",
    [
        7, [7], [[0]], [[9, [3]]], [[-1, [3]]], [[True, [3]]], [[0, [-3]]], [[0, [0]]], [[0, [1.5]]], [[0, 3]],
        [[0, [3]], [0, [3]]], [[0, [1 << 62]]], [[0, [1 << 20, 1 << 20]]], [[0, [1] * 33]], [[0, [True]]],
    ],
)  # fmt: skip
def test_invalid_announcements_are_refused(pieces: Any) -> None:
    with pytest.raises(FormatError, match="an answer announces"):
        AnswerReader().take(Frame({"pieces": pieces}, [np.empty(0, np.int64)]))


@pytest.mark.parametrize(
    "frame",
    [
        Frame({"piece": 1}, [np.arange(3)]), Frame({}, [np.arange(3)]), Frame({"piece": 0}, []),
        Frame({"piece": 0}, [np.arange(5)]), Frame({"piece": 0}, [np.arange(0)]),
        Frame({"piece": 0}, [np.arange(3, dtype=np.int32)]), Frame({"piece": 0}, [np.zeros((2, 1), np.int64)]),
    ],
)  # fmt: skip
def test_invalid_pieces_are_refused(frame: Frame) -> None:
    reader = AnswerReader()
    reader.take(Frame({"pieces": [[0, [2, 2]]]}, [np.empty(0, np.int64)]))
    with pytest.raises(FormatError):
        reader.take(frame)


def test_an_answer_that_is_too_short_or_too_long_is_refused() -> None:
    reader = AnswerReader()
    with pytest.raises(FormatError, match="ended before"):
        reader.result()
    reader.take(Frame({"pieces": [[0, [4]]]}, [np.empty(0, np.int64)]))
    for part in (np.arange(3), np.arange(3, 4)):
        with pytest.raises(FormatError, match=r"arrays \[0\]"):
            reader.result()
        reader.take(Frame({"piece": 0}, [part]))
    assert reader.result()[1][0].tolist() == [0, 1, 2, 3]
    with pytest.raises(FormatError, match="continues after its end"):
        reader.take(Frame({"piece": 0}, [np.arange(1.0)]))


def test_oversized_calls_and_answers_are_refused(connection: Connection, monkeypatch) -> None:
    monkeypatch.setattr(calls, "MAX_REQUEST_BYTES", 800)
    assert call(connection, 30.0, "a client", "count", np.arange(100)) == 100
    with pytest.raises(SettingsError, match=r"arguments of count have 808 bytes; one call may have 800"):
        call(connection, 30.0, "a client", "count", np.arange(101))
    monkeypatch.setattr(calls, "MAX_ANSWER_BYTES", 1000)
    with pytest.raises(SettingsError, match=r"the answer of get_answer has .* bytes; one answer may have 1000"):
        call(connection, 30.0, "a client", "get_answer")
