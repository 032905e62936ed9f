"""Fitted transforms of a dataset, and their application to new rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hopstream.arrays import Column, RaggedArray, column_schema
from hopstream.checks import known_names
from hopstream.errors import FormatError, SchemaError, UnknownNameError
from hopstream.ingest.transforms.chain import Chain, as_read, chain_of
from hopstream.ingest.user_columns import ColumnLike, as_column
from hopstream.schema import EdgeType, FeatureSchema, type_label


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedFeature:
    """How a feature is made of columns of a table.

    Attributes:
        columns: Names of its columns.
        is_vector: Each row is a vector with a value of each column.
        read_as: Schema of its rows before they are transformed.
        chain: Its transforms; None if its rows are stored as they are read.
    """

    columns: tuple[str, ...]
    is_vector: bool
    read_as: FeatureSchema
    chain: Chain | None

    def to_json(self) -> dict[str, Any]:
        """Return a JSON value for ``from_json``."""
        steps = [] if self.chain is None else self.chain.to_json()
        return {
            "columns": list(self.columns), "vector": self.is_vector, "read_as": self.read_as.to_json(), "steps": steps,
        }  # fmt: skip

    @classmethod
    def from_json(cls, where: str, value: Any) -> SavedFeature:
        """Read what ``to_json`` wrote.

        Raises:
            FormatError: The value is something else.
        """
        try:
            steps = value["steps"]
            return cls(
                columns=tuple(map(str, value["columns"])), is_vector=bool(value["vector"]),
                read_as=FeatureSchema.from_json(value["read_as"]),
                chain=chain_of(where, steps, with_fitted=True) if steps else None,
            )  # fmt: skip
        except (KeyError, TypeError, SchemaError) as error:
            raise FormatError(f"{where} is no saved transform ({error})") from error

    def apply(self, label: str, columns: Mapping[str, ColumnLike]) -> Column:
        """Return the rows of the feature."""
        parts = [self._read(f"{label} of column {name!r}", columns[name]) for name in self.columns]
        lengths = {len(part) for part in parts}
        if len(lengths) > 1:
            raise SchemaError(f"{label}: columns {list(self.columns)} have {sorted(lengths)} rows; wanted one length")
        column: Column = np.stack([np.asarray(part) for part in parts], axis=1) if self.is_vector else parts[0]
        if column_schema(column) != self.read_as and (self.chain is None or self.chain.time_unit is None):
            raise SchemaError(f"{label} is made of {self.read_as}; got {column_schema(column)}")
        return column if self.chain is None else self.chain.apply(label, column)

    def _read(self, where: str, given: ColumnLike) -> Column:
        unit = None if self.chain is None else self.chain.time_unit
        times = np.asarray(given) if unit is not None and not isinstance(given, RaggedArray) else np.empty(0)
        if unit is not None and times.dtype.kind == "M":
            return times.astype(f"datetime64[{unit}]").astype(np.int64)
        column = as_column(given, where)
        is_string = isinstance(column, RaggedArray) and column.is_string
        if is_string != self.read_as.is_string and unit is None:
            got = "strings" if is_string else "numbers"
            raise SchemaError(f"{where}: values are {got}; the table's are {self.read_as.dtype}")
        return column if is_string else as_read(column, self.read_as)


class TypeTransforms:
    """Fitted transforms of a node type or an edge type."""

    def __init__(self, label: str, features: Mapping[str, SavedFeature]) -> None:
        """Refer to features.

        Args:
            label: The type's name in messages.
            features: Feature to how it is made, also of features without transforms.
        """
        self.label, self._features = label, features

    def __repr__(self) -> str:
        """Return the features and their transforms."""
        return f"TypeTransforms({self.label!r}: {', '.join(self._features)})"

    def check_allowed(self, tokenizers: Collection[str]) -> None:
        """Refuse functions of the user that are not in the list.

        Raises:
            SettingsError: A transform names another function.
        """
        for feature in self._features.values():
            if feature.chain is not None:
                feature.chain.check_allowed(tokenizers)

    def chain_of(self, feature: str) -> Any:
        """Return the ``Chain`` of a feature's fitted transforms; None if it has none."""
        return self._features[feature].chain if feature in self._features else None

    def apply(self, columns: Mapping[str, ColumnLike]) -> dict[str, Column]:
        """Make the features of some rows, one or many, as the table's rows were made into the dataset's.

        Args:
            columns: Column of the table to its values: lists, arrays, or tensors with a row dimension.

        Returns:
            Feature to its rows. Features whose columns are missing are left out. Columns that no feature uses are
            returned unchanged.

        Raises:
            SchemaError: Only some columns of a feature are given, or values are of another kind than the table's.
        """
        found: dict[str, Column] = {}
        for name, feature in self._features.items():
            missing = [column for column in feature.columns if column not in columns]
            if len(missing) < len(feature.columns) and missing:
                raise SchemaError(f"{self.label}.{name} is made of {list(feature.columns)}; {missing[0]!r} is missing")
            if not missing:
                found[name] = feature.apply(f"{self.label}.{name}", columns)
        used = {column for feature in self._features.values() for column in feature.columns}
        others = {name: as_column(value, f"{self.label}.{name}") for name, value in columns.items() if name not in used}
        return {**others, **found}


class Transforms(Mapping[str, TypeTransforms]):
    """Fitted transforms of a dataset by type; an edge type is a tuple or its label."""

    def __init__(self, value: Mapping[str, Any], tokenizers: Collection[str] = ()) -> None:
        """Read a JSON value, which ``to_json`` returns.

        Args:
            value: The JSON value.
            tokenizers: Functions of the user that may be imported, as ``module:function``.

        Raises:
            FormatError: The value is something else.
            SettingsError: A transform names a function that is not among ``tokenizers``.
        """
        self._value = value
        try:
            self._types = {
                label: TypeTransforms(
                    label, {n: SavedFeature.from_json(f"{label}.{n}", one) for n, one in features.items()}
                )
                for label, features in value.items()
            }
        except AttributeError as error:
            raise FormatError(f"transforms are {str(value)[:100]}; wanted an object by type and feature") from error
        for of_type in self._types.values():
            of_type.check_allowed(tokenizers)

    def __getitem__(self, entity: str | EdgeType) -> TypeTransforms:
        """Return the transforms of a type.

        Raises:
            UnknownNameError: The type has no transforms.
        """
        label = entity if isinstance(entity, str) else type_label(entity)
        if label not in self._types:
            raise UnknownNameError(f"{label!r} has no transforms; {known_names(label, self._types)}")
        return self._types[label]

    def __contains__(self, entity: object) -> bool:
        """Return whether a type has transforms."""
        return (type_label(entity) if isinstance(entity, tuple) else entity) in self._types

    def __iter__(self) -> Iterator[str]:
        """Iterate over the labels of the types."""
        return iter(self._types)

    def __len__(self) -> int:
        """Return the number of types with transforms."""
        return len(self._types)

    def to_json(self) -> Mapping[str, Any]:
        """Return a JSON value for ``Transforms``."""
        return self._value
