"""Checks each way of sampling nodes in small graphs, against handwritten batches."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch

from hopstream.errors import SettingsError, StateError
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.load.loader import NeighborLoader, NodeMaker
from hopstream.schema import EDGE, NODE
from hopstream.store.contract import MAX_TREES
from tests.load.contract import BatchesContract
from tests.load.graphs import CITES, KNOWS, RATED_BY, RATES, WatchedStore, flat, local_store, make_timed_graph

WRITTEN = {"time_attr": "time", "neighbor_keys": True}
TREES = {"disjoint": True}
TIMED = {"time_attr": "time"}


@pytest.fixture(scope="module", params=[1, 3], ids=["1 part", "3 parts"])
def letters(request, tmp_path_factory):
    """Seven nodes; five of them lead to node 0, at times that are not sorted.

    ====  ======  ====  ======
    edge  from    time  weight
    ====  ======  ====  ======
    0     1 to 0  30    1
    1     2 to 0  10    0
    2     3 to 0  50    2
    3     4 to 0  20    2
    4     5 to 0  40    3
    5     2 to 1  5     1
    6     6 to 2  60    1
    ====  ======  ====  ======
    """
    graph = Graph(
        nodes={NODE: NodeTable(num_nodes=7)},
        edges={
            EDGE: EdgeTable(
                src_keys=np.array([1, 2, 3, 4, 5, 2, 6]),
                dst_keys=np.array([0, 0, 0, 0, 0, 1, 2]),
                features={
                    "time": np.array([30, 10, 50, 20, 40, 5, 60]),
                    "weight": np.array([1, 0, 2, 2, 3, 1, 1], np.float32),
                },
            )
        },
    ).check()
    folder = tmp_path_factory.mktemp("letters") / "parts"
    return local_store(graph, folder, request.param, weight_attr="weight", **WRITTEN)


def only_batch(store, num_neighbors, seeds, **options):
    with NeighborLoader(store, num_neighbors, seeds, 8, num_threads=0, **options) as loader:
        (batch,) = loader
    return batch


def edges_of(batch):
    """Pairs of keys."""
    return [tuple(pair) for pair in batch.n_id[batch.edge_index].T.tolist()]


def test_only_edges_up_to_the_seed_time_are_sampled(letters):
    batch = only_batch(letters, [-1], [0], input_time=[30], **TIMED)
    assert batch.n_id.tolist() == [0, 2, 4, 1]
    assert batch.e_id.tolist() == [1, 3, 0]
    assert batch.time.tolist() == [10, 20, 30]
    assert batch.seed_time.tolist() == [30]
    assert batch.batch.tolist() == [0, 0, 0, 0]


def test_edges_at_the_seed_time_can_be_left_out(letters):
    batch = only_batch(letters, [-1], [0], input_time=[30], time_inclusive=False, **TIMED)
    assert batch.n_id.tolist() == [0, 2, 4]


def test_the_latest_neighbours_can_be_taken(letters):
    batch = only_batch(letters, [2], [0], input_time=[30], temporal_strategy="last", **TIMED)
    assert batch.n_id.tolist() == [0, 4, 1]
    assert batch.time.tolist() == [20, 30]


def test_a_seeds_time_holds_for_its_whole_tree(letters):
    early = only_batch(letters, [-1, -1], [0], input_time=[30], **TIMED)
    assert edges_of(early) == [(2, 0), (4, 0), (1, 0), (2, 1)]
    late = only_batch(letters, [-1, -1], [0], input_time=[60], **TIMED)
    assert edges_of(late) == [(2, 0), (4, 0), (1, 0), (5, 0), (3, 0), (6, 2), (2, 1)]


def test_a_seed_may_be_given_at_several_times(letters):
    batch = only_batch(letters, [-1], [0, 0, 0], input_time=np.array([10, 40, 0], np.int16), **TIMED)
    assert batch.n_id.tolist() == [0, 0, 0, 2, 2, 4, 1, 5]
    assert batch.batch.tolist() == [0, 1, 2, 0, 1, 1, 1, 1]
    assert batch.seed_time.equal(torch.tensor([10, 40, 0]))
    assert edges_of(batch) == [(2, 0), (2, 0), (4, 0), (1, 0), (5, 0)]
    assert batch.edge_index[1].tolist() == [0, 1, 1, 1, 1]
    assert (batch.num_sampled_nodes, batch.num_sampled_edges) == ([3, 5], [5])


def test_disjoint_trees_share_no_node(letters):
    joint = only_batch(letters, [-1, -1], [0, 1])
    assert joint.n_id.tolist() == [0, 1, 2, 4, 5, 3, 6]
    assert "batch" not in joint
    trees = only_batch(letters, [-1, -1], [0, 1], **TREES)
    assert trees.n_id.tolist() == [0, 1, 2, 4, 1, 5, 3, 2, 6, 6]
    assert trees.batch.tolist() == [0, 1, 0, 0, 0, 0, 0, 1, 0, 1]
    assert "seed_time" not in trees
    assert torch.equal(trees.batch[trees.edge_index[0]], trees.batch[trees.edge_index[1]])


def test_repeated_seeds_grow_trees_of_their_own(letters):
    seeds = [0] * 6
    batch = only_batch(letters, [1], seeds, rng_seed=2, **TREES)
    assert batch.n_id[:6].tolist() == seeds
    assert batch.batch.tolist() == [*range(6), *range(6)]
    assert len(set(batch.n_id[6:].tolist())) > 1  # each tree has draws of its own
    assert only_batch(letters, [1], seeds, rng_seed=2).num_nodes == 7  # copies of one draw


def test_edges_without_weight_are_never_drawn(letters):
    batch = only_batch(letters, [-1], [0], weight_attr="weight")
    assert batch.n_id.tolist() == [0, 4, 1, 5, 3]
    batch = only_batch(letters, [500], [0], weight_attr="weight", replace=True)
    assert (batch.num_edges, set(batch.weight.tolist())) == (500, {1, 2, 3})


def test_the_heaviest_come_first_and_ties_in_stored_order(letters):
    batch = only_batch(letters, [3], [0], weight_attr="weight", sampling="top_k")
    assert batch.n_id.tolist() == [0, 5, 4, 3]  # 4 and 3 weigh the same, and 4 is the earlier one
    assert batch.weight.tolist() == [3, 2, 2]


def test_the_heaviest_edges_up_to_the_seed_time_are_sampled(letters):
    batch = only_batch(letters, [1], [0], weight_attr="weight", sampling="top_k", input_time=[30], **TIMED)
    assert batch.n_id.tolist() == [0, 4]


def test_a_bidirectional_subgraph_has_every_reverse_edge(letters):
    batch = only_batch(letters, [-1], [1], subgraph_type="bidirectional")
    assert edges_of(batch) == [(2, 1), (1, 2)]
    assert batch.e_id.tolist() == [5, 5]
    assert batch.num_sampled_nodes == [1, 1]
    assert "num_sampled_edges" not in batch


def test_an_induced_subgraph_has_all_edges_between_its_nodes(letters):
    assert edges_of(only_batch(letters, [-1], [0])) == [(2, 0), (4, 0), (1, 0), (5, 0), (3, 0)]
    batch = only_batch(letters, [-1], [0], subgraph_type="induced")
    assert edges_of(batch) == [(2, 0), (4, 0), (1, 0), (5, 0), (3, 0), (2, 1)]
    assert batch.e_id.tolist() == [1, 3, 0, 4, 2, 5]
    assert "num_sampled_edges" not in batch


@pytest.mark.parametrize("subgraph_type", ["induced", "bidirectional"])
def test_repeated_seeds_have_their_edges_in_every_subgraph_type(letters, subgraph_type):
    once = only_batch(letters, [-1], [0, 1], subgraph_type=subgraph_type)
    twice = only_batch(letters, [-1], [0, 1, 0], subgraph_type=subgraph_type)
    assert twice.n_id.tolist() == [0, 1, 0, *once.n_id[2:].tolist()]
    wanted = once.n_id[once.edge_index[0][once.edge_index[1] == 0]]
    for slot in (0, 2):
        assert twice.n_id[twice.edge_index[0][twice.edge_index[1] == slot]].equal(wanted)
    assert twice.num_edges == once.num_edges + len(wanted)


def test_labor_shares_neighbours_between_nodes(tmp_path):
    """Every node has the same twenty neighbours, so with common variates all find the same three."""
    src, dst = (pairs.ravel() for pairs in np.meshgrid(np.arange(20), np.arange(20, 40)))
    graph = Graph(nodes={NODE: NodeTable(num_nodes=40)}, edges={EDGE: EdgeTable(src_keys=src, dst_keys=dst)})
    store = local_store(graph, tmp_path / "parts", 3, neighbor_keys=True)
    with NeighborLoader(store, [3], np.arange(20, 40), 5, sampling="labor", batch_dependency=4) as loader:
        found = [set(batch.n_id[5:].tolist()) for batch in loader]
    assert [len(keys) for keys in found] == [3] * 4
    assert sum(len(one & other) for one, other in itertools.pairwise(found)) >= 4
    assert only_batch(store, [3], np.arange(20, 28)).num_nodes > 8 + 3


@pytest.fixture(scope="module")
def timed(tmp_path_factory):
    graph = make_timed_graph(np.random.default_rng(21))
    folder = tmp_path_factory.mktemp("timed")
    return graph, {
        n: local_store(graph, folder / str(n), n, weight_attr="stars", direction="both", **WRITTEN) for n in (1, 3)
    }


def edge_times(graph, batch, edge_type, direction):
    """The times that decide over the edges of a batch, or None where the edge type has none."""
    neighbor_type, row = (edge_type[0], 0) if direction == "in" else (edge_type[2], 1)
    neighbors = batch.node_keys[neighbor_type][batch.edge_index[edge_type][row]]
    own, others = graph.edges[edge_type].features.get("time"), graph.nodes[neighbor_type].features.get("time")
    times = [
        *([] if own is None else [own[batch.edge_keys[edge_type]]]),
        *([] if others is None else [others[neighbors]]),
    ]
    return np.maximum.reduce(times).astype(np.int64) if times else None


@pytest.mark.parametrize("is_inclusive", [True, False])
@pytest.mark.parametrize("strategy", ["uniform", "last"])
@pytest.mark.parametrize("direction", ["in", "out"])
@pytest.mark.parametrize("subgraph_type", ["directional", "induced", "bidirectional"])
def test_no_edge_is_from_the_future(timed, subgraph_type, direction, strategy, is_inclusive):
    graph, stores = timed
    times = np.random.default_rng(22).integers(-5, 45, 60)
    options = {"subgraph_type": subgraph_type, "direction": direction, "temporal_strategy": strategy}
    num_seen = 0
    with NeighborLoader(
        stores[3], {"default": [3, 2, 2]}, "paper", 9, input_time=times, time_inclusive=is_inclusive, collate="numpy",
        shuffle=True, **TIMED, **options,
    ) as loader:  # fmt: skip
        for batch in loader:
            limits = batch.attributes["paper"]["seed_time"]
            assert np.array_equal(limits, times[batch.input_ids])
            for edge_type, (src, dst) in batch.edge_index.items():
                trees = batch.trees[edge_type[2]][dst]
                assert np.array_equal(trees, batch.trees[edge_type[0]][src])
                found = edge_times(graph, batch, edge_type, direction)
                assert (found is None) == (edge_type == KNOWS)
                if found is not None and not (subgraph_type == "bidirectional" and edge_type in (CITES, KNOWS)):
                    assert np.all(found <= limits[trees] if is_inclusive else found < limits[trees])
                    num_seen += len(found)
    assert num_seen > 100


def test_edges_without_any_time_are_not_left_out(timed):
    """Users have no time and neither has ``knows``, so all of it is followed, at any time."""
    graph, stores = timed
    users = np.arange(25)
    settings = {"input_time": np.full(25, -100), "collate": "numpy", **TIMED}
    with NeighborLoader(stores[1], {"default": [-1]}, ("user", users), 25, **settings) as loader:
        (batch,) = loader
    assert batch.edge_index[KNOWS].shape[1] == graph.edges[KNOWS].num_edges
    assert batch.edge_index[RATED_BY].shape[1] == 0


def test_seeds_have_their_own_time_where_their_type_has_one(timed):
    graph, stores = timed
    for num_parts, store in stores.items():
        watched = WatchedStore(store)
        with NeighborLoader(watched, {"default": [2]}, ("paper", "train"), 7, shuffle=True, **TIMED) as loader:
            num_before = watched.num_fetches
            batches = list(loader)
        for batch in batches:
            papers = batch["paper"]
            keys = papers.n_id[: papers.batch_size].numpy()
            assert papers.seed_time.dtype == torch.int64
            assert np.array_equal(papers.seed_time, graph.nodes["paper"].features["time"][keys]), num_parts
            assert "seed_time" not in batch["user"]
            assert set(batch["user"].batch.tolist()) <= set(range(papers.batch_size))
        assert watched.num_fetches - num_before == 2 * len(batches)


def test_times_are_given_in_the_order_of_seeds(timed):
    _, stores = timed
    mask = np.arange(60) % 3 == 0
    times = np.arange(100, 120)
    for seeds in (mask, np.flatnonzero(mask), torch.from_numpy(mask)):
        with NeighborLoader(
            stores[1], {"default": [1]}, ("paper", seeds), 6, shuffle=True, input_time=torch.from_numpy(times), **TIMED
        ) as loader:
            for batch in loader:
                papers = batch["paper"]
                assert papers.seed_time.equal(papers.n_id[: papers.batch_size] // 3 + 100)


def numpy_loader(store, threads, settings, **more):
    options = {"batch_size": 6, "shuffle": True, "collate": "numpy", "num_threads": threads, **settings, **more}
    return NeighborLoader(store, {"default": [3, 2]}, ("paper", None), **options)


class TestTemporalLoader(BatchesContract):
    @pytest.fixture
    def new_loader(self, timed):
        return lambda **more: numpy_loader(timed[1][3], 2, TIMED, **more)


class TestWeightedLoader(BatchesContract):
    @pytest.fixture
    def new_loader(self, timed):
        return lambda **more: numpy_loader(timed[1][3], 2, {"weight_attr": "stars"}, **more)


class TestDisjointLoader(BatchesContract):
    @pytest.fixture
    def new_loader(self, timed):
        return lambda **more: numpy_loader(timed[1][1], 1, TREES, **more)


class TestInducedLoader(BatchesContract):
    @pytest.fixture
    def new_loader(self, timed):
        return lambda **more: numpy_loader(timed[1][3], 0, {"subgraph_type": "induced"}, **more)


class TestLaborLoader(BatchesContract):
    @pytest.fixture
    def new_loader(self, timed):
        return lambda **more: numpy_loader(timed[1][3], 1, {"sampling": "labor", "batch_dependency": 3}, **more)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"disjoint": True}, "disjoint"),
        ({"time_attr": "time"}, "disjoint"),
        ({"weight_attr": "stars"}, "weight_attr"),
        ({"sampling": "labor"}, "sampling"),
        ({"subgraph_type": "induced"}, "subgraph_type"),
        ({"direction": "out"}, "direction"),
    ],
)
def test_the_state_of_another_way_of_sampling_is_refused(timed, change, name):
    state = numpy_loader(timed[1][1], 0, {}).state_dict()
    with pytest.raises(StateError, match=f"a loader with {name} "):
        numpy_loader(timed[1][1], 0, change).load_state_dict(state)


@pytest.mark.parametrize(
    ("before", "after", "name"),
    [
        (TIMED, {**TIMED, "temporal_strategy": "last"}, "temporal_strategy"),
        (TIMED, {**TIMED, "time_inclusive": False}, "time_inclusive"),
        (TIMED, {**TIMED, "input_time": np.zeros(60, int)}, r"\(input_time=\)"),
        ({**TIMED, "input_time": np.arange(60)}, {**TIMED, "input_time": np.arange(1, 61)}, r"\(input_time=\)"),
        (TREES, TIMED, "time_attr"),
        ({"weight_attr": "stars"}, {"weight_attr": "stars", "sampling": "top_k"}, "sampling"),
        ({"sampling": "labor"}, {"sampling": "labor", "batch_dependency": 2}, "batch_dependency"),
        ({"sampling": "labor"}, {"sampling": "labor", "layer_dependency": True}, "layer_dependency"),
    ],
)
def test_every_option_is_part_of_the_state(timed, before, after, name):
    state = json.loads(json.dumps(numpy_loader(timed[1][1], 0, before).state_dict()))
    numpy_loader(timed[1][3], 1, before).load_state_dict(state)
    with pytest.raises(StateError, match=f"^the state is of a loader .*{name}"):
        numpy_loader(timed[1][1], 0, after).load_state_dict(state)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input_time": [1] * 60}, "^input_time needs time_attr="),
        ({**TIMED, "input_time": [1] * 59}, r"^input_time is int64\[59\]; give one integer per seed: \[60\]"),
        ({**TIMED, "input_time": np.zeros((60, 1), int)}, r"^input_time is int64\[60, 1\]; give one integer per seed"),
        ({**TIMED, "input_time": 5}, r"^input_time is int64\[\]; give one integer per seed: \[60\]"),
        ({**TIMED, "input_time": np.zeros(60)}, "^input_time is float64; times are integers, so that they compare"),
        ({**TIMED, "input_time": np.zeros(60, bool)}, "^input_time is bool; times are integers"),
        ({**TIMED, "input_time": ["now"] * 60}, "^input_time is <U3; times are integers"),
        (
            {**TIMED, "input_time": np.zeros(60, "M8[s]")},
            r"^input_time is datetime64\[s\], and the dataset states no unit of its times; write it again with",
        ),
        (
            {**TIMED, "input_time": np.full(60, 2**63, np.uint64)},
            "^input_time holds 9223372036854775808; times go up to",
        ),
        ({"reverse_types": {RATES: RATED_BY}}, "^reverse_types is an option of subgraph_type='bidirectional'"),
        ({**TREES, "batch_size": MAX_TREES + 1}, "^batch_size is 8388609; with a tree per seed it may be 8388608"),
    ],
)
def test_wrong_options_are_refused(timed, options, message):
    with pytest.raises(SettingsError, match=message):
        numpy_loader(timed[1][1], 0, options)


@pytest.fixture(scope="module")
def dated(tmp_path_factory):
    """A cycle of four nodes, whose edges have times in seconds."""
    times = np.array(["2020-01-01T00:00:01", "2020-01-02", "2020-01-03", "2020-01-04"], "M8[s]").view(np.int64)
    edges = EdgeTable(src_keys=np.arange(4), dst_keys=np.array([1, 2, 3, 0]), features={"time": times})
    graph = Graph(nodes={NODE: NodeTable(num_nodes=4)}, edges={EDGE: edges}).check()
    return local_store(graph, tmp_path_factory.mktemp("dated") / "d", 2, time_attr="time", time_unit="s")


@pytest.mark.parametrize("unit", ["D", "h", "s", "ms", "ns"])
def test_datetimes_of_any_unit_become_seed_times_in_the_datasets_unit(dated, unit):
    times = np.array(["2020-01-01", "2020-01-02", "2020-01-02", "2020-01-04"], f"M8[{unit}]")
    batch = only_batch(dated, [1], [1, 2, 3, 0], **TIMED, input_time=times)
    assert batch.seed_time.tolist() == times.astype("M8[s]").view(np.int64).tolist()
    assert sorted(batch.e_id.tolist()) == [1, 3]  # the first edge is a second too late, the third a day


@pytest.mark.parametrize(
    ("times", "message"),
    [
        (
            ["2020-01-01", "2020-01-02T00:00:00.5"],
            r"^input_time\[1\] is 2020-01-02T00:00:00.500, no whole number",
        ),
        (["NaT", "2020-01-02T00:00:00"], r"^input_time\[0\] is NaT, a time that is missing; leave its row out"),
    ],
)
def test_datetimes_that_are_no_whole_seconds_are_refused(dated, times, message):
    with pytest.raises(SettingsError, match=message):
        NeighborLoader(dated, [1], [1, 2], **TIMED, input_time=np.array(times, "M8[ms]"))


def test_datetimes_beyond_the_units_range_are_refused(tmp_path):
    edges = EdgeTable(src_keys=np.arange(2), dst_keys=np.arange(2), features={"time": np.arange(2)})
    graph = Graph(nodes={NODE: NodeTable(num_nodes=2)}, edges={EDGE: edges}).check()
    store = local_store(graph, tmp_path / "d", 1, time_attr="time", time_unit="ns")
    with pytest.raises(SettingsError, match=r"is 2500-01-01T00:00:00, outside the range of .* unit 'ns'; write"):
        NeighborLoader(store, [1], [0, 1], **TIMED, input_time=np.array(["2500-01-01", "2020-01-01"], "M8[s]"))


def test_seeds_without_time_are_refused(timed, letters):
    with pytest.raises(SettingsError, match=r"^seeds of 'user' have no time: .* 'time'; give input_time=, one integer"):
        NeighborLoader(timed[1][1], {"default": [1]}, "user", **TIMED)
    with pytest.raises(SettingsError, match=r"^seeds of 'node' have no time"):
        NeighborLoader(letters, [1], **TIMED)


def test_options_are_checked_before_anything_is_opened(tmp_path):
    with pytest.raises(SettingsError, match=r"^temporal_strategy='last' needs time_attr="):
        NeighborLoader(tmp_path / "nothing", [1], temporal_strategy="last")


def test_timeout_of_a_late_batch_names_the_fetch_of_times(timed):
    stages = []
    store = WatchedStore(timed[1][1])
    loader = numpy_loader(store, 0, TIMED)
    store.on_fetch = lambda: stages.append(next(m for m in loader._makers if isinstance(m, NodeMaker)).stage)
    next(iter(loader))
    assert stages == ["fetching the times of seeds", "fetching features"]
    loader.close()


def test_batches_that_are_kept_keep_their_trees(timed):
    with numpy_loader(timed[1][3], 2, {**TIMED, "batch_size": 4}) as loader:
        kept = list(loader)
        before = [flat(batch) for batch in kept]
        for _ in range(2):
            assert sum(1 for _ in loader) == 15
        assert [flat(batch) for batch in kept] == before
