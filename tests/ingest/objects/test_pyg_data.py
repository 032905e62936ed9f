"""Checks that each attribute of a PyG data object ends where PyG would look for it."""

import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch

from hopstream.errors import IdRangeError, SchemaError
from hopstream.ingest.from_arrays import graph_from_arrays
from hopstream.ingest.objects.pyg_data import graph_from_data
from hopstream.schema import EDGE, NODE

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch_geometric import EdgeIndex
    from torch_geometric.data import Data, HeteroData, TemporalData
    from torch_geometric.data.hypergraph_data import HyperGraphData

WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")


def edge_index(*pairs):
    return torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).t().contiguous()


def small_data(**attributes):
    return Data(edge_index=edge_index((0, 1), (1, 2), (2, 0), (2, 2), (1, 1)), x=torch.ones(4, 3), **attributes)


def features(graph):
    return set(graph.nodes[NODE].features), set(graph.edges[EDGE].features)


def test_attributes_of_data_become_features_and_splits():
    data = small_data(
        y=torch.tensor([0, 1, 0, 1]),
        name_of=["a", "b", "c", "d"],
        edge_attr=torch.rand(5, 2),
        edge_time=np.arange(5),
        time=torch.arange(5),
        seen=torch.tensor([True, False, True, False]),
        train_mask=torch.tensor([True, False, False, True]),
        val_mask=torch.tensor([False, True, False, False]),
        test_mask=torch.tensor([False, False, True, False]),
    )
    graph = graph_from_data(data)
    assert graph.schema.is_homogeneous
    assert features(graph) == ({"x", "y", "name_of", "seen"}, {"edge_attr", "edge_time", "time"})
    assert graph.nodes[NODE].features["x"].ctypes.data == data.x.data_ptr()
    assert list(graph.nodes[NODE].features["name_of"]) == ["a", "b", "c", "d"]
    assert {n: k.tolist() for n, k in graph.splits[NODE].items()} == {"train": [0, 3], "val": [1], "test": [2]}
    assert np.array_equal(graph.edges[EDGE].src_keys, data.edge_index[0])
    assert np.array_equal(graph.edges[EDGE].dst_keys, data.edge_index[1])


def test_attributes_split_as_pyg_splits_them():
    data = small_data(
        y=torch.zeros(4), time=torch.zeros(5), edge_weight=torch.zeros(5), u=torch.zeros(1, 7), note=[1, 2, 3, 4]
    )
    graph = graph_from_data(data)
    assert features(graph) == (set(data.node_attrs()), set(data.edge_attrs()) - {"edge_index"})


def test_equal_node_and_edge_counts_are_resolved_by_name():
    data = Data(edge_index=edge_index((0, 1), (1, 0)), x=torch.ones(2, 1), a=torch.ones(2), edge_a=torch.ones(2))
    assert features(graph_from_data(data)) == ({"x", "a"}, {"edge_a"})
    assert set(data.node_attrs()) == {"x", "a"}


def test_graph_level_attributes_are_left_out():
    data = small_data(
        name="cora", scalar=torch.tensor(3.0), u=torch.zeros(1, 7), info={"a": 1}, classes=["x", "y"], y=torch.ones(1)
    )
    data.edge_label_index = edge_index((0, 1))
    data.edge_label = torch.ones(4)
    data.face = torch.zeros(3, 4, dtype=torch.int64)
    data.h_index = torch.arange(4)
    assert features(graph_from_data(data)) == ({"x", "h_index"}, set())


def test_nodes_are_counted_without_x():
    edges = edge_index((0, 1), (1, 2))
    cases = {
        3: Data(edge_index=edges),
        9: Data(edge_index=edges, num_nodes=9, y=torch.ones(9)),
        4: Data(edge_index=edges, pos=torch.ones(4, 2)),
        5: Data(edge_index=edges, node_age=torch.ones(5)),
        6: Data(edge_index=edges, train_mask=torch.ones(6, dtype=torch.bool)),
        7: Data(edge_index=EdgeIndex(edges, sparse_size=(7, 7))),
        8: Data(edge_index=edge_index(), x=torch.ones(8, 1)),
    }
    for num_nodes, data in cases.items():
        assert graph_from_data(data).nodes[NODE].num_nodes == num_nodes


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (Data(edge_index=edge_index((0, 1)), y=torch.ones(9)), SchemaError, "y has 9 rows; edge_index has 2 nodes"),
        (
            small_data(edge_attr=torch.ones(4, 2)),
            SchemaError,
            "edge_attr has 4 rows; the graph has 4 nodes and 5 edges",
        ),
        (small_data(pos=torch.ones(5, 2)), SchemaError, "pos has 5 rows"),
        (small_data(y=torch.ones(3)), SchemaError, "y has 3 rows"),
        (small_data(train_mask=torch.ones(3, dtype=torch.bool)), SchemaError, "train_mask has 3 rows"),
        (small_data(train_mask=torch.ones(4, 10, dtype=torch.bool)), SchemaError, "choose one of its columns"),
        (small_data(train_mask=torch.ones(4)), SchemaError, "convert it to bool"),
        (small_data(val=torch.ones(4, dtype=torch.bfloat16)), SchemaError, "node.val is a tensor that numpy cannot"),
        (small_data(odd=[{}, {}, {}, {}]), SchemaError, "not a number"),
        (small_data(adj_t=torch.eye(4).to_sparse()), SchemaError, "the sparse matrix adj_t; convert it to edge_index"),
        (small_data(pos=torch.eye(4).to_sparse()), SchemaError, "node.pos is a tensor that numpy cannot hold"),
        (Data(x="text", edge_index=edge_index((0, 1))), SchemaError, "x is str"),
        (Data(edge_index=edge_index((0, 7)), x=torch.ones(3, 1)), IdRangeError, r"dst_keys\[0\] is 7"),
        (Data(edge_index=torch.ones(2, 3), x=torch.ones(3, 1)), SchemaError, "keys are integers"),
        (Data(edge_index=edge_index((0, 1)).t(), x=torch.ones(2, 1), num_nodes="two"), SchemaError, "num_nodes"),
        (TemporalData(src=torch.ones(1), dst=torch.ones(1)), SchemaError, "TemporalData is neither"),
        (HyperGraphData(edge_index=edge_index((0, 1))), SchemaError, "HyperGraphData is neither"),
        ({"x": 1}, SchemaError, "dict is neither"),
        (Data(), SchemaError, r"the graph has no edge_index, integers \[2, num_edges\]; it has nothing"),
        (Data(x=torch.ones(3, 1), edge_idx=edge_index((0, 1))), SchemaError, "no edge_index, .* it has edge_idx, x;"),
        (HeteroData(), SchemaError, "HeteroData has no edge type with an edge_index; it has nothing"),
        (HeteroData(paper={"x": torch.ones(3, 1)}), SchemaError, "no edge type with an edge_index; it has 'paper'"),
    ],
)
def test_data_that_is_no_graph_is_refused(data, error, message):
    with pytest.raises(error, match=message):
        graph_from_data(data)


def small_hetero():
    data = HeteroData()
    data["paper"].x = torch.ones(3, 2)
    data["paper"].title = ["a", "b", "c"]
    data["paper"].train_mask = torch.tensor([True, False, True])
    data["paper"].classes = ["theory", "practice"]
    data["author"].num_nodes = 2
    data["venue"].rank = torch.arange(4)
    data[WRITES].edge_index = edge_index((0, 2), (1, 0))
    data[WRITES].edge_attr = torch.ones(2, 1)
    data[WRITES].train_mask = torch.tensor([True, False])
    data[CITES].edge_index = edge_index()
    data["paper", "on", "topic"].edge_index = edge_index((0, 5))
    data.note = "about the graph"
    return data


def test_attributes_of_hetero_data_become_features_by_type():
    graph = graph_from_data(small_hetero())
    assert {t: table.num_nodes for t, table in graph.nodes.items()} == {"paper": 3, "author": 2, "venue": 4, "topic": 6}
    assert {t: set(table.features) for t, table in graph.nodes.items()} == {
        "paper": {"x", "title"},
        "author": set(),
        "venue": {"rank"},
        "topic": set(),
    }
    assert {t: table.num_edges for t, table in graph.edges.items()} == {
        WRITES: 2,
        CITES: 0,
        ("paper", "on", "topic"): 1,
    }
    assert set(graph.edges[WRITES].features) == {"edge_attr"}
    assert "train" in graph.edge_splits[WRITES]
    assert graph.splits["paper"]["train"].tolist() == [0, 2]
    assert list(graph.splits) == ["paper"]


def test_hetero_data_of_one_type_is_typed_still():
    data = HeteroData()
    data["user"].num_nodes = 3
    data["user", "knows", "user"].edge_index = edge_index((0, 2))
    assert not graph_from_data(data).schema.is_homogeneous


def changed(owner, **attributes):
    data = small_hetero()
    for name, value in attributes.items():
        data[owner][name] = value
    return data


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (changed("paper", year=torch.ones(2)), "paper.year has 2 rows; the type has 3"),
        (changed("venue", size=torch.ones(5)), "'venue' disagree on its number of nodes"),
        (changed("lonely", note=3), "'lonely' has no features, masks or edges"),
        (changed(WRITES, weight=torch.ones(3)), "author__writes__paper.weight has 3 rows; the type has 2"),
        (
            changed(WRITES, adj_t=torch.eye(2).to_sparse()),
            "author__writes__paper has its edges in the sparse matrix adj_t",
        ),
        (changed(("paper", "in", "venue"), weight=torch.ones(3)), "paper__in__venue has no edge_index"),
        (changed("paper", val_mask=torch.ones(3, 2, dtype=torch.bool)), "paper.val_mask is bool"),
    ],
)
def test_hetero_data_that_is_no_graph_is_refused(data, message):
    with pytest.raises(SchemaError, match=message):
        graph_from_data(data)


def test_neither_torch_nor_pyg_is_imported():
    module = "hopstream.ingest.objects.pyg_data"
    code = f"import sys, {module}; print([m for m in ('torch', 'torch_geometric') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def split_dict(splits):
    return {name: keys.tolist() for name, keys in splits.items()}


def test_keys_of_splits_and_masks_of_edges_are_splits():
    data = small_data(train_idx=torch.tensor([3, 0]), valid_idx=torch.tensor([1]), test_index=torch.tensor([2]))
    data.val_mask = torch.tensor([False, False, True, False, False])
    graph = graph_from_data(data)
    assert split_dict(graph.splits[NODE]) == {"train": [0, 3], "val": [1], "test": [2]}
    assert split_dict(graph.edge_splits[EDGE]) == {"val": [2]}
    assert features(graph) == ({"x"}, set())

    typed = HeteroData(author={"num_nodes": 2}, paper={"x": torch.ones(3, 1), "train_idx": torch.tensor([2])})
    typed[WRITES].edge_index = edge_index((0, 2), (1, 1), (0, 0))
    typed[WRITES].test_idx = torch.tensor([1])
    typed[WRITES].train_mask = torch.tensor([True, False, True])
    graph = graph_from_data(typed)
    assert split_dict(graph.splits["paper"]) == {"train": [2]}
    assert split_dict(graph.edge_splits[WRITES]) == {"train": [0, 2], "test": [1]}


@pytest.mark.parametrize(
    ("attributes", "error", "message"),
    [
        (
            {"train_idx": torch.ones(2)},
            SchemaError,
            r"train_idx is float32\[2\]; a split is keys \(integers \[n\]\) or a mask \(bool",
        ),
        ({"val_idx": torch.tensor([4])}, IdRangeError, "4"),
        (
            {"val_idx": torch.tensor([1]), "valid_idx": torch.tensor([2])},
            SchemaError,
            "valid_idx .* split 'val'",
        ),
        ({"test_idx": torch.tensor([1]), "test_mask": torch.ones(4) > 0}, SchemaError, "test_mask .* split 'test'"),
        ({"train_idx": torch.ones(3) > 0}, SchemaError, "mask of 3 rows; the type has 4"),
    ],
)
def test_splits_that_are_refused(attributes, error, message):
    with pytest.raises(error, match=message):
        graph_from_data(small_data(**attributes))


@pytest.mark.parametrize(
    "attributes",
    [
        {"train_mask": torch.tensor([1, 0, 0, 1]) > 0, "valid_mask": torch.tensor([0, 1, 0, 0]) > 0},
        {"split_idx": {"train": torch.tensor([3, 0]), "valid": torch.tensor([1])}},
        {"train_idx": [3, 0], "val_idx": [1]},
        {"train_idx": torch.tensor([1, 0, 0, 1]) > 0, "val_index": torch.tensor([1])},
        {
            "train_idx": [3, 0],
            "train_mask": torch.tensor([1, 0, 0, 1]) > 0,
            "val_idx": [1],
            "split_idx": {"valid": [1]},
        },
    ],
    ids=lambda attributes: "+".join(attributes),
)
def test_splits_of_other_names_and_forms_are_read(attributes, caplog):
    wanted = {"train": [0, 3], "val": [1]}
    assert split_dict(graph_from_data(small_data(**attributes)).splits[NODE]) == wanted
    typed = HeteroData(paper={"x": torch.ones(4, 1), **attributes})
    typed["paper", "cites", "paper"].edge_index = edge_index((0, 2))
    assert split_dict(graph_from_data(typed).splits["paper"]) == wanted
    assert not caplog.messages


def test_splits_of_node_types_are_read(caplog):
    data = HeteroData(author={"num_nodes": 2}, paper={"num_nodes": 3})
    data[WRITES].edge_index = edge_index((0, 2))
    data.split_idx = {"train": {"paper": torch.tensor([2])}, "valid": {"paper": torch.tensor([0])}}
    assert {t: split_dict(of) for t, of in graph_from_data(data).splits.items()} == {
        "paper": {"train": [2], "val": [0]}
    }
    assert not caplog.messages
    data["paper"].idx_train = torch.tensor([1])
    with pytest.raises(SchemaError, match=r"paper\.idx_train has 1 rows; the type has 3; name keys of a split"):
        graph_from_data(data)


def test_log_lists_features_named_like_loader_attributes(caplog):
    graph = graph_from_data(small_data(edge_label=torch.ones(5), ppr_edge_attr=torch.ones(4)))
    assert features(graph) == ({"x", "ppr_edge_attr"}, {"edge_label"})
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("features node.ppr_edge_attr, node__to__node.edge_label have the names of")


def test_log_lists_possible_splits(caplog):
    graph_from_data(small_data(idx_train=torch.tensor([0, 1]), train_rows=torch.tensor([1, 2]), latest=3))
    assert caplog.messages[1].startswith("idx_train, train_rows may be splits and are left out: name keys of a split")
    caplog.clear()
    graph = graph_from_data(small_data(train_pos_edge_index=edge_index((0, 1)), train_index=edge_index((0, 1), (1, 2))))
    assert caplog.messages[0] == "train_pos_edge_index, train_index are left out: they have no row per node or edge"
    assert caplog.messages[1].startswith("train_index may be splits and are left out: name keys of a split")
    assert graph.splits == {}


NAMES_LIKE_SPLITS = (
    "validation_mask", "dev_mask", "trn_mask", "mask_train", "train_masks", "is_train", "train_nodes", "test_idx_mask",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES_LIKE_SPLITS)
def test_log_names_a_feature_that_may_be_a_split(name: str, caplog):
    graph = graph_from_data(small_data(**{name: torch.tensor([True, False, True, False])}))
    assert features(graph) == ({"x", name}, set())
    assert len(caplog.messages) == 1
    told = " may be splits, but are read as features, which models see: name keys of a split train_idx, "
    assert caplog.messages[0].startswith(name + told)


def test_log_lists_possible_splits_of_every_type(caplog):
    graph_from_data(small_data(train_edge_mask=torch.ones(5, dtype=torch.bool), test_score=torch.ones(4)))
    assert [message.partition(" may be")[0] for message in caplog.messages] == ["train_edge_mask"]
    caplog.clear()
    typed = HeteroData(author={"num_nodes": 2}, paper={"dev_masks": torch.ones(3, 2, dtype=torch.bool)})
    typed[WRITES].edge_index = edge_index((0, 2))
    typed[WRITES].is_test = torch.tensor([True])
    graph_from_data(typed)
    assert [message.partition(" may be")[0] for message in caplog.messages] == [
        "paper.dev_masks, author__writes__paper.is_test"
    ]


def test_log_lists_omitted_attributes(caplog):
    data = small_data(name="cora", scalar=3.0, u=torch.zeros(1, 7), nothing=None, classes=["x", "y"])
    graph_from_data(data)
    assert caplog.messages == ["name, scalar, u, classes are left out: they have no row per node or edge"]
    caplog.clear()
    typed = HeteroData(author={"num_nodes": 2}, paper={"num_nodes": 3, "title_of": "mag"})
    typed[WRITES].edge_index = edge_index((0, 2))
    typed[WRITES].edge_label_index = edge_index((0, 1))
    typed.version = 2
    graph_from_data(typed)
    links, others = caplog.messages
    assert links.startswith("author__writes__paper.edge_label_index are left out: links to predict are not edges; give")
    assert others == "paper.title_of, version are left out: they have no row per node or edge"


@pytest.mark.parametrize("name", ["n_id", "batch", "e_id", "input_id", "seed_time"])
def test_names_reserved_for_batches_are_refused(name):
    refused = f"^the graph has a feature '{name}', which is the name of an attribute of every batch; rename"
    with pytest.raises(SchemaError, match=refused):
        graph_from_data(small_data(**{name: torch.arange(5 if name == "e_id" else 4)}))
    given = {"edge_features": {name: [1]}} if name == "e_id" else {"node_features": {name: [1, 2]}}
    with pytest.raises(SchemaError, match=refused):
        graph_from_arrays([[0], [1]], **given)
    typed, is_of_edges = small_hetero(), name in ("e_id", "input_id")
    typed[WRITES if is_of_edges else "paper"][name] = torch.arange(2 if is_of_edges else 3)
    with pytest.raises(
        SchemaError, match=f"^{'author__writes__paper' if is_of_edges else 'paper'} has a feature '{name}'"
    ):
        graph_from_data(typed)
