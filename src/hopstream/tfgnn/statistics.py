"""Statistics of exported examples: sizes of their sets, and values of their features.

Examples are added block by block, so memory does not grow with their number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hopstream.arrays import Array, IntArray, RaggedArray, offsets_of
from hopstream.tfgnn.example import NamedLists, ValueLists
from hopstream.tfgnn.graph_tensor import SIZE, SOURCE, TARGET, list_names
from hopstream.tfgnn.list_reader import kind_text
from hopstream.tfgnn.spec import GraphSpec

MAX_NAMES, MAX_NAME_LENGTH = 10_000, 1_000
"""Limits for names that are not in the schema, number and length: foreign files may have new ones in every example."""
_BOUNDS = 1 << np.arange(62, dtype=np.int64)


@dataclass(slots=True)
class Numbers:
    """Count, sum, minimum and maximum of numbers.

    Attributes:
        count: Number of values, NaN and infinite ones included.
        num_nan: Number of NaN values.
        num_infinite: Number of infinite values.
        total: Sum of the finite values.
        least: Minimum of the finite values; inf if there are none.
        most: Maximum of the finite values; -inf if there are none.
    """

    count: int = 0
    num_nan: int = 0
    num_infinite: int = 0
    total: float = 0.0
    least: float = math.inf
    most: float = -math.inf

    def add(self, values: Array) -> None:
        """Add values."""
        self.count += len(values)
        if values.dtype.kind == "f" and not bool(np.all(np.isfinite(values))):
            self.num_nan += int(np.sum(np.isnan(values)))
            self.num_infinite += int(np.sum(np.isinf(values)))
            values = values[np.isfinite(values)]
        if len(values):
            self.total += float(np.sum(values, dtype=np.float64))
            self.least = min(self.least, values.min().item())
            self.most = max(self.most, values.max().item())

    @property
    def num_finite(self) -> int:
        """Number of finite values."""
        return self.count - self.num_nan - self.num_infinite

    @property
    def mean(self) -> float | None:
        """Mean of the finite values; None if there are none."""
        return self.total / self.num_finite if self.num_finite else None

    def to_json(self) -> dict[str, float | None]:
        """Return minimum, mean and maximum; None each if there are no finite values."""
        has_any = self.num_finite > 0
        return {"min": self.least if has_any else None, "mean": self.mean, "max": self.most if has_any else None}


@dataclass(slots=True)
class SizeStatistics:
    """Distribution of a size over examples.

    Attributes:
        numbers: Statistics of the sizes.
        histogram: Number of examples of size 0, 1, 2 to 3, 4 to 7 and so on.
    """

    numbers: Numbers = field(default_factory=Numbers)
    histogram: list[int] = field(default_factory=list)

    def add(self, sizes: IntArray) -> None:
        """Add the sizes of some examples."""
        self.numbers.add(sizes)
        bins = np.bincount(np.searchsorted(_BOUNDS, sizes, side="right"), minlength=len(self.histogram)).tolist()
        for number, count in enumerate(self.histogram):
            bins[number] += count
        self.histogram = bins


@dataclass(slots=True)
class FeatureStatistics:
    """Statistics of one feature.

    Attributes:
        kind: ``float32``, ``int64`` or ``strings`` as stored; ``uint64`` if the schema declares it. Without values, the
            kind that the schema declares.
        num_examples: Number of examples that have the feature.
        num_filled: Number of examples that have the feature and whose set is not empty.
        lengths: Values per example, over examples that have the feature.
        values: The numbers; for strings, their sizes in bytes.
    """

    kind: str = "int64"
    num_examples: int = 0
    num_filled: int = 0
    lengths: Numbers = field(default_factory=Numbers)
    values: Numbers = field(default_factory=Numbers)

    def add(self, lists: ValueLists, sizes: IntArray | None) -> None:
        """Add the values of examples; ``sizes`` are those of the feature's set, None for a feature of no set."""
        lengths = np.diff(lists.offsets)
        is_there = lists.is_there if isinstance(lists, NamedLists) else lengths > 0
        self.num_examples += int(is_there.sum())
        self.num_filled += int(np.sum(is_there if sizes is None else is_there & (sizes > 0)))
        self.lengths.add(lengths[is_there])
        if len(lists.values):
            self.kind = kind_text(lists.values)
        self.values.add(np.diff(lists.values.offsets) if isinstance(lists.values, RaggedArray) else lists.values)


@dataclass(slots=True)
class ExampleStatistics:
    """Statistics of a set of examples.

    Attributes:
        spec: The spec of their schema, or None.
        prefix: Prefix of all names.
        num_examples: Number of examples.
        example_bytes: Sizes of the examples in bytes.
        sets: ``nodes/<set>`` or ``edges/<set>`` to the number of items per example.
        features: Full name of a feature to its statistics; row lengths, for example ``.d1``, are separate features.
        unknown: Names that are not in the schema.
        num_left_out: Number of lists without statistics, because there are too many names or their names are too long.
    """

    spec: GraphSpec | None = None
    prefix: str = ""
    num_examples: int = 0
    example_bytes: SizeStatistics = field(default_factory=SizeStatistics)
    sets: dict[str, SizeStatistics] = field(default_factory=dict)
    features: dict[str, FeatureStatistics] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)
    num_left_out: int = 0
    _kept: set[str] = field(default_factory=set)

    def add(self, lists: Mapping[str, ValueLists], records: Sequence[bytes]) -> None:
        """Add examples, with their lists from ``decode_examples``."""
        num_examples = len(records)
        known = None if self.spec is None else set(list_names(self.spec, self.prefix))
        lists = {key: of for key, of in lists.items() if (known and key in known) or self._keeps(key, of)}
        self.example_bytes.add(np.fromiter(map(len, records), np.int64, num_examples))
        sizes = {name.removesuffix("." + SIZE): _sums(of) for name, of in lists.items() if name.endswith("." + SIZE)}
        none = np.zeros(num_examples, np.int64)
        for name in {*self.sets, *(key.removeprefix(self.prefix) for key in sizes)}:
            if name not in self.sets:
                self.sets[name] = SizeStatistics()
                self.sets[name].add(np.zeros(self.num_examples, np.int64))
            self.sets[name].add(sizes.get(self.prefix + name, none))
        kinds = {} if self.spec is None else dict(_kinds(self.spec))
        for key, of in lists.items():
            if known is not None and key not in known:
                self.unknown.add(key)
            name = key.removeprefix(self.prefix)
            if not name.endswith(("." + SIZE, "." + SOURCE, "." + TARGET)):
                of_set = sizes.get(self.prefix + self._set_of(name))
                kind = kinds.get(name, "int64")
                if kind == "uint64" and not isinstance(of.values, RaggedArray) and of.values.dtype == np.int64:
                    of = replace(of, values=of.values.view(np.uint64))  # uint64 is stored as int64 with the same bits
                self.features.setdefault(name, FeatureStatistics(kind)).add(of, of_set)
        self.num_examples += num_examples

    def num_missing(self, name: str) -> int:
        """Return the number of examples that lack a feature although its set is not empty."""
        of = self.sets.get(self._set_of(name))
        num_filled = self.num_examples if of is None else self.num_examples - (of.histogram[0] if of.histogram else 0)
        return num_filled - self.features[name].num_filled

    def _keeps(self, name: str, lists: ValueLists) -> bool:
        """Return whether to keep a name that is not in the schema; lists of other names are only counted."""
        if name in self._kept:
            return True
        if len(self._kept) < MAX_NAMES and len(name) <= MAX_NAME_LENGTH:
            self._kept.add(name)
            return True
        is_there = lists.is_there if isinstance(lists, NamedLists) else np.diff(lists.offsets) > 0
        self.num_left_out += int(is_there.sum())
        return False

    def left_out_text(self) -> str:
        """Return a sentence about the lists without statistics; "" if there are none."""
        if not self.num_left_out:
            return ""
        return (
            f"{self.num_left_out:,} lists are left out: at most {MAX_NAMES:,} names that are not in the schema are "
            f"kept, each of at most {MAX_NAME_LENGTH:,} characters"
        )

    def _set_of(self, name: str) -> str:
        """Return the set of a feature; names of sets and features may contain dots."""
        of = name.rpartition(".")[0]
        while of and of not in self.sets:
            of = of.rpartition(".")[0]
        return of or name.partition(".")[0]

    def never_seen(self) -> list[str]:
        """List the features of the schema that no example has."""
        names = [] if self.spec is None else list(list_names(self.spec))
        ends = tuple("." + of for of in (SIZE, SOURCE, TARGET))
        return sorted(name for name in names if not name.endswith(ends) and name not in self.features)


def _kinds(spec: GraphSpec) -> Iterator[tuple[str, str]]:
    """Yield the full name and the kind of each feature."""
    holders = [("context/", spec.context)]
    holders += [(f"nodes/{name}.", of.features) for name, of in spec.node_sets.items()]
    holders += [(f"edges/{name}.", of.features) for name, of in spec.edge_sets.items()]
    for key, features in holders:
        for name, of in features.items():
            number = {"f": "float32"}.get(of.numpy_dtype.kind, "uint64" if of.dtype == "uint64" else "int64")
            yield key + name, "strings" if of.is_string else number


def _sums(lists: ValueLists) -> IntArray:
    """Return int64[num_examples], the sum of each example's values."""
    if isinstance(lists.values, RaggedArray):
        return np.zeros(len(lists.offsets) - 1, np.int64)
    return np.diff(offsets_of(lists.values.astype(np.int64))[lists.offsets])
