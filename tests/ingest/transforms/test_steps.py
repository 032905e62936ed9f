"""Checks transforms one by one, and that fitting does not depend on chunks."""

from __future__ import annotations

import datetime
import itertools
import json
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopstream.arrays import RaggedArray
from hopstream.errors import SchemaError, SettingsError
from hopstream.ingest.transforms import fits
from hopstream.ingest.transforms.chain import ChainFit, chain_of
from hopstream.ingest.transforms.fits import exact_sum
from hopstream.ingest.transforms.steps import KNOWN

FINITE = st.floats(allow_nan=False, allow_infinity=False)
WORDS = RaggedArray.from_strings(["a b c", "", "b b", "ü a a a a"])


def words(texts):
    """Number the words of texts by their letters; a tokenizer of the tests."""
    return [[ord(word[0]) for word in text.split()] for text in texts]


def broken(texts):
    """Return too few rows; a tokenizer of the tests."""
    return [[0.5]]


WORD_NUMBERS = {"name": "tokens", "tokenizer": f"{__name__}:words"}


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tokenizers of this file be imported by its name."""
    monkeypatch.setitem(__import__("sys").modules, __name__, __import__("types").SimpleNamespace(**globals()))


def fit_to(described, columns, starts=None):
    chain = chain_of("x", described)
    fit = ChainFit("x", chain)
    for column, start in zip(columns, starts or itertools.count(), strict=False):
        fit.add(column, (0, start))
    return chain.fitted_by(fit)


@settings(max_examples=100, deadline=None)
@given(values=st.lists(FINITE, max_size=30))
def test_sums_are_exact(values):
    wanted = sum(map(Fraction, values), Fraction(0))
    assert Fraction(exact_sum(np.array(values, np.float64)), 1 << (1074 + 53)) == wanted


@settings(max_examples=60, deadline=None)
@given(values=st.lists(st.floats(-1e100, 1e100), min_size=1, max_size=40), seed=st.integers(0, 2**32 - 1))
def test_fits_do_not_depend_on_chunks_and_order(values, seed):
    column, rng = np.array(values), np.random.default_rng(seed)
    cuts = [0, *np.sort(rng.integers(0, len(values) + 1, 3)).tolist(), len(values)]
    parts = list(itertools.pairwise(cuts))
    for described in ("standard", "min-max", "rank", {"name": "buckets", "strategy": "quantile"}):
        whole = fit_to(described, [column], [0])
        order = [parts[i] for i in rng.permutation(len(parts))]
        split = fit_to(described, [column[a:b] for a, b in order], [a for a, _ in order])
        assert json.dumps(split.to_json()) == json.dumps(whole.to_json())


def test_samples_do_not_depend_on_chunks_and_order(rng, monkeypatch):
    monkeypatch.setattr(fits, "SAMPLE_ROWS", 50)
    monkeypatch.setattr(fits, "LEAST_ROWS", 10)
    values = rng.random((3000, 2))
    cuts = [0, 7, 1000, 1001, 3000]
    parts = list(itertools.pairwise(cuts))[::-1]
    whole = fit_to("rank", [values], [0])
    assert len(whole.to_json()[0]["points"][0]) == 50
    assert fit_to("rank", [values[a:b] for a, b in parts], [a for a, _ in parts]).to_json() == whole.to_json()


def test_the_variance_is_exact_far_from_zero():
    chain = fit_to({"name": "standard", "dtype": "float64"}, [np.array([1e15, 1e15 + 1, 1e15 + 2])])
    assert chain.to_json()[0]["scale"] == [(2 / 3) ** 0.5]


def test_most_keeps_the_most_frequent_categories():
    column = RaggedArray.from_strings(list("bbbaaccd"))
    chain = fit_to({"name": "categories", "most": 2}, [column])
    assert chain.to_json()[0]["values"] == ["a", "b"]  # of a and c, which are as frequent, the lesser
    assert chain.apply("x", RaggedArray.from_strings(list("abcz"))).tolist() == [0, 1, 2, 2]


def test_rows_of_several_categories():
    column = RaggedArray.from_strings(["war|love", "", "love|love|zen", "|war"])
    lists = fit_to({"name": "categories", "separator": "|"}, [column])
    assert lists.to_json()[0]["values"] == ["love", "war", "zen"]
    assert lists.apply("x", column).tolist() == [[1, 0], [], [0, 0, 2], [1]]
    vectors = fit_to({"name": "categories", "separator": "|", "encode": "one-hot", "most": 2}, [column])
    assert vectors.apply("x", column).tolist() == [[1, 1], [0, 0], [1, 0], [0, 1]]
    tags = RaggedArray(np.array([7, 5, 7], np.int32), np.array([0, 2, 2, 3]))
    assert fit_to("categories", [tags]).apply("x", tags).tolist() == [[1, 0], [], [1]]


def test_new_numbers_can_be_clipped():
    chain = fit_to({"name": "min-max", "clip": True}, [np.array([2.0, 4.0])])
    assert chain.apply("x", np.array([0, 3, 9, np.nan])).tolist()[:3] == [0, 0.5, 1]


def test_too_many_categories_are_refused(monkeypatch):
    monkeypatch.setattr(fits, "MAX_CATEGORIES", 3)
    with pytest.raises(SchemaError, match="x, transform categories: there are more than 3 different values; use the"):
        fit_to("categories", [np.arange(4)])


def test_hashes_stay_the_same():
    chain = chain_of("x", {"name": "hash", "buckets": 1000})
    assert chain.apply("x", RaggedArray.from_strings(["", "Oslo", "東京"])).tolist() == [203, 671, 197]
    assert chain.apply("x", np.array([0, 1, -5])).tolist() == [871, 944, 931]
    assert chain.apply("x", np.array([1], np.int8)).tolist() == [944]


def test_hashes_spread_evenly(rng):
    codes = chain_of("x", {"name": "hash", "buckets": 10}).apply("x", np.arange(10_000))
    counts = np.bincount(codes, minlength=10)
    assert np.abs(counts - 1000).max() < 5 * 1000**0.5


def test_edges_of_buckets_can_be_given():
    chain = chain_of("x", {"name": "buckets", "edges": [0, 18, 65, 120]})
    assert chain.apply("x", np.array([-3, 0, 17.9, 18, 64, 65, 500, np.nan])).tolist() == [0, 0, 0, 1, 1, 2, 2, 0]


def test_parts_of_datetimes(rng):
    seconds = rng.integers(-(2**33), 2**33, 300)
    parts = ["year", "month", "day", "weekday", "yearday", "hour", "minute", "second", "epoch"]
    times = [datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=int(s)) for s in seconds]
    wanted = [
        [t.year, t.month, t.day, t.weekday(), t.timetuple().tm_yday, t.hour, t.minute, t.second, int(s)]
        for t, s in zip(times, seconds, strict=True)
    ]
    chain = chain_of("x", {"name": "datetime", "parts": parts})
    assert chain.apply("x", seconds).tolist() == wanted
    for text in (str, lambda t: t.isoformat() + ".25", lambda t: t.isoformat() + "Z"):
        assert chain.apply("x", RaggedArray.from_strings([text(t) for t in times])).tolist() == wanted
    millis = chain_of("x", {"name": "datetime", "parts": parts, "unit": "ms"})
    assert millis.apply("x", seconds * 1000 + 999).tolist() == wanted
    days = chain_of("x", {"name": "datetime", "parts": "year", "unit": "D"})
    assert days.apply("x", seconds // 86400).tolist() == [t.year for t in times]
    odd = chain_of("x", {"name": "datetime", "parts": parts, "format": "%d.%m.%Y %H:%M:%S"})
    assert odd.apply("x", RaggedArray.from_strings(["24.12.2023 18:30:05"])).tolist()[0][:4] == [2023, 12, 24, 6]


def test_offsets_from_utc_are_subtracted():
    chain = chain_of("x", {"name": "datetime", "parts": "hour"})
    assert chain.apply("x", RaggedArray.from_strings(["2024-01-01T12:00:00+02:00"])).tolist() == [10]


def test_lists_are_truncated_and_padded():
    lists = RaggedArray(np.arange(9), np.array([0, 4, 4, 5, 9]))
    short = chain_of("x", {"name": "truncate", "length": 2}).apply("x", lists)
    assert short.tolist() == [[0, 1], [], [4], [5, 6]]
    padded = chain_of("x", {"name": "pad", "length": 3, "value": -1}).apply("x", lists)
    assert padded.tolist() == [[0, 1, 2], [-1, -1, -1], [4, -1, -1], [5, 6, 7]]
    wide = RaggedArray(np.arange(6.0).reshape(3, 2), np.array([0, 1, 3]))
    assert chain_of("x", {"name": "pad", "length": 1}).apply("x", wide).tolist() == [[[0, 1]], [[2, 3]]]


def test_strings_are_truncated_to_characters():
    chain = chain_of("x", {"name": "truncate", "length": 3})
    assert chain.apply("x", RaggedArray.from_strings(["日本語です", "ab", ""])).tolist() == ["日本語", "ab", ""]


def test_texts_become_tokens_of_the_users_function():
    chain = chain_of("x", [WORD_NUMBERS, {"name": "pad", "length": 3}])
    chain.check_allowed([f"{__name__}:words"])
    assert chain.apply("x", WORDS).tolist() == [[97, 98, 99], [0, 0, 0], [98, 98, 0], [252, 97, 97]]
    with pytest.raises(SettingsError, match=r"tokenizers are \['other:f'\]; a transform names .*:words'"):
        chain.check_allowed(["other:f"])
    bad = chain_of("x", {"name": "tokens", "tokenizer": f"{__name__}:broken"})
    with pytest.raises(SchemaError, match="returned something else; wanted a list of integers for each of 4 strings"):
        bad.apply("x", WORDS)
    with pytest.raises(SchemaError, match="cannot be imported"):
        chain_of("x", {"name": "tokens", "tokenizer": "no.such:thing"}).apply("x", WORDS)


@pytest.mark.parametrize("name", KNOWN)
def test_columns_without_rows_are_transformed(name):
    described = {"name": name}
    described |= {"length": 4} if name in ("truncate", "pad") else {}
    described |= {"tokenizer": f"{__name__}:words"} if name == "tokens" else {}
    is_text, is_list = name == "tokens", name in ("truncate", "pad")
    empty = RaggedArray(np.empty(0, np.uint8 if is_text else np.int64), np.zeros(1, np.int64), is_text)
    column = empty if is_text or is_list else np.empty(0, np.int64)
    chain = chain_of("x", described)
    done = chain if chain.is_fitted else chain.fitted_by(ChainFit("x", chain))
    assert len(done.apply("x", column)) == 0
    assert chain_of("x", json.loads(json.dumps(done.to_json())), with_fitted=True).is_fitted


@pytest.mark.parametrize(
    ("described", "message"),
    [
        ("minmax", "x names 'minmax'; known: .*did you mean 'min-max'"),
        (3, "x is 3; wanted the name of a transform"),
        ([], r"x is \[\]; wanted at least one transform"),
        ({"name": "standard", "shift": [1.0]}, "standard has no option 'shift'"),
        ({"name": "standard", "dtype": "int8"}, "x.dtype is 'int8'; wanted one of float16"),
        ({"name": "rank", "quantiles": 1}, "x.quantiles is 1; wanted an integer from 2"),
        ({"name": "categories", "encode": "onehot"}, "x.encode is 'onehot'; wanted ids or one-hot"),
        ({"name": "buckets", "edges": [3, 1]}, r"x.edges is \[3, 1\]; wanted two or more ascending"),
        ({"name": "hash", "buckets": True}, "x.buckets is True; wanted an integer"),
        ({"name": "datetime", "parts": ["century"]}, r"x.parts is \['century'\]; wanted some of year"),
        ({"name": "tokens", "tokenizer": "os.system('x')"}, "x.tokenizer is .*; wanted module:function"),
        ({"name": "pad"}, "x.length is 0; wanted an integer from 1"),
        (["categories", "standard"], r"x has categories and standard, which are both fitted to the table"),
    ],
)
def test_wrong_descriptions_are_refused(described, message):
    with pytest.raises(SchemaError, match=message):
        chain_of("x", described)


@pytest.mark.parametrize(
    ("described", "column", "message"),
    [
        ("standard", WORDS, "x, transform standard: its values are strings; wanted numbers"),
        ("standard", np.array([1.0, np.inf]), "a value is infinite or beyond 1e"),
        ("rank", np.array([1.0, -np.inf]), "a value is infinite"),
        ("categories", np.array([0.5]), "its values are no categories"),
        (
            {"name": "categories", "separator": ";"},
            np.array([5]),
            "its values are no strings; a separator is for strings",
        ),
        ("categories", np.array([2**63], np.uint64), "a value is 2\\*\\*63 or more"),
        ({"name": "buckets"}, np.zeros((3, 2)), "rows have 2 values; buckets are for one number per row"),
    ],
)
def test_columns_of_the_wrong_kind_are_refused(described, column, message):
    with pytest.raises(SchemaError, match=message):
        fit_to(described, [column])


def test_dates_that_are_none_are_refused():
    with pytest.raises(
        SchemaError, match=r"x, transform datetime: a value is 'yesterday', which is no date and time; wanted ISO"
    ):
        chain_of("x", "datetime").apply("x", RaggedArray.from_strings(["yesterday"]))


def test_categories_of_another_kind_are_refused():
    chain = fit_to("categories", [np.array([3, 1])])
    with pytest.raises(SchemaError, match="its values are large_string; the categories are int64"):
        chain.apply("x", WORDS)
