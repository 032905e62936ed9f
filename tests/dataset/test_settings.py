"""Checks that every setting is validated and explained."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import get_type_hints

import pytest

from hopstream.dataset.settings import PartitionOptions, PartitionSettings
from hopstream.errors import SettingsError


@pytest.mark.parametrize(
    "options",
    [
        {"num_parts": 0},
        {"num_parts": 100_000},
        {"num_parts": 2.0},
        {"num_parts": True},
        {"method": "parmetis"},
        {"balance": "seeds"},
        {"direction": ("in", "out")},
        {"rng_seed": -1},
        {"rng_seed": 1 << 64},
        {"rng_seed": "0"},
        {"imbalance": 0.0},
        {"imbalance": 1.5},
        {"imbalance": float("nan")},
        {"imbalance": "3%"},
        {"keep_edge_keys": 1},
        {"neighbor_keys": "yes"},
        {"time_attr": ""},
        {"time_attr": ("paper", "year")},
        {"time_unit": "fortnight"},
        {"weight_attr": 3},
        {"links": "user__rates__movie"},
        {"links": ("user", "rates", "movie")},
        {"links": (("user", "rates"),)},
        {"links": [("user", "rates", 3)]},
        {"num_threads": 0},
        {"recursive": 1},
    ],
)
def test_a_bad_value_is_refused_by_name(options):
    (name,) = options
    with pytest.raises(SettingsError, match=rf"^{name} is .*; it must be"):
        PartitionSettings(**options)


def test_a_unit_of_times_needs_the_feature_that_holds_times():
    with pytest.raises(SettingsError, match="time_unit is 's' and time_attr is None"):
        PartitionSettings(time_unit="s")


def test_every_field_has_help_and_a_default():
    for field in fields(PartitionSettings):
        assert field.metadata["help"][0].islower()
        assert field.default is not MISSING
    assert PartitionSettings().directions == ("in",)
    assert PartitionSettings(direction="both").directions == ("in", "out")


def test_options_name_the_same_fields_with_the_same_types():
    assert get_type_hints(PartitionOptions) == get_type_hints(PartitionSettings)


def test_links_are_edge_types_or_their_labels():
    links = (("user", "rates", "movie"), "user__rates__movie")
    settings = PartitionSettings(links=links)
    assert settings.links == links == PartitionSettings(links=list(links)).links
    assert settings.to_json()["links"] == [["user", "rates", "movie"], "user__rates__movie"]
