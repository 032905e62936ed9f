"""Checks that settings of negative sampling mean what PyG's users expect; wrong ones are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch_geometric.sampler import NegativeSampling as PygNegativeSampling

from hopstream.errors import SettingsError
from hopstream.sample.negatives import NegativeSampling, read_negative_sampling


@pytest.mark.parametrize(
    ("amount", "num_positives", "wanted"), [(1, 7, 7), (2.0, 7, 14), (0.5, 7, 4), (1.5, 3, 5), (0.1, 1, 1)]
)
def test_amount_gives_negatives_per_positive_rounded_up(amount, num_positives, wanted):
    assert NegativeSampling("binary", amount).num_negatives(num_positives) == wanted


@pytest.mark.parametrize(
    ("given", "ratio", "wanted"),
    [
        (None, None, None),
        (None, 0, None),
        (None, 0.0, None),
        (None, 2.5, ("binary", 2.5)),
        ("binary", None, ("binary", 1)),
        ("triplet", None, ("triplet", 1)),
        ({"mode": "triplet", "amount": 3}, None, ("triplet", 3)),
        (NegativeSampling("binary", 0.5), None, ("binary", 0.5)),
        (PygNegativeSampling("binary", 0.5), None, ("binary", 0.5)),
        (PygNegativeSampling("triplet", 2), None, ("triplet", 2)),
    ],
)
def test_settings_are_read_as_users_write_them(given, ratio, wanted):
    read = read_negative_sampling(given, ratio)
    assert (None if read is None else (read.mode, read.amount)) == wanted


def test_weights_may_be_tensors_lists_and_masks():
    pyg = PygNegativeSampling("binary", 1, src_weight=torch.tensor([0.0, 2.0]), dst_weight=torch.ones(3))
    read = read_negative_sampling(pyg)
    assert read.src_weight.dtype == read.dst_weight.dtype == np.float64
    assert read.src_weight.tolist() == [0.0, 2.0]
    given = np.array([1, 0, 1])
    how = NegativeSampling("triplet", dst_weight=given)
    given[:] = 0
    assert how.dst_weight.tolist() == [1.0, 0.0, 1.0]
    assert NegativeSampling(dst_weight=[True, False]).dst_weight.tolist() == [1.0, 0.0]


def test_facts_change_with_every_setting():
    settings = [
        {},
        {"mode": "triplet"},
        {"amount": 2},
        {"strict": True},
        {"in_batch": True},
        {"src_weight": [1, 2]},
        {"dst_weight": [1, 2]},
        {"dst_weight": [2, 1]},
    ]
    facts = [str(NegativeSampling(**given).facts()) for given in settings]
    assert len(set(facts)) == len(facts)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "both"}, "mode is 'both'; it must be one of binary, triplet"),
        ({"amount": 0}, "amount is 0; it must be a number above 0"),
        ({"amount": -1.5}, "amount is -1.5; it must be a number above 0"),
        ({"amount": float("nan")}, "amount is nan; it must be a number above 0"),
        ({"amount": float("inf")}, "amount is inf; it must be a number above 0"),
        ({"amount": True}, "amount is True"),
        ({"amount": "2"}, "amount is '2'"),
        ({"mode": "triplet", "amount": 1.5}, "amount is 1.5; triplets need an integer"),
        ({"strict": 1}, "strict is 1; it must be True or False"),
        ({"src_weight": [1.0, -2.0]}, r"src_weight\[1\] is -2.0; weights are finite and 0 or above"),
        ({"dst_weight": [1.0, np.nan]}, r"dst_weight\[1\] is nan"),
        ({"dst_weight": [np.inf]}, r"dst_weight\[0\] is inf"),
        ({"dst_weight": [0, 0]}, "dst_weight adds up to 0.0; at least one weight must be above 0"),
        ({"dst_weight": [1e308, 1e308]}, "dst_weight adds up to inf"),
        ({"dst_weight": []}, r"dst_weight is float64\[0\]; give one real number per node"),
        ({"dst_weight": ["a"]}, "dst_weight is <U1"),
        ({"dst_weight": np.ones((2, 2))}, r"dst_weight is float64\[2, 2\]"),
        ({"mode": "triplet", "src_weight": [1]}, "triplets keep the source of a positive; leave src_weight out"),
        ({"in_batch": True, "dst_weight": [1]}, "in_batch takes destinations of the batch; leave the weights out"),
    ],
)
def test_invalid_settings_are_refused(settings, message):
    with pytest.raises(SettingsError, match=message):
        NegativeSampling(**settings)


@pytest.mark.parametrize(
    ("given", "ratio", "message"),
    [
        ("binary", 1.0, "neg_sampling and neg_sampling_ratio are both given"),
        (3, None, "neg_sampling is a int; give NegativeSampling"),
        ({"mode": "binary", "ratio": 2}, None, r"neg_sampling has no settings \['ratio'\]; it has mode, amount"),
        ("some", None, "mode is 'some'"),
        (None, -1, "amount is -1"),
        (None, False, "amount is False"),
    ],
)
def test_invalid_negative_sampling_is_refused(given, ratio, message):
    with pytest.raises(SettingsError, match=message):
        read_negative_sampling(given, ratio)
