"""Checks that the options of a user's loader, and nothing else, arrive at a server unchanged."""

from __future__ import annotations

import json
import math
import tracemalloc
from dataclasses import fields
from enum import Enum
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hopstream.arrays import RaggedArray
from hopstream.errors import FormatError, HopstreamError, SettingsError
from hopstream.sample.negatives import NegativeSampling
from hopstream.sample.ppr_settings import PPRSettings
from hopstream.schema import NUMERIC_DTYPES
from hopstream.store.contract import Links
from hopstream.stream.messages import (
    LONG_LIST,
    MAX_DEPTH,
    decode_options,
    encode_options,
    recipe_digest,
)
from hopstream.transport.messages import Frame
from tests.stream.frames import sent as sent_frame

ARRAYS = st.sampled_from(NUMERIC_DTYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
)
KEYS = st.text(max_size=5) | st.integers() | st.tuples(st.text(max_size=3), st.text(max_size=3), st.text(max_size=3))
PLAIN = st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats() | st.text(max_size=8)
VALUES = st.recursive(
    PLAIN | ARRAYS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=4)
        | st.builds(Links, src_keys=inner, dst_keys=inner, times=inner)
        | st.builds(RaggedArray, values=inner, offsets=inner)
    ),
    max_leaves=12,
)


def sent(options: dict[str, Any]) -> dict[str, Any]:
    """Options as a server decodes them."""
    header, arrays = encode_options(options)
    frame = sent_frame(Frame({"options": header}, arrays))
    return decode_options(frame.header["options"], frame.arrays)


def same(one: Any, other: Any) -> bool:
    """Equal in kind and value, NaN and the bits of arrays included."""
    if isinstance(one, np.ndarray):
        return (
            isinstance(other, np.ndarray)
            and one.dtype == other.dtype
            and one.shape == other.shape
            and one.tobytes() == other.tobytes()
        )
    if type(one) is not type(other):
        return False
    if isinstance(one, Links | RaggedArray):
        return all(same(getattr(one, field.name), getattr(other, field.name)) for field in fields(one))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return same(list(one), list(other)) and same(list(one.values()), list(other.values()))
    if isinstance(one, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    return bool(one == other)


@settings(max_examples=40)
@given(options=st.dictionaries(st.text(max_size=5), VALUES, max_size=4))
def test_options_arrive_unchanged(options: dict[str, Any]) -> None:
    assert same(sent(options), options)


@pytest.mark.parametrize("unit", ["D", "s", "ns"])
def test_datetimes_arrive_unchanged(unit: str) -> None:
    times = np.array(["2020-01-01", "1969-12-31"], f"M8[{unit}]")
    assert same(sent({"input_time": times, "seeds": [1, 2]}), {"input_time": times, "seeds": [1, 2]})
    assert same(sent({"input_time": times.astype(times.dtype.newbyteorder(">"))}), {"input_time": times})
    with pytest.raises(SettingsError, match="cannot be sent to a server"):
        encode_options({"input_time": times.astype("M8[M]")})


@settings(max_examples=40)
@given(options=st.dictionaries(st.text(max_size=5), VALUES, max_size=4))
def test_equal_options_have_equal_digests(options: dict[str, Any]) -> None:
    header, arrays = encode_options(options)
    again, copies = encode_options(sent(options))
    assert recipe_digest("NeighborLoader", header, arrays) == recipe_digest("NeighborLoader", again, copies)
    assert recipe_digest("NeighborLoader", header, arrays) != recipe_digest("ABLPLoader", header, arrays)


def test_other_options_have_other_digests() -> None:
    values = [1, 1.0, True, "1", [1], (1,), {"a": 1}, {"a": 2}, None, np.int32([1]), np.int64([1]), np.int64([[1]])]
    values += [np.int64([2]), np.float32([1]), np.zeros((2, 0)), np.zeros((0, 2)), math.nan, math.inf]
    digests = {recipe_digest("loader", *encode_options({"option": value})) for value in values}
    assert len(digests) == len(values)


def test_a_recipe_is_json_with_arrays() -> None:
    options = {
        "num_neighbors": {("a", "to", "b"): [3, -1]}, "seeds": ("a", np.arange(3)), "shuffle": True, "eps": math.inf,
    }  # fmt: skip
    header, arrays = encode_options(options)
    assert json.loads(json.dumps(header)) == {
        "num_neighbors": {"map": [[{"tuple": ["a", "to", "b"]}, [3, -1]]]},
        "seeds": {"tuple": ["a", {"array": 0}]},
        "shuffle": True,
        "eps": {"float": "inf"},
    }
    assert [array.tolist() for array in arrays] == [[0, 1, 2]]


RECORDS = [
    Links(src_keys=np.arange(3), dst_keys=np.arange(3)),
    Links(src_keys=np.arange(3), dst_keys=np.arange(3), times=np.array([5, 5, 9])),
    NegativeSampling(),
    NegativeSampling("triplet", 3, strict=True),
    NegativeSampling("binary", 0.5, np.array([0.5, 0.0, 2.0]), [1, 2]),
    NegativeSampling("binary", in_batch=True),
    RaggedArray(np.arange(4), np.array([0, 1, 1, 4])),
    RaggedArray.from_strings(["a", "bc"]),
    PPRSettings(),
    PPRSettings(alpha=0.25, max_fetch_iterations=3, edge_types=[("a", "to", "b")], direction="out"),
    PPRSettings(typed_channel_ratios={("a", "to", "b"): 0.5, (("b", "to", "a"), ("b", "of", "a")): 0.5}),
]


@pytest.mark.parametrize("record", RECORDS, ids=range(len(RECORDS)))
def test_records_arrive_unchanged(record: Any) -> None:
    got = sent({"settings": record})["settings"]
    assert type(got) is type(record)
    if isinstance(record, Links | RaggedArray):
        assert same(got, record)
    elif isinstance(record, NegativeSampling):
        assert got.facts() == record.facts()
    else:
        assert got == record


def test_numpy_and_torch_values_arrive_as_arrays_and_numbers() -> None:
    torch = pytest.importorskip("torch")
    options = {
        "scalar": np.int32(5), "flag": np.bool_(True), "real": np.float32(0.5), "tensor": torch.arange(4).reshape(2, 2),
        "grown": torch.ones(2, requires_grad=True), "swapped": np.arange(3, dtype=">i4"), "steps": np.arange(8)[::2],
        "long": list(range(LONG_LIST + 1)), "range": range(3), "words": np.array(["a", "bc"]),
    }  # fmt: skip
    got = sent(options)
    assert (got["scalar"], got["flag"], got["real"]) == (5, True, 0.5)
    assert type(got["scalar"]) is int
    for name, wanted in {
        "tensor": np.arange(4).reshape(2, 2), "grown": np.ones(2, np.float32), "swapped": np.arange(3, dtype=np.int32),
        "steps": np.arange(0, 8, 2), "long": np.arange(LONG_LIST + 1), "range": np.arange(3), "words": ["a", "bc"],
    }.items():  # fmt: skip
        assert same(got[name], wanted), name


def test_negative_sampling_of_pyg_is_a_record() -> None:
    sampler = pytest.importorskip("torch_geometric.sampler")
    torch = pytest.importorskip("torch")
    given_one = sampler.NegativeSampling("binary", 2.0, dst_weight=torch.tensor([1.0, 3.0]))
    got = sent({"neg_sampling": given_one})["neg_sampling"]
    assert got.facts() == NegativeSampling("binary", 2.0, dst_weight=[1.0, 3.0]).facts()


class Mode(Enum):
    PLAIN = "plain"


def test_a_choice_arrives_as_its_word() -> None:
    assert sent({"mode": Mode.PLAIN}) == {"mode": "plain"}


def test_arrays_are_copies_on_both_sides() -> None:
    array = np.arange(3)
    header, arrays = encode_options({"seeds": array})
    array[0] = 9
    frame = sent_frame(Frame({}, arrays))
    got = decode_options(header, frame.arrays)["seeds"]
    frame.arrays[0][:] = 0
    assert got.tolist() == [0, 1, 2]
    assert got.flags.writeable
    assert got.flags.aligned


@pytest.mark.parametrize(
    "value",
    [lambda batch: batch, object(), {1, 2}, iter([1]), [[1], object()], np.array([object()]), np.array(["1990"], "M8")],
    ids=["function", "object", "set", "iterator", "list", "array of objects", "dates"],
)
def test_unsendable_values_are_refused_by_name(value: Any) -> None:
    with pytest.raises(SettingsError, match=r"option is a .*, which cannot be sent to a server"):
        encode_options({"option": value})


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def test_depth_has_a_bound_on_both_sides() -> None:
    assert sent({"option": nested(MAX_DEPTH - 1)}) == {"option": nested(MAX_DEPTH - 1)}
    endless: list[Any] = []
    endless.append(endless)
    for value in (nested(MAX_DEPTH), endless):
        with pytest.raises(SettingsError, match="option is nested more than 32 deep"):
            encode_options({"option": value})
    for depth in (MAX_DEPTH, 900):
        with pytest.raises(FormatError, match="nested more than 32 deep"):
            decode_options({"option": nested(depth)}, [])


MALFORMED = [
    {}, {"unknown": 1}, {"array": 1}, {"array": -1}, {"array": True}, {"array": "0"}, {"array": None}, {"array": [0]},
    {"times": 0}, {"times": [0, "M"]}, {"times": [3, "s"]}, {"times": [-1, "s"]}, {"times": [0]}, {"times": [0, ["s"]]},
    {"float": "1.5"}, {"float": 1}, {"float": []}, {"tuple": 5}, {"tuple": None}, {"map": [[1]]}, {"map": [[1, 2, 3]]},
    {"map": [[[1], 2]]}, {"map": [[{"map": []}, 2]]}, {"map": [[{"array": 0}, 2]]}, {"map": 5}, {"map": {"a": 1}},
    {"record": "Links"}, {"record": "Links", "fields": 5}, {"record": "Links", "fields": {"no": 1}},
    {"record": "RaggedArray", "fields": {"values": {"array": 0}}},
    {"record": "Popen", "fields": {}}, {"record": ["Links"], "fields": {}}, {"record": {}, "fields": {}},
    {"record": "NegativeSampling", "fields": {"src_weight": [[1], 2]}}, {"fields": {}, "record": "Links"},
    {"tuple": [{}]}, [{}], {"map": [[{}, 1]]},
]  # fmt: skip


@pytest.mark.parametrize("value", MALFORMED, ids=[str(value) for value in MALFORMED])
def test_malformed_options_are_refused(value: Any) -> None:
    with pytest.raises((FormatError, SettingsError)):
        decode_options({"option": value}, [np.arange(3)])


@pytest.mark.parametrize("value", [None, 5, "text", [1], True])
def test_options_are_an_object(value: Any) -> None:
    with pytest.raises(FormatError, match="they must be an object"):
        decode_options(value, [])


def test_errors_of_a_records_own_check_are_raised() -> None:
    with pytest.raises(SettingsError, match="alpha is 7"):
        decode_options({"settings": {"record": "PPRSettings", "fields": {"alpha": 7}}}, [])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["tuple", "map", "array", "float", "record", "fields", "amount", "alpha"]),
            inner | st.sampled_from(["Links", "NegativeSampling", "PPRSettings", "RaggedArray", "nan", 0]),
            max_size=3,
        )
    ),
    max_leaves=15,
)


@given(value=JSON)
def test_any_json_is_decoded_or_refused(value: Any) -> None:
    try:
        decode_options({"option": value}, [np.arange(3)])
    except HopstreamError as error:
        assert len(str(error)) < 2000


def test_a_message_about_a_large_value_is_small() -> None:
    large = {"unknown": ["x" * 1000] * 100_000}
    tracemalloc.start()
    try:
        with pytest.raises(FormatError) as raised:
            decode_options({"option": large}, [])
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert len(str(raised.value)) < 2000


def test_an_array_that_is_named_often_is_one_array() -> None:
    array = np.zeros(1 << 20)
    tracemalloc.start()
    try:
        got = decode_options({"option": [{"array": 0}] * 1000}, [array])["option"]
        assert tracemalloc.get_traced_memory()[1] < 3 * array.nbytes
    finally:
        tracemalloc.stop()
    assert len({id(one) for one in got}) == 1
