"""The times at which seeds look at the graph.

The user says it, seed by seed, or the seeds are nodes that have a time of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hopstream.arrays import IntArray, to_array
from hopstream.errors import SettingsError
from hopstream.graph.checksums import hex_digest
from hopstream.sample.sampling import Sampling
from hopstream.sample.seeds import Seeds
from hopstream.store.contract import FetchRequest, Store


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SeedTimes:
    """The times of a loader's seeds.

    Attributes:
        store: Where nodes' own times are.
        node_type: Type of the seeds.
        time_attr: The feature that holds times.
        given: int64[num_seeds], what the user gave in the order of the seeds, or None for the nodes' own times.
    """

    store: Store
    node_type: str
    time_attr: str
    given: IntArray | None

    def of(self, positions: IntArray, ids: IntArray) -> IntArray:
        """int64[n], a new array: the times of the seeds at some positions, which have these ids."""
        if self.given is not None:
            return self.given[positions]
        request = FetchRequest(owner=self.node_type, names=(self.time_attr,), ids=ids)
        return np.array(self.store.fetch([request])[0][self.time_attr], np.int64)

    def fingerprint(self) -> str | None:
        """Hex digits that change when the given times do, or None where there are none."""
        return None if self.given is None else hex_digest(self.given.data)


def read_seed_times(store: Store, sampling: Sampling, seeds: Seeds, input_time: object) -> SeedTimes | None:
    """Check the times of a loader's seeds.

    Args:
        store: The graph's store.
        sampling: How neighbourhoods are drawn.
        seeds: The seeds.
        input_time: An integer per seed, or None.

    Returns:
        Their times, or None where the sampling is not temporal.

    Raises:
        SettingsError: Times without temporal sampling or the other way round, or not one integer per seed.
    """
    time_attr = sampling.settings.time_attr
    if time_attr is None:
        if input_time is not None:
            raise SettingsError("input_time needs time_attr=, the feature that holds times; give both")
        return None
    node_type = seeds.node_type
    if input_time is None and time_attr not in store.schema.nodes[node_type]:
        raise SettingsError(
            f"seeds of {node_type!r} have no time: they have no feature {time_attr!r}; give input_time=, one integer "
            "per seed"
        )
    given = None if input_time is None else read_times("input_time", input_time, seeds.num_seeds)
    return SeedTimes(store=store, node_type=node_type, time_attr=time_attr, given=given)


def read_times(name: str, values: object, num_wanted: int, each: str = "seed") -> IntArray:
    """int64[num_wanted], a copy of the times that the user gave.

    Args:
        name: What the option is called.
        values: Anything that is or becomes an array of integers.
        num_wanted: How many there must be.
        each: What each of them is the time of.

    Raises:
        SettingsError: They are not integers that fit int64, or not so many.
    """
    times = to_array(values)
    if times.dtype.kind == "M":
        raise SettingsError(
            f"{name} is {times.dtype}; times are integers: use astype(np.int64), in the unit of the dataset's times"
        )
    if times.dtype.kind not in "iu":
        raise SettingsError(
            f"{name} is {times.dtype}; times are integers, so that they compare exactly: give whole numbers, in the "
            "unit of the dataset's times"
        )
    if times.shape != (num_wanted,):
        raise SettingsError(f"{name} is {times.dtype}{list(times.shape)}; give one integer per {each}: [{num_wanted}]")
    if times.dtype == np.uint64 and bool((times > np.iinfo(np.int64).max).any()):
        raise SettingsError(f"{name} holds {int(times.max())}; times go up to {np.iinfo(np.int64).max}")
    return times.astype(np.int64)
