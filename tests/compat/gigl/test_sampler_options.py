"""Tests of sampler options: defaults, their translation, and refused contradictions."""

from __future__ import annotations

import inspect

import pytest

from hopstream.compat.gigl.distributed.sampler_options import (
    KHopNeighborSamplerOptions,
    PPRSamplerOptions,
    resolve_sampler_options,
)
from hopstream.compat.gigl.src.common.types.graph_data import EdgeType
from hopstream.sample.ppr_settings import PPRSettings

RATES, LIKES = EdgeType("user", "rates", "movie"), EdgeType("movie", "likes", "user")


def test_defaults_are_those_of_the_other_side():
    defaults = {name: each.default for name, each in inspect.signature(PPRSamplerOptions).parameters.items()}
    assert defaults == {
        "alpha": 0.5, "eps": 1e-4, "max_ppr_nodes": 50, "enable_residual_topup": True, "num_neighbors_per_hop": 1000,
        "max_fetch_iterations": None, "typed_channel_ratios": None, "include_sampled_edges": False,
    }  # fmt: skip
    assert PPRSamplerOptions() == PPRSamplerOptions()
    assert PPRSamplerOptions().ppr_settings() == PPRSettings()


def test_options_become_settings():
    ratios = {RATES: 0.25, (RATES, LIKES): 0.75}
    options = PPRSamplerOptions(0.3, 1e-3, 20, False, 7, 4, ratios, True)
    assert options.ppr_settings("out", [RATES, LIKES]) == PPRSettings(
        alpha=0.3, eps=1e-3, max_ppr_nodes=20, enable_residual_topup=False, num_neighbors_per_hop=7,
        max_fetch_iterations=4, typed_channel_ratios=ratios, include_sampled_edges=True, direction="out",
        edge_types=[RATES, LIKES],
    )  # fmt: skip
    assert options.ppr_settings().channels() == [(RATES,), (RATES, LIKES)]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"alpha": 1.0}, "alpha is 1.0"),
        ({"max_ppr_nodes": 0}, "max_ppr_nodes is 0"),
        ({"typed_channel_ratios": {RATES: 0.5}}, "add up to 0.5"),
        ({"typed_channel_ratios": {RATES: -1.0, LIKES: 2.0}}, "ratios must be numbers above 0"),
    ],
)
def test_wrong_options_are_refused_when_they_are_made(given, message):
    with pytest.raises(ValueError, match=message):
        PPRSamplerOptions(**given)


def test_sampler_options_default_to_hops():
    assert resolve_sampler_options([3, 2], None) == KHopNeighborSamplerOptions([3, 2])
    for options in (KHopNeighborSamplerOptions({RATES: [3]}), PPRSamplerOptions()):
        assert resolve_sampler_options({RATES: [3]}, options) is options


def test_options_that_differ_from_the_loader_are_refused():
    with pytest.raises(ValueError, match=r"num_neighbors is \[3, 2\], but sampler_options has \[3\]"):
        resolve_sampler_options([3, 2], KHopNeighborSamplerOptions([3]))
    with pytest.raises(ValueError, match="sampler_options is a dict"):
        resolve_sampler_options([3], {"alpha": 0.5})
