"""Checks that damaged part files are errors, and that sizes they claim take no memory."""

import json
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from hopstream.compat.dgl.binary import write_tensor_file
from hopstream.compat.dgl.distributed import (
    load_partition,
    partition_graph,
    read_partitions,
)
from hopstream.compat.dgl.graph_files import read_graph_file, write_graph_file
from hopstream.errors import FormatError, HopstreamError
from tests.compat.dgl.graphs import plain_graph, some_owners

NUM_DAMAGES = 25
GONE = object()
WRONG = (
    *(None, True, -1, 1.5, 10**30, "/etc/passwd", "\0", "\ud800"),
    *([[]], {"x": 1}, {"_N": [[0, 9], [9]]}),
)
HUGE = (2**62, {"_N": [[0, 2**62], [2**62, 2**62]]})
"""Large values that may be valid; none of them may allocate memory."""


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    graph, path = plain_graph(), tmp_path_factory.mktemp("parts")
    partition_graph(graph, "g", 2, path, part_method="file", owners=some_owners(graph, 2))
    return path / "g.json"


@pytest.fixture
def edited(written):
    """Writes the JSON file with other values beside the first one."""
    path = written.with_name("edited.json")

    def edit(**fields):
        path.write_text(json.dumps({**json.loads(written.read_text()), **fields}))
        return path

    return edit


@pytest.mark.parametrize("what", ["node", "edge"])
def test_sizes_are_checked_before_memory_is_allocated(edited, what):
    label = {"node": "_N", "edge": "_N:_E:_N"}[what]
    number = 10**8
    path = edited(**{f"num_{what}s": number, f"{what}_map": {label: [[0, number], [number, number]]}})
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=rf"part 0 of .* has {number} {what}s according to the JSON file"):
            read_partitions(path)
        assert tracemalloc.get_traced_memory()[1] < 10**7
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"part-0": {"part_graph": 7}}, "part-0 .*wanted names of files"),
        ({"part-1": [["part_graph", "x"]]}, "part-1 .*wanted names of files"),
        ({"part-0": {"part_graph": "a\0b"}}, "cannot be read"),
        ({"part-0": {"part_graph": "part0"}}, "cannot be read"),
        ({"hopstream": 7}, "hopstream 7"),
        ({"hopstream": {"splits": 7}}, "splits 7"),
        ({"hopstream": {"edge_splits": {"_N": [1]}}}, "edge_splits"),
        ({"hopstream": {"label_types": {"_N": "x"}}}, "label_types"),
        ({"hopstream": {"booleans": 3}}, "booleans 3"),
        ({"num_nodes": "30"}, "num_nodes '30'"),
        ({"halo_hops": float("inf")}, "halo_hops inf"),
        ({"num_parts": True}, "num_parts True"),
        ({"edge_map": {"a:b:c": [[0, 1], [1, 120]]}, "etypes": {"a:b:c": 0}}, "unknown nodes"),
    ],
)
def test_error_names_the_place_of_a_wrong_value(edited, fields, said):
    with pytest.raises(FormatError, match=said):
        read_partitions(edited(**fields))


def test_wide_rows_of_empty_arrays_take_no_memory(tmp_path):
    graph = plain_graph()
    partition_graph(graph, "g", 2, tmp_path, part_method="file", owners={"node": np.ones(30, np.int32)})
    write_tensor_file(tmp_path / "part0/node_feat.dgl", {"_N/feat": np.empty((0, 10**12), np.float32)})
    with pytest.raises(FormatError, match="unlike other parts"):
        read_partitions(tmp_path / "g.json")


def values_of(value, place=()):
    """Paths of all values in JSON, from the outermost on."""
    yield place
    for key, of in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from values_of(of, (*place, key))


def damaged(text):
    """The place of the damage, its value, and the damaged text: a missing or wrong value, or a cut text."""
    places = list(values_of(json.loads(text)))[1:]
    for place in places:
        for wrong in (GONE, *WRONG, *HUGE):
            value = inner = json.loads(text)
            for key in place[:-1]:
                inner = inner[key]
            if wrong is GONE:
                del inner[place[-1]]
            else:
                inner[place[-1]] = wrong
            yield place, wrong, json.dumps(value)
    for wrong in WRONG:
        yield "all", wrong, json.dumps(wrong)
    for length in range(0, len(text), 97):
        yield "the first letters", length, text[:length]
    yield "many brackets", None, "[" * 10**5
    yield "a long number", None, text.replace("30", "3" * 5000)


@pytest.mark.parametrize("load", [lambda path: load_partition(path, 1), read_partitions], ids=["partition", "all"])
def test_any_value_of_the_json_file_may_be_wrong(written, load):
    path = written.with_name("fuzz.json")
    num_refused = 0
    load(written)
    for what, wrong, text in damaged(written.read_text()):
        path.write_text(text)
        if wrong in HUGE:  # not for all values, as it is slow
            tracemalloc.start()
        try:
            load(path)
        except HopstreamError as error:
            num_refused += 1
            assert str(written.parent) in str(error), (what, wrong)
        except Exception as error:
            raise AssertionError(f"{what} = {wrong!r} ended in {error!r}") from error
        finally:
            num_bytes = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert num_bytes < 4 * 10**6, (what, wrong)
    assert num_refused > 200


@pytest.mark.parametrize("name", ["graph.dgl", "node_feat.dgl", "edge_feat.dgl"])
def test_damaged_bytes_are_reported_or_harmless(written, name):
    file, rng = written.parent / "part1" / name, np.random.default_rng(4)
    whole = file.read_bytes()
    used = np.flatnonzero(np.frombuffer(whole, np.uint8))
    try:
        for place in rng.choice(used, NUM_DAMAGES):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << rng.integers(0, 8)
            file.write_bytes(damaged)
            try:
                read_partitions(written)
            except HopstreamError:
                pass
            except Exception as error:
                raise AssertionError(f"byte {place} ended in {error!r}") from error
    finally:
        file.write_bytes(whole)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda g: replace(g, ndata={**g.ndata, "_ID": g.ndata["_ID"] * 0.5}), "'_ID' as float64"),
        (lambda g: replace(g, edata={**g.edata, "orig_id": np.zeros((len(g.src), 2))}), "'orig_id' as float64"),
        (
            lambda g: replace(g, ndata={**g.ndata, "_ID": g.ndata["_ID"] + 30}),
            r"18 nodes, numbers 30\.\.47, of its own",
        ),
        (
            lambda g: replace(g, ndata={**g.ndata, "_ID": g.ndata["_ID"] + 30 * (g.ndata["inner_node"] == 0)}),
            r"node \d+ in position \d+ does not exist; nodes are 0\.\.29",
        ),
        (lambda g: replace(g, dst=g.dst[1:]), "sources and .* destinations"),
    ],
)
def test_graphs_of_parts_that_contradict_themselves_are_refused(written, edit, said):
    file = written.parent / "part0/graph.dgl"
    whole = file.read_bytes()
    try:
        write_graph_file(file, edit(read_graph_file(file)))
        with pytest.raises(FormatError, match=said):
            read_partitions(written)
    finally:
        file.write_bytes(whole)
