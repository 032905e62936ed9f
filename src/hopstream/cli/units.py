"""Formats counts, sizes, times, and the types of a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hopstream.engine.settings import bytes_text as bytes_text
from hopstream.engine.settings import scaled_text
from hopstream.schema import EdgeType, FeatureSchema

if TYPE_CHECKING:
    from hopstream.cli.census import Census
    from hopstream.cli.progress import Facts, Output


COUNT_UNITS = ("", " k", " M", " G", " T", " P")


def count_text(count: int) -> str:
    """Format a count with three or four digits: ``987``, ``21.1 M``."""
    return scaled_text(count, COUNT_UNITS)


def seconds_text(seconds: float) -> str:
    """Format a time: ``0.04 s``, ``8.7 s``, ``212 s``."""
    digits = 2 if seconds < 1 else 1 if seconds < 100 else 0
    return f"{seconds:.{digits}f} s"


def percent_text(fraction: float) -> str:
    """Format a share: ``31.4 %``."""
    return f"{100 * fraction:.1f} %"


def printable_text(text: str, max_length: int = 200) -> str:
    """Make foreign text safe for a terminal: replace control characters, and truncate it."""
    shown = "".join(c if c.isprintable() else "?" for c in text[: max_length + 1])
    return shown if len(shown) <= max_length else shown[: max_length - 1] + "…"


def plural_text(count: int, noun: str) -> str:
    """Format a count with its noun: ``1 part``, ``4 parts``."""
    return f"{count_text(count)} {noun}{'' if count == 1 else 's'}"


def full_plural_text(count: int, noun: str) -> str:
    """Format a count with all digits and its noun: ``1 node``, ``9,742 nodes``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def features_text(features: Mapping[str, FeatureSchema]) -> str:
    """Format features in one line: ``feat float32[rows, 128], title string``."""
    return ", ".join(f"{name} {feature}" for name, feature in features.items())


def splits_text(splits: Mapping[str, int]) -> str:
    """Format splits with their sizes in one line: ``train 40.0 k, val 10.0 k``."""
    return ", ".join(f"{name} {count_text(count)}" for name, count in splits.items())


def links_text(census: Census, edge_type: EdgeType) -> str:
    """Format the links of an edge type: its splits, ``kept`` for links without splits, "" without links."""
    if edge_type not in census.schema.edge_splits:
        return ""
    return splits_text(census.splits_of(edge_type)) or "kept"


def edge_type_text(edge_type: EdgeType) -> str:
    """Format an edge type for people: ``author writes paper``."""
    return " ".join(edge_type)


def write_types(output: Output, census: Census, num_dropped: Mapping[EdgeType, int] | None = None) -> None:
    """Write one row for each node type and each edge type.

    Args:
        output: Output of the verb.
        census: The census with the types.
        num_dropped: Edge type to number of edges dropped while reading; None if unknown.
    """
    _write_node_types(output, census)
    if census.schema.edges:
        _write_edge_types(output, census, num_dropped or {})


def _write_node_types(output: Output, census: Census) -> None:
    rows: list[Sequence[str]] = []
    facts: list[Facts] = []
    for node_type, features in census.schema.nodes.items():
        splits = census.splits_of(node_type)
        num_nodes = census.book.num_ids(node_type)
        rows.append((node_type, count_text(num_nodes), splits_text(splits), features_text(features)))
        facts.append(
            {"node_type": node_type, "nodes": num_nodes, "splits": splits, "features": _feature_facts(features)}
        )
    output.text()
    output.table(("node type", ">nodes", "splits", "features"), rows, facts)


def _write_edge_types(output: Output, census: Census, num_dropped: Mapping[EdgeType, int]) -> None:
    has_cut = census.report is not None and census.num_parts > 1
    has_dropped = any(num_dropped.values())
    has_links = bool(census.schema.edge_splits)
    rows: list[Sequence[str]] = []
    facts: list[Facts] = []
    for edge_type, features in census.schema.edges.items():
        num_edges = census.num_edges_of(edge_type)
        cut = census.report.cuts[edge_type].fraction if census.report else None
        row = [edge_type_text(edge_type), count_text(num_edges)]
        row += [percent_text(cut or 0.0)] * has_cut + [count_text(num_dropped.get(edge_type, 0))] * has_dropped
        row += [" and ".join(census.timed_directions(edge_type))] * (census.time_attr is not None)
        row += ["yes" if census.weight_attr in features else ""] * (census.weight_attr is not None)
        rows.append([*row, *[links_text(census, edge_type)] * has_links, features_text(features)])
        fact: Facts = {
            "edge_type": edge_type, "edges": num_edges, "cut": cut, "times": census.timed_directions(edge_type),
            "weights": census.weight_attr in features, "links": edge_type in census.schema.edge_splits,
            "splits": census.splits_of(edge_type), "features": _feature_facts(features),
        }  # fmt: skip
        facts.append(fact if edge_type not in num_dropped else {**fact, "dropped": num_dropped[edge_type]})
    output.text()
    headers = ["edge type", ">edges", *[">cut"] * has_cut, *[">dropped"] * has_dropped]
    headers += ["times"] * (census.time_attr is not None) + ["weights"] * (census.weight_attr is not None)
    output.table([*headers, *["links"] * has_links, "features"], rows, facts)


def _feature_facts(features: Mapping[str, FeatureSchema]) -> Facts:
    return {n: {"dtype": f.dtype, "shape": f.shape, "ragged": f.is_ragged} for n, f in features.items()}
