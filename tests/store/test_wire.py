"""Checks that frames survive the way, and that every other sequence of bytes is refused."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hopstream.errors import (
    FormatError,
    HopstreamError,
    IdRangeError,
    RemoteError,
    StoreUnavailable,
    UnknownNameError,
    VersionMismatch,
)
from hopstream.schema import NUMERIC_DTYPES
from hopstream.store.wire import (
    BATCH_SCHEMA,
    MAGIC,
    PREFIX,
    VERSION,
    decode_frame,
    entity_from_json,
    entity_to_json,
    from_batch,
    reserve_frame,
    to_batch,
)
from hopstream.transport.failures import SHARED_ERRORS, encode_error, raise_error
from hopstream.transport.messages import Frame

ARRAYS = st.lists(
    st.sampled_from(NUMERIC_DTYPES).flatmap(
        lambda name: hnp.arrays(np.dtype(name), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5))
    ),
    max_size=4,
)
HEADERS = st.dictionaries(
    st.text(max_size=5).filter(lambda name: name != "arrays"), st.text() | st.integers(), max_size=3
)


@given(HEADERS, ARRAYS, st.integers(0, 7))
def test_a_frame_comes_back_whole_from_any_address(
    header: dict[str, object], arrays: list[np.ndarray], shift: int
) -> None:
    frame = Frame(header, arrays)
    moved = np.concatenate([np.zeros(shift, np.uint8), frame])[shift:]
    for data in (frame, frame.tobytes(), moved, from_batch(to_batch(frame))):
        decoded = decode_frame(data)
        assert decoded.header == header
        for got, wanted in zip(decoded.arrays, arrays, strict=True):
            assert (got.dtype, got.shape, got.tobytes()) == (wanted.dtype, wanted.shape, wanted.tobytes())


def test_the_bytes_of_a_frame_are_pinned() -> None:
    frame = Frame({"op": "x"}, [np.array([1, 2], np.uint32), np.array([3], np.int64), np.array([5], np.uint8)])
    text = b'{"op":"x","arrays":[["uint32",[2]],["int64",[1]],["uint8",[1]]]}'
    wanted = (
        b"HOPS" + (1).to_bytes(2, "little") + bytes(2) + len(text).to_bytes(8, "little") + text
        + (1).to_bytes(4, "little") + (2).to_bytes(4, "little") + (3).to_bytes(8, "little") + b"\x05" + bytes(7)
    )  # fmt: skip
    assert len(text) % 8 == 0
    assert frame.tobytes() == wanted


def test_arrays_of_a_reserved_frame_are_filled_in_place() -> None:
    frame, (ids, rows) = reserve_frame({}, [(np.dtype("uint32"), (3,)), (np.dtype("float32"), (2, 2))])
    ids[:] = [1, 2, 3]
    rows[:] = 0.5
    assert ids.ctypes.data % 4 == rows.ctypes.data % 8 == 0
    decoded = decode_frame(frame)
    assert decoded.arrays[0].tolist() == [1, 2, 3]
    assert decoded.arrays[1].tolist() == [[0.5, 0.5], [0.5, 0.5]]


def frame_of(header: object, body: bytes = b"", *, magic: bytes = MAGIC, version: int = VERSION) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return PREFIX.pack(magic, version, 0, len(text)) + text + bytes(-(PREFIX.size + len(text)) % 8) + body


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (b"", FormatError, "at least 16 bytes"),
        (b"GET / HTTP/1.1\r\n\r\n", FormatError, "not a hopstream store"),
        (frame_of({"arrays": []}, magic=b"HOPX"), FormatError, "not a hopstream store"),
        (frame_of({"arrays": []}, version=2), VersionMismatch, "version 2 .* speaks 1"),
        (PREFIX.pack(MAGIC, VERSION, 0, 1 << 62), FormatError, "says its header has"),
        (PREFIX.pack(MAGIC, VERSION, 0, 8), FormatError, "says its header has 8"),
        (frame_of(b"{not json"), FormatError, "not JSON"),
        (frame_of(b"\xff\xfe"), FormatError, "not JSON"),
        (frame_of(b"[" * 100_000), FormatError, "not JSON"),
        (frame_of(b'{"arrays":' + b"9" * 10_000 + b"}"), FormatError, "not JSON"),
        (frame_of(b'{"arrays":[],"wait_s":NaN}'), FormatError, "not JSON: NaN is no number"),
        (frame_of(b'{"arrays":[],"wait_s":-Infinity}'), FormatError, "not JSON: -Infinity is no number"),
        (frame_of([1, 2]), FormatError, "must be an object"),
        (frame_of({}), FormatError, "describes no arrays"),
        (frame_of({"arrays": [["float32"]]}), FormatError, "dtype, shape"),
        (frame_of({"arrays": [["object", [1]]]}), FormatError, "dtype, shape"),
        (frame_of({"arrays": [["O", [1]]]}), FormatError, "dtype, shape"),
        (frame_of({"arrays": [[["int64"], [1]]]}), FormatError, "dtype, shape"),
        (frame_of({"arrays": [["int64", [-1]]]}), FormatError, "sizes from 0 up"),
        (frame_of({"arrays": [["int64", [True]]]}), FormatError, "sizes from 0 up"),
        (frame_of({"arrays": [["int64", [1.5]]]}), FormatError, "sizes from 0 up"),
        (frame_of({"arrays": [["int64", [1] * 33]]}, bytes(8)), FormatError, "at most 32"),
        (frame_of({"arrays": [["int64", [1 << 61]]]}), FormatError, "its header describes"),
        (frame_of({"arrays": [["int64", [1 << 61, 1 << 61, 1 << 61]]]}), FormatError, "its header describes"),
        (frame_of({"arrays": [["int64", [0, 1 << 61, 1 << 61]]]}), FormatError, "too large"),
        (frame_of({"arrays": [["int64", [1]]]}, bytes(7)), FormatError, "its header describes"),
        (frame_of({"arrays": [["int64", [1]]]}, bytes(16)), FormatError, "its header describes"),
    ],
)  # fmt: skip
def test_what_is_not_a_frame_is_refused(data: bytes, error: type[HopstreamError], message: str) -> None:
    with pytest.raises(error, match=message):
        decode_frame(data)


@given(st.data())
def test_mutated_frames_are_read_or_refused(data: st.DataObject) -> None:
    frame = bytearray(Frame({"op": "sample", "requests": [{"ids": 0}]}, [np.arange(5), np.ones((2, 3), "f4")]))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(frame)))
    for mutated in (bytes(frame), bytes(frame[:cut]), bytes(frame) + bytes(cut)):
        try:
            decoded = decode_frame(mutated)
        except (FormatError, VersionMismatch):
            continue
        assert sum(array.nbytes for array in decoded.arrays) <= len(mutated)


def test_batches_that_carry_no_frame_are_refused() -> None:
    frame = Frame({"a": 1})
    two = pa.RecordBatch.from_arrays([pa.array([b"a", b"b"], pa.large_binary())], schema=BATCH_SCHEMA)
    other = pa.RecordBatch.from_arrays([pa.array([1])], names=["frame"])
    null = pa.RecordBatch.from_arrays([pa.array([None], pa.large_binary())], names=["frame"])
    both = pa.RecordBatch.from_arrays([pa.array([frame.tobytes()], pa.large_binary())] * 2, names=["a", "b"])
    for batch in (two, two.slice(1, 1), other, null, both, two.slice(0, 0)):
        with pytest.raises(FormatError):
            from_batch(batch)


@pytest.mark.parametrize("owner", ["paper", ("a", "b", "c")])
def test_owners_come_back(owner: str | tuple[str, str, str]) -> None:
    full = owner if isinstance(owner, str) else (owner, "out")
    assert entity_from_json(json.loads(json.dumps(entity_to_json(full)))) == full  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [None, 3, ["a", "b", "in"], ["a", "b", "c", "up"], ["a", "b", 3, "in"], {}])
def test_what_is_not_an_owner_is_refused(value: object) -> None:
    with pytest.raises(FormatError):
        entity_from_json(value)


def told(error: Exception) -> None:
    try:
        raise error
    except Exception as raised:
        frame = decode_frame(encode_error(raised))
    raise_error(frame, "part 2 at tcp://there:1", "sample(a)")


def test_an_askers_mistake_comes_back_as_the_same_error() -> None:
    with pytest.raises(IdRangeError) as caught:
        told(IdRangeError("ids[3] is 9"))
    assert str(caught.value) == "ids[3] is 9"
    where, lines = caught.value.__notes__
    assert where == "answered by part 2 at tcp://there:1 to sample(a)"
    assert lines.startswith("--- server traceback ---\nTraceback (most recent call last):\n")
    assert "raise error" in lines
    with pytest.raises(UnknownNameError, match="no ghost"):
        told(UnknownNameError("no ghost"))


def test_a_servers_mistake_comes_back_with_its_traceback() -> None:
    with pytest.raises(RemoteError) as caught:
        told(ZeroDivisionError("by zero"))
    assert str(caught.value).startswith("part 2 at tcp://there:1 failed in sample(a): ZeroDivisionError: by zero\n")
    assert caught.value.remote_traceback.startswith("Traceback (most recent call last):\n")
    assert "raise error" in caught.value.remote_traceback
    assert not hasattr(caught.value, "__notes__")


@pytest.mark.parametrize("kind", [*SHARED_ERRORS, "StoreUnavailable"])
def test_every_servers_traceback_comes_unchanged(kind: str) -> None:
    sent = "Traceback (most recent call last):\n  one\n    two\n" + kind
    frame = decode_frame(Frame({"error": {"kind": kind, "message": "m", "traceback": sent}}))
    with pytest.raises(HopstreamError) as caught:
        raise_error(frame, "there", "work")
    assert type(caught.value).__name__ == kind
    assert caught.value.__notes__[-1] == f"--- server traceback ---\n{sent}"


def test_a_server_that_goes_away_is_unavailable() -> None:
    with pytest.raises(StoreUnavailable, match="part 2 at tcp://there:1 cannot answer"):
        told(StoreUnavailable("shutting down"))


@pytest.mark.parametrize("error", ["no", 3, {"kind": "SystemExit"}, {"kind": "__builtins__", "message": 3}, []])
def test_errors_of_unknown_form_are_still_errors(error: object) -> None:
    with pytest.raises((FormatError, RemoteError)):
        raise_error(decode_frame(Frame({"error": error})), "part 2", "sample()")
