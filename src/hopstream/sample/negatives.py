"""Settings of negative sampling, as a user gives them; ``sample/negative_pairs.py`` implements them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from hopstream.arrays import to_array
from hopstream.checks import Settings, check_choice, did_you_mean, is_number, read_flag
from hopstream.errors import SettingsError
from hopstream.graph.graph import hex_digest

NegativeMode = Literal["binary", "triplet"]
MAX_AMOUNT = 1 << 20
"""Most negatives per positive."""


@dataclass(frozen=True, slots=True, eq=False)
class NegativeSampling(Settings):
    """Settings of the negatives of batches of links.

    Attributes:
        mode: ``binary`` draws pairs of nodes, labelled 0; ``triplet`` draws other destinations for the source of each
            positive.
        amount: Negatives per positive; a batch of ``n`` positives gets ``ceil(n * amount)``. An integer for triplets.
        src_weight: float64[number of source nodes], weights for drawing sources, or None for equal chances.
        dst_weight: float64[number of destination nodes], weights for drawing destinations, or None for equal chances.
        strict: Never draw an edge of the graph or a positive of the batch.
        in_batch: Take the sources of the batch's positives, with the destinations of its other positives. If no such
            destination is allowed, draw from the whole graph.
    """

    mode: NegativeMode = "binary"
    amount: float = 1
    src_weight: Any = None
    dst_weight: Any = None
    strict: bool = field(default=False, kw_only=True)
    in_batch: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        """Normalise the settings, and refuse invalid ones."""
        mode = getattr(self.mode, "value", self.mode)  # PyG's mode is an enum
        check_choice("negative sampling: mode", mode, get_args(NegativeMode))
        self._keep("mode", mode)
        self._keep("amount", _checked_amount(self.amount, is_triplet=mode == "triplet"))
        for name in ("strict", "in_batch"):
            self._keep(name, read_flag(f"negative sampling: {name}", getattr(self, name)))
        for name in ("src_weight", "dst_weight"):
            self._keep(name, _checked_weights(name, getattr(self, name)))
        if self.in_batch and (self.src_weight is not None or self.dst_weight is not None):
            raise SettingsError("negative sampling: in_batch takes destinations of the batch; leave the weights out")
        if self.src_weight is not None and mode == "triplet":
            raise SettingsError("negative sampling: triplets keep the source of a positive; leave src_weight out")

    def num_negatives(self, num_positives: int) -> int:
        """Return the number of negatives for a number of positives."""
        return math.ceil(num_positives * self.amount)

    def facts(self) -> dict[str, str]:
        """Return the settings as JSON values, with digests of weights."""
        facts = {name: str(getattr(self, name)) for name in ("mode", "amount", "strict", "in_batch")}
        for name in ("src_weight", "dst_weight"):
            weights = getattr(self, name)
            facts[name] = "" if weights is None else hex_digest(weights.data)
        return facts


def read_negative_sampling(neg_sampling: object, neg_sampling_ratio: object = None) -> NegativeSampling | None:
    """Convert the user's argument to ``NegativeSampling``, or None for no negatives.

    Args:
        neg_sampling: A ``NegativeSampling``, a mode, a mapping of its settings, or PyG's record of that name.
        neg_sampling_ratio: ``r`` means ``NegativeSampling("binary", r)``; 0 means no negatives.

    Raises:
        SettingsError: The argument is none of these, both are given, or a setting is invalid.
    """
    if neg_sampling_ratio is not None:
        if neg_sampling is not None:
            raise SettingsError("neg_sampling and neg_sampling_ratio are both given; give one of them")
        if is_number(neg_sampling_ratio) and neg_sampling_ratio == 0:
            return None
        return NegativeSampling("binary", neg_sampling_ratio)  # type: ignore[arg-type]  # checked by the record
    if neg_sampling is None or isinstance(neg_sampling, NegativeSampling):
        return neg_sampling
    if isinstance(neg_sampling, str):
        return NegativeSampling(neg_sampling)  # type: ignore[arg-type]  # checked by the record
    names = NegativeSampling.field_names()
    if isinstance(neg_sampling, Mapping):
        unknown = [name for name in neg_sampling if name not in names]
        if unknown:
            raise SettingsError(
                f"neg_sampling has no settings {unknown}; it has {', '.join(names)}{did_you_mean(unknown[0], names)}"
            )
        return NegativeSampling(**neg_sampling)
    if hasattr(neg_sampling, "mode") and hasattr(neg_sampling, "amount"):
        return NegativeSampling(**{name: getattr(neg_sampling, name) for name in names if hasattr(neg_sampling, name)})
    raise SettingsError(
        f"neg_sampling is a {type(neg_sampling).__name__}; give NegativeSampling(…), 'binary', 'triplet' or a dict"
    )


def _checked_amount(amount: object, *, is_triplet: bool) -> float:
    """Check the amount; return an ``int`` if it is a whole number, else a ``float``."""
    if not is_number(amount) or not 0 < float(amount) <= MAX_AMOUNT:  # type: ignore[arg-type]
        raise SettingsError(
            f"negative sampling: amount is {amount!r}; it must be a number above 0, at most {MAX_AMOUNT}"
        )
    value = float(amount)  # type: ignore[arg-type]
    if value.is_integer():
        return int(value)
    if is_triplet:
        raise SettingsError(f"negative sampling: amount is {amount!r}; triplets need an integer, 1 or above")
    return value


def _checked_weights(name: str, given: Any) -> NDArray[np.float64] | None:
    """Check weights, an array or a tensor on any device, and return a read-only float64 copy."""
    if given is None:
        return None
    array = to_array(given)
    if array.ndim != 1 or array.dtype.kind not in "biuf" or not len(array):
        raise SettingsError(f"{name} is {array.dtype}{list(array.shape)}; give one real number per node")
    weights = np.array(array, np.float64)
    bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(bad):
        raise SettingsError(f"{name}[{bad[0]}] is {weights[bad[0]]}; weights are finite and 0 or above")
    with np.errstate(over="ignore"):
        total = float(np.cumsum(weights)[-1])  # the same sum as in the draws
    if not 0 < total < math.inf:
        raise SettingsError(f"{name} adds up to {total}; at least one weight must be above 0, and their sum finite")
    weights.flags.writeable = False
    return weights
