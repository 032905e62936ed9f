"""Checks that anchors come with the label nodes that the user lists, wherever the graph is."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from hopstream.arrays import RaggedArray
from hopstream.dataset.layout import open_dataset
from hopstream.errors import IdRangeError, SettingsError, StateError, UnknownNameError
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.load.ablp import ABLPLoader
from hopstream.preparation.write import write_parts
from hopstream.schema import EDGE, NODE
from hopstream.store.local import LocalStore
from tests.load.contract import BatchesContract
from tests.load.graphs import flat, local_store, make_plain_graph
from tests.stream.serving import remote_graph, serve_here

BUYS, BOUGHT_BY, VIEWED_BY = ("user", "buys", "item"), ("item", "rev_buys", "user"), ("item", "viewed_by", "user")
FOLLOWS, WANTS, LIKES = ("user", "follows", "user"), ("user", "wants", "item"), ("user", "likes", "user")
NUM_NODES = {"user": 60, "item": 40}
ANCHORS = np.random.default_rng(1).permutation(60)[:37]
Rows = list[list[int]]


def make_graph() -> Graph:
    rng = np.random.default_rng(2)
    pairs = np.unique(rng.integers(0, [[60], [40]], (2, 240)), axis=1)
    edges = {
        BUYS: pairs,
        BOUGHT_BY: pairs[::-1],
        VIEWED_BY: rng.integers(0, [[40], [60]], (2, 200)),
        FOLLOWS: rng.integers(0, 60, (2, 150)),
    }
    return Graph(
        nodes={t: NodeTable(num_nodes=n, features={"x": rng.random((n, 2))}) for t, n in NUM_NODES.items()},
        edges={t: EdgeTable(src_keys=np.ascontiguousarray(s), dst_keys=d.copy()) for t, (s, d) in edges.items()},
    ).check()


GRAPH = make_graph()


def bought(number: int) -> list[int]:
    """Items that an anchor bought, so that all of its labels are edges."""
    return GRAPH.edges[BUYS].dst_keys[GRAPH.edges[BUYS].src_keys == ANCHORS[number]].tolist()


def random_rows(seed: int, num_nodes: int) -> Rows:
    rng = np.random.default_rng(seed)
    return [rng.choice(num_nodes, rng.integers(0, 5), replace=False).tolist() for _ in ANCHORS]


POSITIVES: Rows = [bought(i) for i in range(len(ANCHORS))]
NEGATIVES = random_rows(4, 40)
FRIENDS = random_rows(5, 60)


def padded(rows: Rows) -> np.ndarray:
    matrix = np.full((len(rows), max(map(len, rows)) + 1), -1)
    for row, keys in enumerate(rows):
        matrix[row, : len(keys)] = keys
    return matrix


FORMS = {
    "ragged": lambda rows: RaggedArray.from_rows([np.array(row, np.int64) for row in rows]),
    "arrays": lambda rows: [np.array(row, np.int32) for row in rows],
    "lists": lambda rows: rows,
    "tensors": lambda rows: [torch.tensor(row) for row in rows],
    "matrix": padded,
    "matrix of torch": lambda rows: torch.from_numpy(padded(rows)),
    "padding first": lambda rows: np.roll(padded(rows), 1, axis=1),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("given")
    for num_parts in (1, 2, 3):
        write_parts(GRAPH, root / str(num_parts), num_parts=num_parts, method="random", direction="both")
    return {n: root / str(n) for n in (1, 2, 3)}


@pytest.fixture(scope="module")
def stores(folders):
    return {n: LocalStore(open_dataset(folders[n])) for n in (1, 3)}


@pytest.fixture
def servers(folders):
    with serve_here(folders[2]) as served:
        yield remote_graph(served.locations)


def make(source, num_neighbors=(-1, 2), labels=POSITIVES, supervision=BUYS, **options):
    settings = {"anchors": ("user", ANCHORS), "batch_size": 8, "collate": "numpy", "num_threads": 0}
    labels = labels if isinstance(labels, dict) else {supervision: labels}
    return ABLPLoader(source, num_neighbors, supervision=supervision, labels=labels, **{**settings, **options})


def pairs_of(batch, edge_type, name="y_positive", direction="out"):
    """Keys of anchors and of their labels, in the order of the batch."""
    near, far = (edge_type[0], edge_type[2]) if direction == "out" else (edge_type[2], edge_type[0])
    anchors, labels = batch.attributes[edge_type][name]
    return [*zip(batch.node_keys[near][anchors].tolist(), batch.node_keys[far][labels].tolist(), strict=True)]


def naive_pairs(batch, rows: Rows):
    return [(int(ANCHORS[i]), key) for i in batch.input_ids for key in rows[i]]


def edges_of(batch, edge_type):
    src, dst = batch.edge_index[edge_type]
    keys = batch.node_keys
    return {*zip(keys[edge_type[0]][src].tolist(), keys[edge_type[2]][dst].tolist(), strict=True)}


@pytest.mark.parametrize("num_parts", [1, 3])
@pytest.mark.parametrize("supervision", [BUYS, WANTS], ids=["in the graph", "in no graph"])
def test_labels_equal_the_given_ones(stores, num_parts, supervision):
    seen = []
    with make(
        stores[num_parts], labels={supervision: (POSITIVES, NEGATIVES)}, supervision=supervision, shuffle=True
    ) as loader:
        for batch in loader:
            anchors = ANCHORS[batch.input_ids].tolist()
            assert batch.node_keys["user"][: len(anchors)].tolist() == anchors
            assert pairs_of(batch, supervision) == naive_pairs(batch, POSITIVES)
            assert pairs_of(batch, supervision, "y_negative") == naive_pairs(batch, NEGATIVES)
            items = [item for rows in (POSITIVES, NEGATIVES) for _, item in naive_pairs(batch, rows)]
            assert batch.node_keys["item"][: len(set(items))].tolist() == list(dict.fromkeys(items))
            assert batch.num_sampled_nodes["item"][0] == len(set(items))
            seen += anchors
    assert sorted(seen) == sorted(ANCHORS.tolist())


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_batches(stores, form):
    of = FORMS[form]
    with make(stores[3], labels={WANTS: (POSITIVES, NEGATIVES)}, supervision=WANTS) as one:
        given = {WANTS: (of(POSITIVES), of(NEGATIVES))}
        with make(stores[3], labels=given, supervision=WANTS) as other:
            assert [flat(batch) for batch in one] == [flat(batch) for batch in other]
            other.load_state_dict(one.state_dict())


def test_given_arrays_may_be_overwritten_later(stores):
    rows = FORMS["ragged"](POSITIVES)
    with make(stores[1], labels=rows) as loader:
        rows.values[:] = 0
        assert pairs_of(next(iter(loader)), BUYS)[:1] == [(ANCHORS[0], POSITIVES[0][0])]


@pytest.mark.parametrize("subgraph_type", ["directional", "bidirectional", "induced"])
def test_label_edges_are_not_followed_and_all_others_are(stores, subgraph_type):
    """All labels are edges; a batch leaves out its own anchors' labels, in both edge types, and no others."""
    pairs = {*zip(GRAPH.edges[BUYS].src_keys.tolist(), GRAPH.edges[BUYS].dst_keys.tolist(), strict=True)}
    num_followed = 0
    with make(stores[3], [-1, -1], subgraph_type=subgraph_type) as loader:
        for batch in loader:
            labels = set(naive_pairs(batch, POSITIVES))
            found, reverses = edges_of(batch, BUYS), {(user, item) for item, user in edges_of(batch, BOUGHT_BY)}
            assert labels
            assert not labels & (found | reverses)
            num_followed += len(found)
            if subgraph_type == "induced":
                users, items = (set(batch.node_keys[t].tolist()) for t in ("user", "item"))
                assert found == {pair for pair in pairs - labels if pair[0] in users and pair[1] in items}
    assert num_followed > 0


def test_labels_are_followed_where_they_are_not_excluded(stores):
    with make(stores[3], [-1], exclude_labels=False) as loader:
        for batch in loader:
            assert set(naive_pairs(batch, POSITIVES)) <= edges_of(batch, BUYS)
    with ABLPLoader(stores[3], [-1], supervision=BUYS, exclude_labels=False, collate="numpy") as loader:
        assert not edges_of(next(iter(loader)), BUYS)  # labels that are read are never followed


def test_a_supervision_type_of_no_edges_names_its_reverse(tmp_path):
    """No edge has the supervision type, but edges of its reverse type hold the labels."""
    wanted_by = ("item", "rev_wants", "user")
    graph = replace(GRAPH, edges={VIEWED_BY: GRAPH.edges[VIEWED_BY], wanted_by: GRAPH.edges[BOUGHT_BY]}).check()
    some = [row[::2] for row in POSITIVES]
    with local_store(graph, tmp_path / "p", 2) as store, make(store, [-1], some, WANTS) as loader:
        num_followed = 0
        for batch in loader:
            found = {(user, item) for item, user in edges_of(batch, wanted_by)}
            assert not set(naive_pairs(batch, some)) & found
            num_followed += len(found)
    assert num_followed > 0


def test_label_types_of_the_dataset_stay_hidden(tmp_path):
    graph = replace(GRAPH, edges={**GRAPH.edges, WANTS: GRAPH.edges[BUYS]}, label_types={WANTS: (BUYS, BOUGHT_BY)})
    with local_store(graph.check(), tmp_path / "p", 3) as store:
        with make(store, [-1, -1], supervision=WANTS) as loader:
            for batch in loader:
                labels = set(naive_pairs(batch, POSITIVES))
                assert not edges_of(batch, WANTS)
                assert not labels & edges_of(batch, BUYS)
                assert not labels & {(user, item) for item, user in edges_of(batch, BOUGHT_BY)}
        with pytest.raises(SettingsError, match="num_neighbors follows user__wants__item, which holds labels"):
            make(store, {WANTS: [1], "default": [1]}, supervision=WANTS)


def test_several_supervision_types_and_labels_of_the_anchors_type(stores):
    given = {BUYS: (POSITIVES, NEGATIVES), LIKES: FRIENDS}
    for source in stores.values():
        with make(source, labels=given, supervision=[BUYS, LIKES]) as loader:
            for batch in loader:
                assert pairs_of(batch, BUYS) == naive_pairs(batch, POSITIVES)
                assert pairs_of(batch, BUYS, "y_negative") == naive_pairs(batch, NEGATIVES)
                assert pairs_of(batch, LIKES) == naive_pairs(batch, FRIENDS)
                assert "y_negative" not in batch.attributes[LIKES]
                users = batch.node_keys["user"].tolist()
                assert len(set(users)) == len(users)


def test_anchors_may_be_destinations_of_a_dataset_that_holds_no_such_direction(tmp_path):
    with local_store(GRAPH, tmp_path / "p", 2) as store:
        assert store.directions == ("in",)
        options = {"anchors": ("item", [5, 3, 9]), "labels": [[7], [], [8, 2]], "label_direction": "in"}
        with make(store, **options) as loader:
            (batch,) = loader
        assert pairs_of(batch, BUYS, direction="in") == [(5, 7), (9, 8), (9, 2)]
        assert not {(7, 5), (8, 9), (2, 9)} & edges_of(batch, BUYS)


def test_a_label_given_twice_is_listed_twice(stores):
    with make(stores[3], anchors=("user", [4, 1]), labels=[[7, 7, 3], [3]]) as loader:
        (batch,) = loader
    assert batch.attributes[BUYS]["y_positive"].tolist() == [[0, 0, 0, 1], [0, 0, 1, 1]]


def test_anchors_without_labels_have_empty_rows(stores):
    with make(stores[3], anchors=("user", [4, 1]), labels={BUYS: ([[], []], np.empty((2, 0), np.int64))}) as loader:
        (batch,) = loader
    assert [batch.attributes[BUYS][name].shape for name in ("y_positive", "y_negative")] == [(2, 0), (2, 0)]


def test_excess_labels_are_drawn_uniformly(stores):
    """One of five positives and one of two negatives per epoch, over 300 epochs; 5 sigma of tolerance."""
    given = {BUYS: ([[1, 2, 3, 4, 5], [9]], [[6, 7], []])}
    counts = {name: np.zeros(40) for name in ("y_positive", "y_negative")}
    with make(stores[1], [1], anchors=("user", [4, 1]), labels=given, max_labels=2) as loader:
        one_more = next(iter(loader))
    assert len(pairs_of(one_more, BUYS)) == 3
    assert len(pairs_of(one_more, BUYS, "y_negative")) == 2
    with make(stores[1], [1], anchors=("user", [4, 1]), labels=given, max_labels=1) as loader:
        for _ in range(300):
            (batch,) = loader
            for name, found in counts.items():
                pairs = pairs_of(batch, BUYS, name)
                assert [anchor for anchor, _ in pairs] == ([4, 1] if name == "y_positive" else [4])
                np.add.at(found, [item for _, item in pairs], 1)
    assert abs(counts["y_positive"][1:6] - 60).max() < 5 * np.sqrt(300 * 0.2 * 0.8)
    assert abs(counts["y_negative"][6:8] - 150).max() < 5 * np.sqrt(300 / 4)
    assert counts["y_positive"][9] == 300


def test_batches_of_pyg_carry_labels_on_the_supervision_type(stores):
    for supervision in (BUYS, WANTS):
        with make(stores[1], supervision=supervision, collate="pyg") as loader:
            batch = next(iter(loader))
        assert isinstance(batch, HeteroData)
        assert batch["user"].n_id[batch[supervision].y_positive[0]].tolist() == [
            ANCHORS[i] for i in range(8) for _ in POSITIVES[i]
        ]
        assert "y_negative" not in batch[supervision]
        assert set(batch.edge_index_dict) == set(GRAPH.edges)


def test_graphs_without_types(tmp_path):
    """One supervision type gives tensors, several give dicts by edge type; label edges are not followed."""
    graph, other = make_plain_graph(np.random.default_rng(6)), (NODE, "meets", NODE)
    anchors = np.array([5, 2, 40])
    rows = [graph.edges[EDGE].dst_keys[graph.edges[EDGE].src_keys == anchor] for anchor in anchors]
    with local_store(graph, tmp_path / "p", 2) as store:
        options = {"anchors": anchors, "batch_size": 3, "num_threads": 0}
        with ABLPLoader(store, [-1, -1], supervision=EDGE, labels={EDGE: rows}, **options) as loader:
            (batch,) = loader
        assert isinstance(batch, Data)
        assert batch.n_id[batch.y_positive[1]].tolist() == np.concatenate(rows).tolist()
        labels = {frozenset(pair) for pair in batch.n_id[batch.y_positive].T.tolist()}
        found = {frozenset(pair) for pair in batch.n_id[batch.edge_index].T.tolist()}
        assert labels
        assert found
        assert not labels & found
        given = {EDGE: rows, other: (padded([[1], [], [2, 3]]), [[7], [8], []])}
        with ABLPLoader(store, [2], supervision=[EDGE, other], labels=given, **options) as loader:
            (batch,) = loader
        assert batch.n_id[batch.y_positive[other][1]].tolist() == [1, 2, 3]
        assert batch.y_positive[EDGE].shape == (2, sum(map(len, rows)))
        assert set(batch.y_negative) == {other}
        assert batch.n_id[batch.y_negative[other]].tolist() == [[5, 2], [7, 8]]


GIVEN = {BUYS: (padded(POSITIVES), NEGATIVES), LIKES: FRIENDS}
WAYS = {
    "in order": {},
    "shuffled": {"shuffle": True, "max_labels": 1},
    "whole batches": {"shuffle": True, "drop_last": True, "batch_size": 7},
    "first of two ranks": {"shuffle": True, "rank": 0, "world_size": 2, "batch_size": 5},
    "second of two ranks": {"shuffle": True, "rank": 1, "world_size": 2, "batch_size": 5},
    "labels followed": {"exclude_labels": False},
}


@pytest.mark.parametrize("way", WAYS)
def test_batches_are_bit_equal_from_one_part_several_and_servers(folders, servers, way):
    options = {"labels": GIVEN, "supervision": [BUYS, LIKES], **WAYS[way]}
    with make(folders[1], **options) as loader:
        wanted = [[flat(batch) for batch in loader] for _ in range(2)]
    for source in (folders[3], servers):
        with make(source, **{**options, "num_threads": 2}) as loader:
            assert [[flat(batch) for batch in loader] for _ in range(2)] == wanted


def test_a_loader_over_servers_resumes_the_state_of_another(folders, servers):
    options = {"labels": GIVEN, "supervision": [BUYS, LIKES], "shuffle": True}
    with make(folders[1], **options) as loader:
        wanted = [flat(batch) for batch in loader]
    with make(servers, **options) as one, make(servers, **options) as other:
        iterator = iter(one)
        assert [flat(next(iterator)) for _ in range(2)] == wanted[:2]
        state = json.loads(json.dumps(one.state_dict()))
        other.load_state_dict(state)
        assert [flat(batch) for batch in other] == wanted[2:]
    with make(folders[3], **options) as loader:
        loader.load_state_dict(state)
        assert [flat(batch) for batch in loader] == wanted[2:]


class TestGivenLabels(BatchesContract):
    @pytest.fixture
    def new_loader(self, stores):
        settings = {"labels": GIVEN, "supervision": [BUYS, LIKES], "shuffle": True, "max_labels": 2}
        return lambda **options: make(stores[3], **{**settings, **options})


@pytest.mark.parametrize(
    ("after", "message"),
    [
        ({"labels": NEGATIVES}, "over other labels="),
        ({"labels": {BUYS: (POSITIVES, NEGATIVES)}}, "over other labels="),
        ({"labels": [*POSITIVES[1:], POSITIVES[0]]}, "over other labels="),
        ({"labels": [row[::-1] for row in POSITIVES]}, "over other labels="),
        ({"labels": None}, "over other labels="),
        ({"exclude_labels": False}, "with exclude_labels True; this loader has False"),
        ({"max_labels": 1}, "with max_labels"),
    ],
)
def test_labels_are_part_of_the_state(stores, after, message):
    options = {"anchors": ("user", ANCHORS), "supervision": BUYS, "labels": {BUYS: POSITIVES}, "collate": "numpy"}
    if isinstance(after.get("labels"), list):
        after = {"labels": {BUYS: after["labels"]}}
    neighbors = {VIEWED_BY: [1], "default": [0]}
    with (
        ABLPLoader(stores[1], neighbors, **options) as one,
        ABLPLoader(stores[1], neighbors, **{**options, **after}) as other,
        pytest.raises(StateError, match=message),
    ):
        other.load_state_dict(one.state_dict())


TWO = {"anchors": ("user", [4, 1])}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"labels": [[1], [40]]}, IdRangeError, r"__item, positives: row 1 has 40; keys of 'item' are 0..39$"),
        ({"labels": [[], [3, -1]]}, IdRangeError, "row 1 has -1; keys of 'item' are 0..39; only a matrix is padded"),
        ({"labels": np.array([[-1, 3], [-1, -2]])}, IdRangeError, "row 1 has -2; keys"),
        ({"labels": {BUYS: ([[1], [1]], [[], [99]])}}, IdRangeError, "negatives: row 1 has 99"),
        ({"labels": [[1]]}, SettingsError, "positives, have 1 rows for 2 anchors"),
        ({"labels": {BUYS: ([[1], []], [[1]])}}, SettingsError, "negatives, have 1 rows for 2 anchors"),
        ({"labels": [[0.5], [1.0]]}, SettingsError, r"got a list \(it has float64\[1\], not integers"),
        ({"labels": [[[1]], [[2]]]}, SettingsError, r"it has int64\[1, 1\], not integers"),
        ({"labels": np.array([1, 2])}, SettingsError, r"it is int64\[2\], which is not a matrix"),
        ({"labels": np.array([[1.0], [2.0]])}, SettingsError, r"float64\[2\], not integers"),
        ({"labels": [[True], [False]]}, SettingsError, r"it has bool\[1\]"),
        ({"labels": RaggedArray(np.arange(3), np.array([0, 2]))}, SettingsError, "offsets must ascend from 0 to 3"),
        ({"labels": RaggedArray(5, None)}, SettingsError, "got a RaggedArray"),
        ({"labels": RaggedArray.from_strings(["a", "b"])}, SettingsError, "it has strings, not integers"),
        ({"labels": {BUYS: object()}}, SettingsError, "got a object"),
        ({"labels": {BUYS: (None, [[1], [2]])}}, SettingsError, "have no rows of positives, got a NoneType"),
        ({"labels": {BUYS: None}}, SettingsError, "have no rows of positives, got a NoneType"),
        ({"labels": {BUYS: ([[1], [2]],) * 3}}, SettingsError, "have no rows of positives, got a tuple"),
        ({"labels": {}}, SettingsError, "labels are of no edge type; supervision names user__buys__item"),
        ({"labels": {BUYS: [[1], [2]], WANTS: [[1], [2]]}}, SettingsError, "give both the same edge types, each once"),
        ({"labels": {BUYS: [[1], [2]], "user__buys__item": [[1], [2]]}}, SettingsError, "give both the same"),
        ({"supervision": [BUYS, LIKES], "labels": {BUYS: [[1], [2]]}}, SettingsError, "labels are of user__buys__"),
        ({"supervision": ("user", "wants", "shop")}, UnknownNameError, "unknown node type 'shop'"),
        ({"supervision": "user__wants__item"}, UnknownNameError, "unknown edge type 'user__wants__item'"),
        ({"supervision": VIEWED_BY}, SettingsError, "have anchors of type 'item'"),
        ({"label_direction": "both"}, SettingsError, "label_direction is 'both'"),
        ({"label_split": "train"}, SettingsError, "negatives and label_split apply to labels read from edges"),
        ({"negatives": FOLLOWS}, SettingsError, "negatives and label_split apply to labels read from edges"),
        ({"exclude_labels": "no"}, SettingsError, "exclude_labels is 'no'"),
        ({"max_labels": 0}, SettingsError, "max_labels is 0"),
        ({"anchors": "user"}, SettingsError, "anchors are user, all, but labels= has one row per anchor; give"),
        ({"anchors": ("user", np.arange(60) < 2)}, SettingsError, "anchors are user, mask, but labels"),
        ({"anchors": ("user", [4, 4])}, SettingsError, "anchors name node 4 more than once"),
    ],
)  # fmt: skip
def test_bad_settings_are_refused(stores, options, error, message):
    with pytest.raises(error, match=message):
        make(stores[3], **{**TWO, "labels": [[1], [2]], **options})


def test_labels_are_a_mapping(stores):
    with pytest.raises(SettingsError, match="labels is a list; give supervision edge type to rows of keys"):
        ABLPLoader(stores[1], [1], ("user", [4]), supervision=BUYS, labels=[[1]], collate="numpy")
