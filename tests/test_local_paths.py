"""Checks that a URI is refused in place of a local path, before anything is read or made."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch
import typer.main
from torch_geometric.data import Data

import hopstream
from hopstream.cli.command import _make_app, run_command
from hopstream.errors import SchemaError, SettingsError
from hopstream.places.remote_path import RemotePath
from hopstream.tfgnn.graph_schema import schema_message
from hopstream.transport.security import read_pem
from hopstream.transport.tokens import read_token
from hopstream.uris import local_path

URI = "gs://bucket/x.json"
REFUSED = (
    r"gs://bucket/x\S* is not on this machine; give the path of a local|is not a location; .*pull|give --cache-dir"
)
DOORS = (
    "hopstream", "hopstream.dataset", "hopstream.export", "hopstream.graph", "hopstream.load", "hopstream.sample",
    "hopstream.serve", "hopstream.tfgnn", "hopstream.compat.dgl.data", "hopstream.compat.dgl.distributed",
    "hopstream.compat.pyg",
    "hopstream.compat.tfgnn", "hopstream.compat.tfgnn.sampler",
)  # fmt: skip
DEEPER = (read_pem, read_token)
PATHS = re.compile(r"\b(Any)?Path|\bSource(Like)?\b|\bFiles\b|\bOwnersSource\b|\bAgainst\b|\bSeeds\b")
ELSEWHERE = {
    ("pull", "source"), ("place", "root"), ("dispatch", "root"), ("tfgnn-sample", "beam_options"),
    ("export", "beam_options"), ("serve", "location"), ("serve", "cluster"), ("up", "source_dataset"),
}  # fmt: skip
"""Parameters that may be URIs."""
OPENED = {
    ("prepare", "source"), ("chunk_tables", "source"), ("read_graph", "source"), ("export_subgraphs", "out"),
    ("export_subgraphs", "seeds"), ("ExampleLoader", "files"),
    ("ExampleDataset", "files"),
    ("ingest", "source"), ("partition", "source"), ("chunk", "source"), ("export", "out"),
    ("export", "seeds"), ("tfgnn-sample", "seeds"), ("TableSettings", "data_path"), ("read_tables", "path"),
    ("files_of", "name"), ("read_schema", "path"), ("read_records", "name"),
    *((name, "source") for name in (
        "ABLPLoader", "ClusterLoader", "DatasetFeatureStore", "DatasetGraphStore", "DatasetSampler", "HGTLoader",
        "LinkNeighborLoader", "NeighborLoader", "PPRLoader", "RandomNodeLoader", "export_subgraphs", "find_keys",
        "infer_layerwise", "open_store", "open_stores", "random_walks", "rank_links", "rank_nodes", "walk_batches",
        "assign", "export", "inspect", "reshard", "unigraph",
    )),
    *((name, "root") for name in (
        "open_dataset", "open_dataset_source", "read_dataset", "read_key_book", "read_part", "read_part_features",
        "read_transforms", "reshard", "verify_dataset",
    )),
    *((name, "out") for name in (
        "write_parts", "prepare", "ingest", "partition", "reshard", "chunk", "chunk_tables", "unigraph",
        "write_chunked", "write_unigraph", "write_tables",
    )),
    ("DistGraph", "part_config"), ("graph_from_edge_list", "path"), ("open_chunked", "path"), ("read_arrow", "dataset"),
    ("serve", "source_dataset"), ("verify", "against"), ("verify", "dataset"), ("verify_dataset", "against"),
    ("write_npz", "path"), ("write_unigraph", "source"), ("write_partition_folders", "graph"),
    ("write_partitions", "graph"),
    *((verb, "data_path") for verb in ("ingest", "partition", "prepare", "chunk", "assign", "verify", "export",
                                       "tfgnn-sample", "unigraph")),
}  # fmt: skip
"""Parameters whose URIs are opened."""
MADE_HERE = {
    ("ChunkReport", "metadata"), ("Dataset", "root"), ("ExportReport", "paths"), ("ExportReport", "schema_path"),
    ("Cluster", "token_file"), ("ServerEntry", "path"), ("StoreServer", "path"), ("ExportSettings", "data_path"),
    ("SampleSubgraphs", "source"), ("assign_nodes", "scratch"), ("read_cluster", "path"), ("files_of", "root"),
    ("read_records", "path"), ("Embeddings", "root"),
}  # fmt: skip
"""Fields of records whose paths were checked when the record was made, and paths that are opened at once."""
GRAPH = hopstream.graph_from_arrays(np.array([[0, 1], [1, 0]]))
OTHERS: dict[str, Any] = {
    "graph": GRAPH, "g": GRAPH, "data": Data(edge_index=torch.tensor([[0], [1]])), "num_neighbors": [2], "pid": 0,
    "spec": 'seed_op { op_name: "seed" node_set_name: "a" }', "layer": lambda batch: batch.x, "num_layers": 1,
    "num_parts": 2, "num_batches": 1, "supervision": "a__b__c", "part": 0, "part_id": 0, "partition_idx": 0, "rank": 0,
    "world_size": 1, "start": [0], "walk_length": 2, "roots": ["root"], "graph_name": "g", "name": "g",
    "tensor_dict": {}, "schema": schema_message(GRAPH.schema), "raw_ids": ["a"],
}  # fmt: skip


def _functions() -> Iterator[tuple[str, Callable[..., Any], str]]:
    """Every public function, class or constructor that takes a path, with each parameter that takes it."""
    found: dict[str, Callable[..., Any]] = {function.__name__: function for function in DEEPER}
    for door in DOORS:
        module = importlib.import_module(door)
        for name in module.__all__:
            value = getattr(module, name)
            found[f"{door}.{name}"] = value
            if inspect.isclass(value):
                makers = [n for n, maker in vars(value).items() if isinstance(maker, classmethod | staticmethod)]
                found |= {f"{door}.{name}.{n}": getattr(value, n) for n in makers if n[0] != "_"}
    for name, function in found.items():
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):
            continue
        for one in parameters:
            is_path = one.name == "data_path" or PATHS.search(str(one.annotation))
            if is_path and (name.rpartition(".")[2], one.name) not in ELSEWHERE | MADE_HERE:
                yield name, function, one.name


def _verbs() -> Iterator[tuple[str, Any, Callable[..., Any]]]:
    """The words of every verb, its command, and its function."""
    app = _make_app()
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for one in app.registered_commands:
        yield str(one.name), commands[one.name], one.callback  # type: ignore[misc]
    for group in app.registered_groups:
        for one in group.typer_instance.registered_commands:  # type: ignore[union-attr]
            yield f"{group.name} {one.name}", commands[group.name].commands[one.name], one.callback  # type: ignore[misc]


def _texts() -> Iterator[tuple[str, str, list[str]]]:
    """Every verb with each of its parameters that is text, and a command line that gives it a URI."""
    for verb, command, function in _verbs():
        annotations = {name: str(of) for name, of in get_type_hints(function, include_extras=True).items()}
        for chosen in command.params:
            annotation = annotations.get(chosen.name, "").partition("typer.models")[0]
            is_text = re.search(r"\b(str|Path)\b", annotation) and not getattr(chosen, "hidden", False)
            if not is_text or (verb, chosen.name) in ELSEWHERE:
                continue
            words = verb.split()
            for other in command.params:
                flag = [other.opts[0]] if other.param_type_name == "option" else []
                if other is chosen or other.required:
                    words += [*flag, URI if other is chosen else "1" if other.name.startswith("num_") else "not-there"]
            yield verb, chosen.name, words


_FOUND, _TOLD = list(_functions()), list(_texts())
FUNCTIONS = [one for one in _FOUND if (one[0].rpartition(".")[2], one[2]) not in OPENED]
TEXTS = [one for one in _TOLD if one[:2] not in OPENED]
OPENING = [one for one in _FOUND if one not in FUNCTIONS], [one for one in _TOLD if one not in TEXTS]


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    assert not list(tmp_path.iterdir())


def test_functions_and_verbs_are_found():
    functions = {f"{name.rpartition('.')[2]}.{parameter}" for name, _, parameter in FUNCTIONS}
    assert {"append.dataset", "assign_folder.out", "write_parts.owners", "reshard.partitions_dir"} <= functions
    texts = {text[:2] for text in TEXTS}
    assert {("tfgnn-sample", "output_samples"), ("compact", "path"), ("verify", "owners")} <= texts
    assert len(FUNCTIONS) >= 60
    assert len({verb for verb, _ in texts}) >= 20


@pytest.mark.parametrize("number", range(len(FUNCTIONS)), ids=[f"{one[0]} {one[2]}" for one in FUNCTIONS])
def test_functions_refuse_uris(number: int):
    """In turn as text and as a path."""
    with pytest.raises(SettingsError, match=REFUSED):
        call(*FUNCTIONS[number], Path(URI) if number % 2 else URI)


def call(name: str, function: Callable[..., Any], parameter: str, given: str | Path) -> None:
    """Call a function with a value of a parameter, and some value of each other that it needs."""
    arguments: dict[str, Any] = {parameter: given}
    for other in inspect.signature(function).parameters.values():
        is_needed = other.default is inspect.Parameter.empty and other.kind != other.VAR_KEYWORD
        if other.name not in arguments and (is_needed or other.name == "walk_length"):
            arguments[other.name] = OTHERS.get(other.name, f"not-there/{other.name}")
    if name == "hopstream.sample.walk_batches":
        arguments["walk_length"] = 2
    _ = [*result] if inspect.isgenerator(result := function(**arguments)) else result


def test_uris_of_tables_and_exports_are_opened(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """The list of parameters that may be URIs is true."""

    def opened(uri: str) -> None:
        raise SettingsError(f"{uri} is opened")

    monkeypatch.setattr(RemotePath, "of", opened)
    functions, texts = OPENING
    named = {(name.rpartition(".")[2], parameter) for name, _, parameter in functions} | {one[:2] for one in texts}
    assert named == OPENED
    for one in functions:
        with pytest.raises(SettingsError, match=f"{URI} is opened"):
            call(*one, URI)
    for verb, parameter, words in texts:
        if parameter in ("source", "out"):  # others are opened only after files that are missing here
            assert run_command(words) == 2
            assert f"{URI} is opened" in capsys.readouterr().err, (verb, parameter)


@pytest.mark.parametrize("words", [words for _, _, words in TEXTS], ids=[" ".join(text[:2]) for text in TEXTS])
def test_verbs_refuse_uris(words: list[str], capsys: pytest.CaptureFixture[str]):
    status, told = run_command(words), capsys.readouterr().err
    assert status == 2
    assert re.search(REFUSED, told), told


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("file:///data/mag", "file:///data/mag is a URI, which is not read; write the path: /data/mag"),
        (Path("file:///data/mag"), "file:///data/mag is a URI, which is not read; write the path: /data/mag"),
        ("s3://me:hidden@bucket/mag", "s3://bucket/mag is not on this machine; "),
        (Path("tcp://host:7001"), "tcp://host:7001 is the address of a server; give it as a str, not as a Path"),
        (Path("unix:///run/s"), "unix:///run/s is the address of a server; give it as a str, not as a Path"),
        ("grpc+tls://h:1", "grpc+tls://h:1 is the address of a server; give the path of a local file or folder"),
        ("memory:/x", "memory://x is not on this machine; "),
        (" gs://bucket/x", "gs://bucket/x is not on this machine; "),
    ],
)
def test_error_names_the_remedy(given: Any, told: str):
    with pytest.raises(SettingsError, match="^" + re.escape(told)):
        local_path(given)
    assert local_path("./a:b/c") == Path("a:b/c")


def test_files_that_tables_name_are_local(tmp_path_factory: pytest.TempPathFactory):
    path = tmp_path_factory.mktemp("tables") / "metadata.json"
    path.write_text('{"nodes": {"a": {"files": "gs://bucket/a.csv", "id": "id"}}, "edges": []}', encoding="utf-8")
    with pytest.raises(SchemaError, match=r"gs://bucket/a\.csv.*files lie below"):
        hopstream.read_graph(path)
