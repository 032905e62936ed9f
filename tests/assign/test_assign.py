"""Checks that every node gets one part, reproducibly, and that parts are even."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hopstream.assign.run import assign_owners, even_shares, hash_owners, random_owners
from hopstream.assign.weights import node_weights
from hopstream.dataset.balance import max_over_mean, measure_cut
from hopstream.dataset.settings import PartitionSettings
from hopstream.errors import FormatError, IdRangeError, SchemaError, SettingsError, UnknownNameError
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.preparation.write import write_parts
from hopstream.schema import EDGE, NODE
from tests.dataset.graphs import community_graph, path_graph, typed_graphs

METHODS = ["kaminpar", "metis", "ldg", "fennel", "random", "hash"]


def loads_of(graph: Graph, owners, chosen: PartitionSettings) -> list[int]:
    weights = node_weights(graph, chosen)
    return sum(np.bincount(owners[t], weights=weights[t], minlength=chosen.num_parts) for t in graph.nodes).tolist()


@settings(max_examples=15, deadline=None)
@given(graph=typed_graphs(), num_parts=st.integers(1, 20))
@pytest.mark.parametrize("method", METHODS)
def test_every_node_gets_one_part_and_the_same_one_again(graph: Graph, num_parts: int, method: str):
    chosen = PartitionSettings(num_parts=num_parts, method=method)
    owners, again = assign_owners(graph, chosen), assign_owners(graph, chosen)
    assert list(owners) == list(graph.nodes)
    for node_type, owner in owners.items():
        assert owner.dtype == np.int32 and owner.shape == (graph.nodes[node_type].num_nodes,)
        assert not len(owner) or (owner.min() >= 0 and owner.max() < num_parts)
        assert owner.tolist() == again[node_type].tolist()


@pytest.mark.slow
def test_another_process_assigns_alike():
    code = (
        "import zlib, numpy as np; from tests.dataset.graphs import community_graph\n"
        "from hopstream.assign.run import assign_owners\n"
        "from hopstream.dataset.settings import PartitionSettings\n"
        "graph = community_graph(np.random.default_rng(0), 500, 3000)\n"
        f"for method in {METHODS}:\n"
        "    owners = assign_owners(graph, PartitionSettings(num_parts=4, method=method, rng_seed=7))\n"
        "    print(method, zlib.crc32(owners['node'].tobytes()))"
    )
    first, second = (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
        for _ in range(2)
    )
    assert first == second
    assert [line.split()[0] for line in first.splitlines()] == METHODS
    assert len({line.split()[1] for line in first.splitlines()}) == len(METHODS)


def test_hash_and_random_are_pinned():
    chosen = PartitionSettings(num_parts=5, rng_seed=3)
    assert hash_owners("paper", 12, chosen).tolist() == [1, 3, 1, 2, 2, 2, 1, 2, 0, 4, 2, 2]
    assert random_owners("paper", 12, chosen).tolist() == [1, 4, 3, 0, 4, 2, 0, 4, 2, 3, 3, 1]


@given(num_nodes=st.integers(0, 50), num_parts=st.integers(1, 9), rng_seed=st.integers(0, 2**64 - 1))
def test_random_is_exactly_even(num_nodes, num_parts, rng_seed):
    counts = np.bincount(
        random_owners("t", num_nodes, PartitionSettings(num_parts=num_parts, rng_seed=rng_seed)), minlength=num_parts
    )
    assert counts.max() - counts.min() <= 1


def test_tiny_types_do_not_all_go_to_one_part():
    chosen = PartitionSettings(num_parts=8, method="random")
    owners = assign_owners(Graph(nodes={f"t{i}": NodeTable(num_nodes=1) for i in range(64)}), chosen)
    assert len({int(owner[0]) for owner in owners.values()}) == 8


def test_hash_does_not_depend_on_the_number_of_nodes():
    chosen = PartitionSettings(num_parts=7)
    assert hash_owners("t", 1000, chosen)[:10].tolist() == hash_owners("t", 10, chosen).tolist()
    assert hash_owners("u", 10, chosen).tolist() != hash_owners("t", 10, chosen).tolist()
    counts = np.bincount(hash_owners("t", 70_000, chosen), minlength=7)
    assert abs(counts - 10_000).max() < 5 * 100  # 5 sigma of a binomial


@pytest.mark.parametrize("method", ["kaminpar", "metis"])
@pytest.mark.parametrize("balance", ["bytes", "edges", "nodes"])
def test_communities_are_found_and_loads_are_even(rng, method: str, balance: str):
    graph = community_graph(rng)
    chosen = PartitionSettings(num_parts=4, method=method, balance=balance)
    owners = assign_owners(graph, chosen)
    cuts, _ = measure_cut(graph, owners, 4)
    random_cuts, _ = measure_cut(graph, assign_owners(graph, PartitionSettings(num_parts=4, method="random")), 4)
    assert random_cuts[EDGE].fraction > 0.7
    assert cuts[EDGE].fraction < 0.3
    assert max_over_mean(loads_of(graph, owners, chosen)) < 1.05


def test_bytes_balance_edges_where_nodes_do_not(rng):
    """On a graph with hubs, even node counts give one part most of the edges."""
    ends = (rng.pareto(1.0, (2, 40_000)) * 20).astype(np.int64)
    ends = ends[:, (ends < 4000).all(axis=0)]
    graph = Graph(
        nodes={NODE: NodeTable(num_nodes=4000)}, edges={EDGE: EdgeTable(src_keys=ends[0], dst_keys=ends[1])}
    ).check()
    edge_balance = {}
    for balance in ("bytes", "nodes"):
        owners = assign_owners(graph, PartitionSettings(num_parts=4, balance=balance))
        edge_balance[balance] = max_over_mean(np.bincount(owners[NODE][ends[1]], minlength=4).tolist())
    assert edge_balance["bytes"] < 1.5 < edge_balance["nodes"]


@pytest.mark.parametrize("method", ["kaminpar", "metis"])
def test_isolated_nodes_are_shared_out(method: str):
    graph = path_graph(400, num_isolated=800)
    owner = assign_owners(graph, PartitionSettings(num_parts=4, method=method))[NODE]
    isolated = np.bincount(owner[400:], minlength=4)
    assert isolated.min() > 150
    assert max_over_mean(loads_of(graph, {NODE: owner}, PartitionSettings(num_parts=4))) < 1.05


@pytest.mark.parametrize("method", ["kaminpar", "metis"])
@pytest.mark.parametrize("num_nodes,num_isolated,num_parts", [(0, 0, 3), (0, 5, 2), (1, 0, 2), (3, 2, 8), (6, 0, 6)])
def test_parts_of_few_nodes_are_at_most_twice_as_large_as_their_share(
    method: str, num_nodes: int, num_isolated: int, num_parts: int
):
    graph = path_graph(num_nodes, num_isolated)
    owner = assign_owners(graph, PartitionSettings(num_parts=num_parts, method=method))[NODE]
    assert len(owner) == num_nodes + num_isolated
    counts = np.bincount(owner, minlength=num_parts)
    assert len(counts) == num_parts
    assert counts.max() <= max(2, 2 * len(owner) // num_parts)


@given(st.lists(st.integers(0, 100), min_size=1, max_size=8), st.floats(0, 1))
def test_shares_fill_the_room_evenly(room: list[int], fraction: float):
    amount = fraction * sum(room)
    shares = even_shares(np.array(room, np.float64), amount)
    assert shares.sum() == pytest.approx(amount, abs=1e-6)
    assert (shares <= np.array(room) + 1e-9).all() and (shares >= -1e-9).all()
    below_room = shares[shares < np.array(room) - 1e-6]
    assert not len(below_room) or below_room.min() == pytest.approx(shares.max(), abs=1e-6)


def write_owners(folder, graph: Graph, suffix: str, rng) -> dict[str, list[int]]:
    owners = {t: rng.integers(0, 3, table.num_nodes) for t, table in graph.nodes.items()}
    for node_type, owner in owners.items():
        if suffix == ".npy":
            np.save(folder / f"{node_type}.npy", owner.astype(np.uint8))
        else:
            (folder / f"{node_type}.txt").write_text("".join(f"{part}\n" for part in owner))
    return {t: owner.tolist() for t, owner in owners.items()}


@pytest.mark.parametrize("suffix", [".npy", ".txt"])
def test_owners_from_files(tmp_path, rng, typed_graph: Graph, suffix: str):
    wanted = write_owners(tmp_path, typed_graph, suffix, rng)
    got = assign_owners(typed_graph, PartitionSettings(num_parts=3, method="file"), tmp_path)
    assert {t: owner.tolist() for t, owner in got.items()} == wanted
    assert all(owner.dtype == np.int32 for owner in got.values())
    from_mapping = assign_owners(typed_graph, PartitionSettings(num_parts=3, method="file"), wanted)
    assert {t: owner.tolist() for t, owner in from_mapping.items()} == wanted


@pytest.mark.parametrize(
    ("name", "content", "error", "message"),
    [
        (
            "paper.txt",
            "0\n" * 59,
            SchemaError,
            r"paper.txt has 59 parts; it must be one integer for each of 60",
        ),
        ("paper.txt", "0\n" * 61, SchemaError, "more than 60"),
        ("paper.txt", "0\n" * 59 + "3\n", IdRangeError, r"paper.txt\[59\] is 3; parts are numbered 0..2"),
        ("paper.txt", "-1\n" + "0\n" * 59, IdRangeError, r"paper.txt\[0\] is -1"),
        ("paper.txt", "0\n" * 59 + "1.5\n", FormatError, "one part number per line"),
        ("paper.txt", "0\n" * 59 + "x\n", FormatError, "one part number per line"),
        ("paper.txt", "0 1\n" * 60, FormatError, "wanted one part number per line"),
        ("paper.txt", "", SchemaError, "has 0 parts"),
        ("institute.txt", None, FormatError, "neither institute.npy nor institute.txt"),
        ("paper.npy", np.zeros(60), SchemaError, r"paper.npy is float64\[60\]"),
        ("paper.npy", np.full(60, 1 << 40), IdRangeError, r"\[0\] is 1099511627776"),
    ],
)
def test_bad_owner_files(tmp_path, rng, typed_graph: Graph, name, content, error, message):
    write_owners(tmp_path, typed_graph, ".txt", rng)
    if content is None:
        (tmp_path / name).unlink()
    elif isinstance(content, str):
        (tmp_path / name).write_text(content)
    else:
        np.save(tmp_path / name, content)
    with pytest.raises(error, match=message):
        assign_owners(typed_graph, PartitionSettings(num_parts=3, method="file"), tmp_path)


def test_owners_must_be_given_for_method_file_and_for_no_other(tmp_path, typed_graph: Graph):
    with pytest.raises(SettingsError, match="owners are not given; give owners"):
        assign_owners(typed_graph, PartitionSettings(method="file"))
    with pytest.raises(SettingsError, match="owners are given; leave owners out"):
        assign_owners(typed_graph, PartitionSettings(method="hash"), tmp_path)
    chosen = PartitionSettings(method="file")
    with pytest.raises(SchemaError, match="no node type 'author'"):
        assign_owners(typed_graph, chosen, {"paper": [0] * 60})
    with pytest.raises(UnknownNameError, match="node type 'venue'"):
        assign_owners(typed_graph, chosen, {"venue": [0]})


@pytest.mark.parametrize("make", [np.array, list, torch.tensor], ids=["array", "list", "tensor"])
def test_owners_of_the_only_node_type_need_not_name_it(tmp_path, make):
    owners = [0, 1, 0, 2]
    graph = Graph(nodes={"node": NodeTable(num_nodes=4)})
    wanted = write_parts(graph, tmp_path / "p", owners={"node": owners})
    got = write_parts(graph, tmp_path / "q", owners=make(owners))
    assert got.book.num_parts == 3 and got.dataset_id == wanted.dataset_id
    found = assign_owners(graph, PartitionSettings(num_parts=3, method="file"), make(owners))
    assert found["node"].tolist() == owners
    with pytest.raises(SchemaError, match=r"owners\['node'\] is int64\[3\]; it must be one integer for each of 4"):
        write_parts(graph, tmp_path / "r", owners=make(owners[:3]))


def test_owners_of_several_node_types_are_given_by_type(tmp_path, typed_graph: Graph):
    for owners in (np.zeros(60, np.int64), [0] * 60, 7):
        with pytest.raises(SettingsError, match=r"owners is a (ndarray|list|int); give .* \{'paper': owners\}"):
            write_parts(typed_graph, tmp_path / "p", owners=owners)


def test_a_feature_of_the_only_node_type_balances_without_naming_it():
    graph = Graph(nodes={"node": NodeTable(num_nodes=8, features={"y": np.arange(8) % 2})})
    found = [
        assign_owners(graph, PartitionSettings(num_parts=2, method="random", balance_ntypes=(text,)))["node"].tolist()
        for text in ("y", "node=y")
    ]
    assert found[0] == found[1] and sorted(zip(found[0], np.arange(8) % 2, strict=True)).count((0, 1)) == 2
