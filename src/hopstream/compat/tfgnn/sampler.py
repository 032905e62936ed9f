"""Which names does ``tensorflow_gnn.sampler`` have, and what are its messages here?"""

from __future__ import annotations

from hopstream.tfgnn.messages import SAMPLING_SPEC, message_class
from hopstream.tfgnn.sampling_spec import (
    LATEST_K,
    RANDOM_UNIFORM,
    RANDOM_WEIGHTED,
    TOP_K,
    check_spec,
    parse_spec,
    read_spec,
)
from hopstream.tfgnn.spec_builder import SamplingSpecBuilder, make_sampling_spec_tree

SamplingSpec = message_class(SAMPLING_SPEC)
"""The class of ``SamplingSpec`` messages."""

__all__ = [
    "LATEST_K",
    "RANDOM_UNIFORM",
    "RANDOM_WEIGHTED",
    "TOP_K",
    "SamplingSpec",
    "SamplingSpecBuilder",
    "check_spec",
    "make_sampling_spec_tree",
    "parse_spec",
    "read_spec",
]
