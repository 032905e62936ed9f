"""Checks that a mini-batch arrives as it was made, and that everything else is refused."""

from __future__ import annotations

import copy
import tracemalloc
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hopstream.arrays import RaggedArray, offsets_of
from hopstream.buffers import BufferPool
from hopstream.errors import FormatError, HopstreamError
from hopstream.load.batch import BatchFrame, MiniBatch, SampledBatch
from hopstream.schema import NUMERIC_DTYPES
from hopstream.stream.messages import decode_batch, encode_batch
from hopstream.transport.connection import OneFrame
from hopstream.transport.messages import Frame
from tests.stream.frames import sent as sent_frame

NAMES = st.text(min_size=1, max_size=4)
EDGE_TYPES = st.tuples(NAMES, NAMES, NAMES)
INTS = hnp.arrays(np.int64, st.integers(0, 5))
ARRAYS = st.sampled_from(NUMERIC_DTYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4))
)


@st.composite
def ragged(draw: st.DrawFn) -> RaggedArray:
    lengths = np.array(draw(st.lists(st.integers(0, 3), max_size=4)), np.int64)
    values = draw(hnp.arrays(draw(st.sampled_from(["int64", "float32", "bool"])), int(lengths.sum())))
    return RaggedArray(values, offsets_of(lengths))


COLUMNS = st.dictionaries(
    NAMES, ARRAYS | ragged() | st.lists(st.text(max_size=3), max_size=3).map(RaggedArray.from_strings), max_size=3
)
COUNTS = st.lists(st.integers(0, 1 << 40), max_size=4)


def by(owners: Any, values: Any) -> Any:
    return st.dictionaries(owners, values, max_size=3)


FRAMES: dict[str, Any] = {
    "epoch": st.integers(0, 1 << 40),
    "index": st.integers(0, 1 << 40),
    "seed_type": NAMES | EDGE_TYPES,
    "input_ids": INTS,
    "edge_index": by(EDGE_TYPES, hnp.arrays(np.int64, st.tuples(st.just(2), st.integers(0, 5)))),
    "num_sampled_nodes": by(NAMES, COUNTS),
    "num_sampled_edges": st.none() | by(EDGE_TYPES, COUNTS),
    "trees": st.none() | by(NAMES, INTS),
    "attributes": by(st.none() | NAMES | EDGE_TYPES, COLUMNS),
}
BATCHES = st.builds(
    MiniBatch,
    node_keys=by(NAMES, INTS),
    edge_keys=by(EDGE_TYPES, INTS),
    node_features=by(NAMES, COLUMNS),
    edge_features=by(EDGE_TYPES, COLUMNS),
    **FRAMES,
)
SAMPLED = st.builds(
    SampledBatch,
    node_ids=by(NAMES, INTS),
    edge_ids=by(EDGE_TYPES, INTS),
    edge_keys=by(EDGE_TYPES, INTS),
    directions=by(EDGE_TYPES, st.sampled_from(["in", "out"])),
    seed_keys=st.none() | INTS,
    **FRAMES,
)
Batch = MiniBatch | SampledBatch
BUFFERS = BufferPool(0)


def sent(batch: Batch) -> Batch:
    return decode_batch(sent_frame(encode_batch(batch)), BUFFERS)


def plain(value: Any) -> Any:
    """A value whose equality means equal kinds and equal bits."""
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, value.tobytes())
    if isinstance(value, RaggedArray):
        return ("ragged", plain(value.values), plain(value.offsets), value.is_string)
    if isinstance(value, dict):
        return [(key, plain(item)) for key, item in value.items()]
    return (type(value), value)


def everything(batch: Batch) -> dict[str, Any]:
    return {one.name: plain(getattr(batch, one.name)) for one in fields(batch)}


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=40)
@given(batch=BATCHES | SAMPLED)
def test_a_batch_arrives_unchanged(batch: Batch) -> None:
    arrived = sent(batch)
    assert type(arrived) is type(batch)
    assert everything(arrived) == everything(batch)


def small_batch() -> MiniBatch:
    edge_type = ("a", "to", "a")
    return MiniBatch(
        epoch=2, index=7, seed_type="a", input_ids=np.arange(2), node_keys={"a": np.arange(3)},
        edge_index={edge_type: np.zeros((2, 4), np.int64)}, edge_keys={edge_type: np.arange(4)},
        node_features={"a": {"x": np.ones((3, 2), np.float32), "name": RaggedArray.from_strings(["a", "", "é"])}},
        edge_features={edge_type: {}}, num_sampled_nodes={"a": [2, 1]}, num_sampled_edges=None,
        trees={"a": np.zeros(3, np.int64)}, attributes={None: {"score": np.ones(2)}},
    )  # fmt: skip


def test_the_message_is_json_with_numbered_arrays() -> None:
    frame = sent_frame(encode_batch(small_batch()))
    assert frame.header == {
        "batch": {
            "epoch": 2, "index": 7, "seed_type": "a", "input_ids": 0, "node_keys": [["a", 1]],
            "edge_index": [[["a", "to", "a"], 2]], "edge_keys": [[["a", "to", "a"], 3]],
            "node_features": [["a", [["x", 4], ["name", [5, 6, True]]]]], "edge_features": [[["a", "to", "a"], []]],
            "num_sampled_nodes": [["a", [2, 1]]], "num_sampled_edges": None, "trees": [["a", 7]],
            "attributes": [[None, [["score", 8]]]],
        }
    }  # fmt: skip
    assert [str(array.dtype) for array in frame.arrays[2:7]] == ["uint32", "int64", "float32", "uint8", "int64"]


def test_a_batch_has_the_arrays_of_its_frame_and_no_copies_but_of_slots() -> None:
    """Arrays stay where the connection put them; slots travel in 32 bits where they fit."""
    frame = encode_batch(small_batch())
    batch = decode_batch(frame, BUFFERS)
    assert isinstance(batch, MiniBatch)
    assert batch.input_ids is frame.arrays[0]
    assert batch.node_features["a"]["x"] is frame.arrays[4]
    assert [slots.dtype for slots in batch.edge_index.values()] == [np.int64]
    large = replace(small_batch(), edge_index={("a", "to", "a"): np.full((2, 1), 1 << 32)})
    assert encode_batch(large).arrays[2].dtype == np.int64 and everything(sent(large)) == everything(large)
    arriving = OneFrame(BufferPool(1 << 20).take)
    arriving.take(Frame(frame.header, arriving.place(frame.header, [(a.dtype, a.shape) for a in frame.arrays])))
    assert arriving.frame is not None
    assert [a.shape for a in arriving.frame.arrays] == [a.shape for a in frame.arrays]


def header() -> dict[str, Any]:
    return copy.deepcopy(encode_batch(small_batch()).header)


def read(header: dict[str, Any]) -> Batch:
    return decode_batch(Frame(header, encode_batch(small_batch()).arrays), BUFFERS)


REPLACED: list[tuple[str, Any]] = [
    ("epoch", None), ("epoch", "x"), ("epoch", []), ("index", {}), ("index", float("inf")), ("seed_type", ["a", "b"]),
    ("input_ids", 99), ("input_ids", -1), ("input_ids", None), ("input_ids", "0"), ("input_ids", True),
    ("input_ids", 4), ("input_ids", 1), ("node_keys", None), ("node_keys", 5), ("node_keys", [["a"]]),
    ("node_keys", [["a", 1], ["b", 1]]), ("node_keys", [["a", 4]]), ("edge_index", [[["a", "b"], 2]]),
    ("node_features", [["a", 5]]), ("node_features", [["a", [["x"]]]]), ("node_features", [["a", [["x", [5, 6]]]]]),
    ("node_features", [["a", [["x", [4, 5, False]]]]]), ("node_features", [["a", [["x", [4, 3, False]]]]]),
    ("node_features", [["a", [["x", [4, 2, False]]]]]), ("node_features", [["a", [["x", {}]]]]),
    ("num_sampled_nodes", [["a", 5]]), ("num_sampled_nodes", [["a", [float("nan")]]]),
    ("num_sampled_nodes", [["a", [float("inf")]]]), ("num_sampled_edges", 0), ("trees", 0), ("attributes", None),
    ("attributes", [[None, [["score", None]]]]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), REPLACED, ids=[f"{name} {value}" for name, value in REPLACED])
def test_a_malformed_field_is_refused(name: str, value: Any) -> None:
    changed = header()
    changed["batch"][name] = value
    with pytest.raises(FormatError):
        read(changed)


@pytest.mark.parametrize("name", [one.name for one in fields(MiniBatch)])
def test_a_missing_field_is_refused(name: str) -> None:
    changed = header()
    del changed["batch"][name]
    with pytest.raises(FormatError, match="not a batch"):
        read(changed)


@pytest.mark.parametrize("name", [one.name for one in fields(SampledBatch)])
@pytest.mark.parametrize("value", ["missing", [["a"]], [["a", 99]]])
def test_a_malformed_field_of_a_batch_without_columns_is_refused(name: str, value: Any) -> None:
    whole = small_batch()
    common = {one.name: getattr(whole, one.name) for one in fields(BatchFrame)}
    batch = SampledBatch(**common, node_ids=whole.node_keys, edge_ids={}, directions={}, edge_keys={})
    frame = sent_frame(encode_batch(batch))
    frame.header["sampled"][name] = value
    if value == "missing":
        del frame.header["sampled"][name]
    with pytest.raises(FormatError):
        decode_batch(frame, BUFFERS)


@pytest.mark.parametrize("value", [None, 5, "text", [], {}])
def test_a_message_without_a_batch_is_refused(value: Any) -> None:
    with pytest.raises(FormatError):
        read({"batch": value})
    with pytest.raises(FormatError):
        read({"end_of_epoch": True})


@pytest.mark.parametrize(
    "spoil",
    [
        lambda offsets: offsets + 1,
        lambda offsets: offsets[::-1].copy(),
        lambda offsets: offsets[:-1],
        lambda offsets: offsets[:0],
        lambda offsets: np.array([0, 5, offsets[-1]]),
        lambda offsets: np.array([0, -1, offsets[-1]]),
    ],
    ids=["shifted", "backwards", "too few", "none", "too high", "negative"],
)
def test_invalid_offsets_are_refused(spoil: Callable[[np.ndarray], np.ndarray]) -> None:
    frame = sent_frame(encode_batch(small_batch()))
    frame.arrays[6] = spoil(frame.arrays[6])
    with pytest.raises(FormatError, match="ragged column"):
        decode_batch(frame, BUFFERS)


@settings(deadline=None)
@given(data=st.data())
def test_mutated_headers_are_batches_or_refused(data: st.DataObject) -> None:
    changed = header()
    place: Any = changed["batch"]
    while isinstance(place, dict | list) and place:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], dict | list) or data.draw(st.booleans()):
            place[key] = data.draw(
                st.none() | st.integers(-2, 10) | st.floats() | st.text(max_size=2) | st.lists(st.integers(0, 9))
            )
            break
        place = place[key]
    try:
        read(changed)
    except HopstreamError as error:
        assert isinstance(error, FormatError)
        assert len(str(error)) < 2000


def test_a_small_message_makes_no_large_batch() -> None:
    array = np.zeros(1 << 17, np.int64)
    message = header()
    lists = ("edge_index", "edge_keys", "node_features", "edge_features", "attributes")
    message["batch"] |= {"input_ids": 1, "trees": None, **{name: [] for name in lists}}
    message["batch"]["node_keys"] = [[str(number), 0] for number in range(10_000)]
    frame = Frame(message, [array, array])
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match="which is invalid or named twice"):
            decode_batch(frame, BUFFERS)
        assert tracemalloc.get_traced_memory()[1] < 8 * array.nbytes
    finally:
        tracemalloc.stop()
