"""Reads the graph at a path from the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hopstream.checks import check_choice
from hopstream.cli.progress import Clock, Facts, Output
from hopstream.cli.units import count_text, plural_text
from hopstream.errors import FormatError, SettingsError
from hopstream.ingest.source_paths import (
    are_partitions,
    check_data_path,
    description_of,
    is_edge_list,
    is_unigraph,
)
from hopstream.places.paths import AnyPath
from hopstream.schema import EdgeType

if TYPE_CHECKING:
    from hopstream.compat.partitions import Partitions
    from hopstream.graph.graph import Graph


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFlags:
    """Flags for reading tables: the fields of ``TableSettings``."""

    on_dangling: Literal["error", "drop"] = field(
        default="error",
        metadata={"help": "edges of tables whose end is not a node: stop with an error, or leave them out"},
    )
    on_duplicate: Literal["error", "drop"] = field(
        default="error",
        metadata={"help": "rows of node tables whose raw id an earlier row has: stop with an error, or leave them out"},
    )
    keep_raw_ids: bool = field(
        default=True, metadata={"help": "keep the raw ids of tables as a feature with the name of their column"}
    )
    data_path: str | None = field(
        default=None,
        metadata={"help": "the folder that file names in a unigraph's schema are relative to, or lie below, if it is "
                          "not the schema's own"},
    )  # fmt: skip
    transforms_of: str | None = field(
        default=None, metadata={"help": "a dataset whose fitted transforms are applied in place of fitting new ones"}
    )
    tokenizers: tuple[str, ...] = field(
        default=(), metadata={"help": "module:function, which transforms of text may import"}
    )

    def __post_init__(self) -> None:
        """Check the choices."""
        for name in ("on_dangling", "on_duplicate"):
            check_choice(name, getattr(self, name), ("error", "drop"))

    def check_source(self, path: AnyPath) -> None:
        """Refuse flags that do not fit the source.

        Raises:
            SettingsError: ``data_path`` is given for a source other than a unigraph, or a flag for tables for another
                source.
        """
        if not path.exists():  # the reader reports it
            return
        for flag, is_given in (
            ("--on-dangling", self.on_dangling != "error"), ("--on-duplicate", self.on_duplicate != "error"),
            ("--no-keep-raw-ids", not self.keep_raw_ids), ("--transforms-of", self.transforms_of is not None),
            ("--tokenizers", bool(self.tokenizers)),
        ):  # fmt: skip
            if is_given and not is_tables(path):
                raise SettingsError(f"{flag} is only for tables; {path} is not one: leave it out")
        if self.data_path is not None:
            check_data_path(description_of(path), self.data_path)

    @property
    def of_tables(self) -> dict[str, Any]:
        """Keyword arguments for ``TableSettings`` and ``chunk_tables``."""
        from hopstream.dataset.fitted import read_transforms

        names = ("on_dangling", "on_duplicate", "keep_raw_ids", "data_path", "tokenizers")
        fitted = None if self.transforms_of is None else read_transforms(self.transforms_of, tokenizers=self.tokenizers)
        return {**{name: getattr(self, name) for name in names}, "fitted": fitted}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings(TableFlags):
    """Flags for reading tables, ``.npz`` files, edge lists and OGB's folders.

    Other sources have no options.
    """

    ignore: str = field(
        default="",
        metadata={
            "help": "arrays of an .npz file to leave out: names joined by commas, or 'all' for all that match "
            "neither nodes nor edges"
        },
    )

    raw_ids: bool = field(
        default=False, metadata={"help": "the ends in an edge list are raw ids, numbers or names, not keys 0..n-1"}
    )
    columns: str = field(
        default="", metadata={"help": "names of the other columns of an edge list, joined by commas"},
    )  # fmt: skip
    edge_delimiter: str | None = field(
        default=None, metadata={"help": "the character between two values of an edge list; guessed if not given"}
    )
    header: Literal["guess", "yes", "no"] = field(
        default="guess", metadata={"help": "the first line of an edge list names its columns"}
    )
    num_nodes: int | None = field(
        default=None, metadata={"help": "number of nodes of an edge list of keys, if the last nodes have no edge"}
    )
    split: str | None = field(default=None, metadata={"help": "the split of an OGB folder to read"})
    inverse_edges: Literal["by-name", "yes", "no"] = field(
        default="by-name",
        metadata={"help": "add the reverse of each edge of an OGB folder: yes, no, or by-name, as OGB does"},
    )  # fmt: skip

    def __post_init__(self) -> None:
        """Check the choices."""
        TableFlags.__post_init__(self)  # super() fails here, because slots=True creates a new class
        check_choice("inverse_edges", self.inverse_edges, ("by-name", "yes", "no"))
        check_choice("header", self.header, ("guess", "yes", "no"))

    def check_source(self, path: AnyPath) -> None:
        """Refuse flags that do not fit the source.

        Raises:
            SettingsError: A flag is given that is for another kind of source.
        """
        if not path.exists():  # the reader reports it
            return
        TableFlags.check_source(self, path)
        for flag, is_given in (
            ("--raw-ids", self.raw_ids), ("--columns", bool(self.columns)),
            ("--edge-delimiter", self.edge_delimiter is not None),
            ("--header", self.header != "guess"), ("--nodes", self.num_nodes is not None),
        ):  # fmt: skip
            if is_given and not (is_edge_list(path) and path.is_file()):
                raise SettingsError(f"{flag} is only for edge lists; {path} is not one: leave it out")
        for flag, is_given in (
            ("--split", self.split is not None),
            ("--inverse-edges", self.inverse_edges != "by-name"),
        ):
            if is_given and not _is_ogb(path):
                raise SettingsError(f"{flag} is only for OGB folders; {path} is not one: leave it out")
        if self.ignore and path.suffix != ".npz":
            raise SettingsError(f"--ignore is only for .npz files; {path} is not one: leave it out")

    @property
    def ignored(self) -> str | list[str]:
        """Argument ``ignore`` of ``read_graph``."""
        return "all" if self.ignore == "all" else [name for name in self.ignore.split(",") if name]

    def options_of(self, path: AnyPath) -> dict[str, object]:
        """Return the keyword arguments of ``read_graph`` for a source."""
        if path.suffix == ".npz":
            return {"ignore": self.ignored}
        if path.is_dir():
            named = {"split": self.split, "inverse_edges": {"yes": True, "no": False}.get(self.inverse_edges)}
            return {name: value for name, value in named.items() if value is not None}
        if not (is_edge_list(path) and path.is_file()):
            return {}
        return {
            "ids": "raw" if self.raw_ids else "keys", "delimiter": self.edge_delimiter, "num_nodes": self.num_nodes,
            "has_header": {"yes": True, "no": False}.get(self.header),
            "columns": [name.strip() for name in self.columns.split(",")] if self.columns else [],
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReadSource:
    """A graph that was read.

    Attributes:
        graph: The graph.
        kind: Kind of the source: ``tables``, ``unigraph``, ``chunked``, ``npz``, ``edges``, ``ogb``, ``pt``, ``pyg``
            and ``dgl`` (partitions), ``dataset``.
        partitions: Parts of the nodes in partitions of PyG or DGL; None for other sources.
        num_dropped: Edge type to number of dropped edges of a table; empty for other sources.
        num_repeated: Node type to number of dropped rows of a table; empty for other sources.
    """

    graph: Graph
    kind: str
    partitions: Partitions | None = None
    num_dropped: Mapping[EdgeType, int] = field(default_factory=dict)
    num_repeated: Mapping[str, int] = field(default_factory=dict)

    def text(self) -> str:
        """Format the graph in one line: ``3 node types, 4 edge types, 21.1 M edges``."""
        num_edges = sum(table.num_edges for table in self.graph.edges.values())
        types = f"{plural_text(len(self.graph.nodes), 'node type')}, {plural_text(len(self.graph.edges), 'edge type')}"
        dropped = sum(self.num_dropped.values())
        left_out = f", {count_text(dropped)} dropped" if dropped else ""
        repeated = sum(self.num_repeated.values())
        left_out += f", {plural_text(repeated, 'repeated node')} dropped" if repeated else ""
        return f"{types}, {plural_text(num_edges, 'edge')}{left_out}"

    def facts(self) -> Facts:
        """Return the sizes of the graph as JSON values."""
        return {
            "source": self.kind,
            "node_types": len(self.graph.nodes),
            "edge_types": len(self.graph.edges),
            "nodes": sum(table.num_nodes for table in self.graph.nodes.values()),
            "edges": sum(table.num_edges for table in self.graph.edges.values()),
            "dropped_edges": sum(self.num_dropped.values()),
            "dropped_nodes": sum(self.num_repeated.values()),
        }


def read_source(path: AnyPath, settings: SourceSettings) -> ReadSource:
    """Read a graph.

    Args:
        path: An ``.npz`` file, the JSON file of tables or of a chunked graph, the ``.pbtxt`` of a unigraph, the folder
            of one of these, an edge list, an OGB folder, PyG's processed ``.pt``, the folder of PyG's or DGL's
            partitions, or the folder of a dataset.
        settings: Flags for reading.

    Raises:
        FormatError: The source is missing, damaged, or of an unsupported kind.
        SchemaError: The source does not hold a valid graph.
        SettingsError: A flag does not fit the source.
    """
    if not path.exists():
        raise FormatError(
            f"{path} is missing; give an .npz file, a metadata.json, a unigraph's .pbtxt, the folder of either, an "
            "edge list, an OGB folder, PyG's processed .pt, PyG's or DGL's partitions, or a dataset"
        )
    settings.check_source(path)
    if isinstance(path, Path) and (path / "manifest.json").exists():
        from hopstream.dataset.read_back import read_dataset

        return ReadSource(graph=read_dataset(path), kind="dataset")
    if isinstance(path, Path) and are_partitions(path):
        from hopstream.compat.partitions import read_partitions

        found = read_partitions(path)
        return ReadSource(graph=found.graph, kind=found.kind, partitions=found)
    tables = description_of(path)
    if (tables.suffix == ".json" or is_unigraph(tables)) and tables.exists():
        from hopstream.ingest.chunked import is_chunked, open_chunked

        if not is_unigraph(tables) and is_chunked(tables):
            return ReadSource(graph=open_chunked(tables).load(), kind="chunked")
        from hopstream.ingest.tables import TableSettings, read_tables

        result = read_tables(
            tables,
            TableSettings(**settings.of_tables),
        )
        kind = "unigraph" if is_unigraph(tables) else "tables"
        return ReadSource(
            graph=result.graph, kind=kind, num_dropped=result.num_dropped, num_repeated=result.num_repeated
        )
    from hopstream.load.files import read_graph

    kind = "ogb" if path.is_dir() else "edges" if is_edge_list(path) else path.suffix.lstrip(".") or "graph"
    return ReadSource(graph=read_graph(path, **settings.options_of(path)), kind=kind)


def _is_ogb(path: AnyPath) -> bool:
    from hopstream.ingest.ogb_folder import is_ogb_folder  # imported here, because it loads Arrow

    return isinstance(path, Path) and path.is_dir() and not (path / "manifest.json").exists() and is_ogb_folder(path)


def is_tables(path: AnyPath) -> bool:
    """Return whether a path is the description of tables, or a folder with one."""
    from hopstream.ingest.chunked import is_chunked

    if (path / "manifest.json").exists() or are_partitions(path):
        return False
    tables = description_of(path)
    if is_unigraph(tables):
        return tables.exists()
    return tables.suffix == ".json" and tables.exists() and not is_chunked(tables)


def read_and_show(output: Output, path: AnyPath, settings: SourceSettings) -> ReadSource:
    """Read a graph, and write a line about it."""
    clock = Clock()
    source = read_source(path, settings)
    output.stage("read", source.kind, source.text(), source.facts(), clock.cost())
    return source


def check_out(out: AnyPath, source: AnyPath, *, overwrite: bool) -> None:
    """Check the output folder of a dataset before anything is read.

    Raises:
        SettingsError: ``out`` and the source overlap, or ``out`` exists and may not be replaced.
    """
    from hopstream.dataset.copying.remote_target import check_target_at
    from hopstream.dataset.dataset_folder import check_target
    from hopstream.ingest.source_paths import check_apart

    check_apart(out, {"the source": source})
    check_target_at(out, overwrite=overwrite)
    if isinstance(out, Path):
        check_target(out, overwrite=overwrite)
