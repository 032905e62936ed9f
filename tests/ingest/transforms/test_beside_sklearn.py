"""Compares transforms that are fitted and applied chunk by chunk with scikit-learn's on whole columns."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from hopstream.arrays import RaggedArray, join_columns
from hopstream.ingest.transforms.chain import Chain, ChainFit, chain_of

sklearn = pytest.importorskip("sklearn.preprocessing", reason="needs scikit-learn, which the extra dev installs")


def fitted(described: Any, columns: list[Any], rng: np.random.Generator) -> Chain:
    """Fit a transform to chunks in a random order; two states are merged through JSON."""
    chain = chain_of("x", described)
    fits = [ChainFit("x", chain), ChainFit("x", chain)]
    starts = np.cumsum([0, *map(len, columns)])
    for number in rng.permutation(len(columns)):
        fits[int(rng.integers(2))].add(columns[number], (0, int(starts[number])))
    fits[0].merge(json.loads(json.dumps(fits[1].to_json())))
    done = chain.fitted_by(fits[0])
    return chain_of("x", json.loads(json.dumps(done.to_json())), with_fitted=True)


def chunks(values: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    return np.split(values, np.sort(rng.integers(0, len(values) + 1, 7)))


def transformed(described: Any, values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    parts = chunks(values, rng)
    chain = fitted(described, parts, rng)
    return join_columns([piece for part in parts for piece in chain.pieces("x", part)])


def strings(values: np.ndarray) -> RaggedArray:
    return RaggedArray.from_strings(values.tolist())


NUMBERS = ["normal", "far from zero", "skewed", "integers", "few values", "constant", "with NaN"]


def numbers(kind: str, rng: np.random.Generator, num_rows: int = 5000) -> np.ndarray:
    values = rng.normal(size=(num_rows, 3))
    if kind == "far from zero":
        return values + 1e6
    if kind == "skewed":
        return np.exp(4 * values)
    if kind == "integers":
        return rng.integers(-(2**40), 2**40, (num_rows, 3))
    if kind == "few values":
        return rng.integers(0, 4, (num_rows, 3)).astype(np.float64)
    if kind == "constant":
        return np.full((num_rows, 3), 7.25)
    if kind == "with NaN":
        values[rng.random(values.shape) < 0.1] = np.nan
    return values


@pytest.mark.parametrize("kind", NUMBERS)
def test_standard_equals_standard_scaler(kind: str, rng: np.random.Generator):
    values = numbers(kind, rng)
    wanted = sklearn.StandardScaler().fit_transform(values.astype(np.float64))
    got = transformed({"name": "standard", "dtype": "float64"}, values, rng)
    np.testing.assert_allclose(got, wanted, 1e-11, 1e-8 if kind == "far from zero" else 1e-11)
    np.testing.assert_allclose(transformed("standard", values, rng), wanted.astype(np.float32), 2e-6, 1e-6)


@pytest.mark.parametrize("kind", NUMBERS)
def test_min_max_equals_min_max_scaler(kind: str, rng: np.random.Generator):
    values = numbers(kind, rng)
    wanted = sklearn.MinMaxScaler().fit_transform(values.astype(np.float64))
    got = transformed({"name": "min-max", "dtype": "float64"}, values, rng)
    np.testing.assert_allclose(got, wanted, 1e-9, 1e-8 if kind == "far from zero" else 1e-12)


@pytest.mark.parametrize("kind", NUMBERS)
@pytest.mark.parametrize("distribution", ["normal", "uniform"])
def test_rank_equals_quantile_transformer(kind: str, distribution: str, rng: np.random.Generator):
    values = numbers(kind, rng, 3000)
    scaler = sklearn.QuantileTransformer(n_quantiles=100, output_distribution=distribution, subsample=None)
    wanted = scaler.fit_transform(values.astype(np.float64))
    described = {"name": "rank", "distribution": distribution, "quantiles": 100, "dtype": "float64"}
    np.testing.assert_allclose(transformed(described, values, rng), wanted, 1e-6, 1e-6)


@pytest.mark.parametrize("strategy", ["uniform", "quantile"])
@pytest.mark.parametrize("encode", ["ids", "one-hot"])
def test_buckets_equal_k_bins_discretizer(strategy: str, encode: str, rng: np.random.Generator):
    values = np.exp(rng.normal(size=(4000, 1)))
    how = {"quantile_method": "linear"} if strategy == "quantile" else {}
    bins = sklearn.KBinsDiscretizer(
        7, strategy=strategy, encode="ordinal" if encode == "ids" else "onehot-dense", subsample=None, **how
    )
    wanted = bins.fit_transform(values)
    described = {"name": "buckets", "buckets": 7, "strategy": strategy, "encode": encode}
    got = transformed(described, values[:, 0], rng)
    assert np.array_equal(got.reshape(wanted.shape), wanted)


@pytest.mark.parametrize("kind", ["strings", "integers", "booleans"])
def test_categories_equal_ordinal_and_one_hot_encoder(kind: str, rng: np.random.Generator):
    drawn = rng.integers(0, 40, 3000)
    values = {"strings": np.char.add("é", drawn.astype(str)), "integers": drawn - 20, "booleans": drawn > 7}[kind]
    new = {"strings": np.array(["é3", "nowhere"]), "integers": np.array([-17, 99]), "booleans": np.array([True])}[kind]
    as_columns = strings if kind == "strings" else (lambda given: given)
    parts = [as_columns(part) for part in chunks(values, rng)]
    ids, vectors = (fitted({"name": "categories", "encode": e}, parts, rng) for e in ("ids", "one-hot"))
    unknown = len(np.unique(values))
    ordinal = sklearn.OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=unknown).fit(values[:, None])
    one_hot = sklearn.OneHotEncoder(sparse_output=False, handle_unknown="ignore").fit(values[:, None])
    for given in (values, new):
        assert np.array_equal(ids.apply("x", as_columns(given)), ordinal.transform(given[:, None])[:, 0])
        assert np.array_equal(vectors.apply("x", as_columns(given)), one_hot.transform(given[:, None]))


def test_quantiles_of_a_sample_are_near_those_of_all_rows(rng: np.random.Generator):
    values = np.exp(rng.normal(size=300_000))
    chain = fitted({"name": "rank", "distribution": "uniform", "dtype": "float64"}, chunks(values, rng), rng)
    ranks = np.argsort(np.argsort(values)) / (len(values) - 1)
    assert np.abs(chain.apply("x", values) - ranks).max() < 0.012  # six standard errors at the median
