"""What DGL's page on data preprocessing shows of its Python API runs with the import changed.

The first tests say its examples in our words. The last ones take the page's own blocks, where the page is there.
"""

import re
from pathlib import Path

import numpy as np
import pytest
import torch as th

import hopstream.compat.dgl as dgl
from hopstream.compat.dgl.distributed import read_partitions
from tests.compat.dgl.graphs import plain_graph

PAGES = list((Path(__file__).parents[3].parent / "shared" / "seeds").glob("002_*.txt"))
needs_page = pytest.mark.skipif(not PAGES, reason="the page is not part of the project")


def made(num_nodes=40):
    graph = plain_graph(num_nodes, 200)
    table = graph.edges["node", "to", "node"]
    g = dgl.graph((table.src_keys, table.dst_keys), num_nodes=num_nodes)
    g.ndata["feat"] = th.from_numpy(graph.nodes["node"].features["feat"])
    g.ndata["train_mask"] = th.arange(num_nodes) % 4 == 0
    return g


def test_files_are_where_the_page_says(tmp_path):
    dgl.distributed.partition_graph(made(), "mygraph", 2, tmp_path / "data_root_dir")
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert found == ["data_root_dir/mygraph.json"] + [
        f"data_root_dir/part{part}/{name}.dgl" for part in (0, 1) for name in ("edge_feat", "graph", "node_feat")
    ]  # the page has node_feats.dgl; DGL writes node_feat.dgl, and the JSON file says so


def test_a_part_is_loaded_for_inspection(tmp_path):
    g = made()
    node_map, edge_map = dgl.distributed.partition_graph(
        g, "graph_name", 4, tmp_path, balance_ntypes=g.ndata["train_mask"], return_mapping=True
    )
    assert sorted(node_map.tolist()) == list(range(40)) and sorted(edge_map.tolist()) == list(range(200))
    _, owners = read_partitions(tmp_path / "graph_name.json")
    assert np.bincount(owners["node"][::4], minlength=4).max() <= 3  # of ten nodes to train on
    g, nfeat, efeat, book, name, ntypes, etypes = dgl.distributed.load_partition(tmp_path / "graph_name.json", 0)
    assert name == "graph_name" and ntypes == ["_N"] and etypes == [("_N", "_E", "_N")] and not efeat
    assert len(nfeat["_N/feat"]) == int(g.ndata["inner_node"].sum()) == len(book.partid2nids(0))
    assert repr(g).startswith(f"Graph(num_nodes={g.num_nodes()}, num_edges={g.num_edges()},\n      ndata_schemes={{")


def test_original_ids_are_read_by_type(tmp_path):
    dgl.data.save_tensors(tmp_path / "orig_nids.dgl", {"user": th.tensor([4, 2, 9]), "item": np.array([], np.int64)})
    found = dgl.data.load_tensors(tmp_path / "orig_nids.dgl")
    assert found["user"].tolist() == [4, 2, 9] and not len(found["item"])


def blocks():
    """The page's blocks of Python that name DGL's API, without prompts and what is printed."""
    page = PAGES[0].read_text()
    found = re.findall(r"^\.\. code(?:-block)?:: python\n\n((?:(?:[ ]+.*)?\n)+)", page, re.M)
    texts = []
    for block in found:
        lines = [line for line in block.splitlines() if line.strip()]
        if any(line.lstrip().startswith(">>>") for line in lines):
            lines = [line.replace(">>> ", "") for line in lines if line.lstrip().startswith(">>>")]
        indent = min(len(line) - len(line.lstrip()) for line in lines)
        texts.append("\n".join(line[indent:] for line in lines))
    return [text for text in texts if "dgl" in text]


@needs_page
def test_the_code_of_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    found = blocks()
    assert len(found) == 5
    names = {"th": th, "dgl": dgl, "g": made(), "node_emb": th.rand(40, 3)}
    for text in found[:3]:
        changed = text.replace("import dgl", "import hopstream.compat.dgl as dgl").replace("g = ...", "g = g")
        exec(changed.replace("/tmp/test", str(tmp_path / "test")), names)
    assert (tmp_path / "data_root_dir/mygraph.json").is_file()
    assert th.equal(names["orig_node_emb"][names["node_map"]], names["node_emb"])
    dgl.distributed.partition_graph(names["g"], "graph_name", 2, tmp_path / "data_root_dir/named")
    loading = (
        found[3]
        .replace("import dgl", "import hopstream.compat.dgl as dgl")
        .replace("data_root_dir/", "data_root_dir/named/")
    )
    exec(loading, names)
    assert names["ntypes"] == ["_N"] and "'inner_node': Scheme(shape=()" in capsys.readouterr().out
    for name, of in (("orig_nids", "user"), ("orig_eids", "like")):
        dgl.data.save_tensors(tmp_path / f"{name}.dgl", {of: th.tensor([3, 1])})
    last = found[4].replace("/path/to/data/part0", str(tmp_path)).replace("orig_nids_0['like']", "orig_eids_0['like']")
    exec(last, names)  # the page looks an edge type up among nodes, which is a slip of the pen
    assert names["user_orig_nids_0"].tolist() == names["like_orig_eids_0"].tolist() == [3, 1]


@needs_page
def test_every_name_of_the_page_is_there():
    names = set(re.findall(r"`~?dgl\.(distributed\.\w+|data\.\w+)", PAGES[0].read_text())) - {"distributed.DistGraph"}
    assert {"distributed.partition_graph", "data.load_tensors"} < names
    for name in names:
        module, _, member = name.partition(".")
        assert hasattr(getattr(dgl, module), member)
