"""Names of ``tensorflow_gnn.sampler``, with the classes of messages and strategies."""

from __future__ import annotations

from enum import IntEnum

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
"""Class of ``SamplingSpec`` messages."""


class SamplingStrategy(IntEnum):
    """Strategy by which an op chooses edges, with TF-GNN's numbers."""

    TOP_K = TOP_K
    RANDOM_UNIFORM = RANDOM_UNIFORM
    RANDOM_WEIGHTED = RANDOM_WEIGHTED
    LATEST_K = LATEST_K


__all__ = [
    "LATEST_K",
    "RANDOM_UNIFORM",
    "RANDOM_WEIGHTED",
    "TOP_K",
    "SamplingSpec",
    "SamplingSpecBuilder",
    "SamplingStrategy",
    "check_spec",
    "make_sampling_spec_tree",
    "parse_spec",
    "read_spec",
]
