"""Checks that ranks write the parts of ``write_parts``, and compare their facts of parts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopstream.compat.pyg.own_part import OwnEdges, OwnPart
from hopstream.compat.pyg.part_writing import PartFacts, PartWriter, agree, records_of
from hopstream.dataset.layout import Dataset, PartArrays, open_dataset
from hopstream.errors import FormatError, UnknownNameError, VersionMismatch
from hopstream.graph.graph import Graph
from tests.timed_graphs import FOLLOWS, RATES, make_timed_graph

NUM_PARTS = 3


@pytest.fixture(scope="module")
def graph() -> Graph:
    return make_timed_graph(np.random.default_rng(2))


@pytest.fixture(scope="module")
def owners(graph: Graph) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(8)
    found = {t: rng.integers(0, NUM_PARTS, table.num_nodes).astype(np.int32) for t, table in graph.nodes.items()}
    found["user"][found["user"] == 2] = 0  # part 2 owns no users, and so none of the edges that lead to them
    return found


def own_part(graph: Graph, owners: dict[str, np.ndarray], part: int, time_attr: str | None = None) -> OwnPart:
    """A machine's part of a graph, with edges in arbitrary order."""
    rng, edges = np.random.default_rng(part), {}
    for edge_type, table in graph.edges.items():
        keys = rng.permutation(np.flatnonzero(owners[edge_type[2]][table.dst_keys] == part))
        edges[edge_type] = OwnEdges(
            src_keys=table.src_keys[keys], dst_keys=table.dst_keys[keys], edge_keys=keys,
            features={name: column[keys] for name, column in table.features.items()},
        )  # fmt: skip
    return OwnPart(
        part=part, num_parts=NUM_PARTS, owners=owners, edges=edges, time_attr=time_attr,
        node_features={
            t: {name: column[owners[t] == part] for name, column in table.features.items()}
            for t, table in graph.nodes.items()
        },
        node_times={t: n.features[time_attr] for t, n in graph.nodes.items() if time_attr in n.features},
    )  # fmt: skip


def written(parts: list[OwnPart], root: Path) -> list[Dataset]:
    """Write and open each rank's dataset with its own part alone; facts of other ranks pass through JSON."""
    whole = agree([PartFacts.from_json(json.loads(json.dumps(PartFacts.of(part).to_json()))) for part in parts])
    writers = [PartWriter(part, whole, root / f"rank-{part.part}") for part in parts]
    told = [{name: record.content_to_json() for name, record in writer.write().items()} for writer in writers]
    for writer in writers:
        writer.write_manifest(records_of(json.loads(json.dumps(told))))
    return [open_dataset(root / f"rank-{part.part}") for part in parts]


def built(parts: list[OwnPart], root: Path) -> list[PartArrays]:
    return [dataset.open_part(part.part) for part, dataset in zip(parts, written(parts, root), strict=True)]


def same(one: Any, other: Any, where: str) -> None:
    assert one.dtype == other.dtype, where
    assert np.array_equal(one, other), where


def test_a_rank_without_rows_need_not_have_columns(graph: Graph, owners: Any, tmp_path: Path) -> None:
    parts = [own_part(graph, owners, part) for part in range(NUM_PARTS)]
    with_less = {t: edges for t, edges in parts[2].edges.items() if t != FOLLOWS}
    parts[2] = replace(parts[2], edges=with_less, node_features={"item": parts[2].node_features["item"]})
    found = built(parts, tmp_path)[2]
    assert found.edges[FOLLOWS, "in"].features["weight"].shape == (0,)
    assert found.edges[FOLLOWS, "in"].features["weight"].dtype == np.float32


def test_without_edge_keys_edges_keep_the_order_in_which_they_are_given(
    graph: Graph, owners: Any, tmp_path: Path
) -> None:
    with_keys = [own_part(graph, owners, part) for part in range(NUM_PARTS)]
    parts = [replace(part, edges={RATES: replace(part.edges[RATES], edge_keys=None)}) for part in with_keys]
    edges = parts[0].edges[RATES]
    found = built(parts, tmp_path)[0].edges[RATES, "in"]
    assert found.keys is None
    rows = np.searchsorted(np.flatnonzero(owners["item"] == 0), edges.dst_keys)
    same(found.features["time"], edges.features["time"][np.argsort(rows, kind="stable")], "time")


def test_edge_ids_on_some_ranks_only_are_refused(graph: Graph, owners: Any) -> None:
    parts = [own_part(graph, owners, part) for part in range(NUM_PARTS)]
    parts[1] = replace(parts[1], edges={RATES: replace(parts[1].edges[RATES], edge_keys=None)})
    with pytest.raises(VersionMismatch, match="rank 2 has ids of its edges user__rates__item, and rank 1 has none"):
        agree([PartFacts.of(part) for part in parts])


def test_error_for_differing_facts_names_the_ranks(graph: Graph, owners: Any) -> None:
    facts = [PartFacts.of(own_part(graph, owners, part)) for part in range(NUM_PARTS)]
    schema = facts[1].schema
    fewer = replace(schema, edges={**schema.edges, RATES: {}})
    cases = {
        "the number of parts: rank 0 has 3, rank 1 has 4": replace(facts[1], num_parts=4),
        "node types: rank 0 has": replace(facts[1], owners={"user": (30, 0)}),
        "time_attr: rank 0 has None, rank 1 has 'time'": replace(facts[1], time_attr="time"),
        "has 30 nodes on rank 0 and 31 nodes on rank 1": replace(facts[1], owners={**facts[1].owners, "user": (31, 0)}),
        "columns of user__rates__item: rank 0 has .* rank 1 has {}": replace(facts[1], schema=fewer),
    }
    for message, other in cases.items():
        with pytest.raises(VersionMismatch, match=message):
            agree([facts[0], other, facts[2]])
    with pytest.raises(VersionMismatch, match=r"no rank holds part 1 of 3; parts by rank are \{0: 0, 1: 2\}"):
        agree([facts[0], facts[2]])
    with pytest.raises(UnknownNameError, match="no node or edge type has such a feature"):
        agree([replace(one, time_attr="when") for one in facts])
    assert agree([*facts, facts[1]]).schema == agree(facts).schema  # a second rank of one part


def test_invalid_part_facts_are_refused() -> None:
    with pytest.raises(FormatError, match="not the facts of a part"):
        PartFacts.from_json({"part": 1})


def test_all_ranks_write_one_manifest_that_follows_from_the_content(graph: Graph, owners: Any, tmp_path: Path) -> None:
    parts = [own_part(graph, owners, part) for part in range(NUM_PARTS)]
    first, *others = written(parts, tmp_path / "first")
    assert {dataset.manifest.dataset_id for dataset in others} == {first.manifest.dataset_id}
    first.verify([0])
    features = {**parts[0].node_features, "item": {"time": parts[0].node_features["item"]["time"] + 1}}
    changed = written([replace(parts[0], node_features=features), *parts[1:]], tmp_path / "changed")[0]
    assert changed.manifest.graph_id != first.manifest.graph_id


@pytest.mark.parametrize("how", ["shifted", "swapped", "doubled", "beyond"])
def test_repeated_edge_keys_are_refused_on_all_ranks(graph: Graph, owners: Any, how: str) -> None:
    """All keys are in range, so no rank can detect the error alone."""
    parts = [own_part(graph, owners, part) for part in range(NUM_PARTS)]
    edges = parts[0].edges[RATES]
    keys = edges.edge_keys.copy()
    if how == "shifted":
        keys = np.where(keys + 1 < 180, keys + 1, keys)
    elif how == "swapped":  # two up and two down by one: the sum stays
        keys[:4] += [1, 1, -1, -1] if keys[:2].max() < 179 and keys[2:4].min() > 0 else [-1, -1, 1, 1]
    elif how == "beyond":
        keys += 1000
    else:
        keys[0] = keys[1]
    wrong = {**parts[0].edges, RATES: replace(edges, edge_keys=keys)}
    with pytest.raises(VersionMismatch, match=r"keys of the 180 edges of user__rates__item are not 0..179, each once"):
        agree([PartFacts.of(part) for part in (replace(parts[0], edges=wrong), *parts[1:])])
