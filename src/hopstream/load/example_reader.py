"""Reads examples of exported files as graph tensors, in any order."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from hopstream.arrays import IntArray
from hopstream.checks import known_names
from hopstream.errors import FormatError, SchemaError, SettingsError, UnknownNameError
from hopstream.ingest.example_tables import ExampleTables, is_parquet
from hopstream.kernels.hashing import derive_seed
from hopstream.places.paths import AnyPath, is_remote, path_of
from hopstream.tfgnn.graph_schema import check_schema, read_schema
from hopstream.tfgnn.graph_tensor import GraphPieces, decode_graphs, graphs_of_lists, list_names
from hopstream.tfgnn.readout import check_readout, is_readout
from hopstream.tfgnn.record_files import RecordFiles
from hopstream.tfgnn.spec import EdgeSetSpec, FieldSpec, GraphSpec, NodeSetSpec
from hopstream.tfgnn.tfrecord import files_of

Files = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")
SetSpec = TypeVar("SetSpec", NodeSetSpec, EdgeSetSpec)


def example_paths(files: Files) -> list[Path]:
    """Find the files of one or several names, such as ``train.tfrecord@8`` or ``train-*.parquet``.

    Files at URIs are copied to the cache folder once, with the schemas beside them; see ``places.cache``.

    Raises:
        FormatError: A file is missing, or there are both TFRecord and Parquet files.
        SettingsError: No name is given.
        StateError: Another process copies the files and makes no progress, or they change meanwhile.
        OSError: A file cannot be read; the error names it.
    """
    names = [files] if isinstance(files, str | os.PathLike) else list(files)
    paths = [path for name in names for path in _files_here(files_of(path_of(name)))]
    if not paths:
        raise SettingsError("no files are given; give at least one name")
    kinds = [is_parquet(path) for path in paths]
    if any(kinds) and not all(kinds):
        raise FormatError(f"{paths[kinds.index(False)]} is not a Parquet file, but {paths[kinds.index(True)]} is")
    return paths


def _files_here(paths: Sequence[AnyPath]) -> list[Path]:
    """Return the paths, all in one folder, or those of their cached copies."""
    if not any(map(is_remote, paths)):
        return [cast(Path, path) for path in paths]
    from hopstream.places.cache import copied_here  # imported here, because it loads Arrow

    folder = paths[0].parent
    schemas = (path.name for path in folder.glob("*.pbtxt"))
    copy = copied_here(folder, {*schemas, *(path.name for path in paths)})
    return [copy / path.name for path in paths]


def schema_of(schema: Any, paths: Sequence[Path]) -> Any:
    """Return the given ``GraphSchema`` message, or read it from a path or from beside the files.

    Beside ``train.tfrecord-00000-of-00008`` it is ``train.tfrecord.pbtxt``, or else the only ``.pbtxt`` there.

    Raises:
        FormatError: There is no schema, there are several, or the file is no schema.
        SchemaError: The schema contradicts itself.
    """
    if schema is None:
        own = paths[0].with_name(_SHARD.sub("", paths[0].name) + ".pbtxt")
        schema = own if own.is_file() else paths[0].parent
    message = read_schema(path_of(schema)) if isinstance(schema, str | os.PathLike) else schema
    check_schema(message)
    return message


def chosen_spec(
    spec: GraphSpec, nodes: Mapping[str, Sequence[str]] | None, edges: Mapping[str, Sequence[str]] | None,
    context: Sequence[str] | None, *, has_strings: bool,
) -> GraphSpec:  # fmt: skip
    """Return the spec with the chosen features only; None chooses all.

    Args:
        spec: The spec of all features.
        nodes: Node set to feature names, and nothing for other sets.
        edges: Edge set to feature names, and nothing for other sets.
        context: Names of context features.
        has_strings: Keep features that hold strings.

    Raises:
        UnknownNameError: There is no such set or feature.
        SettingsError: A name is given instead of a list of names.
    """

    def chosen(where: str, of: Mapping[str, FieldSpec], names: Sequence[str] | None) -> dict[str, FieldSpec]:
        if isinstance(names, str):
            raise SettingsError(f"{where} is the name {names!r}; give a list of names: [{names!r}]")
        for name in names or ():
            if name not in of:
                raise UnknownNameError(f"{where}: feature {name!r} does not exist; {known_names(name, sorted(of))}")
        kept = of if names is None else {name: of[name] for name in of if name in names}
        return {name: field for name, field in kept.items() if has_strings or not field.is_string}

    def chosen_of_sets(
        setting: str, sets: Mapping[str, SetSpec], names: Mapping[str, Sequence[str]] | None
    ) -> dict[str, SetSpec]:
        for name in names or ():
            if name not in sets:
                raise UnknownNameError(f"{setting}: set {name!r} does not exist; {known_names(name, sorted(sets))}")
        return {
            name: replace(
                of, features=chosen(f"{setting}[{name!r}]", of.features, None if names is None else names.get(name, ()))
            )
            for name, of in sets.items()
        }

    return GraphSpec(
        context=chosen("context_features", spec.context, context),
        node_sets=chosen_of_sets("node_features", spec.node_sets, nodes),
        edge_sets=chosen_of_sets("edge_features", spec.edge_sets, edges),
    )


class ExampleReader:
    """Reader of graph tensors of exported examples, by number over all files. Thread-safe."""

    def __init__(
        self, paths: Sequence[Path], spec: GraphSpec, *, num_components: int = 1, prefix: str = "", window: int = 1024
    ) -> None:
        """Open TFRecord or Parquet files.

        Args:
            paths: The files.
            spec: The sets and features to read.
            num_components: Components of each graph.
            prefix: Prefix of every name in the examples.
            window: Examples that are read at about the same time.

        Raises:
            FormatError: A file is damaged or has another format.
            OSError: A file cannot be read.
        """
        self.spec = spec
        self._num_components, self._prefix = num_components, prefix
        self._names = list(list_names(spec, prefix))
        self._readouts = [name for name in spec.node_sets if is_readout(name)]
        self._files: RecordFiles | ExampleTables
        if is_parquet(paths[0]):
            self._files = ExampleTables(paths, self._names, window=window)
        else:
            self._files = RecordFiles(paths, stretch=window)
        self.sizes = self._files.sizes
        """Examples of each file."""

    def fingerprint(self) -> str:
        """Return the hex digits of the files' sizes and numbers of examples."""
        return f"{derive_seed(*self.sizes, *(path.stat().st_size for path in self._files.paths)):016x}"

    def graphs(self, numbers: IntArray) -> GraphPieces:
        """Read the given examples as graph tensors, in the given order, and check their readouts.

        Raises:
            FormatError: An example contradicts the schema; the error names its file and its number there.
            SchemaError: A readout breaks the rules of ``check_readout``.
        """
        try:
            return self._graphs(numbers)
        except (FormatError, SchemaError):
            for number in numbers.tolist():
                self._check_alone(number)
            raise

    def _check_alone(self, number: int) -> None:
        """Raise the error of one example, if it has one, with its file and record."""
        try:
            self._graphs(np.array([number], np.int64))
        except (FormatError, SchemaError) as error:
            path, row = self._files.place(number)
            text = str(error).removeprefix("message 0: ")
            where = f"{path}: record {row}: "
            raise type(error)(text if text.startswith(str(path)) else where + text) from error

    def _graphs(self, numbers: IntArray) -> GraphPieces:
        wanted = {"num_components": self._num_components, "prefix": self._prefix}
        if isinstance(self._files, ExampleTables):
            lists = self._files.read(numbers)
            graphs = graphs_of_lists(lists, len(numbers), self.spec, **wanted)  # type: ignore[arg-type]
        else:
            graphs = decode_graphs(self._files.read(numbers), self.spec, **wanted)  # type: ignore[arg-type]
        for name in self._readouts:
            check_readout(graphs, name)
        return graphs
