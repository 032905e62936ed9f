"""Checks of the three steps that take the place of ParMETIS, one command after the other."""

import numpy as np
import pytest

import hopstream
from hopstream.compat.dgl.tools import dispatch_data, parmetis_postprocess, parmetis_preprocess, pm_dglpart
from hopstream.ingest.chunked import write_chunked

TYPES = {"b": 40, "a": 90, "c": 1}
ENDS = {("a", "to", "b"): 300, ("b", "rev", "a"): 200, ("a", "knows", "a"): 300, ("c", "none", "b"): 0}


def typed_graph():
    """Two communities that only a few edges join."""
    rng = np.random.default_rng(7)
    edges = {}
    for (src, name, dst), number in ENDS.items():
        side = rng.integers(0, 2, number)
        pair = [rng.integers(0, TYPES[t] // 2 or 1, number) * 2 + side for t in (src, dst)]
        edges[src, name, dst] = np.stack([end % TYPES[t] for end, t in zip(pair, (src, dst), strict=True)])
    return hopstream.graph_from_arrays(edges, num_nodes=TYPES)


@pytest.fixture
def chunks(tmp_path, monkeypatch):
    """A chunked graph in the current folder, with ParMETIS's files beside it."""
    graph = typed_graph()
    write_chunked(graph, tmp_path / "chunks", name="mag", num_chunks=3)
    monkeypatch.chdir(tmp_path)
    given = "--input_dir chunks --schema_file metadata.json --output_dir parmetis --num_parts 2"
    assert parmetis_preprocess.main(given.split()) == 0
    return graph, tmp_path


PART = "mag 2 parmetis/parmetis_nfiles.txt parmetis/parmetis_efiles.txt"
POST = (
    "--postproc_input_dir chunks --schema_file metadata.json --parmetis_output_file mag_part.2 --partitions_dir owners"
)


def test_files_have_the_lines_that_parmetis_reads(chunks):
    graph, root = chunks
    assert (root / "chunks/mag_stats.txt").read_text() == "131 800 3"
    listed = [line.split() for line in (root / "parmetis/parmetis_nfiles.txt").read_text().splitlines()]
    assert [name for name, *_ in listed] == [
        f"parmetis/node_weights_{t}_{part}.txt" for t in graph.nodes for part in (0, 1)
    ]
    lines = []
    for name, first, stop in listed:
        found = (root / name).read_text().splitlines()
        assert (len(lines), len(lines) + len(found)) == (int(first), int(stop))
        lines += found
    types = list(graph.nodes)
    wanted = [
        f"{n} {' '.join(str(int(other == n)) for other in range(3))} {key}"
        for n, t in enumerate(types)
        for key in range(TYPES[t])
    ]
    assert lines == wanted
    first = dict(zip(types, np.cumsum([0, *(TYPES[t] for t in types)]).tolist(), strict=False))
    files = (root / "parmetis/parmetis_efiles.txt").read_text().splitlines()
    found = [line.split() for name in files for line in (root / name).read_text().splitlines()]
    assert [list(map(int, pair)) for pair in found] == [
        [src + first[t[0]], dst + first[t[2]]]
        for t, table in graph.edges.items()
        for src, dst in zip(table.src_keys.tolist(), table.dst_keys.tolist(), strict=True)
    ]


def test_the_pipeline_runs_command_by_command(chunks):
    graph, root = chunks
    assert pm_dglpart.main(PART.split()) == 0
    lines = [tuple(map(int, line.split())) for line in (root / "mag_part.2").read_text().splitlines()]
    assert [node for node, _ in lines] == list(range(131)) and {part for _, part in lines} == {0, 1}
    assert parmetis_postprocess.main(POST.split()) == 0
    owners, before = {}, 0
    for t, number in TYPES.items():
        owners[t] = np.loadtxt(root / f"owners/{t}.txt", np.int64, ndmin=1)
        assert owners[t].tolist() == [part for _, part in lines[before : before + number]]
        before += number
    assert all(abs(int((owners[t] == 0).sum()) - TYPES[t] // 2) <= TYPES[t] // 10 for t in ("a", "b"))
    num_cut = sum(int((owners[t[0]][e.src_keys] != owners[t[2]][e.dst_keys]).sum()) for t, e in graph.edges.items())
    assert num_cut < 200  # of 800; random parts cut about 400
    given = "--in-dir chunks --partitions-dir owners --out-dir parts --workers 0"
    assert dispatch_data.main(given.split()) == 0
    assert hopstream.read_dataset(root / "parts").fingerprint() == graph.fingerprint()
    assert not list(root.glob(".mag*"))


def test_results_of_parmetis_are_read_in_any_order(chunks, capsys):
    _, root = chunks
    rng = np.random.default_rng(1)
    parts = rng.integers(0, 2, 131)
    lines = [f"{node} {parts[node]}\n" for node in rng.permutation(131)]
    (root / "mag_part.2").write_text("".join(lines))
    assert parmetis_postprocess.main(POST.split()) == 0
    assert np.loadtxt(root / "owners/a.txt", np.int64).tolist() == parts[40:130].tolist()
    for text, said in (
        ("".join(lines[:-1]), "does not have one line for each node 0..130"),
        ("".join([*lines, "131 0\n"]), "does not have one line for each node 0..130"),
        ("".join([*lines[:-1], lines[0]]), "does not have one line for each node 0..130"),
        ("".join([*lines[:-1], "x y\n"]), "cannot be read"),
        ("".join(lines).replace(" 1\n", " 2\n"), "parts are numbered 0..1"),
    ):
        (root / "mag_part.2").write_text(text)
        capsys.readouterr()
        assert parmetis_postprocess.main([*POST.split(), "--overwrite"]) == 2
        assert said in capsys.readouterr().err


def test_damaged_lists_of_files_are_refused(chunks, capsys):
    _, root = chunks
    nodes = root / "parmetis/parmetis_nfiles.txt"
    text = nodes.read_text()
    for changed, said in (
        (text.replace(" 0 20\n", " 0 21\n"), "has 21 nodes; the file has another number of lines"),
        (text.replace(" 20 40\n", " 21 40\n"), "wanted a file and its range of nodes, from 20 on"),
        (text.replace(" 20 40\n", " 20\n"), "wanted a file and its range of nodes, from 20 on"),
        (text.replace("weights_a_1", "weights_d_1"), "run parmetis_preprocess again"),
    ):
        nodes.write_text(changed)
        capsys.readouterr()
        assert pm_dglpart.main(PART.split()) == 2
        assert said in capsys.readouterr().err
    nodes.unlink()
    assert pm_dglpart.main(PART.split()) == 2
    assert "give a file that parmetis_preprocess wrote" in capsys.readouterr().err
    assert not (root / "mag_part.2").exists()
