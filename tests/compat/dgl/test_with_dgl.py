"""Does DGL itself read what is written here, and is what it writes read here? Skipped where DGL cannot be imported."""

from importlib.util import find_spec

import networkx
import numpy as np
import pytest
import scipy.sparse
import torch

import hopstream
import hopstream.compat.dgl as our_dgl
from hopstream.compat.dgl import distributed as ours
from hopstream.compat.dgl.convert import as_graph
from hopstream.compat.dgl.data import save_tensors
from hopstream.compat.dgl.tools import dispatch_data, random_partition, verify_partitions
from hopstream.compat.dgl.verifying import verify_part_files
from hopstream.ingest.chunked import write_chunked
from tests.compat.dgl.graphs import plain_graph, some_owners, typed_graph

pytestmark = pytest.mark.filterwarnings("ignore")  # DGL leaves files open, and is older than the rest


@pytest.fixture(scope="module")
def dgl():
    if find_spec("dgl") is None:
        pytest.skip("dgl is not installed")
    try:
        return pytest.importorskip("dgl")
    except OSError as error:
        pytest.skip(f"dgl is for another torch ({error})")


def random_dgl_graph(dgl, is_typed):
    rng = np.random.default_rng(2)
    if not is_typed:
        g = dgl.graph(
            (torch.from_numpy(rng.integers(0, 60, 300)), torch.from_numpy(rng.integers(0, 60, 300))), num_nodes=60
        )
        g.ndata["feat"], g.edata["w"] = torch.rand(60, 3), torch.rand(300)
        g.ndata["train_mask"] = torch.arange(60) % 3 == 0
        return g
    sizes = {"user": 50, "item": 40}
    g = dgl.heterograph(
        {
            (s, r, d): (
                torch.from_numpy(rng.integers(0, sizes[s], 400)),
                torch.from_numpy(rng.integers(0, sizes[d], 400)),
            )
            for s, r, d in (("user", "likes", "item"), ("item", "liked", "user"), ("user", "knows", "user"))
        },
        num_nodes_dict=sizes,
    )
    g.nodes["user"].data["age"] = torch.arange(50)
    g.edges["likes"].data["w"] = torch.rand(400)
    return g


@pytest.mark.parametrize("is_typed", [False, True])
@pytest.mark.parametrize("num_hops", [1, 2])
def test_the_parts_are_those_of_dgl(dgl, tmp_path, is_typed, num_hops):
    g = random_dgl_graph(dgl, is_typed)
    nodes, edges = dgl.distributed.partition_graph(
        g, "g", 2, str(tmp_path / "theirs"), num_hops=num_hops, part_method="random", return_mapping=True
    )
    read, owners = ours.read_partitions(tmp_path / "theirs/g.json")  # with new numbers as keys: DGL keeps no others
    assert sum(t.num_edges for t in read.edges.values()) == g.num_edges()
    by_old = {}
    for t, owner in owners.items():
        old = (nodes[t] if is_typed else nodes).numpy()
        by_old[t] = np.empty(len(owner), np.int32)
        by_old[t][old] = owner
    got = ours.partition_graph(g, "g", 2, tmp_path / "ours", num_hops, "file", return_mapping=True, owners=by_old)
    for part in range(2):  # the order of a part's nodes, and of its edges, of one type is DGL's affair
        assert around(dgl, tmp_path / "ours/g.json", part, *got) == around(
            dgl, tmp_path / "theirs/g.json", part, nodes, edges
        )
        theirs = dgl.distributed.load_partition(str(tmp_path / "theirs/g.json"), part)
        mine = dgl.distributed.load_partition(str(tmp_path / "ours/g.json"), part)
        assert mine[4:] == theirs[4:] and mine[3].metadata() == theirs[3].metadata()
        assert {n: t.shape for n, t in mine[1].items()} == {n: t.shape for n, t in theirs[1].items()}
        for mine_of, theirs_of in ((mine[0].ndata, theirs[0].ndata), (mine[0].edata, theirs[0].edata)):
            for name in set(theirs_of) - {"_TYPE"}:  # whose dtype differs between versions of DGL
                assert mine_of[name].dtype == theirs_of[name].dtype
        book = ours.load_partition_book(tmp_path / "ours/g.json", part)[0]
        ids = np.arange(g.num_nodes())
        for found, wanted in zip(
            book.map_to_per_ntype(ids), theirs[3].map_to_per_ntype(torch.from_numpy(ids)), strict=True
        ):
            assert found.tolist() == wanted.tolist()


def test_the_book_has_all_public_names_of_dgl(dgl):
    def public(of):
        return {name for name in dir(of) if not name.startswith("_")}

    assert public(dgl.distributed.graph_partition_book.RangePartitionBook) - public(ours.RangePartitionBook) == {
        "shared_memory"  # nothing is shared between processes here
    }


def test_graphs_of_others_are_numbered_as_dgl_does(dgl):
    """Nodes, edges, and dtypes of data."""
    rng = np.random.default_rng(3)
    named = networkx.relabel_nodes(networkx.gnm_random_graph(20, 60, seed=1), {n: (n * 7) % 20 + 3 for n in range(20)})
    directed = networkx.gnm_random_graph(20, 60, seed=1, directed=True)
    for number, (u, v) in zip(rng.permutation(60).tolist(), directed.edges, strict=True):
        directed.edges[u, v].update(w=number / 2, id=number, a=np.full(2, number))
    for node in directed:
        directed.nodes[node].update(x=node, t=torch.full((2,), node / 2))
    matrix = scipy.sparse.random(9, 9, 0.3, format="csr", rng=rng)
    for make in (
        lambda of: of.from_networkx(named),
        lambda of: of.from_networkx(networkx.karate_club_graph()),
        lambda of: of.from_networkx(networkx.MultiGraph([(0, 1), (0, 1), (1, 0)])),
        lambda of: of.from_networkx(directed, node_attrs=["x", "t"], edge_attrs=["w", "a"]),
        lambda of: of.from_networkx(directed, None, ["w", "a"], "id"),
        lambda of: of.from_scipy(matrix, "w"),
        lambda of: of.from_scipy(matrix.tocoo()),
    ):
        got, want = make(our_dgl), make(dgl)
        assert got.num_nodes() == want.num_nodes()
        assert [e.tolist() for e in got.edges()] == [e.tolist() for e in want.edges(order="eid")]
        for got_of, want_of in ((got.ndata, want.ndata), (got.edata, want.edata)):
            assert set(got_of) == set(want_of)
            for name, tensor in want_of.items():
                assert got_of[name].dtype == tensor.dtype and torch.equal(got_of[name], tensor)
        assert torch.equal(got.in_degrees(), want.in_degrees()) and got.in_degrees(0) == want.in_degrees(0)
        assert torch.equal(got.out_degrees([1, 0]), want.out_degrees([1, 0]))


def around(dgl, path, part, nodes, edges):
    """The nodes and edges of a part and its halo, by their numbers before partitioning; DGL reads the files."""
    graph, _, _, book, *_ = dgl.distributed.load_partition(str(path), part)
    found = []
    for data, name, to_type, old in (
        (graph.ndata, "inner_node", book.map_to_per_ntype, nodes),
        (graph.edata, "inner_edge", book.map_to_per_etype, edges),
    ):
        types, numbers = to_type(data["_ID"])
        olds = list(old.values()) if isinstance(old, dict) else [old]
        found.append(
            sorted(
                (t, int(olds[t][n]), i)
                for t, n, i in zip(types.tolist(), numbers.tolist(), data[name].tolist(), strict=True)
            )
        )
    return found


@pytest.mark.parametrize("graph", [plain_graph(), typed_graph()], ids=["plain", "typed"])
def test_dgl_loads_parts_and_the_result_is_a_graph_of_dgl(dgl, tmp_path, graph):
    ours.partition_graph(graph, "g", 2, tmp_path, part_method="file", owners=some_owners(graph, 2))
    for part in range(2):
        loaded, *_ = ours.load_partition(tmp_path / "g.json", part)
        theirs = dgl.data.utils.load_graphs(str(tmp_path / f"part{part}/graph.dgl"))[0][0]
        assert isinstance(loaded, dgl.DGLGraph) and loaded.num_edges() == theirs.num_edges()
        assert loaded.ndata["orig_id"].tolist() == theirs.ndata["orig_id"].tolist()


def test_dgl_splits_nodes_in_the_same_way(dgl, tmp_path):
    from dgl.distributed import role

    graph = plain_graph()
    ours.partition_graph(graph, "g", 2, tmp_path, part_method="file", owners=some_owners(graph, 2))
    mask = torch.arange(30) % 3 != 0
    before = role.get_num_trainers
    try:
        for num_trainers in (2, 4):
            role.get_num_trainers = lambda num_trainers=num_trainers: num_trainers
            for rank in range(num_trainers):
                part = rank // (num_trainers // 2)
                theirs = dgl.distributed.load_partition_book(str(tmp_path / "g.json"), part)[0]
                book = ours.load_partition_book(tmp_path / "g.json", part)[0]
                for options in ({}, {"force_even": False}, {"node_trainer_ids": torch.arange(30) % num_trainers}):
                    want = dgl.distributed.node_split(mask, theirs, rank=rank, **options)
                    got = ours.node_split(mask, book, rank=rank, num_trainers=num_trainers, **options)
                    assert got.tolist() == want.tolist()
    finally:
        role.get_num_trainers = before


def test_dgl_loads_what_dispatch_data_leaves(dgl, tmp_path):
    graph = random_typed_graph()
    write_chunked(graph, tmp_path / "chunks", name="mag")
    given = f"--in_dir {tmp_path}/chunks --out_dir {tmp_path}/owners --num_partitions 2"
    assert random_partition.main(given.split()) == 0
    given = f"--in-dir {tmp_path}/chunks --partitions-dir {tmp_path}/owners --out-dir {tmp_path}/parts --workers 0"
    assert dispatch_data.main(given.split()) == 0
    num_inner = 0
    for part in range(2):
        g, node_feats, edge_feats, book, name, ntypes, etypes = dgl.distributed.load_partition(
            str(tmp_path / "parts/metadata.json"), part
        )
        assert (name, ntypes, etypes) == ("mag", list(graph.nodes), list(graph.edges))
        is_inner, is_inner_edge = g.ndata["inner_node"].bool(), g.edata["inner_edge"].bool()
        num_inner += int(is_inner_edge.sum())
        types, _ = book.map_to_per_ntype(g.ndata["_ID"])
        age_keys = g.ndata["orig_id"][is_inner & (types == ntypes.index("user"))]
        assert np.array_equal(node_feats["user/age"], graph.nodes["user"].features["age"][age_keys])
        assert node_feats["user/train_mask"].bool().tolist() == (age_keys % 3 == 0).tolist()
        edge_types, _ = book.map_to_per_etype(g.edata["_ID"])
        src, dst = (g.ndata["orig_id"][end] for end in g.edges())
        for row, etype in enumerate(etypes):
            keys = g.edata["orig_id"][edge_types == row]
            assert np.array_equal(src[edge_types == row], graph.edges[etype].src_keys[keys])
            assert np.array_equal(dst[edge_types == row], graph.edges[etype].dst_keys[keys])
        keys = g.edata["orig_id"][is_inner_edge & (edge_types == etypes.index(("user", "likes", "item")))]
        likes = graph.edges["user", "likes", "item"].features["w"]
        assert np.array_equal(edge_feats["user:likes:item/w"], likes[keys])
    assert num_inner == sum(table.num_edges for table in graph.edges.values())
    given = f"--orig-dataset-dir {tmp_path}/chunks --part-graph-dir {tmp_path}/parts --partitions-dir {tmp_path}/owners"
    assert verify_partitions.main(given.split()) == 0


@pytest.mark.parametrize("is_typed", [False, True])
def test_parts_that_dgl_wrote_are_verified(dgl, tmp_path, is_typed):
    g = random_dgl_graph(dgl, is_typed)
    maps = dgl.distributed.partition_graph(
        g, "g", 2, str(tmp_path / "parts"), part_method="random", return_mapping=True
    )
    nodes, edges = ({"_N": maps[0]}, {("_N", "_E", "_N"): maps[1]}) if not is_typed else maps
    graph = as_graph(g)
    (tmp_path / "owners").mkdir()
    _, by_number = ours.read_partitions(tmp_path / "parts/g.json")
    for ntype, owner in by_number.items():
        by_key = np.empty_like(owner)
        by_key[nodes.get(ntype, nodes.get("_N")).numpy()] = owner
        np.save(tmp_path / f"owners/{ntype}.npy", by_key)
    paths = {"against": graph, "owners": tmp_path / "owners"}
    report = verify_part_files(tmp_path / "parts/g.json", **paths)
    assert report.is_ok and "nobody knows the keys" in report.checks["nodes"].skipped[0]
    book = ours.load_partition_book(tmp_path / "parts/g.json", 0)[0]
    for part in range(2):  # as DGL's scripts write them
        save_tensors(
            str(tmp_path / f"parts/part{part}/orig_nids.dgl"),
            {t: old[book.partid2nids(part, t)] for t, old in nodes.items()},
        )
        save_tensors(
            str(tmp_path / f"parts/part{part}/orig_eids.dgl"),
            {":".join(t): old[book.partid2eids(part, t)] for t, old in edges.items()},
        )
    report = verify_part_files(tmp_path / "parts/g.json", **paths)
    assert report.is_ok, "\n".join(map(str, report.findings))
    assert report.checks["nodes"].num_checked == g.num_nodes()
    assert report.checks["ownership"].num_checked == g.num_edges()
    assert report.checks["features"].num_checked == (450 if is_typed else 360)


def test_relations_of_untyped_nodes_have_the_names_that_dgl_gives(dgl, tmp_path):
    ends = (torch.arange(4), torch.arange(1, 5))
    g = dgl.heterograph({("_N", "likes", "_N"): ends, ("_N", "_E", "_N"): ends}, num_nodes_dict={"_N": 6})
    g.ndata["feat"], g.ndata["train_mask"] = torch.rand(6, 2), torch.arange(6) % 2
    ours.partition_graph(g, "g", 2, tmp_path / "ours", part_method="random")
    dgl.distributed.partition_graph(g, "g", 2, str(tmp_path / "theirs"), part_method="random")
    both = [dgl.distributed.load_partition(str(tmp_path / f"{whose}/g.json"), 0) for whose in ("ours", "theirs")]
    assert set(both[0][1]) == set(both[1][1]) == {"_N/feat", "_N/train_mask"} and both[0][5:] == both[1][5:]
    for whose in ("ours", "theirs"):
        read = ours.read_partitions(tmp_path / f"{whose}/g.json")[0]
        assert set(read.edges) == {("_N", "likes", "_N"), ("_N", "_E", "_N")} and len(read.splits["_N"]["train"]) == 3


def random_typed_graph():
    rng = np.random.default_rng(4)
    return hopstream.graph_from_arrays(
        {
            ("user", "likes", "item"): np.stack([rng.integers(0, 50, 300), rng.integers(0, 40, 300)]),
            ("user", "knows", "user"): rng.integers(0, 50, (2, 200)),
        },
        num_nodes={"user": 50, "item": 40},
        node_features={"user": {"age": np.arange(50)}, "item": {"x": rng.random((40, 3), np.float32)}},
        edge_features={("user", "likes", "item"): {"w": rng.random(300)}},
        splits={"user": {"train": np.arange(0, 50, 3)}},
    )
