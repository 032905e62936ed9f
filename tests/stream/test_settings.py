"""Checks which limits of sampling a server accepts."""

from __future__ import annotations

from dataclasses import fields

import pytest

from hopstream.engine.machine import num_processors
from hopstream.errors import SettingsError
from hopstream.stream.settings import SamplingLimits


def test_default_is_one_thread_per_core():
    assert SamplingLimits().num_threads == num_processors()
    assert SamplingLimits(threads=3).num_threads == 3


def test_every_field_has_a_help_text_and_a_default_that_is_accepted():
    limits = SamplingLimits()
    for one in fields(SamplingLimits):
        assert one.metadata["help"]
        assert SamplingLimits(**{one.name: getattr(limits, one.name)}) == limits


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("threads", 0), ("threads", 1024), ("max_channels", 1), ("max_channels", 1 << 16), ("credit", 1),
        ("credit", 1 << 16), ("buffer_bytes", 0), ("buffer_bytes", 1 << 62), ("lease_s", 0.001), ("slow_s", 5),
        ("memory_bytes", 0), ("memory_bytes", 32 << 20),
    ],
)  # fmt: skip
def test_bounds_are_accepted(name, value):
    assert getattr(SamplingLimits(**{name: value}), name) == value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("threads", -1), ("threads", 1025), ("threads", 1.5), ("threads", True), ("threads", "2"),
        ("max_channels", 0), ("max_channels", (1 << 16) + 1), ("credit", 0), ("credit", (1 << 16) + 1),
        ("buffer_bytes", -1), ("buffer_bytes", 1e9), ("lease_s", 0), ("lease_s", -1.0), ("lease_s", float("nan")),
        ("lease_s", float("inf")), ("slow_s", 0), ("slow_s", "1"), ("slow_s", None),
        ("memory_bytes", -1), ("memory_bytes", "much"),
    ],
)  # fmt: skip
def test_error_names_an_invalid_setting(name, value):
    with pytest.raises(SettingsError, match=name):
        SamplingLimits(**{name: value})


def test_memory_is_divided_among_batches_transport_and_inputs():
    for given in (8000, "8 kB"):
        limits = SamplingLimits(memory_bytes=given)
        assert (limits.batch_bytes, limits.transport_bytes, limits.input_bytes) == (5000, 2000, 1000)
    limits = SamplingLimits()
    assert (limits.batch_bytes, limits.transport_bytes, limits.input_bytes) == (None, None, None)
