"""The columns that batches bring along."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from hopstream.checks import known_names
from hopstream.errors import SettingsError, UnknownNameError
from hopstream.schema import EdgeType, FeatureSchema, GraphSchema, type_label

T = TypeVar("T", str, EdgeType)
NodeFeatures = Sequence[str] | Mapping[str, Sequence[str]] | None
EdgeFeatures = Sequence[str] | Mapping[EdgeType, Sequence[str]] | Mapping[str, Sequence[str]] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnChoice:
    """Columns per type; every type of the schema is present, if only with none.

    Attributes:
        nodes: Node type to feature names.
        edges: Edge type to feature names.
    """

    nodes: Mapping[str, tuple[str, ...]]
    edges: Mapping[EdgeType, tuple[str, ...]]

    @property
    def has_edge_features(self) -> bool:
        """Some edge type brings features."""
        return any(self.edges.values())


def choose_columns(schema: GraphSchema, node_features: NodeFeatures, edge_features: EdgeFeatures) -> ColumnChoice:
    """Check a choice of features.

    Args:
        schema: The graph's schema.
        node_features: None for all features of all node types; names, which every node type that has them brings; or
            node type to names, where types left out bring nothing.
        edge_features: The same for edge types, which are named by a tuple or as ``src__rel__dst``.

    Raises:
        UnknownNameError: The schema has no such type or feature.
        SettingsError: A name stands where a list of names is wanted, or a name is given twice.
    """
    labels: dict[str | EdgeType, EdgeType] = {type_label(t): t for t in schema.edges} | {t: t for t in schema.edges}
    by_edge_type = _resolve(edge_features, labels)
    return ColumnChoice(
        nodes=_choose("node_features", schema.nodes, node_features),
        edges=_choose("edge_features", schema.edges, by_edge_type),
    )


def _resolve(
    edge_features: EdgeFeatures, labels: Mapping[str | EdgeType, EdgeType]
) -> Sequence[str] | Mapping[EdgeType, Sequence[str]] | None:
    if not isinstance(edge_features, Mapping):
        return edge_features
    resolved: dict[EdgeType, Sequence[str]] = {}
    for given, names in edge_features.items():
        edge_type = labels.get(tuple(given) if isinstance(given, list) else given)
        if edge_type is None:
            known = [t for t in labels if isinstance(t, tuple)]
            raise UnknownNameError(f"edge_features: unknown edge type {given!r}; {known_names(given, known)}")
        if edge_type in resolved:
            raise SettingsError(f"edge_features names {edge_type!r} twice")
        resolved[edge_type] = names
    return resolved


def _choose(
    setting: str,
    known: Mapping[T, Mapping[str, FeatureSchema]],
    choice: Sequence[str] | Mapping[T, Sequence[str]] | None,
) -> dict[T, tuple[str, ...]]:
    if choice is None:
        return {t: tuple(features) for t, features in known.items()}
    if isinstance(choice, Mapping):
        for t, names in choice.items():
            if t not in known:
                raise UnknownNameError(f"{setting}: unknown type {t!r}; {known_names(t, known)}")
            _check_known(f"{setting}[{t!r}]", names, known[t])
        return {t: tuple(choice.get(t, ())) for t in known}
    _check_known(setting, choice, {name for features in known.values() for name in features})
    return {t: tuple(name for name in choice if name in features) for t, features in known.items()}


def _check_known(where: str, names: Sequence[str], known: Iterable[str]) -> None:
    known = list(known)
    if isinstance(names, str):
        raise SettingsError(f"{where} is the name {names!r}; give a list of names: [{names!r}]")
    if not isinstance(names, Collection) or not all(isinstance(name, str) for name in names):
        raise SettingsError(f"{where} is {names!r}; give a list of names, such as {known[:2]}")
    if len(set(names)) != len(names):
        raise SettingsError(f"{where} names a feature twice: {list(names)}")
    for name in names:
        if name not in known:
            raise UnknownNameError(f"{where}: there is no feature {name!r}; {known_names(name, sorted(known))}")
