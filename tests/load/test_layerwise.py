"""Checks that layer-wise embeddings equal those of the whole graph, and that a killed run resumes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from hopstream.errors import FormatError, IdRangeError, SettingsError, StateError, StoreTimeout, UnknownNameError
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.load.embeddings import open_embeddings
from hopstream.load.layerwise import LayerMaker, infer_layerwise
from hopstream.preparation.write import write_parts
from tests.conftest import make_typed_graph
from tests.topologies import TOPOLOGIES, YARDSTICK, Written, settled

ROOT = Path(__file__).parents[2]
NUM_NODES = 230
WIDTH = 6


def make_graph() -> Graph:
    rng = np.random.default_rng(2)
    return Graph(
        nodes={"node": NodeTable(num_nodes=NUM_NODES, features={"x": rng.standard_normal((NUM_NODES, WIDTH))})},
        edges={
            ("node", "to", "node"): EdgeTable(
                src_keys=rng.integers(0, NUM_NODES, 1500), dst_keys=(rng.random(1500) ** 2 * NUM_NODES).astype(np.int64)
            )
        },
    ).check()


def mean_layer(number, node_type, batch):
    """A node's rows are its own plus the mean of its neighbours', times the number of the layer plus one."""
    rows = batch.node_features["node"]["h" if number else "x"]
    src, dst = batch.edge_index["node", "to", "node"]
    total = np.zeros_like(rows)
    np.add.at(total, dst, rows[src])
    counts = np.bincount(dst, minlength=len(rows)).clip(min=1)
    return ((rows + total / counts[:, None]) * (number + 1))[: batch.batch_size]


def whole_graph(graph: Graph, num_layers: int) -> np.ndarray:
    """The same layer over all nodes at once."""
    rows = graph.nodes["node"].features["x"]
    edges = graph.edges["node", "to", "node"]
    for number in range(num_layers):
        total = np.zeros_like(rows)
        np.add.at(total, edges.dst_keys, rows[edges.src_keys])
        counts = np.bincount(edges.dst_keys, minlength=len(rows)).clip(min=1)
        rows = (rows + total / counts[:, None]) * (number + 1)
    return rows


@pytest.fixture(scope="module")
def places(tmp_path_factory, server_pool):
    with settled(tmp_path_factory.mktemp("layerwise"), {"plain": Written(make_graph())}, server_pool) as found:
        yield found["plain"]


def infer(source, out, layer=mean_layer, **options):
    settings = {"num_layers": 2, "batch_size": 16, "rows_per_chunk": 40, "collate": "numpy", "num_threads": 1}
    return infer_layerwise(source, layer, out, **{**settings, **options})


@pytest.mark.parametrize(
    ("topology", "num_threads"),
    [
        pytest.param(topology, num_threads, marks=[] if place % 2 == bool(num_threads) else [pytest.mark.slow])
        for place, topology in enumerate([YARDSTICK, *TOPOLOGIES]) for num_threads in (0, 3)
    ],
)  # fmt: skip
def test_embeddings_are_those_of_the_whole_graph(places, tmp_path, topology, num_threads):
    with places.open(topology) as store:
        found = infer(store, tmp_path / "out", num_threads=num_threads)
    keys = np.arange(NUM_NODES)[::-1]
    for layer in (1, 2):
        np.testing.assert_allclose(found.at("node", keys, layer), whole_graph(make_graph(), layer)[keys], rtol=1e-12)
    part_keys, rows = found.part("node", 0)
    assert (np.diff(part_keys) > 0).all()
    np.testing.assert_array_equal(rows, found.at("node", part_keys))


def test_only_complete_files_remain(places, tmp_path):
    found = infer(places.folders[3], tmp_path / "out")
    names = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file())
    parts = [f"part-{part:05d}.npy" for part in range(3)]
    wanted = [f"{folder}/node/{name}" for folder in ("keys", "layer-1", "layer-2") for name in parts]
    assert names == sorted(["embeddings.json", *wanted])
    assert open_embeddings(tmp_path / "out").facts == found.facts
    assert not list((tmp_path / "out").rglob("*.chunks"))


def test_sampled_neighbours_do_not_depend_on_the_place_of_parts(places, tmp_path):
    one = infer(places.folders[1], tmp_path / "one", num_neighbors=2)
    four = infer(places.folders[4], tmp_path / "four", num_neighbors={"default": 2}, batch_size=7)
    keys = np.arange(NUM_NODES)
    np.testing.assert_allclose(one.at("node", keys), four.at("node", keys), rtol=1e-12)
    assert not np.allclose(one.at("node", keys), whole_graph(make_graph(), 2))


def test_typed_graphs_keep_final_rows_of_requested_types_only(tmp_path):
    graph = make_typed_graph(np.random.default_rng(4))
    write_parts(graph, tmp_path / "parts", num_parts=3, method="random", direction="both")

    def degrees(number, node_type, batch):
        """Layer 1: the number of edges that were found; layer 2: the sum over neighbours of every type."""
        num_rows = batch.batch_size
        out = np.zeros((num_rows, 1))
        for (src, _, dst), (src_slots, dst_slots) in batch.edge_index.items():
            if dst == node_type:
                values = np.ones(len(src_slots)) if not number else batch.node_features[src]["h"][src_slots, 0]
                np.add.at(out[:, 0], dst_slots, values)
        return out

    found = infer_layerwise(
        tmp_path / "parts", degrees, tmp_path / "out", num_layers=2, node_types=["paper"], batch_size=9, collate="numpy"
    )
    num_in = {t: np.zeros(table.num_nodes) for t, table in graph.nodes.items()}
    for (_, _, dst), edges in graph.edges.items():
        np.add.at(num_in[dst], edges.dst_keys, 1)
    wanted = np.zeros(graph.nodes["paper"].num_nodes)
    for (src, _, dst), edges in graph.edges.items():
        if dst == "paper":
            np.add.at(wanted, edges.dst_keys, num_in[src][edges.src_keys])
    keys = np.arange(len(wanted))
    assert found.at("paper", keys)[:, 0].tolist() == wanted.tolist()
    assert found.at("author", np.arange(3), layer=1)[:, 0].tolist() == num_in["author"][:3].tolist()
    with pytest.raises(UnknownNameError, match="layer 2 has \\['paper'\\]"):
        found.at("author", keys)


@pytest.mark.parametrize("num_threads", [0, 1, 4])
def test_batches_before_one_that_fails_reach_the_layer_and_are_kept(places, tmp_path, monkeypatch, num_threads):
    make, failures, seen = LayerMaker.make, [ArithmeticError("no luck")], []

    def failing_make(maker, epoch, step):
        if step == 3 and failures:
            raise failures.pop()
        return make(maker, epoch, step)

    def layer(number, node_type, batch):
        seen.append(batch.node_keys["node"][: batch.batch_size].tolist())
        return mean_layer(number, node_type, batch)

    monkeypatch.setattr(LayerMaker, "make", failing_make)
    options = {"num_layers": 1, "rows_per_chunk": 1, "num_threads": num_threads}
    with pytest.raises(ArithmeticError, match="no luck"):
        infer(places.folders[1], tmp_path / "out", layer, **options)
    assert len(seen) == 3
    infer(places.folders[1], tmp_path / "out", layer, **options)
    assert [key for keys in seen for key in keys] == list(range(NUM_NODES))


def test_a_failed_run_resumes_after_the_last_chunk(places, tmp_path):
    seen = []

    def failing(number, node_type, batch):
        seen.append((number, batch.node_keys["node"][: batch.batch_size].tolist()))
        if len(seen) == 10:
            raise OSError("the GPU fell off")
        return mean_layer(number, node_type, batch)

    with pytest.raises(OSError, match="the GPU fell off"):
        infer(places.folders[4], tmp_path / "out", failing, num_threads=0)
    again = []

    def counting(number, node_type, batch):
        again.append((number, batch.batch_size))
        return mean_layer(number, node_type, batch)

    found = infer(places.folders[4], tmp_path / "out", counting)
    np.testing.assert_allclose(found.at("node", np.arange(NUM_NODES)), whole_graph(make_graph(), 2), rtol=1e-12)
    num_first = sum(size for number, size in again if number == 0)
    assert 0 < num_first <= NUM_NODES - 9 * 16 + 40 + 16
    assert sum(size for number, size in again if number == 1) == NUM_NODES
    again.clear()
    infer(places.folders[4], tmp_path / "out", counting)
    assert again == []


KILLED = """
import os, sys
from tests.load.test_layerwise import infer, mean_layer
def layer(number, node_type, batch):
    print("batch", flush=True)
    sys.stdin.readline()
    return mean_layer(number, node_type, batch)
infer(sys.argv[1], sys.argv[2], layer, num_threads=2)
"""


@pytest.mark.parametrize("num_batches", [6, *(pytest.param(more, marks=pytest.mark.slow) for more in (1, 21))])
def test_a_killed_run_resumes(places, tmp_path, num_batches):
    """SIGKILL after some batches, in either layer."""
    words = [sys.executable, "-c", KILLED, str(places.folders[4]), str(tmp_path / "out")]
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(num_batches):
            assert process.stdout.readline() == "batch\n"
            process.stdin.write("\n")
            process.stdin.flush()
        assert process.stdout.readline() == "batch\n"
        process.send_signal(signal.SIGKILL)
        assert process.wait(20) == -signal.SIGKILL
    again = []

    def counting(number, node_type, batch):
        again.append(batch.batch_size)
        return mean_layer(number, node_type, batch)

    found = infer(places.folders[4], tmp_path / "out", counting)
    np.testing.assert_allclose(found.at("node", np.arange(NUM_NODES)), whole_graph(make_graph(), 2), rtol=1e-12)
    if num_batches > 4:
        assert sum(again) < 2 * NUM_NODES


def test_ranks_share_the_parts(places, tmp_path):
    errors = []

    def run(rank):
        try:
            infer(places.folders[4], tmp_path / "out", rank=rank, world_size=2, wait_s=60.0)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert not errors
    found = open_embeddings(tmp_path / "out")
    np.testing.assert_allclose(found.at("node", np.arange(NUM_NODES)), whole_graph(make_graph(), 2), rtol=1e-12)


def test_timeout_of_a_lone_rank_names_the_missing_file(places, tmp_path):
    with pytest.raises(StoreTimeout, match=r"part-00001\.npy did not exist after 0\.1 s; another rank writes it"):
        infer(places.folders[4], tmp_path / "out", rank=0, world_size=2, wait_s=0.1)


def test_a_rank_waits_for_the_first_one_to_begin(places, tmp_path):
    with pytest.raises(StoreTimeout, match=r"embeddings\.json did not exist after 0\.1 s; rank 0 writes it"):
        infer(places.folders[4], tmp_path / "out", rank=1, world_size=2, wait_s=0.1)


def test_overwriting_restarts_even_under_the_same_tag(places, tmp_path):
    infer(places.folders[3], tmp_path / "out")
    ones = infer(places.folders[3], tmp_path / "out", lambda n, t, b: np.ones((b.batch_size, 1)), overwrite=True)
    assert ones.at("node", np.arange(NUM_NODES)).tolist() == [[1.0]] * NUM_NODES


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_of_other_things_is_refused(places, tmp_path, overwrite):
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.csv").write_text("a,b")
    for folder, name in ((out, "mine.csv"), (places.folders[3], "manifest.json")):
        before = sorted(path.name for path in Path(folder).iterdir())
        with pytest.raises(SettingsError, match=rf"holds '{name}' and is not a folder of embeddings; move it away"):
            infer(places.folders[3], folder, overwrite=overwrite)
        assert sorted(path.name for path in Path(folder).iterdir()) == before
    with pytest.raises(SettingsError, match=r"mine\.csv is a file; give a folder"):
        infer(places.folders[3], out / "mine.csv", overwrite=overwrite)
    (out / "mine.csv").unlink()
    (out / ".embeddings.json.17.partial").touch()  # left of a run that was killed while it began
    assert infer(places.folders[3], out, overwrite=overwrite).num_parts == 3


def test_rows_of_another_model_are_never_reused(places, tmp_path):
    """A run killed while it removed old rows, and a removed record."""
    out = tmp_path / "out"
    infer(places.folders[3], out, tag="first")
    (out / "keys" / "node" / "part-00000.npy").unlink()
    (out / "layer-2" / "node" / "part-00001.npy").unlink()
    with pytest.raises(StateError, match="tag first; these have second"):
        infer(places.folders[3], out, tag="second")
    infer(places.folders[3], out, lambda n, t, b: np.ones((b.batch_size, 1)), tag="second", overwrite=True)
    assert open_embeddings(out).at("node", np.arange(NUM_NODES)).tolist() == [[1.0]] * NUM_NODES
    (out / "embeddings.json").unlink()
    for overwrite in (False, True):
        with pytest.raises(StateError, match=r"has keys, .*layer-1.* but no embeddings\.json"):
            infer(places.folders[3], out, tag="third", overwrite=overwrite)


def test_other_features_are_another_model(places, tmp_path):
    infer(places.folders[1], tmp_path / "out", num_layers=1)
    with pytest.raises(StateError, match="settings"):
        infer(
            places.folders[1], tmp_path / "out", lambda n, t, b: np.ones((b.batch_size, 1)), num_layers=1,
            node_features=[],
        )  # fmt: skip


def test_an_unknown_option_is_a_type_error(places, tmp_path):
    with pytest.raises(TypeError, match="infer_layerwise got an unexpected keyword argument 'batchsize'"):
        infer(places.folders[1], tmp_path / "out", batchsize=3)


def test_progress_counts_rows(places, tmp_path, capsys):
    told = []
    infer(places.folders[1], tmp_path / "out", progress=lambda *args: told.append(args))
    assert [done for stage, done, _ in told if stage == "layer 2"][-1] == NUM_NODES
    assert {total for _, _, total in told} == {NUM_NODES}
    assert capsys.readouterr().err == ""


def test_a_folder_of_another_model_is_refused(places, tmp_path):
    infer(places.folders[1], tmp_path / "out", tag="first")
    with pytest.raises(StateError, match="embeddings with tag first; these have second; give another folder"):
        infer(places.folders[1], tmp_path / "out", tag="second")
    with pytest.raises(StateError, match="num_layers 2; these have 1"):
        infer(places.folders[1], tmp_path / "out", tag="first", num_layers=1)
    found = infer(places.folders[4], tmp_path / "out", tag="second", overwrite=True)
    assert found.num_parts == 4


@pytest.mark.parametrize(
    ("value", "got"),
    [
        (lambda batch: np.zeros((batch.batch_size + 1, 2)), r"float64\[17, 2\]"),
        (lambda batch: np.zeros(batch.batch_size), r"float64\[16\]"),
        (lambda batch: np.zeros((batch.batch_size, 2), np.int64), r"int64\[16, 2\]"),
        (lambda batch: None, "NoneType"),
    ],
)
def test_a_layer_returns_a_row_per_seed(places, tmp_path, value, got):
    with pytest.raises(SettingsError, match=rf"layer 1 of 'node' returned {got}; wanted float\[16, width\]"):
        infer(places.folders[1], tmp_path / "out", lambda number, node_type, batch: value(batch))


def test_rows_need_not_be_multiples_of_a_word(places, tmp_path):
    """A row of 33 float32 is no multiple of eight bytes."""

    def layer(number, node_type, batch):
        rows = batch.node_features["node"]["h" if number else "x"][: batch.batch_size]
        return rows if number else np.outer(rows[:, 0], np.arange(33)).astype(np.float32)

    found = infer(places.folders[1], tmp_path / "out", layer)
    keys = np.arange(NUM_NODES)
    np.testing.assert_array_equal(found.at("node", keys, 2), found.at("node", keys, 1))


def test_rows_have_one_width(places, tmp_path):
    sizes = iter(range(1, 100))
    said = r"returned rows of float64\[2\] for part 0; the first batch has float64\[1\]"
    with pytest.raises(SettingsError, match=said):
        infer(places.folders[1], tmp_path / "out", lambda n, t, batch: np.zeros((batch.batch_size, next(sizes))))


def rows_of(width, dtype, num_batches=None):
    """A layer of zeros that fails after a number of batches."""
    done = []

    def layer(number, node_type, batch):
        done.append(number)
        if num_batches is not None and len(done) > num_batches:
            raise OSError("the GPU fell off")
        return np.zeros((batch.batch_size, width), dtype)

    return layer


@pytest.mark.parametrize("width,dtype", [(2, np.float32), (6, np.float32), (4, np.float64), (4, np.float16)])
@pytest.mark.parametrize("num_batches", [3, 4, 6])
def test_a_run_does_not_resume_rows_of_another_width_or_dtype(places, tmp_path, width, dtype, num_batches):
    """Part 0 has 58 rows, or 4 batches; it is complete or not, and part 1 has rows or not."""
    folder, out = places.folders[4], tmp_path / "out"
    with pytest.raises(OSError, match="the GPU fell off"):
        infer(folder, out, rows_of(4, np.float32, num_batches), num_threads=0, rows_per_chunk=1)
    got, wanted = f"{np.dtype(dtype)}\\[{width}\\]", r"part 0 has float32\[4\]"
    with pytest.raises(SettingsError, match=rf"layer 1 of 'node' returned rows of {got} for part \d; {wanted}"):
        infer(folder, out, rows_of(width, dtype), num_threads=0)
    assert infer(folder, out, rows_of(4, np.float32)).at("node", np.arange(3)).dtype == np.float32


@pytest.mark.parametrize("num_layers", [1, 2])
def test_ranks_with_different_models_are_refused(places, tmp_path, num_layers):
    errors = []

    def run(rank):
        options = {"rank": rank, "world_size": 2, "wait_s": 2.0, "num_layers": num_layers}
        try:
            infer(places.folders[4], tmp_path / "out", rows_of(4 - rank, np.float32), **options)
        except (SettingsError, FormatError, StoreTimeout) as error:
            errors.append(str(error))

    first = threading.Thread(target=run, args=(0,))
    first.start()
    run(1)
    first.join(90)
    assert len(errors) == 2 and any("float32[4]" in error and "float32[3]" in error for error in errors)


def test_rows_of_several_widths_are_not_read(places, tmp_path):
    found = infer(places.folders[3], tmp_path / "out")
    path = found.path(2, "node", 1)
    np.save(path, np.load(path)[:, :2])
    said = (
        r"part-00001\.npy has rows of float64\[2\]; part-00000\.npy has float64\[6\]: they come from different models"
    )
    with pytest.raises(FormatError, match=said):
        found.at("node", np.arange(NUM_NODES))


def test_bad_options_are_refused(places, tmp_path):
    for options, message in (
        ({"shuffle": True}, "shuffle= is no option of infer_layerwise: every node is computed"),
        ({"weight_attr": "w"}, "weight_attr= is no option of infer_layerwise"),
        (
            {"overwrite": True, "rank": 0, "world_size": 2},
            "overwrite=True cannot be used with 2 ranks, because one rank would remove the files",
        ),
        ({"num_layers": 0}, "num_layers is 0; it must be an integer, 1 to 64"),
        ({"num_neighbors": -2}, "num_neighbors is -2"),
        ({"wait_s": 0}, "wait_s is 0"),
    ):
        with pytest.raises(SettingsError, match=message):
            infer(places.folders[1], tmp_path / "out", **options)
    with pytest.raises(UnknownNameError, match="unknown node type 'paper'"):
        infer(places.folders[1], tmp_path / "out", node_types=["paper"])


def test_damaged_folders_and_unknown_keys_are_refused(places, tmp_path):
    found = infer(places.folders[3], tmp_path / "out")
    with pytest.raises(IdRangeError, match=rf"keys\[1\] is {NUM_NODES}; no node of type 'node' has this key"):
        found.at("node", np.array([0, NUM_NODES]))
    with pytest.raises(UnknownNameError, match="layer 3 of 2"):
        found.at("node", np.array([0]), layer=3)
    found.path(2, "node", 1).unlink()
    with pytest.raises(FormatError, match=r"part-00001\.npy"):
        found.at("node", np.arange(NUM_NODES))
    with pytest.raises(FormatError, match="holds no embeddings"):
        open_embeddings(tmp_path)
    (tmp_path / "out" / "embeddings.json").write_text('{"format": 7}')
    with pytest.raises(FormatError, match="has format 7; this version reads 1"):
        open_embeddings(tmp_path / "out")


@pytest.mark.parametrize(
    "offsets",
    [{}, [], {"node": []}, {"node": [0]}, {"node": [0, 10**19]}, {"node": [1, 5]}, {"node": [0, 5, 3]},
     {"node": [0, 2.5]}, {"node": [-1, 5]}, {"node": None}, {"node": [0, "5"]}, {"a": [0, 5], "node": [0, 2, 5]}],
)  # fmt: skip
def test_a_record_with_foreign_ranges_is_refused(places, tmp_path, offsets):
    infer(places.folders[1], tmp_path / "out")
    path = tmp_path / "out" / "embeddings.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "node_offsets": offsets}))
    with pytest.raises(FormatError, match=r"embeddings\.json (has node_offsets|is not a record)"):
        open_embeddings(tmp_path / "out")
    path.write_text(json.dumps({**record, "node_types": ["other"]}))
    with pytest.raises(FormatError, match=r"node_types \['other'\] that have no node_offsets"):
        open_embeddings(tmp_path / "out")
