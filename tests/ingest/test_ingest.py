"""Checks that ``read_graph`` finds each source's reader, and lists the readers if none fits."""

import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from hopstream.errors import FormatError, SettingsError
from hopstream.ingest import graph_from_arrays, graph_from_data, read_graph

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch_geometric.data import Data, HeteroData

CORA = Path(__file__).parents[2] / "examples" / "data" / "cora.npz"


def test_files_by_path_and_by_string():
    assert read_graph(CORA).schema == read_graph(str(CORA)).schema


def test_read_graph_takes_data_objects():
    data = Data(num_nodes=3, edge_index=torch.empty((2, 0), dtype=torch.int64))
    assert read_graph(data).schema == graph_from_data(data).schema
    hetero = HeteroData()
    hetero["paper"].num_nodes = 2
    hetero["paper", "cites", "paper"].edge_index = data.edge_index
    assert read_graph(hetero).nodes["paper"].num_nodes == 2


def test_read_graph_takes_tables_by_file_or_folder(tmp_path):
    (tmp_path / "n.csv").write_text("id\n1\n")
    (tmp_path / "graph.json").write_text('{"nodes": {"a": {"files": "n.csv", "id": "id"}}}')
    assert read_graph(tmp_path / "graph.json").nodes["a"].num_nodes == 1
    (tmp_path / "graph.json").rename(tmp_path / "metadata.json")
    assert read_graph(tmp_path, keep_raw_ids=False).nodes["a"].features == {}


@pytest.mark.parametrize("name", ["a.dat", "a.pt", "a.pkl", "schema.yaml", "no-suffix"])
def test_error_for_an_unknown_source_lists_known_sources(tmp_path, name):
    (tmp_path / name).write_text("")
    with pytest.raises(FormatError, match=r"a graph is read from an \.npz file, a \.json file that describes tables"):
        read_graph(tmp_path / name)


def test_folders_without_a_graph_are_refused(tmp_path):
    with pytest.raises(FormatError, match=r"has no metadata\.json; a graph is read from"):
        read_graph(tmp_path)
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(FormatError, match=r"is a dataset; hopstream\.read_dataset makes a graph"):
        read_graph(tmp_path)


def test_read_graph_names_missing_files(tmp_path):
    for name in ("a.npz", "a.json"):
        with pytest.raises(FormatError, match="is missing"):
            read_graph(tmp_path / name)


def test_options_of_other_sources_are_refused(tmp_path):
    with pytest.raises(SettingsError, match="npz files have no option 'keep_raw_ids'"):
        read_graph(CORA, keep_raw_ids=True)
    with pytest.raises(SettingsError, match="data objects have no option 'x'"):
        read_graph(Data(num_nodes=1), x=1)
    with pytest.raises(
        SettingsError,
        match=r"tables have no option 'keep'; known: \['keep_raw_ids', 'on_dangling', 'on_duplicate', 'data_path', ",
    ):
        read_graph(tmp_path / "a.json", keep=True)


def test_arrow_is_imported_for_tables_only():
    code = "import sys, hopstream.ingest as i; i.read_graph(sys.argv[1]); print('pyarrow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, CORA], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"


def test_graph_from_arrays_is_public():
    assert graph_from_arrays(np.zeros((2, 1), int)).check().schema.is_homogeneous
