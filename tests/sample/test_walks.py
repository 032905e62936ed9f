"""Checks that walks take permitted steps only, with the right chances."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from hopstream.dataset.layout import open_dataset
from hopstream.errors import IdRangeError, SettingsError, StoreUnavailable, UnknownNameError
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.preparation.append.run import append
from hopstream.preparation.write import write_parts
from hopstream.sample import walks as walk_memory
from hopstream.sample import walks as walks_module
from hopstream.sample.walks import random_walks, walk_batches
from hopstream.store import drawing, open_store
from hopstream.store.contract import SampleReply, SampleRequest, Store
from hopstream.store.local import LocalStore
from tests import naive_walks

TO = ("node", "to", "node")
CITES, WRITES = ("paper", "cites", "paper"), ("author", "writes", "paper")
RNG_SEED = 4

# Parallel edges (0-1, 2-0), a self loop (2), an edge without weight (1-5), nodes that lead nowhere (5, 6).
SRC = [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 3, 4, 4, 4, 1]
DST = [1, 1, 2, 3, 0, 2, 3, 0, 0, 2, 4, 0, 4, 2, 3, 5, 5]
WEIGHTS = [1.0, 2.0, 1.0, 0.5, 3.0, 1.0, 1.0, 1.0, 0.2, 1.0, 4.0, 1.0, 1.0, 2.0, 1.0, 1.0, 0.0]


def edges_of(is_weighted: bool) -> naive_walks.Edges:
    edges: dict[int, list[tuple[int, float]]] = {}
    for src, dst, weight in zip(SRC, DST, WEIGHTS, strict=True):
        edges.setdefault(src, []).append((dst, weight if is_weighted else 1.0))
    return edges


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    graph = Graph(
        nodes={"node": NodeTable(num_nodes=7)},
        edges={TO: EdgeTable(src_keys=np.array(SRC), dst_keys=np.array(DST), features={"w": np.array(WEIGHTS)})},
        splits={"node": {"train": np.array([1, 4])}},
    ).check()
    folder = tmp_path_factory.mktemp("walks") / "node"
    write_parts(graph, folder, num_parts=1, direction="both", weight_attr="w")
    with LocalStore(open_dataset(folder)) as opened:
        yield opened


@pytest.fixture(scope="module")
def typed_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Authors 0..2 write papers 0..3; paper 3 cites nothing."""
    graph = Graph(
        nodes={"paper": NodeTable(num_nodes=4), "author": NodeTable(num_nodes=3)},
        edges={
            WRITES: EdgeTable(src_keys=np.array([0, 0, 1, 2]), dst_keys=np.array([0, 1, 1, 3])),
            CITES: EdgeTable(src_keys=np.array([0, 1, 2]), dst_keys=np.array([2, 2, 3])),
        },
    ).check()
    folder = tmp_path_factory.mktemp("walks") / "typed"
    write_parts(graph, folder, num_parts=1, direction="both")
    return folder


def check_transitions(counts: dict[object, Counter], chances: dict[object, dict[int, float]], where: str) -> None:
    """Check each transition within 5 sigma of its chance, and chi-square over all within 5 of its mean."""
    chi_square, freedom = 0.0, 0
    for origin, drawn in counts.items():
        total, wanted = sum(drawn.values()), chances[origin]
        assert set(drawn) <= set(wanted), (where, origin, drawn)
        freedom += len(wanted) - 1
        for target, chance in wanted.items():
            deviation = drawn[target] - total * chance
            assert abs(deviation) < 5 * math.sqrt(max(total * chance * (1 - chance), 1.0)), (where, origin, target)
            chi_square += deviation**2 / max(total * chance, 1.0)
    assert freedom > 5 and chi_square < freedom + 5 * math.sqrt(2 * freedom), (where, chi_square, freedom)


def test_a_walk_on_a_ring_goes_round(tmp_path: Path) -> None:
    """Each node has one way to go, so walks are known in full; in the other direction they go back."""
    ring = np.arange(4)
    graph = Graph(
        nodes={"node": NodeTable(num_nodes=5)},
        edges={TO: EdgeTable(src_keys=np.append(ring, 4), dst_keys=np.append((ring + 1) % 4, 0))},
    ).check()
    write_parts(graph, tmp_path / "ring", num_parts=2, method="hash", direction="both")
    assert random_walks(tmp_path / "ring", [0, 4], walk_length=5).tolist() == [[0, 1, 2, 3, 0, 1], [4, 0, 1, 2, 3, 0]]
    walks = random_walks(tmp_path / "ring", [2, 4], walk_length=3, direction="in", walks_per_node=2)
    assert walks.tolist()[2:] == [[4, -1, -1, -1], [4, -1, -1, -1]]
    assert {tuple(walk) for walk in walks[:2].tolist()} <= {(2, 1, 0, 3), (2, 1, 0, 4)}


def test_uniform_walks_equal_the_naive_reference(store: Store) -> None:
    starts = [3, 0, 6, 0, 5]
    walks = random_walks(store, starts, walk_length=6, walks_per_node=3, rng_seed=RNG_SEED)
    wanted = [
        naive_walks.uniform_walk(edges_of(False), start, 3 * row + walk, 6, RNG_SEED, "node__to__node")
        for row, start in enumerate(starts)
        for walk in range(3)
    ]
    assert walks.tolist() == wanted


def test_walks_are_pinned(store: Store) -> None:
    """Walks of a given seed must not change between versions."""
    options = {"walk_length": 5, "rng_seed": 1}
    assert random_walks(store, [0, 3], **options).tolist() == PINNED["uniform"]
    assert random_walks(store, [0, 3], weight_attr="w", **options).tolist() == PINNED["weighted"]
    assert random_walks(store, [0, 3], p=0.25, q=4.0, **options).tolist() == PINNED["node2vec"]
    assert random_walks(store, [0, 3], restart_prob=0.5, **options).tolist() == PINNED["restarting"]


@pytest.mark.parametrize("is_weighted", [False, True])
def test_first_order_transitions_follow_the_law(store: Store, is_weighted: bool) -> None:
    options = {"weight_attr": "w"} if is_weighted else {}
    walks = random_walks(store, None, walk_length=4, walks_per_node=1500, rng_seed=RNG_SEED, **options)
    counts: dict[object, Counter] = {}
    for step in range(4):
        for origin, target in walks[:, step : step + 2].tolist():
            if target >= 0:
                counts.setdefault((step, origin), Counter())[target] += 1
    edges = edges_of(is_weighted)
    chances = {origin: naive_walks.second_order_chances(edges, None, origin[1], 1, 1) for origin in counts}
    check_transitions(counts, chances, f"rng_seed = {RNG_SEED}")


@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("p,q", [(0.25, 4.0), (4.0, 0.25), (0.5, 2.0), (3.0, 1.0), (1e-4, 1.0)])
@pytest.mark.parametrize("num_candidates,read_cost", [(8, 1.0), (2, 1e9), (1, 0.0)])
def test_second_order_transitions_follow_the_law(
    store: Store, monkeypatch: pytest.MonkeyPatch, p: float, q: float, is_weighted: bool, num_candidates: int,
    read_cost: float,
) -> None:  # fmt: skip
    """Draws by both methods, by rejection alone, or mostly exact ones follow the same law."""
    monkeypatch.setattr(walk_memory, "FIRST_CANDIDATES", num_candidates)
    monkeypatch.setattr(walk_memory, "READ_COST", read_cost)
    options = {"weight_attr": "w"} if is_weighted else {}
    walks = random_walks(store, None, walk_length=3, walks_per_node=1500, p=p, q=q, rng_seed=RNG_SEED, **options)
    counts: dict[object, Counter] = {}
    for step in (1, 2):
        for previous, current, target in walks[:, step - 1 : step + 2].tolist():
            if target >= 0:
                counts.setdefault((previous, current), Counter())[target] += 1
    edges = edges_of(is_weighted)
    chances = {origin: naive_walks.second_order_chances(edges, *origin, p, q) for origin in counts}
    check_transitions(counts, chances, f"rng_seed = {RNG_SEED}")


@pytest.mark.parametrize("q", [1.0, 2.0])
def test_large_steps_are_taken_in_pieces(store: Store, monkeypatch: pytest.MonkeyPatch, q: float) -> None:
    options = {"walk_length": 4, "walks_per_node": 20, "p": 0.1, "q": q, "weight_attr": "w"}
    monkeypatch.setattr(walk_memory, "FIRST_CANDIDATES", 2)
    wanted = random_walks(store, None, **options)
    pieces = [("MAX_EDGES_READ", 1), ("MAX_EDGES_READ", 23), ("MAX_CANDIDATES", 1), ("MAX_CANDIDATES", 50)]
    for name, limit in pieces:
        monkeypatch.setattr(walk_memory, name, limit)
        assert np.array_equal(random_walks(store, None, **options), wanted), (name, limit)
    monkeypatch.setattr(walks_module, "MAX_KEYS_ASKED", 30)
    assert np.array_equal(random_walks(store, None, **options), wanted)


def record_requests(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[SampleRequest]:
    """Record the requests that the store gets from now on."""
    asked: list[SampleRequest] = []
    sample = store.sample

    def ask(requests: Sequence[SampleRequest]) -> list[SampleReply]:
        asked.extend(requests)
        return sample(requests)

    monkeypatch.setattr(store, "sample", ask)
    return asked


def test_edges_are_read_node_by_node_where_two_have_too_many(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk_memory, "FIRST_CANDIDATES", 1)
    monkeypatch.setattr(walk_memory, "READ_COST", 0.0)
    monkeypatch.setattr(walk_memory, "MAX_EDGES_READ", 1)
    asked = record_requests(store, monkeypatch)
    random_walks(store, None, walk_length=3, walks_per_node=20, p=0.1, q=2.0)
    assert {len(request.ids) for request in asked if request.count == -1} == {1}


@pytest.mark.parametrize("weight_attr", [None, "w"])
def test_edges_that_cost_too_much_are_read_after_the_last_round(
    store: Store, monkeypatch: pytest.MonkeyPatch, weight_attr: str | None
) -> None:
    """Nodes 2 and 3 have no edge to 1; the first rounds of walks over mapped parts make no request."""
    monkeypatch.setattr(walk_memory, "READ_COST", 1e9)
    asked = record_requests(store, monkeypatch)
    random_walks(store, [1] * 20, walk_length=2, p=1e-12, rng_seed=RNG_SEED, weight_attr=weight_attr)
    rounds = [8, *(8 << turn for turn in range(walk_memory.MAX_ROUNDS - 1))]
    wanted = rounds[walk_memory.ROUNDS_AT_ONCE :] if weight_attr is None else [8, *rounds]
    assert [request.count for request in asked] == [*wanted, -1]


@pytest.fixture(scope="module")
def grown_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make three parts with hubs, parallel edges, self loops, isolated nodes and appended rows."""
    rng = np.random.default_rng(RNG_SEED)
    ends = (rng.random((2, 4000)) ** 3 * 400).astype(np.int64)
    graph = Graph(nodes={"node": NodeTable(num_nodes=450)}, edges={TO: EdgeTable(src_keys=ends[0], dst_keys=ends[1])})
    folder = tmp_path_factory.mktemp("walks") / "grown"
    write_parts(graph.check(), folder, num_parts=3, method="hash", direction="both")
    append(folder, edges={TO: ((rng.random(300) ** 2 * 400).astype(np.int64), rng.integers(0, 450, 300))})
    return folder


@pytest.mark.parametrize("direction", ["out", "in"])
@pytest.mark.parametrize("p,q", [(0.5, 2.0), (2.0, 0.5), (1.0, 3.0), (1e-4, 1.0), (1e4, 1e4), (1e-3, 1e3)])
def test_walks_over_mapped_parts_equal_those_with_candidate_requests(
    grown_folder: Path, monkeypatch: pytest.MonkeyPatch, p: float, q: float, direction: str
) -> None:
    """With and without an index of rows, in one call for many steps or for few, with and without restarts."""
    for restart_prob in (0.0, 0.2):
        options = {"walk_length": 9, "p": p, "q": q, "direction": direction, "restart_prob": restart_prob}
        with monkeypatch.context() as patch:
            patch.setattr(walk_memory, "ROUNDS_AT_ONCE", 0)
            wanted = random_walks(grown_folder, None, **options)
        assert np.array_equal(random_walks(grown_folder, None, **options), wanted)
        with monkeypatch.context() as patch:
            patch.setattr(walk_memory, "STEPS_AT_ONCE", 2)
            patch.setattr(drawing, "MIN_INDEXED", 2)
            patch.setattr(drawing, "MAX_INDEXED", 3000)
            patch.setattr(drawing, "SCANS_PER_EDGE", 0)
            with LocalStore(open_dataset(grown_folder)) as store:
                assert np.array_equal(random_walks(store, None, **options, batch_size=70), wanted)
                assert store.tables(TO, direction).long_rows.index.num_nodes > 1
                assert store.tables(TO, direction).long_rows.index.min_degree > 2, "not all rows fit"


def test_rounds_end_without_accepted_candidates(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """However expensive reading is, it ends: rejection would take 1e12 turns at p = 1e-12."""
    monkeypatch.setattr(walk_memory, "READ_COST", 1e9)
    walks = random_walks(store, [2] * 50, walk_length=2, p=1e-12, rng_seed=RNG_SEED)
    assert {tuple(walk[1:]) for walk in walks.tolist() if walk[1] == 4} == {(4, 2)}


def test_restarts_lead_to_the_start_with_their_chance(store: Store) -> None:
    walks = random_walks(store, [3] * 4000, walk_length=4, restart_prob=0.3, rng_seed=RNG_SEED)
    # From 3, edges lead to 0 and 4 only, so a step from 3 to 3 is a restart.
    is_at_start = walks[:, 0] == walks[:, 1]
    sigma = math.sqrt(4000 * 0.3 * 0.7)
    assert abs(is_at_start.sum() - 1200) < 5 * sigma, f"rng_seed = {RNG_SEED}"
    ended = walks[walks[:, 3] == -1]
    assert (ended[:, 4] == -1).all()


def test_a_restart_forgets_where_the_walk_came_from(store: Store) -> None:
    """From node 3, p = 1e-9 leads back to the previous node; after a restart there is none."""
    walks = random_walks(store, [3] * 3000, walk_length=3, p=1e-9, restart_prob=0.5, rng_seed=RNG_SEED)
    after = Counter(int(walk[3]) for walk in walks if walk[1] == 0 and walk[2] == 3 and walk[3] != 3)
    assert after[0] > 0 and after[4] > 0, f"rng_seed = {RNG_SEED}: {after}"


@pytest.mark.parametrize("options", [{}, {"weight_attr": "w"}, {"p": 0.3, "q": 3.0}, {"restart_prob": 0.2}])
def test_batches_are_the_walks_piece_by_piece(store: Store, options: dict) -> None:
    wanted = random_walks(store, [0, 1, 2, 3, 4], walk_length=5, walks_per_node=3, rng_seed=9, **options)
    batches = list(
        walk_batches(store, [0, 1, 2, 3, 4], walk_length=5, walks_per_node=3, rng_seed=9, batch_size=4, **options)
    )
    assert [len(batch) for batch in batches] == [4, 4, 4, 3]
    assert np.array_equal(np.concatenate(batches), wanted)


def test_starts_beyond_the_last_tree_draw_new_walks(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walks_module, "MAX_TREES", 8)
    walks = random_walks(store, [0] * 24, walk_length=6, batch_size=8)
    assert np.array_equal(np.concatenate(list(walk_batches(store, [0] * 24, walk_length=6, batch_size=5))), walks)
    assert not np.array_equal(walks[:8], walks[8:16])


def test_walks_from_a_split_and_from_all_nodes(store: Store) -> None:
    assert random_walks(store, "train", walk_length=1)[:, 0].tolist() == [1, 4]
    assert random_walks(store, None, walk_length=1)[:, 0].tolist() == list(range(7))


def test_a_metapath_is_followed_and_repeated(typed_folder: Path) -> None:
    """Author to paper, to the paper it cites; back along ``writes`` where the step says so."""
    walks = random_walks(typed_folder, [1, 2], metapath=[WRITES, CITES])
    assert walks.tolist() == [[1, 1, 2], [2, 3, -1]]
    walks = random_walks(typed_folder, [2], metapath=[WRITES, (WRITES, "in")], walk_length=5)
    assert walks.tolist() == [[2, 3, 2, 3, 2, 3]]
    walks = random_walks(typed_folder, [0, 2], metapath=[CITES], walk_length=3)
    assert walks.tolist() == [[0, 2, 3, -1], [2, 3, -1, -1]]


def test_co_authors_are_met_in_proportion_to_paths(typed_folder: Path) -> None:
    walks = random_walks(typed_folder, [0] * 4000, metapath=[WRITES, (WRITES, "in")], rng_seed=RNG_SEED)
    # Paper 0 or 1 with 1/2 each; paper 1 has two authors.
    assert abs((walks[:, 2] == 1).sum() - 1000) < 5 * math.sqrt(4000 * 0.25 * 0.75), f"rng_seed = {RNG_SEED}"


@pytest.mark.parametrize("end", ["exhausted", "closed", "forgotten", "refused"])
def test_an_opened_source_is_closed(typed_folder: Path, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    opened: list[Store] = []
    monkeypatch.setattr(walks_module, "open_store", lambda *source: opened.append(open_store(*source)) or opened[0])
    if end == "refused":
        with pytest.raises(IdRangeError):
            walk_batches(typed_folder, [99], metapath=[WRITES])
    else:
        batches = walk_batches(typed_folder, [0, 1], metapath=[WRITES], batch_size=1)
        if end == "exhausted":
            assert len(list(batches)) == 2
        elif end == "closed":
            assert next(batches).shape == (1, 2)
            batches.close()
        del batches
    with pytest.raises(StoreUnavailable):
        opened[0].lookup("author", np.array([0]))


def test_a_given_store_stays_open(store: Store) -> None:
    for walk in (random_walks, walk_batches):
        assert len(list(walk(store, [0], walk_length=1))) == 1
    assert store.lookup("node", np.array([0])).tolist() == [0]


ERRORS = [
    ({}, "walk_length is not given"),
    ({"walk_length": 0}, "walk_length is 0"),
    ({"walk_length": 2.0}, "walk_length is 2.0"),
    ({"walk_length": 2, "p": 0}, "p is 0; it must be a number above 0"),
    ({"walk_length": 2, "q": -1.0}, "q is -1.0"),
    ({"walk_length": 2, "q": math.inf}, "q is inf"),
    ({"walk_length": 2, "p": math.nan}, "p is nan"),
    ({"walk_length": 2, "restart_prob": 1.0}, "restart_prob is 1.0"),
    ({"walk_length": 2, "walks_per_node": 0}, "walks_per_node is 0"),
    ({"walk_length": 2, "batch_size": True}, "batch_size is True"),
    ({"walk_length": 2, "rng_seed": -1}, "rng_seed is -1"),
    ({"walk_length": 2, "direction": "both"}, "direction is 'both'"),
    (
        {"walk_length": 2, "weight_attr": "rating"},
        "weight_attr is 'rating'; the dataset was written with weight_attr='w'",
    ),
    ({"walk_length": 2, "metapath": []}, r"metapath is \[\]"),
    ({"walk_length": 2, "metapath": TO}, "give a list"),
    ({"walk_length": 2, "metapath": [(TO, "back")]}, "'in' or 'out'"),
]


@pytest.mark.parametrize("options,message", ERRORS)
def test_invalid_walk_options_are_refused(store: Store, options: dict, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        random_walks(store, [0], **options)


TYPED_ERRORS = [
    ({"walk_length": 2}, "say which to follow: metapath="),
    ({"metapath": [WRITES], "walk_length": 2}, "'paper', but the next step starts at 'author'; a repeated metapath"),
    ({"metapath": [WRITES, WRITES]}, "make them the same"),
    ({"metapath": [WRITES, CITES], "p": 2.0}, "edge type between nodes of one type can use p and q"),
    ({"metapath": [WRITES], "restart_prob": 0.5}, "only walks .* can use restart_prob"),
    ({"metapath": [CITES], "weight_attr": "w"}, "weight_attr is 'w'; the dataset was written with weight_attr=None"),
]


@pytest.mark.parametrize("options,message", TYPED_ERRORS)
def test_typed_walks_with_mismatched_types_are_refused(typed_folder: Path, options: dict, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        random_walks(typed_folder, [0], **options)


def test_unknown_types_and_starts_are_refused(store: Store, typed_folder: Path) -> None:
    with pytest.raises(UnknownNameError, match="reviews"):
        random_walks(typed_folder, [0], metapath=[("author", "reviews", "paper")])
    with pytest.raises(UnknownNameError, match="test"):
        random_walks(store, "test", walk_length=2)
    with pytest.raises(IdRangeError, match=r"start\[1\] is 7"):
        random_walks(store, [0, 7], walk_length=2)
    with pytest.raises(IdRangeError, match=r"start\[0\] is -1"):
        random_walks(store, [-1], walk_length=2)
    for start in ([0.5], [[0]], 3, [True], {1}):
        with pytest.raises(SettingsError, match="start is"):
            random_walks(store, start, walk_length=2)
    for walk in (random_walks, walk_batches):
        with pytest.raises(SettingsError, match="start is of type 'paper', and the first step goes from 'author'"):
            walk(typed_folder, ("paper", [0]), metapath=[WRITES])


def test_numbers_of_numpy_make_the_same_walks(store: Store) -> None:
    numbers = {"walk_length": 4, "walks_per_node": 3, "rng_seed": RNG_SEED, "batch_size": 2}
    wanted = random_walks(store, [0, 3], **numbers)
    found = random_walks(store, [0, 3], **{name: np.int64(number) for name, number in numbers.items()})
    assert found.tolist() == wanted.tolist()


def test_no_starts_make_no_walks(store: Store) -> None:
    assert random_walks(store, [], walk_length=2).shape == (0, 3)
    assert list(walk_batches(store, [], walk_length=2)) == []


def test_starts_are_given_as_seeds_are(store: Store, typed_folder: Path) -> None:
    wanted = random_walks(store, [1, 4], walk_length=3)
    mask = np.isin(np.arange(7), [1, 4])
    for start in ("train", ("node", "train"), ("node", [1, 4]), mask, mask.tolist(), ("node", mask)):
        assert random_walks(store, start, walk_length=3).tolist() == wanted.tolist()
    wanted = random_walks(store, np.arange(7), walk_length=3)
    for start in (None, "node", ("node", None)):
        assert random_walks(store, start, walk_length=3).tolist() == wanted.tolist()
    wanted = random_walks(typed_folder, [0, 1, 2], metapath=[WRITES, CITES])
    for start in (None, "author", ("author", None), ("author", [0, 1, 2]), range(3)):
        assert random_walks(typed_folder, start, metapath=[WRITES, CITES]).tolist() == wanted.tolist()


def test_a_direction_missing_from_the_dataset_is_refused(tmp_path: Path) -> None:
    graph = Graph(
        nodes={"node": NodeTable(num_nodes=2)},
        edges={TO: EdgeTable(src_keys=np.array([0]), dst_keys=np.array([1]))},
    ).check()
    write_parts(graph, tmp_path / "in", num_parts=1)
    with pytest.raises(SettingsError, match="in direction 'out', and the dataset holds 'in'"):
        random_walks(tmp_path / "in", [0], walk_length=1)
    assert random_walks(tmp_path / "in", [1], walk_length=1, direction="in").tolist() == [[1, 0]]


PINNED = {
    "uniform": [[0, 3, 0, 1, 5, -1], [3, 4, 2, 4, 5, -1]],
    "weighted": [[0, 1, 0, 1, 0, 3], [3, 4, 2, 4, 2, 4]],
    "node2vec": [[0, 1, 0, 2, 0, 2], [3, 4, 3, 4, 3, 4]],
    "restarting": [[0, 3, 0, 1, 5, 0], [3, 3, 3, 3, 4, 5]],
}
