"""Checks that DGL itself reads Hopstream's files and that Hopstream reads DGL's.

Run with ``--dgl-python``: see "Beside the real libraries" in CONTRIBUTING.md.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest
import scipy.sparse
import torch

import hopstream.compat.dgl as our_dgl
from hopstream.compat.dgl import data, distributed
from hopstream.compat.dgl import distributed as ours
from hopstream.graph.graph import Graph
from tests.compat.dgl.graphs import plain_graph, some_owners, typed_graph

SCRIPT = Path(__file__).with_name("real_dgl.py")
TIMEOUT_S = 110
NOT_HERE = {"book.shared_memory"}
GRAPHS = pytest.mark.parametrize("graph", [plain_graph(), typed_graph()], ids=["plain", "typed"])


@pytest.fixture
def run_dgl(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Run a verb of ``real_dgl.py``; return its answer."""
    python = request.config.getoption("--dgl-python")
    if python is None:
        pytest.skip("give --dgl-python, an interpreter that imports dgl")

    def run(*words: object) -> Any:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(
            [python, "-W", "ignore", SCRIPT, *map(str, words)], capture_output=True, text=True, timeout=TIMEOUT_S,
            env=environment,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


def ours_called(name: str) -> Any:
    module, _, member = name.partition(".")
    of = {"": our_dgl, "data": data, "distributed": distributed, "book": distributed.RangePartitionBook}[module]
    return getattr(of, member)


def test_signatures_are_those_of_dgl(run_dgl: Callable[..., Any]):
    """Names, order and defaults agree; ours may add arguments that are passed by name only."""
    for name, theirs in run_dgl("signatures").items():
        if name in NOT_HERE:
            continue
        mine = [
            [p.name, p.kind.name, repr(p.default)] for p in inspect.signature(ours_called(name)).parameters.values()
        ]
        wanted = [one for one in theirs if one[1] != "VAR_KEYWORD"]
        assert mine[: len(wanted)] == wanted, name
        assert all(kind == "KEYWORD_ONLY" for _, kind, _ in mine[len(wanted) :]), name


@GRAPHS
@pytest.mark.parametrize("part", [0, 1])
def test_dgl_loads_our_parts_as_we_do(run_dgl: Callable[..., Any], tmp_path: Path, graph: Graph, part: int):
    ours.partition_graph(graph, "g", 2, tmp_path, part_method="file", owners=some_owners(graph, 2))
    theirs = run_dgl("load", tmp_path / "g.json", part)
    loaded, node_feats, edge_feats, book, name, ntypes, etypes = ours.load_partition(tmp_path / "g.json", part)
    assert theirs["ends"] == [of.tolist() for of in loaded.edges()]
    for got, want in (
        (loaded.ndata, theirs["ndata"]), (loaded.edata, theirs["edata"]), (node_feats, theirs["node_feats"]),
        (edge_feats, theirs["edge_feats"]),
    ):  # fmt: skip
        assert {name: tensor.tolist() for name, tensor in got.items()} == want
    assert (name, ntypes, [list(t) for t in etypes]) == (theirs["name"], theirs["ntypes"], theirs["etypes"])
    assert book.metadata() == theirs["metadata"]
    assert [of.tolist() for of in book.map_to_per_ntype(loaded.ndata["_ID"])] == theirs["per_ntype"]
    assert book.nid2partid(loaded.ndata["_ID"]).tolist() == theirs["parts"]


@pytest.mark.parametrize("num_hops", [1, 2])
@pytest.mark.parametrize("types", ["plain", "typed"])
def test_partitions_made_by_dgl_are_read(run_dgl: Callable[..., Any], tmp_path: Path, types: str, num_hops: int):
    theirs = run_dgl("partition", tmp_path, types, num_hops)
    graph, owners = ours.read_partitions(tmp_path / "g.json")  # with new numbers as keys: DGL keeps no others
    names = {"_N": "node", "_N:_E:_N": ("node", "to", "node")} if types == "plain" else {}
    old = {names.get(t, t): np.array(numbers) for t, numbers in theirs["nodes"].items()}
    for ntype, table in graph.nodes.items():
        assert sorted(old[ntype].tolist()) == list(range(table.num_nodes)) and set(owners[ntype]) == {0, 1}
        assert np.array_equal(table.features["feat"], old[ntype])
    for text, (src, dst) in theirs["ends"].items():
        etype = names.get(text, tuple(text.split(":")))
        table, of_new = graph.edges[etype], theirs["edges"][text]
        assert old[etype[0]][table.src_keys].tolist() == np.array(src)[of_new].tolist()
        assert old[etype[2]][table.dst_keys].tolist() == np.array(dst)[of_new].tolist()


@pytest.mark.parametrize("options", [{}, {"force_even": False}, {"node_trainer_ids": [n % 4 for n in range(30)]}])
def test_dgl_splits_nodes_in_the_same_way(run_dgl: Callable[..., Any], tmp_path: Path, options: dict[str, Any]):
    graph = plain_graph()
    ours.partition_graph(graph, "g", 2, tmp_path, part_method="file", owners=some_owners(graph, 2))
    mask = [n % 3 != 0 for n in range(30)]
    book = ours.load_partition_book(tmp_path / "g.json", 1)[0]
    theirs = run_dgl("split", tmp_path / "g.json", 1, json.dumps(mask), 4, 3, json.dumps(options))
    given = {name: torch.tensor(value) if isinstance(value, list) else value for name, value in options.items()}
    assert ours.node_split(torch.tensor(mask), book, rank=3, num_trainers=4, **given).tolist() == theirs


def test_a_trainer_of_dgl_opens_our_parts(run_dgl: Callable[..., Any], tmp_path: Path):
    graph = typed_graph()
    ours.partition_graph(graph, "g", 1, tmp_path, part_method="random")
    theirs = run_dgl("train_graph", tmp_path / "g.json")
    assert sorted(map(tuple, theirs["x"])) == sorted(map(tuple, graph.nodes["a"].features["x"].tolist()))
    assert theirs["ntypes"] == list(graph.nodes) and theirs["num_in_edges"] == 40


@pytest.mark.parametrize("name", ["use_graphbolt", "store_eids", "store_inner_node", "store_inner_edge"])
def test_options_of_graphbolt_are_refused(tmp_path: Path, name: str):
    ours.partition_graph(plain_graph(), "g", 1, tmp_path / "p", part_method="random", **{name: False})
    with pytest.raises(ValueError, match=f"{name} is given; GraphBolt's files are not written: leave it out"):
        ours.partition_graph(plain_graph(), "g", 1, tmp_path / "q", part_method="random", **{name: True})
    with pytest.raises(ValueError, match="GraphBolt's files are not written: load_partition reads"):
        ours.dgl_partition_to_graphbolt(tmp_path / "p/g.json", store_eids=True)


@pytest.mark.parametrize(
    "make",
    [
        lambda **given: our_dgl.graph(([0], [1]), **given),
        lambda **given: our_dgl.heterograph({("a", "to", "a"): ([0], [1])}, **given),
        lambda **given: our_dgl.from_networkx(networkx.path_graph(2), **given),
        lambda **given: our_dgl.from_scipy(scipy.sparse.eye(2).tocsr(), **given),
    ],
    ids=["graph", "heterograph", "from_networkx", "from_scipy"],
)
def test_ids_are_int64_in_main_memory(make: Callable[..., Any]):
    assert make(idtype=torch.int64, device=torch.device("cpu")).num_nodes() == 2
    for given, message in (
        ({"idtype": torch.int32}, "idtype is torch.int32"),
        ({"device": "cuda:0"}, "device is cuda:0"),
    ):
        with pytest.raises(ValueError, match=f"{message}; numbers are .* here: leave it out"):
            make(**given)


def test_error_lists_available_names():
    with pytest.raises(
        AttributeError, match=r"dgl.distributed.DistGraph is not available; available: .*partition_graph"
    ):
        _ = ours.DistGraph
    with pytest.raises(ValueError, match="return_dgl_ndarray is given"):
        our_dgl.data.load_tensors("x.dgl", return_dgl_ndarray=True)
