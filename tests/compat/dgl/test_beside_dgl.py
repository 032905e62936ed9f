"""Checks that DGL itself reads Hopstream's files and that Hopstream reads DGL's.

Run with ``--dgl-python``: see "Beside the real libraries" in CONTRIBUTING.md.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest
import scipy.sparse
import torch

import hopstream
import hopstream.compat.dgl as our_dgl
from hopstream.compat.dgl import data, distributed
from hopstream.compat.dgl import distributed as ours
from hopstream.graph.graph import Graph
from tests.compat.dgl.graphs import plain_graph, some_owners, typed_graph

SCRIPT = Path(__file__).with_name("real_dgl.py")
TIMEOUT_S = 110
CORA = Path(__file__).parents[3] / "examples/data/cora.npz"
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
    if types == "plain":
        nids, eids = theirs["nodes"]["_N"], theirs["edges"]["_N:_E:_N"]
    else:
        nids, eids = theirs["nodes"], {tuple(text.split(":")): of for text, of in theirs["edges"].items()}
    graph, _ = ours.read_partitions(tmp_path / "g.json", orig_nids=nids, orig_eids=eids)
    for table in graph.nodes.values():
        assert table.features["feat"].tolist() == list(range(table.num_nodes))
    for text, ends in theirs["ends"].items():
        edges = graph.edges[names.get(text, tuple(text.split(":")))]
        assert [edges.src_keys.tolist(), edges.dst_keys.tolist()] == ends


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


STORED = {"store_eids": True, "store_inner_node": True, "store_inner_edge": True}


@GRAPHS
def test_dgl_loads_and_samples_our_graphbolt_files(run_dgl: Callable[..., Any], tmp_path: Path, graph: Graph):
    given: dict[str, Any] = {"part_method": "file", "owners": some_owners(graph, 2)}
    ours.partition_graph(graph, "g", 2, tmp_path, **given, use_graphbolt=True, store_eids=True)
    sampled = set()
    for part in (0, 1):
        loaded = ours.load_partition(tmp_path / "g.json", part)[0]
        is_own = loaded.edata["inner_edge"].bool()
        src, dst = (loaded.ndata["_ID"][end][is_own].tolist() for end in loaded.edges())
        known = dict(zip(loaded.edata["_ID"][is_own].tolist(), zip(src, dst, strict=True), strict=True))
        for fanout in (-1, 2):
            theirs = run_dgl("sample_graphbolt", tmp_path / "g.json", part, json.dumps([fanout] * len(graph.edges)))
            drawn = dict(zip(theirs["eids"], zip(*theirs["ends"], strict=True), strict=True))
            assert drawn.items() <= known.items() and len(drawn) == len(theirs["eids"])
            assert fanout == 2 or drawn.keys() == known.keys()
            sampled.add((part, fanout, len(drawn)))
    assert len({count for *_, count in sampled}) == 4  # a fan-out of 2 leaves edges out


@GRAPHS
def test_graphbolt_files_equal_those_that_dgl_converts(run_dgl: Callable[..., Any], tmp_path: Path, graph: Graph):
    given: dict[str, Any] = {"num_parts": 2, "part_method": "file", "owners": some_owners(graph, 2)}
    for folder in ("ours", "theirs", "converted"):
        options = {"use_graphbolt": True, **STORED} if folder == "ours" else {}
        ours.partition_graph(graph, "g", out_path=tmp_path / folder, **given, **options)
    run_dgl("to_graphbolt", tmp_path / "theirs/g.json", json.dumps(STORED))
    ours.dgl_partition_to_graphbolt(tmp_path / "converted/g.json", **STORED)
    said = [json.loads((tmp_path / folder / "g.json").read_text()) for folder in ("ours", "theirs", "converted")]
    assert said[0] == said[1] == said[2]
    for part in (0, 1):
        mine, theirs = (run_dgl("graphbolt", tmp_path / folder / "g.json", part) for folder in ("ours", "theirs"))
        assert _by_node(mine) == _by_node(theirs) and len(mine["tensors"]["indices"]) > 20
        file = f"part{part}/fused_csc_sampling_graph.pt"
        assert (tmp_path / "ours" / file).read_bytes() == (tmp_path / "converted" / file).read_bytes()


def _by_node(graph: dict[str, Any]) -> dict[str, Any]:
    """A graph with the edges of each node sorted; DGL keeps edges of one node and type in any order."""
    tensors = dict(graph["tensors"])
    indptr, of_edges = tensors.pop("indptr"), [name for name in ("types", "indices") if name in tensors]
    of_edges += [name for name in tensors if name.startswith("edge ")]
    rows = list(zip(*(tensors.pop(name) for name in of_edges), strict=True))
    edges = [sorted(rows[first:stop]) for first, stop in pairwise(indptr)]
    return {**graph, "tensors": tensors, "edges": edges, "names": of_edges}


@pytest.mark.parametrize("graph", [plain_graph(), typed_graph()], ids=["plain", "typed"])
def test_dgl_serves_our_graphbolt_files_and_trains_on_them(
    run_dgl: Callable[..., Any], tmp_path: Path, graph: Graph
):  # fmt: skip
    ours.partition_graph(graph, "g", 1, tmp_path, part_method="random", use_graphbolt=True, store_eids=True)
    theirs = run_dgl("train_graphbolt", tmp_path / "g.json", tmp_path)
    assert theirs["uses_graphbolt"]
    names = {("node", "to", "node"): "_N:_E:_N"}
    wanted = {names.get(t, ":".join(t)): len(table.src_keys) for t, table in graph.edges.items()}
    assert {t: theirs["counts"].get(t, 0) for t in wanted} == wanted


@GRAPHS
def test_dgl_makes_blocks_of_our_arrays(run_dgl: Callable[..., Any], tmp_path: Path, graph: Graph):
    """DGL sums along the edges of its blocks what a loop over the edges of the batch sums."""
    hopstream.write_parts(graph, tmp_path / "data", num_parts=2, method="hash")
    seeds = (list(graph.nodes)[-1 if len(graph.nodes) == 1 else 1], None)
    with hopstream.NeighborLoader(tmp_path / "data", [3, 2], seeds, batch_size=6, collate="numpy") as loader:
        batch = next(iter(loader))
    arrays = our_dgl.block_arrays(batch)
    h = {t: keys[:, None] * np.array([1.0, 0.5]) for t, keys in batch.node_keys.items()}
    saved: dict[str, Any] = {f"x/{t}": x for t, x in h.items()}
    for number, block in enumerate(arrays):
        saved |= {f"{number}/{':'.join(t)}": np.stack(ends) for t, ends in block.edges.items()}
        into = {t: np.zeros((size, 2)) for t, size in block.num_dst_nodes.items()}
        for t, (src, dst) in block.edges.items():
            np.add.at(into[t[2]], dst, h[t[0]][src])
        h = into
    np.savez(tmp_path / "blocks.npz", **saved)
    sizes = json.dumps([(block.num_src_nodes, block.num_dst_nodes) for block in arrays])
    theirs = run_dgl("blocks", tmp_path / "blocks.npz", sizes)
    assert theirs["num_dst"] == [block.num_dst_nodes for block in arrays]
    assert theirs["sums"] == {t: sums.tolist() for t, sums in h.items()} and any(map(np.any, h.values()))


MOVED = Path(__file__).parents[3] / "examples/moved/dgl"


def _accuracy(printed: str) -> float:
    (found,) = re.findall(r"test accuracy (0\.\d+) of 1000 nodes", printed)
    return float(found)


@pytest.mark.slow
def test_the_moved_script_learns_as_the_one_of_dgl(request: pytest.FixtureRequest, tmp_path: Path):
    graph = hopstream.read_graph(CORA)
    hopstream.write_parts(graph, tmp_path / "data", num_parts=4)
    ours.partition_graph(graph, "cora", 1, tmp_path / "parts", part_method="random")
    given: list[tuple[list[str], dict[str, str]]] = [
        ([sys.executable, str(MOVED / "after.py"), str(tmp_path / "data")], {})
    ]
    python = request.config.getoption("--dgl-python")
    if python is not None:
        words = [python, "-W", "ignore", str(MOVED / "before.py"), str(tmp_path / "parts/cora.json")]
        given.append((words, {"DGLBACKEND": "pytorch", "DGL_DIST_MODE": "standalone"}))
    for words, names in given:
        environment = {**os.environ, **names, "OMP_NUM_THREADS": "1"}
        if names:
            environment.pop("PYTHONPATH", None)
        done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment)
        assert done.returncode == 0, done.stderr
        assert 0.75 < _accuracy(done.stdout) < 0.85


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
        AttributeError, match=r"dgl.distributed.DistEmbedding is not available; available: .*partition_graph"
    ):
        _ = ours.DistEmbedding
    with pytest.raises(ValueError, match="return_dgl_ndarray is given"):
        our_dgl.data.load_tensors("x.dgl", return_dgl_ndarray=True)
