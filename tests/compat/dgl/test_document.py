"""Checks that the Python API on DGL's page on data preprocessing runs with the import changed.

The tests take the page's own blocks, where the page is there.
"""

import re
from pathlib import Path

import pytest
import torch as th

import hopstream.compat.dgl as dgl
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


def blocks():
    """The page's blocks of Python that name DGL's API, without prompts and printed output."""
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
def test_every_name_of_the_page_is_available():
    names = set(re.findall(r"`~?dgl\.(distributed\.\w+|data\.\w+)", PAGES[0].read_text())) - {"distributed.DistGraph"}
    assert {"distributed.partition_graph", "data.load_tensors"} < names
    for name in names:
        module, _, member = name.partition(".")
        assert hasattr(getattr(dgl, module), member)
